//! The run ledger: a record of the run, in one SQLite file that people may query too.
//!
//! ```text
//! rounds ──< metrics        one row per round; its numbers by name
//! transfers                 what was received, from whom, how fast
//! peers                     which peers were met, and their strikes
//! events                    the last events, as text
//! adverts                   the newest of every author, as signed: for sync, and to judge freshness
//!    │    └───< unmasked     what took the masks off a sum, as signed, where sums are masked
//! closings ──< counted      rounds that are over: their closings and the updates that they count, as signed, for `fednode audit`
//! ```
//!
//! No round depends on the ledger. So a damaged one is moved aside and begun anew, with a warning. The warning is there
//! because one protection is lost: the newest advert of every author. Until they expire, old adverts could be accepted a
//! second time. Blobs are still named by their hashes, so the worst is a stale plan.
//!
//! Every write is one transaction in write-ahead mode. It always survives a crash of the process; a power cut may take the
//! last moments. Every table is bounded by a constant. Times come from the caller: this module reads no clock.

mod adverts;
mod events;
mod history;
mod peers;
mod rounds;
mod schema;
#[cfg(test)]
mod tests;
mod transfers;

use std::io;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fednode_core::{BlobId, NodeId, Round, Timestamp};
use rusqlite::types::Type;
use rusqlite::{Connection, ErrorCode, Row};

use crate::folder::Lock;

pub use adverts::{ADVERTS_PER_AUTHOR, MAX_AUTHORS};
pub use events::{Event, EventLevel, MAX_EVENTS};
pub use history::{KeptRound, MAX_HISTORY_BYTES};
pub use peers::{MAX_PEERS, PeerRecord};
pub use rounds::{ClosedRound, MAX_ROUNDS, MetricRecord, RoundRecord};
pub use transfers::{MAX_TRANSFERS, Transfer, TransferKind};

/// Tells why the ledger could not be opened, read or written.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// SQLite.
    #[error("run ledger: {0}")]
    Sqlite(#[from] rusqlite::Error),
    /// A check of the whole file found damage.
    #[error("run ledger is damaged: {0}")]
    Damaged(String),
    /// A newer version of this software wrote it.
    #[error(
        "run ledger has schema {found}, this version knows up to {supported}: use the newer version"
    )]
    Newer {
        /// Its schema.
        found: i64,
        /// The newest schema known here.
        supported: i64,
    },
    /// An older version wrote it, and a read-only opening must not change it.
    #[error("run ledger has the older schema {0}: start the daemon once, it brings it up to date")]
    Older(i64),
    /// The disk.
    #[error("run ledger: {0}")]
    Io(#[from] io::Error),
}

impl LedgerError {
    /// Tells whether it is the content that cannot be used: then no other attempt succeeds, and no more room on the disk helps.
    pub(crate) fn is_of_content(&self) -> bool {
        match self {
            Self::Damaged(_) | Self::Newer { .. } | Self::Older(_) => true,
            Self::Sqlite(error) => matches!(
                error.sqlite_error_code(),
                Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
            ),
            Self::Io(_) => false,
        }
    }
}

/// The ledger of one node.
#[derive(Debug)]
pub struct Ledger {
    connection: Mutex<Connection>,
    _lock: Option<Lock>,
}

impl Ledger {
    /// Opens or creates the ledger. Returns a line for the user if a damaged one was moved aside.
    pub(crate) fn open(
        state: &Path,
        lock: Option<Lock>,
    ) -> Result<(Self, Option<String>), LedgerError> {
        let (connection, warning) = schema::open(&state.join("ledger.sqlite"))?;
        Ok((
            Self {
                connection: Mutex::new(connection),
                _lock: lock,
            },
            warning,
        ))
    }

    /// Opens the ledger of a folder that a daemon may be using. Every write fails.
    pub(crate) fn open_read_only(state: &Path) -> Result<Self, LedgerError> {
        let connection = schema::open_read_only(&state.join("ledger.sqlite"))?;
        Ok(Self {
            connection: Mutex::new(connection),
            _lock: None,
        })
    }

    /// Writes a copy of the ledger as it is now, with what its logs hold. The file must be empty or absent.
    ///
    /// # Errors
    /// Fails if the file has a content or cannot be written.
    pub(crate) fn copy_to(&self, copy: &Path) -> Result<(), LedgerError> {
        let copy = copy.to_string_lossy();
        self.connection().execute("VACUUM INTO ?1", [&*copy])?;
        Ok(())
    }

    /// Locks the connection. A panic elsewhere cannot leave a transaction open, because dropping one rolls it back.
    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Turns an own quantity (a size, time or count) into the number that SQLite stores.
fn stored(quantity: u64) -> i64 {
    i64::try_from(quantity).unwrap_or(i64::MAX)
}

fn quantity(row: &Row<'_>, column: &str) -> rusqlite::Result<u64> {
    row.get::<_, i64>(column)
        .map(|value| value.try_into().unwrap_or(0))
}

fn small(row: &Row<'_>, column: &str) -> rusqlite::Result<u32> {
    row.get::<_, i64>(column)
        .map(|value| value.try_into().unwrap_or(u32::MAX))
}

fn time(row: &Row<'_>, column: &str) -> rusqlite::Result<Timestamp> {
    quantity(row, column).map(Timestamp)
}

fn round(row: &Row<'_>) -> rusqlite::Result<Round> {
    small(row, "round").map(Round)
}

fn node(row: &Row<'_>, column: &str) -> rusqlite::Result<NodeId> {
    row.get(column).map(NodeId::from_bytes)
}

fn blob(row: &Row<'_>, column: &str) -> rusqlite::Result<BlobId> {
    row.get(column).map(BlobId::from_bytes)
}

/// Cuts a text to at most `max_bytes`, at a character.
fn cut(text: &str, max_bytes: usize) -> &str {
    &text[..text.floor_char_boundary(max_bytes)]
}

/// Returns the error for a word in the database that this version does not write.
fn unknown_word(row: &Row<'_>, column: &str, word: String) -> rusqlite::Error {
    let index = row.as_ref().column_index(column).unwrap_or(0);
    rusqlite::Error::FromSqlConversionFailure(
        index,
        Type::Text,
        format!("unknown word `{word}`").into(),
    )
}
