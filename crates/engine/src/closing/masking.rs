//! Closing a round whose sum is masked.
//!
//! ```text
//! parts held ──look──► parts that fit ──propose──► words of members ──open──► mean
//! ```
//!
//! What is proposed stays so: members agree to one set of survivors in a round. If its sum cannot be opened, the round has no
//! closing, and the next one begins with new masks.

use std::sync::Arc;
use std::time::Duration;

use fednode_core::draw::DrawSeed;
use fednode_core::masked::{Proposal, Unmask};
use fednode_core::{AdvertId, Member, NodeId, Round, Timestamp};
use serde::{Deserialize, Serialize};

use super::{Base, Closer, Step};
use crate::event::{AverageOrder, Purpose};
use crate::follower::Follower;
use crate::masks::{Masked, Sum};
use crate::view::View;

/// How far the masked sum of a round is.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Masking {
    /// The adverts of members whose parts fit together.
    looked_at: Vec<AdvertId>,
    proposed: Option<Proposed>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Proposed {
    round: Round,
    proposal: Proposal,
    /// Until then everybody's word is waited for, and then no more than are needed.
    until: Timestamp,
    /// The words that the mean was ordered with.
    used: Vec<(NodeId, AdvertId)>,
    /// Its sum has no mean.
    has_failed: bool,
}

impl Masking {
    /// Returns the words that the mean was ordered with.
    pub(super) fn words_used(&self) -> Vec<(NodeId, AdvertId)> {
        let proposed = self.proposed.as_ref();
        proposed.map_or(Vec::new(), |proposed| proposed.used.clone())
    }

    /// What was ordered brought no mean: parts were looked at, or a sum cannot be opened.
    pub(super) fn on_no_mean(&mut self, ordered: &[AdvertId], is_whole: bool) {
        match &mut self.proposed {
            Some(proposed) => proposed.has_failed = true,
            None if is_whole => self.looked_at = ordered.to_vec(),
            None => {}
        }
    }
}

/// What the closing of a masked sum looks at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Surroundings<'a> {
    pub(crate) chain: &'a Follower,
    pub(crate) view: &'a View,
    pub(crate) now: Timestamp,
    /// Who closes.
    pub(crate) me: NodeId,
    /// How long everybody's word is waited for.
    pub(crate) patience: Duration,
}

impl Closer {
    /// Returns what to do next to close the round with parts that have this base, if there is anything.
    pub(crate) fn next(
        &mut self,
        base: Base,
        seed: DrawSeed,
        around: Surroundings<'_>,
    ) -> Option<Step> {
        if self.is_divided(base, seed) {
            return self.next_slices(base, seed, around);
        }
        if !self.schedule.masks() {
            return self.order_mean(base, seed).map(Step::Average);
        }
        // What an order brings decides what comes next, so there is one at a time.
        if self.is_averaging {
            return None;
        }
        if self.masked.proposed.is_some() {
            return self.open(around).map(Step::Average);
        }
        let (round, members) = self.members(base, seed);
        let sum = around.chain.sum(around.view, round)?;
        // Members agree to one set of survivors. Another proposal would get no words.
        if let Some(proposal) = standing(&sum, base, around) {
            self.take_over(round, proposal, around.now);
            return self.open(around).map(Step::Average);
        }
        // One part without its mask, or with one that nobody takes off, would make the sum a random number.
        let admits = |member: &Member| sum.admits(member.node, member.shared.id, base.parent);
        let members: Vec<Member> = members.into_iter().filter(admits).collect();
        let adverts: Vec<AdvertId> = members.iter().map(|member| member.advert).collect();
        let is_known = self.is_futile && adverts == self.ordered;
        if is_known || members.len() < self.spec.fewest_members() as usize {
            return None;
        }
        let masked = match sum.survivors(&members) {
            // Nobody is on the roster, so all parts are the mean that they started from. There is nothing to unmask.
            None => Masked::Open {
                sum: Sum::clone(&sum),
                words: Vec::new(),
            },
            Some(Err(reason)) => {
                tracing::debug!(%round, reason, "a masked sum has too few parts");
                return None;
            }
            // Parts are looked at first: members cannot agree to others once one of these turns out not to fit.
            Some(Ok(_)) if adverts == self.masked.looked_at => {
                return Some(self.propose(base, round, members, around));
            }
            Some(Ok(_)) => Masked::Look(Sum::clone(&sum)),
        };
        self.note_order(round, adverts);
        Some(Step::Average(order(round, members, masked)))
    }

    fn propose(
        &mut self,
        base: Base,
        round: Round,
        members: Vec<Member>,
        around: Surroundings<'_>,
    ) -> Step {
        let proposal = Proposal {
            members,
            parent: base.parent,
            previous: base.previous,
        };
        self.take_over(round, proposal.clone(), around.now + around.patience);
        Step::Propose(round, proposal)
    }

    /// Goes on with what was proposed, by this machine or another. Until `until` everybody's word is waited for.
    fn take_over(&mut self, round: Round, proposal: Proposal, until: Timestamp) {
        self.masked.proposed = Some(Proposed {
            round,
            proposal,
            until,
            used: Vec::new(),
            has_failed: false,
        });
    }

    /// Tells whether members were asked to take masks off, or to average slices.
    pub(crate) fn has_proposed(&self) -> bool {
        self.masked.proposed.is_some() || self.waits_for_slices()
    }

    /// Orders the mean once enough members have said what takes the masks off.
    fn open(&mut self, around: Surroundings<'_>) -> Option<AverageOrder> {
        let proposed = self.masked.proposed.as_mut()?;
        // Members agreed to these survivors and to no others, so this round has no other sum.
        if proposed.has_failed {
            return None;
        }
        let (round, members) = (proposed.round, &proposed.proposal.members);
        let sum: Arc<Sum> = around.chain.sum(around.view, round)?;
        let survivors = sum.survivors(members)?.ok()?;
        let words = around.view.unmasking(round, survivors.id());
        let is_complete = sum
            .roster()
            .is_some_and(|roster| words.len() >= roster.len());
        if !is_complete && around.now < proposed.until {
            return None;
        }
        let said: Vec<(NodeId, &Unmask)> =
            words.iter().map(|word| (word.author, word.said)).collect();
        let said = sum.true_words(&survivors, said);
        if let Err(reason) = sum.opens(&survivors, &said) {
            tracing::debug!(%round, %reason, "a masked sum waits for words");
            return None;
        }
        // Whoever follows the closing opens the sum by the words that it names. A false one would make it fail there.
        let is_true = |author| said.iter().any(|(node, _)| *node == author);
        let used = words.iter().filter(|word| is_true(word.author));
        proposed.used = used.map(|word| (word.author, word.advert)).collect();
        let adverts = members.iter().map(|member| member.advert).collect();
        let masked = Masked::Open {
            sum: Sum::clone(&sum),
            words: said
                .into_iter()
                .map(|(node, word)| (node, word.clone()))
                .collect(),
        };
        let order = order(round, members.clone(), masked);
        self.note_order(round, adverts);
        Some(order)
    }
}

/// Returns what members were asked already: what most agree to, what this machine agrees to, or what it proposed before it was
/// restarted. They agree to nothing else in this round.
fn standing(sum: &Sum, base: Base, around: Surroundings<'_>) -> Option<Proposal> {
    let round = sum.round();
    let follows =
        |proposal: &Proposal| (proposal.previous, proposal.parent) == (base.previous, base.parent);
    let mut open = around
        .view
        .proposals(round)
        .filter(|(_, said)| follows(said));
    let stands = |(author, proposal): &(NodeId, &Proposal)| {
        let Some(Ok(survivors)) = sum.survivors(&proposal.members) else {
            return false;
        };
        let agreed = around.view.agreed(round, survivors.id());
        let roster = sum.roster();
        let is_confirmed = roster.is_some_and(|it| survivors.confirmed(it, &agreed).is_ok());
        let is_own = *author == around.me || agreed.contains(&around.me);
        is_own || is_confirmed
    };
    open.find(stands).map(|(_, proposal)| proposal.clone())
}

fn order(round: Round, members: Vec<Member>, masked: Masked) -> AverageOrder {
    AverageOrder {
        round,
        purpose: Purpose::Close,
        members,
        masked: Some(Box::new(masked)),
    }
}
