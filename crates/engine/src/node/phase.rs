//! The phases of a node: each owns what it waits for, reacts to inputs and returns the phase that comes next.

use std::collections::BTreeSet;

use fednode_core::{BlobId, ClosingId, Global, LocalReport, NodeId, Round, Timestamp};
use serde::{Deserialize, Serialize};

use super::audit;
use super::exchange::Exchange;
use super::exchanging::Exchanging;
use super::joining::Joining;
use super::merging::Merging;
use super::pooling::Pooling;
use super::shared::Shared;
use super::training::Training;
use crate::event::{
    Arrival, AverageReport, MergeReport, ModuleReport, Note, Output, PoolReport, Timer,
};
use crate::state::Phase as PhaseName;
use crate::status::{Cause, Waiting};
use crate::view::Update;

/// What a node is doing, with all that only matters meanwhile.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Phase {
    Joining(Joining),
    Training(Training),
    Exchanging(Exchanging),
    Merging(Merging),
    Pooling(Pooling),
    Serving,
}

impl Phase {
    /// Returns the phase of a node that starts with this one in its checkpoint: it joins first, to find out whether the
    /// federation has moved on, unless all is done.
    pub(super) fn at_start(checkpoint: PhaseName) -> Self {
        match checkpoint {
            PhaseName::Serving => Self::Serving,
            // A checkpoint of a node that had not begun tells nothing to go on with.
            PhaseName::Joining => Self::Joining(Joining::new(None)),
            phase => Self::Joining(Joining::new(Some(phase))),
        }
    }

    /// Ends the node's work: from now on it only serves others.
    pub(super) fn finish(shared: &mut Shared) -> Self {
        shared.outbox.push(Output::Save);
        shared.outbox.note(Note::Finished);
        Self::Serving
    }

    pub(super) fn name(&self) -> PhaseName {
        match self {
            Self::Joining(_) => PhaseName::Joining,
            Self::Training(_) => PhaseName::Training,
            Self::Exchanging(_) => PhaseName::Exchanging,
            Self::Merging(_) => PhaseName::Merging,
            Self::Pooling(_) => PhaseName::Pooling,
            Self::Serving => PhaseName::Serving,
        }
    }

    /// Returns the phase that a restarted node goes on with: of one that joins, that of the checkpoint before.
    pub(super) fn to_resume(&self) -> PhaseName {
        match self {
            Self::Joining(joining) => joining.to_resume(),
            other => other.name(),
        }
    }

    pub(super) fn exchange(&self) -> Option<&Exchange> {
        match self {
            Self::Joining(joining) => joining.adoption.as_deref(),
            Self::Training(training) => Some(&training.exchange),
            Self::Exchanging(exchanging) => Some(&exchanging.exchange),
            Self::Merging(merging) => Some(&merging.exchange),
            Self::Pooling(_) | Self::Serving => None,
        }
    }

    pub(super) fn exchange_mut(&mut self) -> Option<&mut Exchange> {
        match self {
            Self::Joining(joining) => joining.adoption.as_deref_mut(),
            Self::Training(training) => Some(&mut training.exchange),
            Self::Exchanging(exchanging) => Some(&mut exchanging.exchange),
            Self::Merging(merging) => Some(&mut merging.exchange),
            Self::Pooling(_) | Self::Serving => None,
        }
    }

    /// Makes progress wherever everything that was waited for has arrived.
    pub(super) fn advance(self, shared: &mut Shared) -> Self {
        match self {
            Self::Joining(joining) => joining.advance(shared),
            Self::Training(mut training) => {
                // Who is late for the round still helps the others to open its sum.
                training.exchange.agree(shared);
                Self::Training(training)
            }
            Self::Exchanging(exchanging) => exchanging.advance(shared),
            Self::Pooling(mut pooling) => {
                pooling.advance(shared);
                Self::Pooling(pooling)
            }
            Self::Merging(_) | Self::Serving => self,
        }
    }

    /// The local update is done. A report of a round that was left meanwhile is ignored.
    pub(super) fn on_trained(self, shared: &mut Shared, report: LocalReport) -> Self {
        match self {
            Self::Training(training) if report.round == shared.memory.round => {
                training.on_trained(shared, report)
            }
            other => other,
        }
    }

    /// The merge is done.
    pub(super) fn on_merged(self, shared: &mut Shared, report: &MergeReport) -> Self {
        match self {
            Self::Merging(merging) if report.round == shared.memory.round => {
                merging.on_merged(shared, report)
            }
            other => other,
        }
    }

    /// The private module is made.
    pub(super) fn on_module(self, shared: &mut Shared, report: Option<ModuleReport>) -> Self {
        match self {
            Self::Pooling(pooling) => pooling.on_module(shared, report),
            other => other,
        }
    }

    /// The pool is assembled.
    pub(super) fn on_pooled(self, shared: &mut Shared, report: &PoolReport) -> Self {
        match self {
            Self::Pooling(pooling) => pooling.on_pooled(shared, report),
            other => other,
        }
    }

    /// A time has come. What a timer of a phase that is over meant is done already, or not wanted any more.
    pub(super) fn on_timer(mut self, shared: &mut Shared, timer: Timer) -> Self {
        match (&mut self, timer) {
            (Self::Joining(joining), Timer::Join) => joining.look_again(shared),
            (Self::Exchanging(exchanging), Timer::Takeover(round)) => {
                exchanging.on_takeover(shared, round);
            }
            (Self::Exchanging(exchanging), Timer::Act(round)) => {
                exchanging.on_turn_to_act(shared, round);
            }
            (Self::Exchanging(_), Timer::GiveUp(round)) => {
                return self.on_nobody_closed(shared, round);
            }
            (Self::Pooling(pooling), Timer::Pool(_)) => pooling.on_timer(shared),
            // What did not count enough members a moment ago may do so now.
            (phase, Timer::Look(_)) => {
                phase.consider_globals(shared);
                if let Self::Exchanging(exchanging) = phase {
                    exchanging.look_at_the_pace(shared);
                }
            }
            (phase, Timer::Opened(round)) => audit::on_masks_that_stay(phase, shared, round),
            (phase, Timer::Unmask(_)) => {
                if let Some(acting) = phase.exchange_mut().and_then(|it| it.acting.as_mut()) {
                    acting.close_if_ready(shared);
                }
            }
            (phase, Timer::Grace(round)) => {
                if let Some(exchange) = phase.exchange_mut() {
                    exchange.on_grace_over(shared, round);
                }
            }
            (phase, Timer::Deadline(round)) => {
                if let Some(exchange) = phase.exchange_mut() {
                    exchange.on_deadline(shared, round);
                }
                phase.consider_globals(shared);
            }
            (_, Timer::Join | Timer::Takeover(_) | Timer::Act(_)) => {}
            // It only wakes the node: whose turn it is follows from the time.
            (_, Timer::GiveUp(_) | Timer::Pool(_) | Timer::Slices(_)) => {}
        }
        self
    }

    fn on_nobody_closed(self, shared: &mut Shared, round: Round) -> Self {
        match self {
            Self::Exchanging(exchanging) => exchanging.on_nobody_closed(shared, round),
            other => other,
        }
    }

    /// Another node's update arrived.
    pub(super) fn on_update(&mut self, shared: &mut Shared, update: Update<'_>) {
        if let Some(exchange) = self.exchange_mut() {
            exchange.on_update(shared, update);
        }
        if let Self::Exchanging(exchanging) = self {
            exchanging.look_at_the_pace(shared);
        }
        // What it confirms may be the round that was waited for.
        if shared.chain.waits_for_updates() {
            self.consider_globals(shared);
        }
    }

    /// The node's own update came back.
    pub(super) fn on_own_update(&mut self, me: NodeId, round: Round) {
        if let Some(exchange) = self.exchange_mut() {
            exchange.on_own_update(me, round);
        }
    }

    /// Looks for a closed round to follow, a better one than the candidate if there is one. A node that trains or merges
    /// looks later: what it is about to publish, or has just mixed, belongs to the round that it is in.
    pub(super) fn consider_globals(&mut self, shared: &mut Shared) {
        match self {
            Self::Joining(joining) => joining.consider_globals(shared),
            Self::Exchanging(exchanging) => exchanging.consider_globals(shared),
            Self::Training(_) | Self::Merging(_) | Self::Pooling(_) | Self::Serving => {}
        }
    }

    /// A mean was computed to close the round.
    pub(super) fn on_averaged(&mut self, shared: &mut Shared, report: AverageReport) {
        if let Some(exchange) = self.exchange_mut() {
            exchange.on_averaged(shared, report);
        }
    }

    /// The mean of a closing is not to be had, or not to be trusted: another closing of the round takes its place.
    pub(super) fn give_up_on_closing(&mut self, shared: &mut Shared, closing: ClosingId) {
        let Some(exchange) = self.exchange_mut() else {
            return;
        };
        exchange.mean.discard(closing);
        // One that was announced already is there sooner than a new one.
        self.consider_globals(shared);
        if let Some(exchange) = self.exchange() {
            exchange.call_for_another(shared);
        }
    }

    /// A closing is accused and will be tried: its mean is not adopted before.
    pub(super) fn put_on_trial(&mut self, author: NodeId, global: &Global) {
        if let Some(exchange) = self.exchange_mut() {
            exchange.mean.put_on_trial(author, global);
        }
    }

    /// A node left.
    pub(super) fn give_up_on(&mut self, node: NodeId) {
        if let Some(exchange) = self.exchange_mut() {
            exchange.give_up_on(node);
        }
    }

    /// Records that a blob is held, or cannot be had.
    pub(super) fn resolve(&mut self, arrival: Arrival) {
        if let Some(exchange) = self.exchange_mut() {
            exchange.resolve(arrival);
        }
        if let Self::Pooling(pooling) = self {
            pooling.resolve(arrival);
        }
    }

    /// An owner takes blobs back.
    pub(super) fn withdraw(&mut self, owner: NodeId, blobs: &[BlobId]) {
        if let Some(exchange) = self.exchange_mut() {
            exchange.experts.withdraw(owner, blobs);
        }
        if let Self::Pooling(pooling) = self {
            pooling.withdraw(owner, blobs);
        }
    }

    /// Returns the foreign blobs that are here or on their way.
    pub(super) fn blobs(&self) -> BTreeSet<BlobId> {
        if let Self::Pooling(pooling) = self {
            return pooling.blobs().collect();
        }
        self.exchange()
            .into_iter()
            .flat_map(Exchange::blobs)
            .collect()
    }

    /// Returns what is waited for, most important first.
    pub(super) fn waiting(&self, shared: &Shared, now: Timestamp) -> Vec<Waiting> {
        let own = |what, since| vec![Waiting::new(Cause::OwnWork, what, now.since(since))];
        match self {
            Self::Joining(joining) => joining.waiting(shared, now),
            Self::Training(training) => own("the trainer", training.since),
            Self::Exchanging(exchanging) => exchanging.exchange.waiting(shared, now),
            Self::Merging(merging) => own("the merge", merging.since),
            Self::Pooling(pooling) => pooling.waiting(shared, now),
            Self::Serving => Vec::new(),
        }
    }
}
