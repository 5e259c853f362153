//! Whose closing is followed: somebody acted in the aggregator's place, or another aggregator is at work.
//!
//! A closed round names its members and their parts by hash, so whoever follows it can recompute its mean. Here that is
//! done each time: an aggregator that took a false mean for the newest would wait for updates that nobody makes. A
//! mean that cannot be recomputed is followed only when there is nothing else to do, with no update to close a round of
//! its own from, or when that round is past its deadline.

use std::collections::BTreeSet;

use fednode_core::{BlobId, Global, NodeId, Round};

use super::Aggregator;
use crate::chain::{self, Verdict};
use crate::event::{AverageOrder, AverageReport, Fetch, FetchKind, Output, Purpose};

/// A recomputation under way.
#[derive(Debug)]
pub(super) struct Trial {
    /// What tells its answer from those to earlier ones.
    number: u32,
    author: NodeId,
    round: Round,
    global: Global,
    /// Members' parts that are not here yet.
    awaited: BTreeSet<BlobId>,
}

impl Trial {
    /// Visits the parts that are averaged.
    pub(super) fn blobs(&self) -> impl Iterator<Item = BlobId> + '_ {
        self.global.members.iter().map(|member| member.shared.id)
    }
}

impl Aggregator {
    /// Looks for the closing with most history that this one should follow, and recomputes its mean.
    pub(super) fn consider_globals(&mut self) {
        self.unconfirmed = false;
        let head = self.head;
        let is_late = self
            .opened
            .is_some_and(|opened| self.now >= opened + self.spec.round.deadline());
        let mut best: Option<(NodeId, Round, &Global)> = None;
        let mut false_ones = Vec::new();
        for (author, round, global) in self.view.globals() {
            let initial = self.closing.common_parent().unwrap_or(global.parent);
            match chain::judge(&head, initial, round, global, &self.view, &self.spec) {
                Verdict::Next | Verdict::Switch => {
                    let is_open = is_late || !self.unproven.contains(&global.mean.id);
                    if is_open && best.is_none_or(|(.., known)| global.history > known.history) {
                        best = Some((author, round, global));
                    }
                }
                Verdict::False(reason) => false_ones.push((author, reason)),
                Verdict::Unconfirmed => self.unconfirmed = true,
                Verdict::Old => {}
            }
        }
        let best = best.map(|(author, round, global)| (author, round, global.clone()));
        for (author, reason) in false_ones {
            self.convict(author, reason);
        }
        match best {
            Some((author, round, global)) if is_late => self.follow(author, round, &global),
            Some((author, round, global)) => self.try_closing(author, round, global),
            None => {}
        }
    }

    /// Fetches the members' parts, then orders the mean.
    fn try_closing(&mut self, author: NodeId, round: Round, global: Global) {
        if self
            .trial
            .as_ref()
            .is_some_and(|trial| trial.author == author && trial.global == global)
        {
            return;
        }
        let base = self.head.mean.map(|mean| mean.id);
        let until = self.now + self.spec.round.deadline();
        let mut awaited = BTreeSet::new();
        for member in &global.members {
            if awaited.insert(member.shared.id) {
                let (blob, from) = (member.shared, vec![member.node, author]);
                self.outputs.push(Output::Fetch(Fetch {
                    blob,
                    kind: FetchKind::Shared,
                    from,
                    base,
                    until,
                }));
            }
        }
        self.trials += 1;
        self.trial = Some(Trial {
            number: self.trials,
            author,
            round,
            global,
            awaited,
        });
    }

    /// Takes note of a part that is here, or that cannot be had.
    pub(super) fn resolve_trial(&mut self, blob: BlobId, held: bool) {
        let Some(trial) = self
            .trial
            .as_mut()
            .filter(|trial| trial.awaited.contains(&blob))
        else {
            return;
        };
        if !held {
            return self.on_recomputed(None);
        }
        trial.awaited.remove(&blob);
        if trial.awaited.is_empty() {
            let (round, members) = (trial.round, trial.global.members.clone());
            let purpose = Purpose::Verify(trial.number);
            self.outputs.push(Output::Average(AverageOrder {
                round,
                purpose,
                members,
            }));
        }
    }

    pub(super) fn on_verified(&mut self, number: u32, report: &AverageReport) {
        if self
            .trial
            .as_ref()
            .is_some_and(|trial| trial.number == number)
        {
            self.on_recomputed(report.mean.map(|mean| mean.id));
        }
    }

    fn on_recomputed(&mut self, mean: Option<BlobId>) {
        let Some(Trial {
            author,
            round,
            global,
            ..
        }) = self.trial.take()
        else {
            return;
        };
        match mean {
            Some(mean) if mean != global.mean.id => {
                self.convict(author, format!("signed a false mean for round {round}"));
                self.consider_globals();
            }
            None if self.opened.is_some() => {
                self.unproven.insert(global.mean.id);
                self.consider_globals();
            }
            Some(_) | None => self.follow(author, round, &global),
        }
    }

    fn convict(&mut self, node: NodeId, reason: String) {
        self.view.ban(node);
        self.closing.remove(node);
        self.outputs.push(Output::Ban { node, reason });
    }
}
