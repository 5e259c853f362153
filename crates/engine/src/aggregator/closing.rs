//! Closing the open round: what is ordered, proposed and announced.

use fednode_core::{BlobRef, Body, NodeId};

use super::Aggregator;
use crate::closing::{Base, Mean, Step, Surroundings};
use crate::event::{
    AverageReport, Fetch, FetchKind, JoinPurpose, JoinReport, Output, Purpose, Timer,
};

impl Aggregator {
    pub(super) fn order_mean(&mut self) {
        let Some(base) = self.base() else {
            return;
        };
        let patience = self.spec.round.grace() / 2;
        let around = Surroundings {
            chain: &self.chain,
            view: &self.view,
            now: self.now,
            me: self.me,
            patience,
        };
        match self.open.closer.next(base, self.draws, around) {
            Some(Step::Average(order)) => self.outbox.push(Output::Average(order)),
            Some(Step::Propose(round, proposal)) => {
                let of_slices = self.open.closer.slices_until();
                let until = of_slices.unwrap_or(self.now + patience);
                self.outbox.set_timer(Timer::Unmask(round), until);
                if of_slices.is_none() {
                    // Members agree first and take masks off then. Both words have to come.
                    let late = self.now + 2 * self.spec.round.grace();
                    self.outbox.set_timer(Timer::Opened(round), late);
                }
                self.outbox.publish(round, Body::Propose(proposal));
            }
            Some(Step::Join(order)) => self.outbox.push(Output::Join(Box::new(order))),
            Some(Step::Fetch(parts)) => self.fetch_all(parts),
            None => {}
        }
    }

    /// Slices did not come: fetches all parts.
    fn fetch_all(&mut self, parts: Vec<(NodeId, BlobRef)>) {
        for (node, blob) in parts {
            self.outbox.push(Output::Fetch(Fetch {
                blob,
                kind: FetchKind::Shared,
                from: vec![node],
                base: self.head().mean.map(|mean| mean.id),
                until: self.now + self.spec.round.deadline(),
            }));
        }
    }

    pub(super) fn handle_joined(&mut self, report: &JoinReport) {
        match report.purpose {
            JoinPurpose::Close => self.on_joined(report),
            JoinPurpose::Verify(trial) => self.on_recomputed(trial, report.mean),
            JoinPurpose::Follow => debug_assert!(false, "an aggregator adopts nothing"),
        }
    }

    fn on_joined(&mut self, report: &JoinReport) {
        match self.open.closer.on_joined(report) {
            Ok(mean) => self.announce(mean),
            Err(Some(Step::Fetch(parts))) => self.fetch_all(parts),
            Err(_) => {}
        }
    }

    pub(super) fn handle_averaged(&mut self, report: AverageReport) {
        self.outbox.note_disbelieved(&report);
        match report.purpose {
            Purpose::Close => self.on_averaged(report),
            Purpose::Verify(trial) => self.on_recomputed(trial, report.mean),
        }
    }

    /// Announces the round that the mean closes.
    fn on_averaged(&mut self, report: AverageReport) {
        // A round that somebody else closed meanwhile is not closed again.
        if !self.open.closer.is_averaging() {
            return;
        }
        self.view.doubt_refused(&report);
        let Some(mean) = self.open.closer.on_averaged(report, &mut self.outbox) else {
            // The rest is ordered at the end of this input, if it is enough.
            return;
        };
        // Parts of those who are doubted are fetched whole, so the next round waits for no slices of theirs.
        for node in self.open.closer.withheld() {
            self.view.doubt(node);
        }
        self.announce(mean);
    }

    fn announce(&mut self, mean: Mean) {
        let Some(base) = self.base().filter(|base| mean.is_of(*base)) else {
            return self.open.closer.reopen();
        };
        let round = mean.round;
        let global = self.chain.close(base.parent, mean);
        // Published before it is followed: the announcement names the head that it follows.
        self.outbox.publish(round, Body::from(global.clone()));
        self.follow(self.me, round, &global);
    }

    /// Tells whether most of those whose update of the open round was heard could be counted. Nobody would follow less.
    pub(super) fn is_most_of_heard(&self) -> bool {
        let Some(base) = self.base() else {
            return false;
        };
        let (round, members) = self.open.closer.members(base, self.draws);
        let heard = self
            .view
            .nodes()
            .locals(round)
            .filter(|(node, _)| !self.view.is_doubtful(*node));
        2 * members.len() > heard.count()
    }

    /// Returns how many of the parts that are held would be in the mean: those that follow the same closing as this machine.
    pub(super) fn n_counted(&self) -> usize {
        let base = self.base();
        base.map_or(0, |base| self.open.closer.n_held_of(base))
    }

    /// Returns what the members of the open round have trained from; before the first mean, what most nodes started from.
    pub(super) fn base(&self) -> Option<Base> {
        let (mean, previous) = (self.head().mean, self.head().closing);
        let parent = mean.map(|mean| mean.id);
        let parent = parent.or_else(|| self.open.closer.common_parent())?;
        Some(Base { previous, parent })
    }
}
