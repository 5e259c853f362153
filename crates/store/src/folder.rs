//! The state folder: the memory of one node, with one owner at a time.
//!
//! ```text
//! lock          held exclusively while a daemon runs; the pid inside is for people
//! layout        version of this layout
//! federation    the federation that the folder belongs to
//! incarnation   starts of the node so far
//! blobs/ partial/ checkpoints/ ledger.sqlite       see their modules
//! ```
//!
//! The lock is one of the operating system: it ends with the process, however that ends. This module never touches the
//! files of the other modules.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use fednode_core::FederationId;

use crate::checkpoint::reserve_path;
use crate::disk::{Disk, create_folder, disk_free, make_private, with_path};
use crate::ledger::LedgerError;

/// Version of the layout on disk. A folder of a newer layout is refused.
const LAYOUT: u64 = 1;

/// Space that a start needs: a few small files and the ledger's logs.
const START_BYTES: u64 = 1 << 20;

/// Tells why a state folder could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another daemon uses it.
    #[error(
        "state folder {folder} is in use by {owner}: stop that one first or choose another folder"
    )]
    InUse {
        /// The folder.
        folder: String,
        /// The owner, as far as it is known: `process 1234`.
        owner: String,
    },
    /// The folder belongs to another federation.
    #[error(
        "state folder {folder} belongs to federation {found}, not {expected}: put its federation.toml back. If the organiser has begun another run, `fednode init FOLDER --again` goes on with its federation.toml"
    )]
    Federation {
        /// The folder.
        folder: String,
        /// Its federation.
        found: String,
        /// The expected federation.
        expected: String,
    },
    /// A newer version of this software wrote it.
    #[error(
        "state folder {folder} has layout {found}, this version knows up to {LAYOUT}: use the newer version"
    )]
    Layout {
        /// The folder.
        folder: String,
        /// Its layout.
        found: u64,
    },
    /// One of its small files has a content that this software does not write.
    #[error(
        "{file} is damaged ({content:?}): put it back from a backup of the node, or move this one file away, and the next start goes on without it. Do not remove the folder: with its key the membership would be lost, and this node would join anew with a new ticket"
    )]
    Damaged {
        /// The file.
        file: String,
        /// How it begins.
        content: String,
    },
    /// There is no state folder (when opened read-only).
    #[error("{0} is not a state folder: no daemon has run with it yet")]
    Missing(String),
    /// The disk or its permissions.
    #[error("state folder cannot be used: {0}")]
    Io(#[from] io::Error),
    /// The ledger.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// An opened state folder.
#[derive(Debug)]
pub struct StateFolder {
    path: PathBuf,
    federation: FederationId,
    incarnation: u64,
    lock: Option<Lock>,
    warning: Option<String>,
}

/// Keeps the folder locked while it lives. All writers of the folder carry a copy.
pub(crate) type Lock = Arc<File>;

impl StateFolder {
    /// Creates or opens a folder, locks it, checks its federation and counts the start.
    ///
    /// # Errors
    /// Refuses a folder that is in use, of another federation or of a newer layout. Fails if the disk fails.
    pub fn open(path: &Path, federation: FederationId) -> Result<Self, OpenError> {
        create_folder(path)?;
        make_private(path);
        // Locked before anything is read: two processes must not both find the folder new.
        let lock = take_lock(path)?;
        make_room_to_start(path)?;
        check_layout(path)?;
        let found = read_federation(path)?;
        if let Some(found) = found.filter(|found| *found != federation) {
            let (found, expected) = (found.short(), federation.short());
            return Err(OpenError::Federation {
                folder: path.display().to_string(),
                found,
                expected,
            });
        }
        if found.is_none() {
            write_line(&path.join("layout"), &LAYOUT.to_string())?;
            write_line(&path.join("federation"), &federation.to_string())?;
        }
        let (incarnation, warning) = count_start(&path.join("incarnation"), found)?;
        Ok(Self {
            path: path.to_owned(),
            federation,
            incarnation,
            lock: Some(Arc::new(lock)),
            warning,
        })
    }

    /// Opens a folder that a daemon may be using, without locking or changing anything.
    ///
    /// # Errors
    /// Fails if it is no state folder, damaged, or of a newer layout.
    pub fn open_read_only(path: &Path) -> Result<Self, OpenError> {
        check_layout(path)?;
        let federation =
            read_federation(path)?.ok_or_else(|| OpenError::Missing(path.display().to_string()))?;
        let incarnation = read_number(&path.join("incarnation"))?.unwrap_or(0);
        Ok(Self {
            path: path.to_owned(),
            federation,
            incarnation,
            lock: None,
            warning: None,
        })
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the federation it belongs to.
    pub fn federation(&self) -> FederationId {
        self.federation
    }

    /// Returns the number of this start of the node, from 1. It orders the node's adverts across restarts.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    pub(crate) fn lock(&self) -> Option<Lock> {
        self.lock.clone()
    }

    pub(crate) fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }
}

/// Gives up the reserve of the checkpoints on a full disk.
///
/// So a node can also *start* on a full disk: counting the start and opening the ledger need a few pages. The checkpoints
/// take back what is left of it.
fn make_room_to_start(folder: &Path) -> io::Result<()> {
    if disk_free(folder)? < START_BYTES {
        Disk::default().remove(&reserve_path(folder))
    } else {
        Ok(())
    }
}

fn take_lock(folder: &Path) -> Result<File, OpenError> {
    let path = folder.join("lock");
    let open = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path);
    let file = open.map_err(|error| with_path(error, &path))?;
    match file.try_lock() {
        Ok(()) => {
            file.set_len(0)?;
            Disk::default().write_at(&file, format!("{}\n", std::process::id()).as_bytes(), 0)?;
            Ok(file)
        }
        Err(TryLockError::WouldBlock) => Err(in_use(folder, &file)),
        Err(TryLockError::Error(error)) => Err(with_path(error, &path).into()),
    }
}

/// Tells whether no process holds a folder.
///
/// # Errors
/// Fails if the lock cannot be looked at.
pub fn is_free(folder: &Path) -> io::Result<bool> {
    Ok(holder(folder)?.is_none())
}

/// Returns who holds a folder, as far as it is known: `process 1234`. Nothing where it is free.
///
/// # Errors
/// As [`is_free`].
pub fn holder(folder: &Path) -> io::Result<Option<String>> {
    let file = match File::open(folder.join("lock")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    // Shared and let go at once: it is in nobody's way but that of a daemon which starts in this very moment.
    match file.try_lock_shared() {
        Ok(()) => Ok(None),
        Err(TryLockError::WouldBlock) => Ok(Some(owner(&file))),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

fn in_use(folder: &Path, lock: &File) -> OpenError {
    OpenError::InUse {
        folder: folder.display().to_string(),
        owner: owner(lock),
    }
}

fn owner(mut lock: &File) -> String {
    let mut pid = String::new();
    // The owner may not have written its pid yet. The pid only helps people.
    let known = lock.read_to_string(&mut pid).is_ok() && pid.trim().parse::<u32>().is_ok();
    if known {
        format!("process {}", pid.trim())
    } else {
        "another process".to_owned()
    }
}

fn check_layout(folder: &Path) -> Result<(), OpenError> {
    match read_number(&folder.join("layout"))? {
        Some(found) if found > LAYOUT => Err(OpenError::Layout {
            folder: folder.display().to_string(),
            found,
        }),
        _ => Ok(()),
    }
}

fn read_federation(folder: &Path) -> Result<Option<FederationId>, OpenError> {
    let path = folder.join("federation");
    let Some(text) = read_line(&path)? else {
        return Ok(None);
    };
    text.parse().map(Some).map_err(|_| damaged(&path, &text))
}

/// Returns the number of this start, on disk before it is used.
///
/// It must be larger than that of any start before. Peers ignore what comes under a smaller number, and they ban who signs
/// two adverts under one. The stored number may be too small: the folder may have been restored from a backup. So the nanoseconds
/// since the epoch are the number, if they are larger. Copies of a node that are started together have different numbers so.
fn count_start(
    path: &Path,
    earlier: Option<FederationId>,
) -> Result<(u64, Option<String>), OpenError> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let clock = now.map_or(0, |since| since.as_nanos() as u64);
    let (before, warning) = match read_number(path) {
        Ok(Some(before)) => (before, None),
        // A new folder has none yet; in an old one somebody took it away.
        Ok(None) => {
            let missing = |_| {
                let file = path.display();
                format!("{file} was missing: the starts of this node now count on from the clock")
            };
            (0, earlier.map(missing))
        }
        Err(OpenError::Damaged { file, .. }) => {
            let text =
                format!("{file} was damaged: the starts of this node now count on from the clock");
            (0, Some(text))
        }
        Err(error) => return Err(error),
    };
    let incarnation = before.saturating_add(1).max(clock);
    write_line(path, &incarnation.to_string())?;
    Ok((incarnation, warning))
}

fn read_number(path: &Path) -> Result<Option<u64>, OpenError> {
    let Some(text) = read_line(path)? else {
        return Ok(None);
    };
    text.parse().map(Some).map_err(|_| damaged(path, &text))
}

/// Reads a file that holds one line. A longer file is cut, and so recognised as damaged.
fn read_line(path: &Path) -> Result<Option<String>, OpenError> {
    const MAX_BYTES: u64 = 256;
    let mut bytes = Vec::new();
    match File::open(path).and_then(|file| file.take(MAX_BYTES).read_to_end(&mut bytes)) {
        Ok(_) => Ok(Some(String::from_utf8_lossy(&bytes).trim_end().to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(with_path(error, path).into()),
    }
}

fn write_line(path: &Path, line: &str) -> io::Result<()> {
    Disk::default().replace(path, &[line.as_bytes(), b"\n"])
}

fn damaged(path: &Path, text: &str) -> OpenError {
    OpenError::Damaged {
        file: path.display().to_string(),
        content: text.chars().take(20).collect(),
    }
}

/// Removes the half-written files that a crash left in `folder`.
pub(crate) fn sweep(folder: &Path) -> io::Result<()> {
    for path in crate::disk::list_folder(folder)?
        .iter()
        .filter(|path| crate::disk::is_staged(path))
    {
        fs::remove_file(path).map_err(|error| with_path(error, path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn federation(byte: u8) -> FederationId {
        FederationId::from_bytes([byte; 32])
    }

    #[test]
    fn counts_starts_in_a_private_folder() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("a/state");
        // Somebody else made it, as anybody may enter a folder by default.
        fs::create_dir_all(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let first = StateFolder::open(&path, federation(1)).unwrap();
        let started = first.incarnation();
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o700
        );
        drop(first);
        let again = StateFolder::open(&path, federation(1))
            .unwrap()
            .incarnation();
        assert!(again > started, "{again} after {started}");
        assert_eq!(
            StateFolder::open_read_only(&path).unwrap().incarnation(),
            again,
            "looking is not a start"
        );
    }

    #[test]
    fn a_folder_restored_from_a_backup_repeats_no_number() {
        let home = tempfile::tempdir().unwrap();
        drop(StateFolder::open(home.path(), federation(1)).unwrap());
        write_line(&home.path().join("incarnation"), "3").unwrap();
        let restored = StateFolder::open(home.path(), federation(1)).unwrap();
        assert!(
            restored.incarnation() > 1_000_000_000_000_000_000,
            "the clock counts on"
        );
        drop(restored);
        let ahead = u64::MAX / 2;
        write_line(&home.path().join("incarnation"), &ahead.to_string()).unwrap();
        let again = StateFolder::open(home.path(), federation(1)).unwrap();
        assert_eq!(
            again.incarnation(),
            ahead + 1,
            "also if the clock was set back"
        );
    }

    #[test]
    fn refuses_a_second_owner_and_names_the_first() {
        let home = tempfile::tempdir().unwrap();
        let first = StateFolder::open(home.path(), federation(1)).unwrap();
        let error = StateFolder::open(home.path(), federation(1)).unwrap_err();
        assert!(
            error
                .to_string()
                .contains(&format!("in use by process {}:", std::process::id())),
            "{error}"
        );
        let counted = fs::read_to_string(home.path().join("incarnation")).unwrap();
        assert_eq!(
            counted.trim(),
            first.incarnation().to_string(),
            "a refusal is not a start"
        );
        drop(first);
        assert!(StateFolder::open(home.path(), federation(1)).is_ok());
    }

    #[test]
    fn refuses_another_federation_and_a_newer_layout() {
        let home = tempfile::tempdir().unwrap();
        drop(StateFolder::open(home.path(), federation(1)).unwrap());
        let error = StateFolder::open(home.path(), federation(2))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("belongs to federation 0101010101010101, not 0202020202020202"),
            "{error}"
        );
        write_line(&home.path().join("layout"), "2").unwrap();
        assert!(matches!(
            StateFolder::open(home.path(), federation(1)),
            Err(OpenError::Layout { found: 2, .. })
        ));
    }

    #[test]
    fn a_damaged_count_never_falls_back_to_small_numbers() {
        let home = tempfile::tempdir().unwrap();
        drop(StateFolder::open(home.path(), federation(1)).unwrap());
        fs::write(home.path().join("incarnation"), b"\0\0\0").unwrap();
        let healed = StateFolder::open(home.path(), federation(1)).unwrap();
        assert!(
            healed.incarnation() > 1_000_000_000_000_000_000,
            "{}",
            healed.incarnation()
        );
        assert!(healed.warning().is_some());
        drop(healed);
        fs::remove_file(home.path().join("incarnation")).unwrap();
        let healed = StateFolder::open(home.path(), federation(1)).unwrap();
        assert!(healed.incarnation() > 1_000_000_000_000_000_000);
        assert!(healed.warning().unwrap().contains("was missing"));
        let new = StateFolder::open(&home.path().join("new"), federation(1)).unwrap();
        assert_eq!(new.warning(), None);
    }

    /// What the message says of a damaged file.
    #[test]
    fn a_damaged_file_that_was_moved_away_costs_nothing() {
        for name in ["federation", "layout"] {
            let home = tempfile::tempdir().unwrap();
            drop(StateFolder::open(home.path(), federation(1)).unwrap());
            fs::write(home.path().join(name), b"\0\0").unwrap();
            let error = StateFolder::open(home.path(), federation(1)).unwrap_err();
            let line = error.to_string();
            for words in ["is damaged", "backup", "Do not remove the folder"] {
                assert!(line.contains(words), "{line}");
            }
            fs::rename(home.path().join(name), home.path().join("away")).unwrap();
            let again = StateFolder::open(home.path(), federation(1)).unwrap();
            assert_eq!(again.federation(), federation(1), "{name}");
            assert!(StateFolder::open_read_only(home.path()).is_ok());
        }
    }

    #[test]
    fn only_looks_at_what_is_there() {
        let home = tempfile::tempdir().unwrap();
        assert!(matches!(
            StateFolder::open_read_only(home.path()),
            Err(OpenError::Missing(_))
        ));
        assert_eq!(crate::disk::list_folder(home.path()).unwrap().len(), 0);
        fs::write(home.path().join("federation"), "nonsense").unwrap();
        assert!(matches!(
            StateFolder::open(home.path(), federation(1)),
            Err(OpenError::Damaged { .. })
        ));
    }
}
