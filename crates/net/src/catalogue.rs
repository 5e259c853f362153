//! The catalogue: which blobs adverts name, and who should hold each.
//!
//! The swarm task fills it with accepted adverts. The blob server reads it, because this node fetches for others only what
//! an advert names, in the size that the advert says. Bounded in all and for each announcer. What one announces displaces
//! its own older entries first.
//!
//! The entries of one blob are bounded, too. Where keys are free, one member can announce a blob of another under many keys.
//! So a connected member's word about its own blob always counts, and displaces that of one which is not connected.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use fednode_core::{Advert, BlobId, BlobRef, Body, NodeId};

use crate::roster::Roster;

/// Entries in all: some rounds of a federation of a thousand.
const MAX_ENTRIES: usize = 65_536;
/// Of these, what one member announced: two of the largest closed rounds.
const MAX_OF_ONE: usize = 1024;
/// Entries of one blob, beside those of connected members. Members that compute the same hold the same blob.
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
    /// Notes what an accepted advert names. The roster tells who is connected.
    pub(crate) fn note(&self, advert: &Advert, roster: &Roster) {
        let mut entries = self.entries();
        let announcer = advert.author;
        let by = |owner| Said { announcer, owner };
        let is_here = |node: &NodeId| roster.role(node).is_some();
        match &advert.body {
            // The part of each member lies with that member, whoever closed the round.
            Body::Global(global) => {
                for member in &global.members {
                    entries.add(member.shared, by(member.node), is_here);
                }
                entries.add(global.mean, by(announcer), is_here);
            }
            Body::Withdraw(withdraw) => entries.withdraw(announcer, &withdraw.blobs),
            body => {
                for blob in body.blobs() {
                    entries.add(blob, by(announcer), is_here);
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
    fn add(&mut self, blob: BlobRef, said: Said, is_here: impl Fn(&NodeId) -> bool) {
        if !self.has_room(&blob, said, is_here) {
            return;
        }
        self.said.entry(blob).or_default().push(said);
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

    /// Tells whether an entry is new and may be added. A connected member's word makes room for itself.
    fn has_room(&mut self, blob: &BlobRef, said: Said, is_here: impl Fn(&NodeId) -> bool) -> bool {
        let of_blob = self.said.get(blob).map_or(&[][..], Vec::as_slice);
        if of_blob.contains(&said) {
            return false;
        }
        if of_blob.len() < MAX_OF_BLOB {
            return true;
        }
        if said.announcer != said.owner || !is_here(&said.owner) {
            return false;
        }
        // The latest: who came before a flood stays. If all are connected, there are no more of them than peers.
        let absent = of_blob.iter().rev().find(|other| !is_here(&other.owner));
        if let Some(absent) = absent.copied() {
            self.forget(blob, absent);
        }
        true
    }

    fn forget(&mut self, blob: &BlobRef, said: Said) {
        if let Some(of_one) = self.of.get_mut(&said.announcer) {
            of_one.retain(|entry| *entry != (*blob, said));
            if of_one.is_empty() {
                self.of.remove(&said.announcer);
            }
        }
        self.unsay(blob, said);
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
        if kept.is_empty() {
            self.of.remove(&announcer);
        } else {
            of_one.extend(kept);
        }
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

    fn nobody(_: &NodeId) -> bool {
        false
    }

    #[test]
    fn what_one_member_says_displaces_only_what_it_said_itself() {
        let catalogue = Catalogue::default();
        let add = |n, said| catalogue.entries().add(blob(n), said, nobody);
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
        assert!(!catalogue.entries().of.contains_key(&node(1)));
    }

    #[test]
    fn many_keys_cannot_hide_a_connected_owner() {
        const KEYS: u8 = 100 + MAX_OF_BLOB as u8;
        let catalogue = Catalogue::default();
        let owners = || catalogue.owners(&blob(0));
        let add = |said, is_here: fn(&NodeId) -> bool| {
            catalogue.entries().add(blob(0), said, is_here);
        };
        (100..KEYS).for_each(|key| add(said(key, key), nobody));
        add(said(1, 1), nobody);
        assert!(!owners().contains(&node(1)), "nobody can ask it");
        // Others cannot say that for it.
        add(said(2, 1), |_| true);
        assert_eq!(owners().len(), MAX_OF_BLOB);
        add(said(1, 1), |who| *who == node(1));
        assert_eq!(owners().len(), MAX_OF_BLOB);
        assert_eq!(owners().last(), Some(&node(1)));
        assert!(!owners().contains(&node(KEYS - 1)), "the latest of them");
        // Nor can connected keys: they displace those that are not, and then nobody.
        let connected = |who: &NodeId| *who == node(1) || *who >= node(200);
        (200..KEYS + 100).for_each(|key| add(said(key, key), connected));
        assert!(owners().contains(&node(1)));
        assert_eq!(owners().len(), MAX_OF_BLOB + 1);
        let entries = catalogue.entries();
        let of_all = entries.of.values().map(VecDeque::len).sum::<usize>();
        assert_eq!(
            (entries.count, of_all),
            (entries.said[&blob(0)].len(), entries.count)
        );
    }

    #[test]
    fn there_is_a_bound_for_all_together() {
        let catalogue = Catalogue::default();
        for by in 0..=255 {
            for n in 0..600 {
                let name = usize::from(by) * 1000 + n;
                catalogue.entries().add(blob(name), said(by, by), nobody);
            }
        }
        let entries = catalogue.entries();
        assert!(entries.count <= MAX_ENTRIES && entries.count > MAX_ENTRIES / 2);
        assert_eq!(entries.said.len(), entries.count);
    }
}
