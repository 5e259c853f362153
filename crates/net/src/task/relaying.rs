//! Relays: a member that nobody can dial keeps a place at a peer through which others connect with it.
//!
//! ```text
//!   peer offers to relay, this node cannot be dialed ──reserve──► waiting ──► an address "through that peer", told to others
//!         ▲                                                          │ refused, or the connection is gone
//!         └───────────────────── after a rest ◄──────────────────────┘
//! ```
//!
//! Through such an address two members meet. Then both dial each other at the same moment, so that their routers let the
//! packets in (DCUtR). If that works, the relayed connection is closed after a moment.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use fednode_core::NodeId;
use libp2p::core::transport::ListenerId;
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId, relay};
use rand::seq::IteratorRandom;

use super::base::Base;
use super::peers::{Connection, Peer};
use crate::addresses::{Reach, bare, is_circuit, is_global};
use crate::handle::Direction;
use crate::identity::{node_id, peer_id};

/// Peers through which this node can be reached at a time. One may go away.
const MAX_RELAYS: usize = 2;
/// Time until a peer that refused is asked again.
const REST: Duration = Duration::from_secs(30);
/// Time that a direct connection must last before the relayed one beside it is closed: requests move over first.
const OVERLAP: Duration = Duration::from_secs(3);

/// The places of this node at relays.
#[derive(Debug, Default)]
pub(super) struct Relaying {
    places: BTreeMap<NodeId, ListenerId>,
    resting: BTreeMap<NodeId, Instant>,
}

impl Relaying {
    /// Asks for a place where one is needed and offered, and closes relayed connections that are not needed any more.
    pub(super) fn tick(&mut self, base: &mut Base, now: Instant) {
        self.resting.retain(|_, until| *until > now);
        close_superseded(base, now);
        if self.places.len() >= MAX_RELAYS || can_be_dialed(base) {
            return;
        }
        let offers = base.peers.welcome().filter_map(|(node, peer)| {
            let is_free = !self.places.contains_key(node) && !self.resting.contains_key(node);
            let address = is_free.then(|| offer(base, peer)).flatten()?;
            Some((*node, address))
        });
        let offers: Vec<(NodeId, Multiaddr)> = offers.collect();
        // By chance: ids are free to make, so by their order two low ones would have all places of everybody.
        let Some((node, address)) = offers.into_iter().choose(&mut base.rng) else {
            return;
        };
        let through = address
            .with(Protocol::P2p(peer_id(&node)))
            .with(Protocol::P2pCircuit);
        match base.swarm.listen_on(through) {
            Ok(listener) => _ = self.places.insert(node, listener),
            Err(error) => {
                tracing::debug!(%node, %error, "no place at a relay");
                self.resting.insert(node, now + REST);
            }
        }
    }

    /// A listener is closed. If it was a place at a relay, another one is looked for later.
    pub(super) fn on_closed(&mut self, listener: ListenerId, reason: &io::Result<()>) {
        let lost = self.places.iter().find(|(_, place)| **place == listener);
        let Some(node) = lost.map(|(node, _)| *node) else {
            tracing::warn!(?reason, "a listener closed");
            return;
        };
        tracing::debug!(?reason, "no place at a relay any more");
        self.places.remove(&node);
        self.resting.insert(node, Instant::now() + REST);
    }

    /// Notes which protocols a peer knows: that of a relay is among them if it relays.
    pub(super) fn on_protocols(base: &mut Base, peer: &PeerId, relays: bool) {
        if let Some(peer) = node_id(peer).and_then(|node| base.peers.get_mut(&node)) {
            peer.relays = relays;
        }
    }
}

/// Tells whether the protocol is that by which a peer offers to relay.
pub(super) fn is_offer(protocol: &libp2p::StreamProtocol) -> bool {
    *protocol == relay::HOP_PROTOCOL_NAME
}

/// Returns the address at which a peer relays, if it does and this node needs it there.
fn offer(base: &Base, peer: &Peer) -> Option<Multiaddr> {
    // Only where this node dialed: nobody else can dial the address of a connection that the peer opened.
    let direct = peer.connections.iter().find(|connection| {
        connection.direction == Direction::Outbound && !is_circuit(&connection.address)
    })?;
    // On one machine a listener is reached without help.
    let is_here = Reach::of(&direct.address) == Reach::SameMachine && base.listens();
    (peer.relays && !is_here).then(|| bare(&direct.address))
}

/// Tells whether strangers to this network reach this node: somebody says so, the router does, or somebody did.
fn can_be_dialed(base: &Base) -> bool {
    let came_in = |connection: &Connection| {
        let is_direct = connection.direction == Direction::Inbound;
        is_direct && !is_circuit(&connection.address) && is_global(&connection.address)
    };
    let mut outer = base.swarm.external_addresses();
    let peers = base.peers.welcome();
    base.config.relay
        || !base.config.external.is_empty()
        || outer.any(|address| !is_circuit(address) && is_global(address))
        || peers
            .map(|(_, peer)| peer)
            .any(|peer| peer.connections.iter().any(came_in))
}

/// Closes relayed connections with peers that are connected directly, too.
fn close_superseded(base: &mut Base, now: Instant) {
    let mut superseded = Vec::new();
    for (_, peer) in base.peers.welcome() {
        let (relayed, direct): (Vec<_>, Vec<_>) = peer
            .connections
            .iter()
            .partition(|connection| is_circuit(&connection.address));
        if direct.iter().any(|direct| direct.since + OVERLAP <= now) {
            superseded.extend(relayed.iter().map(|connection| connection.id));
        }
    }
    for connection in superseded {
        base.swarm.close_connection(connection);
    }
}
