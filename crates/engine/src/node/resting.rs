//! Resting: a round in which this node is not drawn to train (`round.participation`).
//!
//! ```text
//! not drawn ──► waits until the round is closed ──► drawn for the next one, or all rounds are done: fetches the mean, adopts it
//!                                               └─► else: follows the chain and fetches nothing
//! ```
//!
//! It says nothing, answers whoever fetches from it, and does not close rounds in the aggregator's place: it has no update
//! that could be counted.

use fednode_core::{Global, NodeId, Round};

use super::Node;
use super::exchanging::Exchange;
use crate::cohort::Cohort;
use crate::event::{Note, Output};
use crate::state::{Head, Phase};

impl Node {
    /// Draws who trains in a round.
    pub(super) fn cohort_of(&self, round: Round) -> Cohort {
        let known = self.view.known().chain([self.me]);
        Cohort::draw(&self.spec, round, known)
    }

    /// Begins a round without training.
    pub(super) fn rest(&mut self) {
        let round = self.state.round;
        self.state.phase = Phase::Exchanging;
        let mut exchange = Exchange::to_adopt(round, self.now);
        exchange.needs_mean = self.spec.exchange.averaging.is_some();
        self.exchange = Some(exchange);
        self.note(Note::SitsOut(round));
        self.outputs.push(Output::Save);
        self.wait_for_the_mean(round);
    }

    /// Tells whether a round that was closed is over for this node, since it neither trained nor trains in the next.
    pub(super) fn rests_without_the_mean_of(&self, round: Round) -> bool {
        let rests = self.state.phase == Phase::Exchanging && !self.cohort.contains(self.me);
        rests && round.0 < self.spec.rounds && !self.cohort_of(round.next()).contains(self.me)
    }

    /// Follows a closed round without its mean.
    pub(super) fn follow_resting(&mut self, author: NodeId, round: Round, global: Global) {
        let Some(exchange) = &mut self.exchange else {
            return;
        };
        exchange.only_follows = true;
        let members = global.members.len() as u32;
        let (mean, parent) = (Some(global.mean), Some(global.parent));
        self.state.head = Head {
            round,
            mean,
            parent,
            history: global.history,
        };
        self.trials.clear();
        self.note(Note::RoundClosed {
            round,
            by: Some(author),
            members,
        });
    }

    /// Goes on to the next round, and to those after it that are closed already.
    pub(super) fn rest_on(&mut self) {
        while self
            .exchange
            .as_ref()
            .is_some_and(|exchange| exchange.only_follows)
        {
            let (rested, next) = (self.state.round, self.state.head.round.next());
            self.exchange = None;
            self.note_rejoined(rested, next);
            self.start_round(next);
        }
    }
}
