//! A node's round as a pure state machine.
//!
//! ```text
//!             peers met, nothing closed yet              trained: publish
//!  Joining ──────────────────────────────────► Training ────────────────► Exchanging ──► Merging ──┐
//!     │  newest closed round fetched               ▲                        experts of the plan     │
//!     └──────────► Merging (adopt only) ───────────┤                        and the round's mean    │
//!                                                  └────────── next round ──────────────────────────┤
//!                                                          last round ──► Pooling (if wanted) ──► Serving
//! ```
//!
//! One file per phase; this one owns the state and dispatches. It never sends, fetches, trains, saves or sleeps.

mod audit;
mod closing_in_place;
mod exchanging;
mod following;
mod joining;
mod keeping_pace;
mod merging;
mod planning;
mod pooling;
mod resting;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fednode_core::draw::DrawSeed;
use fednode_core::{
    Advert, AggregationPlan, Audience, BlobId, BlobRef, Body, FederationSpec, Global, Lineage,
    Local, LocalReport, NodeId, ParamSet, ProxyOffer, ProxySet, Round, Timestamp,
};

use crate::chain::{self, Verdict};
use crate::cohort::Cohort;
use crate::event::{Fetch, FetchKind, Input, Note, Output, Timer};
use crate::state::{Phase, State};
use crate::status::{Status, Waiting};
use crate::view::View;

use self::audit::Trials;
use self::closing_in_place::Acting;
use self::exchanging::Exchange;
use self::following::Following;
use self::pooling::Pooling;

/// A node of the federation.
#[derive(Debug)]
pub struct Node {
    spec: Arc<FederationSpec>,
    draws: DrawSeed,
    audience: Audience,
    me: NodeId,
    initial: Lineage,
    state: State,
    view: View,
    synced: bool,
    /// The phase that a checkpoint named, while the node finds out whether the federation has moved on.
    resume_after: Option<Phase>,
    /// Whether a closed round of another chain waits for its members' confirmation.
    unconfirmed: bool,
    joining_since: Timestamp,
    /// Who trains in this round.
    cohort: Cohort,
    exchange: Option<Exchange>,
    pooling: Option<Pooling>,
    following: Following,
    acting: Option<Acting>,
    trials: Trials,
    /// Proxies being fetched: whose, and of which round.
    proxies_wanted: BTreeMap<BlobId, Vec<(NodeId, Round)>>,
    merging_since: Timestamp,
    now: Timestamp,
    outputs: Vec<Output>,
}

impl Node {
    /// Makes a node that starts from the initial shared part, which all nodes derive alike from the spec's seed.
    pub fn new(spec: Arc<FederationSpec>, me: NodeId, initial_shared: Option<BlobRef>) -> Self {
        let fallback = BlobId::of(&spec.canonical_bytes());
        Self::restore(
            spec,
            me,
            initial_shared,
            State::new(initial_shared, fallback),
        )
    }

    /// Makes a node that goes on from a checkpoint.
    pub fn restore(
        spec: Arc<FederationSpec>,
        me: NodeId,
        initial_shared: Option<BlobRef>,
        state: State,
    ) -> Self {
        let keep = spec
            .exchange
            .experts
            .as_ref()
            .map_or(1, |experts| experts.refresh_every);
        Self {
            draws: spec.draw_seed(),
            audience: Audience::of(&spec),
            me,
            initial: initial_shared
                .map_or_else(|| BlobId::of(&spec.canonical_bytes()), |blob| blob.id),
            state,
            view: View::new(keep + 1),
            synced: false,
            resume_after: None,
            unconfirmed: false,
            joining_since: Timestamp::default(),
            cohort: Cohort::Everybody,
            exchange: None,
            pooling: None,
            following: Following::default(),
            acting: None,
            trials: Trials::default(),
            proxies_wanted: BTreeMap::new(),
            merging_since: Timestamp::default(),
            now: Timestamp::default(),
            outputs: Vec::new(),
            spec,
        }
    }

    /// Takes an input and returns what to do about it.
    pub fn handle(&mut self, now: Timestamp, input: Input) -> Vec<Output> {
        self.now = now;
        match input {
            Input::Start => self.on_start(),
            Input::PeerUp { node, role } => self.view.connect(node, role),
            Input::PeerDown { node } => self.handle_peer_down(node),
            Input::Synced => self.synced = true,
            Input::Advert(advert) => self.handle_advert(&advert),
            Input::Fetched(blob) => self.handle_fetched(blob, true),
            Input::FetchFailed(blob) => self.handle_fetched(blob, false),
            Input::Proxies { blob, proxies } => self.handle_proxies(blob, &proxies),
            Input::Trained(report) => self.on_trained(report),
            Input::Merged(report) => self.on_merged(&report),
            Input::Averaged(report) => self.handle_averaged(report),
            Input::Module(report) => self.on_module(report),
            Input::Pooled(report) => self.on_pooled(&report),
            Input::Timer(timer) => self.handle_timer(timer),
            Input::Leave => self.publish(self.state.round, Body::Leave),
        }
        self.advance();
        std::mem::take(&mut self.outputs)
    }

    /// Returns where it stands.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Returns what a checkpoint must keep: where it stands or, while it finds out whether the federation has moved on,
    /// where it goes on if that has not.
    pub fn checkpoint(&self) -> State {
        let phase = match self.state.phase {
            Phase::Joining => self.resume_after.unwrap_or(Phase::Joining),
            phase => phase,
        };
        State {
            phase,
            ..self.state.clone()
        }
    }

    /// Returns the plan in force.
    pub fn plan(&self) -> Option<&AggregationPlan> {
        self.state.plan.as_ref()
    }

    /// Returns the blobs that this node will still need; garbage collection must not take them.
    pub fn needed_blobs(&self) -> BTreeSet<BlobId> {
        let report = self.state.report.iter();
        let own = report.flat_map(|report| {
            let proxies = match &report.proxies {
                Some(ProxyOffer::Blob(blob)) => Some(blob.id),
                _ => None,
            };
            let experts = report
                .experts
                .iter()
                .map(|offer| offer.blob)
                .chain(report.own_experts.iter().copied());
            experts
                .map(|blob| blob.id)
                .chain(report.shared.map(|blob| blob.id))
                .chain(proxies)
        });
        let held = self.state.held.values().map(|held| held.blob.id);
        let sources = self.exchange.iter().flat_map(Exchange::blobs);
        let pool = self
            .pooling
            .iter()
            .flat_map(Pooling::blobs)
            .chain(self.state.module.map(|blob| blob.id));
        let averaged = self
            .acting
            .iter()
            .flat_map(Acting::blobs)
            .chain(self.trials.blobs());
        // The mean before is what others pack the newest against.
        let means = self
            .state
            .head
            .mean
            .map(|mean| mean.id)
            .into_iter()
            .chain(self.state.head.parent);
        own.chain(held)
            .chain(sources)
            .chain(pool)
            .chain(averaged)
            .chain(means)
            .collect()
    }

    /// Returns what this node is doing and waiting for.
    pub fn status(&self, now: Timestamp) -> Status {
        let waiting = match self.state.phase {
            Phase::Joining => self.waiting_to_join(now),
            Phase::Training => vec![Waiting::new("the trainer", now.since(self.joining_since))],
            Phase::Exchanging => self.waiting_in_exchange(now),
            Phase::Merging => vec![Waiting::new("the merge", now.since(self.merging_since))],
            Phase::Pooling => self.waiting_in_pool(now),
            Phase::Serving => Vec::new(),
        };
        Status {
            phase: self.state.phase,
            round: self.state.round,
            head: self.state.head,
            waiting,
        }
    }

    /// Returns whose updates can change what this node does now; `None` if anybody's can.
    ///
    /// Until the next input, the updates of all other nodes may as well be given to [`Self::record_update`].
    pub fn awaited_updates(&self) -> Option<impl Iterator<Item = NodeId> + '_> {
        let waits_for_others = match self.state.phase {
            Phase::Training | Phase::Merging => false,
            Phase::Exchanging => !self.view.has_aggregator(),
            Phase::Joining | Phase::Pooling | Phase::Serving => true,
        };
        let is_anybodys = waits_for_others || self.acting.is_some() || self.unconfirmed;
        (!is_anybodys).then(|| self.exchange.iter().flat_map(Exchange::awaited))
    }

    /// Records an update that changes nothing now: its author is not among [`Self::awaited_updates`].
    pub fn record_update(&mut self, advert: &Arc<Advert>) {
        self.view.record(advert);
    }

    /// Makes progress wherever everything that was waited for has arrived.
    fn advance(&mut self) {
        match self.state.phase {
            Phase::Joining => self.try_to_join(),
            Phase::Exchanging => {
                self.act_if_alone_first();
                self.try_to_merge();
                self.rest_on();
            }
            Phase::Pooling => self.advance_pool(),
            Phase::Training | Phase::Merging | Phase::Serving => {}
        }
    }

    fn handle_advert(&mut self, advert: &Arc<Advert>) {
        if !self.view.record(advert) {
            return;
        }
        match &advert.body {
            Body::Local(local) => self.handle_local(advert.author, advert.round, local),
            Body::Global(_) => self.consider_globals(),
            Body::Withdraw(withdraw) => self.handle_withdraw(advert.author, &withdraw.blobs),
            Body::Fault(fault) => self.handle_accusation(advert.author, advert.round, fault),
            Body::Leave => self.handle_departure(advert.author),
            Body::Pool(_) => {}
        }
    }

    fn handle_local(&mut self, author: NodeId, round: Round, local: &Local) {
        let fetches_all =
            (!self.spec.uses_sketches() || author == self.me) && self.cohort.contains(self.me);
        if fetches_all && local.lineage == self.state.lineage && round == self.state.round {
            self.want_proxies(author, round, local);
        }
        if author == self.me {
            return;
        }
        if let Some(acting) = &mut self.acting {
            let wanted = acting.offer(author, round, local);
            self.fetch_shared(wanted, author);
        }
        self.resolve_owner(author, round);
        if self.state.phase == Phase::Exchanging {
            self.look_at_the_pace(self.state.round);
        }
        if self.unconfirmed {
            self.consider_globals();
        }
    }

    fn handle_departure(&mut self, author: NodeId) {
        if let Some(acting) = &mut self.acting {
            acting.remove(author);
        }
        self.give_up_on(author);
    }

    /// An owner takes blobs back: they leave every plan in progress, and the copies are deleted, unless somebody else needs
    /// them: a name in an advert proves nothing of whose the blob is.
    fn handle_withdraw(&mut self, author: NodeId, blobs: &[BlobId]) {
        self.state
            .held
            .retain(|expert, held| expert.owner != author || !blobs.contains(&held.blob.id));
        if let Some(exchange) = &mut self.exchange {
            exchange.withdraw(author, blobs);
        }
        if let Some(pooling) = &mut self.pooling {
            pooling.withdraw(author, blobs);
        }
        if author != self.me {
            let needed = self.needed_blobs();
            let mut forgotten = self.view.nobody_elses(author, blobs);
            forgotten.retain(|blob| !needed.contains(blob));
            self.outputs.push(Output::Forget(forgotten));
        }
    }

    fn handle_fetched(&mut self, blob: BlobId, held: bool) {
        if !held {
            self.proxies_wanted.remove(&blob);
        }
        if let Some(acting) = &mut self.acting {
            acting.resolve(blob, held);
        }
        if let Some(exchange) = &mut self.exchange {
            exchange.resolve(blob, held);
        }
        if let Some(pooling) = &mut self.pooling {
            pooling.resolve(blob, held);
        }
        self.resolve_trials(blob, held);
        self.close_in_place_if_ready();
    }

    /// Starts fetching a node's proxies, or decodes them if they came inside the advert.
    fn want_proxies(&mut self, author: NodeId, round: Round, local: &Local) {
        let mixes = self
            .spec
            .exchange
            .experts
            .as_ref()
            .is_some_and(|experts| experts.peers_per_expert.limit() > 0);
        if !mixes || local.proxies.is_none() || self.view.has_proxies(author, round) {
            return;
        }
        match &local.proxies {
            None => {}
            Some(ProxyOffer::Inline(bytes)) => {
                let decoded =
                    ParamSet::decode(bytes).and_then(|params| ProxySet::from_params(&params));
                match decoded {
                    Ok(proxies) => self.view.keep_proxies(author, round, Arc::new(proxies)),
                    Err(error) => self.strike(author, format!("malformed proxies: {error}")),
                }
            }
            Some(ProxyOffer::Blob(blob)) => {
                let waiting = self.proxies_wanted.entry(blob.id).or_default();
                let is_new = waiting.is_empty();
                waiting.push((author, round));
                if is_new {
                    self.fetch(*blob, FetchKind::Proxies, vec![author]);
                }
            }
        }
    }

    fn handle_proxies(&mut self, blob: BlobId, proxies: &Arc<ProxySet>) {
        for (author, round) in self.proxies_wanted.remove(&blob).unwrap_or_default() {
            self.view.keep_proxies(author, round, Arc::clone(proxies));
        }
        if let Some(exchange) = &mut self.exchange {
            exchange.resolve(blob, true);
        }
    }

    /// Starts a round of training from the model as it is.
    fn start_round(&mut self, round: Round) {
        self.state.round = round;
        self.acting = None;
        self.cohort = self.cohort_of(round);
        if !self.cohort.contains(self.me) {
            return self.rest();
        }
        self.state.phase = Phase::Training;
        self.open_exchange();
        self.joining_since = self.now;
        self.note(Note::RoundStarted(round));
        self.outputs.push(Output::Save);
        self.outputs.push(Output::Train { round });
    }

    fn on_trained(&mut self, mut report: LocalReport) {
        if self.state.phase != Phase::Training || report.round != self.state.round {
            return;
        }
        report.lineage = self.state.lineage;
        let body = Body::Local(self.local_body(&report));
        self.publish(report.round, body);
        self.state.report = Some(report);
        self.enter_exchange();
    }

    fn local_body(&self, report: &LocalReport) -> Local {
        Local {
            lineage: report.lineage,
            parent: chain::lineage_of(&self.state.head, self.initial),
            shared: report.shared,
            experts: report.experts.clone(),
            proxies: report.proxies.clone(),
            sketches: report.sketches.clone(),
            peers: self.following.nearest().to_vec(),
            statistics: None,
            n_samples: report.n_samples,
        }
    }

    /// Returns the best announced closed round that this node should follow, with its author and round.
    ///
    /// Of two closings of one round the lower rank is better, of two chains the one with more history.
    fn best_global(&mut self) -> Option<(NodeId, Round, Global)> {
        let (head, initial) = (self.state.head, self.initial);
        let mut best: Option<(NodeId, Round, &Global)> = None;
        let mut false_ones = Vec::new();
        self.unconfirmed = false;
        for (author, round, global) in self.view.globals() {
            if self
                .exchange
                .as_ref()
                .is_some_and(|exchange| exchange.is_unreachable(global.mean.id))
            {
                continue;
            }
            match chain::judge(&head, initial, round, global, &self.view, &self.spec) {
                Verdict::Next | Verdict::Switch => {
                    let is_better = best.is_none_or(|(known_author, known_round, known)| {
                        match global.parent == known.parent {
                            true => self.rank(round, author) < self.rank(known_round, known_author),
                            false => global.history > known.history,
                        }
                    });
                    best = if is_better {
                        Some((author, round, global))
                    } else {
                        best
                    };
                }
                Verdict::False(reason) => false_ones.push((author, reason)),
                Verdict::Unconfirmed => self.unconfirmed = true,
                Verdict::Old => {}
            }
        }
        let best = best.map(|(author, round, global)| (author, round, global.clone()));
        for (author, reason) in false_ones {
            self.ban(author, reason);
        }
        best
    }

    fn rank(&self, round: Round, author: NodeId) -> chain::Rank {
        match author != self.me && self.view.is_aggregator(author) {
            true => chain::Rank::Aggregator,
            false => chain::Rank::acting(self.draws, round, author),
        }
    }

    fn handle_timer(&mut self, timer: Timer) {
        match timer {
            Timer::Join => self.look_again_for_peers(),
            Timer::Takeover(round) => self.on_takeover(round),
            Timer::Act(round) => self.on_turn_to_act(round),
            Timer::Grace(round) => self.on_grace_over(round),
            Timer::Deadline(round) => self.on_deadline(round),
            Timer::GiveUp(round) => self.on_nobody_closed(round),
            Timer::Pool(_) => self.on_pool_timer(),
        }
    }

    fn fetch(&mut self, blob: BlobRef, kind: FetchKind, from: Vec<NodeId>) {
        // Shared parts and their mean are steps from the mean before.
        let mean = self.state.head.mean.filter(|_| kind == FetchKind::Shared);
        self.fetch_after(mean.map(|mean| mean.id), blob, kind, from);
    }

    /// Fetches a blob of which this node may hold the version before.
    fn fetch_after(
        &mut self,
        base: Option<BlobId>,
        blob: BlobRef,
        kind: FetchKind,
        from: Vec<NodeId>,
    ) {
        let until = self.now + self.spec.round.deadline();
        self.outputs.push(Output::Fetch(Fetch {
            blob,
            kind,
            from,
            base,
            until,
        }));
    }

    fn fetch_shared(&mut self, blob: Option<BlobRef>, author: NodeId) {
        if let Some(blob) = blob {
            self.fetch(blob, FetchKind::Shared, vec![author]);
        }
    }

    fn publish(&mut self, round: Round, body: Body) {
        self.outputs.push(Output::Publish { round, body });
    }

    fn set_timer(&mut self, timer: Timer, at: Timestamp) {
        self.outputs.push(Output::SetTimer { timer, at });
    }

    fn note(&mut self, note: Note) {
        self.outputs.push(Output::Note(note));
    }

    fn strike(&mut self, node: NodeId, reason: String) {
        self.outputs.push(Output::Strike { node, reason });
    }

    /// Stops listening to a node that signed something false, and undoes what was waiting on its word.
    fn ban(&mut self, node: NodeId, reason: String) {
        self.view.ban(node);
        self.trials.drop_those_of(node);
        if let Some(acting) = &mut self.acting {
            acting.remove(node);
        }
        let exchange = self.exchange.as_mut();
        if exchange.is_some_and(|exchange| exchange.drop_candidate_of(node)) {
            self.set_timer(Timer::Takeover(self.state.round), self.now);
        }
        self.give_up_on(node);
        self.outputs.push(Output::Ban { node, reason });
    }
}
