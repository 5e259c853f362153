//! Blobs: immutable bytes named by BLAKE3, and how a part of one is verified on its own.
//!
//! BLAKE3 is a tree. A segment of 1 MiB is a complete subtree, so its chaining value can be computed alone, and the
//! chaining values of all segments fold to the ordinary hash of the whole. A provider sends the list (32 bytes per
//! MiB); we fold it, compare with the name we asked for, and from then on verify every segment before it touches the
//! disk, whoever sent it. A wrong segment convicts its sender exactly.
//!
//! ```text
//!   BlobId = blake3(all bytes)          a blob of at most one segment has no list: its id is checked directly
//!      ├── cv(segment 0..4) ── …
//!      └── cv(segment 4..7) ── …
//! ```

use std::io;

use blake3::hazmat::{self, HasherExt, Mode};
use serde::{Deserialize, Serialize};

use crate::BlobId;

/// Bytes of a segment. A power of two of at least BLAKE3's chunk, so that a segment is a whole subtree. 1 MiB keeps the
/// list small (16 KiB for 500 MB) and the cost of a lie below a second on slow links.
pub const SEGMENT_BYTES: u64 = 1 << 20;

/// Largest blob that may be announced, fetched or stored.
pub const MAX_BLOB_BYTES: u64 = 512 << 20;

/// Names a blob together with its exact size, so that a limit can be applied before the first byte arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlobRef {
    /// BLAKE3 of the bytes.
    pub id: BlobId,
    /// Number of bytes.
    pub size: u64,
}

impl BlobRef {
    /// Names and measures bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self {
            id: BlobId::of(bytes),
            size: bytes.len() as u64,
        }
    }

    /// Returns the number of segments; an empty blob has one, empty.
    pub fn n_segments(&self) -> u32 {
        n_segments(self.size)
    }

    /// Returns how many bytes segment `index` has.
    pub fn segment_len(&self, index: u32) -> u64 {
        self.size
            .saturating_sub(u64::from(index) * SEGMENT_BYTES)
            .min(SEGMENT_BYTES)
    }
}

fn n_segments(size: u64) -> u32 {
    u32::try_from(size.div_ceil(SEGMENT_BYTES).max(1)).unwrap_or(u32::MAX)
}

/// The chaining value of one segment.
pub type ChainingValue = [u8; 32];

/// Tells why a segment list or a segment was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SegmentError {
    /// The list has another number of entries than the size needs.
    #[error("a segment list of {got} entries for a blob that has {expected}")]
    Count {
        /// Segments of the blob.
        expected: u32,
        /// Entries that arrived.
        got: usize,
    },
    /// The list does not fold to the blob's name.
    #[error("the segment list does not belong to this blob")]
    List,
    /// There is no such segment.
    #[error("the blob has no segment {0}")]
    Index(u32),
    /// A segment has the wrong length or content.
    #[error("segment {0} is corrupt")]
    Corrupt(u32),
}

/// The verified chaining values of a blob's segments.
///
/// It cannot be constructed without having been folded to the blob's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentList {
    blob: BlobRef,
    values: Vec<ChainingValue>,
}

impl SegmentList {
    /// Checks what a provider claims to be the list of `blob`.
    ///
    /// # Errors
    /// Refuses a wrong number of entries and a list that does not fold to the blob's name.
    pub fn verify(blob: BlobRef, values: Vec<ChainingValue>) -> Result<Self, SegmentError> {
        let expected = blob.n_segments();
        if values.len() != expected as usize {
            return Err(SegmentError::Count {
                expected,
                got: values.len(),
            });
        }
        if fold(&values) == blob.id {
            Ok(Self { blob, values })
        } else {
            Err(SegmentError::List)
        }
    }

    /// Computes the list of complete bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let size = bytes.len() as u64;
        let values: Vec<ChainingValue> = match n_segments(size) {
            1 => vec![*BlobId::of(bytes).as_bytes()],
            n => (0..n)
                .map(|index| chaining_value(index, segment_bytes(bytes, index)))
                .collect(),
        };
        Self {
            blob: BlobRef {
                id: fold(&values),
                size,
            },
            values,
        }
    }

    /// Returns the blob it belongs to.
    pub fn blob(&self) -> BlobRef {
        self.blob
    }

    /// Returns the chaining values in order.
    pub fn values(&self) -> &[ChainingValue] {
        &self.values
    }

    /// Checks one segment's bytes.
    ///
    /// # Errors
    /// Refuses an index beyond the end, a wrong length and wrong content.
    pub fn check(&self, index: u32, bytes: &[u8]) -> Result<(), SegmentError> {
        let expected = self
            .values
            .get(index as usize)
            .ok_or(SegmentError::Index(index))?;
        if bytes.len() as u64 != self.blob.segment_len(index) {
            return Err(SegmentError::Corrupt(index));
        }
        let actual = match self.values.len() {
            1 => *blake3::hash(bytes).as_bytes(),
            _ => chaining_value(index, bytes),
        };
        if &actual == expected {
            Ok(())
        } else {
            Err(SegmentError::Corrupt(index))
        }
    }

    /// Checks one segment's bytes and returns them with the proof.
    ///
    /// # Errors
    /// Refuses what [`SegmentList::check`] refuses.
    pub fn verified<'a>(
        &self,
        index: u32,
        bytes: &'a [u8],
    ) -> Result<VerifiedSegment<'a>, SegmentError> {
        self.check(index, bytes)?;
        Ok(VerifiedSegment {
            blob: self.blob,
            index,
            bytes,
        })
    }
}

/// One segment that was found right. Only [`SegmentList::verified`] makes one, so whoever has it need not check again.
#[derive(Debug, Clone, Copy)]
pub struct VerifiedSegment<'a> {
    blob: BlobRef,
    index: u32,
    bytes: &'a [u8],
}

impl<'a> VerifiedSegment<'a> {
    /// Returns the blob of which it is a part.
    pub fn blob(&self) -> BlobRef {
        self.blob
    }

    /// Returns which part it is.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Returns its bytes.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

fn segment_bytes(bytes: &[u8], index: u32) -> &[u8] {
    let start = (index as usize * SEGMENT_BYTES as usize).min(bytes.len());
    let end = (start + SEGMENT_BYTES as usize).min(bytes.len());
    &bytes[start..end]
}

/// Computes the chaining value of a segment of a blob that has several.
pub fn chaining_value(index: u32, bytes: &[u8]) -> ChainingValue {
    let mut hasher = blake3::Hasher::new();
    hasher.set_input_offset(u64::from(index) * SEGMENT_BYTES);
    hasher.update(bytes).finalize_non_root()
}

/// Folds chaining values to the hash of the whole, left subtree as full as possible (BLAKE3 §2.1).
fn fold(values: &[ChainingValue]) -> BlobId {
    fn subtree(values: &[ChainingValue]) -> ChainingValue {
        match values {
            [single] => *single,
            _ => {
                let (left, right) = values.split_at(left_len(values.len()));
                hazmat::merge_subtrees_non_root(&subtree(left), &subtree(right), Mode::Hash)
            }
        }
    }
    let [single] = values else {
        let (left, right) = values.split_at(left_len(values.len()));
        let root = hazmat::merge_subtrees_root(&subtree(left), &subtree(right), Mode::Hash);
        return BlobId::from_bytes(*root.as_bytes());
    };
    BlobId::from_bytes(*single)
}

/// Returns the largest power of two below `n` (for `n` of at least 2).
fn left_len(n: usize) -> usize {
    n.next_power_of_two() / 2
}

/// What a store must do so that blobs can be served and received; every call may block on a disk.
///
/// Implemented by `fednode-store` on files and by tests in memory. Whoever receives a blob hashes every segment once and
/// passes the proof on with [`BlobStore::write_verified`]; the store keeps what it was given across a crash.
pub trait BlobStore: Send + Sync + 'static {
    /// Returns the complete blob's size, `None` if it is not held completely.
    fn held(&self, id: &BlobId) -> Option<u64>;

    /// Returns the segment list of a held blob.
    ///
    /// # Errors
    /// Fails if the blob is not held or cannot be read.
    fn segment_list(&self, id: &BlobId) -> io::Result<SegmentList>;

    /// Reads one segment of a held blob.
    ///
    /// # Errors
    /// Fails if the blob is not held, has no such segment or cannot be read.
    fn read_segment(&self, id: &BlobId, index: u32) -> io::Result<Vec<u8>>;

    /// Reads one segment of a held blob in place of what is in `bytes`, whose memory it uses if it can.
    ///
    /// # Errors
    /// Fails as [`BlobStore::read_segment`] does; what is in `bytes` then means nothing.
    fn read_segment_into(&self, id: &BlobId, index: u32, bytes: &mut Vec<u8>) -> io::Result<()> {
        *bytes = self.read_segment(id, index)?;
        Ok(())
    }

    /// Prepares to receive a blob, reserving its space within the quota, and returns what is already here of it.
    ///
    /// # Errors
    /// Fails with [`io::ErrorKind::StorageFull`] or [`io::ErrorKind::QuotaExceeded`] when it cannot fit.
    fn begin(&self, blob: BlobRef) -> io::Result<Partial>;

    /// Keeps the verified list of a blob being received, so that a restart can go on.
    ///
    /// # Errors
    /// Fails if the disk does.
    fn keep_list(&self, list: &SegmentList) -> io::Result<()>;

    /// Writes one segment of a blob being received; whether it is right shows when the whole is finished.
    ///
    /// # Errors
    /// Fails if the disk does, or if [`BlobStore::begin`] was not called.
    fn write_segment(&self, blob: BlobRef, index: u32, bytes: &[u8]) -> io::Result<()>;

    /// Writes one segment with the proof that it is right, so that [`BlobStore::finish`] need not look at it again.
    ///
    /// # Errors
    /// Fails as [`BlobStore::write_segment`] does.
    fn write_verified(&self, segment: VerifiedSegment<'_>) -> io::Result<()> {
        self.write_segment(segment.blob(), segment.index(), segment.bytes())
    }

    /// Turns a blob of which every segment was written into a held one, atomically and durably.
    ///
    /// # Errors
    /// Fails if a segment is missing, the whole does not hash to its name, or the disk fails.
    fn finish(&self, blob: BlobRef) -> io::Result<()>;
}

/// What is already here of a blob being received.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Partial {
    /// The verified list, if it has arrived.
    pub list: Option<Vec<ChainingValue>>,
    /// One flag per segment: written and verified.
    pub have: Vec<bool>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEG: usize = SEGMENT_BYTES as usize;

    fn bytes(len: usize) -> Vec<u8> {
        // The input pattern of the official BLAKE3 test vectors.
        (0..len).map(|i| (i % 251) as u8).collect()
    }

    #[test]
    fn list_folds_to_the_ordinary_hash() {
        for len in [
            0,
            1,
            1024,
            SEG - 1,
            SEG,
            SEG + 1,
            2 * SEG,
            3 * SEG + 7,
            4 * SEG,
            5 * SEG + 1024,
            7 * SEG + 9,
        ] {
            let bytes = bytes(len);
            let list = SegmentList::of(&bytes);
            assert_eq!(list.blob().id, BlobId::of(&bytes), "length {len}");
            assert_eq!(
                SegmentList::verify(list.blob(), list.values().to_vec()),
                Ok(list),
                "length {len}"
            );
        }
    }

    #[test]
    fn agrees_with_an_official_vector() {
        // BLAKE3 test_vectors.json, input_len 1: the hash of one zero byte.
        let expected = "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213";
        assert_eq!(SegmentList::of(&[0]).blob().id.to_string(), expected);
    }

    #[test]
    fn convicts_the_corrupt_segment_and_no_other() {
        let mut data = bytes(3 * SEG + 5);
        let list = SegmentList::of(&data);
        data[2 * SEG + 17] ^= 1;
        let verdicts: Vec<bool> = (0..4)
            .map(|i| list.check(i, segment_bytes(&data, i)).is_ok())
            .collect();
        assert_eq!(verdicts, [true, true, false, true]);
        assert_eq!(
            list.check(0, segment_bytes(&data, 1)),
            Err(SegmentError::Corrupt(0)),
            "right bytes, wrong place"
        );
        assert_eq!(list.check(4, &[]), Err(SegmentError::Index(4)));
        assert_eq!(
            list.check(3, &data[..4]),
            Err(SegmentError::Corrupt(3)),
            "short"
        );
    }

    #[test]
    fn refuses_a_list_of_another_blob() {
        let list = SegmentList::of(&bytes(2 * SEG));
        let mut values = list.values().to_vec();
        values[1][0] ^= 1;
        assert_eq!(
            SegmentList::verify(list.blob(), values.clone()),
            Err(SegmentError::List)
        );
        values.pop();
        let count = SegmentError::Count {
            expected: 2,
            got: 1,
        };
        assert_eq!(SegmentList::verify(list.blob(), values), Err(count));
    }
}
