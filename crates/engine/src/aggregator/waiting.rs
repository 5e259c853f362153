//! What an aggregator waits for, in words.

use std::time::Duration;

use fednode_core::{Round, Timestamp};

use super::Aggregator;
use crate::state::Phase;
use crate::status::{Cause, Status, Waiting};

impl Aggregator {
    /// Returns what is being waited for.
    pub fn status(&self, now: Timestamp) -> Status {
        let (phase, head) = (self.phase(), self.head().clone());
        let (round, waiting) = match phase {
            Phase::Serving => (head.round, vec![]),
            _ => (head.round.next(), self.waiting(now)),
        };
        Status {
            phase,
            round,
            head,
            waiting,
        }
    }

    fn waiting(&self, now: Timestamp) -> Vec<Waiting> {
        let round = self.open_round();
        let since = now.since(self.open.opened.unwrap_or(self.open.since));
        if self.spec.exchange.averaging.is_none() {
            let what = "members to introduce to each other: this federation takes no mean";
            return vec![Waiting::new(Cause::Members, what.to_owned(), since)];
        }
        if self.open.closer.is_averaging() {
            let what = format!("the mean of round {round}, which it computes");
            return vec![Waiting::new(Cause::OwnWork, what, since)];
        }
        let mut waiting = Vec::new();
        if let Some(tried) = self.trials.open_round() {
            let what =
                format!("shared parts, to recompute round {tried} as another node closed it");
            let whom = self.trials.awaited_from();
            let cause = if whom.is_empty() {
                Cause::OwnWork
            } else {
                Cause::Parts
            };
            waiting.push(Waiting::new(cause, what, since).from_peers(whom));
        }
        match self.open.opened {
            None => waiting.push(self.for_a_first_update(round, since)),
            Some(opened) => {
                let deadline = opened + self.spec.round.deadline();
                let rest = self.for_the_rest(round, since);
                let left = deadline.since(now);
                // Past the deadline it closes as soon as most of those who were heard can be counted.
                let bounded = rest.into_iter().map(|it| match left {
                    Duration::ZERO => it,
                    left => it.for_at_most(left),
                });
                waiting.extend(bounded);
            }
        }
        waiting
    }

    fn for_a_first_update(&self, round: Round, since: Duration) -> Waiting {
        let whom = self.expected();
        if whom.is_empty() {
            let what = format!("a first node that trains in round {round}");
            return Waiting::new(Cause::Members, what, since);
        }
        let what = format!("a first local update of round {round}");
        Waiting::new(Cause::Updates, what, since).from_peers(whom)
    }

    /// Returns what the open round lacks: updates, parts, or nodes that were planned.
    fn for_the_rest(&self, round: Round, since: Duration) -> Vec<Waiting> {
        let (expected, closer) = (self.expected(), &self.open.closer);
        let (n_expected, planned) = (expected.len(), self.planned());
        let quorum = self.spec.round.quorum_of(n_expected.max(planned));
        let held = closer.n_held();
        let mut waiting = Vec::new();
        let unheard = closer.unheard(expected.into_iter());
        if !unheard.is_empty() {
            let what = format!("local updates of round {round}");
            waiting.push(Waiting::new(Cause::Updates, what, since).from_peers(unheard));
        }
        let wanted = closer.wanted();
        if !wanted.is_empty() {
            let what = format!("shared parts of round {round}");
            waiting.push(Waiting::new(Cause::Parts, what, since).from_peers(wanted));
        }
        if held < quorum && n_expected < planned {
            let what = format!("{planned} nodes in round {round} ({n_expected} are here)");
            waiting.push(Waiting::new(Cause::Members, what, since));
        }
        if waiting.is_empty() && !self.synced {
            let what = "what other members know of closed rounds";
            waiting.push(Waiting::new(Cause::FirstPeer, what, since));
        } else if waiting.is_empty() {
            // A mean takes two, whoever has left.
            let needed = quorum.max(2);
            let here = self.n_counted();
            let what = format!("{needed} shared parts to close round {round} ({here} are here)");
            let whom = closer.failed();
            waiting.push(Waiting::new(Cause::Quorum, what, since).from_peers(whom));
        }
        waiting
    }
}
