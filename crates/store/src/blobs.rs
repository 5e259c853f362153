//! Blobs on disk: immutable bytes named by their BLAKE3 hash, within a quota, received piece by piece.
//!
//! A blob is *held* when its whole file lies under its name. It gets that name only by a rename after its bytes were hashed
//! and, if they are this node's own, fsynced. It is gone when it is collected, removed or found corrupt. Bytes are verified
//! again whenever they are read. So a disk that lies costs one blob. It never costs a wrong model or this node's standing
//! with its peers.
//!
//! ```text
//!            put ────────────────────────────────┐
//!                                                 ▼
//! announced ─► begin ─► keep_list, write … ─► finish ─► held ─► collected / removed / corrupt ─► gone
//!                └─────── partial ───────┘
//! ```
//!
//! Every method may be called from any number of threads and may block on the disk. This module knows no peer, no round and
//! no meaning of a blob. [`Blobs::protect`] and [`Blobs::pin`] say which blobs must stay.

mod exchange;
mod files;
mod index;
mod receiving;
mod space;
#[cfg(test)]
mod tests;

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use fednode_core::{BlobId, BlobRef, BlobStore, MAX_BLOB_BYTES, SegmentList};
use tracing::{debug, warn};

use crate::disk::{Disk, create_folder, with_path};
use crate::folder::Lock;
use files::Files;
use index::{Index, Victim};

/// Default of the quota: space that a small edge device can spare.
pub const DEFAULT_QUOTA_BYTES: u64 = 10 << 30;
/// How stale the time of last use on disk may become: coarse enough to cost nothing, fine enough to order rounds.
const TOUCH_INTERVAL: Duration = Duration::from_secs(60);

/// The blob store of one node.
#[derive(Debug)]
pub struct Blobs {
    files: Files,
    disk: Disk,
    quota_bytes: u64,
    index: Arc<Mutex<Index>>,
    /// Absent when opened read-only.
    lock: Option<Lock>,
}

/// Keeps a blob from being collected while the pin lives, whether the blob is held already or not.
#[derive(Debug)]
#[must_use = "a blob is pinned only while its pin lives"]
pub struct Pin {
    id: BlobId,
    index: Arc<Mutex<Index>>,
}

/// What a collection removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Collected {
    /// Number of blobs, complete or partial.
    pub blobs: usize,
    /// Their bytes.
    pub bytes: u64,
}

impl Drop for Pin {
    fn drop(&mut self) {
        lock(&self.index).unpin(&self.id);
    }
}

/// Locks the index. It is consistent between any two statements, so a panic elsewhere does not damage it.
fn lock(index: &Mutex<Index>) -> MutexGuard<'_, Index> {
    index.lock().unwrap_or_else(PoisonError::into_inner)
}

fn not_held(id: &BlobId) -> io::Error {
    io::Error::new(
        io::ErrorKind::NotFound,
        format!("blob {} is not held", id.short()),
    )
}

/// Life of a store.
impl Blobs {
    pub(crate) fn open(
        state: &Path,
        disk: Disk,
        quota_bytes: u64,
        lock: Option<Lock>,
    ) -> io::Result<Self> {
        let files = Files::new(state);
        let mut index = Index::default();
        if lock.is_some() {
            create_folder(&files.held_root())?;
            create_folder(&files.partial_folder())?;
            files.sweep()?;
            files
                .scan_held()?
                .into_iter()
                .for_each(|(blob, used)| index.insert_held(blob, used));
            files
                .scan_partial()?
                .into_iter()
                .for_each(|(blob, used)| index.insert_incoming(blob, used));
        }
        Ok(Self {
            files,
            disk,
            quota_bytes,
            index: Arc::new(Mutex::new(index)),
            lock,
        })
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        lock(&self.index)
    }

    /// Makes a file without a name on the disk of the blobs, for what does not fit into memory. It is gone once it is closed.
    ///
    /// # Errors
    /// Fails if the disk does, and in a folder that is only looked at.
    pub fn scratch(&self) -> io::Result<File> {
        self.check_writable()?;
        tempfile::tempfile_in(self.files.partial_folder())
    }

    fn check_writable(&self) -> io::Result<()> {
        let read_only = || {
            io::Error::new(
                io::ErrorKind::ReadOnlyFilesystem,
                "the store was opened read-only",
            )
        };
        self.lock.is_some().then_some(()).ok_or_else(read_only)
    }

    /// Returns the bytes held, being received (as announced) and being put.
    pub fn used_bytes(&self) -> u64 {
        self.index().used_bytes()
    }

    /// Returns the quota.
    pub fn quota_bytes(&self) -> u64 {
        self.quota_bytes
    }

    /// Returns all held blobs, in the order of their names.
    ///
    /// # Errors
    /// Fails if the disk fails (only when opened read-only).
    pub fn list(&self) -> io::Result<Vec<BlobRef>> {
        match self.lock {
            Some(_) => Ok(self.index().all_held()),
            None => {
                let mut found: Vec<_> = self
                    .files
                    .scan_held()?
                    .into_iter()
                    .map(|(blob, _)| blob)
                    .collect();
                found.sort_unstable();
                Ok(found)
            }
        }
    }
}

/// Whole blobs.
impl Blobs {
    /// Stores bytes durably and returns their name.
    ///
    /// # Errors
    /// Fails with [`io::ErrorKind::StorageFull`] or [`io::ErrorKind::QuotaExceeded`] if the bytes do not fit even after all
    /// unneeded blobs were collected. Fails if the disk fails.
    pub fn put(&self, bytes: &[u8]) -> io::Result<BlobRef> {
        self.check_writable()?;
        // Hashed in segments: the list serves peers that fetch the blob without another read.
        let list = SegmentList::of(bytes);
        let blob = list.blob();
        check_size(blob)?;
        // A held blob is read once: if the disk has damaged it, it is stored again from these bytes.
        if self.held(&blob.id).is_some() && self.get(&blob.id).is_ok() {
            return Ok(blob);
        }
        // The space is reserved in the index while the bytes are written without its lock, and released if that fails.
        self.make_room(&mut self.index(), blob.size)?;
        self.store(list, bytes)
            .inspect_err(|_| self.index().release(blob.size))?;
        self.disk.sync_folder(&self.files.held_folder(&blob.id))?;
        Ok(blob)
    }

    fn store(&self, list: SegmentList, bytes: &[u8]) -> io::Result<()> {
        let blob = list.blob();
        let staged = self.disk.stage(&self.held_folder(&blob.id)?, &[bytes])?;
        let path = self.files.held(&blob.id);
        let mut index = self.index();
        fs::rename(&staged, &path).map_err(|error| with_path(error, &path))?;
        index.release(blob.size);
        index.insert_held(blob, SystemTime::now());
        if blob.n_segments() > 1 {
            index.remember_list(Arc::new(list));
        }
        Ok(())
    }

    /// Reads a whole blob and verifies it. A corrupt blob is removed and no longer held.
    ///
    /// # Errors
    /// Fails with [`io::ErrorKind::NotFound`] if it is not held or turns out to be corrupt. Fails if the disk fails.
    pub fn get(&self, id: &BlobId) -> io::Result<Vec<u8>> {
        let (file, blob) = self.open_held(id)?;
        // The size is a claim of the file. This store did not write a file that is too large.
        let len = usize::try_from(blob.size)
            .ok()
            .filter(|_| blob.size <= MAX_BLOB_BYTES);
        let mut bytes = vec![0; len.ok_or_else(|| self.give_up_corrupt(id, &file))?];
        file.read_exact_at(&mut bytes, 0)?;
        if BlobId::of(&bytes) != *id {
            return Err(self.give_up_corrupt(id, &file));
        }
        self.touch(id, &file);
        Ok(bytes)
    }

    /// Removes a blob and all its received parts, needed or not, because its owner withdrew it.
    ///
    /// # Errors
    /// Fails if the disk fails.
    pub fn remove(&self, id: &BlobId) -> io::Result<bool> {
        self.check_writable()?;
        let mut index = self.index();
        let mut found = self.remove_victim(&mut index, Victim::Held(*id))?;
        for blob in index.incoming_of(id) {
            found |= self.remove_victim(&mut index, Victim::Partial(blob))?;
        }
        Ok(found)
    }

    /// Opens the file of a held blob. The size is that of the file; hashing shows whether the bytes are right.
    fn open_held(&self, id: &BlobId) -> io::Result<(File, BlobRef)> {
        if self.held(id).is_none() {
            return Err(not_held(id));
        }
        let path = self.files.held(id);
        match File::open(&path)
            .and_then(|file| file.metadata().map(|metadata| (file, metadata.len())))
        {
            Ok((file, size)) => Ok((file, BlobRef { id: *id, size })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // The file was collected since the look-up, or removed by hand. Names change only under the lock of the
                // index. So under that lock the second look tells whether the blob has come back.
                let mut index = self.index();
                if !path.exists() {
                    index.forget(Victim::Held(*id));
                }
                Err(not_held(id))
            }
            Err(error) => Err(with_path(error, &path)),
        }
    }

    fn give_up_corrupt(&self, id: &BlobId, file: &File) -> io::Error {
        warn!(blob = %id, "a blob on disk is corrupt and no longer held");
        let text = format!(
            "blob {} was corrupt on disk and is no longer held",
            id.short()
        );
        let corrupt = io::Error::new(io::ErrorKind::NotFound, text);
        if self.lock.is_none() {
            return corrupt;
        }
        let mut index = self.index();
        // Another thread may have replaced the file since it was opened. Only the file that was read is removed.
        let same_file = match (file.metadata(), fs::metadata(self.files.held(id))) {
            (Ok(read), Ok(there)) => read.ino() == there.ino(),
            _ => false,
        };
        match same_file.then(|| self.remove_victim(&mut index, Victim::Held(*id))) {
            Some(Err(error)) => error,
            _ => corrupt,
        }
    }

    /// Notes that a blob was used. On disk that is noted only now and then.
    fn touch(&self, id: &BlobId, file: &File) {
        let now = SystemTime::now();
        let Some(before) = self.index().touch(id, now) else {
            return;
        };
        if now
            .duration_since(before)
            .is_ok_and(|age| age > TOUCH_INTERVAL)
            && let Err(error) = file.set_modified(now)
        {
            debug!(blob = %id, %error, "time of last use not kept");
        }
    }

    fn held_folder(&self, id: &BlobId) -> io::Result<std::path::PathBuf> {
        let folder = self.files.held_folder(id);
        if !folder.is_dir() {
            create_folder(&folder)?;
            self.disk.sync_folder(&self.files.held_root())?;
        }
        Ok(folder)
    }
}

fn check_size(blob: BlobRef) -> io::Result<()> {
    if blob.size <= MAX_BLOB_BYTES {
        return Ok(());
    }
    let text = format!(
        "a blob of {} bytes is beyond the limit of {MAX_BLOB_BYTES}",
        blob.size
    );
    Err(io::Error::new(io::ErrorKind::InvalidInput, text))
}
