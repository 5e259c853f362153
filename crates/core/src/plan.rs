//! The aggregation plan: which experts are mixed into each own expert, with which weight.

use serde::{Deserialize, Serialize};

use crate::{ExpertId, Lineage, Round, Slot};

/// One source of a row.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Source {
    /// The expert.
    pub expert: ExpertId,
    /// Cosine similarity of its proxy with the row's own (Eq. 8).
    pub similarity: f64,
    /// Its share of the mix (Eq. 10). The weights of a row sum to 1.
    pub weight: f64,
}

/// The sources of one own expert, best first. The own expert is always among them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanRow {
    /// The own expert.
    pub slot: Slot,
    /// What is mixed into it.
    pub sources: Vec<Source>,
}

/// A node's own rows of the matrix A, from one refresh of proxies (FedMoE-DA Eq. 8 to 10).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AggregationPlan {
    /// The round whose proxies it was computed from.
    pub round: Round,
    /// The lineage those proxies compare in.
    pub lineage: Lineage,
    /// One row per own expert, in slot order.
    pub rows: Vec<PlanRow>,
}

impl AggregationPlan {
    /// Visits the distinct experts of other nodes that the plan needs, in order.
    pub fn foreign_experts(&self, own: crate::NodeId) -> Vec<ExpertId> {
        let sources = self
            .rows
            .iter()
            .flat_map(|row| &row.sources)
            .map(|source| source.expert);
        let foreign: std::collections::BTreeSet<ExpertId> =
            sources.filter(|expert| expert.owner != own).collect();
        foreign.into_iter().collect()
    }
}
