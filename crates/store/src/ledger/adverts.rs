//! The newest adverts of every author, as they were signed. Sync hands them on, and they decide about freshness.
//!
//! Withdrawals and the answers to them are kept beside: an audit looks at them long after.
//!
//! Only accepted adverts are kept, so authors are members. A peer chooses its sequence numbers from all of `u64`. They are
//! kept as big-endian bytes, which sort as numbers do. So no choice of a peer is an error here.

use std::collections::BTreeMap;

use fednode_core::{Advert, Body, NodeId, Sequence, SignedAdvert};
use rusqlite::{Row, Transaction, named_params};

use super::{Ledger, LedgerError, node, stored};

/// Adverts kept of one author: twice as many as an author may publish about one round.
pub const ADVERTS_PER_AUTHOR: u32 = 16;
/// Withdrawals that are kept of one author beside these, and answers to withdrawals of others.
const WITHDRAWALS_PER_AUTHOR: u32 = 16;
const ANSWERS_PER_AUTHOR: u32 = 64;
/// Largest number of remembered authors. Beyond it the authors whose adverts expire first are dropped.
pub const MAX_AUTHORS: u32 = 1024;

impl Ledger {
    /// Keeps an accepted advert and tells whether it is new. Of two with the same number the first stays.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub fn remember_advert(
        &self,
        advert: &Advert,
        signed: &SignedAdvert,
    ) -> Result<bool, LedgerError> {
        let mut connection = self.connection();
        let transaction = connection.transaction()?;
        let inserted = transaction
            .prepare_cached(
                "INSERT INTO adverts (author, incarnation, counter, round, kind, expires_at, payload, signature)
                 VALUES (:author, :incarnation, :counter, :round, :kind, :expires_at, :payload, :signature)
                 ON CONFLICT DO NOTHING",
            )?
            .execute(named_params! {
                ":author": advert.author.as_bytes(),
                ":incarnation": advert.sequence.incarnation.to_be_bytes(),
                ":counter": advert.sequence.counter.to_be_bytes(),
                ":round": advert.round.0,
                ":kind": advert.body.kind(),
                ":expires_at": stored(advert.expires_at.0),
                ":payload": signed.payload,
                ":signature": signed.signature,
            })?;
        if inserted > 0 {
            trim_author(&transaction, advert)?;
            trim_authors(&transaction, advert.author)?;
        }
        transaction.commit()?;
        Ok(inserted > 0)
    }

    /// Returns all remembered adverts, by author and in the order of their numbers.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub fn known_adverts(&self) -> Result<Vec<SignedAdvert>, LedgerError> {
        let connection = self.connection();
        let mut statement = connection.prepare_cached(
            "SELECT payload, signature FROM adverts ORDER BY author, incarnation, counter",
        )?;
        let read = |row: &Row<'_>| {
            Ok(SignedAdvert {
                payload: row.get("payload")?,
                signature: row.get("signature")?,
            })
        };
        let adverts = statement.query_map([], read)?.collect::<Result<_, _>>()?;
        Ok(adverts)
    }

    /// Returns the newest number of every author. Older adverts must not be accepted.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub fn highest(&self) -> Result<BTreeMap<NodeId, Sequence>, LedgerError> {
        let connection = self.connection();
        let mut statement = connection
            .prepare_cached("SELECT author, incarnation, counter FROM adverts ORDER BY author, incarnation, counter")?;
        // In ascending order the last of every author wins.
        let highest = statement
            .query_map([], read_sequence)?
            .collect::<Result<_, _>>()?;
        Ok(highest)
    }
}

fn read_sequence(row: &Row<'_>) -> rusqlite::Result<(NodeId, Sequence)> {
    let number = |column| row.get(column).map(u64::from_be_bytes);
    Ok((
        node(row, "author")?,
        Sequence {
            incarnation: number("incarnation")?,
            counter: number("counter")?,
        },
    ))
}

/// Drops the oldest adverts of an author that are like this one: withdrawals, answers to them, or anything else.
fn trim_author(transaction: &Transaction<'_>, newest: &Advert) -> Result<(), LedgerError> {
    const OF_WITHDRAWALS: [&str; 2] = ["withdraw", "removed"];
    let kind = newest.body.kind();
    let most = match &newest.body {
        Body::Withdraw(_) => WITHDRAWALS_PER_AUTHOR,
        Body::Removed(_) => ANSWERS_PER_AUTHOR,
        _ => ADVERTS_PER_AUTHOR,
    };
    let mut statement = transaction.prepare_cached(
        "DELETE FROM adverts WHERE rowid IN (SELECT rowid FROM adverts
         WHERE author = ?1 AND (kind = ?2 OR (?3 AND kind NOT IN ('withdraw', 'removed')))
         ORDER BY incarnation DESC, counter DESC LIMIT -1 OFFSET ?4)",
    )?;
    let is_other = !OF_WITHDRAWALS.contains(&kind);
    statement.execute((newest.author.as_bytes(), kind, is_other, most))?;
    Ok(())
}

fn trim_authors(transaction: &Transaction<'_>, spared: NodeId) -> Result<(), LedgerError> {
    let count: u32 = transaction
        .prepare_cached("SELECT count(DISTINCT author) FROM adverts")?
        .query_row([], |row| row.get(0))?;
    if count > MAX_AUTHORS {
        let mut statement = transaction.prepare_cached(
            "DELETE FROM adverts WHERE author IN (SELECT author FROM adverts WHERE author <> ?1
             GROUP BY author ORDER BY max(expires_at) LIMIT ?2)",
        )?;
        statement.execute((spared.as_bytes(), count - MAX_AUTHORS))?;
    }
    Ok(())
}
