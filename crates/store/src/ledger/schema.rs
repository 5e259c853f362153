//! The tables, their migrations, and the handling of a damaged file.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags};
use tracing::warn;

use super::LedgerError;
use crate::disk::with_path;

/// How long a write waits for the end of another process's read transaction.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Largest write-ahead log that stays after it was folded into the database.
const MAX_JOURNAL_BYTES: i64 = 4 << 20;

/// Step n leads from schema n to n+1. Steps are never edited once released, only added.
const MIGRATIONS: &[&str] = &[
    "
CREATE TABLE rounds (
    round INTEGER PRIMARY KEY,
    started INTEGER,                -- ms since the epoch, as all times
    closed_at INTEGER,
    closed_by BLOB,                 -- node id
    members INTEGER,
    mean BLOB,                      -- blob id of the result
    mean_bytes INTEGER,
    history INTEGER                 -- members counted so far on this chain
) STRICT;
CREATE TABLE metrics (
    round INTEGER NOT NULL REFERENCES rounds(round) ON DELETE CASCADE,
    name TEXT NOT NULL,
    value REAL,                     -- NULL is not a number
    PRIMARY KEY (round, name)
) STRICT, WITHOUT ROWID;
CREATE TABLE peers (
    node BLOB PRIMARY KEY,
    first_seen INTEGER NOT NULL,
    last_seen INTEGER NOT NULL,
    role TEXT,                      -- NULL until a hello was heard
    strikes INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE transfers (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    round INTEGER NOT NULL,
    blob BLOB NOT NULL,
    bytes INTEGER NOT NULL,
    source BLOB NOT NULL,           -- node id
    seconds REAL NOT NULL,
    kind TEXT NOT NULL
) STRICT;
CREATE INDEX transfers_by_round ON transfers(round);
CREATE TABLE events (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    time INTEGER NOT NULL,
    level TEXT NOT NULL,
    text TEXT NOT NULL
) STRICT;
CREATE TABLE adverts (
    author BLOB NOT NULL,
    incarnation BLOB NOT NULL,      -- 8 bytes, big-endian: all of u64, and sorts as numbers do
    counter BLOB NOT NULL,          -- the same
    round INTEGER NOT NULL,
    kind TEXT NOT NULL,
    expires_at INTEGER NOT NULL,
    payload BLOB NOT NULL,
    signature BLOB NOT NULL,
    PRIMARY KEY (author, incarnation, counter)
) STRICT;
",
    "
ALTER TABLE rounds DROP COLUMN history;
",
    "
CREATE TABLE closings (
    round INTEGER PRIMARY KEY,
    payload BLOB,                   -- the closing; NULL where no mean is common to all
    signature BLOB,
    bytes INTEGER NOT NULL          -- of the closing and of the updates
) STRICT;
CREATE TABLE counted (
    round INTEGER NOT NULL REFERENCES closings(round) ON DELETE CASCADE,
    author BLOB NOT NULL,
    payload BLOB NOT NULL,
    signature BLOB NOT NULL,
    PRIMARY KEY (round, author)
) STRICT;
CREATE INDEX adverts_by_kind ON adverts(kind, round);
",
    "
CREATE TABLE unmasked (
    round INTEGER NOT NULL REFERENCES closings(round) ON DELETE CASCADE,
    author BLOB NOT NULL,
    payload BLOB NOT NULL,
    signature BLOB NOT NULL,
    PRIMARY KEY (round, author)
) STRICT;
",
];

/// The oldest schema that can be looked at as it is: later steps only add tables and indexes, and whoever
/// reads those tables copes without.
const READABLE: i64 = 2;

/// Opens, checks and migrates the database.
///
/// A damaged file is moved aside and a new one begun, with a line for the user.
pub(super) fn open(path: &Path) -> Result<(Connection, Option<String>), LedgerError> {
    match open_checked(path) {
        Err(error) if is_damage(&error) => {
            let aside = move_aside(path)?;
            let warning = format!(
                "the run ledger was damaged ({error}) and begun anew; the old one is {}. Its history is gone, and the \
                 memory of which adverts were already seen: until they expire, old ones may be accepted once more",
                aside.display()
            );
            warn!("{warning}");
            Ok((open_checked(path)?, Some(warning)))
        }
        opened => Ok((opened?, None)),
    }
}

pub(super) fn open_read_only(path: &Path) -> Result<Connection, LedgerError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    match version(&connection)? {
        0 => Err(LedgerError::Damaged(
            "it is empty, since its log `ledger.sqlite-wal` is not beside it".to_owned(),
        )),
        found if found < READABLE => Err(LedgerError::Older(found)),
        found => check_newer(found).map(|()| connection),
    }
}

fn open_checked(path: &Path) -> Result<Connection, LedgerError> {
    let mut connection = Connection::open(path)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    // In write-ahead mode a power cut then costs at most the last commits, and never damages the file.
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.pragma_update(None, "foreign_keys", "ON")?;
    connection.pragma_update_and_check(
        None,
        "journal_size_limit",
        MAX_JOURNAL_BYTES,
        |_| Ok(()),
    )?;
    let verdict: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if verdict != "ok" {
        return Err(LedgerError::Damaged(
            verdict.lines().next_back().unwrap_or_default().to_owned(),
        ));
    }
    migrate(&mut connection)?;
    Ok(connection)
}

fn migrate(connection: &mut Connection) -> Result<(), LedgerError> {
    let found = version(connection)?;
    check_newer(found)?;
    for (step, sql) in (0..).zip(MIGRATIONS).skip_while(|(step, _)| *step < found) {
        let transaction = connection.transaction()?;
        transaction.execute_batch(sql)?;
        transaction.pragma_update(None, "user_version", step + 1)?;
        transaction.commit()?;
    }
    Ok(())
}

fn version(connection: &Connection) -> Result<i64, LedgerError> {
    Ok(connection.pragma_query_value(None, "user_version", |row| row.get(0))?)
}

fn newest() -> i64 {
    i64::try_from(MIGRATIONS.len()).expect("migrations are few")
}

fn check_newer(found: i64) -> Result<(), LedgerError> {
    if found > newest() {
        Err(LedgerError::Newer {
            found,
            supported: newest(),
        })
    } else {
        Ok(())
    }
}

fn is_damage(error: &LedgerError) -> bool {
    match error {
        LedgerError::Damaged(_) => true,
        LedgerError::Sqlite(error) => {
            matches!(
                error.sqlite_error_code(),
                Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
            )
        }
        _ => false,
    }
}

/// Renames the database and removes its logs. Only the last damaged one is kept.
fn move_aside(path: &Path) -> io::Result<PathBuf> {
    let with_suffix = |suffix: &str| {
        let mut name = OsString::from(path);
        name.push(suffix);
        PathBuf::from(name)
    };
    let aside = with_suffix(".corrupt");
    fs::rename(path, &aside).map_err(|error| with_path(error, path))?;
    for suffix in ["-wal", "-shm"] {
        let log = with_suffix(suffix);
        match fs::remove_file(&log) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(with_path(error, &log));
            }
            _ => {}
        }
    }
    Ok(aside)
}
