//! What a node remembers across a restart, small enough for a checkpoint after every phase.

use std::collections::{BTreeMap, BTreeSet};

use fednode_core::{
    AggregationPlan, BlobRef, ClosingId, ExpertId, FederationSpec, Global, Lineage, LocalReport,
    NodeId, Round,
};
use serde::{Deserialize, Serialize};

use crate::encoding::as_list;

/// A node's life (`fednode-engine` essay). A phase is a thing that is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Waits for peers, and for the newest closed round.
    Joining,
    /// Waits for the trainer.
    Training,
    /// Waits for the experts of the plan and for the round's mean.
    Exchanging,
    /// Waits for the merge.
    Merging,
    /// All rounds are done; waits for the private modules of the others, and for the mixture of them.
    Pooling,
    /// Everything is done; serves experts to others.
    Serving,
}

impl Phase {
    /// Returns the name used in logs, metrics and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Joining => "joining",
            Self::Training => "training",
            Self::Exchanging => "exchanging",
            Self::Merging => "merging",
            Self::Pooling => "pooling",
            Self::Serving => "serving",
        }
    }
}

/// Closed rounds before the newest one that a machine remembers by name: as far as two chains are told apart.
pub const MAX_ANCESTORS: usize = 32;

/// The newest closed round that this node follows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// Its number; 0 before any round is closed.
    pub round: Round,
    /// Its mean; before any round is closed, the initial shared part (unknown to an aggregator).
    pub mean: Option<BlobRef>,
    /// The mean that it followed, `None` before any round is closed.
    pub parent: Option<Lineage>,
    /// Its name, `None` before any round is closed.
    #[serde(default)]
    pub closing: Option<ClosingId>,
    /// The closed rounds before it, newest first, [`MAX_ANCESTORS`] at most.
    #[serde(default)]
    pub ancestors: Vec<ClosingId>,
    /// Who was counted in it, in order: they are expected in the next round. Empty where others train in the next round.
    #[serde(default)]
    pub counted: Vec<NodeId>,
}

impl Head {
    /// The time before any round is closed; `initial` is what everybody starts from.
    pub const fn initial(initial: Option<BlobRef>) -> Self {
        Self {
            round: Round::ZERO,
            mean: initial,
            parent: None,
            closing: None,
            ancestors: Vec::new(),
            counted: Vec::new(),
        }
    }

    /// A closed round after others, newest first; `counts_again` tells whether its members are those of the next round, too.
    pub(crate) fn of(
        round: Round,
        global: &Global,
        mut ancestors: Vec<ClosingId>,
        counts_again: bool,
    ) -> Self {
        ancestors.truncate(MAX_ANCESTORS);
        let members = global.members.iter().filter(|_| counts_again);
        Self {
            round,
            mean: Some(global.mean),
            parent: Some(global.parent),
            closing: Some(global.id(round)),
            ancestors,
            counted: members.map(|member| member.node).collect(),
        }
    }

    /// Visits it and the closed rounds before it, newest first.
    pub(crate) fn chain(&self) -> impl Iterator<Item = ClosingId> + '_ {
        self.closing.iter().chain(&self.ancestors).copied()
    }

    /// Tells whether a node was counted.
    pub(crate) fn counts(&self, node: NodeId) -> bool {
        self.counted.binary_search(&node).is_ok()
    }
}

/// A foreign expert that is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// The round in which its owner trained it.
    pub round: Round,
    /// Its parameters.
    pub blob: BlobRef,
}

/// Everything that a checkpoint keeps of the state machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// What is waited for.
    pub phase: Phase,
    /// The round that is being worked on; 0 while joining for the first time.
    pub round: Round,
    /// The newest closed round.
    pub head: Head,
    /// The shared part that the model holds: the head's mean, unless the node had to go on alone.
    pub lineage: Lineage,
    /// The plan in force.
    pub plan: Option<AggregationPlan>,
    /// Experts of others that were fetched, of this round or of earlier ones that may stand in.
    #[serde(with = "as_list")]
    pub held: BTreeMap<ExpertId, Held>,
    /// The newest finished local update.
    pub report: Option<LocalReport>,
    /// The private module that this node offers.
    #[serde(default)]
    pub module: Option<BlobRef>,
    /// Who has left for good, as far as this node knows. Nobody waits for them after an end.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub gone: BTreeSet<NodeId>,
    /// Whose it is: a node may have another key when it goes on from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<NodeId>,
}

impl State {
    /// Tells whether the node has not begun with the rounds that were added last.
    pub fn is_before_added_rounds(&self, spec: &FederationSpec) -> bool {
        let since = spec.since();
        since > Round::ZERO && self.round <= since
    }

    /// Tells whether the node has been in rounds that this spec does not know of.
    pub fn is_past(&self, spec: &FederationSpec) -> bool {
        // It was about to begin the first round that was added after the last one that is known here.
        let begins_after = self.phase == Phase::Joining && self.round.0 == spec.rounds;
        self.round.0 > spec.rounds || begins_after
    }

    /// Tells whether its model is more than the parameters that everybody begins with: it was trained, or others' mean taken over.
    pub fn has_learned(&self) -> bool {
        self.report.is_some() || self.head.round > Round::ZERO
    }

    /// A node that has not met anybody yet.
    pub fn new(initial: Option<BlobRef>, fallback: Lineage) -> Self {
        Self {
            phase: Phase::Joining,
            round: Round::ZERO,
            // The initial part stands for the mean of round 0, so that what is trained from it has a base to be packed against.
            head: Head::initial(initial),
            lineage: initial.map_or(fallback, |blob| blob.id),
            plan: None,
            held: BTreeMap::new(),
            report: None,
            module: None,
            gone: BTreeSet::new(),
            owner: None,
        }
    }
}
