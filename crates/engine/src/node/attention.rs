//! Whose updates a node must be given at once. Nearly everybody else's, in a large federation, change nothing now but what
//! it knows of their authors; whoever carries adverts to it may keep those until it is given anything else.

use std::sync::Arc;

use fednode_core::{Advert, Body, FederationSpec, NodeId};

use super::Node;
use crate::state::Phase;

/// The nodes whose updates matter at once, or a few more: a set of the first bytes of their ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attention([u64; 4]);

impl Attention {
    /// Everybody's updates matter.
    pub(crate) const TO_ALL: Self = Self([u64::MAX; 4]);

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

impl Node {
    /// Returns whose mere updates this node must be given at once, until it is given anything.
    pub(crate) fn attention(&self) -> Attention {
        let waits_for_others = match self.state.phase {
            Phase::Training | Phase::Merging => false,
            Phase::Exchanging => !self.view.has_aggregator(),
            Phase::Joining | Phase::Pooling | Phase::Serving => true,
        };
        if waits_for_others || self.acting.is_some() || self.unconfirmed {
            return Attention::TO_ALL;
        }
        Attention::to(self.exchange.iter().flat_map(|exchange| exchange.awaited()))
    }

    /// Takes in an update that could wait.
    pub(crate) fn hear(&mut self, advert: &Arc<Advert>) {
        self.view.record(advert);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attention_is_paid_to_those_who_are_awaited_and_to_few_others() {
        let nodes: Vec<NodeId> = (0..1000)
            .map(|number| crate::sim::node_id(1, number))
            .collect();
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
