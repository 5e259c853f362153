//! Checkpoints: the state that a node needs to continue where it stopped, whole or not at all.
//!
//! A checkpoint has a name (one process may keep several kinds), a small description as JSON, and large sections as raw
//! bytes. The last two generations stay on disk, because a power cut is likeliest while writing. A checkpoint of another
//! federation or partition is refused. To continue with it would mix models of two federations, and test samples of one
//! partition are training samples of another.
//!
//! ```text
//! checkpoints/<name>.00000041     the generation before
//! checkpoints/<name>.00000042     the newest
//! checkpoints/<name>.corrupt      the last damaged one, for a person who wants to know why
//! checkpoints/reserve             space that is given up when the disk is full, and taken again when it is not
//! ```
//!
//! The reserve is a little larger than the largest checkpoint so far. Writing generation n+1 on a full disk spends it.
//! Dropping generation n−1 right afterwards pays it back. So a full disk stops blobs, never checkpoints. This module does
//! not know what a section holds.

mod format;
#[cfg(test)]
mod tests;

use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use fednode_core::FederationId;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tracing::{debug, warn};

use crate::disk::{Disk, create_folder, is_full, list_folder, with_path};
use crate::folder::{Lock, sweep};
use format::Encoded;

/// Names the folder within the state folder.
const FOLDER: &str = "checkpoints";
/// Names the file that only takes space.
const RESERVE: &str = "reserve";
/// Generations that stay on disk.
const GENERATIONS: usize = 2;
/// Longest name of a checkpoint.
const MAX_NAME_BYTES: usize = 64;
/// Smallest surplus of the reserve over the largest checkpoint so far: one block of most file systems.
const RESERVE_SLACK_BYTES: u64 = 4096;
/// Default of the space reserved before the first checkpoint: a small model with its optimiser.
pub const DEFAULT_RESERVE_BYTES: u64 = 16 << 20;

/// The content of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Checkpoint {
    /// Hash of the partition that the node's data come from.
    pub partition_hash: String,
    /// A description as JSON; see [`Checkpoint::meta`].
    pub meta: Vec<u8>,
    /// Raw bytes by name, for example canonical parameter sets.
    pub sections: Vec<(String, Vec<u8>)>,
}

/// Tells why a checkpoint could not be saved.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// The name is not 1 to 64 of `a-z 0-9 -`.
    #[error("`{0}` cannot be the name of a checkpoint: use a-z, 0-9 and -")]
    Name(String),
    /// No space, even after the reserve was given up.
    #[error(
        "no space left for checkpoint `{name}` of {bytes} bytes, even with the reserve given up"
    )]
    Full {
        /// Its name.
        name: String,
        /// Its size.
        bytes: u64,
    },
    /// The store was opened read-only.
    #[error("the store was opened read-only")]
    ReadOnly,
    /// The disk.
    #[error("checkpoint cannot be written: {0}")]
    Io(#[from] io::Error),
}

/// Tells why a checkpoint could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// It is of another federation or another partition.
    #[error(
        "checkpoint `{name}` has {what} {found}, expected {expected}: it is of other data or of another federation, so put \
         these back, or name another state folder"
    )]
    Mismatch {
        /// Its name.
        name: String,
        /// `federation` or `partition hash`.
        what: &'static str,
        /// That of the checkpoint.
        found: String,
        /// The expected one.
        expected: String,
    },
    /// It is damaged.
    #[error("corrupt, {0}")]
    Corrupt(&'static str),
    /// No generation can be read.
    #[error(
        "no generation of checkpoint `{name}` can be read: {details}; put a copy of the folder `checkpoints` back, or \
         remove that folder and the node begins anew"
    )]
    AllCorrupt {
        /// Its name.
        name: String,
        /// What is wrong with each.
        details: String,
    },
    /// A newer version of this software wrote it.
    #[error(
        "checkpoint has format {found}, this version knows up to {supported}: use the newer version"
    )]
    Version {
        /// Its format.
        found: u32,
        /// The newest format known here.
        supported: u32,
    },
    /// The description is not what the caller expects.
    #[error("description of the checkpoint cannot be read: {0}")]
    Meta(#[from] serde_json::Error),
    /// The disk.
    #[error("checkpoint cannot be read: {0}")]
    Io(#[from] io::Error),
}

/// A checkpoint that was loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    /// Its content.
    pub checkpoint: Checkpoint,
    /// Its number, counting from 1.
    pub generation: u64,
    /// One line for the user if the newest is damaged and this is an older one.
    pub warning: Option<String>,
}

/// The result of saving.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Saved {
    /// Which one it is, counting from 1.
    pub generation: u64,
    /// Its size on disk.
    pub bytes: u64,
    /// Whether the disk was full, so that the reserve had to be spent.
    pub disk_was_full: bool,
}

impl Checkpoint {
    /// Starts a checkpoint with its description.
    ///
    /// # Errors
    /// Fails if the description cannot be written as JSON.
    pub fn new(
        partition_hash: impl Into<String>,
        meta: &impl Serialize,
    ) -> Result<Self, serde_json::Error> {
        Ok(Self {
            partition_hash: partition_hash.into(),
            meta: serde_json::to_vec(meta)?,
            sections: Vec::new(),
        })
    }

    /// Adds a section.
    #[must_use]
    pub fn with_section(mut self, name: impl Into<String>, bytes: Vec<u8>) -> Self {
        self.sections.push((name.into(), bytes));
        self
    }

    /// Reads the description.
    ///
    /// # Errors
    /// Fails if it is not a `T`.
    pub fn meta<T: DeserializeOwned>(&self) -> Result<T, LoadError> {
        Ok(serde_json::from_slice(&self.meta)?)
    }

    /// Returns the first section of that name.
    pub fn section(&self, name: &str) -> Option<&[u8]> {
        self.sections
            .iter()
            .find(|(other, _)| other == name)
            .map(|(_, bytes)| bytes.as_slice())
    }
}

/// The checkpoints of one node.
#[derive(Debug)]
pub struct Checkpoints {
    folder: PathBuf,
    federation: FederationId,
    disk: Disk,
    reserve_bytes: u64,
    /// Size of the largest checkpoint so far. Locked while files are written or read.
    largest_bytes: Mutex<u64>,
    lock: Option<Lock>,
}

impl Checkpoints {
    pub(crate) fn open(
        state: &Path,
        federation: FederationId,
        disk: Disk,
        reserve_bytes: u64,
        lock: Option<Lock>,
    ) -> io::Result<Self> {
        let folder = state.join(FOLDER);
        let checkpoints = Self {
            folder,
            federation,
            disk,
            reserve_bytes,
            largest_bytes: Mutex::new(0),
            lock,
        };
        if checkpoints.lock.is_some() {
            create_folder(&checkpoints.folder)?;
            sweep(&checkpoints.folder)?;
            let largest_bytes = checkpoints.largest_on_disk()?;
            *checkpoints.largest() = largest_bytes;
            checkpoints.take_reserve(largest_bytes);
        }
        Ok(checkpoints)
    }

    /// Writes the next generation, atomically and durably, and drops the oldest.
    ///
    /// # Errors
    /// Fails if the name is malformed, the disk is full even without the reserve, or the disk fails. Earlier generations
    /// stay.
    pub fn save(&self, name: &str, checkpoint: &Checkpoint) -> Result<Saved, SaveError> {
        if self.lock.is_none() {
            return Err(SaveError::ReadOnly);
        }
        if !is_name(name) {
            return Err(SaveError::Name(name.to_owned()));
        }
        let mut largest = self.largest();
        let generation = self
            .generations(name)?
            .first()
            .map_or(1, |(newest, _)| newest + 1);
        let encoded = Encoded::new(checkpoint, self.federation);
        let bytes = encoded.n_bytes();
        let disk_was_full = self.write(name, generation, &encoded)?;
        self.drop_old_generations(name);
        *largest = (*largest).max(bytes);
        self.take_reserve(*largest);
        debug!(name, generation, bytes, "checkpoint saved");
        Ok(Saved {
            generation,
            bytes,
            disk_was_full,
        })
    }

    /// Writes a file, into the reserve's space if there is no other. Tells whether that was needed.
    fn write(&self, name: &str, generation: u64, encoded: &Encoded<'_>) -> Result<bool, SaveError> {
        let path = self.path(name, generation);
        match self.disk.replace(&path, &encoded.parts()) {
            Ok(()) => return Ok(false),
            Err(error) if !is_full(&error) => return Err(error.into()),
            // Who saves says so, once.
            Err(_) => debug!(name, "the disk is full: reserved space is taken"),
        }
        // Blobs may take the freed space in between. Then the checkpoint fails, and the reserve is taken again later.
        self.disk.remove(&self.reserve_path())?;
        match self.disk.replace(&path, &encoded.parts()) {
            Ok(()) => Ok(true),
            Err(error) if is_full(&error) => Err(SaveError::Full {
                name: name.to_owned(),
                bytes: encoded.n_bytes(),
            }),
            Err(error) => Err(error.into()),
        }
    }

    /// Loads the newest intact generation. Returns `None` if nothing was ever saved under this name.
    ///
    /// # Errors
    /// Refuses a checkpoint of another federation or partition, and one of a newer format. Fails if every generation is
    /// damaged.
    pub fn load(&self, name: &str, partition_hash: &str) -> Result<Option<Loaded>, LoadError> {
        let _writers_wait = self.largest();
        let mut damaged: Vec<(PathBuf, LoadError)> = Vec::new();
        for (generation, path) in self.generations(name)? {
            match read(&path) {
                Ok((checkpoint, federation)) => {
                    self.check_match(name, federation, &checkpoint, partition_hash)?;
                    let warning = describe(&damaged).map(|what| {
                        format!("checkpoint `{name}` goes back to generation {generation}: {what}")
                    });
                    self.set_aside(name, &damaged);
                    return Ok(Some(Loaded {
                        checkpoint,
                        generation,
                        warning,
                    }));
                }
                Err(error @ LoadError::Version { .. }) => return Err(error),
                Err(error) => {
                    warn!(name, generation, %error, "checkpoint cannot be used, trying the one before");
                    damaged.push((path, error));
                }
            }
        }
        match describe(&damaged) {
            None => Ok(None),
            Some(details) => Err(LoadError::AllCorrupt {
                name: name.to_owned(),
                details,
            }),
        }
    }

    fn check_match(
        &self,
        name: &str,
        federation: FederationId,
        checkpoint: &Checkpoint,
        partition_hash: &str,
    ) -> Result<(), LoadError> {
        let mismatch = |what, found: &str, expected: &str| {
            let (found, expected) = (format!("`{found}`"), format!("`{expected}`"));
            Err(LoadError::Mismatch {
                name: name.to_owned(),
                what,
                found,
                expected,
            })
        };
        match () {
            () if federation != self.federation => {
                mismatch("federation", &federation.short(), &self.federation.short())
            }
            () if checkpoint.partition_hash != partition_hash => {
                mismatch("partition hash", &checkpoint.partition_hash, partition_hash)
            }
            () => Ok(()),
        }
    }

    /// Moves damaged files out of the way of the next generations. Files that merely could not be read stay.
    fn set_aside(&self, name: &str, damaged: &[(PathBuf, LoadError)]) {
        let corrupt = damaged
            .iter()
            .filter(|(_, error)| matches!(error, LoadError::Corrupt(_)));
        for (path, _) in corrupt.filter(|_| self.lock.is_some()) {
            if let Err(error) = fs::rename(path, self.folder.join(format!("{name}.corrupt"))) {
                debug!(path = %path.display(), %error, "damaged checkpoint not set aside");
            }
        }
    }

    fn largest(&self) -> std::sync::MutexGuard<'_, u64> {
        self.largest_bytes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn reserve_path(&self) -> PathBuf {
        self.folder.join(RESERVE)
    }

    /// Reserves space for the next checkpoint, which may be a little larger than any before.
    ///
    /// Without space for a reserve the node works, only less safely.
    fn take_reserve(&self, largest_bytes: u64) {
        let path = self.reserve_path();
        let slack = largest_bytes / 8 + RESERVE_SLACK_BYTES;
        let has = fs::metadata(&path).map_or(0, |metadata| metadata.len());
        if has >= self.reserve_bytes.max(largest_bytes + slack / 2) {
            return;
        }
        // Less and less, because on a nearly full disk a small reserve is better than none.
        let wanted = self.reserve_bytes.max(largest_bytes + slack);
        for bytes in [
            wanted,
            largest_bytes + slack,
            largest_bytes + slack / 2,
            largest_bytes,
        ] {
            if self
                .disk
                .remove(&path)
                .and_then(|()| self.disk.allocate(&path, bytes))
                .is_ok()
            {
                return;
            }
        }
        warn!(
            bytes = largest_bytes,
            "no space can be reserved for the next checkpoint"
        );
        // A half-allocated reserve would pass for a whole one. A failure to remove it changes nothing.
        let _ = self.disk.remove(&path);
    }

    fn largest_on_disk(&self) -> io::Result<u64> {
        let reserve = self.reserve_path();
        let paths = list_folder(&self.folder)?
            .into_iter()
            .filter(|path| *path != reserve);
        Ok(paths
            .filter_map(|path| Some(fs::metadata(path).ok()?.len()))
            .max()
            .unwrap_or(0))
    }

    fn path(&self, name: &str, generation: u64) -> PathBuf {
        self.folder.join(format!("{name}.{generation:08}"))
    }

    /// Returns the generations on disk, newest first.
    fn generations(&self, name: &str) -> io::Result<Vec<(u64, PathBuf)>> {
        let mut found: Vec<_> = list_folder(&self.folder)?
            .into_iter()
            .filter_map(|path| {
                let (stem, generation) = path.file_name()?.to_str()?.rsplit_once('.')?;
                Some((generation.parse().ok().filter(|_| stem == name)?, path))
            })
            .collect();
        found.sort_unstable_by(|a, b| b.cmp(a));
        Ok(found)
    }

    fn drop_old_generations(&self, name: &str) {
        for (generation, path) in self
            .generations(name)
            .unwrap_or_default()
            .iter()
            .skip(GENERATIONS)
        {
            if let Err(error) = self.disk.remove(path) {
                warn!(name, generation, %error, "old checkpoint not removed");
            }
        }
    }
}

/// Returns where the reserve of a state folder lies.
pub(crate) fn reserve_path(state: &Path) -> PathBuf {
    state.join(FOLDER).join(RESERVE)
}

fn read(path: &Path) -> Result<(Checkpoint, FederationId), LoadError> {
    let file = File::open(path).map_err(|error| with_path(error, path))?;
    let file_bytes = file.metadata()?.len();
    format::decode(BufReader::new(file), file_bytes)
}

fn describe(damaged: &[(PathBuf, LoadError)]) -> Option<String> {
    let lines: Vec<_> = damaged
        .iter()
        .map(|(path, error)| format!("{}: {error}", path.display()))
        .collect();
    (!lines.is_empty()).then(|| lines.join("; "))
}

fn is_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !name.is_empty() && name.len() <= MAX_NAME_BYTES && name.bytes().all(allowed)
}
