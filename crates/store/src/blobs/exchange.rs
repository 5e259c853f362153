//! Blobs in exchange with peers: received piece by piece, served piece by piece.
//!
//! This module takes two locks, always in this order: that of the blob being received, then that of the index.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use fednode_core::{BlobId, BlobRef, BlobStore, Partial, SegmentList, VerifiedSegment};

use super::files::{self, PartialFiles, compute_list};
use super::index::Victim;
use super::receiving::Receiving;
use super::{Blobs, check_size};
use crate::disk::with_path;

fn not_begun(blob: &BlobRef) -> io::Error {
    io::Error::new(
        io::ErrorKind::NotFound,
        format!("blob {} is not being received", blob.id.short()),
    )
}

impl BlobStore for Blobs {
    fn held(&self, id: &BlobId) -> Option<u64> {
        match self.lock {
            Some(_) => self.index().held(id).map(|held| held.size),
            // Opened read-only: the daemon that owns the folder adds and removes blobs all the time.
            None => fs::metadata(self.files.held(id))
                .ok()
                .map(|metadata| metadata.len()),
        }
    }

    fn segment_list(&self, id: &BlobId) -> io::Result<SegmentList> {
        self.verified_list(id).map(|list| SegmentList::clone(&list))
    }

    fn read_segment(&self, id: &BlobId, index: u32) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.read_segment_into(id, index, &mut bytes)?;
        Ok(bytes)
    }

    fn read_segment_into(&self, id: &BlobId, index: u32, bytes: &mut Vec<u8>) -> io::Result<()> {
        let (file, blob) = self.open_held(id)?;
        // A blob of one segment needs no list, so its file is read only once.
        let list = match SegmentList::verify(blob, vec![*id.as_bytes()]) {
            Ok(list) if index == 0 => Arc::new(list),
            _ => self.verified_list(id)?,
        };
        if index >= list.blob().n_segments() {
            let text = format!("blob {} has no segment {index}", id.short());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        match files::read_segment_into(&file, list.blob(), index, bytes) {
            Ok(()) if list.check(index, bytes).is_ok() => {
                self.touch(id, &file);
                Ok(())
            }
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => Err(error),
            _ => Err(self.give_up_corrupt(id, &file)),
        }
    }

    fn begin(&self, blob: BlobRef) -> io::Result<Partial> {
        self.check_writable()?;
        check_size(blob)?;
        if let Some(complete) = self.already_held(blob)? {
            return Ok(complete);
        }
        let receiving = self.admit(blob)?;
        let mut receiving = receiving.lock().unwrap_or_else(PoisonError::into_inner);
        receiving.load(&self.files.partial(&blob))?;
        Ok(receiving.progress())
    }

    fn keep_list(&self, list: &SegmentList) -> io::Result<()> {
        self.check_writable()?;
        let receiving = self.receiving(&list.blob())?;
        let mut receiving = receiving.lock().unwrap_or_else(PoisonError::into_inner);
        receiving.keep_list(list, &self.files.partial(&list.blob()), &self.disk)
    }

    fn write_segment(&self, blob: BlobRef, index: u32, bytes: &[u8]) -> io::Result<()> {
        self.write_with(blob, |receiving, files| {
            receiving.write(index, bytes, files, &self.disk)
        })
    }

    fn write_verified(&self, segment: VerifiedSegment<'_>) -> io::Result<()> {
        self.write_with(segment.blob(), |receiving, files| {
            receiving.write_verified(segment, files, &self.disk)
        })
    }

    fn finish(&self, blob: BlobRef) -> io::Result<()> {
        self.check_writable()?;
        let receiving = match self.receiving(&blob) {
            Err(_) if self.held(&blob.id) == Some(blob.size) => return Ok(()),
            receiving => receiving?,
        };
        let mut state = receiving.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(missing) = state.first_missing() {
            let text = format!("segment {missing} of blob {} is missing", blob.id.short());
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        let files = self.files.partial(&blob);
        let data = File::open(&files.data)?;
        // Without a right hash the blob never gets its name; the good segments stay for another try.
        let Ok(list) = state.verify(&data)? else {
            state.distrust(&data, &files, &self.disk)?;
            let text = format!("the bytes received do not hash to blob {}", blob.id.short());
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        };
        self.promote(blob, &receiving, list)
    }
}

impl Blobs {
    /// Stops receiving a blob: removes its segments and frees its space.
    ///
    /// # Errors
    /// Fails if the disk fails.
    pub fn abandon(&self, blob: BlobRef) -> io::Result<()> {
        self.check_writable()?;
        self.remove_victim(&mut self.index(), Victim::Partial(blob))
            .map(|_| ())
    }

    /// Writes to a blob that is being received. A held blob needs nothing more.
    fn write_with(
        &self,
        blob: BlobRef,
        write: impl FnOnce(&mut Receiving, &PartialFiles) -> io::Result<()>,
    ) -> io::Result<()> {
        self.check_writable()?;
        let receiving = match self.receiving(&blob) {
            Err(_) if self.held(&blob.id) == Some(blob.size) => return Ok(()),
            receiving => receiving?,
        };
        let mut receiving = receiving.lock().unwrap_or_else(PoisonError::into_inner);
        write(&mut receiving, &self.files.partial(&blob))
    }

    fn receiving(&self, blob: &BlobRef) -> io::Result<Arc<Mutex<Receiving>>> {
        let mut index = self.index();
        let incoming = index.incoming(blob).ok_or_else(|| not_begun(blob))?;
        incoming.used = SystemTime::now();
        incoming.receiving.clone().ok_or_else(|| not_begun(blob))
    }

    /// Verifies a held blob, before the answer that it need not be received.
    fn already_held(&self, blob: BlobRef) -> io::Result<Option<Partial>> {
        match self.verified_list(&blob.id) {
            Ok(list) if list.blob() == blob => {
                let have = vec![true; blob.n_segments() as usize];
                Ok(Some(Partial {
                    list: Some(list.values().to_vec()),
                    have,
                }))
            }
            Ok(list) => {
                let text = format!(
                    "blob {} has {} bytes, not {}",
                    blob.id.short(),
                    list.blob().size,
                    blob.size
                );
                Err(io::Error::new(io::ErrorKind::InvalidInput, text))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Finds or makes the place for a blob to be received.
    fn admit(&self, blob: BlobRef) -> io::Result<Arc<Mutex<Receiving>>> {
        let mut index = self.index();
        if index.incoming(&blob).is_none() {
            self.make_room(&mut index, blob.size)?;
            // The reservation passes to the partial blob, which `insert_incoming` counts below.
            index.release(blob.size);
            let path = self.files.partial(&blob).data;
            let create = File::options()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&path);
            create.map_err(|error| with_path(error, &path))?;
            index.insert_incoming(blob, SystemTime::now());
        }
        let incoming = index
            .incoming(&blob)
            .expect("it was there or has just been inserted");
        incoming.used = SystemTime::now();
        Ok(Arc::clone(incoming.receiving.get_or_insert_with(|| {
            Arc::new(Mutex::new(Receiving::new(blob)))
        })))
    }

    /// Gives a complete partial blob its name.
    ///
    /// Received blobs are not fsynced, which would take 20 ms for an expert on a common disk while a round waits. They
    /// survive a crash of this process. After a power cut a damaged copy is recognised by its hash, and fetched again.
    fn promote(
        &self,
        blob: BlobRef,
        receiving: &Arc<Mutex<Receiving>>,
        list: SegmentList,
    ) -> io::Result<()> {
        self.held_folder(&blob.id)?;
        let mut index = self.index();
        // The blob may have been withdrawn, and even begun anew, while it was hashed.
        let current = index
            .incoming(&blob)
            .and_then(|incoming| incoming.receiving.clone());
        if !current.is_some_and(|current| Arc::ptr_eq(&current, receiving)) {
            return Err(not_begun(&blob));
        }
        let path = self.files.held(&blob.id);
        fs::rename(self.files.partial(&blob).data, &path)
            .map_err(|error| with_path(error, &path))?;
        for other in index.incoming_of(&blob.id) {
            // Also those that were announced with another size: the hash has proved this size.
            self.remove_victim(&mut index, Victim::Partial(other))?;
        }
        index.insert_held(blob, SystemTime::now());
        index.remember_list(Arc::new(list));
        Ok(())
    }

    /// Returns the verified list of a held blob, from memory if possible.
    fn verified_list(&self, id: &BlobId) -> io::Result<Arc<SegmentList>> {
        if let Some(list) = self.index().list(id) {
            return Ok(list);
        }
        let (file, blob) = self.open_held(id)?;
        let list =
            Arc::new(compute_list(&file, blob)?.map_err(|_| self.give_up_corrupt(id, &file))?);
        if blob.n_segments() > 1 {
            self.index().remember_list(Arc::clone(&list));
        }
        Ok(list)
    }
}
