//! Exchanging: the update is published; the round needs its mean, the planned experts and, in refresh rounds, proxies.
//!
//! ```text
//!                         ┌── a closed round is found, its mean fetched and recomputed where that is due
//! waiting for the round ──┼── the aggregator is silent: the first in line closes the round ──► merging
//!                         └── nobody closes it in time: merged without a mean
//!
//! resting: waits until the round is closed ──► drawn for the next one, or all rounds are done: adopts the mean
//!                                          └─► else: follows the chain and fetches nothing
//! ```
//!
//! A node rests in a round in which it is not drawn to train (`round.participation`). It publishes nothing, answers
//! whoever fetches from it, and does not close rounds in the aggregator's place: it has no update that could be counted.

use fednode_core::{Local, NodeId, Round, Timestamp};
use serde::{Deserialize, Serialize};

use super::exchange::{Exchange, acting, acting::Acting};
use super::following;
use super::merging::Merging;
use super::pace;
use super::phase::Phase;
use super::shared::Shared;
use super::training::Training;
use crate::event::{Note, Output, Timer};
use crate::follower::Closed;
use crate::quorum::{ATTEMPTS, Patience};

/// A node that waits for the others.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Exchanging {
    pub(super) exchange: Box<Exchange>,
    /// The round is over for a node that rests in it and in the next one: it only follows the chain.
    only_follows: bool,
}

impl Exchanging {
    fn new(exchange: Box<Exchange>) -> Self {
        Self {
            exchange,
            only_follows: false,
        }
    }

    /// Begins to wait after the node's own training.
    pub(super) fn begin(shared: &mut Shared, exchange: Box<Exchange>) -> Phase {
        shared.outbox.push(Output::Save);
        Self::new(exchange).wait(shared)
    }

    /// Goes on after a restart. The finished update is published again, since it may never have left.
    pub(super) fn resume(shared: &mut Shared) -> Phase {
        if let Some(report) = &mut shared.memory.report {
            // The secrets behind it are gone with the process.
            report.offer = None;
            let report = report.clone();
            shared.publish_update(&report);
        }
        shared.outbox.push(Output::Save);
        // The view is new after a restart, so the cohort is drawn again; for the node itself it hardly ever differs.
        shared.cohort = shared.cohort_of(shared.memory.round);
        let exchange = Exchange::open(shared);
        Self::new(exchange).wait(shared)
    }

    /// Begins a round without training.
    pub(super) fn rest(shared: &mut Shared) -> Phase {
        let round = shared.memory.round;
        let mut resting = Self::new(Exchange::to_rest(shared));
        shared.outbox.note(Note::SitsOut(round));
        shared.outbox.push(Output::Save);
        // Whoever rests makes no plan, so it waits for no proxies.
        resting.wait_for_the_mean(shared);
        Phase::Exchanging(resting)
    }

    fn wait(mut self, shared: &mut Shared) -> Phase {
        self.exchange.begin(shared);
        want_everybodys_proxies(shared);
        self.wait_for_the_mean(shared);
        pace::wait_for_others(shared, &mut self.exchange);
        Phase::Exchanging(self)
    }

    /// Sets the times after which the round goes on without whatever is late, and looks whether it is closed already.
    fn wait_for_the_mean(&mut self, shared: &mut Shared) {
        let (round, times) = (self.exchange.round(), &shared.spec.round);
        let (grace, deadline) = (times.grace(), times.deadline());
        let now = shared.now;
        shared
            .outbox
            .set_timer(Timer::Deadline(round), now + deadline);
        if shared.averages() {
            let end = self.exchange.end(shared);
            shared.outbox.set_timer(Timer::GiveUp(round), end);
            shared.outbox.set_timer(Timer::Look(round), now + grace);
            // An aggregator has as long as the round may take; without one, somebody acts as soon as is polite.
            let patience = if shared.view.company().has_aggregator() {
                deadline
            } else {
                grace
            };
            let takeover = Timer::Takeover(round);
            shared.outbox.set_timer(takeover, now + patience);
        }
        self.consider_globals(shared);
    }

    pub(super) fn look_at_the_pace(&mut self, shared: &mut Shared) {
        pace::look(shared, &mut self.exchange);
    }

    /// Looks for a closed round to follow, a better one than the candidate if there is one.
    pub(super) fn consider_globals(&mut self, shared: &mut Shared) {
        let Some(closed) = self.exchange.find_better(shared) else {
            return;
        };
        // A node that rests in this round and in the next has no use for the mean, and others need the bandwidth.
        if rests_on_after(shared, closed.round) {
            return self.follow_resting(shared, &closed);
        }
        // The plans of the next rounds need the proxies of all who were counted, so their updates are waited for. Nobody
        // else's are: whoever was not counted is late, gone, or of another chain.
        let round = self.exchange.round();
        if shared.schedule.refreshes_in(round) {
            let (view, me) = (&shared.view, shared.me);
            let members = closed.global.members.iter().map(|member| member.node);
            let unknown = members.filter(|node| view.nodes().local(*node, round).is_none());
            self.exchange
                .await_updates(unknown.filter(|node| *node != me && !view.has_left(*node)));
        }
        self.exchange.pursue(shared, closed);
    }

    /// Follows a closed round without its mean.
    fn follow_resting(&mut self, shared: &mut Shared, closed: &Closed) {
        self.only_follows = true;
        shared.follow(closed);
        shared.outbox.note(Note::RoundClosed {
            round: closed.round,
            by: Some(closed.author),
            members: closed.global.members.len() as u32,
        });
    }

    pub(super) fn advance(mut self, shared: &mut Shared) -> Phase {
        self.exchange.agree(shared);
        // Closing comes first: an acting node may find that it has all it needs in the same moment.
        self.act_if_first(shared);
        following::fetch_shortlist(shared, &mut self.exchange);
        if self.only_follows {
            return self.rest_on(shared);
        }
        if self.exchange.mean.is_stuck() {
            // A mean that nobody can deliver is recomputed from its members; if that fails too, somebody else must close
            // the round.
            if !self.exchange.recompute_mean(shared) {
                self.give_up_on_mean(shared);
            }
        } else if self.exchange.is_complete() && shared.proxies.is_empty() {
            return Merging::begin(shared, self.exchange);
        }
        Phase::Exchanging(self)
    }

    /// Goes on to the next round, and to those after it that are closed already.
    fn rest_on(self, shared: &mut Shared) -> Phase {
        let mut phase = Phase::Exchanging(self);
        while let Phase::Exchanging(Self {
            only_follows: true, ..
        }) = phase
        {
            let (rested, next) = (shared.memory.round, shared.chain.head().round.next());
            shared.note_rejoined(rested, next);
            phase = Training::begin(shared, next);
        }
        phase
    }

    fn give_up_on_mean(&mut self, shared: &mut Shared) {
        let candidate = self.exchange.mean.candidate();
        if let Some(closing) = candidate.map(Closed::id) {
            self.exchange.mean.discard(closing);
            self.consider_globals(shared);
            self.exchange.call_for_another(shared);
        }
    }

    /// Tells whether this round has no closed round to follow yet.
    fn lacks_mean_of(&self, round: Round) -> bool {
        self.exchange.round() == round && self.exchange.mean.lacks_candidate()
    }

    /// Without an aggregator, and with everybody's update here, there is nothing to wait for.
    fn act_if_first(&mut self, shared: &mut Shared) {
        let round = shared.memory.round;
        let may_act = !shared.view.company().has_aggregator() && self.exchange.acting.is_none();
        let is_over = self.exchange.patience(shared) >= Patience::GraceOver;
        if may_act
            && self.lacks_mean_of(round)
            && acting::is_first_of_all(shared, round)
            && (is_over || acting::are_back(shared, round))
        {
            self.on_turn_to_act(shared, round);
        }
    }

    /// The aggregator had its time: the first in line acts now, the others after it.
    pub(super) fn on_takeover(&mut self, shared: &mut Shared, round: Round) {
        if !self.lacks_mean_of(round) {
            return;
        }
        let (now, grace) = (shared.now, shared.spec.round.grace());
        // Before the deadline nobody would follow a closing of too few.
        let is_late = self.exchange.patience(shared) == Patience::DeadlineOver;
        // Where chance draws who trains, an aggregator cannot close what too few were drawn for.
        let all_train = shared.spec.round.participation >= 1.0;
        if is_late && all_train && acting::is_quorum_heard(shared, round) {
            shared.view.note_idle_aggregators();
        }
        if let Some(again) = self.waits_until(shared, round).filter(|_| !is_late) {
            return shared.outbox.set_timer(Timer::Takeover(round), again);
        }
        // Each in line has a grace time, the first few only, and the last of them one more to find out whose parts cannot
        // be had: after them the node goes on alone.
        let last = (now + grace * (ATTEMPTS + 2)).min(self.exchange.end(shared));
        shared.outbox.set_timer(Timer::GiveUp(round), last);
        if acting::can_act(shared, round) {
            let before = acting::place_in_line(shared, round);
            // Whoever is further back acts together with the last of these, before the round is given up.
            let turn = now + grace * before.min(ATTEMPTS);
            shared.outbox.set_timer(Timer::Act(round), turn);
        }
    }

    /// Returns when to look again, as long as the quorum is not there or stragglers have time.
    fn waits_until(&mut self, shared: &Shared, round: Round) -> Option<Timestamp> {
        let soon = shared.now + shared.spec.round.grace();
        if !acting::is_quorum_heard(shared, round) {
            return Some(soon);
        }
        let quorum = *self.exchange.quorum.get_or_insert(shared.now);
        // They may come before they must.
        acting::stragglers_until(shared, round, quorum).map(|until| until.min(soon))
    }

    pub(super) fn on_turn_to_act(&mut self, shared: &mut Shared, round: Round) {
        if !shared.averages() || !self.lacks_mean_of(round) {
            return;
        }
        // Somebody closes the round already, and waits for slices or for the mean. It may be this node.
        let waits = |acting: &Acting| shared.spec.round.slices > 1 || acting.is_computing();
        let is_acting = self.exchange.acting.as_ref().is_some_and(waits);
        match self.exchange.slices_until(shared.now) {
            _ if is_acting => {}
            Some(until) => shared.outbox.set_timer(Timer::Act(round), until),
            None => self.exchange.acting = Some(Acting::begin(shared, round)),
        }
    }

    /// Nobody closed the round in time: what has arrived is merged, the own shared part stays.
    pub(super) fn on_nobody_closed(mut self, shared: &mut Shared, round: Round) -> Phase {
        if self.exchange.round() != round || !self.exchange.mean.lacks_mean() {
            return Phase::Exchanging(self);
        }
        // A mean that is under way has its time, but nothing has more than this phase.
        let end = self.exchange.end(shared);
        let is_under_way = !self.exchange.mean.lacks_candidate()
            || self.exchange.slices_until(shared.now).is_some();
        if is_under_way && shared.now < end {
            shared.outbox.set_timer(Timer::GiveUp(round), end);
            return Phase::Exchanging(self);
        }
        // Nothing that comes later belongs to this round any more, so all waiting ends as at the deadline.
        shared.outbox.note(Note::Isolated(round));
        self.exchange.on_deadline(shared, round);
        // The candidate's mean is not here, and the merge would follow it all the same.
        self.exchange.mean.take();
        Merging::begin(shared, self.exchange)
    }
}

/// Tells whether a round that was closed is over for this node, since it neither trained nor trains in the next.
fn rests_on_after(shared: &Shared, round: Round) -> bool {
    // After the last round everybody needs the mean, whoever trained in it.
    let is_last = shared.schedule.round(round.next()).is_none();
    let trains_next = || shared.cohort_of(round.next()).contains(shared.me);
    !shared.trains() && !is_last && !trains_next()
}

/// Proxies that came before this node's own update was ready are fetched now.
fn want_everybodys_proxies(shared: &mut Shared) {
    let (round, lineage) = (shared.memory.round, shared.memory.lineage);
    if !shared.schedule.refreshes_in(round) || shared.spec.uses_sketches() {
        return;
    }
    let locals = shared.view.nodes().locals(round);
    let comparable: Vec<(NodeId, Local)> = locals
        .filter(|(node, local)| {
            local.lineage == lineage && !shared.view.nodes().has_proxies(*node, round)
        })
        .map(|(node, local)| (node, local.clone()))
        .collect();
    for (node, local) in comparable {
        shared.want_proxies(node, round, &local);
    }
}
