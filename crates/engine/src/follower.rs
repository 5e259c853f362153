//! The chain of closed rounds that a machine follows: its head, and the next one to follow.
//!
//! A small machine that nodes and aggregators share. What they differ in is an argument: which announced rounds are
//! considered, and which of two good ones is better. [`crate::chain`] judges a single round.

use std::collections::VecDeque;
use std::sync::Arc;

use fednode_core::masked::Proposal;
use fednode_core::{AdvertId, BlobRef, Body, ClosingId, Global, Lineage, NodeId, Round, shared};
use serde::{Deserialize, Serialize};

use crate::certificate;
use crate::chain::{self, Judge, Verdict};
use crate::closing::{Base, Mean};
use crate::event::Lacking;
use crate::masks::{Masked, Sum, Sums};
use crate::state::Head;
use crate::support::Fork;
use crate::view::View;

/// A closed round as somebody announced it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Announced<'a> {
    pub(crate) author: NodeId,
    pub(crate) round: Round,
    /// The advert that says it.
    pub(crate) advert: AdvertId,
    /// The name of the closing.
    pub(crate) id: ClosingId,
    pub(crate) global: &'a Arc<Global>,
}

/// A closed round that a machine looks into.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Closed {
    pub(crate) author: NodeId,
    pub(crate) round: Round,
    pub(crate) advert: AdvertId,
    #[serde(with = "shared")]
    pub(crate) global: Arc<Global>,
}

impl Closed {
    /// Tells whether an author means this closing.
    pub(crate) fn is(&self, author: NodeId, global: &Global) -> bool {
        self.author == author && *self.global == *global
    }

    /// Returns its name.
    pub(crate) fn id(&self) -> ClosingId {
        self.global.id(self.round)
    }

    /// Returns what was announced.
    pub(crate) fn announced(&self) -> Announced<'_> {
        Announced {
            author: self.author,
            round: self.round,
            advert: self.advert,
            id: self.id(),
            global: &self.global,
        }
    }
}

impl From<Announced<'_>> for Closed {
    fn from(said: Announced<'_>) -> Self {
        Self {
            author: said.author,
            round: said.round,
            advert: said.advert,
            global: Arc::clone(said.global),
        }
    }
}

/// What a look at all announced rounds yields.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// The round to follow.
    pub(crate) best: Option<Closed>,
    /// Rounds that are false, with their authors, and why.
    pub(crate) false_ones: Vec<(NodeId, ClosingId, String)>,
    /// Whether a round may be good later: once more was heard of its members, or more time has passed.
    pub(crate) is_unconfirmed: bool,
    /// Whether something is lacking that such a round names.
    lacks_evidence: bool,
    /// Whether another chain may get more votes.
    pub(crate) is_outvoted: bool,
    /// Adverts that closings name and that were not heard.
    pub(crate) lacking: Vec<Lacking>,
}

impl Judge<'_> {
    /// Looks for the best round to follow among those that were announced.
    pub(crate) fn look<'v>(
        &self,
        announced: impl Iterator<Item = Announced<'v>>,
        is_better: impl Fn(Announced<'v>, Announced<'v>) -> bool,
    ) -> Found {
        let mut found = Found::default();
        let mut best: Option<Announced<'v>> = None;
        for said in announced {
            match self.judge(said) {
                Verdict::Next | Verdict::Switch => {
                    // The first of two equals stays, so that a node does not change its mind for nothing.
                    if best.is_none_or(|known| is_better(said, known)) {
                        best = Some(said);
                    }
                }
                Verdict::False(reason) => {
                    found.false_ones.push((said.author, said.id, reason));
                }
                Verdict::Unconfirmed(adverts) => {
                    found.is_unconfirmed = true;
                    found.lacks_evidence |= !adverts.is_empty();
                    found.lacking.extend(adverts);
                }
                Verdict::Outvoted(adverts) => {
                    found.is_outvoted = true;
                    found.lacking.extend(adverts);
                }
                Verdict::Old => {}
            }
        }
        found.best = best.map(Closed::from);
        found
    }
}

/// Rosters that are remembered: of the next round's sum, and of those whose closings may still be tried.
const ROSTERS: usize = 4;

/// A closed round, and the masked sum of the round after it.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct After {
    closing: ClosingId,
    #[serde(with = "shared")]
    sum: Arc<Sum>,
}

/// The chain that a machine follows.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Follower {
    head: Head,
    /// Whether a closed round waits for its members' confirmation.
    is_unconfirmed: bool,
    /// Whether something is lacking that such a round names.
    #[serde(default)]
    lacks_evidence: bool,
    /// Whether another chain may get more votes.
    is_outvoted: bool,
    /// Which rounds have a masked sum, where sums are masked.
    #[serde(default)]
    masked: Option<Sums>,
    /// The masked sums after the last closed rounds, the newest last.
    #[serde(default)]
    sums: VecDeque<After>,
}

impl Follower {
    /// Follows a head. `masked` says which rounds have a masked sum, where sums are masked.
    pub(crate) fn new(head: Head, masked: Option<Sums>) -> Self {
        Self {
            head,
            is_unconfirmed: false,
            lacks_evidence: false,
            is_outvoted: false,
            masked,
            sums: VecDeque::new(),
        }
    }

    /// Returns the masked sum of a round that follows this closing. `None` if its members are not known any more, or if sums
    /// are open.
    pub(crate) fn sum_for(
        &self,
        view: &View,
        previous: Option<ClosingId>,
        round: Round,
    ) -> Option<Arc<Sum>> {
        let sums = self.masked.as_ref()?;
        let of_nobody = || Arc::new(Sum::of_nobody(sums.clone(), round));
        let Some(previous) = previous.filter(|_| sums.are_in(round)) else {
            return Some(of_nobody());
        };
        let after = self.sums.iter().find(|after| after.closing == previous);
        let sum = match after {
            Some(after) => Arc::clone(&after.sum),
            // After a restart it is put together again, as soon as the others have told what it takes.
            None => {
                let said = view.globals().find(|said| said.id == previous)?;
                let signed = |member: &_| view.signed(member);
                Arc::new(Sum::after(sums, (said.round, said.global), signed)?)
            }
        };
        // Masks are for the very next round. One that nobody closed has used them up.
        Some(if sum.round() == round {
            sum
        } else {
            of_nobody()
        })
    }

    /// Returns the masked sum of a round that follows the head.
    pub(crate) fn sum(&self, view: &View, round: Round) -> Option<Arc<Sum>> {
        self.sum_for(view, self.head.closing, round)
    }

    /// Returns the newest masked sum of a round, also if the round is closed by now.
    pub(crate) fn newest_sum(&self, view: &View, round: Round) -> Option<Arc<Sum>> {
        let known = self.sums.iter().rev().map(|after| &after.sum);
        let mut of_round = known.filter(|sum| sum.round() == round);
        of_round.next().cloned().or_else(|| self.sum(view, round))
    }

    /// Returns the newest closed round that is followed.
    pub(crate) fn head(&self) -> &Head {
        &self.head
    }

    /// Returns how the masks of a closing come off. `None` if sums are open, or if what was said of this one is not known.
    pub(crate) fn masked(&self, view: &View, closed: &Closed) -> Option<Box<Masked>> {
        let (global, round) = (&closed.global, closed.round);
        let sum = self.sum_for(view, global.previous, round)?;
        let words =
            global
                .unmasked
                .iter()
                .map(|(node, advert)| match &view.word(*node, *advert)?.body {
                    Body::Unmask(word) => Some((*node, word.clone())),
                    _ => None,
                });
        let words = words.collect::<Option<Vec<_>>>()?;
        let sum = Sum::clone(&sum);
        Some(Box::new(Masked::Open { sum, words }))
    }

    /// Returns what the next round's members must have trained from.
    pub(crate) fn base(&self, initial: Lineage) -> Base {
        Base {
            previous: self.head.closing,
            parent: self.lineage(initial),
        }
    }

    /// Returns the lineage of the head: its mean, or what everybody started from.
    pub(crate) fn lineage(&self, initial: Lineage) -> Lineage {
        chain::lineage_of(&self.head, initial)
    }

    /// Tells whether the last look found a round that may be good once more of its members have confirmed it.
    pub(crate) fn is_unconfirmed(&self) -> bool {
        self.is_unconfirmed
    }

    /// Tells whether such a round names something that was not heard. Else it is whole, and counts too few for now.
    pub(crate) fn lacks_evidence(&self) -> bool {
        self.lacks_evidence
    }

    /// Tells whether the next update may show that a round is good.
    pub(crate) fn waits_for_updates(&self) -> bool {
        self.is_unconfirmed || self.is_outvoted
    }

    /// Notes whether a look found a round that may be good later.
    pub(crate) fn note(&mut self, found: &Found) {
        (self.is_unconfirmed, self.is_outvoted) = (found.is_unconfirmed, found.is_outvoted);
        self.lacks_evidence = found.lacks_evidence;
    }

    /// Takes a closed round for the head; `counts_again` tells whether its members are those of the next round, too.
    pub(crate) fn follow(
        &mut self,
        view: &View,
        round: Round,
        global: &Global,
        counts_again: bool,
    ) {
        // Before the head moves: what both chains have in common is found from the old one.
        let fork = Fork::of(view, &self.head, global.id(round), global);
        self.head = Head::of(round, global, fork.ancestors(), counts_again);
        // Put together now, since the view forgets after some rounds what members signed.
        let signed = |member: &_| view.signed(member);
        let sums = self.masked.as_ref();
        let sum = sums.and_then(|sums| Sum::after(sums, (round, global), signed));
        if let (Some(sum), Some(closing)) = (sum.map(Arc::new), self.head.closing) {
            self.sums.push_back(After { closing, sum });
            self.sums.drain(..self.sums.len().saturating_sub(ROSTERS));
        }
    }

    /// Returns the announcement of a round that follows the head.
    pub(crate) fn close(&self, parent: Lineage, mean: Mean) -> Global {
        let Mean {
            blob,
            members,
            unmasked,
            slices,
            ..
        } = mean;
        let proposal = Proposal {
            members,
            parent,
            previous: self.head.closing,
        };
        Global {
            slices,
            ..proposal.closed(blob, unmasked)
        }
    }

    /// Returns the slices of a closing's mean, and which two averaged each. `None` if it is not divided, or if a word is not
    /// known.
    pub(crate) fn slices(view: &View, closed: &Closed) -> Option<Vec<([NodeId; 2], BlobRef)>> {
        let said = |node, advert| view.word(node, advert);
        certificate::slices_of((closed.round, &closed.global), said)
    }
}
