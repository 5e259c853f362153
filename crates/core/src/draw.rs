//! Draws that everybody makes alike: who acts, who audits, who is heard.
//!
//! A draw hashes its purpose, the federation's seed, a round and a node. It does not depend on the other keys of the spec:
//! a new key, or another value of one, leaves all draws as they are. These draws are no secret, since all members know the
//! spec. A node cannot choose its outcome without another key pair. Who audits is drawn from a secret of its own instead.

use serde::{Deserialize, Serialize};

use crate::{NodeId, Round};

/// What all draws of a federation start from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrawSeed(u64);

impl DrawSeed {
    /// Returns the start of the draws of a federation with this `seed`.
    pub const fn of(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns 32 bytes for a purpose, to seed a generator with.
    pub fn bytes(self, purpose: &[u8]) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        hasher.update(purpose).update(&self.0.to_le_bytes());
        *hasher.finalize().as_bytes()
    }
}

/// Draws a number for a node and a round.
pub fn draw(purpose: &[u8], seed: DrawSeed, round: Round, node: NodeId) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher
        .update(purpose)
        .update(&seed.0.to_le_bytes())
        .update(&round.0.to_le_bytes())
        .update(node.as_bytes());
    *hasher.finalize().as_bytes()
}

/// Tells whether an event of this probability happens for a node in a round; the same for everybody who asks.
pub fn happens(
    probability: f64,
    purpose: &[u8],
    seed: DrawSeed,
    round: Round,
    node: NodeId,
) -> bool {
    let drawn = draw(purpose, seed, round, node);
    let low = u64::from_le_bytes([
        drawn[0], drawn[1], drawn[2], drawn[3], drawn[4], drawn[5], drawn[6], drawn[7],
    ]);
    (low as f64 / u64::MAX as f64) < probability
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_happen_as_often_as_asked() {
        let seed = DrawSeed::of(1);
        let node = NodeId::from_bytes([2; 32]);
        let drawn = (1..=2000)
            .filter(|round| happens(0.05, b"audit", seed, Round(*round), node))
            .count();
        assert!((60..140).contains(&drawn), "{drawn} of 2000 at 5 %");
    }
}
