//! What a node did about masked sums, each at most once in a round.
//!
//! A node may come to a round a second time: it follows another chain, or it was restarted. Its masks of that round are used
//! up then, and a second agreement would be a lie. After a restart it does not know what it did, so it takes all for done.

use fednode_core::Round;
use serde::{Deserialize, Serialize};

/// The newest round in which each was done.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(super) struct Done {
    /// Masks were put on a part.
    pub(super) masked: Round,
    /// It was agreed to a set of survivors.
    pub(super) agreed: Round,
    /// Masks were taken off.
    pub(super) unmasked: Round,
}

impl Done {
    /// All that a node may have done that was restarted with a checkpoint of this round. It may have been in the next one.
    pub(super) fn before(checkpoint: Round) -> Self {
        let (masked, next) = (checkpoint, checkpoint.next());
        Self {
            masked,
            agreed: next,
            unmasked: next,
        }
    }
}
