//! The peers that this node met, and their strikes.

use fednode_core::{NodeId, Role, Timestamp};
use rusqlite::{Row, named_params};

use super::{Ledger, LedgerError, node, small, time, unknown_word};
use crate::ledger::stored;

/// Largest number of remembered peers. Beyond it peers without strikes are dropped first, longest unseen first.
///
/// New names cost a cheat nothing, so they must not push out the record of its old name.
pub const MAX_PEERS: u32 = 4096;

/// A peer of the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerRecord {
    /// Who.
    pub node: NodeId,
    /// When it was first met.
    pub first_seen: Timestamp,
    /// When it was last met.
    pub last_seen: Timestamp,
    /// The role in its hello; absent if it never sent one.
    pub role: Option<Role>,
    /// Its strikes so far.
    pub strikes: u32,
}

impl Ledger {
    /// Notes that a peer was met.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub fn saw_peer(&self, peer: NodeId, role: Role, at: Timestamp) -> Result<(), LedgerError> {
        self.upsert_peer(peer, Some(role), at, 0).map(|_| ())
    }

    /// Adds strikes to a peer, met or not, and returns how many it has.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub fn strike_peer(
        &self,
        peer: NodeId,
        strikes: u32,
        at: Timestamp,
    ) -> Result<u32, LedgerError> {
        self.upsert_peer(peer, None, at, strikes)
    }

    fn upsert_peer(
        &self,
        peer: NodeId,
        role: Option<Role>,
        at: Timestamp,
        strikes: u32,
    ) -> Result<u32, LedgerError> {
        let mut connection = self.connection();
        let transaction = connection.transaction()?;
        let total = transaction
            .prepare_cached(
                "INSERT INTO peers (node, first_seen, last_seen, role, strikes)
                 VALUES (:node, :at, :at, :role, :strikes)
                 ON CONFLICT (node) DO UPDATE SET last_seen = max(last_seen, excluded.last_seen),
                 role = coalesce(excluded.role, role), strikes = min(strikes + excluded.strikes, 4294967295)
                 RETURNING strikes",
            )?
            .query_row(
                named_params! {
                    ":node": peer.as_bytes(),
                    ":at": stored(at.0),
                    ":role": role.map(role_word),
                    ":strikes": strikes,
                },
                |row| small(row, "strikes"),
            )?;
        let count: u32 = transaction
            .prepare_cached("SELECT count(*) FROM peers")?
            .query_row([], |row| row.get(0))?;
        if count > MAX_PEERS {
            transaction
                .prepare_cached(
                    "DELETE FROM peers WHERE node IN (SELECT node FROM peers WHERE node <> ?1
                     ORDER BY strikes > 0, last_seen LIMIT ?2)",
                )?
                .execute((peer.as_bytes(), count - MAX_PEERS))?;
        }
        transaction.commit()?;
        Ok(total)
    }

    /// Returns all peers, the last seen first.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub fn peers(&self) -> Result<Vec<PeerRecord>, LedgerError> {
        let connection = self.connection();
        let mut statement =
            connection.prepare_cached("SELECT * FROM peers ORDER BY last_seen DESC, node")?;
        let records = statement
            .query_map([], read_peer)?
            .collect::<Result<_, _>>()?;
        Ok(records)
    }
}

fn read_peer(row: &Row<'_>) -> rusqlite::Result<PeerRecord> {
    let role: Option<String> = row.get("role")?;
    Ok(PeerRecord {
        node: node(row, "node")?,
        first_seen: time(row, "first_seen")?,
        last_seen: time(row, "last_seen")?,
        role: role.map(|word| read_role(row, word)).transpose()?,
        strikes: small(row, "strikes")?,
    })
}

const fn role_word(role: Role) -> &'static str {
    match role {
        Role::Node => "node",
        Role::Aggregator => "aggregator",
    }
}

fn read_role(row: &Row<'_>, word: String) -> rusqlite::Result<Role> {
    let roles = [Role::Node, Role::Aggregator];
    roles
        .into_iter()
        .find(|role| role_word(*role) == word)
        .ok_or_else(|| unknown_word(row, "role", word))
}
