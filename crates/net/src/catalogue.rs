//! The catalogue: which blobs adverts name, and who should hold each.
//!
//! The swarm task fills it with accepted adverts. The blob server reads it, because this node fetches for others only what
//! an advert names, in the size that the advert says. Bounded in all and for each announcer. What one announces displaces
//! its own older entries first.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use fednode_core::{Advert, BlobId, BlobRef, Body, NodeId};

/// Entries in all: some rounds of a federation of a thousand.
const MAX_ENTRIES: usize = 65_536;
/// Of these, what one member announced: two of the largest closed rounds.
const MAX_OF_ONE: usize = 1024;
/// Entries of one blob. Members that compute the same hold the same blob.
const MAX_OF_BLOB: usize = 16;

/// The blobs that accepted adverts name.
#[derive(Debug, Default)]
pub(crate) struct Catalogue(Mutex<Entries>);

#[derive(Debug, Default)]
struct Entries {
    said: HashMap<BlobRef, Vec<Said>>,
    /// What each member announced, the oldest first.
    of: BTreeMap<NodeId, VecDeque<(BlobRef, Said)>>,
    count: usize,
}

/// That somebody should hold a blob, and who announced that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Said {
    announcer: NodeId,
    owner: NodeId,
}

impl Catalogue {
    /// Notes what an accepted advert names.
    pub(crate) fn note(&self, advert: &Advert) {
        let mut entries = self.entries();
        let announcer = advert.author;
        let by = |owner| Said { announcer, owner };
        match &advert.body {
            // The part of each member lies with that member, whoever closed the round.
            Body::Global(global) => {
                for member in &global.members {
                    entries.add(member.shared, by(member.node));
                }
                entries.add(global.mean, by(announcer));
            }
            Body::Withdraw(withdraw) => entries.withdraw(announcer, &withdraw.blobs),
            body => {
                for blob in body.blobs() {
                    entries.add(blob, by(announcer));
                }
            }
        }
    }

    /// Returns who should hold a blob; nobody if no advert names it in this size.
    pub(crate) fn owners(&self, blob: &BlobRef) -> Vec<NodeId> {
        let entries = self.entries();
        let said = entries.said.get(blob).into_iter().flatten();
        said.map(|said| said.owner).collect()
    }

    // A panic elsewhere while the lock was held leaves maps that are still well formed.
    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entries {
    fn add(&mut self, blob: BlobRef, said: Said) {
        let of_blob = self.said.entry(blob).or_default();
        if of_blob.len() >= MAX_OF_BLOB || of_blob.contains(&said) {
            return;
        }
        of_blob.push(said);
        let of_one = self.of.entry(said.announcer).or_default();
        of_one.push_back((blob, said));
        self.count += 1;
        if of_one.len() > MAX_OF_ONE {
            self.forget_oldest_of(said.announcer, 1);
        }
        if self.count > MAX_ENTRIES {
            let most = self.of.iter().max_by_key(|(_, of_one)| of_one.len());
            // Half of them at once, so that the search is rare.
            if let Some((announcer, n)) = most.map(|(node, of_one)| (*node, of_one.len())) {
                self.forget_oldest_of(announcer, n.div_ceil(2));
            }
        }
    }

    fn forget_oldest_of(&mut self, announcer: NodeId, n: usize) {
        let Some(of_one) = self.of.get_mut(&announcer) else {
            return;
        };
        let oldest: Vec<_> = of_one.drain(..n.min(of_one.len())).collect();
        if of_one.is_empty() {
            self.of.remove(&announcer);
        }
        for (blob, said) in oldest {
            self.unsay(&blob, said);
        }
    }

    fn unsay(&mut self, blob: &BlobRef, said: Said) {
        self.count -= 1;
        if let Some(of_blob) = self.said.get_mut(blob) {
            of_blob.retain(|other| *other != said);
            if of_blob.is_empty() {
                self.said.remove(blob);
            }
        }
    }

    fn withdraw(&mut self, announcer: NodeId, blobs: &[BlobId]) {
        let Some(of_one) = self.of.get_mut(&announcer) else {
            return;
        };
        let (gone, kept): (Vec<_>, Vec<_>) = std::mem::take(of_one)
            .into_iter()
            .partition(|(blob, _)| blobs.contains(&blob.id));
        of_one.extend(kept);
        for (blob, said) in gone {
            self.unsay(&blob, said);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(n: u8) -> NodeId {
        NodeId::from_bytes([n; 32])
    }

    fn blob(n: usize) -> BlobRef {
        BlobRef::of(&n.to_le_bytes())
    }

    fn said(announcer: u8, owner: u8) -> Said {
        let (announcer, owner) = (node(announcer), node(owner));
        Said { announcer, owner }
    }

    #[test]
    fn what_one_member_says_displaces_only_what_it_said_itself() {
        let catalogue = Catalogue::default();
        let add = |n, said| catalogue.entries().add(blob(n), said);
        add(0, said(1, 1));
        // A liar names the honest blob first, and then too many others.
        add(0, said(2, 2));
        (1..=MAX_OF_ONE).for_each(|n| add(n, said(2, 2)));
        assert_eq!(catalogue.owners(&blob(0)), [node(1)]);
        assert_eq!(catalogue.owners(&blob(MAX_OF_ONE)), [node(2)]);
        assert_eq!(catalogue.entries().count, MAX_OF_ONE + 1);
        let other_size = BlobRef { size: 9, ..blob(0) };
        assert_eq!(catalogue.owners(&other_size), []);
        catalogue.entries().withdraw(node(1), &[blob(0).id]);
        assert_eq!(catalogue.owners(&blob(0)), []);
    }

    #[test]
    fn there_is_a_bound_for_all_together() {
        let catalogue = Catalogue::default();
        for by in 0..=255 {
            for n in 0..600 {
                let name = usize::from(by) * 1000 + n;
                catalogue.entries().add(blob(name), said(by, by));
            }
        }
        let entries = catalogue.entries();
        assert!(entries.count <= MAX_ENTRIES && entries.count > MAX_ENTRIES / 2);
        assert_eq!(entries.said.len(), entries.count);
    }
}
