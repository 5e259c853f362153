//! The received blobs: from whom, and how fast.

use std::time::Duration;

use fednode_core::{BlobRef, NodeId, Round};
use rusqlite::{Row, named_params};

use super::{Ledger, LedgerError, blob, node, quantity, round, stored, unknown_word};

/// Most transfers remembered: 1,000 rounds of 100 blobs.
pub const MAX_TRANSFERS: u32 = 100_000;

/// The purpose of a received blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TransferKind {
    /// A shared part: a member's, or the mean.
    Shared,
    /// An expert.
    Expert,
    /// Gating proxies.
    Proxies,
    /// Class statistics.
    Statistics,
    /// A member of the pool.
    Pool,
    /// Any other blob, for example one that a user requested.
    Other,
}

impl TransferKind {
    const ALL: [Self; 6] = [
        Self::Shared,
        Self::Expert,
        Self::Proxies,
        Self::Statistics,
        Self::Pool,
        Self::Other,
    ];

    /// Returns it as one word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Expert => "expert",
            Self::Proxies => "proxies",
            Self::Statistics => "statistics",
            Self::Pool => "pool",
            Self::Other => "other",
        }
    }
}

/// One received blob, or the part of it that one provider sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Transfer {
    /// For which round.
    pub round: Round,
    /// The blob; its size is the number of bytes that this provider sent.
    pub blob: BlobRef,
    /// Who sent it.
    pub source: NodeId,
    /// How long it took.
    pub duration: Duration,
    /// What it is.
    pub kind: TransferKind,
}

impl Ledger {
    /// Notes a finished transfer.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub fn record_transfer(&self, transfer: &Transfer) -> Result<(), LedgerError> {
        let mut connection = self.connection();
        let transaction = connection.transaction()?;
        transaction
            .prepare_cached(
                "INSERT INTO transfers (round, blob, bytes, source, seconds, kind)
                 VALUES (:round, :blob, :bytes, :source, :seconds, :kind)",
            )?
            .execute(named_params! {
                ":round": transfer.round.0,
                ":blob": transfer.blob.id.as_bytes(),
                ":bytes": stored(transfer.blob.size),
                ":source": transfer.source.as_bytes(),
                ":seconds": transfer.duration.as_secs_f64(),
                ":kind": transfer.kind.word(),
            })?;
        let oldest = transaction.last_insert_rowid() - i64::from(MAX_TRANSFERS);
        transaction
            .prepare_cached("DELETE FROM transfers WHERE id <= ?1")?
            .execute([oldest])?;
        Ok(transaction.commit()?)
    }

    /// Returns the transfers of a round in the order they ended.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub fn transfers(&self, round: Round) -> Result<Vec<Transfer>, LedgerError> {
        let connection = self.connection();
        let mut statement =
            connection.prepare_cached("SELECT * FROM transfers WHERE round = ?1 ORDER BY id")?;
        let records = statement
            .query_map([round.0], read_transfer)?
            .collect::<Result<_, _>>()?;
        Ok(records)
    }
}

fn read_transfer(row: &Row<'_>) -> rusqlite::Result<Transfer> {
    Ok(Transfer {
        round: round(row)?,
        blob: BlobRef {
            id: blob(row, "blob")?,
            size: quantity(row, "bytes")?,
        },
        source: node(row, "source")?,
        duration: Duration::try_from_secs_f64(row.get("seconds")?).unwrap_or_default(),
        kind: read_kind(row)?,
    })
}

fn read_kind(row: &Row<'_>) -> rusqlite::Result<TransferKind> {
    let word: String = row.get("kind")?;
    TransferKind::ALL
        .into_iter()
        .find(|kind| kind.word() == word)
        .ok_or_else(|| unknown_word(row, "kind", word))
}
