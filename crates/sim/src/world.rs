//! What happens to whom, and the carrying out of what the machines ask for.

mod adverts;
mod answers;
mod computing;
mod forgetting;
mod inbox;
mod incidents;
mod pools;
mod transfers;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use fednode_core::{
    Advert, Audience, BlobId, BlobRef, FederationId, FederationSpec, NodeId, ProxySet, Role, Round,
    Timestamp,
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

pub use self::forgetting::KEPT_ROUNDS;
use self::inbox::Inbox;
use crate::history::{Contents, Made, Past, Silent};
use crate::network::Network;
use crate::observer::Observer;
use crate::outcome::{Outcome, PlanRecord};
use crate::queue::Queue;
use crate::scenario::{Incident, Scenario};
use crate::trainers::{Bytes, ClosedRound, Trainers};
use fednode_engine::Aggregator;
use fednode_engine::Node;
use fednode_engine::names::{NameMap, NameSet};
use fednode_engine::{Fetch, FetchKind, Input, Note, Output, PoolOrder, Timer};
use fednode_engine::{Head, Phase, State};

/// Looked into millions of times; its order is never looked at.
type Map<K, V> = std::collections::HashMap<K, V, foldhash::fast::RandomState>;

/// Blobs by the round in which they were made.
type Born = BTreeMap<Round, Vec<BlobId>>;

/// How long after a death the others notice.
const DETECTION: Duration = Duration::from_secs(2);
/// How often a blob that nobody has is looked for again.
const RETRY: Duration = Duration::from_millis(500);
/// How long a mean or a merge takes to compute.
const COMPUTING: Duration = Duration::from_millis(20);

/// Adverts per author that peers keep for those who missed them, as in the daemon.
const KEPT_ADVERTS: u32 = 16;

#[derive(Debug)]
enum Machine {
    Node(Box<Node>),
    Aggregator(Box<Aggregator>),
}

/// An advert that was published, with what everybody who hears it would look up.
#[derive(Debug)]
struct Said {
    advert: Arc<Advert>,
    author: usize,
    /// What it weighs on the wire.
    bytes: u64,
    /// Whether it is of the kind that may wait in an inbox.
    can_wait: bool,
}

/// What can happen. Most events are adverts under way, millions at a time: the others keep what is large in a box.
#[derive(Debug)]
enum Event {
    /// An input, for a life of a member: inputs to a former life are lost.
    Input(usize, u64, Box<Input>),
    /// An advert under way.
    Deliver(usize, Arc<Said>),
    /// A fetch that looks for a holder.
    Seek(usize, u64, Box<Fetch>),
    /// A blob that arrives unless its holder was lost meanwhile.
    Arrive(usize, u64, Box<Fetch>, usize),
    /// A local update that ends.
    TrainingEnds(usize, u64, Round),
    /// A private module that is made.
    ModuleEnds(usize, u64, Round),
    /// A pool that is assembled.
    PoolEnds(usize, u64, Box<PoolOrder>),
    Incident(Incident),
    /// The others notice that a connection is lost.
    Notice(usize, usize),
}

struct Member {
    id: NodeId,
    machine: Machine,
    life: u64,
    counter: u64,
    /// When each timer is due; a timer that was set again is not due at its old time.
    timers: Map<Timer, Timestamp>,
    held: NameSet<BlobId>,
    /// Whom it follows, who follows it, and what it said last to those only.
    follows: BTreeSet<usize>,
    followers: BTreeSet<usize>,
    whispered: Option<Arc<Said>>,
    corrupt_seen: BTreeSet<usize>,
    checkpoint: Option<State>,
    head: Option<Head>,
    sent: Bytes,
    received: Bytes,
}

impl Member {
    /// A member in its first life, of which nothing was heard yet.
    fn new(id: NodeId, machine: Machine, held: NameSet<BlobId>) -> Self {
        Self {
            id,
            machine,
            life: 0,
            counter: 0,
            timers: Map::default(),
            held,
            follows: BTreeSet::new(),
            followers: BTreeSet::new(),
            whispered: None,
            corrupt_seen: BTreeSet::new(),
            checkpoint: None,
            head: None,
            sent: Bytes::default(),
            received: Bytes::default(),
        }
    }
}

/// A federation being played.
pub(super) struct World<'a> {
    scenario: &'a Scenario,
    trainers: &'a mut dyn Trainers,
    observer: &'a mut dyn Observer,
    /// What is played again first, while the trainers are not to hear of it.
    past: Option<Past>,
    silent: Silent,
    /// Events that have happened.
    events: u64,
    /// The blobs of the answer that is being computed.
    made: Vec<Made>,
    spec: Arc<FederationSpec>,
    federation: FederationId,
    audience: Audience,
    rng: ChaCha8Rng,
    queue: Queue<Event>,
    members: Vec<Member>,
    inboxes: Vec<Inbox>,
    numbers: NameMap<NodeId, usize>,
    network: Network,
    /// The contents of all blobs; who holds which is the members' own affair.
    contents: Contents,
    /// The proxies among them that were fetched.
    proxies: NameMap<BlobId, Arc<ProxySet>>,
    holders: NameMap<BlobId, Vec<usize>>,
    /// The blobs of each round, to forget them when nobody can want them any more.
    born: Born,
    /// Those among them that are averaged are kept apart.
    parts: Born,
    /// Local updates that have ended since that was last looked at, the bytes of their parts, and the round that all nodes
    /// had reached then.
    trained: usize,
    trained_bytes: u64,
    oldest_round: Round,
    initial: Option<BlobRef>,
    adverts: Vec<Arc<Said>>,
    pending_incidents: usize,
    /// How often a node said that it is done, since the start; and whether anything changed since that was looked at.
    finished: usize,
    changed: bool,
    /// The refresh of each member's newest plan in the outcome.
    planned: Map<usize, Round>,
    outcome: Outcome,
}

impl<'a> World<'a> {
    pub(super) fn new(
        scenario: &'a Scenario,
        trainers: &'a mut dyn Trainers,
        observer: &'a mut dyn Observer,
        past: Option<Past>,
    ) -> Self {
        let spec = Arc::new(scenario.spec.clone());
        let mut rng = ChaCha8Rng::seed_from_u64(scenario.seed);
        let network = Network::new(scenario, &mut rng);
        let shared = trainers.initial_shared().map(Arc::new);
        let initial = shared.as_ref().map(|shared| shared.to_blob().0);
        let held: NameSet<BlobId> = initial.iter().map(|blob| blob.id).collect();
        let member = |number: usize| {
            let id = crate::node_id(scenario.seed, number);
            Member::new(
                id,
                new_machine(&spec, id, number < scenario.nodes, initial),
                held.clone(),
            )
        };
        let members: Vec<Member> = (0..scenario.nodes + usize::from(scenario.aggregator))
            .map(member)
            .collect();
        let numbers = members
            .iter()
            .enumerate()
            .map(|(number, member)| (member.id, number))
            .collect();
        let outcome = Outcome {
            seed: scenario.seed,
            ids: members.iter().map(|member| member.id).collect(),
            ..Outcome::default()
        };
        let mut world = Self {
            scenario,
            trainers,
            observer,
            past,
            silent: Silent,
            events: 0,
            made: Vec::new(),
            federation: spec.id(),
            audience: Audience::of(&spec),
            spec,
            rng,
            queue: Queue::default(),
            inboxes: members.iter().map(|_| Inbox::default()).collect(),
            members,
            numbers,
            network,
            contents: initial.iter().map(|blob| blob.id).zip(shared).collect(),
            proxies: NameMap::default(),
            holders: NameMap::default(),
            born: Born::new(),
            parts: Born::new(),
            trained: 0,
            trained_bytes: 0,
            oldest_round: Round::ZERO,
            initial,
            adverts: Vec::new(),
            pending_incidents: scenario.incidents.len(),
            finished: 0,
            changed: true,
            planned: Map::default(),
            outcome,
        };
        world.open();
        world
    }

    fn open(&mut self) {
        for (at, incident) in &self.scenario.incidents {
            self.schedule(*at, Event::Incident(incident.clone()));
        }
        for member in 0..self.members.len() {
            if self.network.is_up(member) {
                self.greet(member);
            }
        }
    }

    /// Starts a member and introduces it to those it can reach.
    fn greet(&mut self, member: usize) {
        self.input_after(Duration::ZERO, member, Input::Start);
        let connections = self.network.connections(member);
        for other in &connections {
            let delay = self.network.latency(&mut self.rng);
            self.introduce(delay, member, *other);
        }
        if !connections.is_empty() {
            // A sync is over when what it brought has arrived.
            let delay = 3 * self.scenario.link.latency.1;
            self.input_after(delay, member, Input::Synced);
        }
    }

    fn introduce(&mut self, delay: Duration, a: usize, b: usize) {
        for (to, about) in [(a, b), (b, a)] {
            let role = if about < self.scenario.nodes {
                Role::Node
            } else {
                Role::Aggregator
            };
            let node = self.members[about].id;
            self.input_after(delay, to, Input::PeerUp { node, role });
        }
    }

    pub(super) fn play(mut self) -> Outcome {
        let limit = Timestamp(0) + self.scenario.time_limit;
        self.awake();
        while let Some(event) = self.queue.pop() {
            if self.queue.now() > limit || self.outcome.failed.is_some() || self.everybody_is_done()
            {
                break;
            }
            if (self.queue.scheduled().is_multiple_of(64) && self.pauses())
                || self.waits_in_vain(&event)
            {
                break;
            }
            self.happen(event);
            self.events += 1;
            self.awake();
        }
        while !self.outcome.stopped && self.outcome.failed.is_none() && !self.trainers().concludes()
        {
            self.pauses();
        }
        self.conclude()
    }

    /// Visits every member only if something changed and as many as are up have said that they are done.
    fn everybody_is_done(&mut self) -> bool {
        let nodes = self.scenario.nodes;
        if !std::mem::take(&mut self.changed)
            || self.pending_incidents > 0
            || self.finished < self.network.n_up(nodes)
        {
            return false;
        }
        let is_done = |member: &Member| matches!(&member.machine, Machine::Node(n) if n.phase() == Phase::Serving);
        (0..nodes).all(|number| !self.network.is_up(number) || is_done(&self.members[number]))
    }

    fn conclude(mut self) -> Outcome {
        for number in 0..self.scenario.nodes {
            self.read_inbox(number);
            if let Machine::Node(node) = &self.members[number].machine {
                self.outcome
                    .members
                    .push((node.phase(), node.round(), node.lineage()));
                self.outcome.up.push(self.network.is_up(number));
            }
        }
        self.outcome
    }

    fn schedule(&mut self, delay: Duration, event: Event) {
        self.queue.push(self.queue.now() + delay, event);
    }

    fn input_after(&mut self, delay: Duration, member: usize, input: Input) {
        let life = self.members[member].life;
        self.schedule(delay, Event::Input(member, life, Box::new(input)));
    }

    fn lives(&self, member: usize, life: u64) -> bool {
        self.network.is_up(member) && self.members[member].life == life
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Input(member, life, input) if self.lives(member, life) => {
                self.give(member, *input)
            }
            Event::Deliver(member, said) => self.deliver(member, said),
            Event::Seek(member, life, fetch) if self.lives(member, life) => {
                self.seek(member, fetch)
            }
            Event::Arrive(member, life, fetch, from) if self.lives(member, life) => {
                self.arrive(member, fetch, from)
            }
            Event::TrainingEnds(member, life, round) if self.lives(member, life) => {
                self.end_training(member, round)
            }
            Event::ModuleEnds(member, life, round) if self.lives(member, life) => {
                self.end_module(member, round)
            }
            Event::PoolEnds(member, life, order) if self.lives(member, life) => {
                self.end_pool(member, &order)
            }
            Event::Incident(incident) => self.strike_with(incident),
            Event::Notice(member, about) => {
                if self.network.is_up(member) && !self.network.reaches(member, about) {
                    let node = self.members[about].id;
                    self.give(member, Input::PeerDown { node });
                }
            }
            Event::Input(..) | Event::Seek(..) | Event::Arrive(..) => {}
            Event::TrainingEnds(..) | Event::ModuleEnds(..) | Event::PoolEnds(..) => {}
        }
    }

    fn give(&mut self, member: usize, input: Input) {
        if let Input::Timer(timer) = &input {
            let due = self.members[member]
                .timers
                .get(timer)
                .is_some_and(|at| *at <= self.queue.now());
            if !due {
                return;
            }
            self.members[member].timers.remove(timer);
        }
        self.read_inbox(member);
        let now = self.queue.now();
        self.observer.input(now, member, &input);
        let outputs = match &mut self.members[member].machine {
            Machine::Node(node) => node.handle(now, input),
            Machine::Aggregator(aggregator) => aggregator.handle(now, input),
        };
        self.attend(member);
        for output in outputs {
            self.observer.output(now, member, &output);
            self.carry_out(member, output);
        }
    }

    fn carry_out(&mut self, member: usize, output: Output) {
        match output {
            Output::Publish { round, body } => self.publish(member, round, body),
            Output::Fetch(fetch) => {
                let Member {
                    life, ref machine, ..
                } = self.members[member];
                let trains =
                    matches!(machine, Machine::Node(node) if node.phase() == Phase::Training);
                self.outcome.fetched_in_training +=
                    u64::from(trains && fetch.kind == FetchKind::Expert);
                self.schedule(Duration::ZERO, Event::Seek(member, life, Box::new(fetch)));
            }
            Output::Train { round } => self.begin_training(member, round),
            Output::Module { round } => self.begin_module(member, round),
            Output::Pool(order) => self.begin_pool(member, order),
            Output::Follow(nodes) => self.follow(member, &nodes),
            Output::Merge(order) => self.merge(member, &order),
            Output::Average(order) => self.average(member, &order),
            Output::Save => self.save(member),
            Output::SetTimer { timer, at } => {
                self.members[member].timers.insert(timer, at);
                let delay = at.since(self.queue.now());
                self.input_after(delay, member, Input::Timer(timer));
            }
            Output::Strike { node, reason } => self.outcome.strikes.push((member, node, reason)),
            Output::Ban { node, .. } => self.outcome.bans.push((member, node)),
            Output::Forget(blobs) => blobs.iter().for_each(|blob| {
                self.members[member].held.remove(blob);
            }),
            Output::Note(note) => self.note(member, note),
        }
    }

    fn note(&mut self, member: usize, note: Note) {
        self.outcome.elapsed = self.queue.now().since(Timestamp(0));
        if note == Note::Finished {
            (self.finished, self.changed) = (self.finished + 1, true);
        }
        if let Note::RoundClosed { round, by, members } = note
            && member < self.scenario.nodes
        {
            let Member { sent, received, .. } = self.members[member];
            let closed = ClosedRound {
                round,
                by,
                members,
                at: self.queue.now(),
                sent,
                received,
            };
            self.trainers().closed(member, closed);
        }
        if !self.scenario.observe {
            return;
        }
        if let Note::RoundStarted(_) | Note::Finished = note
            && let Machine::Node(node) = &self.members[member].machine
            && let Some(plan) = node.plan()
        {
            let newest = self.planned.insert(member, plan.round);
            if newest != Some(plan.round) {
                self.outcome.plans.push(PlanRecord {
                    member,
                    plan: plan.clone(),
                });
            }
        }
        self.outcome.notes.push((member, note));
    }
}

fn new_machine(
    spec: &Arc<FederationSpec>,
    id: NodeId,
    is_node: bool,
    initial: Option<BlobRef>,
) -> Machine {
    match is_node {
        true => Machine::Node(Box::new(Node::new(Arc::clone(spec), id, initial))),
        false => Machine::Aggregator(Box::new(Aggregator::new(Arc::clone(spec), id))),
    }
}
