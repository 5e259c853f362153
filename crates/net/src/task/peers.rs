//! The connected peers: their connections, how far their hello is, and what is counted for each.
//!
//! ```text
//!   connected ──► greeting, hello ──good──► welcome ──last connection closed──► gone
//!                     │     │ no hello in time
//!                  refused   └──► closed
//!                     └──► closed after the peer has learned why
//! ```
//!
//! A peer may have two connections, if both sides dialed at once. It is up while it is welcome and has at least one. A peer
//! that dials and greets again later has lost its older connection, even if this side has not noticed. This is only the
//! memory: the swarm is with [`super::base`], and the rules of a hello are in [`super::hello`].

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use fednode_core::{NodeId, Role, Timestamp};
use libp2p::multiaddr::Protocol;
use libp2p::swarm::ConnectionId;
use libp2p::{Multiaddr, ping};

use super::syncing::SyncState;
use crate::addresses::{Reach, is_circuit, relay_of};
use crate::bucket::Bucket;
use crate::dialer::Target;
use crate::handle::{Direction, PeerInfo, Route};

/// A connection without a hello is closed after this time.
const HELLO_PATIENCE: Duration = Duration::from_secs(10);
/// Pings in a row without an answer that mean a dead connection. Fewer can be bulk data in the way.
const MAX_PING_FAILURES: u32 = 3;
/// Bytes of replies that a peer may cause at once, and per second. A peer can sync fully, and again after a while.
const REPLY_BURST: f64 = (8 << 20) as f64;
const REPLY_RATE: f64 = (1 << 20) as f64;

/// When a peer that is connected through a relay is dialed directly first: its address is known by then. Later times are
/// each three times as late.
const FIRST_UPGRADE: Duration = Duration::from_secs(4);
/// Connections that began within this time of each other were dialed at once by both sides.
const AT_ONCE: Duration = Duration::from_secs(3);
/// Messages of presence that a peer may pass on at once, and per second: those of a large federation that begins.
const PRESENCE_BURST: f64 = 1024.0;
const PRESENCE_RATE: f64 = 32.0;
/// Messages of any kind that a peer may pass on by gossip at once, and per second. The largest federation has far fewer.
/// libp2p remembers each for a while, so more of them would fill the memory.
const GOSSIP_BURST: f64 = 16_384.0;
const GOSSIP_RATE: f64 = 512.0;
/// Adverts of one peer that may wait for the gate at once, so that no peer keeps out those of others.
const MAX_AT_GATE: u8 = 32;

/// Peers that are gone and whose budgets are remembered.
const MAX_SPENT: usize = 1024;

/// All connected peers.
#[derive(Debug, Default)]
pub(super) struct Peers {
    peers: BTreeMap<NodeId, Peer>,
    /// What is left of the budgets of peers that are gone. Otherwise a peer that floods would only have to come back.
    spent: BTreeMap<NodeId, [Bucket; 3]>,
}

/// A connected peer.
#[derive(Debug)]
pub(super) struct Peer {
    /// The oldest first.
    pub(super) connections: Vec<Connection>,
    pub(super) hello: Hello,
    /// It has shown that it knows this federation, so it may be told more.
    pub(super) has_greeted: bool,
    since: Instant,
    /// When the peer became welcome, on the wall clock.
    pub(super) up_since: Timestamp,
    rtt: Option<Duration>,
    pub(super) sync: SyncState,
    /// Whether it offers to relay.
    pub(super) relays: bool,
    /// How long after the first connection it is dialed directly, if it is connected through a relay.
    upgrade_after: Duration,
    /// Limits the replies of all protocols together, so that a peer gains nothing by spreading its requests.
    pub(super) budget: Bucket,
    /// Limits the messages of presence, each of which costs a signature.
    pub(super) presence: Bucket,
    /// Limits the messages of gossip together.
    gossip: Bucket,
    /// Its adverts that wait for the gate.
    at_gate: u8,
    /// When the connections are closed, if nothing changes before.
    pub(super) deadline: Option<Instant>,
    /// Whether this side has closed them.
    pub(super) is_closed_here: bool,
}

/// One connection to a peer.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: ConnectionId,
    pub(super) address: Multiaddr,
    pub(super) direction: Direction,
    /// What was dialed, if this node's dialer opened the connection.
    pub(super) target: Option<Target>,
    pub(super) since: Instant,
    ping_failures: u32,
}

/// The state of the hello with a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Hello {
    Waiting,
    Welcome { role: Role, software: String },
    Refused,
}

/// What is left of a peer after its last connection.
#[derive(Debug)]
pub(super) struct Gone {
    pub(super) hello: Hello,
    /// The target of that connection.
    pub(super) target: Option<Target>,
    /// Whether this side has closed it.
    pub(super) is_closed_here: bool,
}

impl Peers {
    pub(super) fn len(&self) -> usize {
        self.peers.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.peers.is_empty()
    }

    pub(super) fn contains(&self, node: &NodeId) -> bool {
        self.peers.contains_key(node)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&NodeId, &Peer)> {
        self.peers.iter()
    }

    pub(super) fn get(&self, node: &NodeId) -> Option<&Peer> {
        self.peers.get(node)
    }

    pub(super) fn get_mut(&mut self, node: &NodeId) -> Option<&mut Peer> {
        self.peers.get_mut(node)
    }

    /// Counts the peers that are connected through relays alone.
    pub(super) fn n_relayed(&self) -> usize {
        let is_relayed = |peer: &&Peer| peer.route().0 == Route::Relay;
        self.peers.values().filter(is_relayed).count()
    }

    /// Returns the peers that are connected through relays alone and are to be dialed directly now.
    pub(super) fn take_upgrades(&mut self, now: Instant) -> Vec<NodeId> {
        let is_due = |peer: &Peer| {
            let is_relayed = peer.is_welcome() && peer.route().0 == Route::Relay;
            is_relayed && peer.since + peer.upgrade_after <= now
        };
        let due = self.peers.iter_mut().filter(|(_, peer)| is_due(peer));
        due.map(|(node, peer)| {
            peer.upgrade_after *= 3;
            *node
        })
        .collect()
    }

    /// Returns the peers whose hello was accepted.
    pub(super) fn welcome(&self) -> impl Iterator<Item = (&NodeId, &Peer)> {
        self.iter().filter(|(_, peer)| peer.is_welcome())
    }

    /// Returns a peer if its hello was accepted.
    pub(super) fn welcome_mut(&mut self, node: &NodeId) -> Option<&mut Peer> {
        self.get_mut(node).filter(|peer| peer.is_welcome())
    }

    /// Tells whether a node is connected and its hello was accepted.
    pub(super) fn is_welcome(&self, node: &NodeId) -> bool {
        self.get(node).is_some_and(Peer::is_welcome)
    }

    /// Enters a new connection, and its peer if this is the first one.
    pub(super) fn connected(&mut self, node: NodeId, connection: Connection) {
        let spent = &mut self.spent;
        let peer = self.peers.entry(node).or_insert_with(|| {
            let mut peer = Peer::new(Instant::now());
            if let Some([budget, presence, gossip]) = spent.remove(&node) {
                (peer.budget, peer.presence, peer.gossip) = (budget, presence, gossip);
            }
            peer
        });
        peer.connections.push(connection);
    }

    /// Remembers the budgets of a peer that is gone, if it has spent something of them.
    fn remember(&mut self, node: NodeId, mut budgets: [Bucket; 3], now: Instant) {
        let is_spent = |budgets: &mut [Bucket; 3]| budgets.iter_mut().any(|it| !it.is_full(now));
        if !is_spent(&mut budgets) {
            return;
        }
        if self.spent.len() >= MAX_SPENT {
            self.spent.retain(|_, budgets| is_spent(budgets));
        }
        if self.spent.len() >= MAX_SPENT {
            self.spent.pop_first();
        }
        self.spent.insert(node, budgets);
    }

    /// Takes out the older connections that are dead, now that the peer greets over this one, and returns them.
    ///
    /// Nodes do not dial a peer that they know to be connected, except directly beside a relay. So a peer that dials has
    /// lost what it had. This side may not have noticed: the peer's machine was cut off or went down. Without this, every
    /// second request would go into the dead connection until pings close it. Only a greeting counts: who dialed somebody
    /// else, and finds this node at that address, closes without one.
    ///
    /// They are out at once, because a connection into which bytes were written takes a while to close.
    pub(super) fn supersede(&mut self, node: &NodeId, greeted: ConnectionId) -> Vec<ConnectionId> {
        // Before it is welcome, the older one may have a hello under way, and ends by itself without one.
        let Some(peer) = self.welcome_mut(node) else {
            return Vec::new();
        };
        let mut connections = peer.connections.iter();
        let Some(new) = connections.find(|it| it.id == greeted) else {
            return Vec::new();
        };
        let (since, is_direct) = (new.since, !is_circuit(&new.address));
        let is_dead = |old: &mut Connection| {
            let is_upgrade = is_circuit(&old.address) && is_direct;
            old.since + AT_ONCE <= since && !is_upgrade
        };
        let dead = peer.connections.extract_if(.., is_dead);
        dead.map(|old| old.id).collect()
    }

    /// Removes a closed connection. Returns what is left of the peer if it was the last one.
    pub(super) fn closed(&mut self, node: &NodeId, id: ConnectionId) -> Option<Gone> {
        let connections = &mut self.peers.get_mut(node)?.connections;
        let at = connections
            .iter()
            .position(|connection| connection.id == id);
        // One that was superseded is out already, and its target with it.
        let closed = at.map(|at| connections.remove(at));
        // Of two connections one may close; the peer is still up.
        if !connections.is_empty() {
            return None;
        }
        let peer = self.peers.remove(node)?;
        let budgets = [peer.budget, peer.presence, peer.gossip];
        self.remember(*node, budgets, Instant::now());
        Some(Gone {
            hello: peer.hello,
            target: closed.and_then(|connection| connection.target),
            is_closed_here: peer.is_closed_here,
        })
    }

    /// Returns the peers whose deadline has passed.
    pub(super) fn overdue(&self, now: Instant) -> Vec<NodeId> {
        let is_overdue = |peer: &Peer| peer.deadline.is_some_and(|deadline| deadline <= now);
        self.iter()
            .filter(|(_, peer)| is_overdue(peer))
            .map(|(node, _)| *node)
            .collect()
    }
}

impl Peer {
    fn new(now: Instant) -> Self {
        Self {
            connections: Vec::new(),
            hello: Hello::Waiting,
            has_greeted: false,
            since: now,
            up_since: Timestamp(0),
            rtt: None,
            sync: SyncState::default(),
            relays: false,
            upgrade_after: FIRST_UPGRADE,
            budget: Bucket::new(REPLY_BURST, REPLY_RATE, now),
            presence: Bucket::new(PRESENCE_BURST, PRESENCE_RATE, now),
            gossip: Bucket::new(GOSSIP_BURST, GOSSIP_RATE, now),
            at_gate: 0,
            deadline: Some(now + HELLO_PATIENCE),
            is_closed_here: false,
        }
    }

    pub(super) fn is_welcome(&self) -> bool {
        matches!(self.hello, Hello::Welcome { .. })
    }

    /// Counts a message of gossip. Tells whether the peer floods this node.
    pub(super) fn floods(&mut self, now: Instant) -> bool {
        let has_room = self.gossip.has_any(now);
        self.gossip.take(1.0);
        !has_room
    }

    /// Takes a place at the gate for an advert, if fewer than a share of them are taken.
    pub(super) fn enter_gate(&mut self) -> bool {
        let may = self.at_gate < MAX_AT_GATE;
        self.at_gate += u8::from(may);
        may
    }

    /// Gives a place at the gate back.
    pub(super) fn leave_gate(&mut self) {
        self.at_gate = self.at_gate.saturating_sub(1);
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

    /// Tells how the peer is reached, and through which relay if there is no direct connection.
    fn route(&self) -> (Route, Option<NodeId>) {
        let mut addresses = self.connections.iter().map(|it| &it.address);
        let direct = addresses.clone().find(|address| !is_circuit(address));
        match direct {
            Some(address) if address.iter().any(|part| part == Protocol::QuicV1) => {
                (Route::Quic, None)
            }
            Some(_) => (Route::Tcp, None),
            None => (Route::Relay, addresses.find_map(relay_of)),
        }
    }

    /// Notes the result of a ping. Tells whether the connection counts as dead now.
    pub(super) fn note_ping(
        &mut self,
        id: ConnectionId,
        result: Result<Duration, ping::Failure>,
    ) -> bool {
        let mut connections = self.connections.iter_mut();
        let Some(connection) = connections.find(|connection| connection.id == id) else {
            return false;
        };
        match result {
            Ok(rtt) => {
                self.rtt = Some(rtt);
                connection.ping_failures = 0;
            }
            Err(_) => connection.ping_failures += 1,
        }
        connection.ping_failures >= MAX_PING_FAILURES
    }

    /// Describes the peer for people, if it is welcome.
    pub(super) fn info(&self, node: NodeId, score: f64, holds: usize) -> Option<PeerInfo> {
        let Hello::Welcome { role, software } = &self.hello else {
            return None;
        };
        let oldest = self.connections.first();
        let (route, relay) = self.route();
        Some(PeerInfo {
            node,
            role: *role,
            route,
            relay,
            addresses: self
                .connections
                .iter()
                .map(|connection| connection.address.clone())
                .collect(),
            since: self.since.elapsed(),
            rtt: self.rtt,
            direction: oldest.map_or(Direction::Inbound, |connection| connection.direction),
            score,
            software: software.clone(),
            holds,
        })
    }
}

impl Connection {
    pub(super) fn new(
        id: ConnectionId,
        address: Multiaddr,
        direction: Direction,
        target: Option<Target>,
    ) -> Self {
        Self {
            id,
            address,
            direction,
            target,
            since: Instant::now(),
            ping_failures: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_floods_a_node_gains_nothing_by_coming_back() {
        let (node, other) = (NodeId::from_bytes([1; 32]), NodeId::from_bytes([2; 32]));
        let address: Multiaddr = "/ip4/10.0.0.1/tcp/1".parse().unwrap();
        let mut peers = Peers::default();
        let connect = |peers: &mut Peers, node, id| {
            let id = ConnectionId::new_unchecked(id);
            let connection = Connection::new(id, address.clone(), Direction::Inbound, None);
            peers.connected(node, connection);
        };
        let floods = |peers: &mut Peers, node: &NodeId, messages: u32| {
            let peer = peers.get_mut(node).unwrap();
            let now = Instant::now();
            (0..messages).filter(|_| peer.floods(now)).count() > 0
        };
        connect(&mut peers, node, 1);
        assert!(floods(&mut peers, &node, 17_000));
        assert!(
            peers
                .closed(&node, ConnectionId::new_unchecked(1))
                .is_some()
        );
        for (node, id) in [(node, 2), (other, 3)] {
            connect(&mut peers, node, id);
        }
        assert!(floods(&mut peers, &node, 1_000));
        assert!(!floods(&mut peers, &other, 1_000));
    }
}
