//! What a node remembers across a restart, beside its phase and the chain that it follows.

use std::collections::{BTreeMap, BTreeSet};

use fednode_core::{
    AggregationPlan, BlobId, BlobRef, ExpertId, Lineage, LocalReport, NodeId, ProxyOffer, Round,
};
use serde::{Deserialize, Serialize};

use crate::encoding::as_list;
use crate::state::{Head, Held, Phase as PhaseName, State};

/// The part of a checkpoint that no phase owns.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Memory {
    /// The round that is being worked on; 0 while joining for the first time.
    pub(super) round: Round,
    /// The shared part that the model holds: the head's mean, unless the node had to go on alone.
    pub(super) lineage: Lineage,
    /// The plan in force.
    pub(super) plan: Option<AggregationPlan>,
    /// Foreign experts that may stand in for newer ones.
    #[serde(with = "as_list")]
    pub(super) held: BTreeMap<ExpertId, Held>,
    /// The newest finished local update.
    pub(super) report: Option<LocalReport>,
    /// The private module that this node offers.
    pub(super) module: Option<BlobRef>,
    /// Peers of whom was told that they have the classes under other names. No checkpoint holds them: a restart tells again.
    #[serde(default)]
    pub(super) told_renamed: BTreeSet<NodeId>,
    /// Who had left for good before this start.
    #[serde(default)]
    pub(super) gone: BTreeSet<NodeId>,
}

impl Memory {
    /// Takes a checkpoint of this node apart: the phase to go on with, the chain's head, and the rest.
    pub(super) fn of(state: State, me: NodeId) -> (PhaseName, Head, Self) {
        let mut memory = Self {
            round: state.round,
            lineage: state.lineage,
            plan: state.plan,
            held: state.held,
            report: state.report,
            module: state.module,
            told_renamed: BTreeSet::new(),
            gone: state.gone,
        };
        if let Some(before) = state.owner {
            memory.rename(before, me);
        }
        (state.phase, state.head, memory)
    }

    /// Puts a checkpoint together.
    pub(super) fn to_state(&self, phase: PhaseName, head: Head) -> State {
        State {
            phase,
            round: self.round,
            head,
            lineage: self.lineage,
            plan: self.plan.clone(),
            held: self.held.clone(),
            report: self.report.clone(),
            module: self.module,
            gone: self.gone.clone(),
            owner: None,
        }
    }

    /// Means this node by its id in a plan that was made before it had its key.
    fn rename(&mut self, before: NodeId, me: NodeId) {
        let rows = self.plan.iter_mut().flat_map(|plan| &mut plan.rows);
        for source in rows.flat_map(|row| &mut row.sources) {
            if source.expert.owner == before {
                source.expert.owner = me;
            }
        }
    }

    /// Takes a node's experts out of the plan.
    pub(super) fn forget(&mut self, node: NodeId) {
        self.held.retain(|expert, _| expert.owner != node);
        let rows = self.plan.iter_mut().flat_map(|plan| &mut plan.rows);
        rows.for_each(|row| row.sources.retain(|source| source.expert.owner != node));
    }

    /// Returns this round's finished update.
    pub(super) fn own_update(&self) -> Option<&LocalReport> {
        let report = self.report.as_ref();
        report.filter(|report| report.round == self.round)
    }

    /// Visits the blobs that are named here; garbage collection must not take them.
    pub(super) fn blobs(&self) -> impl Iterator<Item = BlobId> + '_ {
        // Others fetch the own update until they have left its round, and packing needs it as a base after that.
        let update = self.report.iter().flat_map(blobs_of);
        let held = self.held.values().map(|held| held.blob);
        let module = self.module.into_iter();
        update.chain(held).chain(module).map(|blob| blob.id)
    }
}

fn blobs_of(report: &LocalReport) -> impl Iterator<Item = BlobRef> + '_ {
    let proxies = match &report.proxies {
        Some(ProxyOffer::Blob(blob)) => Some(*blob),
        Some(ProxyOffer::Inline(_)) | None => None,
    };
    let offers = report.experts.iter().map(|offer| offer.blob);
    offers
        .chain(report.own_experts.iter().copied())
        .chain(report.shared)
        .chain(proxies)
}
