//! What happens to whom, and the carrying out of what the machines ask for.
//!
//! ```text
//! queue ──event──► World ──input──► machine ──outputs──► gossip, transfers, computing ──events──► queue
//! ```
//!
//! The parts have their own data and stand on a common ground: members, time and network. What they answer at once is an
//! input that the world gives to the member.

mod blobs;
mod computing;
mod ending;
mod gossip;
mod ground;
mod incidents;
mod inventor;
mod lies;
mod masking;
mod members;
mod pools;
mod slices;
mod spoiling;
mod transfers;

use std::sync::Arc;
use std::time::Duration;

use fednode_core::{Body, Round, Timestamp};
use fednode_engine::{Fetch, FetchKind, Input, Note, Output, Phase, PoolOrder, Timer};

use self::blobs::Blobs;
use self::computing::Computing;
pub use self::ending::KEPT_ROUNDS;
use self::ending::{End, Forgetting};
use self::gossip::{Gossip, Published};
use self::ground::Ground;
use self::lies::Lies;
use self::members::Member;
use self::slices::Wanted;
use crate::history::Past;
use crate::observer::Observer;
use crate::outcome::{Outcome, PlanRecord};
use crate::scenario::{Behaviour, Incident, Scenario};
use crate::trainers::{ClosedRound, Trainers};

/// Looked into millions of times; its order is never looked at.
type Map<K, V> = std::collections::HashMap<K, V, foldhash::fast::RandomState>;

/// How long a mean or a merge takes to compute.
const COMPUTING: Duration = Duration::from_millis(20);
/// Whoever trains has a moment to look around whenever so many events were scheduled.
const EVENTS_BETWEEN_PAUSES: u64 = 64;

/// What can happen. Most events are adverts under way, millions at a time: the others keep what is large in a box.
#[derive(Debug)]
enum Event {
    /// An input, for a life of a member: inputs to a former life are lost.
    Input(usize, u64, Box<Input>),
    /// A timer, for a life of a member. Most are set for nothing: what they would end has ended long before.
    Timer(usize, u64, Timer),
    /// An advert under way.
    Deliver(usize, Arc<Published>),
    /// A fetch that looks for a holder.
    Seek(usize, u64, Box<Fetch>),
    /// A blob that arrives unless its holder was lost meanwhile.
    Arrive(usize, u64, Box<Fetch>, usize),
    /// A local update that ends.
    TrainingEnds(usize, u64, Round),
    /// Slices that are looked for, to average one or to put all together.
    SeekSlices(usize, u64, Box<Wanted>),
    /// Slices that are here.
    HaveSlices(usize, u64, Box<Wanted>),
    /// A private module that is made.
    ModuleEnds(usize, u64, Round),
    /// A pool that is assembled.
    PoolEnds(usize, u64, Box<PoolOrder>),
    Incident(Incident),
    /// The others notice that a connection is lost.
    Notice(usize, usize),
    /// A liar says something random.
    Lie(usize),
}

/// A federation being played.
pub(super) struct World<'a> {
    ground: Ground<'a>,
    gossip: Gossip,
    blobs: Blobs,
    computing: Computing<'a>,
    lies: Lies,
    forgetting: Forgetting,
    end: End,
    /// The refresh of each member's newest plan in the outcome.
    planned: Map<usize, Round>,
}

impl<'a> World<'a> {
    pub(super) fn new(
        scenario: &'a Scenario,
        trainers: &'a mut dyn Trainers,
        observer: &'a mut dyn Observer,
        past: Option<Past>,
    ) -> Self {
        let shared = trainers.initial_shared().map(Arc::new);
        let initial = shared.map(|shared| (shared.to_blob().0, shared));
        let ground = Ground::new(scenario, observer, initial.as_ref().map(|(blob, _)| *blob));
        let (n_members, broadcast_set) = (ground.members.len(), ground.broadcast_set);
        let mut world = Self {
            ground,
            gossip: Gossip::new(n_members, broadcast_set),
            blobs: Blobs::new(n_members, initial),
            computing: Computing::new(trainers, past),
            lies: Lies::default(),
            forgetting: Forgetting::default(),
            end: End::new(scenario.incidents.len()),
            planned: Map::default(),
        };
        world.open();
        world
    }

    fn open(&mut self) {
        let ground = &mut self.ground;
        for (at, incident) in &ground.scenario.incidents {
            ground.schedule(*at, Event::Incident(incident.clone()));
        }
        for member in 0..ground.members.len() {
            if ground.network.is_up(member) {
                ground.greet(member);
            }
            let behaviour = ground.behaviour(member);
            if matches!(behaviour, Some(Behaviour::Random | Behaviour::Restless)) {
                let pause = lies::pause(&mut ground.rng);
                ground.schedule(pause, Event::Lie(member));
            }
        }
    }

    pub(super) fn play(mut self) -> Outcome {
        let limit = Timestamp(0) + self.ground.scenario.time_limit;
        self.computing.awake(&mut self.ground, &mut self.blobs);
        while let Some(event) = self.ground.queue.pop() {
            let is_over = self.ground.now() > limit || self.ground.outcome.failed.is_some();
            if is_over || self.end.is_here(&self.ground) {
                break;
            }
            let scheduled = self.ground.queue.scheduled();
            let is_time = scheduled.is_multiple_of(EVENTS_BETWEEN_PAUSES);
            if is_time && self.pauses() || self.waits_in_vain(&event) {
                break;
            }
            self.handle_event(event);
            self.computing.count_event();
            self.computing.awake(&mut self.ground, &mut self.blobs);
        }
        while !self.ground.outcome.stopped
            && self.ground.outcome.failed.is_none()
            && !self.computing.trainers().concludes()
        {
            self.pauses();
        }
        self.conclude()
    }

    /// Gives whoever trains a moment to look around; tells whether to stop.
    fn pauses(&mut self) -> bool {
        self.computing.pauses(&mut self.ground, &self.blobs)
    }

    /// Waits for what an event needs; tells whether to stop instead.
    fn waits_in_vain(&mut self, event: &Event) -> bool {
        let (Event::TrainingEnds(member, life, _)
        | Event::ModuleEnds(member, life, _)
        | Event::PoolEnds(member, life, _)) = event
        else {
            return false;
        };
        let (ground, blobs) = (&mut self.ground, &self.blobs);
        ground.lives(*member, *life) && self.computing.waits_in_vain(ground, blobs, *member)
    }

    fn conclude(mut self) -> Outcome {
        for number in 0..self.ground.scenario.nodes {
            self.gossip.read_inbox(&mut self.ground, number);
            if let Some(node) = self.ground.members[number].machine.node() {
                let end = (node.phase(), node.round(), node.lineage());
                self.ground.outcome.members.push(end);
                self.ground.outcome.closings.push(node.head().closing);
                let is_up = self.ground.network.is_up(number);
                self.ground.outcome.up.push(is_up);
            }
        }
        self.ground.outcome
    }

    fn handle_event(&mut self, event: Event) {
        let (ground, blobs) = (&mut self.ground, &mut self.blobs);
        let (member, input) = match event {
            Event::Input(member, life, input) if ground.lives(member, life) => {
                (member, Some(*input))
            }
            Event::Timer(member, life, timer) if ground.lives(member, life) => {
                (member, Some(Input::Timer(timer)))
            }
            Event::Deliver(member, published) => {
                (member, gossip::deliver(ground, member, published))
            }
            Event::Seek(member, life, fetch) if ground.lives(member, life) => {
                (member, transfers::seek(ground, blobs, member, fetch))
            }
            Event::Arrive(member, life, fetch, from) if ground.lives(member, life) => (
                member,
                transfers::arrive(ground, blobs, member, fetch, from),
            ),
            Event::TrainingEnds(member, life, round) if ground.lives(member, life) => {
                return self.end_training(member, round);
            }
            Event::ModuleEnds(member, life, round) if ground.lives(member, life) => {
                let module = self.computing.end_module(ground, blobs, member, round);
                (member, module)
            }
            Event::PoolEnds(member, life, order) if ground.lives(member, life) => {
                let pooled = self.computing.end_pool(ground, blobs, member, &order);
                (member, pooled)
            }
            Event::SeekSlices(member, life, wanted) if ground.lives(member, life) => {
                let missed = slices::seek(ground, blobs, member, wanted);
                (member, missed)
            }
            Event::HaveSlices(member, life, wanted) if ground.lives(member, life) => {
                return slices::have(ground, blobs, &mut self.computing, (member, *wanted));
            }
            Event::Incident(incident) => return self.handle_incident(incident),
            Event::Notice(member, about) => (member, notice(ground, member, about)),
            Event::Lie(member) => return self.lie(member),
            // A life that is over.
            Event::Input(..) | Event::Timer(..) | Event::Seek(..) | Event::Arrive(..) => return,
            Event::TrainingEnds(..) | Event::ModuleEnds(..) | Event::PoolEnds(..) => return,
            Event::SeekSlices(..) | Event::HaveSlices(..) => return,
        };
        if let Some(input) = input {
            self.give(member, input);
        }
    }

    /// A liar says something random, and goes on to do so.
    fn lie(&mut self, member: usize) {
        let (ground, blobs) = (&mut self.ground, &mut self.blobs);
        if let Some((liar, round, body)) = self.lies.random(ground, blobs, member) {
            ground.outcome.lies += 1;
            self.gossip.publish(ground, blobs, liar, round, body);
        }
        let pause = lies::pause(&mut ground.rng);
        ground.schedule(pause, Event::Lie(member));
    }

    fn publish(&mut self, member: usize, round: Round, body: Body) {
        let (ground, blobs) = (&mut self.ground, &mut self.blobs);
        let body = self.lies.rewrite(ground, member, body);
        let advert = self.gossip.publish(ground, blobs, member, round, body);
        for (liar, round, body) in self.lies.about(ground, blobs, &advert) {
            ground.outcome.lies += 1;
            self.gossip.publish(ground, blobs, liar, round, body);
        }
    }

    fn end_training(&mut self, member: usize, round: Round) {
        let (ground, blobs) = (&mut self.ground, &mut self.blobs);
        if let Some(trained) = self.computing.end_training(ground, blobs, member, round) {
            self.give(member, trained);
            self.forgetting.on_trained(&self.ground, &mut self.blobs);
        }
    }

    fn give(&mut self, member: usize, input: Input) {
        let now = self.ground.now();
        if let Input::Timer(timer) = input
            && !self.ground.members[member].take_timer(timer, now)
        {
            return;
        }
        self.gossip.read_inbox(&mut self.ground, member);
        self.ground.observer.input(now, member, &input);
        let outputs = self.ground.members[member].machine.handle(now, input);
        self.gossip.attend(&mut self.ground, member);
        for output in outputs {
            self.ground.observer.output(now, member, &output);
            self.carry_out(member, output);
        }
    }

    fn carry_out(&mut self, member: usize, output: Output) {
        let (ground, blobs) = (&mut self.ground, &mut self.blobs);
        match output {
            Output::Publish { round, body } => self.publish(member, round, body),
            Output::Fetch(fetch) => begin_fetch(ground, member, fetch),
            Output::Train { round, masks } => {
                ground.members[member].masks = masks;
                self.computing.begin_training(ground, member, round);
            }
            Output::Unmask(order) => self.computing.unmask(ground, blobs, member, *order),
            Output::Module { round } => self.computing.begin_module(ground, member, round),
            Output::Pool(order) => self.computing.begin_pool(ground, blobs, member, order),
            Output::Ask(lacking) => self.gossip.answer(ground, member, &lacking),
            Output::Follow(nodes) => gossip::follow(ground, member, &nodes),
            Output::Merge(order) => self.computing.merge(ground, blobs, member, &order),
            Output::Average(order) => self.computing.average(ground, blobs, member, &order),
            Output::Save => self.computing.save(ground, member),
            Output::SetTimer { timer, at } => set_timer(ground, member, timer, at),
            Output::Strike { node, reason } => {
                ground.outcome.strikes.push((member, node, reason));
            }
            Output::Ban { node, .. } => ground.outcome.bans.push((member, node)),
            Output::Forget(forgotten) => {
                for blob in &forgotten {
                    blobs.release(member, blob);
                }
            }
            Output::Note(note) => self.note(member, note),
            Output::Slice(order) => slices::begin(ground, member, Wanted::One(*order)),
            Output::Join(order) => slices::begin(ground, member, Wanted::All(*order)),
        }
    }

    fn note(&mut self, member: usize, note: Note) {
        let ground = &mut self.ground;
        let now = ground.now();
        ground.outcome.elapsed = now.since(Timestamp(0));
        self.end.on_note(&note);
        if let Note::RoundClosed { round, by, members } = note
            && ground.is_node(member)
        {
            let Member { sent, received, .. } = ground.members[member];
            let closed = ClosedRound {
                round,
                by,
                members,
                at: now,
                sent,
                received,
            };
            self.computing.trainers().closed(member, closed);
        }
        if ground.scenario.observe {
            self.observe_plan(member, &note);
            self.ground.outcome.notes.push((member, note));
        }
    }

    /// Keeps the plan with which a node begins a round, once for each refresh.
    fn observe_plan(&mut self, member: usize, note: &Note) {
        let (Note::RoundStarted(_) | Note::Finished) = note else {
            return;
        };
        let node = self.ground.members[member].machine.node();
        let Some(plan) = node.and_then(|node| node.plan()) else {
            return;
        };
        let newest = self.planned.insert(member, plan.round);
        if newest != Some(plan.round) {
            let plan = plan.clone();
            let plans = &mut self.ground.outcome.observed.plans;
            plans.push(PlanRecord { member, plan });
        }
    }
}

fn begin_fetch(ground: &mut Ground<'_>, member: usize, fetch: Fetch) {
    let Member {
        life, ref machine, ..
    } = ground.members[member];
    let trains = machine.is_in(Phase::Training) && fetch.kind == FetchKind::Expert;
    ground.outcome.fetches.in_training += u64::from(trains);
    let seek = Event::Seek(member, life, Box::new(fetch));
    ground.schedule(Duration::ZERO, seek);
}

fn set_timer(ground: &mut Ground<'_>, member: usize, timer: Timer, at: Timestamp) {
    ground.members[member].timers.insert(timer, at);
    let delay = at.since(ground.now());
    let life = ground.members[member].life;
    ground.schedule(delay, Event::Timer(member, life, timer));
}

/// A member notices that it cannot reach another one any more, unless it can again.
fn notice(ground: &Ground<'_>, member: usize, about: usize) -> Option<Input> {
    let network = &ground.network;
    let is_lost = network.is_up(member) && !network.reaches(member, about);
    let node = ground.members[about].id;
    is_lost.then_some(Input::PeerDown { node })
}
