//! The company: who is here, and has neither left nor been banned.
//!
//! ```text
//!   connected, or back after a farewell ──► here ──► connection lost, farewell, ban
//! ```
//!
//! Whatever waits for others looks at the count of changes, and looks again when it has grown.

use std::collections::BTreeSet;

use fednode_core::{NodeId, Role};
use serde::{Deserialize, Serialize};

/// Aggregators that are remembered as idle, beside those that are here.
const MAX_IDLE: usize = 64;

/// The members that are here.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Company {
    /// The training nodes.
    neighbours: BTreeSet<NodeId>,
    aggregators: BTreeSet<NodeId>,
    /// The aggregators that are not waited for.
    #[serde(default)]
    idle: BTreeSet<NodeId>,
    changes: u64,
}

impl Company {
    /// Visits the training nodes.
    pub(crate) fn neighbours(&self) -> impl ExactSizeIterator<Item = NodeId> + '_ {
        self.neighbours.iter().copied()
    }

    /// Tells whether a training node is here.
    pub(crate) fn has_neighbour(&self, node: NodeId) -> bool {
        self.neighbours.contains(&node)
    }

    /// Visits the aggregators.
    pub(crate) fn aggregators(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.aggregators.iter().copied()
    }

    /// Tells whether an aggregator is here that can be waited for. Anybody can say that it is one where no organiser decides that.
    pub(crate) fn has_aggregator(&self) -> bool {
        !self.aggregators.is_subset(&self.idle)
    }

    /// Remembers that these aggregators did nothing in a whole round, also where they come again.
    pub(super) fn note_idle_aggregators(&mut self) {
        if self.idle.len() >= MAX_IDLE {
            self.idle.retain(|node| self.aggregators.contains(node));
        }
        self.idle.extend(&self.aggregators);
    }

    /// A closed round of this author is followed.
    pub(super) fn on_followed(&mut self, author: NodeId) {
        self.idle.remove(&author);
    }

    /// Counts the times that a member came, went, left, came back or was banned.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    pub(super) fn changed(&mut self) {
        self.changes += 1;
    }

    pub(super) fn enter(&mut self, node: NodeId, role: Role) {
        match role {
            Role::Node => self.neighbours.insert(node),
            Role::Aggregator => self.aggregators.insert(node),
        };
    }

    /// A training node said goodbye.
    pub(super) fn lose_neighbour(&mut self, node: NodeId) {
        self.changed();
        self.neighbours.remove(&node);
    }

    /// A member is gone or banned, whatever it was.
    pub(super) fn lose(&mut self, node: NodeId) {
        self.lose_neighbour(node);
        self.aggregators.remove(&node);
    }
}
