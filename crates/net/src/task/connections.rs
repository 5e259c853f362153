//! Connections: opening, closing, dialing, pinging, and the standing of their peers.
//!
//! ```text
//!   connected ──► waiting for hello ──good──► welcome ──last connection closed──► gone
//!                       │     │ no hello in time
//!                 refused     └──► closed
//!                       └──► closed after the peer has learned why
//! ```
//!
//! A peer may have two connections, if both sides dialed at once. It is up while it is welcome and has at least one.

use std::time::{Duration, Instant};

use fednode_core::{NodeId, Refusal, Role, Timestamp};
use libp2p::core::ConnectedPoint;
use libp2p::swarm::dial_opts::DialOpts;
use libp2p::swarm::{ConnectionError, ConnectionId, DialError};
use libp2p::{Multiaddr, PeerId, ping};

use super::Task;
use super::dial_error::{Consequence, explain};
use super::sync::SyncState;
use crate::addresses::{Reach, bare, node_of};
use crate::bucket::Bucket;
use crate::dialer::{Failure, Target};
use crate::event::Event;
use crate::handle::Direction;
use crate::identity::{node_id, peer_id};

/// A connection without a hello is closed after this time.
const HELLO_PATIENCE: Duration = Duration::from_secs(10);
/// A refused peer has this long to read the hello before this side closes the connection.
const REFUSAL_PATIENCE: Duration = Duration::from_secs(3);
/// A peer beyond `max_peers` stays this long: enough to learn the addresses of others.
const GUEST_STAY: Duration = Duration::from_secs(10);
/// Pings in a row without an answer that mean a dead connection. Fewer can be bulk data in the way.
const MAX_PING_FAILURES: u32 = 3;
/// Bytes of replies that a peer may cause at once, and per second. A peer can sync fully, and again after a while.
const REPLY_BURST: f64 = (8 << 20) as f64;
const REPLY_RATE: f64 = (1 << 20) as f64;
/// Refusals remembered. Beyond that a refusal may be reported twice.
pub(super) const MAX_REFUSALS: usize = 1024;

/// A connected peer.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) connections: Vec<Connection>,
    pub(super) hello: Hello,
    pub(super) since: Instant,
    /// When the peer became welcome, on the wall clock.
    pub(super) up_since: Timestamp,
    pub(super) rtt: Option<Duration>,
    pub(super) sync: SyncState,
    pub(super) budget: Bucket,
    deadline: Option<Instant>,
}

/// One connection to a peer.
#[derive(Debug)]
pub(super) struct Connection {
    id: ConnectionId,
    pub(super) address: Multiaddr,
    pub(super) direction: Direction,
    target: Option<Target>,
    ping_failures: u32,
}

/// The state of the hello with a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Hello {
    Waiting,
    Welcome { role: Role, software: String },
    Refused,
}

impl Peer {
    fn new(now: Instant) -> Self {
        Self {
            connections: Vec::new(),
            hello: Hello::Waiting,
            since: now,
            up_since: Timestamp(0),
            rtt: None,
            sync: SyncState::default(),
            budget: Bucket::new(REPLY_BURST, REPLY_RATE, now),
            deadline: Some(now + HELLO_PATIENCE),
        }
    }

    pub(super) fn is_welcome(&self) -> bool {
        matches!(self.hello, Hello::Welcome { .. })
    }

    /// Tells by the address of its oldest connection whether the peer runs on the same machine.
    pub(super) fn reach(&self) -> Reach {
        self.connections
            .first()
            .map_or(Reach::Elsewhere, |connection| {
                Reach::of(&connection.address)
            })
    }

    pub(super) fn is_outbound(&self) -> bool {
        self.connections
            .iter()
            .any(|connection| connection.direction == Direction::Outbound)
    }
}

impl Task {
    pub(super) fn add_target(&mut self, address: Multiaddr) {
        let node = node_of(&address);
        if node != Some(self.own) {
            self.dialer.add_address(address, node, Instant::now());
        }
    }

    /// Makes the dialer try providers that a fetch waits for.
    pub(super) fn hurry(&mut self, nodes: Vec<NodeId>) {
        let now = Instant::now();
        for node in nodes {
            // Without an address a target would only fail; peer exchange may bring one later.
            let known = !self.addresses.addresses(&node).is_empty()
                || !self.dialer.addresses_of(&node).is_empty();
            if known
                && node != self.own
                && !self.peers.contains_key(&node)
                && !self.standing.is_banned(&node)
            {
                self.dialer.hurry(node, now);
            }
        }
    }

    pub(super) fn dial_due(&mut self, now: Instant) {
        let room = self
            .config
            .max_peers
            .saturating_sub(self.peers.len() + self.dials.len());
        let peers = &self.peers;
        for target in self
            .dialer
            .begin(now, room, |node| peers.contains_key(node))
        {
            let options = match &target {
                Target::Address(address) => match node_of(address) {
                    Some(node) => to_node(&node, vec![address.clone()]),
                    // From a fresh port, see `to_node`.
                    None => DialOpts::unknown_peer_id()
                        .address(address.clone())
                        .allocate_new_port()
                        .build(),
                },
                Target::Node(node) => to_node(node, self.addresses.addresses(node)),
            };
            // By connection and not by peer: an address may lead to a node that nobody expected.
            let connection = options.connection_id();
            match self.swarm.dial(options) {
                Ok(()) => _ = self.dials.insert(connection, target),
                Err(error) => self.on_dial_error(&target, &error),
            }
        }
    }

    pub(super) fn on_dial_error(&mut self, target: &Target, error: &DialError) {
        tracing::debug!(?target, %error, "a dial failed");
        match explain(error, self.config.network_key.is_some()) {
            Consequence::Count(failure, reason) => self.count_failure(target, failure, reason),
            Consequence::Postpone => self.dialer.postpone(target, Instant::now()),
            Consequence::Forget => self.dialer.forget(target),
        }
    }

    /// Counts a failed attempt, and reports it when the dialer says so.
    fn count_failure(&mut self, target: &Target, failure: Failure, reason: String) {
        let attempts = self
            .dialer
            .failed(target, failure, Instant::now(), &mut self.rng);
        // Learned nodes fail silently; a configured address is something that a person can correct.
        if let (Some(attempts), Target::Address(address)) = (attempts, target) {
            self.tell(Event::DialFailed {
                address: address.clone(),
                reason,
                attempts,
            });
        }
    }

    pub(super) fn on_connected(
        &mut self,
        peer: PeerId,
        id: ConnectionId,
        endpoint: &ConnectedPoint,
    ) {
        let target = self.dials.remove(&id);
        let Some(node) = node_id(&peer) else {
            tracing::debug!(%peer, "a peer whose key is not ed25519");
            self.swarm.close_connection(id);
            return;
        };
        if let Some(target) = &target {
            self.dialer.connected(target, node);
        }
        let direction = if endpoint.is_dialer() {
            Direction::Outbound
        } else {
            Direction::Inbound
        };
        let address = bare(endpoint.get_remote_address());
        let connection = Connection {
            id,
            address,
            direction,
            target,
            ping_failures: 0,
        };
        self.peers
            .entry(node)
            .or_insert_with(|| Peer::new(Instant::now()))
            .connections
            .push(connection);
        // Only the dialing side begins. The other answers, so each connection has one exchange.
        if direction == Direction::Outbound {
            self.say_hello(&peer);
        }
    }

    pub(super) fn on_disconnected(
        &mut self,
        peer: &PeerId,
        id: ConnectionId,
        cause: Option<ConnectionError>,
    ) {
        let Some(node) = node_id(peer) else { return };
        let Some(known) = self.peers.get_mut(&node) else {
            return;
        };
        let closed = known
            .connections
            .iter()
            .position(|connection| connection.id == id);
        let closed = closed.map(|at| known.connections.remove(at));
        // Of two connections one may close; the peer is still up.
        if !known.connections.is_empty() {
            return;
        }
        let hello = known.hello.clone();
        self.peers.remove(&node);
        let now = Instant::now();
        match hello {
            Hello::Welcome { .. } => {
                self.shared.roster.remove(&node);
                self.dialer.lost(node, now, &mut self.rng);
                tracing::debug!(%node, ?cause, "peer down");
                self.tell(Event::PeerDown { node });
            }
            Hello::Refused => self.dialer.refused(node, now, &mut self.rng),
            Hello::Waiting => {
                // The transport cannot tell these causes apart: the other side just closes.
                if let Some(target) = closed.and_then(|connection| connection.target) {
                    let reason = "the peer closed the connection before its hello: this node may not be on its \
                                  allow-list, may be banned, or the peer is full";
                    self.count_failure(&target, Failure::Passing, reason.to_owned());
                }
            }
        }
    }

    /// Notes an accepted hello. Returns whether the peer was not up before.
    pub(super) fn welcome(&mut self, node: NodeId, role: Role, software: String) -> bool {
        // A full node still lets newcomers in for a moment, so that they learn the addresses of others.
        let guest =
            self.peers.values().filter(|peer| peer.is_welcome()).count() >= self.config.max_peers;
        let Some(peer) = self.peers.get_mut(&node) else {
            return false;
        };
        let is_new = !peer.is_welcome();
        peer.hello = Hello::Welcome { role, software };
        if is_new {
            peer.deadline = (guest && !peer.is_outbound()).then(|| Instant::now() + GUEST_STAY);
            peer.up_since = crate::clock::now();
        }
        self.shared.roster.enter(node, role);
        if is_new {
            self.refusals.remove(&node);
            self.dialer.welcomed(node);
            self.tell(Event::PeerUp { node, role });
        }
        is_new
    }

    /// Notes a refusal, reports it unless it was reported before, and lets the connection end.
    pub(super) fn refuse(&mut self, node: NodeId, refusal: Refusal) {
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        let was_up = peer.is_welcome();
        // The peer closes the connection itself once it has read this node's hello; the deadline is for those that do not.
        peer.hello = Hello::Refused;
        peer.deadline = Some(Instant::now() + REFUSAL_PATIENCE);
        let address = peer
            .connections
            .first()
            .map(|connection| connection.address.to_string())
            .unwrap_or_default();
        if was_up {
            self.shared.roster.remove(&node);
            self.tell(Event::PeerDown { node });
        }
        if self
            .refusals
            .get(&node)
            .is_some_and(|told| same_cause(told, &refusal))
        {
            return;
        }
        if self.refusals.len() >= MAX_REFUSALS {
            self.refusals.pop_first();
        }
        self.refusals.insert(node, refusal.clone());
        self.tell(Event::Refused {
            node: Some(node),
            address,
            refusal,
        });
    }

    /// Closes connections whose time is up: no hello, refused, or beyond `max_peers`.
    pub(super) fn check_deadlines(&mut self, now: Instant) {
        let over = |peer: &Peer| peer.deadline.is_some_and(|deadline| deadline <= now);
        let over: Vec<NodeId> = self
            .peers
            .iter()
            .filter(|(_, peer)| over(peer))
            .map(|(node, _)| *node)
            .collect();
        for node in over {
            self.disconnect(&node);
        }
    }

    pub(super) fn disconnect(&mut self, node: &NodeId) {
        if let Some(peer) = self.peers.get_mut(node) {
            peer.deadline = None;
        }
        // An error only means that the peer is not connected any more.
        _ = self.swarm.disconnect_peer_id(peer_id(node));
    }

    pub(super) fn on_ping(&mut self, event: ping::Event) {
        let Some(peer) = node_id(&event.peer).and_then(|node| self.peers.get_mut(&node)) else {
            return;
        };
        let connection = peer
            .connections
            .iter_mut()
            .find(|connection| connection.id == event.connection);
        let Some(connection) = connection else { return };
        match event.result {
            Ok(rtt) => {
                peer.rtt = Some(rtt);
                connection.ping_failures = 0;
            }
            Err(_) => {
                connection.ping_failures += 1;
                if connection.ping_failures >= MAX_PING_FAILURES {
                    tracing::debug!(peer = %event.peer, "no answer to pings: closing the connection");
                    self.swarm.close_connection(event.connection);
                }
            }
        }
    }

    /// Adds a strike. Enough strikes are a ban.
    pub(super) fn strike(&mut self, node: NodeId, reason: String) {
        if node == self.own {
            return;
        }
        tracing::debug!(%node, reason, "struck");
        // The application hears of every strike, so that a person can see why a peer was banned.
        let ban = self.standing.strike(node, crate::clock::now());
        self.tell(Event::Struck {
            node,
            reason: reason.clone(),
        });
        if let Some(length) = ban {
            self.enforce_ban(node, length, reason);
        }
    }

    pub(super) fn ban(&mut self, node: NodeId, length: Duration, reason: String) {
        if node != self.own {
            self.standing.ban(node, length, crate::clock::now());
            self.enforce_ban(node, length, reason);
        }
    }

    fn enforce_ban(&mut self, node: NodeId, length: Duration, reason: String) {
        self.dialer.refused(node, Instant::now(), &mut self.rng);
        self.swarm.behaviour_mut().banned.block_peer(peer_id(&node));
        self.tell(Event::Banned {
            node,
            length,
            reason,
        });
    }

    pub(super) fn lift_bans(&mut self) {
        self.standing.lift(crate::clock::now());
        // By what is blocked and not by what was lifted: a forgotten account must not leave its peer blocked for ever.
        let blocked = self.swarm.behaviour().banned.blocked_peers();
        let over = blocked
            .iter()
            .filter(|peer| node_id(peer).is_none_or(|node| !self.standing.is_banned(&node)));
        let over: Vec<PeerId> = over.copied().collect();
        over.into_iter()
            .for_each(|peer| _ = self.swarm.behaviour_mut().banned.unblock_peer(peer));
    }
}

/// Dials a node at these addresses, from a fresh port.
///
/// A reused port may still be busy with the end of the last connection. And two nodes that dial each other from their
/// listening ports can end up with one connection that both opened.
fn to_node(node: &NodeId, addresses: Vec<Multiaddr>) -> DialOpts {
    DialOpts::peer_id(peer_id(node))
        .addresses(addresses)
        .allocate_new_port()
        .build()
}

/// Tells whether two refusals have the same cause. The seconds of a wrong clock change all the time, so they do not count.
fn same_cause(told: &Refusal, refusal: &Refusal) -> bool {
    matches!((told, refusal), (Refusal::Clock(_), Refusal::Clock(_))) || told == refusal
}
