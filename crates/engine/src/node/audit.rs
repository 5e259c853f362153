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
use super::exchanging::{Candidate, Exchange, Mean};
use crate::chain::Rank;
use crate::event::{AverageOrder, FetchKind, Note, Output, Purpose, Timer};

/// Shared parts up to this size are averaged by everybody when an acting aggregator closes the round.
const SMALL_SHARED_BYTES: u64 = 64 << 10;

/// A recomputation under way, or over.
#[derive(Debug)]
struct Trial {
    number: u32,
    author: NodeId,
    round: Round,
    global: Global,
    awaited: BTreeSet<BlobId>,
    accuser: Option<NodeId>,
    /// What the recomputation said, once it is over: false means that it could not be done.
    over: Option<bool>,
}

/// The recomputations of this round: one for each closing, so that none is taken for another.
#[derive(Debug, Default)]
pub(super) struct Trials {
    trials: Vec<Trial>,
    /// How many there have been.
    count: u32,
}

impl Trials {
    fn find(&mut self, author: NodeId, global: &Global) -> Option<&mut Trial> {
        self.trials
            .iter_mut()
            .find(|trial| trial.author == author && trial.global == *global)
    }

    /// Tells whether a closing was tried, or is being tried.
    pub(super) fn know(&self, author: NodeId, global: &Global) -> bool {
        self.trials
            .iter()
            .any(|trial| trial.author == author && trial.global == *global)
    }

    /// Visits the parts that are averaged in trials that are not over.
    pub(super) fn blobs(&self) -> impl Iterator<Item = BlobId> + '_ {
        let open = self.trials.iter().filter(|trial| trial.over.is_none());
        open.flat_map(|trial| &trial.global.members)
            .map(|member| member.shared.id)
    }

    pub(super) fn drop_those_of(&mut self, author: NodeId) {
        self.trials.retain(|trial| trial.author != author);
    }

    pub(super) fn clear(&mut self) {
        self.trials.clear();
    }
}

impl Node {
    /// Tells whether a closed round is recomputed before it is followed.
    pub(super) fn must_verify(&self, author: NodeId, round: Round, global: &Global) -> bool {
        let acted = self.rank(round, author) != Rank::Aggregator;
        let small = global.mean.size <= SMALL_SHARED_BYTES;
        let drawn = happens(
            self.spec.round.audit,
            b"fednode audit 1",
            self.draws,
            round,
            self.me,
        );
        author != self.me && ((acted && small) || drawn)
    }

    /// Fetches the members' parts, then orders the mean; once for each closing.
    pub(super) fn start_trial(
        &mut self,
        author: NodeId,
        round: Round,
        global: Global,
        accuser: Option<NodeId>,
    ) {
        if self.trials.know(author, &global) {
            return;
        }
        let members: Vec<(NodeId, BlobRef)> =
            global.members.iter().map(|m| (m.node, m.shared)).collect();
        let awaited = members.iter().map(|(_, blob)| blob.id).collect();
        self.trials.count += 1;
        let number = self.trials.count;
        self.trials.trials.push(Trial {
            number,
            author,
            round,
            global,
            awaited,
            accuser,
            over: None,
        });
        for (node, blob) in members {
            self.fetch(blob, FetchKind::Shared, vec![node, author]);
        }
    }

    pub(super) fn resolve_trials(&mut self, blob: BlobId, held: bool) {
        let mut failed = Vec::new();
        for trial in &mut self.trials.trials {
            if trial.over.is_some() || !trial.awaited.contains(&blob) {
                continue;
            }
            if !held {
                failed.push(trial.number);
                continue;
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
        for number in failed {
            self.on_recomputed(number, None);
        }
    }

    /// The mean was recomputed, or could not be (`None`), which proves nothing: if it had to be, somebody else closes the
    /// round.
    pub(super) fn on_recomputed(&mut self, number: u32, mean: Option<BlobRef>) {
        let mut trials = self.trials.trials.iter_mut();
        let Some(trial) = trials.find(|trial| trial.number == number && trial.over.is_none())
        else {
            return;
        };
        trial.over = Some(mean.is_some());
        let (author, round, accuser, global) = (
            trial.author,
            trial.round,
            trial.accuser,
            trial.global.clone(),
        );
        match mean {
            Some(actual) if actual.id != global.mean.id => {
                self.convict(author, round, global, actual.id)
            }
            Some(_) => {
                self.acquit(author, &global, true);
                if let Some(accuser) = accuser {
                    self.strike(accuser, format!("accused {} falsely", author.short()));
                }
            }
            None if self.refuses_unproven(author, round, &global) => {
                self.give_up_on_mean(global.mean.id)
            }
            None => self.acquit(author, &global, false),
        }
    }

    /// Tells whether a mean that cannot be recomputed is not followed: small parts that another node averaged in the
    /// aggregator's place are averaged by everybody, and who counted them can deliver them.
    fn refuses_unproven(&self, author: NodeId, round: Round, global: &Global) -> bool {
        let acted = self.rank(round, author) != Rank::Aggregator;
        acted && author != self.me && global.mean.size <= SMALL_SHARED_BYTES
    }

    fn convict(&mut self, accused: NodeId, round: Round, evidence: Global, actual: BlobId) {
        self.note(Note::CheatFound {
            node: accused,
            round,
        });
        self.publish(
            round,
            Body::Fault(Fault {
                accused,
                evidence,
                actual,
            }),
        );
        self.ban(accused, format!("signed a false mean for round {round}"));
    }

    fn acquit(&mut self, author: NodeId, global: &Global, is_recomputed: bool) {
        if let Some(exchange) = &mut self.exchange {
            let is_it = |candidate: &&mut Candidate| {
                candidate.author == author && candidate.global == *global
            };
            if let Some(candidate) = exchange.candidate.as_mut().filter(is_it) {
                candidate.on_trial = false;
            }
            if is_recomputed {
                exchange.resolve(global.mean.id, true);
            }
        }
    }

    /// A mean that nobody can deliver is recomputed from its members; if that fails too, somebody else must close the
    /// round.
    pub(super) fn recompute_lost_mean(&mut self) {
        let Some(exchange) = &mut self.exchange else {
            return;
        };
        let Some(candidate) = &mut exchange.candidate else {
            return;
        };
        let (author, round, global) = (candidate.author, candidate.round, candidate.global.clone());
        if !self.trials.know(author, &global) {
            candidate.on_trial = true;
            return self.start_trial(author, round, global, None);
        }
        self.give_up_on_mean(global.mean.id);
    }

    /// A mean is not to be had, or not to be trusted: another closing of the round takes its place.
    fn give_up_on_mean(&mut self, mean: BlobId) {
        let Some(exchange) = &mut self.exchange else {
            return;
        };
        exchange.unreachable.insert(mean);
        if exchange
            .candidate
            .as_ref()
            .is_some_and(|candidate| candidate.global.mean.id == mean)
        {
            exchange.candidate = None;
        }
        let takeover = Timer::Takeover(exchange.round);
        self.consider_globals();
        if self
            .exchange
            .as_ref()
            .is_some_and(Exchange::lacks_candidate)
        {
            self.set_timer(takeover, self.now);
        }
    }

    /// A mean that is slow to come is recomputed from its members while the fetch goes on: its author may be dead.
    pub(super) fn recompute_slow_mean(&mut self) {
        let candidate = self
            .exchange
            .as_mut()
            .and_then(|exchange| exchange.candidate.as_mut());
        let Some(candidate) = candidate.filter(|candidate| candidate.mean == Mean::Wanted) else {
            return;
        };
        if !self.trials.know(candidate.author, &candidate.global) {
            candidate.on_trial = true;
            let (author, round, global) =
                (candidate.author, candidate.round, candidate.global.clone());
            self.start_trial(author, round, global, None);
        }
    }

    /// Somebody says that a node signed a false mean: whoever has heard that node say it recomputes, if anybody could have
    /// followed it. Members that nobody else has heard of cost nobody a fetch.
    pub(super) fn handle_accusation(&mut self, accuser: NodeId, round: Round, fault: &Fault) {
        let (accused, evidence) = (fault.accused, &fault.evidence);
        if [accused, self.me].contains(&accuser) || accused == self.me {
            return;
        }
        if let Some(trial) = self.trials.find(accused, evidence) {
            trial.accuser.get_or_insert(accuser);
            if trial.over == Some(true) {
                self.strike(accuser, format!("accused {} falsely", accused.short()));
            }
            return;
        }
        let is_it = |(author, said_in, global): (NodeId, Round, &Global)| {
            author == accused && said_in == round && *global == *evidence
        };
        let was_said = self.view.globals().any(is_it);
        if was_said && 2 * self.view.confirmed(round, evidence) > evidence.members.len() {
            self.try_on_accusation(accused, round, evidence, accuser);
        }
    }

    fn try_on_accusation(
        &mut self,
        accused: NodeId,
        round: Round,
        evidence: &Global,
        accuser: NodeId,
    ) {
        let candidate = self
            .exchange
            .as_mut()
            .and_then(|exchange| exchange.candidate.as_mut());
        let is_it = |candidate: &&mut Candidate| {
            candidate.author == accused && candidate.global == *evidence
        };
        if let Some(candidate) = candidate.filter(is_it) {
            candidate.on_trial = true;
        }
        self.start_trial(accused, round, evidence.clone(), Some(accuser));
    }
}
