//! Draws that everybody makes alike: who acts, who audits, who is heard.
//!
//! A draw hashes its purpose, the federation, a round and a node. Nobody can choose its outcome: the federation's name
//! depends on every key of the spec, and a node's on its key pair, which is made before the round is known.

use crate::{FederationId, NodeId, Round};

/// Draws a number for a node and a round.
pub fn draw(purpose: &[u8], federation: FederationId, round: Round, node: NodeId) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher
        .update(purpose)
        .update(federation.as_bytes())
        .update(&round.0.to_le_bytes())
        .update(node.as_bytes());
    *hasher.finalize().as_bytes()
}

/// Tells whether an event of this probability happens for a node in a round; the same for everybody who asks.
pub fn happens(
    probability: f64,
    purpose: &[u8],
    federation: FederationId,
    round: Round,
    node: NodeId,
) -> bool {
    let drawn = draw(purpose, federation, round, node);
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
        let federation = FederationId::from_bytes([1; 32]);
        let node = NodeId::from_bytes([2; 32]);
        let drawn = (1..=2000)
            .filter(|round| happens(0.05, b"audit", federation, Round(*round), node))
            .count();
        assert!((60..140).contains(&drawn), "{drawn} of 2000 at 5 %");
    }
}
