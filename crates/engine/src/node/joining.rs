//! Joining: meet the others, then follow the newest closed round, or begin with everybody.
//!
//! A latecomer adopts the current shared part, trains a round from it and only then publishes: before that its proxies
//! would live in another feature space (`moe-systems` §1.12.1). A restarted node joins too; if the federation has not
//! moved on, it continues in the phase that its checkpoint names.

use std::time::Duration;

use fednode_core::Round;

use super::Node;
use crate::event::{MergeOrder, Note, Output, Timer};
use crate::state::Phase;
use crate::status::Waiting;

/// Direct connections that are enough to begin, however large the federation: nobody connects to everybody.
const ENOUGH_PEERS: usize = 16;
/// How often joining looks again without being woken.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

impl Node {
    pub(super) fn on_start(&mut self) {
        self.joining_since = self.now;
        self.set_timer(Timer::Join, self.now + LOOK_AGAIN);
        if self.is_alone_by_design() {
            self.synced = true;
        }
        if self.state.phase != Phase::Joining && self.state.phase != Phase::Serving {
            self.resume_after = Some(self.state.phase);
            self.state.phase = Phase::Joining;
        }
    }

    /// An algorithm that shares nothing needs nobody, and neither does a federation of one.
    fn is_alone_by_design(&self) -> bool {
        let exchange = &self.spec.exchange;
        (exchange.averaging.is_none() && exchange.experts.is_none()) || self.spec.nodes == 1
    }

    pub(super) fn look_again_for_peers(&mut self) {
        if self.state.phase == Phase::Joining {
            if self
                .exchange
                .as_ref()
                .is_some_and(super::Exchange::is_stuck)
            {
                self.exchange = None;
            }
            self.set_timer(Timer::Join, self.now + LOOK_AGAIN);
        }
    }

    pub(super) fn try_to_join(&mut self) {
        if self.is_alone_by_design() {
            return self.begin();
        }
        // A node that comes back does not wait for ever for peers that may be gone.
        let patience_over = self.resume_after.is_some()
            && self.now.since(self.joining_since) > self.spec.round.grace();
        if !self.synced && !patience_over {
            return;
        }
        if self.spec.exchange.averaging.is_some() && self.follow_newest_global() {
            return;
        }
        // A closed round that its members have not confirmed to us yet means that the federation is under way.
        let under_way =
            self.unconfirmed && self.now.since(self.joining_since) < self.spec.round.deadline();
        if !under_way && (self.resume_after.is_some() || self.n_present() >= self.n_needed()) {
            self.begin();
        }
    }

    fn begin(&mut self) {
        match self.resume_after.take() {
            None => self.start_round(self.state.round.next()),
            Some(Phase::Exchanging | Phase::Merging) if self.has_trained() => {
                self.resume_exchange()
            }
            Some(Phase::Pooling) => self.enter_pool(),
            Some(_) => self.start_round(self.state.round),
        }
    }

    fn has_trained(&self) -> bool {
        self.state
            .report
            .as_ref()
            .is_some_and(|report| report.round == self.state.round)
    }

    /// Publishes the finished update again, since it may never have left, and waits as before.
    fn resume_exchange(&mut self) {
        if let Some(report) = self.state.report.clone() {
            let body = fednode_core::Body::Local(self.local_body(&report));
            self.publish(report.round, body);
        }
        self.enter_exchange();
    }

    /// Follows the newest closed round if there is one ahead of this node: fetches its mean, then adopts it.
    fn follow_newest_global(&mut self) -> bool {
        if self.exchange.is_none() {
            let Some((author, round, global)) = self.best_global() else {
                return false;
            };
            // A node that resumes in the very round that was closed next goes through its exchange as usual.
            if self.resume_after.is_some() && round <= self.state.round {
                return false;
            }
            self.exchange = Some(super::Exchange::to_adopt(self.state.round, self.now));
            self.follow(author, round, global);
        }
        let ready = self.exchange.as_ref().and_then(super::Exchange::ready_mean);
        if let Some(mean) = ready {
            let adopt = Some(mean);
            let order = MergeOrder {
                round: self.state.round,
                adopt,
                rows: vec![],
                own: vec![],
                sources: [].into(),
            };
            self.state.phase = Phase::Merging;
            self.merging_since = self.now;
            self.outputs.push(Output::Merge(order));
        }
        true
    }

    /// Returns how many nodes are here, this one included.
    fn n_present(&self) -> usize {
        1 + self.view.neighbours().len()
    }

    fn n_needed(&self) -> usize {
        self.spec
            .round
            .quorum_of(self.spec.nodes as usize)
            .min(ENOUGH_PEERS)
    }

    pub(super) fn waiting_to_join(&self, now: fednode_core::Timestamp) -> Vec<Waiting> {
        let since = now.since(self.joining_since);
        let (present, needed) = (self.n_present(), self.n_needed());
        match () {
            () if self.exchange.is_some() => vec![Waiting::new("the newest mean", since)],
            () if !self.synced => vec![Waiting::new("a first peer to sync with", since)],
            () => vec![Waiting::new(
                format!("{needed} nodes to begin round 1 ({present} are here)"),
                since,
            )],
        }
    }

    /// Notes that the node leaves one round for another.
    pub(super) fn note_rejoined(&mut self, from: Round, to: Round) {
        if to > from.next() || to < from {
            self.note(Note::Rejoined { from, to });
        }
    }
}
