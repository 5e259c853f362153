//! Doubts: of whom there was something that could not be had, or not be counted, when it was wanted last. Nobody waits for
//! those nodes, and what they closed comes after what others closed.
//!
//! ```text
//!   part or mean not to be had ──┐
//!                                ├──► doubted ──► its part comes, or its closing is followed
//!   part refused by a closer ────┘
//! ```
//!
//! A refused part that is fetched once more ends the doubt, too. The next mean refuses it again.

use std::collections::BTreeSet;

use fednode_core::NodeId;
use serde::{Deserialize, Serialize};

use super::nodes::MAX_NODES;

/// The nodes that are doubted.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Doubts(BTreeSet<NodeId>);

impl Doubts {
    /// Doubts a node.
    pub(super) fn add(&mut self, node: NodeId) {
        // Bounded like the nodes: a flood of liars must not fill the memory.
        if self.0.len() < MAX_NODES {
            self.0.insert(node);
        }
    }

    /// Tells whether a node is doubted.
    pub(super) fn contains(&self, node: NodeId) -> bool {
        self.0.contains(&node)
    }

    /// Doubts those nodes no longer.
    pub(super) fn lift(&mut self, is_good: impl Fn(NodeId) -> bool) {
        self.0.retain(|node| !is_good(*node));
    }
}
