//! Whose updates a node must be given at once.
//!
//! In a large federation nearly all other updates change nothing now but what the node knows of their authors. The
//! simulator keeps those in the node's inbox until the node is given another input.

use fednode_core::{Advert, Body, FederationSpec, NodeId};

use fednode_engine::Node;

/// The nodes whose updates matter at once, or a few more: a set of the first bytes of their ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attention([u64; 4]);

impl Attention {
    /// Everybody's updates matter.
    pub(crate) const TO_ALL: Self = Self([u64::MAX; 4]);

    /// Returns whose mere updates a node must be given at once, until it is given anything.
    pub(crate) fn of(node: &Node) -> Self {
        node.awaited_updates().map_or(Self::TO_ALL, Self::to)
    }

    fn to(nodes: impl Iterator<Item = NodeId>) -> Self {
        let mut set = [0; 4];
        for node in nodes {
            let first = node.as_bytes()[0];
            set[usize::from(first / 64)] |= 1 << (first % 64);
        }
        Self(set)
    }

    /// Tells whether a node's updates matter at once.
    pub(crate) fn is_paid_to(&self, node: NodeId) -> bool {
        let first = node.as_bytes()[0];
        self.0[usize::from(first / 64)] >> (first % 64) & 1 == 1
    }
}

/// Tells whether an advert is of the kind that may wait: an update that nobody fetches proxies for.
pub(crate) fn is_mere_update(advert: &Advert, spec: &FederationSpec) -> bool {
    matches!(&advert.body, Body::Local(local) if local.proxies.is_none() || spec.uses_sketches())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attention_is_paid_to_those_who_are_awaited_and_to_few_others() {
        let nodes: Vec<NodeId> = (0..1000).map(|number| crate::node_id(1, number)).collect();
        let attention = Attention::to(nodes[..20].iter().copied());
        assert!(nodes[..20].iter().all(|node| attention.is_paid_to(*node)));
        let others = nodes[20..]
            .iter()
            .filter(|node| attention.is_paid_to(**node))
            .count();
        assert!(others < 980 / 10, "{others} of 980 others");
        assert!(nodes.iter().all(|node| Attention::TO_ALL.is_paid_to(*node)));
    }
}
