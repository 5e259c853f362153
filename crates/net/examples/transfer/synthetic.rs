//! A store of one blob and the version before it. Bytes are made up when they are read, and thrown away when they are
//! written.

use std::io;
use std::sync::Mutex;

use fednode_core::{
    BlobId, BlobRef, BlobStore, Partial, SEGMENT_BYTES, SegmentList, blob::chaining_value,
};

/// Holds two versions of a blob of made-up numbers, or the older one and swallows the newer.
pub(crate) struct Synthetic {
    old: Version,
    new: Version,
    holds: bool,
    have: Mutex<Vec<bool>>,
}

/// One version: what all its segments are like.
struct Version {
    pattern: Vec<u8>,
    list: SegmentList,
}

impl Synthetic {
    /// Makes a blob of a number of MiB, all of it held or none.
    pub(crate) fn new(mib: u64, holds: bool) -> Self {
        let mut pattern = noise(b"numbers");
        let old = Version::of(pattern.clone(), mib);
        // The lower half of every number has changed, as after a round of training.
        let changes = noise(b"changes");
        for (number, change) in pattern.chunks_exact_mut(4).zip(changes.chunks_exact(4)) {
            number[..2].copy_from_slice(&change[..2]);
        }
        drop(changes);
        Self {
            old,
            new: Version::of(pattern, mib),
            holds,
            have: Mutex::new(vec![false; mib as usize]),
        }
    }

    /// Returns the blob's name.
    pub(crate) fn blob(&self) -> BlobRef {
        self.new.list.blob()
    }

    /// Returns the name of the version before, which everybody holds.
    pub(crate) fn before(&self) -> BlobId {
        self.old.list.blob().id
    }

    fn version(&self, id: &BlobId) -> &Version {
        if *id == self.before() {
            &self.old
        } else {
            &self.new
        }
    }
}

impl Version {
    fn of(pattern: Vec<u8>, mib: u64) -> Self {
        let mut hasher = blake3::Hasher::new();
        let (mut values, mut bytes) = (Vec::new(), Vec::new());
        for index in 0..mib as u32 {
            segment(&pattern, index, &mut bytes);
            hasher.update(&bytes);
            values.push(chaining_value(index, &bytes));
        }
        let blob = BlobRef {
            id: BlobId::from_bytes(*hasher.finalize().as_bytes()),
            size: mib * SEGMENT_BYTES,
        };
        let list = SegmentList::verify(blob, values).expect("the list of its own bytes");
        Self { pattern, list }
    }
}

/// Returns a segment of numbers that do not repeat.
fn noise(seed: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; SEGMENT_BYTES as usize];
    blake3::Hasher::new()
        .update(seed)
        .finalize_xof()
        .fill(&mut bytes);
    bytes
}

fn segment(pattern: &[u8], index: u32, bytes: &mut Vec<u8>) {
    bytes.clear();
    bytes.extend_from_slice(pattern);
    bytes[..4].copy_from_slice(&index.to_le_bytes());
}

impl BlobStore for Synthetic {
    fn held(&self, id: &BlobId) -> Option<u64> {
        let is_held = *id == self.before() || self.holds && *id == self.blob().id;
        is_held.then_some(self.blob().size)
    }

    fn segment_list(&self, id: &BlobId) -> io::Result<SegmentList> {
        Ok(self.version(id).list.clone())
    }

    fn read_segment(&self, id: &BlobId, index: u32) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.read_segment_into(id, index, &mut bytes)
            .map(|()| bytes)
    }

    fn read_segment_into(&self, id: &BlobId, index: u32, bytes: &mut Vec<u8>) -> io::Result<()> {
        segment(&self.version(id).pattern, index, bytes);
        Ok(())
    }

    fn begin(&self, _: BlobRef) -> io::Result<Partial> {
        let have = self.have.lock().map_err(|_| io::ErrorKind::Other)?.clone();
        Ok(Partial { list: None, have })
    }

    fn keep_list(&self, _: &SegmentList) -> io::Result<()> {
        Ok(())
    }

    fn write_segment(&self, _: BlobRef, index: u32, _: &[u8]) -> io::Result<()> {
        self.have.lock().map_err(|_| io::ErrorKind::Other)?[index as usize] = true;
        Ok(())
    }

    fn finish(&self, _: BlobRef) -> io::Result<()> {
        let all = self
            .have
            .lock()
            .map_err(|_| io::ErrorKind::Other)?
            .iter()
            .all(|have| *have);
        if all {
            Ok(())
        } else {
            Err(io::Error::other("a segment is missing"))
        }
    }
}
