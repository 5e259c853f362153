//! What a round waits for, in words.

use std::collections::BTreeSet;
use std::time::Duration;

use fednode_core::{NodeId, Timestamp};

use super::{Exchange, acting};
use crate::node::shared::Shared;
use crate::status::{Cause, Waiting};

impl Exchange {
    /// Waits for the updates of these nodes, unless stragglers have had their time.
    pub(in crate::node) fn await_updates(&mut self, nodes: impl Iterator<Item = NodeId>) {
        if !self.grace_over {
            self.updates_awaited = nodes.collect();
        }
    }

    /// Waits for nobody's update any more but those of these nodes.
    pub(in crate::node) fn await_only(&mut self, is_here: impl Fn(NodeId) -> bool) {
        self.updates_awaited.retain(|node| is_here(*node));
    }

    /// Returns those for whom the round waits in vain at its deadline: of whom nothing was heard that counts, or that plans need.
    pub(super) fn held_up_by(&self, shared: &Shared) -> BTreeSet<NodeId> {
        let mut late = self.updates_awaited.clone();
        if shared.averages() && self.mean.lacks_candidate() {
            late.extend(acting::unheard(shared, self.round));
        }
        late
    }

    /// Returns what is waited for, most important first.
    pub(in crate::node) fn waiting(&self, shared: &Shared, now: Timestamp) -> Vec<Waiting> {
        let since = now.since(self.started);
        let mut waiting: Vec<Waiting> = self.for_the_mean(shared, since).into_iter().collect();
        let owners = self.experts.owners_awaited();
        let updates: BTreeSet<NodeId> = owners.union(&self.updates_awaited).copied().collect();
        let others = [
            (Cause::Updates, "local updates", updates),
            (
                Cause::Experts,
                "experts",
                self.experts.owners_on_their_way(),
            ),
            (Cause::Proxies, "proxies", shared.proxies.owners()),
        ];
        for (cause, what, mut whom) in others {
            let own = whom.remove(&shared.me);
            if !whom.is_empty() {
                let whom = whom.into_iter().collect();
                waiting.push(Waiting::new(cause, what, since).from_peers(whom));
            } else if own {
                let what = "its own update to be signed";
                waiting.push(Waiting::new(Cause::OwnWork, what, since));
            }
        }
        let left = self.end(shared).since(now);
        waiting.into_iter().map(|it| it.for_at_most(left)).collect()
    }

    /// Returns what the mean of the round is waiting for, if that is not here.
    pub(in crate::node) fn for_the_mean(
        &self,
        shared: &Shared,
        since: Duration,
    ) -> Option<Waiting> {
        if self.mean.lacks_candidate() {
            return Some(self.for_a_closing(shared, since));
        }
        let closed = self.mean.candidate().filter(|_| self.mean.lacks_mean())?;
        let round = closed.round;
        let is_on_trial = self.mean.is_on_trial();
        if !is_on_trial && closed.author != shared.me {
            let what = format!("the mean of round {round}");
            let whom = vec![closed.author];
            return Some(Waiting::new(Cause::Mean, what, since).from_peers(whom));
        }
        let mut whom = shared.trials.awaited_from();
        whom.retain(|node| *node != shared.me && is_on_trial);
        Some(if whom.is_empty() {
            let what = format!("the mean of round {round}, which this node computes");
            Waiting::new(Cause::OwnWork, what, since)
        } else {
            let what = format!("shared parts, to recompute the mean of round {round}");
            Waiting::new(Cause::Parts, what, since).from_peers(whom)
        })
    }

    /// Nobody closed the round: says whose turn it is, or what that one lacks.
    fn for_a_closing(&self, shared: &Shared, since: Duration) -> Waiting {
        let round = self.round;
        if let Some(acting) = &self.acting {
            return acting.waiting(shared.me, round, since);
        }
        let said = shared.view.globals();
        let said = said.filter(|said| said.round >= round && said.author != shared.me);
        let closers: BTreeSet<NodeId> = said.map(|said| said.author).collect();
        if shared.chain.waits_for_updates() && !closers.is_empty() {
            let what = format!("updates that a closing of round {round} counts, or its turn");
            let whom = closers.into_iter().collect();
            return Waiting::new(Cause::Evidence, what, since).from_peers(whom);
        }
        // Whoever closes the round waits for these itself, so they are the cause.
        let unheard = acting::unheard(shared, round);
        if !unheard.is_empty() && !acting::is_quorum_heard(shared, round) {
            let what = format!("enough local updates to close round {round}");
            return Waiting::new(Cause::Quorum, what, since).from_peers(unheard);
        }
        let (who, whom) = if shared.view.company().has_aggregator() {
            (
                "the aggregator",
                shared.view.company().aggregators().collect(),
            )
        } else {
            let next = acting::next_in_line(shared, round);
            ("a node in the aggregator's place", next)
        };
        let what = format!("{who} to close round {round}");
        Waiting::new(Cause::Closing, what, since).from_peers(whom)
    }
}
