//! Audit: recomputing the mean that somebody else signed.
//!
//! A closed round names its members and their parts by hash, so its mean can be recomputed by anybody. A node does so
//! with a small probability each round, and always when another node acted as aggregator for a part small enough that
//! everybody can average it (all-gather, `moe-systems` §1.12.3). The node waits for the result before it adopts. A
//! wrong mean convicts its signer; the accusation carries what was signed, and whoever hears it recomputes too.

use std::collections::BTreeSet;

use fednode_core::draw::happens;
use fednode_core::{BlobId, BlobRef, Body, Fault, Global, NodeId, Round};

use super::Node;
use super::exchanging::{Exchange, Mean};
use crate::chain::Rank;
use crate::event::{AverageOrder, FetchKind, Note, Output, Purpose, Timer};

/// Shared parts up to this size are averaged by everybody when an acting aggregator closes the round.
const SMALL_SHARED_BYTES: u64 = 64 << 10;

/// A recomputation under way.
#[derive(Debug)]
pub(super) struct Trial {
    round: Round,
    global: Global,
    awaited: BTreeSet<BlobId>,
    accuser: Option<NodeId>,
    /// What the recomputation said, once it is over: false means that it could not be done.
    over: Option<bool>,
}

impl Trial {
    /// Tells whether this closed round is the one on trial.
    pub(super) fn is_about(&self, global: &Global) -> bool {
        self.global == *global
    }
}

impl Node {
    /// Tells whether a closed round is recomputed before it is followed.
    pub(super) fn must_verify(&self, author: NodeId, round: Round, global: &Global) -> bool {
        let acted = self.rank(round, author) != Rank::Aggregator;
        let small = global.mean.size <= SMALL_SHARED_BYTES;
        let drawn = happens(self.spec.round.audit, b"fednode audit 1", self.federation, round, self.me);
        author != self.me && ((acted && small) || drawn)
    }

    /// Fetches the members' parts, then orders the mean.
    pub(super) fn start_trial(&mut self, author: NodeId, round: Round, global: Global, accuser: Option<NodeId>) {
        let members: Vec<(NodeId, BlobRef)> = global.members.iter().map(|m| (m.node, m.shared)).collect();
        let awaited = members.iter().map(|(_, blob)| blob.id).collect();
        self.trials.insert(author, Trial { round, global, awaited, accuser, over: None });
        for (node, blob) in members {
            self.fetch(blob, FetchKind::Shared, vec![node, author]);
        }
    }

    pub(super) fn resolve_trials(&mut self, blob: BlobId, held: bool) {
        let concerned = |trial: &Trial| trial.over.is_none() && trial.awaited.contains(&blob);
        let authors: Vec<NodeId> =
            self.trials.iter().filter(|(_, trial)| concerned(trial)).map(|(author, _)| *author).collect();
        for author in authors {
            let Some(trial) = self.trials.get_mut(&author) else { continue };
            if !held {
                self.on_recomputed(author, None);
                continue;
            }
            trial.awaited.remove(&blob);
            if trial.awaited.is_empty() {
                let (round, members) = (trial.round, trial.global.members.clone());
                let purpose = Purpose::Verify(author);
                self.outputs.push(Output::Average(AverageOrder { round, purpose, members }));
            }
        }
    }

    /// The mean was recomputed, or could not be (`None`), which proves nothing: if it had to be, somebody else closes the
    /// round.
    pub(super) fn on_recomputed(&mut self, author: NodeId, mean: Option<BlobRef>) {
        let Some(trial) = self.trials.get_mut(&author).filter(|trial| trial.over.is_none()) else { return };
        trial.over = Some(mean.is_some());
        let (round, accuser, global) = (trial.round, trial.accuser, trial.global.clone());
        match mean {
            Some(actual) if actual.id != global.mean.id => self.convict(author, round, global, actual.id),
            Some(actual) => {
                self.acquit(author, Some(actual.id));
                if let Some(accuser) = accuser {
                    self.strike(accuser, format!("accused {} falsely", author.short()));
                }
            }
            None if self.refuses_unproven(author, round, &global) => self.give_up_on_mean(global.mean.id),
            None => self.acquit(author, None),
        }
    }

    /// Tells whether a mean that cannot be recomputed is not followed: small parts that another node averaged in the
    /// aggregator's place are averaged by everybody, and who counted them can deliver them.
    fn refuses_unproven(&self, author: NodeId, round: Round, global: &Global) -> bool {
        let acted = self.rank(round, author) != Rank::Aggregator;
        acted && author != self.me && global.mean.size <= SMALL_SHARED_BYTES
    }

    fn convict(&mut self, accused: NodeId, round: Round, evidence: Global, actual: BlobId) {
        self.note(Note::CheatFound { node: accused, round });
        self.publish(round, Body::Fault(Fault { accused, evidence, actual }));
        self.ban(accused, format!("signed a false mean for round {round}"));
    }

    fn acquit(&mut self, author: NodeId, recomputed: Option<BlobId>) {
        if let Some(exchange) = &mut self.exchange {
            if let Some(candidate) = exchange.candidate.as_mut().filter(|candidate| candidate.author == author) {
                candidate.on_trial = false;
            }
            if let Some(mean) = recomputed {
                exchange.resolve(mean, true);
            }
        }
    }

    /// A mean that nobody can deliver is recomputed from its members; if that fails too, somebody else must close the
    /// round.
    pub(super) fn recompute_lost_mean(&mut self) {
        let Some(exchange) = &mut self.exchange else { return };
        let Some(candidate) = &mut exchange.candidate else { return };
        let (author, round, global) = (candidate.author, candidate.round, candidate.global.clone());
        let tried = self.trials.get(&author).is_some_and(|trial| trial.is_about(&global));
        if !tried {
            candidate.on_trial = true;
            return self.start_trial(author, round, global, None);
        }
        self.give_up_on_mean(global.mean.id);
    }

    /// A mean is not to be had, or not to be trusted: another closing of the round takes its place.
    fn give_up_on_mean(&mut self, mean: BlobId) {
        let Some(exchange) = &mut self.exchange else { return };
        exchange.unreachable.insert(mean);
        if exchange.candidate.as_ref().is_some_and(|candidate| candidate.global.mean.id == mean) {
            exchange.candidate = None;
        }
        let takeover = Timer::Takeover(exchange.round);
        self.consider_globals();
        if self.exchange.as_ref().is_some_and(Exchange::lacks_candidate) {
            self.set_timer(takeover, self.now);
        }
    }

    /// A mean that is slow to come is recomputed from its members while the fetch goes on: its author may be dead.
    pub(super) fn recompute_slow_mean(&mut self) {
        let candidate = self.exchange.as_mut().and_then(|exchange| exchange.candidate.as_mut());
        let Some(candidate) = candidate.filter(|candidate| candidate.mean == Mean::Wanted) else { return };
        if !self.trials.get(&candidate.author).is_some_and(|trial| trial.is_about(&candidate.global)) {
            candidate.on_trial = true;
            let (author, round, global) = (candidate.author, candidate.round, candidate.global.clone());
            self.start_trial(author, round, global, None);
        }
    }

    /// Somebody says that a node signed a false mean: whoever has heard that node say it recomputes.
    pub(super) fn handle_accusation(&mut self, accuser: NodeId, round: Round, fault: &Fault) {
        if accuser == self.me || fault.accused == self.me {
            return;
        }
        let was_said = self
            .view
            .globals()
            .any(|(author, said_in, global)| author == fault.accused && said_in == round && *global == fault.evidence);
        let trial = self.trials.get_mut(&fault.accused).filter(|trial| trial.is_about(&fault.evidence));
        match trial.map(|trial| (trial.over, trial.accuser.get_or_insert(accuser))) {
            Some((Some(true), _)) => self.strike(accuser, format!("accused {} falsely", fault.accused.short())),
            Some((None, _)) => {}
            _ if was_said => self.try_on_accusation(fault.accused, round, &fault.evidence, accuser),
            _ => {}
        }
    }

    fn try_on_accusation(&mut self, accused: NodeId, round: Round, evidence: &Global, accuser: NodeId) {
        let candidate = self.exchange.as_mut().and_then(|exchange| exchange.candidate.as_mut());
        if let Some(candidate) = candidate.filter(|candidate| candidate.author == accused) {
            candidate.on_trial = true;
        }
        self.start_trial(accused, round, evidence.clone(), Some(accuser));
    }
}
