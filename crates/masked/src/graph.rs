//! Who holds whose shares in a large federation.
//!
//! Up to [`FULL`] nodes everybody holds shares of everybody. Beyond that each pair is drawn, so that a node has about
//! [`FULL`] others and its work does not grow with the federation (Choi et al. 2020; Bell et al., CCS 2020). The draw
//! is a hash of the pair, so both find the same, and nobody chooses its holders.
//!
//! Secrets of a node are safe from those who work together as long as they are not more than half of its holders. With
//! 1,000 nodes the chance that they are is 3·10⁻¹¹ for a node if a fifth of all work together, and 2·10⁻⁴ if a third do
//! (hypergeometric, over the number of holders).

use fednode_core::NodeId;

use crate::Context;

/// Most nodes that all hold shares of each other, and how many others a node has beyond that.
pub const FULL: usize = 96;

/// Returns the holders of a node's shares among all nodes, in node order.
pub fn holders(nodes: &[NodeId], me: NodeId, context: &Context) -> Vec<NodeId> {
    let is_full = nodes.len() <= FULL;
    // The share of all pairs that is drawn, as a 64-bit number.
    let bound = (u64::MAX / nodes.len().max(1) as u64).saturating_mul(FULL as u64);
    let is_drawn = |node: &NodeId| {
        let (low, high) = (me.min(*node), me.max(*node));
        let parts = [low.as_bytes().as_slice(), high.as_bytes()];
        let drawn = context.derive("fednode masked pair of holders 1", &parts);
        let number = drawn.first_chunk().copied().unwrap_or_default();
        u64::from_le_bytes(number) <= bound
    };
    let mut others: Vec<NodeId> = nodes
        .iter()
        .copied()
        .filter(|node| *node != me && (is_full || is_drawn(node)))
        .collect();
    others.sort_unstable();
    others.dedup();
    others
}
