//! The exchange of a round: the experts of the plan, the round's mean and the updates of others.
//!
//! The plan was computed from the proxies of an earlier round (FedMoE-DA's stale aggregation matrix), so fetching
//! starts while the node still trains, from whoever is done; the experts themselves are this round's. What does not
//! arrive in time is dropped and the row is renormalised, or an older version of at most I rounds stands in. Nobody waits
//! longer than the deadline and the grace times that follow it.
//!
//! The exchange is a machine of its own that the phases hand on: it is opened with the training of a round and ends
//! with its merge. A joining node has one that waits for nothing but the mean that it adopts.

pub(super) mod acting;
mod agreeing;
mod averaging;
mod experts;
mod pursuit;
mod waiting;

use std::collections::BTreeSet;
use std::time::Duration;

use fednode_core::{BlobId, NodeId, Round, Timestamp};
use serde::{Deserialize, Serialize};

use self::acting::Acting;
use self::averaging::Averaging;
use self::experts::Experts;
use self::pursuit::Pursuit;
use super::following;
use super::planning;
use super::shared::Shared;
use crate::event::{
    Arrival, AverageReport, FetchKind, JoinPurpose, JoinReport, SliceReport, Timer,
};
use crate::follower::Closed;
use crate::quorum::{ATTEMPTS, Patience};
use crate::trials::Known;
use crate::view::Update;

/// Bytes per second of a slow link: so long may an expert take after the grace time.
const SLOW: f64 = 1048576.0;

/// What a round waits for, and what has arrived.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Exchange {
    round: Round,
    started: Timestamp,
    /// When the grace time of the closed round was over.
    closed: Option<Timestamp>,
    pub(super) experts: Experts,
    pub(super) mean: Pursuit,
    /// This node closes the round itself.
    pub(super) acting: Option<Acting>,
    /// Where nobody aggregates: when the node saw that the quorum is there.
    pub(super) quorum: Option<Timestamp>,
    /// Slices of the mean that this node averages.
    #[serde(default)]
    averaging: Averaging,
    /// Whose update is not known yet, and with it their proxies: members of the closed round or, where none is closed, all
    /// who are there and the node itself.
    updates_awaited: BTreeSet<NodeId>,
    /// Whether the proxies of those who are alike were asked for, where not everybody's are.
    shortlisted: bool,
    /// Where nothing is averaged: a quorum is done, and the others have the grace time.
    in_grace: bool,
    /// When the stragglers of the closed round have had their time. The first closing decides: where others close a round
    /// more often than that, a node that comes back would wait for ever.
    grace_ends: Option<Timestamp>,
    /// The round is closed and its stragglers have had their time.
    grace_over: bool,
    /// Whether those who held it up until its deadline were noted. It may end a second time, when nobody has closed it.
    #[serde(default)]
    is_blamed: bool,
}

impl Exchange {
    /// An exchange of the current round that waits for nothing yet.
    fn new(shared: &Shared) -> Self {
        Self {
            round: shared.memory.round,
            started: shared.now,
            closed: None,
            experts: Experts::default(),
            mean: Pursuit::default(),
            acting: None,
            quorum: None,
            averaging: Averaging::default(),
            updates_awaited: BTreeSet::new(),
            shortlisted: false,
            in_grace: false,
            grace_ends: None,
            grace_over: false,
            is_blamed: false,
        }
    }

    /// An exchange that waits for nothing but the mean that a joining node adopts.
    pub(super) fn to_adopt(shared: &Shared) -> Box<Self> {
        let mut exchange = Self::new(shared);
        exchange.mean.require();
        Box::new(exchange)
    }

    /// An exchange of a node that rests: it waits until the round is closed, if rounds are.
    pub(super) fn to_rest(shared: &Shared) -> Box<Self> {
        let mut exchange = Self::new(shared);
        exchange.begin(shared);
        Box::new(exchange)
    }

    /// Starts fetching the planned experts of this round from those who are already done with it, while this node still
    /// trains: the plan of a round is known before it begins.
    pub(super) fn open(shared: &mut Shared) -> Box<Self> {
        planning::renew(shared);
        following::follow_planned(shared);
        following::forget_unfollowed(shared);
        let mut exchange = Self::new(shared);
        if let Some(plan) = &shared.memory.plan {
            // Who has left, or rests in this round, publishes no update that could be waited for.
            let (view, cohort) = (&shared.view, &shared.cohort);
            let speaks = |owner| !view.has_left(owner) && cohort.contains(owner);
            exchange.experts = Experts::of(plan, shared.me, speaks);
        }
        for owner in exchange.experts.owners().clone() {
            exchange.look_at(shared, owner, exchange.round);
        }
        Box::new(exchange)
    }

    /// The node is done training, or rests: from now on the exchange waits for the mean, too.
    pub(super) fn begin(&mut self, shared: &Shared) {
        self.started = shared.now;
        if shared.averages() {
            self.mean.require();
        }
    }

    pub(super) fn round(&self) -> Round {
        self.round
    }

    /// Agrees to what is to be added up, and takes masks off, where sums are masked. Averages slices where means are divided.
    pub(super) fn agree(&mut self, shared: &mut Shared) {
        if shared.schedule.masks() {
            let waited = shared.now.since(self.started);
            agreeing::advance(shared, self.round, waited);
        }
        self.averaging.advance(shared, self.round);
    }

    /// Returns until when slices of the mean may come, if some are under way.
    pub(super) fn slices_until(&self, now: Timestamp) -> Option<Timestamp> {
        self.averaging.until(now)
    }

    /// A slice of the mean is averaged, or cannot be.
    pub(super) fn on_sliced(&mut self, shared: &mut Shared, report: &SliceReport) {
        self.averaging.on_sliced(shared, report);
    }

    /// Slices were put together to close the round.
    pub(super) fn on_joined_to_close(&mut self, shared: &mut Shared, report: &JoinReport) {
        if let Some(acting) = &mut self.acting {
            acting.on_joined(shared, report);
        }
    }

    /// Visits the foreign blobs that are here or on their way.
    pub(super) fn blobs(&self) -> impl Iterator<Item = BlobId> + '_ {
        let mean = self.mean.candidate().map(|closed| closed.global.mean.id);
        let acting = self.acting.iter().flat_map(Acting::blobs);
        let slices = self.averaging.blobs();
        let blobs = self.experts.blobs().chain(mean).chain(acting);
        blobs.chain(slices)
    }

    /// Visits the nodes whose updates are waited for.
    pub(super) fn awaited(&self) -> impl Iterator<Item = NodeId> + '_ {
        let owners = self.experts.owners().iter();
        owners.chain(&self.updates_awaited).copied()
    }

    /// Tells whether all that was waited for is here.
    pub(super) fn is_complete(&self) -> bool {
        self.experts.is_complete() && self.updates_awaited.is_empty() && !self.mean.lacks_mean()
    }

    /// Tells whether this is the time for the shortlist: nothing else is waited for, and there was none yet.
    pub(super) fn is_first_shortlist(&mut self) -> bool {
        self.is_complete() && !std::mem::replace(&mut self.shortlisted, true)
    }

    /// Tells whether the grace time begins now, where nothing is averaged.
    pub(super) fn begins_grace(&mut self) -> bool {
        !std::mem::replace(&mut self.in_grace, true)
    }

    /// Another node's update arrived.
    pub(super) fn on_update(&mut self, shared: &mut Shared, update: Update<'_>) {
        if let Some(acting) = &mut self.acting {
            acting.on_update(shared, update);
        }
        // Who is ahead of a node that was away does not come back to its round.
        if update.round > self.round && !shared.averages() {
            self.updates_awaited.remove(&update.node);
        }
        self.look_at(shared, update.node, update.round);
    }

    /// The node's own update came back: it is not waited for any longer.
    pub(super) fn on_own_update(&mut self, me: NodeId, round: Round) {
        if self.round == round {
            self.updates_awaited.remove(&me);
        }
    }

    /// Starts fetching the planned experts of a node whose update of this round has arrived.
    fn look_at(&mut self, shared: &mut Shared, owner: NodeId, round: Round) {
        if self.round != round {
            return;
        }
        // Whoever has spoken is not waited for, planned or not.
        self.updates_awaited.remove(&owner);
        if !self.experts.owners().contains(&owner) {
            return; // Nearly everybody, in a large federation.
        }
        let Some(offers) = planning::offer_of(shared, owner, round) else {
            return;
        };
        let offers = offers.experts.clone();
        let by_use = planning::weighs_by_use(&shared.spec);
        // All experts are alike in size: another one is none, or a name that somebody else's blob has.
        let own = shared.memory.report.as_ref();
        let own = own.and_then(|report| report.experts.first());
        let size = own.map(|own| own.blob.size);
        let wanted = self.experts.want(owner, &offers, |offer| {
            // An expert that none of its owner's samples chose would weigh nothing.
            let is_used = !by_use || offer.samples_routed > 0;
            let is_offered = !shared.view.was_withdrawn_by(owner, offer.blob.id);
            is_used && is_offered && size.is_none_or(|size| offer.blob.size == size)
        });
        for (expert, blob) in wanted {
            let before = shared.memory.held.get(&expert).map(|held| held.blob.id);
            shared.fetch_after(before, blob, FetchKind::Expert, vec![owner]);
        }
    }

    /// Records that a blob is held, or cannot be had.
    pub(super) fn resolve(&mut self, arrival: Arrival) {
        if let Some(acting) = &mut self.acting {
            acting.resolve(arrival);
        }
        self.experts.resolve(arrival);
        self.mean.resolve(arrival);
    }

    /// Proxies are here; a blob of experts may have the same name.
    pub(super) fn on_proxies(&mut self, blob: BlobId) {
        self.experts.resolve(Arrival::Held(blob));
        self.mean.resolve(Arrival::Held(blob));
    }

    /// A mean was computed to close the round.
    pub(super) fn on_averaged(&mut self, shared: &mut Shared, report: AverageReport) {
        if let Some(acting) = &mut self.acting {
            acting.on_averaged(shared, report);
        }
    }

    /// Stops waiting for a node that left or was banned.
    pub(super) fn give_up_on(&mut self, node: NodeId) {
        if let Some(acting) = &mut self.acting {
            acting.remove(node);
        }
        self.experts.give_up_on(node);
        self.updates_awaited.remove(&node);
    }

    /// Looks for a closed round to follow, a better one than the candidate if there is one.
    pub(super) fn find_better(&mut self, shared: &mut Shared) -> Option<Closed> {
        let waited = shared.now.since(self.started);
        let best = shared.best_global(Some(self), waited)?;
        let known = self.mean.candidate();
        let is_known = known.is_some_and(|known| known.is(best.author, &best.global));
        (!is_known).then_some(best)
    }

    /// Returns when the round is given up, whatever is still under way. The last half of a grace time is for the merge.
    pub(super) fn end(&self, shared: &Shared) -> Timestamp {
        let times = &shared.spec.round;
        self.started + times.deadline() + times.grace() * (ATTEMPTS + 2) - times.grace() / 2
    }

    /// Tells how long the round has been waited for.
    pub(super) fn patience(&self, shared: &Shared) -> Patience {
        Patience::after(shared.now.since(self.started), &shared.spec.round)
    }

    /// Makes a closed round the candidate: fetches its mean, recomputes it where that is due.
    pub(super) fn pursue(&mut self, shared: &mut Shared, closed: Closed) {
        if let Some(false_one) = self.averaging.false_slice(shared, &closed) {
            return self.convict_averagers(shared, &closed, false_one);
        }
        let author = closed.author;
        // An accusation may have had it tried before.
        let on_trial = match shared.trials.known(author, &closed.global) {
            Known::Recomputed => false,
            Known::Impossible if shared.everybody_verifies(&closed) => {
                return self.mean.discard(closed.id());
            }
            Known::Impossible => false,
            Known::Nothing | Known::Open => shared.must_verify(&closed),
        };
        self.mean.pursue(closed.clone());
        let in_a_grace = shared.now + shared.spec.round.grace();
        let ends = *self.grace_ends.get_or_insert(in_a_grace);
        // Once it is over, this is the time that the mean of a newer closing has. Experts have none for it, and are looked at
        // whenever one comes.
        let ends = if self.grace_over {
            self.drop_the_slow(shared);
            in_a_grace
        } else {
            ends
        };
        let timer = Timer::Grace(shared.memory.round);
        shared.outbox.set_timer(timer, ends);
        // Fetched at once, also while the trial goes on: both take their time. Who comes to a later round does not know who still
        // has the slices.
        let is_next = closed.global.previous == shared.chain.head().closing;
        let is_in_slices = is_next && author != shared.me;
        if !is_in_slices || !shared.join_slices(&closed, JoinPurpose::Follow) {
            self.fetch_whole(shared, &closed);
        }
        if on_trial {
            self.mean.put_on_trial(author, &closed.global);
            shared.begin_trial(closed, None);
        }
    }

    /// Fetches a mean from those who should have it.
    pub(super) fn fetch_whole(&self, shared: &mut Shared, closed: &Closed) {
        // Whoever was counted is likely to hold the mean by now; a few of them back the author up.
        let author = closed.author;
        let members = closed.global.members.iter().map(|member| member.node);
        let backups = members.filter(|node| *node != author).take(4);
        let from = [author].into_iter().chain(backups).collect();
        shared.fetch(closed.global.mean, FetchKind::Shared, from);
    }

    /// The trial of a closing ended without a verdict against it; a mean that was recomputed is here, too.
    pub(super) fn acquit(&mut self, closed: &Closed, mean: Option<BlobId>) {
        self.mean.acquit(closed.author, &closed.global);
        if let Some(mean) = mean {
            self.experts.resolve(Arrival::Held(mean));
            self.mean.resolve(Arrival::Held(mean));
        }
    }

    /// Recomputes the candidate's mean from its members. Returns false if that was tried before.
    pub(super) fn recompute_mean(&mut self, shared: &mut Shared) -> bool {
        let Some(closed) = self.mean.candidate().cloned() else {
            return true;
        };
        // Once is enough: what could not be recomputed cannot be had from the same members a moment later.
        if shared.trials.know(closed.author, &closed.global) || !shared.can_recompute(&closed) {
            return false;
        }
        // Nobody averages all slices of a mean.
        if !closed.global.slices.is_empty() {
            return false;
        }
        self.mean.put_on_trial(closed.author, &closed.global);
        shared.begin_trial(closed, None);
        true
    }

    /// Lets the nodes that can act close the round at once, if there is no closed round to follow.
    pub(super) fn call_for_another(&self, shared: &mut Shared) {
        if self.mean.lacks_candidate() {
            let takeover = Timer::Takeover(self.round);
            shared.outbox.set_timer(takeover, shared.now);
        }
    }

    /// Drops the candidate of a banned author, and all that was waited for from it.
    pub(super) fn on_ban(&mut self, shared: &mut Shared, node: NodeId) {
        // The round needs another closing, and the nodes have waited long enough.
        let is_false = |closing| shared.view.is_refuted(closing);
        if self.mean.drop_that_of(node, is_false) {
            let takeover = Timer::Takeover(shared.memory.round);
            shared.outbox.set_timer(takeover, shared.now);
        }
        self.give_up_on(node);
    }

    /// The round is closed and its stragglers have had their time: their experts are not waited for any longer.
    pub(super) fn on_grace_over(&mut self, shared: &mut Shared, round: Round) {
        if self.round == round {
            self.experts.give_up_on_updates();
            self.updates_awaited.clear();
            // Remembered, since whoever is lost from now on is dropped at once.
            self.grace_over = true;
            self.drop_those_of_lost(shared);
            if let Some(next) = self.drop_the_slow(shared) {
                let timer = Timer::Grace(self.round);
                shared.outbox.set_timer(timer, next);
            }
        }
        // A mean that is slow to come is recomputed while the fetch goes on: its author may be dead.
        if self.mean.is_slow() {
            self.recompute_mean(shared);
        }
    }

    /// Nobody waits longer than the grace time for whoever is gone, nor for the proxies of whoever was not counted: what a
    /// member announced and nobody can deliver must not hold up a round.
    fn drop_those_of_lost(&mut self, shared: &mut Shared) {
        let view = &shared.view;
        self.experts.drop_those_of_lost(|owner| view.is_lost(owner));
        let closed = self.mean.candidate();
        let is_counted = |node| {
            closed.is_none_or(|closed| {
                let mut members = closed.global.members.iter();
                members.any(|member| member.node == node)
            })
        };
        shared
            .proxies
            .keep_those_of(|node| !view.is_lost(node) && !view.has_left(node) && is_counted(node));
    }

    /// Once the round is closed, experts have the grace time and what their size takes on a slow link. A slow one may come
    /// later and stand in for a missing one of the next rounds. Returns when the next one has had its time.
    fn drop_the_slow(&mut self, shared: &mut Shared) -> Option<Timestamp> {
        self.mean.candidate()?;
        shared.proxies.clear();
        let closed = *self.closed.get_or_insert(shared.now);
        let over = shared.now.since(closed).as_secs_f64() * SLOW;
        self.experts.drop_up_to(over as u64);
        let smallest = self.experts.smallest_on_its_way()?;
        // Times are whole milliseconds: a moment later it has certainly passed.
        let time = Duration::from_secs_f64(smallest as f64 / SLOW) + Duration::from_millis(2);
        Some(closed + time)
    }

    /// The deadline: blobs that have not come are not waited for any longer.
    pub(super) fn on_deadline(&mut self, shared: &mut Shared, round: Round) {
        if self.round == round && !std::mem::replace(&mut self.is_blamed, true) {
            shared.view.note_held_up(self.held_up_by(shared));
        }
        self.on_grace_over(shared, round);
        if self.round == round {
            self.experts.give_up_on_blobs();
            shared.proxies.clear();
        }
    }

    /// A connection is lost: nobody waits for a dead node's experts longer than the grace time.
    pub(super) fn on_peer_down(&mut self, shared: &mut Shared, node: NodeId) {
        if !shared.averages() {
            // Members of a closed round have said all; who is not one and has said nothing will not.
            self.updates_awaited.remove(&node);
        }
        if self.grace_over {
            self.drop_those_of_lost(shared);
        }
    }

    /// The last aggregator is gone: it is replaced without waiting for the deadline.
    pub(super) fn on_aggregator_lost(&mut self, shared: &mut Shared) {
        if self.mean.lacks_candidate() {
            let takeover = Timer::Takeover(self.round);
            let patience = shared.now + shared.spec.round.grace();
            shared.outbox.set_timer(takeover, patience);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use fednode_core::{FederationSpec, Role};

    use super::*;
    use crate::node::memory::Memory;
    use crate::state::{Head, Phase, State};

    /// A round that nobody closes ends twice: at its deadline, and when it is given up.
    #[test]
    fn who_is_late_for_a_round_that_nobody_closes_has_held_up_one_round() {
        let [me, late] = [1, 2].map(|byte| NodeId::from_bytes([byte; 32]));
        let state = State {
            phase: Phase::Training,
            round: Round(1),
            lineage: BlobId::of(b"initial"),
            plan: None,
            held: BTreeMap::new(),
            report: None,
            module: None,
            head: Head::initial(None),
            gone: BTreeSet::new(),
            owner: None,
        };
        let (_, head, memory) = Memory::of(state, me);
        let spec = Arc::new(FederationSpec::default());
        let mut shared = Shared::new(spec, me, None, head, memory);
        shared.view.connect(late, Role::Node);
        for round in 1..=2 {
            let mut exchange = Exchange::to_rest(&shared);
            exchange.await_updates([late].into_iter());
            exchange.on_deadline(&mut shared, Round(1));
            exchange.on_deadline(&mut shared, Round(1));
            assert_eq!(shared.is_waited_for(late), round == 1, "after {round}");
        }
    }
}
