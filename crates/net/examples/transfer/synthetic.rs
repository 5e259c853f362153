//! A store of one blob whose bytes are made up when they are read and thrown away when they are written.

use std::io;
use std::sync::Mutex;

use fednode_core::{BlobId, BlobRef, BlobStore, Partial, SEGMENT_BYTES, SegmentList, blob::chaining_value};

/// Holds one blob of made-up bytes, or swallows it.
pub(crate) struct Synthetic {
    base: Vec<u8>,
    list: SegmentList,
    holds: bool,
    have: Mutex<Vec<bool>>,
}

impl Synthetic {
    /// Makes the blob of a number of MiB, all of it held or none.
    pub(crate) fn new(mib: u64, holds: bool) -> Self {
        let base: Vec<u8> = (0..SEGMENT_BYTES).map(|i| (i % 251) as u8).collect();
        let mut hasher = blake3::Hasher::new();
        let mut values = Vec::new();
        for index in 0..mib as u32 {
            let bytes = segment(&base, index);
            hasher.update(&bytes);
            values.push(chaining_value(index, &bytes));
        }
        let blob = BlobRef { id: BlobId::from_bytes(*hasher.finalize().as_bytes()), size: mib * SEGMENT_BYTES };
        let list = SegmentList::verify(blob, values).expect("the list of its own bytes");
        Self { base, list, holds, have: Mutex::new(vec![false; mib as usize]) }
    }

    /// Returns the blob's name.
    pub(crate) fn blob(&self) -> BlobRef {
        self.list.blob()
    }
}

fn segment(base: &[u8], index: u32) -> Vec<u8> {
    let mut bytes = base.to_vec();
    bytes[..4].copy_from_slice(&index.to_le_bytes());
    bytes
}

impl BlobStore for Synthetic {
    fn held(&self, id: &BlobId) -> Option<u64> {
        let blob = self.list.blob();
        (self.holds && *id == blob.id).then_some(blob.size)
    }

    fn segment_list(&self, _: &BlobId) -> io::Result<SegmentList> {
        Ok(self.list.clone())
    }

    fn read_segment(&self, _: &BlobId, index: u32) -> io::Result<Vec<u8>> {
        Ok(segment(&self.base, index))
    }

    fn read_segment_into(&self, _: &BlobId, index: u32, bytes: &mut Vec<u8>) -> io::Result<()> {
        bytes.clone_from(&self.base);
        bytes[..4].copy_from_slice(&index.to_le_bytes());
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
        let all = self.have.lock().map_err(|_| io::ErrorKind::Other)?.iter().all(|have| *have);
        if all { Ok(()) } else { Err(io::Error::other("a segment is missing")) }
    }
}
