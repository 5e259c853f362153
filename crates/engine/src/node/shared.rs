//! What outlives a phase: who this node is, whom it knows, which chain it follows, what its model is made of.
//!
//! Every reaction of a phase is given it, as context: phases own what they wait for, this owns the rest.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use fednode_core::draw::{DrawSeed, happens};
use fednode_core::spec::RoundSpec;
use fednode_core::{
    BlobId, BlobRef, Body, BroadcastSet, FederationSpec, Lineage, Local, LocalReport, NodeId,
    ProxyOffer, Round, Schedule, Timestamp,
};
use serde::{Deserialize, Serialize};

use super::closings::Closings;
use super::done::Done;
use super::exchange::Exchange;
use super::following::Following;
use super::memory::Memory;
use super::pace;
use super::proxies::{Proxies, most_bytes};
use crate::chain::{self, Judge, Rank};
use crate::closing::Base;
use crate::cohort::Cohort;
use crate::encoding::{broadcast_set_of_default_spec, schedule_of_default_spec};
use crate::event::{Fetch, FetchKind, Note, Output, Timer};
use crate::follower::{Announced, Closed, Follower};
use crate::masks::Sums;
use crate::outbox::Outbox;
use crate::state::Head;
use crate::stragglers::Stragglers;
use crate::trials::Trials;
use crate::view::View;

/// Bytes per second of the slowest transfer that is worth waiting for: an uplink of 256 kbit/s that eight peers share.
const SLOWEST: u64 = 4 << 10;

/// Shared parts up to this size are averaged by everybody when an acting aggregator closes the round.
const SMALL_SHARED_BYTES: u64 = 64 << 10;

/// Bytes of all members' statistics up to which every node fetches them.
const MOST_STATISTICS: u64 = 64 << 20;

/// What all phases share.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Shared {
    #[serde(skip)]
    pub(super) spec: Arc<FederationSpec>,
    #[serde(skip, default = "schedule_of_default_spec")]
    pub(super) schedule: Arc<Schedule>,
    pub(super) draws: DrawSeed,
    /// Decides in which rounds this node recomputes a mean. A daemon keeps it to itself.
    pub(super) audits: DrawSeed,
    #[serde(skip, default = "broadcast_set_of_default_spec")]
    pub(super) broadcast_set: BroadcastSet,
    pub(super) me: NodeId,
    /// What everybody starts from.
    initial: Lineage,
    /// What it did about masked sums so far.
    #[serde(default)]
    pub(super) done: Done,
    /// The time of the input that is being handled.
    pub(super) now: Timestamp,
    pub(super) view: View,
    pub(super) chain: Follower,
    pub(super) memory: Memory,
    /// Who trains in this round.
    pub(super) cohort: Cohort,
    pub(super) proxies: Proxies,
    pub(super) trials: Trials,
    /// How many closings were recomputed because a node accused their authors.
    #[serde(default)]
    pub(super) accusations: BTreeMap<NodeId, u32>,
    /// How long members take.
    #[serde(default)]
    pub(super) stragglers: Stragglers,
    /// An image of an earlier version has none.
    #[serde(default)]
    pub(super) closings: Closings,
    pub(super) following: Following,
    /// Slices of means that this node has averaged lately: others may still fetch them.
    #[serde(default)]
    pub(super) slices: VecDeque<(Round, BlobId)>,
    /// Empty between two inputs.
    #[serde(skip)]
    pub(super) outbox: Outbox,
}

impl Shared {
    pub(super) fn new(
        spec: Arc<FederationSpec>,
        me: NodeId,
        initial_shared: Option<BlobRef>,
        head: Head,
        memory: Memory,
    ) -> Self {
        let initial = initial_shared.map(|blob| blob.id);
        let schedule = Arc::new(Schedule::of(&spec));
        let masked = Sums::of(&spec, &schedule);
        Self {
            draws: spec.draw_seed(),
            audits: spec.draw_seed(),
            broadcast_set: BroadcastSet::of(&spec),
            me,
            initial: initial.unwrap_or_else(|| BlobId::of(&spec.canonical_bytes())),
            now: Timestamp::default(),
            // An older expert may stand in for up to I rounds.
            view: View::new(refresh_every(&spec) + 1),
            chain: Follower::new(head, masked),
            done: Done::before(memory.round),
            memory,
            cohort: Cohort::Everybody,
            proxies: Proxies::default(),
            trials: Trials::default(),
            accusations: BTreeMap::new(),
            stragglers: Stragglers::default(),
            closings: Closings::default(),
            following: Following::default(),
            slices: VecDeque::new(),
            outbox: Outbox::default(),
            schedule,
            spec,
        }
    }

    /// Takes the spec back, which no image holds, and what follows from it.
    pub(super) fn adopt_spec(&mut self, spec: Arc<FederationSpec>) {
        self.schedule = Arc::new(Schedule::of(&spec));
        self.broadcast_set = BroadcastSet::of(&spec);
        self.spec = spec;
    }

    /// Tells whether rounds are closed with a mean.
    pub(super) fn averages(&self) -> bool {
        self.spec.exchange.averaging.is_some()
    }

    /// Tells whether this node is drawn to train in this round.
    pub(super) fn trains(&self) -> bool {
        self.cohort.contains(self.me)
    }

    /// Returns the rounds between two exchanges of proxies; 1 where no experts are exchanged.
    pub(super) fn refresh_every(&self) -> u32 {
        refresh_every(&self.spec)
    }

    /// Returns the mean that this round follows.
    pub(super) fn parent(&self) -> Lineage {
        self.chain.lineage(self.initial)
    }

    /// Returns who comes first of two that close one round.
    pub(super) fn rank(&self, round: Round, author: NodeId) -> Rank {
        rank(&self.view, self.draws, self.me, round, author)
    }

    /// Returns what the members of this round must have trained from.
    pub(super) fn base(&self) -> Base {
        self.chain.base(self.initial)
    }

    /// Tells whether the members of a round are those of the next one, too.
    pub(super) fn counts_again(&self) -> bool {
        self.spec.round.participation >= 1.0 && !self.broadcast_set.is_partial()
    }

    /// Takes a closed round for the head.
    pub(super) fn follow(&mut self, closed: &Closed) {
        let (round, counts_again) = (closed.round, self.counts_again());
        // Before the head moves: it says which round was open, and so who was silent in it.
        pace::note_closing(self, closed.global.id(round));
        self.chain
            .follow(&self.view, round, &closed.global, counts_again);
        self.view.on_followed(closed.author, &closed.global);
        let was_tried = self.trials.know(closed.author, &closed.global);
        self.trials.clear();
        // A false mean is not safe once it is followed: now and then one is recomputed beside the next round.
        let looks_back = self.trains() && self.audits_now(b"fednode look back 1", closed);
        if looks_back && !was_tried && closed.author != self.me {
            self.begin_trial(closed.clone(), None);
        }
        self.closings.on_followed(closed.clone());
    }

    /// Tells whether this node draws an audit of a closing; nobody else can know.
    fn audits_now(&self, purpose: &[u8], closed: &Closed) -> bool {
        // Of a mean in slices an audit recomputes one, so there are as many times as many, up to one in every round.
        let slices = (closed.global.slices.len() / 2).max(1) as f64;
        let probability = (self.spec.round.audit * slices).min(1.0);
        happens(probability, purpose, self.audits, closed.round, self.me)
    }

    /// Draws who trains in a round.
    pub(super) fn cohort_of(&self, round: Round) -> Cohort {
        // The view knows this node only once its own update has come back.
        let known = self.view.nodes().known().chain([self.me]);
        Cohort::draw(&self.spec, &self.schedule, round, known)
    }

    /// Tells whether a node is waited for: it has not held up too many rounds.
    pub(super) fn is_waited_for(&self, node: NodeId) -> bool {
        self.view.is_waited_for(node, &self.spec)
    }

    /// Returns how many nodes are here, this one included.
    pub(super) fn n_present(&self) -> usize {
        1 + self.view.company().neighbours().len()
    }

    /// Fetches a blob from these nodes first.
    pub(super) fn fetch(&mut self, blob: BlobRef, kind: FetchKind, from: Vec<NodeId>) {
        // Shared parts and their mean are steps from the mean before.
        let mean = self.chain.head().mean;
        let mean = mean.filter(|_| kind == FetchKind::Shared);
        self.fetch_after(mean.map(|mean| mean.id), blob, kind, from);
    }

    /// Fetches a blob of which this node may hold the version before.
    pub(super) fn fetch_after(
        &mut self,
        base: Option<BlobId>,
        blob: BlobRef,
        kind: FetchKind,
        from: Vec<NodeId>,
    ) {
        let times = &self.spec.round;
        let patience = match kind {
            FetchKind::Shared => longest_transfer(blob.size, times),
            // An expert that is late for its round may stand in for a missing one of the next rounds.
            FetchKind::Expert | FetchKind::Proxies | FetchKind::Module => times.deadline(),
        };
        let until = self.now + patience;
        self.outbox.push(Output::Fetch(Fetch {
            blob,
            kind,
            from,
            base,
            until,
        }));
    }

    /// Starts fetching a node's proxies, or decodes them if they came inside the advert.
    pub(super) fn want_proxies(&mut self, author: NodeId, round: Round, local: &Local) {
        let experts = self.spec.exchange.experts.as_ref();
        // With nothing to mix in, nobody needs proxies.
        let mixes = experts.is_some_and(|experts| experts.peers_per_expert.limit() > 0);
        if !mixes || self.view.nodes().has_proxies(author, round) {
            return;
        }
        match &local.proxies {
            None => {}
            Some(ProxyOffer::Inline(inline)) => match inline.decoded() {
                Ok(proxies) => self.view.keep_proxies(author, round, proxies),
                Err(error) => {
                    let reason = format!("malformed proxies: {error}");
                    self.outbox.strike(author, reason);
                }
            },
            // Everybody has as many experts and features: what is far larger than the own ones is refused unseen.
            Some(ProxyOffer::Blob(blob)) if blob.size > most_bytes(self.memory.report.as_ref()) => {
                let reason = format!("announced proxies of {} bytes", blob.size);
                self.outbox.strike(author, reason);
            }
            Some(ProxyOffer::Blob(blob)) if self.view.was_withdrawn_by(author, blob.id) => {}
            Some(ProxyOffer::Blob(blob)) => {
                let is_new = self.proxies.want(*blob, author, round);
                if is_new {
                    self.fetch(*blob, FetchKind::Proxies, vec![author]);
                }
            }
        }
    }

    /// Publishes an update. One that was published before a restart is published again, since it may never have left.
    pub(super) fn publish_update(&mut self, report: &LocalReport) {
        // Under masks a node's samples are within its part.
        let masks = self.schedule.masks();
        let body = Body::Local(Local {
            lineage: report.lineage,
            parent: self.parent(),
            follows: self.chain.head().closing,
            shared: report.shared,
            experts: report.experts.clone(),
            proxies: report.proxies.clone(),
            sketches: report.sketches.clone(),
            peers: self.following.nearest().to_vec(),
            statistics: None,
            n_samples: if masks { 0 } else { report.n_samples },
            offer: report.offer.clone(),
        });
        self.outbox.publish(report.round, body);
    }

    /// Notes that the node leaves one round for another.
    pub(super) fn note_rejoined(&mut self, from: Round, to: Round) {
        if to > from.next() || to < from {
            self.outbox.note(Note::Rejoined { from, to });
        }
    }

    /// Returns what closed rounds are judged by.
    pub(super) fn judge(&self, waited: Duration) -> Judge<'_> {
        Judge {
            spec: &self.spec,
            schedule: &self.schedule,
            broadcast_set: self.broadcast_set,
            view: &self.view,
            head: self.chain.head(),
            chain: &self.chain,
            me: self.me,
            trains: self.trains(),
            aggregates: false,
            initial: Some(self.initial),
            waited,
        }
    }

    /// Returns the best announced closed round that this node should follow; bans the authors of false ones, and asks for
    /// adverts that others name and that were not heard.
    ///
    /// Of two closings of one round the lower rank is better, of two chains the one with more nodes behind it.
    pub(super) fn best_global(
        &mut self,
        mut exchange: Option<&mut Exchange>,
        waited: Duration,
    ) -> Option<Closed> {
        // A closing whose mean could not be had is not looked at again in this round.
        let judge = self.judge(waited);
        let given_up = |said: Announced<'_>| {
            let pursuit = exchange.as_deref().map(|exchange| &exchange.mean);
            let is_unreachable = pursuit.is_some_and(|pursuit| pursuit.is_unreachable(said.id));
            is_unreachable || self.closings.is_refused(said.id)
        };
        let open = self.view.globals();
        let open = open.filter(|said| !given_up(*said) || judge.is_vouched_for(*said));
        let rank =
            |said: Announced<'_>| rank(&self.view, self.draws, self.me, said.round, said.author);
        let strength = |said: Announced<'_>| (judge.support(said), said.round);
        let found = judge.look(open, |one, other| {
            if one.global.previous == other.global.previous {
                rank(one) < rank(other)
            } else {
                strength(one) > strength(other)
            }
        });
        self.chain.note(&found);
        if self.chain.waits_for_updates() && found.best.is_none() {
            // Time alone may make it good: after the grace time fewer members will do.
            let look = Timer::Look(self.memory.round);
            let grace = self.spec.round.grace();
            self.outbox.set_timer(look, self.now + grace);
        }
        // Only now: a ban forgets what its author announced, which the look still reads.
        for (author, closing, reason) in found.false_ones {
            self.view.refute(closing);
            self.ban(exchange.as_deref_mut(), author, reason);
        }
        let when = (self.now, self.spec.as_ref(), self.memory.round);
        chain::ask_for(found.lacking, &mut self.view, &mut self.outbox, when);
        found.best
    }

    /// Stops listening to a node that signed something false, and undoes what was waiting on its word.
    pub(super) fn ban(&mut self, exchange: Option<&mut Exchange>, node: NodeId, reason: String) {
        self.silence(exchange, node);
        self.outbox.ban(node, reason);
    }

    /// Lets a node count for nothing from now on, without shutting it out: who lets it in is decided elsewhere.
    pub(super) fn silence(&mut self, exchange: Option<&mut Exchange>, node: NodeId) {
        self.view.ban(node);
        if let Some(exchange) = exchange {
            exchange.on_ban(self, node);
        }
        self.proxies.give_up_on(node);
        self.remember_gone();
    }

    /// Fetches the members' parts of a closing, to order the mean when they are here; once for each closing.
    pub(super) fn begin_trial(&mut self, closed: Closed, accuser: Option<NodeId>) {
        let author = closed.author;
        if self.trials.know(author, &closed.global) || !self.can_recompute(&closed) {
            return;
        }
        if !closed.global.slices.is_empty() {
            self.begin_trial_of_slice(closed, accuser, None);
            return;
        }
        let masked = self.chain.masked(&self.view, &closed);
        for (node, blob) in self.trials.begin(closed, accuser, masked) {
            self.fetch(blob, FetchKind::Shared, vec![node, author]);
        }
    }

    /// Tells whether a closed round is recomputed before it is followed: by a draw, or because everybody does.
    pub(super) fn must_verify(&self, closed: &Closed) -> bool {
        // Two have averaged each slice. One that both have falsified is looked for beside the next round.
        if !self.can_recompute(closed) || !closed.global.slices.is_empty() {
            return false;
        }
        let drawn = self.audits_now(b"fednode audit 1", closed);
        let is_doubtful = self.view.is_banned(closed.author);
        let wanted = drawn || self.judges_parts_of(closed) || self.is_only_sum(closed);
        self.everybody_verifies(closed) || is_doubtful || closed.author != self.me && wanted
    }

    /// Tells whether the parts of a closing are wanted themselves: statistics, which each node judges by its own.
    fn judges_parts_of(&self, closed: &Closed) -> bool {
        let bytes = closed.global.mean.size * closed.global.members.len() as u64;
        self.schedule.gathers_statistics_in(closed.round) && bytes <= MOST_STATISTICS
    }

    /// Tells whether a closing has the only sum that there will be: no later round would put a false one right.
    fn is_only_sum(&self, closed: &Closed) -> bool {
        // The mean before is as large as a part without masks. How large this one is says whoever closed the round.
        let before = self.chain.head().mean.map(|mean| mean.size);
        let size = before.unwrap_or(closed.global.mean.size);
        let bytes = size.saturating_mul(2 * closed.global.members.len() as u64);
        self.schedule.total_round() == Some(closed.round) && bytes <= MOST_STATISTICS
    }

    /// Tells whether a closing is recomputed by everybody, and is not followed unless that succeeds: small parts that
    /// another node averaged in the aggregator's place. Who counted them can deliver them.
    pub(super) fn everybody_verifies(&self, closed: &Closed) -> bool {
        let (author, me) = (closed.author, self.me);
        let rank = rank(&self.view, self.draws, me, closed.round, author);
        let acted = rank != Rank::Aggregator;
        let is_small = closed.global.mean.size <= SMALL_SHARED_BYTES;
        if !acted || author == me || !is_small || !self.can_recompute(closed) {
            return false;
        }
        // Another chain is followed because others follow it, who have looked. The parts may be gone by now.
        let is_next = closed.global.previous == self.chain.head().closing;
        is_next
            && !self
                .judge(Duration::ZERO)
                .is_vouched_for(closed.announced())
    }
}

/// Returns how long a part or a mean may be on its way. What is slower than [`SLOWEST`] is not coming: whoever signs a
/// closing and serves nothing of it must not hold everybody up until the deadline.
pub(super) fn longest_transfer(bytes: u64, times: &RoundSpec) -> Duration {
    let slow = Duration::from_secs(bytes / SLOWEST);
    slow.max(4 * times.grace()).min(times.deadline())
}

fn refresh_every(spec: &FederationSpec) -> u32 {
    let experts = spec.exchange.experts.as_ref();
    experts.map_or(1, |experts| experts.refresh_every)
}

/// Returns who comes first of two that closed one round.
fn rank(view: &View, draws: DrawSeed, me: NodeId, round: Round, author: NodeId) -> Rank {
    if author != me && view.is_doubtful(author) {
        Rank::doubtful(draws, round, author)
    } else if author != me && view.is_aggregator(author) {
        Rank::Aggregator
    } else {
        Rank::acting(draws, round, author)
    }
}
