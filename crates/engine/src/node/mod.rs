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
//! One file per phase. A phase owns what it waits for, reacts to an input with what all phases share at hand, and returns
//! the phase that comes next. The exchange of a round is a machine of its own that phases hand on.
//!
//! | file | idea |
//! |---|---|
//! | `phase` | which phase an input concerns |
//! | `joining`, `training`, `exchanging`, `merging`, `pooling` | the phases |
//! | `exchange/` | what a round waits for: experts, mean, updates; closing the round in the aggregator's place |
//! | `shared` | what outlives a phase; what a checkpoint keeps of it is in `memory` |
//! | `planning`, `following`, `pace` | which experts to mix, whom to follow, whom to wait for |
//! | `masked`, `done` | masked sums: who takes part; what was done about them, once a round |
//! | `slicing` | means in slices: which are followed and tried, and what came of it |
//! | `proxies`, `audit` | proxies on their way; recomputing means |
//!
//! This file takes inputs apart. It never sends, fetches, trains, saves or sleeps.

mod audit;
mod closings;
mod done;
mod exchange;
mod exchanging;
mod following;
mod gone;
mod joining;
mod masked;
mod memory;
mod merging;
mod pace;
mod phase;
mod planning;
mod pooling;
mod proxies;
mod shared;
mod slicing;
mod training;

use std::collections::BTreeSet;
use std::sync::Arc;

use fednode_core::draw::DrawSeed;
use fednode_core::{
    Accepted, AggregationPlan, BlobId, BlobRef, Body, FederationId, FederationSpec, Lineage,
    NodeId, ProxySet, Round, Sequence, Timestamp,
};
use serde::{Deserialize, Serialize};

use self::exchange::Exchange;
use self::memory::Memory;
use self::phase::Phase;
use self::shared::Shared;
use crate::event::{Arrival, AverageReport, FetchKind, Input, Output, Purpose, Timer};
use crate::image::{self, ForeignImage};
use crate::light;
use crate::state::{Head, Phase as PhaseName, State};
use crate::status::Status;
use crate::view::{Recorded, Update};

/// What trace lines call this machine.
const ROLE: &str = "node";

/// A node of the federation.
#[derive(Debug)]
pub struct Node {
    shared: Shared,
    phase: Phase,
}

/// The whole state of a [`Node`], but for its spec.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NodeImage {
    federation: FederationId,
    shared: Shared,
    phase: Phase,
}

impl Node {
    /// Makes a node that starts from the initial shared part, which all nodes derive alike from the spec's seed.
    pub fn new(spec: Arc<FederationSpec>, me: NodeId, initial_shared: Option<BlobRef>) -> Self {
        let fallback = BlobId::of(&spec.canonical_bytes());
        let state = State::new(initial_shared, fallback);
        Self::restore(spec, me, initial_shared, state)
    }

    /// Makes a node that goes on from a checkpoint.
    pub fn restore(
        spec: Arc<FederationSpec>,
        me: NodeId,
        initial_shared: Option<BlobRef>,
        state: State,
    ) -> Self {
        let is_before = state.is_before_added_rounds(&spec);
        let (mut phase, head, memory) = Memory::of(state, me);
        let mut shared = Shared::new(spec, me, initial_shared, head, memory);
        if is_before {
            // Nothing of before the last end goes on: it begins with the others, as at first.
            shared.memory.round = shared.schedule.since();
            phase = PhaseName::Joining;
        }
        Self {
            phase: Phase::at_start(phase),
            shared,
        }
    }

    /// Draws from a secret in which rounds a mean is recomputed. Without one the draw is that of the federation, which
    /// everybody can foresee.
    #[must_use]
    pub fn auditing_by(mut self, secret: DrawSeed) -> Self {
        self.shared.audits = secret;
        self
    }

    /// Makes the node that an image shows.
    ///
    /// # Errors
    /// Refuses an image of another federation.
    pub fn from_image(spec: Arc<FederationSpec>, image: NodeImage) -> Result<Self, ForeignImage> {
        let NodeImage {
            federation,
            mut shared,
            mut phase,
        } = image;
        image::check(federation, &spec)?;
        shared.adopt_spec(spec);
        // Of what phases own, only the closing of a round knows the spec.
        let exchange = phase.exchange_mut();
        if let Some(acting) = exchange.and_then(|exchange| exchange.acting.as_mut()) {
            acting.adopt_spec(&shared);
        }
        Ok(Self { shared, phase })
    }

    /// Returns the whole state of this moment.
    pub fn image(&self) -> NodeImage {
        NodeImage {
            federation: self.shared.spec.id(),
            shared: self.shared.clone(),
            phase: self.phase.clone(),
        }
    }

    /// Takes an input and returns what to do about it.
    pub fn handle(&mut self, now: Timestamp, input: Input) -> Vec<Output> {
        self.shared.now = now;
        light::input(ROLE, self.phase(), self.round(), &input);
        match input {
            Input::Start => self.handle_start(),
            Input::PeerUp { node, role } => self.shared.view.connect(node, role),
            Input::PeerDown { node } => self.handle_peer_down(node),
            Input::Synced => self.handle_synced(),
            Input::Advert(advert) => self.handle_advert(&advert),
            Input::Equivocated { node } => {
                audit::on_equivocation(&mut self.phase, &mut self.shared, node);
            }
            Input::Revoked { node } => {
                audit::on_revocation(&mut self.phase, &mut self.shared, node);
            }
            Input::Fetched(blob) => self.handle_arrival(Arrival::Held(blob)),
            Input::FetchFailed { blob, kind } => {
                self.handle_arrival(Arrival::Failed(blob, kind));
            }
            Input::Proxies { blob, proxies } => self.handle_proxies(blob, &proxies),
            Input::Trained(report) => self.react(|phase, shared| phase.on_trained(shared, report)),
            Input::Merged(report) => self.react(|phase, shared| phase.on_merged(shared, &report)),
            Input::Averaged(report) => self.handle_averaged(report),
            Input::Unmasked { round, word } => {
                if let Some(word) = word {
                    self.shared.outbox.publish(round, Body::Unmask(word));
                }
            }
            Input::Module(report) => self.react(|phase, shared| phase.on_module(shared, report)),
            Input::Pooled(report) => self.react(|phase, shared| phase.on_pooled(shared, &report)),
            Input::Timer(timer) => self.react(|phase, shared| phase.on_timer(shared, timer)),
            Input::Leave => self.shared.outbox.publish(self.round(), Body::Leave),
            Input::Sliced(report) => self.handle_sliced(&report),
            Input::Joined(report) => self.handle_joined(&report),
        }
        // Whatever came in may have been the last thing that was waited for.
        self.react(Phase::advance);
        let outputs = self.shared.outbox.take();
        light::outputs(ROLE, self.phase(), self.round(), &outputs);
        outputs
    }

    /// Returns the phase.
    pub fn phase(&self) -> PhaseName {
        self.phase.name()
    }

    /// Returns the round that is being worked on; 0 while joining for the first time.
    pub fn round(&self) -> Round {
        self.shared.memory.round
    }

    /// Returns the newest closed round that the node follows.
    pub fn head(&self) -> &Head {
        self.shared.chain.head()
    }

    /// Returns the shared part that the model holds: the head's mean, unless the node had to go on alone.
    pub fn lineage(&self) -> Lineage {
        self.shared.memory.lineage
    }

    /// Returns the plan in force.
    pub fn plan(&self) -> Option<&AggregationPlan> {
        self.shared.memory.plan.as_ref()
    }

    /// Returns what a checkpoint must keep: where it stands or, while it finds out whether the federation has moved on,
    /// where it goes on if that has not.
    pub fn checkpoint(&self) -> State {
        let head = self.shared.chain.head();
        let (memory, phase) = (&self.shared.memory, self.phase.to_resume());
        State {
            gone: self.shared.gone(),
            owner: Some(self.shared.me),
            ..memory.to_state(phase, head.clone())
        }
    }

    /// Returns the blobs that this node will still need; garbage collection must not take them.
    pub fn needed_blobs(&self) -> BTreeSet<BlobId> {
        let head = self.shared.chain.head();
        // The mean before is what others pack the newest against.
        // The newest is what late nodes ask for.
        let means = head.mean.map(|mean| mean.id).into_iter();
        let mut needed = self.phase.blobs();
        needed.extend(self.shared.memory.blobs());
        needed.extend(self.shared.trials.blobs());
        needed.extend(self.shared.slices());
        needed.extend(means.chain(head.parent));
        needed
    }

    /// Leaves those blobs of an owner that may be deleted if it takes them back: nobody else needs them.
    pub fn free_of(&self, owner: NodeId, blobs: &[BlobId]) -> Vec<BlobId> {
        self.shared.view.free_of(owner, blobs, &self.needed_blobs())
    }

    /// Returns the blobs that were taken back and that nobody needs any more, which are to be deleted.
    pub fn taken_back(&self) -> Vec<BlobId> {
        self.shared.view.taken_back(&self.needed_blobs())
    }

    /// Returns whose updates can change what this node does now; `None` if anybody's can.
    ///
    /// Until the next input, the updates of all other nodes may as well be given to [`Self::record_update`].
    pub fn awaited_updates(&self) -> Option<impl Iterator<Item = NodeId> + '_> {
        // A node that trains or merges acts on its own trainer's word; of others only planned owners matter meanwhile.
        let waits_for_others = match &self.phase {
            Phase::Training(_) | Phase::Merging(_) => false,
            // Without an aggregator anybody's update may be the last one that a closing needs.
            Phase::Exchanging(_) => !self.shared.view.company().has_aggregator(),
            Phase::Joining(_) | Phase::Pooling(_) | Phase::Serving => true,
        };
        let exchange = self.phase.exchange();
        let acts = exchange.is_some_and(|exchange| exchange.acting.is_some());
        let is_anybodys = waits_for_others || acts || self.shared.chain.waits_for_updates();
        (!is_anybodys).then(|| exchange.into_iter().flat_map(Exchange::awaited))
    }

    /// Records an update that changes nothing now: its author is not among [`Self::awaited_updates`].
    pub fn record_update(&mut self, advert: &Arc<Accepted>) {
        if let Some(update) = Update::of(advert) {
            pace::note_late_news(&mut self.shared, update);
        }
        self.shared.view.record(advert);
    }

    /// Returns what this node is doing and waiting for.
    pub fn status(&self, now: Timestamp) -> Status {
        Status {
            phase: self.phase(),
            round: self.round(),
            head: self.shared.chain.head().clone(),
            waiting: self.phase.waiting(&self.shared, now),
        }
    }

    /// Lets the phase react, and enters the one that comes next.
    fn react(&mut self, reaction: impl FnOnce(Phase, &mut Shared) -> Phase) {
        // A phase hands what it owns on to the next, so it is moved out. Serving owns nothing.
        let phase = std::mem::replace(&mut self.phase, Phase::Serving);
        self.phase = reaction(phase, &mut self.shared);
    }

    fn handle_start(&mut self) {
        let now = self.shared.now;
        let again = now + joining::LOOK_AGAIN;
        self.shared.outbox.set_timer(Timer::Join, again);
        if let Phase::Joining(joining) = &mut self.phase {
            joining.on_start(now);
        }
    }

    fn handle_synced(&mut self) {
        if let Phase::Joining(joining) = &mut self.phase {
            joining.on_synced();
        }
    }

    fn handle_peer_down(&mut self, node: NodeId) {
        let had_aggregator = self.shared.view.company().has_aggregator();
        self.shared.view.disconnect(node);
        let lost_aggregator = had_aggregator && !self.shared.view.company().has_aggregator();
        if let Some(exchange) = self.phase.exchange_mut() {
            exchange.on_peer_down(&mut self.shared, node);
            if lost_aggregator {
                exchange.on_aggregator_lost(&mut self.shared);
            }
        }
    }

    fn handle_advert(&mut self, advert: &Arc<Accepted>) {
        // The module of an earlier end belongs to a model that has been trained further since.
        let is_of_before = advert.round <= self.shared.schedule.since();
        if is_of_before && matches!(advert.body, Body::Pool(_)) {
            return;
        }
        match self.shared.view.record(advert) {
            Recorded::Nothing => return,
            Recorded::Evidence => return self.phase.consider_globals(&mut self.shared),
            Recorded::News => {}
        }
        let (author, round) = (advert.author, advert.round);
        match &advert.body {
            Body::Local(local) => {
                let (node, id) = (author, advert.id);
                self.handle_local(Update {
                    node,
                    round,
                    id,
                    local,
                });
            }
            Body::Global(_) => self.phase.consider_globals(&mut self.shared),
            Body::Withdraw(withdraw) => {
                self.handle_withdraw((author, advert.sequence), &withdraw.blobs);
            }
            Body::Fault(fault) => {
                audit::on_accusation(&mut self.phase, &mut self.shared, author, fault);
            }
            Body::Leave => self.handle_departure(author),
            Body::Propose(_) | Body::Agree(_) | Body::Unmask(_) => self.handle_word(author, round),
            // The closing of the round may go on.
            Body::Slices(_) => self.close_if_ready(),
            Body::Pool(_) | Body::Removed(_) => {}
        }
    }

    fn handle_local(&mut self, update: Update<'_>) {
        let (author, round, local) = (update.node, update.round, update.local);
        let shared = &mut self.shared;
        // Beyond so many nodes only a shortlist is fetched, later; the own ones are here anyway. Who rests makes no plan.
        let is_listed = !shared.spec.uses_sketches() || author == shared.me;
        let is_comparable = local.lineage == shared.memory.lineage && round == shared.memory.round;
        if is_listed && shared.trains() && is_comparable {
            shared.want_proxies(author, round, local);
        }
        if author == shared.me {
            self.phase.on_own_update(author, round);
        } else {
            pace::note_update(shared, update);
            self.phase.on_update(shared, update);
        }
    }

    /// Somebody spoke of a masked sum: the closing of the round may go on.
    fn handle_word(&mut self, author: NodeId, round: Round) {
        // Judged first, since the words of a liar do not count when the sum is opened.
        audit::on_word(&mut self.phase, &mut self.shared, author, round);
        self.close_if_ready();
    }

    fn close_if_ready(&mut self) {
        let exchange = self.phase.exchange_mut();
        if let Some(acting) = exchange.and_then(|exchange| exchange.acting.as_mut()) {
            acting.close_if_ready(&mut self.shared);
        }
    }

    fn handle_departure(&mut self, author: NodeId) {
        self.phase.give_up_on(author);
        self.shared.proxies.give_up_on(author);
        self.shared.remember_gone();
    }

    /// An owner takes blobs back: they leave every plan in progress, and the copies are deleted, unless somebody else needs
    /// them: a name in an advert proves nothing of whose the blob is.
    fn handle_withdraw(&mut self, (author, at): (NodeId, Sequence), blobs: &[BlobId]) {
        self.shared
            .memory
            .held
            .retain(|expert, held| expert.owner != author || !blobs.contains(&held.blob.id));
        // First out of what this node is about to use, then out of the store.
        self.phase.withdraw(author, blobs);
        if author != self.shared.me {
            let needed = self.needed_blobs();
            let forgotten = self.shared.view.withdraw((author, at), blobs, &needed);
            self.shared.outbox.push(Output::Forget(forgotten));
        }
    }

    fn handle_arrival(&mut self, arrival: Arrival) {
        // Proxies that came are an input of their own: they are decoded on the way.
        if let Arrival::Failed(blob, FetchKind::Proxies) = arrival {
            self.shared.proxies.fail(&blob);
        }
        self.shared.view.on_arrival(arrival);
        let blob = arrival.id();
        if arrival.is_held() && self.shared.view.was_withdrawn(blob) {
            let needed = self.needed_blobs();
            if self.shared.view.came_too_late(blob, &needed) {
                self.shared.outbox.push(Output::Forget(vec![blob]));
            }
        }
        self.phase.resolve(arrival);
        audit::resolve(&mut self.phase, &mut self.shared, arrival);
        let exchange = self.phase.exchange_mut();
        if let Some(acting) = exchange.and_then(|exchange| exchange.acting.as_mut()) {
            // After the closer has taken note of it: whoever has another part here is not doubted.
            acting.doubt(&mut self.shared.view, arrival);
            acting.close_if_ready(&mut self.shared);
        }
    }

    fn handle_proxies(&mut self, blob: BlobId, proxies: &Arc<ProxySet>) {
        for (author, round) in self.shared.proxies.take(blob) {
            let proxies = Arc::clone(proxies);
            self.shared.view.keep_proxies(author, round, proxies);
        }
        if let Some(exchange) = self.phase.exchange_mut() {
            exchange.on_proxies(blob);
        }
    }

    fn handle_averaged(&mut self, report: AverageReport) {
        let shared = &mut self.shared;
        shared.outbox.note_disbelieved(&report);
        match report.purpose {
            Purpose::Close => self.phase.on_averaged(shared, report),
            Purpose::Verify(number) => {
                audit::on_recomputed(&mut self.phase, shared, number, report.mean);
            }
        }
    }
}
