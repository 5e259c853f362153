//! Who hears a local update: everybody, or in a large federation those who follow its author.
//!
//! With N nodes that all hear of all, every node receives N adverts a round, whatever it needs. Beyond
//! `scale.speakers` nodes a draw names the round's speakers: everybody hears them, and they alone are averaged. What
//! the others say reaches those who follow them because their experts are alike (a partial view).
//! Closed rounds and other control adverts are for everybody, whoever says them.

use crate::draw::{DrawSeed, happens};
use crate::{Body, FederationSpec, NodeId, Round};

/// Tells who speaks to everybody.
#[derive(Debug, Clone, Copy)]
pub struct Audience {
    seed: DrawSeed,
    /// Probability that a node speaks in a round.
    share: f64,
}

impl Audience {
    /// Takes the sizes from a spec.
    pub fn of(spec: &FederationSpec) -> Self {
        let share = f64::from(spec.scale.speakers) / f64::from(spec.nodes);
        Self {
            seed: spec.draw_seed(),
            share: share.min(1.0),
        }
    }

    /// Tells whether only some nodes speak to everybody.
    pub fn is_partial(&self) -> bool {
        self.share < 1.0
    }

    /// Tells whether everybody hears a node's update of a round.
    pub fn hears(&self, node: NodeId, round: Round) -> bool {
        !self.is_partial() || happens(self.share, b"fednode speakers 1", self.seed, round, node)
    }

    /// Tells whether an advert is for everybody.
    pub fn is_everybody(&self, author: NodeId, round: Round, body: &Body) -> bool {
        body.is_control() || self.hears(author, round)
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
        let small = Audience::of(&spec(256));
        assert!(!small.is_partial() && (0..256).all(|n| small.hears(node(n), Round(1))));

        let large = Audience::of(&spec(10_000));
        let heard = (0..10_000)
            .filter(|n| large.hears(node(*n), Round(7)))
            .count();
        assert!((200..320).contains(&heard), "{heard} of an expected 256");
        let again = (0..10_000)
            .filter(|n| large.hears(node(*n), Round(7)) && large.hears(node(*n), Round(8)))
            .count();
        assert!(again < 30, "every round draws anew: {again}");
        let quiet = (0..10_000)
            .map(node)
            .find(|node| !large.hears(*node, Round(1)))
            .unwrap();
        assert!(
            large.is_everybody(quiet, Round(1), &Body::Leave),
            "control is for everybody"
        );
    }
}
