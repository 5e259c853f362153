//! What members have taken back, and what the signed words of the others say of it.

use std::collections::{BTreeMap, BTreeSet};

use fednode_core::{Accepted, AdvertId, BlobId, Body, NodeId, Round, Timestamp};
use fednode_store::{Ledger, LedgerError};
use serde::Serialize;

use super::{AuditedRound, Auditor};

/// A withdrawal, and what became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AuditedWithdrawal {
    /// Who took its blobs back.
    pub owner: NodeId,
    /// In which round.
    pub round: Round,
    /// When, by its clock.
    pub at: Timestamp,
    /// The advert that says so.
    pub advert: AdvertId,
    /// What it takes back, by hash.
    pub blobs: Vec<BlobId>,
    /// The newest word of everybody who has answered.
    pub answers: Vec<RemovalAnswer>,
    /// Who published an update in the round before it, in that round or in the next, and has not answered.
    pub silent: Vec<NodeId>,
    /// The later rounds whose closing counts one of these blobs all the same.
    pub counted_in: Vec<Round>,
}

/// A member's word that it has deleted what was taken back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RemovalAnswer {
    /// Whose.
    pub by: NodeId,
    /// When, by its clock.
    pub at: Timestamp,
    /// How many blobs it kept, because a closed round counted them or somebody else had published the same.
    pub kept: u32,
}

impl Auditor<'_> {
    /// Returns the withdrawals of which a signed advert is remembered, oldest first.
    pub(super) fn withdrawals(
        &mut self,
        ledger: &Ledger,
        rounds: &[AuditedRound],
    ) -> Result<Vec<AuditedWithdrawal>, LedgerError> {
        let mut answers: BTreeMap<AdvertId, BTreeMap<NodeId, RemovalAnswer>> = BTreeMap::new();
        for advert in self.signed(ledger, "removed")? {
            let Body::Removed(removed) = &advert.body else {
                continue;
            };
            for removal in &removed.removals {
                // Adverts of one author come in their order, so the newest stays.
                let answer = RemovalAnswer {
                    by: advert.author,
                    at: advert.issued_at,
                    kept: removal.kept,
                };
                let known = answers.entry(removal.withdrawn).or_default();
                known.insert(advert.author, answer);
            }
        }
        let mut withdrawals = Vec::new();
        for advert in self.signed(ledger, "withdraw")? {
            let Body::Withdraw(withdraw) = &advert.body else {
                continue;
            };
            let answers = answers.remove(&advert.id).unwrap_or_default();
            let asked = members_around(advert.round, rounds);
            let silent = asked.filter(|node| *node != advert.author && !answers.contains_key(node));
            withdrawals.push(AuditedWithdrawal {
                owner: advert.author,
                round: advert.round,
                at: advert.issued_at,
                advert: advert.id,
                blobs: withdraw.blobs.clone(),
                silent: silent.collect::<BTreeSet<_>>().into_iter().collect(),
                answers: answers.into_values().collect(),
                counted_in: counted_in(&advert, &withdraw.blobs, rounds),
            });
        }
        withdrawals.sort_by_key(|withdrawal| (withdrawal.at, withdrawal.owner));
        Ok(withdrawals)
    }
}

/// Visits who published an update in the round before this one, in it or in the next: whoever came later never heard of it.
fn members_around(round: Round, rounds: &[AuditedRound]) -> impl Iterator<Item = NodeId> + '_ {
    let around = round.0.saturating_sub(1)..=round.0.saturating_add(1);
    let then = rounds
        .iter()
        .filter(move |row| around.contains(&row.round.0));
    then.flat_map(|row| row.updates.iter().map(|update| update.node))
}

/// Returns the rounds after a withdrawal in which its owner is counted with what it took back.
fn counted_in(withdrawal: &Accepted, blobs: &[BlobId], rounds: &[AuditedRound]) -> Vec<Round> {
    let later = rounds.iter().filter(|row| row.round > withdrawal.round);
    let counts = |row: &&AuditedRound| {
        let mut own = row.updates.iter();
        own.any(|update| {
            update.node == withdrawal.author && update.blobs.iter().any(|blob| blobs.contains(blob))
        })
    };
    later.filter(counts).map(|row| row.round).collect()
}
