//! The pursuit of the round's mean: the closed round that the node is about to follow.
//!
//! ```text
//! nobody closed it ──a closed round is found──► fetching ──► held ──► ready to adopt
//!      ▲                                           │           ▲
//!      └── another closing takes its place ◄── failed ──recomputed from its members
//! ```
//!
//! A mean on trial is ready only when its recomputation says so.

use std::collections::BTreeSet;

use fednode_core::{BlobRef, ClosingId, Global, NodeId};
use serde::{Deserialize, Serialize};

use crate::event::{Arrival, FetchKind};
use crate::follower::Closed;

/// Where a closed round's mean is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Mean {
    Wanted,
    Held,
    Failed,
}

/// A closed round that the node is about to follow.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Candidate {
    closed: Closed,
    mean: Mean,
    /// Whether a recomputation of the mean is still being waited for.
    on_trial: bool,
    /// Whether the trainer takes the mean over.
    #[serde(default)]
    is_adopted: bool,
}

/// Whether a round needs a mean, and which.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(in crate::node) struct Pursuit {
    /// Whether the round needs a mean that nobody has provided.
    is_needed: bool,
    candidate: Option<Candidate>,
    /// Closings whose means could neither be fetched nor recomputed. Another closing may have the same mean: a liar can name
    /// that of others beside a part that nobody can get.
    unreachable: BTreeSet<ClosingId>,
}

impl Pursuit {
    /// From now on the round needs a mean.
    pub(super) fn require(&mut self) {
        self.is_needed = true;
    }

    /// Returns the closed round that the node is about to follow.
    pub(in crate::node) fn candidate(&self) -> Option<&Closed> {
        self.candidate.as_ref().map(|candidate| &candidate.closed)
    }

    /// Takes the candidate out.
    pub(in crate::node) fn take(&mut self) -> Option<Closed> {
        self.candidate.take().map(|candidate| candidate.closed)
    }

    /// Makes a closed round the candidate; its mean is being fetched.
    pub(super) fn pursue(&mut self, closed: Closed) {
        // A closing that was given up comes here again only if most have gone on from it. So its mean can be had.
        self.unreachable.remove(&closed.id());
        self.candidate = Some(Candidate {
            closed,
            mean: Mean::Wanted,
            on_trial: false,
            is_adopted: false,
        });
    }

    /// Records that a blob is held, or cannot be had. What is held stays so.
    pub(super) fn resolve(&mut self, arrival: Arrival) {
        if let Some(candidate) = &mut self.candidate
            && arrival.ends_wait_for(&candidate.closed.global.mean, FetchKind::Shared)
            // A mean that was recomputed is held even if its fetch fails afterwards.
            && candidate.mean != Mean::Held
        {
            candidate.mean = match arrival {
                Arrival::Held(_) => Mean::Held,
                Arrival::Failed(..) => Mean::Failed,
            };
        }
    }

    /// Puts the candidate on trial, if it is this closing.
    pub(in crate::node) fn put_on_trial(&mut self, author: NodeId, global: &Global) {
        if let Some(candidate) = &mut self.candidate
            && candidate.closed.is(author, global)
        {
            candidate.on_trial = true;
        }
    }

    /// The trial of a closing ended without a verdict against it.
    pub(super) fn acquit(&mut self, author: NodeId, global: &Global) {
        if let Some(candidate) = &mut self.candidate
            && candidate.closed.is(author, global)
        {
            candidate.on_trial = false;
        }
    }

    /// Drops the candidate if this node closed it; returns whether it did. `is_false` tells whether a closing is known to be false.
    ///
    /// What the trainer takes over already stays, unless it is false. Its author may be banned for something else, and the node
    /// would not know which mean its model has.
    pub(super) fn drop_that_of(
        &mut self,
        author: NodeId,
        is_false: impl Fn(ClosingId) -> bool,
    ) -> bool {
        let is_dropped = self.candidate.as_ref().is_some_and(|candidate| {
            let is_its = candidate.closed.author == author;
            is_its && (!candidate.is_adopted || is_false(candidate.closed.id()))
        });
        if is_dropped {
            self.candidate = None;
        }
        is_dropped
    }

    /// Hands the mean to the trainer, once it is ready.
    pub(in crate::node) fn hand_over(&mut self) -> Option<BlobRef> {
        let mean = self.ready()?;
        if let Some(candidate) = &mut self.candidate {
            candidate.is_adopted = true;
        }
        Some(mean)
    }

    /// Gives a closing up for good: its mean cannot be had, or not be trusted.
    pub(in crate::node) fn discard(&mut self, closing: ClosingId) {
        // Remembered for this round, or the next look would choose the same closing again.
        self.unreachable.insert(closing);
        if self.candidate().is_some_and(|it| it.id() == closing) {
            self.candidate = None;
        }
    }

    /// Tells whether a closing was given up.
    pub(in crate::node) fn is_unreachable(&self, closing: ClosingId) -> bool {
        self.unreachable.contains(&closing)
    }

    /// Returns the mean to adopt once it is held and, where that was asked for, recomputed.
    pub(in crate::node) fn ready(&self) -> Option<BlobRef> {
        let candidate = self.candidate.as_ref()?;
        // Held is not enough: whoever must recompute waits for the outcome before it adopts.
        let is_ready = candidate.mean == Mean::Held && !candidate.on_trial;
        is_ready.then_some(candidate.closed.global.mean)
    }

    /// Tells whether the candidate's mean is still on its way.
    pub(super) fn is_slow(&self) -> bool {
        let wanted = |candidate: &Candidate| candidate.mean == Mean::Wanted;
        self.candidate.as_ref().is_some_and(wanted)
    }

    /// Tells whether the candidate's mean is being recomputed.
    pub(super) fn is_on_trial(&self) -> bool {
        let candidate = self.candidate.as_ref();
        candidate.is_some_and(|candidate| candidate.on_trial)
    }

    /// Tells whether the mean cannot be had, neither fetched nor recomputed.
    pub(in crate::node) fn is_stuck(&self) -> bool {
        let stuck = |candidate: &Candidate| candidate.mean == Mean::Failed && !candidate.on_trial;
        self.candidate.as_ref().is_some_and(stuck)
    }

    /// Tells whether the round still lacks a closed round to follow.
    pub(in crate::node) fn lacks_candidate(&self) -> bool {
        self.is_needed && self.candidate.is_none()
    }

    /// Tells whether there is still no mean that could be adopted.
    pub(in crate::node) fn lacks_mean(&self) -> bool {
        self.is_needed && self.ready().is_none()
    }
}
