//! Keeping pace where experts are exchanged and nothing is averaged (FedMoE-DA with a frozen embedding).
//!
//! Elsewhere the closed round tells who took part in it and how long stragglers are waited for. Here every node looks for
//! itself: in refresh rounds, whose proxies the plans of the next rounds need, it waits for the updates of all who are there
//! and have not got as far; in every round the grace time starts when a quorum of them has.

use fednode_core::{NodeId, Round};

use super::Node;
use crate::event::Timer;

impl Node {
    fn sees_no_closed_rounds(&self) -> bool {
        self.spec.exchange.averaging.is_none() && self.spec.exchange.experts.is_some()
    }

    /// Returns who is there and due to train in a round, as (has got as far, has not).
    fn progress_of_others(&self, round: Round) -> (Vec<NodeId>, Vec<NodeId>) {
        let due = self
            .view
            .known()
            .filter(|node| *node != self.me && self.cohort.contains(*node));
        due.partition(|node| {
            self.view
                .newest_local(*node)
                .is_some_and(|(newest, _)| newest >= round)
        })
    }

    /// Waits for those who have not got as far.
    pub(super) fn wait_for_others(&mut self, round: Round) {
        if !self.sees_no_closed_rounds() {
            return;
        }
        let (_, late) = self.progress_of_others(round);
        if self.spec.refreshes_in(round)
            && let Some(exchange) = &mut self.exchange
        {
            exchange.updates_awaited = late.into_iter().collect();
        }
        self.look_at_the_pace(round);
    }

    /// Starts the grace time once a quorum has got as far as this node, itself included.
    pub(super) fn look_at_the_pace(&mut self, round: Round) {
        if !self.sees_no_closed_rounds() {
            return;
        }
        let (done, late) = self.progress_of_others(round);
        let is_quorum = done.len() + 1 >= self.spec.round.quorum_of(done.len() + late.len() + 1);
        let Some(exchange) = self
            .exchange
            .as_mut()
            .filter(|exchange| exchange.round == round)
        else {
            return;
        };
        if is_quorum && !std::mem::replace(&mut exchange.in_grace, true) {
            self.set_timer(Timer::Grace(round), self.now + self.spec.round.grace());
        }
    }
}
