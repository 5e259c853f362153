//! What all parts of the swarm task work with: who this node is, the swarm, the connected peers and their standing.
//!
//! The parts own their state and are lent this. The peers are common ground because every protocol asks first whether its
//! peer is welcome. The standing is, because bans count in dialing, in peer exchange and for adverts alike.

use std::sync::{Arc, PoisonError, RwLockWriteGuard};
use std::time::{Duration, Instant};

use fednode_core::{Absence, NodeId};
use libp2p::multiaddr::Protocol;
use libp2p::swarm::{ConnectionId, Swarm};
use libp2p::{Multiaddr, PeerId, ping};
use rand::rngs::StdRng;

use super::clocks::Clocks;
use super::peers::{Peer, Peers};
use super::syncing::SyncState;
use super::turned_away::TurnedAway;
use crate::addresses::{bare, is_circuit};
use crate::behaviour::Behaviour;
use crate::config::Config;
use crate::event::{Event, Outbox};
use crate::gate::Objection;
use crate::handle::{PeerInfo, Shared};
use crate::identity::{Identity, node_id, peer_id};
use crate::membership::MemberBook;
use crate::score::Standing;

/// How long after its connections were closed a peer that was not let in is closed again, if it is still here.
const CLOSE_AGAIN: Duration = Duration::from_secs(5);

/// The common ground of the parts.
pub(super) struct Base {
    pub(super) swarm: Swarm<Behaviour>,
    pub(super) config: Config,
    pub(super) identity: Identity,
    pub(super) own: NodeId,
    pub(super) peers: Peers,
    pub(super) standing: Standing,
    pub(super) clocks: Clocks,
    pub(super) turned_away: TurnedAway,
    pub(super) outbox: Outbox,
    pub(super) shared: Arc<Shared>,
    pub(super) rng: StdRng,
}

impl Base {
    /// Tells the application.
    pub(super) fn tell(&mut self, event: Event) {
        self.outbox.send(event);
    }

    /// An advert that an honest node may have sent was refused: says so if its author's clock, its round or the allow-list is
    /// the reason.
    pub(super) fn note_refused(&mut self, objection: &Objection) {
        let now = Instant::now();
        let news = self.clocks.refused(objection, now);
        news.into_iter().for_each(|event| self.tell(event));
        if let Objection::NotAllowed(node) = objection
            && self.turned_away.is_news(*node, now)
        {
            self.tell(Event::TurnedAway {
                node: *node,
                address: None,
            });
        }
    }

    /// Tells whether to connect to a node: it is not this node, is allowed and is not banned.
    pub(super) fn is_wanted(&self, node: &NodeId) -> bool {
        let allow = self.config.allow.as_ref();
        let is_allowed = allow.is_none_or(|allow| allow.contains(node));
        let is_allowed = is_allowed && self.why_gone(node).is_none();
        *node != self.own && is_allowed && !self.standing.is_banned(node)
    }

    /// Returns why a node is no member any more. A node of which nothing is known may be a new member.
    pub(super) fn why_gone(&self, node: &NodeId) -> Option<Absence> {
        let role = |members: &Arc<MemberBook>| members.role(node, crate::clock::now()).err();
        let absence = self.config.members.as_ref().and_then(role);
        absence.filter(|absence| matches!(absence, Absence::Revoked | Absence::Expired))
    }

    /// Remembers a peer that is welcome, and where it is: it comes back even through a crowd.
    pub(super) fn know(&mut self, node: &NodeId) {
        let connections = self.peers.get(node).map(|peer| &peer.connections);
        let connections = connections.into_iter().flatten();
        let connections: Vec<(ConnectionId, Multiaddr)> =
            connections.map(|it| (it.id, it.address.clone())).collect();
        for (id, address) in connections {
            let crowd = &mut self.swarm.behaviour_mut().crowd;
            crowd.know(peer_id(node), id, &address);
        }
    }

    /// Tells whether this node listens by itself, and not only through a relay.
    pub(super) fn listens(&self) -> bool {
        self.swarm.listeners().any(|address| !is_circuit(address))
    }

    /// Closes all connections to a peer.
    pub(super) fn disconnect(&mut self, node: &NodeId) {
        if let Some(peer) = self.peers.get_mut(node) {
            // A connection takes a while to close, and every tick until then would find the deadline passed. A connection that
            // its key opens meanwhile has no deadline of its own. So unless it is let in, all are closed again.
            peer.deadline = (!peer.is_welcome()).then(|| Instant::now() + CLOSE_AGAIN);
            peer.is_closed_here = true;
        }
        // An error only means that the peer is not connected any more.
        _ = self.swarm.disconnect_peer_id(peer_id(node));
    }

    /// Closes the connections that a peer has lost, as it greets over another one.
    pub(super) fn close_superseded(&mut self, node: &NodeId, greeted: ConnectionId) {
        let dead = self.peers.supersede(node, greeted);
        if let Some(peer) = self.peers.get_mut(node).filter(|_| !dead.is_empty()) {
            // It may be a new process. That one has heard of no blob, and what it says meanwhile comes by sync.
            (peer.sync, peer.up_since) = (SyncState::default(), crate::clock::now());
        }
        for dead in dead {
            tracing::debug!(%node, "the peer came back over a new connection: closing the older one");
            self.swarm.close_connection(dead);
        }
    }

    /// Closes connections whose time is up: no hello, refused, or beyond `max_peers`.
    pub(super) fn check_deadlines(&mut self, now: Instant) {
        for node in self.peers.overdue(now) {
            self.disconnect(&node);
        }
    }

    pub(super) fn on_ping(&mut self, event: ping::Event) {
        let Some(peer) = node_id(&event.peer).and_then(|node| self.peers.get_mut(&node)) else {
            return;
        };
        let is_dead = peer.note_ping(event.connection, event.result);
        if is_dead {
            // Not `disconnect`: a second connection to the peer, over another path, may be alive.
            tracing::debug!(peer = %event.peer, "no answer to pings: closing the connection");
            self.swarm.close_connection(event.connection);
        }
    }

    /// Lets peers in again whose ban is over.
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

    /// Describes the welcome peers.
    pub(super) fn peer_infos(&self) -> Vec<PeerInfo> {
        let now = crate::clock::now();
        let info = |(node, peer): (&NodeId, &Peer)| {
            let score = self.standing.score(node, now);
            peer.info(*node, score, self.shared.roster.n_holds(node))
        };
        self.peers.iter().filter_map(info).collect()
    }

    pub(super) fn on_listening(&mut self, address: Multiaddr) {
        let address = self.with_own_id(&address);
        let mut listeners = self.listeners();
        if listeners.contains(&address) {
            return;
        }
        listeners.push(address.clone());
        // Unlocked before the event: whoever receives it reads the list.
        drop(listeners);
        // A relay must name an address when it gives a place.
        if self.config.relay {
            self.swarm.add_external_address(address.clone());
        }
        self.tell(Event::Listening(address));
    }

    pub(super) fn on_listening_no_more(&mut self, address: &Multiaddr) {
        let address = self.with_own_id(address);
        self.listeners().retain(|known| *known != address);
        if self.config.relay {
            self.swarm.remove_external_address(&address);
        }
    }

    fn listeners(&self) -> RwLockWriteGuard<'_, Vec<Multiaddr>> {
        let listeners = self.shared.listeners.write();
        listeners.unwrap_or_else(PoisonError::into_inner)
    }

    fn with_own_id(&self, address: &Multiaddr) -> Multiaddr {
        bare(address).with(Protocol::P2p(peer_id(&self.own)))
    }
}
