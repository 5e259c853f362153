//! Whose closing is followed: somebody acted in the aggregator's place, or another aggregator is at work.
//!
//! A closed round names its members and their parts by hash, so whoever follows it can recompute its mean. Here that is
//! done each time: an aggregator that took a false mean for the newest would wait for updates that nobody makes. A
//! mean that cannot be recomputed is followed only when there is nothing else to do, with no update to close a round of
//! its own from, or when that round is past its deadline.

use std::time::Duration;

use fednode_core::{BlobRef, Body, NodeId, Round};

use super::Aggregator;
use crate::chain::{self, Judge};
use crate::event::{Arrival, Fetch, FetchKind, JoinOrder, JoinPurpose, Note, Output, Timer};
use crate::follower::{Announced, Closed, Follower};
use crate::masks::FALSE_SHARES;
use crate::quorum::Patience;
use crate::trials::{Step, What};

impl Aggregator {
    /// Looks for the closing that this one should follow, and recomputes its mean unless most have gone on from it.
    pub(super) fn consider_globals(&mut self) {
        let waited = self.waited();
        let judge = self.judge(waited);
        let is_late = self.open.opened.is_some() && judge.patience() == Patience::DeadlineOver;
        // What most have gone on from was looked at. What could not be recomputed waits until there is nothing else to do.
        let is_unproven = |said: &Announced<'_>| self.unproven.contains(&said.id);
        let needs_no_trial =
            |said: Announced<'_>| judge.is_vouched_for(said) || is_late && is_unproven(&said);
        let open = self.view.globals();
        let open = open.filter(|said| !is_unproven(said) || needs_no_trial(*said));
        let strength = |said: Announced<'_>| {
            // Each trial takes its time, so what a doubted author closed is tried last.
            let is_good = !self.view.is_doubtful(said.author);
            (is_good, judge.support(said), said.round)
        };
        let found = judge.look(open, |one, other| strength(one) > strength(other));
        let follows_at_once = found
            .best
            .as_ref()
            .is_some_and(|best| needs_no_trial(best.announced()));
        self.chain.note(&found);
        if self.chain.waits_for_updates() && found.best.is_none() {
            // What is not followed yet may be, once the grace time is over.
            let look = Timer::Look(self.open_round());
            self.outbox
                .set_timer(look, self.now + self.spec.round.grace());
        }
        for (author, closing, reason) in found.false_ones {
            self.view.refute(closing);
            self.convict(author, reason);
        }
        let when = (self.now, self.spec.as_ref(), self.open_round());
        chain::ask_for(found.lacking, &mut self.view, &mut self.outbox, when);
        match found.best {
            Some(closed) if follows_at_once => {
                self.follow(closed.author, closed.round, &closed.global);
            }
            Some(closed) => self.begin_trial(closed),
            None => {}
        }
    }

    /// Tells how long the open round has been waited for.
    fn waited(&self) -> Duration {
        let since = self.open.opened.or(self.started);
        since.map_or(Duration::ZERO, |since| self.now.since(since))
    }

    fn judge(&self, waited: Duration) -> Judge<'_> {
        Judge {
            spec: &self.spec,
            schedule: &self.schedule,
            broadcast_set: self.broadcast_set,
            view: &self.view,
            head: self.chain.head(),
            chain: &self.chain,
            me: self.me,
            trains: false,
            aggregates: true,
            // An aggregator has no model of its own: before the first round it takes the members' word for what everybody
            // started from.
            initial: self.open.closer.common_parent(),
            waited,
        }
    }

    /// Fetches the members' parts, to order the mean when they are here. A better closing takes the place of the one that
    /// is being tried.
    fn begin_trial(&mut self, closed: Closed) {
        let author = closed.author;
        if self.trials.know(author, &closed.global) {
            return;
        }
        // One trial at a time: only the best closing can be followed.
        self.trials.clear();
        if let Some(slices) = Follower::slices(&self.view, &closed) {
            // Each slice is looked at by those who draw it. Here it matters what they are together.
            let (round, until) = (closed.round, self.now + self.spec.round.deadline());
            let number = self.trials.begin_slices(closed, None, What::Slices);
            return self.outbox.push(Output::Join(Box::new(JoinOrder {
                round,
                purpose: JoinPurpose::Verify(number),
                slices,
                closer: Some(author),
                until,
            })));
        }
        let mut fetched = Vec::new();
        let masked = self.chain.masked(&self.view, &closed);
        if self.schedule.masks() && masked.is_none() {
            return self.on_unproven(&closed);
        }
        for (node, blob) in self.trials.begin(closed, None, masked) {
            // Equal parts are one blob: under masks all who are on no roster publish the same one.
            if fetched.contains(&blob.id) {
                continue;
            }
            fetched.push(blob.id);
            self.outbox.push(Output::Fetch(Fetch {
                blob,
                kind: FetchKind::Shared,
                from: vec![node, author],
                base: self.chain.head().mean.map(|mean| mean.id),
                until: self.now + self.spec.round.deadline(),
            }));
        }
    }

    /// Takes note of a part that is here, or that cannot be had.
    pub(super) fn resolve_trial(&mut self, arrival: Arrival) {
        for step in self.trials.resolve(arrival) {
            match step {
                Step::Average(order) => self.outbox.push(Output::Average(order)),
                Step::Impossible(number) => self.on_recomputed(number, None),
            }
        }
    }

    /// The mean was recomputed, or could not be (`None`).
    pub(super) fn on_recomputed(&mut self, number: u32, mean: Option<BlobRef>) {
        let Some(ended) = self.trials.end(number, mean) else {
            return;
        };
        self.trials.clear();
        let mut faults = mean.map_or(Vec::new(), |actual| ended.faults(actual));
        let closed = ended.closed;
        match mean {
            Some(_) if let Some(fault) = faults.pop() => {
                let reason = format!("signed a false mean for round {}", closed.round);
                // Everybody hears of it: whoever followed that mean can recompute it, too.
                self.outbox.publish(closed.round, Body::Fault(fault));
                self.view.refute(closed.id());
                self.convict(closed.author, reason);
                self.consider_globals();
            }
            None => self.on_unproven(&closed),
            Some(_) => self.follow(closed.author, closed.round, &closed.global),
        }
    }

    /// The mean of a closing could not be recomputed. With updates to close a round from, an unproven chain can wait.
    fn on_unproven(&mut self, closed: &Closed) {
        if self.open.opened.is_none() {
            return self.follow(closed.author, closed.round, &closed.global);
        }
        self.view.doubt(closed.author);
        self.unproven.insert(closed.id());
        self.consider_globals();
    }

    /// A node spoke of a masked sum. What is false in it is signed, and everybody who hears it drops the node.
    pub(super) fn on_word(&mut self, node: NodeId, round: Round) {
        let sum = self.chain.sum(&self.view, round);
        if let Some(reason) = self.view.falsehood(sum.as_deref(), node, round) {
            self.on_lie(node, round, reason);
        }
    }

    /// The sum of a round should be open by now, and may be. If somebody gave away false shares, masks stay on for good: those of the
    /// sum, or of its group's.
    pub(super) fn on_masks_that_stay(&mut self, round: Round) {
        let sum = self.chain.newest_sum(&self.view, round);
        if let Some(liar) = sum.and_then(|sum| self.view.false_holder(&sum)) {
            self.on_lie(liar, round, FALSE_SHARES.to_owned());
        }
    }

    fn on_lie(&mut self, node: NodeId, round: Round, reason: String) {
        if node != self.me && !self.view.is_banned(node) {
            let note = reason.clone();
            self.outbox.note(Note::LiedAboutMasks {
                node,
                round,
                reason: note,
            });
            self.convict(node, reason);
        }
    }

    pub(super) fn convict(&mut self, node: NodeId, reason: String) {
        self.view.ban(node);
        self.open.closer.remove(node);
        self.outbox.ban(node, reason);
    }
}
