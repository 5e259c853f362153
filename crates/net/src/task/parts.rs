//! The parts of the swarm task, and what concerns several of them: a connection, a finding, a ban, a change of whom this
//! node follows.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fednode_core::{BroadcastSet, NodeId};
use futures::StreamExt;
use libp2p::core::ConnectedPoint;
use libp2p::swarm::{ConnectionError, ConnectionId};
use libp2p::{Multiaddr, PeerId};
use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::time::timeout;

use super::adverts::Adverts;
use super::base::Base;
use super::clocks::Clocks;
use super::dialing::{Dialing, End};
use super::exchange::Exchange;
use super::finding::Finding;
use super::gossip::Gossip;
use super::hello::Reception;
use super::peers::{Connection, Gone, Hello, Peers};
use super::presence::Presence;
use super::relaying::Relaying;
use super::roll_call::RollCall;
use super::syncing::Syncing;
use super::turned_away::TurnedAway;
use super::{Beginning, Outlets};
use crate::addresses::{bare, relay_of};
use crate::event::Event;
use crate::handle::{Direction, Shared, Wanted};
use crate::identity::{node_id, peer_id};
use crate::score::Standing;

/// Time for last messages (a `Leave`, an unsubscription) to be sent before connections are closed.
const LAST_WORDS: Duration = Duration::from_millis(200);
/// Time for connections to close after that.
const FAREWELL: Duration = Duration::from_millis(300);

/// All parts, and what they are lent.
pub(super) struct Parts {
    pub(super) base: Base,
    pub(super) reception: Reception,
    pub(super) dialing: Dialing,
    pub(super) exchange: Exchange,
    pub(super) adverts: Adverts,
    pub(super) gossip: Gossip,
    pub(super) syncing: Syncing,
    pub(super) presence: Presence,
    pub(super) relaying: Relaying,
    pub(super) roll_call: RollCall,
}

impl Parts {
    pub(super) fn new(
        beginning: Beginning,
        outlets: Outlets,
        shared: Arc<Shared>,
        now: Instant,
    ) -> Self {
        let broadcast_set = BroadcastSet::of(&beginning.config.spec);
        let base = Base {
            clocks: Clocks::new(beginning.config.clock.now(), now),
            swarm: beginning.swarm,
            own: beginning.identity.node_id(),
            identity: beginning.identity,
            config: beginning.config,
            peers: Peers::default(),
            standing: Standing::default(),
            turned_away: TurnedAway::default(),
            outbox: outlets.events,
            shared,
            rng: StdRng::from_os_rng(),
        };
        let mut parts = Self {
            reception: Reception::default(),
            dialing: Dialing::default(),
            exchange: Exchange::new(now),
            adverts: Adverts::new(broadcast_set, beginning.book, outlets.gate),
            presence: Presence::new(&base, &beginning.topics, now),
            relaying: Relaying::default(),
            gossip: Gossip::new(beginning.topics),
            syncing: Syncing::new(base.config.sync_every, now),
            roll_call: RollCall::new(now),
            base,
        };
        // The swarm listens already, so the events of these addresses are gone.
        let listeners: Vec<Multiaddr> = parts.base.swarm.listeners().cloned().collect();
        for address in listeners {
            parts.base.on_listening(address);
        }
        for address in parts.base.config.peers.clone() {
            parts.dialing.add_target(&parts.base, address);
        }
        parts.dialing.remember(&parts.base);
        parts
    }

    /// Does what follows from findings, in their order: a peer is up for the dialer before anything is asked of it.
    pub(super) fn act_on(&mut self, findings: impl IntoIterator<Item = Finding>) {
        for finding in findings {
            match finding {
                Finding::Fault(node, reason) => self.strike(node, reason),
                Finding::Arrival(node) => {
                    self.base.know(&node);
                    self.dialing.welcomed(node);
                    self.presence.on_arrival(&mut self.base, &node);
                }
                Finding::Answer(node) => {
                    // At once and not at the next tick: a newcomer knows nothing and nobody yet.
                    self.syncing.start(&mut self.base, &self.adverts, node);
                    self.exchange.ask(&mut self.base, node);
                }
                Finding::Newcomer => self.exchange.hasten(Instant::now()),
                Finding::Silence(node) => {
                    tracing::warn!(%node, "a connected peer is silent on gossip: connecting anew");
                    self.base.disconnect(&node);
                    self.dialing.renew(node);
                }
                // No strike: an honest peer passes on what a flood of others has made it accept.
                Finding::Flood(node) => {
                    tracing::warn!(%node, "a peer floods this node with messages: the connection is closed");
                    self.base.disconnect(&node);
                }
            }
        }
    }

    /// This node listens at an address of its own, or others can reach it through a relay.
    pub(super) fn on_listening(&mut self, address: Multiaddr) {
        let relay = relay_of(&address);
        self.base.on_listening(address);
        // At once and not at the next exchange: the relay is whom others ask for addresses.
        if let Some(relay) = relay {
            self.exchange.ask(&mut self.base, relay);
        }
    }

    pub(super) fn on_connected(
        &mut self,
        peer: &PeerId,
        id: ConnectionId,
        endpoint: &ConnectedPoint,
    ) {
        // First of all, whoever the peer is: an attempt that is not taken off the list counts as a peer for ever.
        let target = self.dialing.take(id);
        let Some(node) = node_id(peer) else {
            tracing::debug!(%peer, "a peer whose key is not ed25519");
            self.base.swarm.close_connection(id);
            return;
        };
        if let Some(target) = &target {
            self.dialing.connected(target, node);
        }
        let direction = if endpoint.is_dialer() {
            Direction::Outbound
        } else {
            Direction::Inbound
        };
        // A peer that came through a relay has no address of its own; the relay's says how it is reached.
        let address = match endpoint {
            ConnectedPoint::Listener { local_addr, .. } if endpoint.is_relayed() => {
                bare(local_addr)
            }
            _ => bare(endpoint.get_remote_address()),
        };
        let connection = Connection::new(id, address, direction, target);
        self.base.peers.connected(node, connection);
        // Only the dialing side begins. The other answers, so each connection has one exchange.
        if direction == Direction::Outbound {
            self.reception.greet(&mut self.base, peer);
        }
    }

    pub(super) fn on_disconnected(
        &mut self,
        peer: &PeerId,
        id: ConnectionId,
        cause: Option<ConnectionError>,
    ) {
        let Some(node) = node_id(peer) else { return };
        let base = &mut self.base;
        let Some(gone) = base.peers.closed(&node, id) else {
            return;
        };
        let Gone { hello, target, .. } = gone;
        match hello {
            Hello::Welcome { .. } => {
                base.shared.roster.remove(&node);
                // The wait of a ban is long, and a lost peer is dialed at once.
                if !base.standing.is_banned(&node) {
                    self.dialing.lost(base, node);
                }
                tracing::debug!(%node, ?cause, "peer down");
                base.tell(Event::PeerDown { node });
            }
            Hello::Refused => self.dialing.refused(base, node),
            Hello::Waiting => {
                if let Some(target) = target {
                    let end = if gone.is_closed_here {
                        End::Unanswered
                    } else {
                        End::TurnedAway
                    };
                    self.dialing.ended_without_hello(base, &target, end);
                }
            }
        }
        // Also after a refusal: it may have been the last welcome peer before.
        self.presence.on_departure(&mut self.base);
    }

    /// Receives the adverts of these nodes too, of nodes outside the broadcast set no others.
    ///
    /// In a large federation each author has a topic of its own. A follower subscribes to it, connects if there is room,
    /// and asks for the author in every sync. So earlier or lost adverts come from any other follower.
    pub(super) fn follow(&mut self, nodes: Vec<NodeId>) {
        let base = &mut self.base;
        let change = self.adverts.follow(base.own, nodes);
        // Unsubscribe first: the subscription filter of peers bounds how many topics a node has at once.
        self.gossip.unsubscribe(base, &change.dropped);
        self.gossip.subscribe(base, &change.new);
        // The topic brings only what comes from now on; sync brings what the author published before.
        for author in &change.new {
            self.syncing.start(base, &self.adverts, *author);
        }
        self.dialing.hurry(base, change.new);
    }

    /// Asks for adverts by name, each of the peer that named it.
    pub(super) fn ask(&mut self, wanted: &[Wanted]) {
        self.adverts.want(wanted);
        let named_by: BTreeSet<NodeId> = wanted.iter().map(|w| w.named_by).collect();
        for node in named_by {
            self.syncing
                .ask_for_wanted(&mut self.base, &self.adverts, node);
        }
    }

    /// Adds a strike. Enough strikes are a ban.
    ///
    /// The evidence of all parts comes together here. One part alone would see too little of it.
    pub(super) fn strike(&mut self, node: NodeId, reason: String) {
        if node == self.base.own {
            return;
        }
        tracing::debug!(%node, reason, "struck");
        // The application hears of every strike, so that a person can see why a peer was banned.
        let ban = self.base.standing.strike(node, crate::clock::now());
        self.base.tell(Event::Struck {
            node,
            reason: reason.clone(),
        });
        if let Some(length) = ban {
            self.enforce_ban(node, length, reason);
        }
    }

    pub(super) fn ban(&mut self, node: NodeId, length: Duration, reason: String) {
        if node != self.base.own {
            self.base.standing.ban(node, length, crate::clock::now());
            self.enforce_ban(node, length, reason);
        }
    }

    fn enforce_ban(&mut self, node: NodeId, length: Duration, reason: String) {
        let base = &mut self.base;
        self.dialing.refused(base, node);
        // This also closes the connections there are; what follows from that comes as events.
        base.swarm.behaviour_mut().banned.block_peer(peer_id(&node));
        self.presence.turn_out(base);
        base.tell(Event::Banned {
            node,
            length,
            reason,
        });
    }

    /// Sends last messages and closes connections, in half a second at most.
    pub(super) async fn say_goodbye(&mut self) {
        if self.base.peers.is_empty() {
            return;
        }
        // This leaves the topics of followed authors: `leave` knows only those that all nodes have.
        self.follow(Vec::new());
        self.presence.say_goodbye(&mut self.base);
        self.gossip.leave(&mut self.base);
        // The swarm sends only while it is polled, so it is polled for a moment with its events thrown away.
        let swarm = &mut self.base.swarm;
        _ = timeout(LAST_WORDS, async { while swarm.next().await.is_some() {} }).await;
        for (node, _) in self.base.peers.iter() {
            _ = swarm.disconnect_peer_id(peer_id(node));
        }
        let closed = async {
            while swarm.network_info().num_peers() > 0 {
                swarm.next().await;
            }
        };
        _ = timeout(FAREWELL, closed).await;
    }
}
