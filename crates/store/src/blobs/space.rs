//! Space: which blobs are collected to make room for new ones, within the quota and the disk.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use fednode_core::BlobId;
use tracing::debug;

use super::index::{Index, MAX_BLOBS, Victim};
use super::{Blobs, Collected, Pin};

/// Most blobs that stay when unneeded ones are removed. Each takes some hundred bytes of memory and a file, however small.
const MOST_KEPT: usize = 4096;

impl Blobs {
    /// Keeps a blob from being collected until the pin is dropped.
    pub fn pin(&self, id: BlobId) -> Pin {
        self.index().pin(id);
        Pin {
            id,
            index: Arc::clone(&self.index),
        }
    }

    /// Names the needed blobs. All others may be collected when space runs out.
    pub fn protect(&self, keep: BTreeSet<BlobId>) {
        self.index().protect(keep);
    }

    /// Removes unneeded blobs, least recently used first, until at most `target_bytes` and 4,096 blobs are left.
    ///
    /// Pinned blobs and blobs being received stay. So do those in `keep`, now and, as by [`Blobs::protect`], in later
    /// collections.
    ///
    /// # Errors
    /// Fails if the disk fails.
    pub fn collect(&self, keep: &BTreeSet<BlobId>, target_bytes: u64) -> io::Result<Collected> {
        self.check_writable()?;
        let mut index = self.index();
        index.protect(keep.clone());
        let excess = index.used_bytes().saturating_sub(target_bytes);
        self.collect_excess(&mut index, excess, MOST_KEPT)
    }

    pub(super) fn collect_excess(
        &self,
        index: &mut Index,
        excess: u64,
        most: usize,
    ) -> io::Result<Collected> {
        let mut collected = Collected::default();
        for (victim, size) in index.victims(excess, most, SystemTime::now()) {
            self.remove_victim(index, victim)?;
            collected = Collected {
                blobs: collected.blobs + 1,
                bytes: collected.bytes + size,
            };
        }
        Ok(collected)
    }

    /// Reserves space for a blob, and collects unneeded blobs if there is too little.
    ///
    /// If the blob cannot fit even then, nothing is collected.
    pub(super) fn make_room(&self, index: &mut Index, size: u64) -> io::Result<()> {
        let over_quota = (index.used_bytes() + size).saturating_sub(self.quota_bytes);
        let over_disk = size.saturating_sub(self.disk.free(&self.files.held_root())?);
        let over_count = (index.len() + 1).saturating_sub(MAX_BLOBS);
        let excess = over_quota.max(over_disk);
        if excess > 0 || over_count > 0 {
            // One place for the blob that comes.
            let most = MAX_BLOBS - 1;
            let victims = index.victims(excess, most, SystemTime::now());
            let freed: u64 = victims.iter().map(|(_, size)| size).sum();
            if freed < over_quota || victims.len() < over_count {
                return Err(self.quota_exceeded(index, size));
            }
            if freed < over_disk {
                return Err(self.disk_full(size));
            }
            let collected = self.collect_excess(index, excess, most)?;
            debug!(
                blobs = collected.blobs,
                bytes = collected.bytes,
                "collected to make room"
            );
        }
        // A collected partial blob may have had fewer bytes on the disk than were announced.
        if self.disk.free(&self.files.held_root())? < size {
            return Err(self.disk_full(size));
        }
        index.reserve(size);
        Ok(())
    }

    fn quota_exceeded(&self, index: &Index, size: u64) -> io::Error {
        let (used, quota) = (index.used_bytes(), self.quota_bytes);
        let text =
            format!("{size} bytes more do not fit: {used} of the quota's {quota} are in use");
        io::Error::new(io::ErrorKind::QuotaExceeded, text)
    }

    fn disk_full(&self, size: u64) -> io::Error {
        let folder = self.files.held_root();
        let text = format!(
            "{}: less than {size} bytes left on the disk",
            folder.display()
        );
        io::Error::new(io::ErrorKind::StorageFull, text)
    }

    /// Forgets a blob and removes its files. The reference to the index proves that its lock is held.
    pub(super) fn remove_victim(&self, index: &mut Index, victim: Victim) -> io::Result<bool> {
        match victim {
            Victim::Held(id) => self.disk.remove(&self.files.held(&id))?,
            Victim::Partial(blob) => {
                // The map first: a crash in between must not leave a map that lists bytes which are gone.
                let files = self.files.partial(&blob);
                self.disk.remove(&files.map)?;
                self.disk.remove(&files.list)?;
                self.disk.remove(&files.data)?;
            }
        }
        Ok(index.forget(victim))
    }
}
