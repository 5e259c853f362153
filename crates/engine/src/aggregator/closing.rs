//! Closing the open round: what is ordered, proposed and announced.

use fednode_core::Body;

use super::Aggregator;
use crate::closing::{Base, Step, Surroundings};
use crate::event::{AverageReport, Output, Purpose, Timer};

impl Aggregator {
    pub(super) fn order_mean(&mut self) {
        let Some(parent) = self.parent() else {
            return;
        };
        let previous = self.head().closing;
        let base = Base { previous, parent };
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
                let until = self.now + patience;
                self.outbox.set_timer(Timer::Unmask(round), until);
                let late = self.now + 2 * self.spec.round.grace();
                self.outbox.set_timer(Timer::Opened(round), late);
                self.outbox.publish(round, Body::Propose(proposal));
            }
            None => {}
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
            return;
        };
        let Some(parent) = self.parent() else {
            return self.open.closer.reopen();
        };
        let round = mean.round;
        let global = self.chain.close(parent, mean);
        // Published before it is followed: the announcement names the head that it follows.
        self.outbox.publish(round, Body::Global(global.clone()));
        self.follow(self.me, round, &global);
    }
}
