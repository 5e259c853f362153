//! What a machine has computed, and what became of it. Slices of means are in [`crate::slices`], masks in [`crate::masks`].

use std::collections::BTreeMap;

use fednode_core::{BlobRef, ExpertId, Member, NodeId, PlanRow, Round};
use serde::{Deserialize, Serialize};

use crate::encoding::as_list;
use crate::masks::Masked;

/// Experts to mix and a shared part to adopt. Carried out by [`crate::execute::merge`].
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct MergeOrder {
    /// The round being merged.
    pub round: Round,
    /// The shared part to adopt, `None` to keep the own one.
    pub adopt: Option<BlobRef>,
    /// Whose statistics the shared part is the mean of; nothing if it is one of no statistics.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<Member>,
    /// The plan's rows, weights not yet renormalised.
    pub rows: Vec<PlanRow>,
    /// The own experts after training, by slot.
    pub own: Vec<BlobRef>,
    /// The foreign experts that are held.
    #[serde(with = "as_list")]
    pub sources: BTreeMap<ExpertId, BlobRef>,
}

/// Members of statistics are shown where there are any: in one round of some federations.
impl std::fmt::Debug for MergeOrder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("MergeOrder");
        shown
            .field("round", &self.round)
            .field("adopt", &self.adopt);
        if !self.members.is_empty() {
            shown.field("members", &self.members);
        }
        shown
            .field("rows", &self.rows)
            .field("own", &self.own)
            .field("sources", &self.sources)
            .finish()
    }
}

/// What became of a merge.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct MergeReport {
    /// The round.
    pub round: Round,
    /// Foreign experts that were screened out, and why.
    pub rejected: Vec<(ExpertId, String)>,
    /// Of those screened out, whose owners are not to blame: an unscaled table makes an honest owner's parameters large.
    #[serde(default)]
    pub excused: Vec<ExpertId>,
    /// Why the shared part was not adopted, if it was refused.
    pub refused_mean: Option<String>,
    /// Whether the mean to adopt is not held any more, for which nobody is to blame.
    pub lost_mean: bool,
}

/// Why a mean is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Purpose {
    /// To close a round.
    Close,
    /// To check what somebody else signed; the trial of that number.
    Verify(u32),
}

/// A mean to compute. Carried out by [`crate::execute::average`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AverageOrder {
    /// The round.
    pub round: Round,
    /// Why.
    pub purpose: Purpose,
    /// Whose shared parts, all of them held, in node order.
    pub members: Vec<Member>,
    /// How masks come off, where sums are masked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub masked: Option<Box<Masked>>,
}

/// What became of an average.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AverageReport {
    /// The order's round.
    pub round: Round,
    /// The order's purpose.
    pub purpose: Purpose,
    /// The mean, now in the store; `None` when nothing could be averaged.
    pub mean: Option<BlobRef>,
    /// Members that were counted.
    pub members: Vec<Member>,
    /// Members that were screened out, and why (only when closing).
    pub rejected: Vec<(NodeId, String)>,
    /// Members whose part is not held any more, for which nobody is to blame.
    pub lost: Vec<NodeId>,
    /// Of those screened out, who are not to blame: an unscaled table makes an honest member's parameters large.
    #[serde(default)]
    pub excused: Vec<NodeId>,
    /// Members whose statistics are not in the mean, and why. They are counted: whoever recomputes the mean leaves them out.
    #[serde(default)]
    pub disbelieved: Vec<(NodeId, String)>,
    /// Why these parts have no mean, if they have none. The same parts would have none again.
    #[serde(default)]
    pub impossible: Option<String>,
}

impl AverageReport {
    /// Makes the report of an order of which nothing came yet.
    pub fn of(order: &AverageOrder) -> Self {
        Self {
            round: order.round,
            purpose: order.purpose,
            mean: None,
            members: Vec::new(),
            rejected: Vec::new(),
            lost: Vec::new(),
            excused: Vec::new(),
            disbelieved: Vec::new(),
            impossible: None,
        }
    }
}

/// A private module, in the store if it is for others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModuleReport {
    /// What it is: `head`, `extractor`, `vector`, `expert`.
    pub kind: String,
    /// Its parameters; nothing if its owner keeps them to itself.
    pub blob: Option<BlobRef>,
    /// Accuracy on the owner's validation samples; 0 without any, and of a module that is kept.
    pub score: f64,
}

/// A pool to make of the own module and these, all of them held, in node order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PoolOrder {
    /// The modules of others.
    pub members: Vec<(NodeId, BlobRef)>,
}

/// What became of a pool.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct PoolReport {
    /// Modules that were screened out as malformed, and why.
    pub refused: Vec<(NodeId, String)>,
}
