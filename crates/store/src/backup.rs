//! Backups: what a node cannot be made again from, in one file that proves that it is whole.
//!
//! ```text
//! about.json        what this is a backup of
//! …                 files, under the names of the places that they go back to: `state/key`
//! manifest.json     size and BLAKE3 hash of every file before it
//! ```
//!
//! The archive is a tar file, so any tool can look into it. The manifest comes last: an archive without one was cut off.
//! Only the owner may read it, as it holds the node's key.
//!
//! A backup may be made while the node runs. Every file of a state folder is whole whenever it is read (see
//! `fednode-files`), and SQLite itself copies the ledger. Checkpoints are read before blobs. What a checkpoint names
//! and a collection removes in between is fetched again, as a damaged blob would be.
//!
//! Nothing is put in its place before all of it was verified.

mod read;
mod write;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use fednode_core::Timestamp;
use serde::{Deserialize, Serialize};

pub use read::{Place, about, restore};
pub use write::{Item, items_of_state, write};

/// Version of the archive. A newer one is refused.
const VERSION: u32 = 1;
/// The first file of an archive.
const ABOUT: &str = "about.json";
/// The last file of an archive.
const MANIFEST: &str = "manifest.json";
/// Largest manifest: some 200,000 files.
const MAX_MANIFEST_BYTES: u64 = 32 << 20;

/// What a backup is of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct About {
    /// Version of the archive.
    pub version: u32,
    /// The program that wrote it.
    pub software: String,
    /// When it was written.
    pub made_at: Timestamp,
    /// The node's id.
    pub node: String,
    /// The federation, unless the node was never started.
    pub federation: Option<String>,
    /// The newest round in the ledger.
    pub round: Option<u32>,
    /// Where the state folder is, seen from the node's folder.
    pub state: PathBuf,
}

impl About {
    /// Describes a backup that is made now by this version.
    pub fn new(software: String, made_at: Timestamp, node: String, state: PathBuf) -> Self {
        Self {
            version: VERSION,
            software,
            made_at,
            node,
            federation: None,
            round: None,
            state,
        }
    }
}

/// What an archive holds.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// By the name within the archive.
    pub files: BTreeMap<String, Sum>,
}

/// The proof that a file is what it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sum {
    /// Its size.
    pub bytes: u64,
    /// Its hash in hexadecimal digits.
    pub blake3: String,
}

impl Manifest {
    /// Returns the size of all files together.
    pub fn bytes(&self) -> u64 {
        self.files.values().map(|sum| sum.bytes).sum()
    }
}

/// Tells why a backup could not be written or put back.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The file to write, or a place to restore to, is there already.
    #[error("`{}` is there already: move it away or choose another name", .0.display())]
    Exists(PathBuf),
    /// It is something else.
    #[error("`{}` is no backup of fednode: {what}", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// Its end is missing, or bytes of it changed. Nothing was put in its place.
    #[error("backup `{}` is damaged, {what}; nothing was restored: use another copy of it", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// A newer version of this software wrote it.
    #[error("backup has version {0}, this version knows up to {VERSION}: use the newer version")]
    Version(u32),
    /// The disk.
    #[error("`{}`: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

/// Names the file in an error of the disk.
fn at(path: &Path) -> impl FnOnce(io::Error) -> BackupError + '_ {
    |source| BackupError::Io {
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests;
