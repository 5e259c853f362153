//! The signed history: each round that is over, with its closing and the update of every member that it counts. Where no mean
//! is common to all there is no closing, and the updates are those that were heard.
//!
//! Rounds that others can check must outlive the newest adverts, which are all that a running node needs. So they are copied
//! here when a round closes. The oldest rounds are deleted first.

use fednode_core::{AdvertId, NodeId, Round, SignedAdvert};
use rusqlite::{Connection, OptionalExtension, Row, Transaction, named_params};

use super::rounds::MAX_ROUNDS;
use super::{Ledger, LedgerError, node, round, stored};

/// Most bytes of signed history, but for the newest round: a thousand rounds of ten nodes that publish 6 kB each.
pub const MAX_HISTORY_BYTES: u64 = 64 << 20;

/// A round that is over, and what its members signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptRound {
    /// Which round.
    pub round: Round,
    /// The closing as it was announced; nothing where no mean is common to all.
    pub closing: Option<SignedAdvert>,
    /// The updates that it counts, by author; those that this node does not know are left out.
    pub updates: Vec<(NodeId, SignedAdvert)>,
    /// The words that took the masks off its sum, by author, where sums are masked.
    pub words: Vec<(NodeId, SignedAdvert)>,
}

impl Ledger {
    /// Returns the remembered adverts of this kind, of one round or of all, by author and in the order of their numbers.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub fn adverts_of(
        &self,
        kind: &str,
        round: Option<Round>,
    ) -> Result<Vec<(NodeId, SignedAdvert)>, LedgerError> {
        let connection = self.connection();
        let mut statement = connection.prepare_cached(
            "SELECT author, payload, signature FROM adverts WHERE kind = ?1 AND (?2 IS NULL OR round = ?2)
             ORDER BY author, incarnation, counter",
        )?;
        let adverts = statement.query_map((kind, round.map(|round| round.0)), read_update)?;
        Ok(adverts.collect::<Result<_, _>>()?)
    }

    /// Returns the updates and offers of an author that are remembered or kept with a round.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub fn updates_of(&self, author: NodeId) -> Result<Vec<SignedAdvert>, LedgerError> {
        let connection = self.connection();
        let mut statement = connection.prepare_cached(
            "SELECT payload, signature FROM counted WHERE author = ?1
             UNION SELECT payload, signature FROM adverts WHERE author = ?1 AND kind IN ('local', 'pool')",
        )?;
        let updates = statement.query_map([author.as_bytes()], read_advert)?;
        Ok(updates.collect::<Result<_, _>>()?)
    }

    /// Returns the remembered advert of this author and name.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub fn advert(
        &self,
        author: NodeId,
        name: AdvertId,
    ) -> Result<Option<SignedAdvert>, LedgerError> {
        let connection = self.connection();
        // The newest first: it is nearly always that one.
        let mut statement = connection.prepare_cached(
            "SELECT payload, signature FROM adverts WHERE author = ?1 ORDER BY incarnation DESC, counter DESC",
        )?;
        for advert in statement.query_map([author.as_bytes()], read_advert)? {
            let advert = advert?;
            if advert.id() == name {
                return Ok(Some(advert));
            }
        }
        Ok(None)
    }

    /// Keeps a round. A later closing of the same round replaces an earlier one, as in the protocol.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub fn keep_round(&self, kept: &KeptRound) -> Result<(), LedgerError> {
        let mut connection = self.connection();
        let transaction = connection.transaction()?;
        let closing = kept.closing.as_ref();
        let signed = kept.updates.iter().chain(&kept.words);
        let signed = signed.map(|(_, advert)| advert);
        transaction
            .prepare_cached("DELETE FROM closings WHERE round = ?1")?
            .execute([kept.round.0])?;
        transaction
            .prepare_cached(
                "INSERT INTO closings (round, payload, signature, bytes) VALUES (:round, :payload, :signature, :bytes)",
            )?
            .execute(named_params! {
                ":round": kept.round.0,
                ":payload": closing.map(|advert| &advert.payload),
                ":signature": closing.map(|advert| &advert.signature),
                ":bytes": closing.into_iter().chain(signed).map(size).sum::<i64>(),
            })?;
        for (author, advert) in &kept.updates {
            insert(&transaction, COUNTED, kept.round, (*author, advert))?;
        }
        for (author, advert) in &kept.words {
            insert(&transaction, UNMASKED, kept.round, (*author, advert))?;
        }
        trim(&transaction)?;
        Ok(transaction.commit()?)
    }

    /// Adds an update to a round that is kept, in place of an earlier one of its author. Without such a round nothing happens.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub fn keep_update(
        &self,
        round: Round,
        author: NodeId,
        advert: &SignedAdvert,
    ) -> Result<(), LedgerError> {
        let mut connection = self.connection();
        let transaction = connection.transaction()?;
        // An author who says it twice counts twice against the bound, which is no less safe.
        let kept = transaction
            .prepare_cached("UPDATE closings SET bytes = bytes + ?2 WHERE round = ?1")?
            .execute((round.0, size(advert)))?;
        if kept > 0 {
            insert(&transaction, COUNTED, round, (author, advert))?;
            trim(&transaction)?;
        }
        Ok(transaction.commit()?)
    }

    /// Returns the rounds that are kept, in order.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub fn kept_rounds(&self) -> Result<Vec<Round>, LedgerError> {
        let connection = self.connection();
        // The ledger of an earlier release that is only looked at has no history.
        if !connection.table_exists(None, "closings")? {
            return Ok(Vec::new());
        }
        let mut statement =
            connection.prepare_cached("SELECT round FROM closings ORDER BY round")?;
        let rounds = statement.query_map([], round)?;
        Ok(rounds.collect::<Result<_, _>>()?)
    }

    /// Returns a round that is kept.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub fn kept_round(&self, round: Round) -> Result<Option<KeptRound>, LedgerError> {
        let connection = self.connection();
        let closing = connection
            .prepare_cached("SELECT payload, signature FROM closings WHERE round = ?1")?
            .query_row([round.0], read_closing)
            .optional()?;
        let Some(closing) = closing else {
            return Ok(None);
        };
        let mut statement = connection.prepare_cached(
            "SELECT author, payload, signature FROM counted WHERE round = ?1 ORDER BY author",
        )?;
        let updates = statement.query_map([round.0], read_update)?;
        Ok(Some(KeptRound {
            round,
            closing,
            updates: updates.collect::<Result<_, _>>()?,
            words: words(&connection, round)?,
        }))
    }
}

fn size(advert: &SignedAdvert) -> i64 {
    stored((advert.payload.len() + advert.signature.len()) as u64)
}

/// Keeps an update of a round.
const COUNTED: &str =
    "INSERT OR REPLACE INTO counted (round, author, payload, signature) VALUES (?1, ?2, ?3, ?4)";
/// Keeps a word that took masks off in a round.
const UNMASKED: &str =
    "INSERT OR REPLACE INTO unmasked (round, author, payload, signature) VALUES (?1, ?2, ?3, ?4)";

fn insert(
    transaction: &Transaction<'_>,
    into: &str,
    round: Round,
    (author, advert): (NodeId, &SignedAdvert),
) -> Result<(), LedgerError> {
    let values = (
        round.0,
        author.as_bytes(),
        &advert.payload,
        &advert.signature,
    );
    transaction.prepare_cached(into)?.execute(values)?;
    Ok(())
}

/// Returns the words that took the masks off the sum of a round.
fn words(
    connection: &Connection,
    round: Round,
) -> Result<Vec<(NodeId, SignedAdvert)>, LedgerError> {
    // The ledger of an earlier release that is only looked at has none.
    if !connection.table_exists(None, "unmasked")? {
        return Ok(Vec::new());
    }
    let mut statement = connection.prepare_cached(
        "SELECT author, payload, signature FROM unmasked WHERE round = ?1 ORDER BY author",
    )?;
    let words = statement.query_map([round.0], read_update)?;
    Ok(words.collect::<Result<_, _>>()?)
}

fn read_update(row: &Row<'_>) -> rusqlite::Result<(NodeId, SignedAdvert)> {
    Ok((node(row, "author")?, read_advert(row)?))
}

fn read_closing(row: &Row<'_>) -> rusqlite::Result<Option<SignedAdvert>> {
    let payload: Option<Vec<u8>> = row.get("payload")?;
    let signature: Option<Vec<u8>> = row.get("signature")?;
    Ok(payload
        .zip(signature)
        .map(|(payload, signature)| SignedAdvert { payload, signature }))
}

fn read_advert(row: &Row<'_>) -> rusqlite::Result<SignedAdvert> {
    Ok(SignedAdvert {
        payload: row.get("payload")?,
        signature: row.get("signature")?,
    })
}

/// Drops the oldest rounds beyond the bounds; the newest always stays.
fn trim(transaction: &Transaction<'_>) -> Result<(), LedgerError> {
    transaction
        .prepare_cached(
            "DELETE FROM closings WHERE round IN (SELECT round FROM
             (SELECT round, row_number() OVER newest AS place, sum(bytes) OVER newest AS total FROM closings
              WINDOW newest AS (ORDER BY round DESC))
             WHERE place > 1 AND (place > ?1 OR total > ?2))",
        )?
        .execute((MAX_ROUNDS, stored(MAX_HISTORY_BYTES)))?;
    Ok(())
}
