//! Whose closing is followed: somebody acted in the aggregator's place, or another aggregator is at work.
//!
//! A closed round names its members and their parts by hash, so whoever follows it can recompute its mean. Here that is
//! done each time: an aggregator that took a false mean for the newest would wait for updates that nobody makes. A
//! mean that cannot be recomputed is followed only when there is nothing else to do, with no update to close a round of
//! its own from, or when that round is past its deadline.

use fednode_core::{BlobId, BlobRef, NodeId};

use super::Aggregator;
use crate::chain::{self, Verdict};
use crate::event::{Arrival, Fetch, FetchKind, Output};
use crate::follower::Closed;
use crate::trials::Step;

impl Aggregator {
    /// Looks for the closing with most history that this one should follow, and recomputes its mean.
    pub(super) fn consider_globals(&mut self) {
        let deadline = self.spec.round.deadline();
        let opened = self.open.opened;
        let is_late = opened.is_some_and(|opened| self.now >= opened + deadline);
        let common = self.open.closer.common_parent();
        let (view, spec, schedule) = (&self.view, &self.spec, &self.schedule);
        let unproven = &self.unproven;
        let found = self.chain.look(
            view.globals(),
            |head, (_, round, global)| {
                // An aggregator has no model of its own: before the first round it takes the members' word for what
                // everybody started from.
                let initial = common.unwrap_or(global.parent);
                match chain::judge(head, initial, round, global, view, spec, schedule) {
                    // What could not be recomputed waits until there is nothing else to do.
                    Verdict::Next | Verdict::Switch
                        if !is_late && unproven.contains(&global.mean.id) =>
                    {
                        Verdict::Old
                    }
                    verdict => verdict,
                }
            },
            |(.., global), (.., known)| global.history > known.history,
        );
        for (author, reason) in found.false_ones {
            self.convict(author, reason);
        }
        match found.best {
            // Past the deadline there is no time for a trial: nodes that audit will find a false mean.
            Some(closed) if is_late => self.follow(&closed),
            Some(closed) => self.begin_trial(closed),
            None => {}
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
        let mut fetched = Vec::new();
        for (node, blob) in self.trials.begin(closed, None) {
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
    pub(super) fn resolve_trial(&mut self, blob: BlobId, arrival: Arrival) {
        for step in self.trials.resolve(blob, arrival) {
            match step {
                Step::Average(order) => self.outbox.push(Output::Average(order)),
                Step::Impossible(number) => self.on_recomputed(number, None),
            }
        }
    }

    /// The mean was recomputed, or could not be (`None`).
    pub(super) fn on_recomputed(&mut self, number: u32, mean: Option<BlobRef>) {
        let Some((closed, _)) = self.trials.end(number, mean) else {
            return;
        };
        self.trials.clear();
        match mean {
            Some(mean) if mean.id != closed.global.mean.id => {
                let reason = format!("signed a false mean for round {}", closed.round);
                self.convict(closed.author, reason);
                self.consider_globals();
            }
            // There are updates to close a round from, so an unproven chain can wait.
            None if self.open.opened.is_some() => {
                self.unproven.insert(closed.global.mean.id);
                self.consider_globals();
            }
            Some(_) | None => self.follow(&closed),
        }
    }

    fn convict(&mut self, node: NodeId, reason: String) {
        self.view.ban(node);
        self.open.closer.remove(node);
        self.outbox.ban(node, reason);
    }
}
