//! Who holds rounds up: nodes that were here, and that a round waited for until its deadline in vain.
//!
//! ```text
//!   waited for until the deadline ──► 16 points ──twice──► not waited for any more
//!                                        ▲
//!   counted in a closed round ──► one point less
//! ```
//!
//! What such a node says still counts whenever it comes in time. Fewer than a third can be left out like that: more are no
//! liars but slow, and the others need them.

use std::collections::BTreeMap;

use fednode_core::NodeId;
use serde::{Deserialize, Serialize};

use super::nodes::MAX_NODES;

/// Points of a deadline.
const DEADLINE: u8 = 16;
/// From so many points on a node is not waited for.
const ENOUGH: u8 = 2 * DEADLINE;
/// More points than these count as these, so that a node that mends its ways is waited for again.
const MOST: u8 = 3 * DEADLINE;

/// The points of those who have some.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct HoldUps(BTreeMap<NodeId, u8>);

impl HoldUps {
    /// A round has waited for a node until its deadline.
    pub(super) fn note(&mut self, node: NodeId) {
        // Bounded like the nodes, since in an open federation names cost nothing.
        if self.0.len() < MAX_NODES || self.0.contains_key(&node) {
            let points = self.0.entry(node).or_default();
            *points = (*points + DEADLINE).min(MOST);
        }
    }

    /// A round was closed with these nodes.
    pub(super) fn on_counted(&mut self, is_counted: impl Fn(NodeId) -> bool) {
        for (node, points) in &mut self.0 {
            *points -= u8::from(is_counted(*node));
        }
        self.0.retain(|_, points| *points > 0);
    }

    /// Tells whether a node is waited for, in a federation of `n_nodes`.
    pub(super) fn is_waited_for(&self, node: NodeId, n_nodes: u32) -> bool {
        let has_enough = |points: &u8| *points >= ENOUGH;
        if !self.0.get(&node).is_some_and(has_enough) {
            return true;
        }
        let left_out = self.0.values().filter(|points| has_enough(points));
        3 * left_out.count() >= n_nodes as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVE: NodeId = NodeId::from_bytes([1; 32]);
    const MOE: NodeId = NodeId::from_bytes([2; 32]);

    #[test]
    fn who_holds_two_rounds_up_is_waited_for_again_once_it_is_counted() {
        let mut holdups = HoldUps::default();
        holdups.note(EVE);
        assert!(holdups.is_waited_for(EVE, 4), "once happens to everybody");
        holdups.note(EVE);
        assert!(!holdups.is_waited_for(EVE, 4));
        assert!(holdups.is_waited_for(MOE, 4));
        holdups.on_counted(|node| node == MOE);
        assert!(!holdups.is_waited_for(EVE, 4));
        holdups.on_counted(|node| node == EVE);
        assert!(holdups.is_waited_for(EVE, 4));
    }

    #[test]
    fn a_third_is_waited_for_however_slow_it_is() {
        let mut holdups = HoldUps::default();
        for node in [EVE, EVE, MOE, MOE] {
            holdups.note(node);
        }
        assert!(holdups.is_waited_for(EVE, 6));
        assert!(!holdups.is_waited_for(EVE, 7));
    }
}
