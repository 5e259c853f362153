//! Who receives a local update: everybody, or in a large federation those who follow its author.
//!
//! With N nodes that all hear of all, every node receives N adverts a round, whatever it needs. Beyond
//! `round.broadcast_set` nodes a draw names the round's broadcast set: everybody receives its updates, and they alone
//! are averaged. The updates of the others reach those who follow them because their experts are alike (a partial
//! view). Closed rounds and other control adverts are for everybody, whoever says them.

use crate::draw::{DrawSeed, happens};
use crate::{Body, FederationSpec, NodeId, Round};

/// Tells whose updates everybody receives.
#[derive(Debug, Clone, Copy)]
pub struct BroadcastSet {
    seed: DrawSeed,
    /// Probability that a node is in the set of a round.
    share: f64,
}

impl BroadcastSet {
    /// Takes the sizes from a spec.
    pub fn of(spec: &FederationSpec) -> Self {
        let share = f64::from(spec.round.broadcast_set) / f64::from(spec.nodes);
        Self {
            seed: spec.draw_seed(),
            share: share.min(1.0),
        }
    }

    /// Tells whether it is only some of the nodes.
    pub fn is_partial(&self) -> bool {
        self.share < 1.0
    }

    /// Tells whether everybody receives a node's update of a round.
    pub fn contains(&self, node: NodeId, round: Round) -> bool {
        !self.is_partial() || happens(self.share, b"fednode speakers 1", self.seed, round, node)
    }

    /// Tells whether an advert is for everybody.
    pub fn is_for_everybody(&self, author: NodeId, round: Round, body: &Body) -> bool {
        body.is_control() || self.contains(author, round)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_broadcast_set_is_everybody_and_large_one_is_bounded() {
        let spec = |nodes| FederationSpec {
            nodes,
            ..FederationSpec::default()
        };
        let node = |n: u32| NodeId::from_bytes(*blake3::hash(&n.to_le_bytes()).as_bytes());
        let small = BroadcastSet::of(&spec(256));
        assert!(!small.is_partial() && (0..256).all(|n| small.contains(node(n), Round(1))));

        let large = BroadcastSet::of(&spec(10_000));
        let heard = (0..10_000)
            .filter(|n| large.contains(node(*n), Round(7)))
            .count();
        assert!((200..320).contains(&heard), "{heard} of an expected 256");
        let again = (0..10_000)
            .filter(|n| large.contains(node(*n), Round(7)) && large.contains(node(*n), Round(8)))
            .count();
        assert!(again < 30, "every round draws anew: {again}");
        let quiet = (0..10_000)
            .map(node)
            .find(|node| !large.contains(*node, Round(1)))
            .unwrap();
        assert!(
            large.is_for_everybody(quiet, Round(1), &Body::Leave),
            "control is for everybody"
        );
    }
}
