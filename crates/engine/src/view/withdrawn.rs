//! Blobs that their owner took back: nobody fetches them any more, and one that was on its way then is deleted when it comes.

use std::collections::{BTreeMap, VecDeque};

use fednode_core::{Accepted, BlobId, NodeId, Sequence};
use serde::{Deserialize, Serialize};

/// Blobs remembered, two full withdrawals. What comes beyond that goes with the next garbage.
const MAX_REMEMBERED: usize = 1024;

/// The blobs that were taken back last, with their owners and the number of the advert that says so.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Withdrawn(VecDeque<(BlobId, NodeId, Sequence)>);

impl Withdrawn {
    /// Remembers blobs that an owner took back. If there is no room, the oldest of whoever took most back is forgotten, so
    /// that nobody's withdrawals drive out those of others.
    pub(super) fn add(&mut self, (owner, at): (NodeId, Sequence), blobs: &[BlobId]) {
        for blob in blobs {
            // A liar may name the blob of somebody else first, so whose word it was counts.
            self.0
                .retain(|(known, by, _)| (known, *by) != (blob, owner));
            self.0.push_back((*blob, owner, at));
        }
        let surplus = self.0.len().saturating_sub(MAX_REMEMBERED);
        if surplus > 0 {
            self.forget(surplus);
        }
    }

    /// An owner has published something. What it names anew is not taken back any more.
    pub(super) fn published(&mut self, advert: &Accepted) {
        if self.0.is_empty() {
            return;
        }
        let blobs = advert.body.blobs();
        self.0.retain(|(blob, owner, at)| {
            // Adverts come in any order: what was said before the withdrawal does not undo it.
            let is_its = *owner == advert.author && *at < advert.sequence;
            !(is_its && blobs.iter().any(|named| named.id == *blob))
        });
    }

    /// Forgets so many, each the oldest of whoever has most then.
    fn forget(&mut self, surplus: usize) {
        let mut shares: BTreeMap<NodeId, usize> = BTreeMap::new();
        for (_, owner, _) in &self.0 {
            *shares.entry(*owner).or_default() += 1;
        }
        let mut gone: BTreeMap<NodeId, usize> = BTreeMap::new();
        for _ in 0..surplus {
            if let Some((owner, share)) = shares.iter_mut().max_by_key(|(_, share)| **share) {
                *share -= 1;
                *gone.entry(*owner).or_default() += 1;
            }
        }
        self.0.retain(|(_, owner, _)| match gone.get_mut(owner) {
            Some(left) if *left > 0 => {
                *left -= 1;
                false
            }
            _ => true,
        });
    }

    /// Returns what each took back.
    pub(super) fn by_owner(&self) -> BTreeMap<NodeId, Vec<BlobId>> {
        let mut by_owner: BTreeMap<NodeId, Vec<BlobId>> = BTreeMap::new();
        for (blob, owner, _) in &self.0 {
            by_owner.entry(*owner).or_default().push(*blob);
        }
        by_owner
    }

    /// Visits those who took a blob back.
    pub(super) fn owners_of(&self, blob: BlobId) -> impl Iterator<Item = NodeId> + '_ {
        let found = self.0.iter().filter(move |(taken, ..)| *taken == blob);
        found.map(|(_, owner, _)| *owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blobs(of: u8, range: std::ops::Range<u16>) -> Vec<BlobId> {
        let blob = |n: u16| BlobId::of(&[of, n.to_be_bytes()[0], n.to_be_bytes()[1]]);
        range.map(blob).collect()
    }

    #[test]
    fn who_takes_much_back_drives_out_its_own_blobs_first() {
        let [honest, liar] = [1, 2].map(|byte| NodeId::from_bytes([byte; 32]));
        let mut withdrawn = Withdrawn::default();
        let at = |counter| Sequence {
            incarnation: 1,
            counter,
        };
        withdrawn.add((honest, at(1)), &blobs(1, 0..20));
        for start in (0..3000).step_by(500) {
            withdrawn.add((liar, at(u64::from(start))), &blobs(2, start..start + 500));
        }
        let is_known = |blob: &BlobId| withdrawn.owners_of(*blob).next().is_some();
        assert!(blobs(1, 0..20).iter().all(is_known));
        assert_eq!(withdrawn.0.len(), MAX_REMEMBERED);
        let newest = blobs(2, 2000..3000);
        assert!(newest.iter().all(is_known), "the liar's oldest are gone");
    }
}
