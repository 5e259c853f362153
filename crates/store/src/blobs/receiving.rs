//! One blob being received: which of its segments are stored, and how that survives a crash.
//!
//! ```text
//! segment verified ─► data written ─► … 16 MiB … ─► data fsynced ─► map written ─► … ─► rest hashed ─► renamed
//! ```
//!
//! Segments that this process has verified are not hashed again at the end, as long as no other process has touched the
//! file. Hashing all of it again was a third of the cost of receiving. The other segments are hashed: those without proof,
//! those that only the map of an earlier process lists, and all of a file that has changed in between.
//!
//! The map is written only after its data was fsynced, so it is true after any crash. It carries a checksum, so a torn map
//! counts as none. Segments that the map does not list are not lost: the next process hashes them against the list and
//! keeps the good ones. A missing or false list is fetched again.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

use fednode_core::{
    BlobRef, ChainingValue, Partial, SEGMENT_BYTES, SegmentError, SegmentList, VerifiedSegment,
};

use super::files::{PartialFiles, compute_list, read_segment, read_segment_into};
use crate::disk::Disk;

/// Bytes between two fsyncs. At 5 ms each they cost nothing, and a power cut loses seconds.
const SYNC_BYTES: u64 = 16 << 20;
/// Separates the checksum of a map from every other use of BLAKE3.
const MAP_DOMAIN: &[u8] = b"fednode segment map 1\n";

/// A blob being received.
#[derive(Debug)]
pub(super) struct Receiving {
    blob: BlobRef,
    list: Option<SegmentList>,
    have: Vec<bool>,
    /// Segments that this process has verified in the file, valid while the file still has this `stamp`.
    proven: Vec<bool>,
    stamp: Option<Stamp>,
    unsynced_bytes: u64,
    loaded: bool,
}

/// What changes with every write to a file: its inode, its size, and its two times in seconds and nanoseconds.
///
/// Two writes within one tick of a coarse clock look like one. That is enough to find accidents, and an attacker inside
/// the folder is not considered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    len: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(file: &File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        Ok(Self {
            inode: metadata.ino(),
            len: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }
}

impl Receiving {
    pub(super) fn new(blob: BlobRef) -> Self {
        // A blob of one segment needs no list: its only chaining value is its name.
        let list = SegmentList::verify(blob, vec![*blob.id.as_bytes()]).ok();
        let none = vec![false; blob.n_segments() as usize];
        Self {
            blob,
            list,
            have: none.clone(),
            proven: none,
            stamp: None,
            unsynced_bytes: 0,
            loaded: false,
        }
    }

    /// Returns the list and which segments are stored.
    pub(super) fn progress(&self) -> Partial {
        Partial {
            list: self.list.as_ref().map(|list| list.values().to_vec()),
            have: self.have.clone(),
        }
    }

    pub(super) fn first_missing(&self) -> Option<usize> {
        self.have.iter().position(|have| !have)
    }

    /// Loads what an earlier process left. Only the first call does anything.
    pub(super) fn load(&mut self, files: &PartialFiles) -> io::Result<()> {
        if self.loaded {
            return Ok(());
        }
        let data = File::open(&files.data)?;
        let stamp = Stamp::of(&data)?;
        if self.list.is_none() {
            self.list = read_list(self.blob, files);
        }
        let vouched = read_map(self.blob, files);
        for (index, vouched) in (0..).zip(vouched) {
            let end = u64::from(index) * SEGMENT_BYTES + self.blob.segment_len(index);
            // The file may be shorter than the map says, if only the map survived. A segment beyond its end is missing.
            let here = stamp.len >= end && self.blob.size > 0;
            let proven = here && !vouched && self.is_good(&data, index);
            self.have[index as usize] = here && (vouched || proven);
            self.proven[index as usize] = proven;
        }
        (self.stamp, self.loaded) = (Some(stamp), true);
        Ok(())
    }

    fn is_good(&self, data: &File, index: u32) -> bool {
        let Some(list) = &self.list else { return false };
        read_segment(data, self.blob, index).is_ok_and(|bytes| list.check(index, &bytes).is_ok())
    }

    /// Keeps the list. It is verified whenever it is read, so it is neither staged nor synced.
    pub(super) fn keep_list(
        &mut self,
        list: &SegmentList,
        files: &PartialFiles,
        disk: &Disk,
    ) -> io::Result<()> {
        if self.list.is_none() {
            let file = File::options()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&files.list)?;
            disk.write_at(&file, &list.values().concat(), 0)?;
            self.list = Some(list.clone());
        }
        Ok(())
    }

    /// Writes one segment without proof that it is right. A second copy of it changes nothing.
    pub(super) fn write(
        &mut self,
        index: u32,
        bytes: &[u8],
        files: &PartialFiles,
        disk: &Disk,
    ) -> io::Result<()> {
        if index >= self.blob.n_segments() || bytes.len() as u64 != self.blob.segment_len(index) {
            let text = format!(
                "{} bytes are not segment {index} of blob {}",
                bytes.len(),
                self.blob.id.short()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        if self.have[index as usize] {
            return Ok(());
        }
        let data = OpenOptions::new().write(true).open(&files.data)?;
        self.distrust_if_touched(&data)?;
        let written = disk.write_at(&data, bytes, u64::from(index) * SEGMENT_BYTES);
        // Also after a failed write: it wrote into this segment and damaged no other.
        self.stamp = Some(Stamp::of(&data)?);
        written?;
        self.have[index as usize] = true;
        self.unsynced_bytes += bytes.len() as u64;
        if self.unsynced_bytes >= SYNC_BYTES {
            self.sync(&data, files, disk)
        } else {
            Ok(())
        }
    }

    /// Writes one segment that is known to be right.
    pub(super) fn write_verified(
        &mut self,
        segment: VerifiedSegment<'_>,
        files: &PartialFiles,
        disk: &Disk,
    ) -> io::Result<()> {
        let index = segment.index() as usize;
        // A segment that was stored before may have come without proof.
        let known = self.have.get(index).copied().unwrap_or(true);
        self.write(segment.index(), segment.bytes(), files, disk)?;
        self.proven[index] |= !known;
        Ok(())
    }

    /// Forgets every proof if the file is no longer as it was left.
    fn distrust_if_touched(&mut self, data: &File) -> io::Result<()> {
        if self.stamp != Some(Stamp::of(data)?) {
            self.proven.fill(false);
        }
        Ok(())
    }

    /// Verifies the whole blob, of which every segment must be stored. Reads only segments that were not verified before.
    ///
    /// The inner error says that the bytes are not those of the blob. The outer error says that they could not be read.
    pub(super) fn verify(&mut self, data: &File) -> io::Result<Result<SegmentList, SegmentError>> {
        self.distrust_if_touched(data)?;
        let Some(list) = &self.list else {
            return compute_list(data, self.blob);
        };
        if data.metadata()?.len() != self.blob.size {
            return Ok(Err(SegmentError::List));
        }
        let mut bytes = Vec::new();
        for index in (0..self.blob.n_segments()).filter(|index| !self.proven[*index as usize]) {
            read_segment_into(data, self.blob, index, &mut bytes)?;
            if let Err(error) = list.check(index, &bytes) {
                return Ok(Err(error));
            }
        }
        Ok(Ok(list.clone()))
    }

    fn sync(&mut self, data: &File, files: &PartialFiles, disk: &Disk) -> io::Result<()> {
        // In this order, so that the map never lists bytes that a power cut could take away.
        disk.sync(data)?;
        self.write_map(files, disk)?;
        self.unsynced_bytes = 0;
        Ok(())
    }

    fn write_map(&self, files: &PartialFiles, disk: &Disk) -> io::Result<()> {
        let map = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&files.map)?;
        let bits: Vec<u8> = self.have.iter().map(|have| u8::from(*have)).collect();
        disk.write_at(
            &map,
            &[bits.as_slice(), &map_checksum(self.blob, &bits)].concat(),
            0,
        )
    }

    /// Drops wrong segments after the whole did not hash to its name.
    pub(super) fn distrust(
        &mut self,
        data: &File,
        files: &PartialFiles,
        disk: &Disk,
    ) -> io::Result<()> {
        let have = (0..self.blob.n_segments())
            .map(|index| self.is_good(data, index))
            .collect();
        self.have = have;
        self.proven.fill(false);
        disk.remove(&files.map)
    }
}

fn read_list(blob: BlobRef, files: &PartialFiles) -> Option<SegmentList> {
    let expected_bytes = u64::from(blob.n_segments()) * size_of::<ChainingValue>() as u64;
    if fs::metadata(&files.list).ok()?.len() != expected_bytes {
        return None;
    }
    let bytes = fs::read(&files.list).ok()?;
    let (values, _) = bytes.as_chunks::<{ size_of::<ChainingValue>() }>();
    SegmentList::verify(blob, values.to_vec()).ok()
}

/// Returns the segments that the map lists: none if the map is missing or does not match its checksum.
fn read_map(blob: BlobRef, files: &PartialFiles) -> Vec<bool> {
    let nothing = vec![false; blob.n_segments() as usize];
    let expected_bytes = nothing.len() + blake3::OUT_LEN;
    let Ok(bytes) = fs::read(&files.map) else {
        return nothing;
    };
    if bytes.len() != expected_bytes {
        return nothing;
    }
    let (bits, checksum) = bytes.split_at(nothing.len());
    if checksum == map_checksum(blob, bits) {
        bits.iter().map(|bit| *bit == 1).collect()
    } else {
        nothing
    }
}

fn map_checksum(blob: BlobRef, bits: &[u8]) -> [u8; blake3::OUT_LEN] {
    let mut hasher = blake3::Hasher::new();
    hasher
        .update(MAP_DOMAIN)
        .update(blob.id.as_bytes())
        .update(&blob.size.to_le_bytes())
        .update(bits);
    *hasher.finalize().as_bytes()
}
