//! A window: some segments of a blob, fetched into memory and kept nowhere.
//!
//! To a job it is a store in which all other segments are here already. So a window is fetched and verified as a blob is.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use fednode_core::{BlobId, BlobRef, BlobStore, Partial, SEGMENT_BYTES, SegmentList};

/// Some segments of a blob, in front of a store that holds others.
pub(super) struct Window {
    store: Arc<dyn BlobStore>,
    blob: BlobRef,
    segments: Range<u32>,
    bytes: Mutex<Vec<u8>>,
}

impl Window {
    pub(super) fn new(store: Arc<dyn BlobStore>, blob: BlobRef, segments: Range<u32>) -> Self {
        let length: u64 = segments.clone().map(|index| blob.segment_len(index)).sum();
        let length = usize::try_from(length).unwrap_or_default();
        Self {
            store,
            blob,
            segments,
            bytes: Mutex::new(vec![0; length]),
        }
    }

    /// Takes the bytes out.
    pub(super) fn take(&self) -> Vec<u8> {
        std::mem::take(&mut *self.bytes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl BlobStore for Window {
    fn held(&self, id: &BlobId) -> Option<u64> {
        self.store.held(id)
    }

    fn segment_list(&self, id: &BlobId) -> io::Result<SegmentList> {
        self.store.segment_list(id)
    }

    fn read_segment(&self, id: &BlobId, index: u32) -> io::Result<Vec<u8>> {
        self.store.read_segment(id, index)
    }

    fn read_segment_into(&self, id: &BlobId, index: u32, bytes: &mut Vec<u8>) -> io::Result<()> {
        self.store.read_segment_into(id, index, bytes)
    }

    fn begin(&self, blob: BlobRef) -> io::Result<Partial> {
        let all = 0..blob.n_segments();
        Ok(Partial {
            list: None,
            have: all.map(|index| !self.segments.contains(&index)).collect(),
        })
    }

    fn keep_list(&self, _: &SegmentList) -> io::Result<()> {
        Ok(())
    }

    fn write_segment(&self, blob: BlobRef, index: u32, bytes: &[u8]) -> io::Result<()> {
        let outside =
            || io::Error::new(io::ErrorKind::InvalidInput, "a segment outside the window");
        if blob != self.blob || !self.segments.contains(&index) {
            return Err(outside());
        }
        let start = (u64::from(index - self.segments.start) * SEGMENT_BYTES) as usize;
        let mut all = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        // A second copy of a segment may come after the bytes were taken. It finds no place then.
        let place = all.get_mut(start..start + bytes.len());
        place.ok_or_else(outside)?.copy_from_slice(bytes);
        Ok(())
    }

    fn finish(&self, _: BlobRef) -> io::Result<()> {
        Ok(())
    }
}
