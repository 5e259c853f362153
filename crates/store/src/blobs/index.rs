//! The index of the blob store in memory: held blobs, blobs being received, their space, and which may be collected.
//!
//! One mutex in [`super::Blobs`] guards it. A thread that changes the *name* of a file holds that mutex. A thread that reads
//! or writes *bytes* does not.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use fednode_core::{BlobId, BlobRef, SegmentList};

use super::receiving::Receiving;

/// How long a blob being received is safe from collection after its last use: far longer than any deadline of a round.
const PARTIAL_REST: Duration = Duration::from_secs(600);
/// Largest number of files in the store. A quota in bytes alone would allow a hundred million tiny ones.
pub(super) const MAX_BLOBS: usize = 1 << 18;
/// Largest number of remembered chaining values of held blobs: 2 MiB of memory, the lists of 64 GiB of blobs.
const MAX_REMEMBERED_VALUES: usize = 1 << 16;

/// A held blob.
#[derive(Debug, Clone, Copy)]
pub(super) struct Held {
    pub(super) size: u64,
    pub(super) used: SystemTime,
}

/// A blob of which parts may be on the disk.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) used: SystemTime,
    /// Set by `begin` of this process.
    pub(super) receiving: Option<Arc<Mutex<Receiving>>>,
}

/// A blob that may be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Victim {
    Held(BlobId),
    Partial(BlobRef),
}

#[derive(Debug, Default)]
pub(super) struct Index {
    held: BTreeMap<BlobId, Held>,
    incoming: BTreeMap<BlobRef, Incoming>,
    /// Bytes of held blobs, announced bytes of blobs being received, and reserved bytes of blobs being stored.
    used_bytes: u64,
    pins: BTreeMap<BlobId, usize>,
    keep: BTreeSet<BlobId>,
    lists: Lists,
}

impl Index {
    pub(super) fn held(&self, id: &BlobId) -> Option<Held> {
        self.held.get(id).copied()
    }

    pub(super) fn all_held(&self) -> Vec<BlobRef> {
        self.held
            .iter()
            .map(|(id, held)| BlobRef {
                id: *id,
                size: held.size,
            })
            .collect()
    }

    pub(super) fn len(&self) -> usize {
        self.held.len() + self.incoming.len()
    }

    pub(super) fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// Counts bytes that will soon be a held blob.
    pub(super) fn reserve(&mut self, bytes: u64) {
        self.used_bytes += bytes;
    }

    pub(super) fn release(&mut self, bytes: u64) {
        debug_assert!(
            self.used_bytes >= bytes,
            "only what was reserved is released"
        );
        self.used_bytes = self.used_bytes.saturating_sub(bytes);
    }

    /// Adds a held blob and its bytes.
    pub(super) fn insert_held(&mut self, blob: BlobRef, used: SystemTime) {
        self.reserve(blob.size);
        if let Some(before) = self.held.insert(
            blob.id,
            Held {
                size: blob.size,
                used,
            },
        ) {
            self.release(before.size);
        }
    }

    /// Adds a partial blob and the bytes that it will have.
    pub(super) fn insert_incoming(&mut self, blob: BlobRef, used: SystemTime) {
        if self
            .incoming
            .insert(
                blob,
                Incoming {
                    used,
                    receiving: None,
                },
            )
            .is_none()
        {
            self.reserve(blob.size);
        }
    }

    pub(super) fn incoming(&mut self, blob: &BlobRef) -> Option<&mut Incoming> {
        self.incoming.get_mut(blob)
    }

    /// Returns all blobs that are being received under a name, with any announced size.
    pub(super) fn incoming_of(&self, id: &BlobId) -> Vec<BlobRef> {
        let (least, most) = (
            BlobRef { id: *id, size: 0 },
            BlobRef {
                id: *id,
                size: u64::MAX,
            },
        );
        self.incoming
            .range(least..=most)
            .map(|(blob, _)| *blob)
            .collect()
    }

    /// Forgets a held or partial blob. The caller removes its files.
    pub(super) fn forget(&mut self, victim: Victim) -> bool {
        let bytes = match victim {
            Victim::Held(id) => {
                self.lists.forget(&id);
                self.held.remove(&id).map(|held| held.size)
            }
            Victim::Partial(blob) => self.incoming.remove(&blob).map(|_| blob.size),
        };
        self.release(bytes.unwrap_or(0));
        bytes.is_some()
    }

    /// Notes a use and returns the time of the use before.
    pub(super) fn touch(&mut self, id: &BlobId, now: SystemTime) -> Option<SystemTime> {
        self.held
            .get_mut(id)
            .map(|held| std::mem::replace(&mut held.used, now))
    }

    pub(super) fn pin(&mut self, id: BlobId) {
        *self.pins.entry(id).or_default() += 1;
    }

    pub(super) fn unpin(&mut self, id: &BlobId) {
        if let Some(count) = self.pins.get_mut(id) {
            *count -= 1;
            if *count == 0 {
                self.pins.remove(id);
            }
        }
    }

    pub(super) fn protect(&mut self, keep: BTreeSet<BlobId>) {
        self.keep = keep;
    }

    /// Returns the blobs to collect, least recently used first, so that `excess` bytes become free and at most `most` blobs
    /// are left.
    pub(super) fn victims(&self, excess: u64, most: usize, now: SystemTime) -> Vec<(Victim, u64)> {
        let spared = |id: &BlobId| self.keep.contains(id) || self.pins.contains_key(id);
        let held = self
            .held
            .iter()
            .map(|(id, held)| (held.used, Victim::Held(*id), held.size, spared(id)));
        let partial = self.incoming.iter().map(|(blob, incoming)| {
            // If the clock was set back, the age is unknown, and the blob is spared.
            let rested = now
                .duration_since(incoming.used)
                .is_ok_and(|age| age > PARTIAL_REST);
            let busy = incoming.receiving.is_some() && !rested;
            (
                incoming.used,
                Victim::Partial(*blob),
                blob.size,
                busy || spared(&blob.id),
            )
        });
        let mut candidates: Vec<_> = held.chain(partial).filter(|(.., spared)| !spared).collect();
        // By name too, so that equal times do not make the choice depend on the map's order.
        candidates.sort_unstable_by_key(|(used, victim, ..)| (*used, *victim));
        let (mut freed, mut count) = (0, self.len());
        let needed = candidates.into_iter().take_while(|(_, _, size, _)| {
            let needed = freed < excess || count > most;
            (freed, count) = (freed + size, count - 1);
            needed
        });
        needed.map(|(_, victim, size, _)| (victim, size)).collect()
    }

    pub(super) fn list(&self, id: &BlobId) -> Option<Arc<SegmentList>> {
        self.lists.by_id.get(id).cloned()
    }

    pub(super) fn remember_list(&mut self, list: Arc<SegmentList>) {
        if self.held.contains_key(&list.blob().id) {
            self.lists.remember(list);
        }
    }
}

/// Segment lists of held blobs. The oldest is forgotten first.
#[derive(Debug, Default)]
struct Lists {
    by_id: BTreeMap<BlobId, Arc<SegmentList>>,
    order: VecDeque<BlobId>,
    n_values: usize,
}

impl Lists {
    fn remember(&mut self, list: Arc<SegmentList>) {
        let id = list.blob().id;
        self.forget(&id);
        self.n_values += list.values().len();
        self.order.push_back(id);
        self.by_id.insert(id, list);
        while self.n_values > MAX_REMEMBERED_VALUES {
            let Some(oldest) = self.order.front().copied() else {
                return;
            };
            self.forget(&oldest);
        }
    }

    fn forget(&mut self, id: &BlobId) {
        if let Some(list) = self.by_id.remove(id) {
            self.n_values -= list.values().len();
            self.order.retain(|other| other != id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blob(byte: u8, size: u64) -> BlobRef {
        BlobRef {
            id: BlobId::from_bytes([byte; 32]),
            size,
        }
    }

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn victims(index: &Index, excess: u64, now: SystemTime) -> Vec<Victim> {
        index
            .victims(excess, MAX_BLOBS, now)
            .into_iter()
            .map(|(victim, _)| victim)
            .collect()
    }

    fn index() -> Index {
        let mut index = Index::default();
        for (byte, used) in [(1, 30), (2, 10), (3, 20)] {
            index.insert_held(blob(byte, 100), at(used));
        }
        index
    }

    #[test]
    fn oldest_unneeded_go_first_and_no_more_than_needed() {
        let mut index = index();
        let id = |byte| Victim::Held(BlobId::from_bytes([byte; 32]));
        assert_eq!(victims(&index, 101, at(100)), [id(2), id(3)]);
        index.touch(&blob(2, 0).id, at(40));
        assert_eq!(victims(&index, 1, at(100)), [id(3)]);
        index.protect([blob(3, 0).id].into());
        index.pin(blob(1, 0).id);
        assert_eq!(victims(&index, 1000, at(100)), [id(2)]);
        index.unpin(&blob(1, 0).id);
        assert_eq!(victims(&index, 1000, at(100)), [id(1), id(2)]);
        assert_eq!(victims(&index, 0, at(100)), []);
    }

    #[test]
    fn many_small_blobs_go_by_their_number() {
        let index = index();
        let gone = index.victims(0, 1, at(100));
        let id = |byte| Victim::Held(BlobId::from_bytes([byte; 32]));
        assert_eq!(gone, [(id(2), 100), (id(3), 100)]);
    }

    #[test]
    fn partial_blobs_in_use_are_spared_until_they_rest() {
        let mut index = Index::default();
        let incoming = blob(9, 50);
        index.insert_incoming(incoming, at(1000));
        assert_eq!(
            victims(&index, 1, at(1001)),
            [Victim::Partial(incoming)],
            "left over from an earlier process"
        );
        let receiving = Arc::new(Mutex::new(Receiving::new(incoming)));
        index.incoming(&incoming).unwrap().receiving = Some(receiving);
        assert_eq!(victims(&index, 1, at(1001)), []);
        assert_eq!(victims(&index, 1, at(500)), [], "clock set back");
        assert_eq!(victims(&index, 1, at(2000)), [Victim::Partial(incoming)]);
    }

    #[test]
    fn every_byte_is_counted_once() {
        let mut index = index();
        index.insert_held(blob(1, 100), at(50));
        index.insert_incoming(blob(4, 7), at(1));
        index.insert_incoming(blob(4, 7), at(1));
        index.insert_incoming(blob(4, 8), at(1));
        assert_eq!(index.used_bytes(), 315);
        assert_eq!(index.incoming_of(&blob(4, 0).id), [blob(4, 7), blob(4, 8)]);
        assert!(
            index.forget(Victim::Partial(blob(4, 7))) && !index.forget(Victim::Partial(blob(4, 7)))
        );
        assert!(index.forget(Victim::Held(blob(1, 0).id)));
        assert_eq!(index.used_bytes(), 208);
    }

    #[test]
    fn remembered_lists_are_bounded() {
        let mut lists = Lists::default();
        let mut values = 0;
        for n in 0..40u8 {
            let bytes = vec![n; 2 << 20];
            let list = Arc::new(SegmentList::of(&bytes));
            values += list.values().len();
            lists.remember(list);
        }
        assert_eq!((lists.by_id.len(), lists.n_values), (40, values));
        lists.n_values += MAX_REMEMBERED_VALUES - values;
        lists.remember(Arc::new(SegmentList::of(&vec![99; 2 << 20])));
        assert_eq!(
            (lists.by_id.len(), lists.order.len()),
            (40, 40),
            "the oldest made room"
        );
    }
}
