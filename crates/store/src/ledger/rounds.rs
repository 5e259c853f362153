//! Rounds and their numbers.

use fednode_core::{BlobRef, NodeId, Round, Timestamp};
use rusqlite::{Connection, OptionalExtension, Row, named_params};

use super::{Ledger, LedgerError, blob, cut, node, quantity, round, small, stored, time};

/// Most rounds remembered, with their numbers.
pub const MAX_ROUNDS: u32 = 10_000;
/// Longest name of a metric.
const MAX_METRIC_NAME_BYTES: usize = 128;

/// A round as it was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClosedRound {
    /// When, by the clock of this node.
    pub closed_at: Timestamp,
    /// The author of the `Global` advert.
    pub closed_by: NodeId,
    /// How many nodes were averaged.
    pub members: u32,
    /// The result.
    pub mean: BlobRef,
}

/// A round of the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundRecord {
    /// Which one.
    pub round: Round,
    /// When this node started it; absent if it joined later.
    pub started: Option<Timestamp>,
    /// How it was closed; absent while it is open.
    pub closed: Option<ClosedRound>,
}

/// A number of the ledger.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricRecord {
    /// The round it belongs to.
    pub round: Round,
    /// Its name.
    pub name: String,
    /// Its value, possibly not a number.
    pub value: f64,
}

impl Ledger {
    /// Notes that a round was started. A second start after a restart keeps the first time.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub fn start_round(&self, round: Round, at: Timestamp) -> Result<(), LedgerError> {
        let connection = self.connection();
        let mut statement = connection.prepare_cached(
            "INSERT INTO rounds (round, started) VALUES (:round, :at)
             ON CONFLICT (round) DO UPDATE SET started = coalesce(started, excluded.started)",
        )?;
        statement.execute(named_params! {":round": round.0, ":at": stored(at.0)})?;
        trim(&connection)
    }

    /// Notes how a round was closed. A later closing replaces an earlier one, as in the protocol.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub fn close_round(&self, round: Round, closed: &ClosedRound) -> Result<(), LedgerError> {
        let connection = self.connection();
        let mut statement = connection.prepare_cached(
            "INSERT INTO rounds (round, closed_at, closed_by, members, mean, mean_bytes)
             VALUES (:round, :closed_at, :closed_by, :members, :mean, :mean_bytes)
             ON CONFLICT (round) DO UPDATE SET closed_at = excluded.closed_at, closed_by = excluded.closed_by,
             members = excluded.members, mean = excluded.mean, mean_bytes = excluded.mean_bytes",
        )?;
        statement.execute(named_params! {
            ":round": round.0,
            ":closed_at": stored(closed.closed_at.0),
            ":closed_by": closed.closed_by.as_bytes(),
            ":members": closed.members,
            ":mean": closed.mean.id.as_bytes(),
            ":mean_bytes": stored(closed.mean.size),
        })?;
        trim(&connection)
    }

    /// Returns all rounds in order.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub fn rounds(&self) -> Result<Vec<RoundRecord>, LedgerError> {
        let connection = self.connection();
        let mut statement = connection.prepare_cached("SELECT * FROM rounds ORDER BY round")?;
        let records = statement
            .query_map([], read_round)?
            .collect::<Result<_, _>>()?;
        Ok(records)
    }

    /// Returns the newest round that was started or closed.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub fn last_round(&self) -> Result<Option<RoundRecord>, LedgerError> {
        let connection = self.connection();
        let mut statement =
            connection.prepare_cached("SELECT * FROM rounds ORDER BY round DESC LIMIT 1")?;
        Ok(statement.query_row([], read_round).optional()?)
    }

    /// Notes numbers of a round, all or none. A second value of the same name replaces the first.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub fn record_metrics(&self, round: Round, metrics: &[(&str, f64)]) -> Result<(), LedgerError> {
        let mut connection = self.connection();
        let transaction = connection.transaction()?;
        transaction
            .prepare_cached("INSERT INTO rounds (round) VALUES (?1) ON CONFLICT DO NOTHING")?
            .execute([round.0])?;
        for (name, value) in metrics {
            let name = cut(name, MAX_METRIC_NAME_BYTES);
            // SQLite stores a NaN as NULL.
            transaction
                .prepare_cached(
                    "INSERT OR REPLACE INTO metrics (round, name, value) VALUES (?1, ?2, ?3)",
                )?
                .execute((round.0, name, value))?;
        }
        Ok(transaction.commit()?)
    }

    /// Returns the numbers of all rounds from `first` on, in order of round and name.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub fn metrics(&self, first: Round) -> Result<Vec<MetricRecord>, LedgerError> {
        let connection = self.connection();
        let mut statement = connection
            .prepare_cached("SELECT * FROM metrics WHERE round >= ?1 ORDER BY round, name")?;
        let read = |row: &Row<'_>| {
            let value: Option<f64> = row.get("value")?;
            Ok(MetricRecord {
                round: round(row)?,
                name: row.get("name")?,
                value: value.unwrap_or(f64::NAN),
            })
        };
        let records = statement
            .query_map([first.0], read)?
            .collect::<Result<_, _>>()?;
        Ok(records)
    }
}

/// Forgets the oldest rounds, and with them their numbers.
fn trim(connection: &Connection) -> Result<(), LedgerError> {
    let mut statement = connection
        .prepare_cached("DELETE FROM rounds WHERE round <= (SELECT max(round) FROM rounds) - ?1")?;
    statement.execute([MAX_ROUNDS])?;
    Ok(())
}

fn read_round(row: &Row<'_>) -> rusqlite::Result<RoundRecord> {
    let is_closed = row.get::<_, Option<i64>>("closed_at")?.is_some();
    let is_started = row.get::<_, Option<i64>>("started")?.is_some();
    let read_closed = || {
        Ok::<_, rusqlite::Error>(ClosedRound {
            closed_at: time(row, "closed_at")?,
            closed_by: node(row, "closed_by")?,
            members: small(row, "members")?,
            mean: BlobRef {
                id: blob(row, "mean")?,
                size: quantity(row, "mean_bytes")?,
            },
        })
    };
    Ok(RoundRecord {
        round: round(row)?,
        started: is_started.then(|| time(row, "started")).transpose()?,
        closed: is_closed.then(read_closed).transpose()?,
    })
}
