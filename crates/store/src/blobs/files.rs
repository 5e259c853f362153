//! The files of blobs: where they lie, and how their bytes are read and verified. This module knows no quota and no lock.
//!
//! ```text
//! blobs/ab/<id>                   a held blob; `ab` are the first two digits, so that no folder grows too large
//! partial/<id>-<size>.data        a blob being received, every verified segment at its place
//! partial/<id>-<size>.list        its segment list (only if it has more than one segment)
//! partial/<id>-<size>.map         which segments are durably there, with a checksum
//! ```
//!
//! The announced size is part of the name of a partial blob. So an advert with a wrong size cannot block an honest one.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use fednode_core::blob::chaining_value;
use fednode_core::{
    BlobId, BlobRef, ChainingValue, MAX_BLOB_BYTES, SEGMENT_BYTES, SegmentError, SegmentList,
};

use crate::disk::{list_folder, with_path};
use crate::folder::sweep;

/// The folders of the blob store.
#[derive(Debug, Clone)]
pub(super) struct Files {
    state: PathBuf,
}

/// The files of one blob being received.
#[derive(Debug, Clone)]
pub(super) struct PartialFiles {
    pub(super) data: PathBuf,
    pub(super) list: PathBuf,
    pub(super) map: PathBuf,
}

impl Files {
    pub(super) fn new(state: &Path) -> Self {
        Self {
            state: state.to_owned(),
        }
    }

    pub(super) fn held_root(&self) -> PathBuf {
        self.state.join("blobs")
    }

    pub(super) fn partial_folder(&self) -> PathBuf {
        self.state.join("partial")
    }

    pub(super) fn held_folder(&self, id: &BlobId) -> PathBuf {
        self.held_root().join(&id.to_string()[..2])
    }

    pub(super) fn held(&self, id: &BlobId) -> PathBuf {
        self.held_folder(id).join(id.to_string())
    }

    pub(super) fn partial(&self, blob: &BlobRef) -> PartialFiles {
        let path = |kind| {
            self.partial_folder()
                .join(format!("{}-{}.{kind}", blob.id, blob.size))
        };
        PartialFiles {
            data: path("data"),
            list: path("list"),
            map: path("map"),
        }
    }

    /// Removes half-written files of a crash. Only the owner of the folder may do this.
    pub(super) fn sweep(&self) -> io::Result<()> {
        list_folder(&self.held_root())?
            .iter()
            .filter(|path| path.is_dir())
            .try_for_each(|folder| sweep(folder))?;
        sweep(&self.partial_folder())
    }

    /// Finds all held blobs.
    pub(super) fn scan_held(&self) -> io::Result<Vec<(BlobRef, SystemTime)>> {
        let mut found = Vec::new();
        for folder in list_folder(&self.held_root())?
            .iter()
            .filter(|path| path.is_dir())
        {
            for path in list_folder(folder)? {
                let Some(id) = file_name(&path).and_then(|name| name.parse().ok()) else {
                    continue;
                };
                // When opened read-only: the owner may remove a blob between the listing and this line.
                let Ok(metadata) = fs::metadata(&path) else {
                    continue;
                };
                found.push((
                    BlobRef {
                        id,
                        size: metadata.len(),
                    },
                    metadata.modified()?,
                ));
            }
        }
        Ok(found)
    }

    /// Finds all partial blobs, and removes files that belong to none.
    pub(super) fn scan_partial(&self) -> io::Result<Vec<(BlobRef, SystemTime)>> {
        let mut found = Vec::new();
        for path in list_folder(&self.partial_folder())? {
            let blob = file_name(&path).and_then(parse_partial_name);
            match blob.filter(|blob| self.partial(blob).data.is_file()) {
                None => fs::remove_file(&path).map_err(|error| with_path(error, &path))?,
                Some(blob) if path == self.partial(&blob).data => {
                    found.push((
                        blob,
                        fs::metadata(&path).and_then(|metadata| metadata.modified())?,
                    ));
                }
                Some(_) => {}
            }
        }
        Ok(found)
    }
}

fn file_name(path: &Path) -> Option<&str> {
    path.file_name()?.to_str()
}

fn parse_partial_name(name: &str) -> Option<BlobRef> {
    let (stem, _kind) = name.split_once('.')?;
    let (id, size) = stem.split_once('-')?;
    let blob = BlobRef {
        id: id.parse().ok()?,
        size: size.parse().ok()?,
    };
    (blob.size <= MAX_BLOB_BYTES).then_some(blob)
}

/// Reads segment `index` of a blob's file without reading the rest.
pub(super) fn read_segment(file: &File, blob: BlobRef, index: u32) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    read_segment_into(file, blob, index, &mut bytes)?;
    Ok(bytes)
}

/// Reads segment `index`, in place of the content of `bytes`.
pub(super) fn read_segment_into(
    file: &File,
    blob: BlobRef,
    index: u32,
    bytes: &mut Vec<u8>,
) -> io::Result<()> {
    let len = usize::try_from(blob.segment_len(index)).expect("a segment is at most 1 MiB");
    bytes.resize(len, 0);
    file.read_exact_at(bytes, u64::from(index) * SEGMENT_BYTES)
}

/// Reads a whole file, a segment at a time, and computes its segment list.
///
/// The inner error says that the bytes are not those of the blob. The outer error says that they could not be read.
pub(super) fn compute_list(
    file: &File,
    blob: BlobRef,
) -> io::Result<Result<SegmentList, SegmentError>> {
    if file.metadata()?.len() != blob.size {
        return Ok(Err(SegmentError::List));
    }
    let mut values: Vec<ChainingValue> = Vec::new();
    let mut bytes = Vec::new();
    for index in 0..blob.n_segments() {
        read_segment_into(file, blob, index, &mut bytes)?;
        values.push(match blob.n_segments() {
            1 => *BlobId::of(&bytes).as_bytes(),
            _ => chaining_value(index, &bytes),
        });
    }
    Ok(SegmentList::verify(blob, values))
}
