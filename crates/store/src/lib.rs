//! What survives a restart.
//!
//! A node may lose power at any moment, run out of disk, be started twice, or find its files damaged. Whatever happens, it
//! must go on with intact data or say in one line why it cannot. All state lies in one state folder, which one process
//! owns:
//!
//! | part | keeps | lost when damaged |
//! |---|---|---|
//! | [`StateFolder`] | lock, federation, number of starts | nothing: the number heals, a foreign folder is refused |
//! | [`Blobs`] | immutable bytes by their hash: experts, shared parts, pool members | that blob, which is fetched again |
//! | [`Checkpoints`] | where the node stopped | the last step: the generation before is used |
//! | [`Ledger`] | rounds, numbers, peers, transfers, events, newest adverts | history, and which adverts were seen |
//!
//! [`backup`] puts all of it into one file, also while a node runs.
//!
//! Three rules make that true.
//!
//! - *Whole or not at all.* A file gets its name only after its bytes are on the disk.
//! - *Nothing is believed.* Blobs are verified by their name, checkpoints and maps by a checksum, whenever they are read.
//! - *Everything is bounded.* Blobs have a quota, and only unneeded blobs are collected. Checkpoints have two generations,
//!   and a reserve that keeps room for the next one on a full disk. Every table has a constant.
//!
//! All calls block. Asynchronous callers use a thread for them. There is no network here, no tensor and no round logic. A
//! clock is read only to order blobs by their last use, and for a number of the start that no earlier start had.
//!
//! ```
//! use fednode_core::{BlobStore, FederationId};
//! use fednode_store::{Checkpoint, Options, Store};
//!
//! let folder = tempfile::tempdir()?;
//! let federation = FederationId::from_bytes([7; 32]);
//! let store = Store::open(folder.path(), federation, &Options::default())?;
//! let started = store.folder.incarnation();
//!
//! let blob = store.blobs.put(b"an expert")?;
//! assert_eq!(store.blobs.get(&blob.id)?, b"an expert");
//!
//! let checkpoint = Checkpoint::new("partition hash", &"round 3")?.with_section("gate", vec![1, 2, 3]);
//! store.checkpoints.save("node", &checkpoint)?;
//! drop(store);
//!
//! let store = Store::open(folder.path(), federation, &Options::default())?;
//! let loaded = store.checkpoints.load("node", "partition hash")?.expect("it was saved");
//! assert_eq!(loaded.checkpoint.section("gate"), Some([1, 2, 3].as_slice()));
//! assert_eq!(store.blobs.held(&blob.id), Some(9));
//! assert!(store.folder.incarnation() > started);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod backup;
mod blobs;
mod checkpoint;
mod disk;
mod folder;
pub mod ledger;

use std::path::Path;
use std::sync::Arc;

use fednode_core::FederationId;

pub use blobs::{Blobs, Collected, DEFAULT_QUOTA_BYTES, Pin};
pub use checkpoint::{
    Checkpoint, Checkpoints, DEFAULT_RESERVE_BYTES, LoadError, Loaded, SaveError, Saved,
};
pub use disk::{Durability, disk_free};
pub use folder::{OpenError, StateFolder, holder, is_free};
pub use ledger::{Ledger, LedgerError};

use disk::Disk;

/// The choices of the owner of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Largest number of bytes of all blobs.
    pub quota_bytes: u64,
    /// Space reserved for the next checkpoint. It grows with the largest checkpoint.
    pub reserve_bytes: u64,
    /// Whether own blobs are fsynced. All other files always are.
    pub durability: Durability,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            quota_bytes: DEFAULT_QUOTA_BYTES,
            reserve_bytes: DEFAULT_RESERVE_BYTES,
            durability: Durability::default(),
        }
    }
}

/// The whole memory of a node.
#[derive(Debug)]
pub struct Store {
    /// Immutable bytes by their hash.
    pub blobs: Arc<Blobs>,
    /// Where the node stopped.
    pub checkpoints: Checkpoints,
    /// What happened.
    pub ledger: Ledger,
    /// The folder and its lock. The other parts hold the lock too, so it lasts as long as any of them.
    pub folder: StateFolder,
    /// One line for the user for each file that was damaged and healed.
    pub warnings: Vec<String>,
}

impl Store {
    /// Opens or creates the store in a folder, as its only owner.
    ///
    /// # Errors
    /// Refuses a folder that is in use, of another federation or of a newer version. Fails if the disk fails.
    pub fn open(
        folder: &Path,
        federation: FederationId,
        options: &Options,
    ) -> Result<Self, OpenError> {
        let folder = StateFolder::open(folder, federation)?;
        let (path, lock) = (folder.path(), folder.lock());
        folder::sweep(path)?;
        let disk = Disk::new(options.durability);
        let (ledger, ledger_warning) = Ledger::open(path, lock.clone())?;
        // The reserve comes after the ledger, which needs some pages to start, and before any blob can take the space.
        let checkpoints = Checkpoints::open(
            path,
            federation,
            Disk::default(),
            options.reserve_bytes,
            lock.clone(),
        )?;
        let blobs = Arc::new(Blobs::open(path, disk, options.quota_bytes, lock)?);
        let warnings = folder
            .warning()
            .map(str::to_owned)
            .into_iter()
            .chain(ledger_warning)
            .collect();
        Ok(Self {
            blobs,
            checkpoints,
            ledger,
            folder,
            warnings,
        })
    }

    /// Opens the store of a folder that a daemon may be using. Nothing is changed, and every write fails.
    ///
    /// # Errors
    /// Fails if there is none, if it is damaged or of another version, or if the disk fails.
    pub fn open_read_only(folder: &Path) -> Result<Self, OpenError> {
        let folder = StateFolder::open_read_only(folder)?;
        let path = folder.path();
        let checkpoints = Checkpoints::open(path, folder.federation(), Disk::default(), 0, None)?;
        let ledger = Ledger::open_read_only(path)?;
        let blobs = Arc::new(Blobs::open(
            path,
            Disk::default(),
            DEFAULT_QUOTA_BYTES,
            None,
        )?);
        Ok(Self {
            blobs,
            checkpoints,
            ledger,
            folder,
            warnings: Vec::new(),
        })
    }
}

#[cfg(test)]
mod tests {
    use fednode_core::{BlobStore, Round, Timestamp};

    use super::*;

    fn federation() -> FederationId {
        FederationId::from_bytes([1; 32])
    }

    #[test]
    fn tools_look_while_the_daemon_runs() {
        let home = tempfile::tempdir().unwrap();
        assert!(matches!(
            Store::open_read_only(home.path()),
            Err(OpenError::Missing(_))
        ));
        let options = Options {
            reserve_bytes: 1000,
            ..Options::default()
        };
        let store = Store::open(home.path(), federation(), &options).unwrap();
        let blob = store.blobs.put(b"blob").unwrap();
        store.ledger.start_round(Round(1), Timestamp(5)).unwrap();
        store
            .checkpoints
            .save("node", &Checkpoint::new("p", &7).unwrap())
            .unwrap();
        let looking = Store::open_read_only(home.path()).unwrap();
        assert_eq!(
            (looking.folder.federation(), looking.folder.incarnation()),
            (federation(), store.folder.incarnation())
        );
        assert_eq!(looking.blobs.held(&blob.id), Some(4));
        assert_eq!(
            looking.ledger.last_round().unwrap().unwrap().round,
            Round(1)
        );
        assert_eq!(
            looking
                .checkpoints
                .load("node", "p")
                .unwrap()
                .unwrap()
                .generation,
            1
        );
        assert!(matches!(
            Store::open(home.path(), federation(), &options),
            Err(OpenError::InUse { .. })
        ));
    }

    #[test]
    fn the_lock_lasts_as_long_as_anybody_may_write() {
        let home = tempfile::tempdir().unwrap();
        let blobs = Store::open(home.path(), federation(), &Options::default())
            .unwrap()
            .blobs;
        assert!(matches!(
            Store::open(home.path(), federation(), &Options::default()),
            Err(OpenError::InUse { .. })
        ));
        drop(blobs);
        assert!(Store::open(home.path(), federation(), &Options::default()).is_ok());
    }

    #[test]
    fn every_repair_is_reported() {
        let home = tempfile::tempdir().unwrap();
        let options = Options {
            reserve_bytes: 1000,
            ..Options::default()
        };
        drop(Store::open(home.path(), federation(), &options).unwrap());
        std::fs::write(home.path().join("ledger.sqlite"), b"spoilt".repeat(1000)).unwrap();
        std::fs::write(home.path().join("incarnation"), b"spoilt").unwrap();
        let store = Store::open(home.path(), federation(), &options).unwrap();
        assert_eq!(store.warnings.len(), 2, "{:?}", store.warnings);
    }
}
