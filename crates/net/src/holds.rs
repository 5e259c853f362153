//! Which blobs this node holds, and which peers know: each peer is told of each blob once.

use std::collections::VecDeque;

use fednode_core::BlobId;

use crate::wire::MAX_HOLDS;

/// The most recently completed blobs, numbered in order.
#[derive(Debug, Default)]
pub(crate) struct Holds {
    recent: VecDeque<BlobId>,
    /// The number that the next blob gets.
    next: u64,
}

impl Holds {
    /// Notes a complete blob. Noting it again makes it recent again.
    pub(crate) fn add(&mut self, blob: BlobId) {
        self.recent.push_back(blob);
        self.next += 1;
        // One message names no more than these, so an older name could never be told.
        if self.recent.len() > MAX_HOLDS {
            self.recent.pop_front();
        }
    }

    /// Returns the blobs that a peer was not told of yet, if it was told of all below `told`, and the number to remember.
    pub(crate) fn since(&self, told: u64) -> (Vec<BlobId>, u64) {
        // A peer that was away for long misses the oldest; it finds those by asking for them.
        let new = usize::try_from(self.next.saturating_sub(told))
            .unwrap_or(usize::MAX)
            .min(self.recent.len());
        (
            self.recent
                .range(self.recent.len() - new..)
                .copied()
                .collect(),
            self.next,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_peer_hears_of_each_blob_once() {
        let blob = |n: u32| BlobId::of(&n.to_le_bytes());
        let mut holds = Holds::default();
        assert_eq!(holds.since(0), (vec![], 0));
        holds.add(blob(1));
        holds.add(blob(2));
        assert_eq!(holds.since(0), (vec![blob(1), blob(2)], 2));
        assert_eq!(holds.since(1), (vec![blob(2)], 2));
        assert_eq!(holds.since(2), (vec![], 2));
        (0..1000).for_each(|n| holds.add(blob(n)));
        let (told, number) = holds.since(2);
        assert_eq!(
            (told.len(), number, told.last().copied()),
            (MAX_HOLDS, 1002, Some(blob(999)))
        );
    }
}
