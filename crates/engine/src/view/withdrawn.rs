//! Blobs that their owner took back: nobody fetches them any more, and one that was on its way then is deleted when it comes.

use std::collections::VecDeque;

use fednode_core::{BlobId, NodeId};
use serde::{Deserialize, Serialize};

/// Blobs remembered, two full withdrawals. What comes beyond that goes with the next garbage.
const MAX_REMEMBERED: usize = 1024;

/// The blobs that were taken back last, with their owners.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Withdrawn(VecDeque<(BlobId, NodeId)>);

impl Withdrawn {
    /// Remembers blobs that an owner took back, instead of the oldest ones if there is no room.
    pub(super) fn add(&mut self, owner: NodeId, blobs: &[BlobId]) {
        for blob in blobs {
            // A liar may name the blob of somebody else first, so whose word it was counts.
            if !self.owners_of(*blob).any(|known| known == owner) {
                self.0.push_back((*blob, owner));
            }
        }
        let surplus = self.0.len().saturating_sub(MAX_REMEMBERED);
        self.0.drain(..surplus);
    }

    /// Visits those who took a blob back.
    pub(super) fn owners_of(&self, blob: BlobId) -> impl Iterator<Item = NodeId> + '_ {
        let found = self.0.iter().filter(move |(taken, _)| *taken == blob);
        found.map(|(_, owner)| *owner)
    }
}
