//! The members of a simulated federation: their machines, and what their machines cannot know.

use std::collections::BTreeSet;
use std::sync::Arc;

use fednode_core::{BlobId, BlobRef, FederationSpec, NodeId, Role, Round, Timestamp};
use fednode_engine::masks::MaskOrder;
use fednode_engine::{Aggregator, Head, Input, Node, Output, Phase, State, Timer};

use super::Map;
use super::gossip::Published;
use crate::trainers::Bytes;

/// The state machine of a member.
#[derive(Debug)]
pub(super) enum Machine {
    Node(Box<Node>),
    Aggregator(Box<Aggregator>),
}

impl Machine {
    /// Makes the machine of a member in its first life.
    pub(super) fn new(
        spec: &Arc<FederationSpec>,
        id: NodeId,
        role: Role,
        initial: Option<BlobRef>,
    ) -> Self {
        let spec = Arc::clone(spec);
        match role {
            Role::Aggregator => Self::Aggregator(Box::new(Aggregator::new(spec, id))),
            Role::Node => Self::Node(Box::new(Node::new(spec, id, initial))),
        }
    }

    pub(super) fn handle(&mut self, now: Timestamp, input: Input) -> Vec<Output> {
        match self {
            Self::Node(node) => node.handle(now, input),
            Self::Aggregator(aggregator) => aggregator.handle(now, input),
        }
    }

    pub(super) fn needed_blobs(&self) -> BTreeSet<BlobId> {
        match self {
            Self::Node(node) => node.needed_blobs(),
            Self::Aggregator(aggregator) => aggregator.needed_blobs(),
        }
    }

    /// Returns the machine of a node; `None` of an aggregator's.
    pub(super) fn node(&self) -> Option<&Node> {
        match self {
            Self::Node(node) => Some(node),
            Self::Aggregator(_) => None,
        }
    }

    /// Returns the round that a node works on; `None` of an aggregator.
    pub(super) fn round(&self) -> Option<Round> {
        self.node().map(Node::round)
    }

    /// Tells whether this is a node in a phase.
    pub(super) fn is_in(&self, phase: Phase) -> bool {
        self.node().is_some_and(|node| node.phase() == phase)
    }
}

/// A member of the federation.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) id: NodeId,
    pub(super) machine: Machine,
    /// Inputs to a former life are lost.
    pub(super) life: u64,
    /// Adverts published in this life.
    pub(super) counter: u64,
    /// When each timer is due; a timer that was set again is not due at its old time.
    pub(super) timers: Map<Timer, Timestamp>,
    /// Whom it follows, who follows it, and what it published last for those only.
    pub(super) follows: BTreeSet<usize>,
    pub(super) followers: BTreeSet<usize>,
    pub(super) last_to_followers: Option<Arc<Published>>,
    /// Members that served it corrupt bytes.
    pub(super) corrupt_seen: BTreeSet<usize>,
    /// What it goes on from when it comes back.
    pub(super) checkpoint: Option<State>,
    pub(super) head: Option<Head>,
    /// What it does about masked sums in the round that it trains.
    pub(super) masks: Option<Box<MaskOrder>>,
    pub(super) sent: Bytes,
    pub(super) received: Bytes,
}

impl Member {
    /// A member in its first life, of which nothing was heard yet.
    pub(super) fn new(id: NodeId, machine: Machine) -> Self {
        Self {
            id,
            machine,
            life: 0,
            counter: 0,
            timers: Map::default(),
            follows: BTreeSet::new(),
            followers: BTreeSet::new(),
            last_to_followers: None,
            corrupt_seen: BTreeSet::new(),
            checkpoint: None,
            head: None,
            masks: None,
            sent: Bytes::default(),
            received: Bytes::default(),
        }
    }

    /// Takes a timer that is due; tells whether it was.
    pub(super) fn take_timer(&mut self, timer: Timer, now: Timestamp) -> bool {
        let is_due = self.timers.get(&timer).is_some_and(|at| *at <= now);
        if is_due {
            self.timers.remove(&timer);
        }
        is_due
    }

    /// Comes back from its last checkpoint, in a new life.
    pub(super) fn restart(&mut self, spec: &Arc<FederationSpec>, initial: Option<BlobRef>) {
        self.life += 1;
        self.counter = 0;
        self.timers.clear();
        let (id, spec) = (self.id, Arc::clone(spec));
        self.machine = match (&self.machine, &self.checkpoint, self.head.clone()) {
            (Machine::Node(_), Some(state), _) => {
                let node = Node::restore(spec, id, initial, state.clone());
                Machine::Node(Box::new(node))
            }
            (Machine::Aggregator(_), _, Some(head)) => {
                Machine::Aggregator(Box::new(Aggregator::restore(spec, id, head)))
            }
            (Machine::Node(_), ..) => Machine::new(&spec, id, Role::Node, initial),
            (Machine::Aggregator(_), ..) => Machine::new(&spec, id, Role::Aggregator, initial),
        };
    }

    /// Keeps what it goes on from when it comes back.
    pub(super) fn save(&mut self) {
        match &self.machine {
            Machine::Node(node) => self.checkpoint = Some(node.checkpoint()),
            Machine::Aggregator(aggregator) => self.head = Some(aggregator.head().clone()),
        }
    }
}
