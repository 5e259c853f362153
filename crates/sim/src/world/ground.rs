//! What all parts of a simulation stand on: who the members are, what time it is, who can talk to whom.

use std::sync::Arc;
use std::time::Duration;

use fednode_core::{
    BlobRef, BroadcastSet, FederationId, FederationSpec, NodeId, Role, Schedule, Timestamp,
};
use fednode_engine::Input;
use fednode_engine::names::NameMap;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::Event;
use super::members::{Machine, Member};
use crate::network::Network;
use crate::observer::Observer;
use crate::outcome::Outcome;
use crate::queue::Queue;
use crate::scenario::{Behaviour, Scenario};

/// The members, the time and the network.
pub(super) struct Ground<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) observer: &'a mut dyn Observer,
    pub(super) spec: Arc<FederationSpec>,
    pub(super) schedule: Schedule,
    pub(super) federation: FederationId,
    pub(super) broadcast_set: BroadcastSet,
    /// The shared part that all nodes start from.
    pub(super) initial: Option<BlobRef>,
    pub(super) rng: ChaCha8Rng,
    pub(super) queue: Queue<Event>,
    pub(super) members: Vec<Member>,
    numbers: NameMap<NodeId, usize>,
    pub(super) network: Network,
    pub(super) outcome: Outcome,
}

impl<'a> Ground<'a> {
    pub(super) fn new(
        scenario: &'a Scenario,
        observer: &'a mut dyn Observer,
        initial: Option<BlobRef>,
    ) -> Self {
        let spec = Arc::new(scenario.spec.clone());
        let mut rng = ChaCha8Rng::seed_from_u64(scenario.seed);
        let network = Network::new(scenario, &mut rng);
        let member = |number: usize| {
            let id = crate::node_id(scenario.seed, number);
            let role = role_of(scenario, number);
            Member::new(id, Machine::new(&spec, id, role, initial))
        };
        let n_members = scenario.nodes + usize::from(scenario.aggregator);
        let members: Vec<Member> = (0..n_members).map(member).collect();
        let numbered = members.iter().enumerate();
        Self {
            scenario,
            observer,
            schedule: Schedule::of(&spec),
            federation: spec.id(),
            broadcast_set: BroadcastSet::of(&spec),
            spec,
            initial,
            rng,
            queue: Queue::default(),
            numbers: numbered
                .map(|(number, member)| (member.id, number))
                .collect(),
            network,
            outcome: Outcome {
                seed: scenario.seed,
                ids: members.iter().map(|member| member.id).collect(),
                ..Outcome::default()
            },
            members,
        }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.queue.now()
    }

    pub(super) fn schedule(&mut self, delay: Duration, event: Event) {
        self.queue.push(self.queue.now() + delay, event);
    }

    /// Schedules an input for this life of a member.
    pub(super) fn input_after(&mut self, delay: Duration, member: usize, input: Input) {
        let life = self.members[member].life;
        self.schedule(delay, Event::Input(member, life, Box::new(input)));
    }

    /// Tells whether a member is up, in the same life as then.
    pub(super) fn lives(&self, member: usize, life: u64) -> bool {
        self.network.is_up(member) && self.members[member].life == life
    }

    /// Returns the number of a member; `None` of whoever is no member.
    pub(super) fn number_of(&self, node: NodeId) -> Option<usize> {
        self.numbers.get(&node).copied()
    }

    pub(super) fn is_node(&self, member: usize) -> bool {
        role_of(self.scenario, member) == Role::Node
    }

    pub(super) fn behaviour(&self, member: usize) -> Option<Behaviour> {
        self.scenario.behaviours.get(&member).copied()
    }

    /// Draws the time of a message.
    pub(super) fn latency(&mut self) -> Duration {
        self.network.latency(&mut self.rng)
    }

    /// Lets two members meet.
    pub(super) fn introduce(&mut self, delay: Duration, a: usize, b: usize) {
        for (to, about) in [(a, b), (b, a)] {
            let node = self.members[about].id;
            let role = role_of(self.scenario, about);
            self.input_after(delay, to, Input::PeerUp { node, role });
        }
    }

    /// Starts a member and introduces it to those it can reach.
    pub(super) fn greet(&mut self, member: usize) {
        self.input_after(Duration::ZERO, member, Input::Start);
        let connections = self.network.connections(member);
        for other in &connections {
            let delay = self.latency();
            self.introduce(delay, member, *other);
        }
        if !connections.is_empty() {
            // A sync is over when what it brought has arrived.
            let delay = 3 * self.scenario.link.latency.1;
            self.input_after(delay, member, Input::Synced);
        }
    }
}

/// Training nodes have the first numbers; the aggregator comes after them.
fn role_of(scenario: &Scenario, member: usize) -> Role {
    if member < scenario.nodes {
        Role::Node
    } else {
        Role::Aggregator
    }
}
