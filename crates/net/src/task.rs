//! The swarm task: the one owner of the swarm and of all state about peers.
//!
//! It handles commands, requests of the fetcher, judged adverts, swarm events and the tick of a timer, one at a time. It
//! waits for nothing else.
//!
//! ```text
//!   commands ─┐             ┌─► Reception  hello: who is let in
//!     wishes ─┤             ├─► Dialing    whom to connect to, and where
//!    checked ─┼─► Task ─────┼─► Exchange   addresses told and asked for
//!     events ─┤     ▲       ├─► Gossip     adverts as they are published
//!       tick ─┘     │       ├─► Syncing    adverts that gossip lost
//!                   │       ├─► Presence   who is here without a connection
//!                   │       ├─► Relaying   places at relays, for members that nobody can dial
//!                   │       ├─► RollCall   who is a member no more
//!                   │       └─► Adverts    what is known, wanted and made here
//!                   └── findings ──┘           (all are lent the Base)
//! ```
//!
//! This file selects and dispatches. Each part owns its state and does not call the others, except those it is lent. What
//! concerns several of them (a connection, a ban, a change of who is followed) is decided here, and what a part finds out
//! comes back as a [`Finding`].

mod adverts;
mod base;
mod clocks;
mod dial_error;
mod dialing;
mod exchange;
mod finding;
mod gossip;
mod hello;
mod peers;
mod presence;
mod relaying;
mod roll_call;
mod syncing;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fednode_core::{BroadcastSet, NodeId};
use futures::StreamExt;
use libp2p::core::ConnectedPoint;
use libp2p::swarm::{ConnectionError, ConnectionId, Swarm, SwarmEvent};
use libp2p::{Multiaddr, PeerId, identify};
use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use crate::addresses::{bare, is_circuit, relay_of};
use crate::behaviour::{Behaviour, BehaviourEvent, Topics};
use crate::blob::{Fetcher, Wish};
use crate::book::Book;
use crate::config::Config;
use crate::event::{Event, Outbox};
use crate::gate::{Candidate, Checked};
use crate::handle::{Command, Direction, Shared, Wanted};
use crate::identity::{Identity, node_id, peer_id};
use crate::score::Standing;
use adverts::Adverts;
use base::Base;
use clocks::Clocks;
pub(crate) use dial_error::{reason_of, socket_error};
use dialing::Dialing;
use exchange::Exchange;
use finding::Finding;
use gossip::Gossip;
use hello::Reception;
use peers::{Connection, Gone, Hello, Peers};
use presence::Presence;
use relaying::Relaying;
use roll_call::RollCall;
use syncing::Syncing;

/// The beat of all periodic work: shorter than the shortest back-off.
const TICK: Duration = Duration::from_millis(100);
/// A tick this late is made up for in the midst of a flood.
const STARVED: Duration = Duration::from_millis(300);
/// How often expired adverts and records are forgotten.
const PRUNE_EVERY: Duration = Duration::from_secs(60);
/// Time for last messages (a `Leave`, an unsubscription) to be sent before connections are closed.
const LAST_WORDS: Duration = Duration::from_millis(200);
/// Time for connections to close after that.
const FAREWELL: Duration = Duration::from_millis(300);

/// What the task begins with.
pub(crate) struct Beginning {
    /// It listens already.
    pub(crate) swarm: Swarm<Behaviour>,
    pub(crate) config: Config,
    pub(crate) identity: Identity,
    pub(crate) topics: Topics,
    pub(crate) book: Book,
}

/// The queues to other tasks.
#[derive(Debug)]
pub(crate) struct Outlets {
    pub(crate) events: Outbox,
    pub(crate) gate: mpsc::Sender<Candidate>,
}

/// The queues from other tasks.
#[derive(Debug)]
pub(crate) struct Inlets {
    pub(crate) commands: mpsc::Receiver<Command>,
    pub(crate) wishes: mpsc::Receiver<Wish>,
    pub(crate) checked: mpsc::Receiver<Checked>,
    pub(crate) cancel: CancellationToken,
}

/// The owner of the swarm.
pub(crate) struct Task {
    base: Base,
    reception: Reception,
    dialing: Dialing,
    exchange: Exchange,
    adverts: Adverts,
    gossip: Gossip,
    syncing: Syncing,
    presence: Presence,
    relaying: Relaying,
    next_prune: Instant,
    roll_call: RollCall,
    last_tick: Instant,
}

impl Task {
    pub(crate) fn new(beginning: Beginning, outlets: Outlets, shared: Arc<Shared>) -> Self {
        let now = Instant::now();
        let broadcast_set = BroadcastSet::of(&beginning.config.spec);
        let base = Base {
            clocks: Clocks::new(beginning.config.clock.now(), now),
            swarm: beginning.swarm,
            own: beginning.identity.node_id(),
            identity: beginning.identity,
            config: beginning.config,
            peers: Peers::default(),
            standing: Standing::default(),
            outbox: outlets.events,
            shared,
            rng: StdRng::from_os_rng(),
        };
        let mut task = Self {
            reception: Reception::default(),
            dialing: Dialing::default(),
            exchange: Exchange::new(now),
            adverts: Adverts::new(broadcast_set, beginning.book, outlets.gate),
            presence: Presence::new(&base, &beginning.topics, now),
            relaying: Relaying::default(),
            gossip: Gossip::new(beginning.topics),
            syncing: Syncing::new(base.config.sync_every, now),
            next_prune: now + PRUNE_EVERY,
            roll_call: RollCall::new(now),
            last_tick: now,
            base,
        };
        // The swarm listens already, so the events of these addresses are gone.
        let listeners: Vec<Multiaddr> = task.base.swarm.listeners().cloned().collect();
        for address in listeners {
            task.base.on_listening(address);
        }
        for address in task.base.config.peers.clone() {
            task.dialing.add_target(&task.base, address);
        }
        task
    }

    /// Runs until cancelled, or until the application has dropped every handle.
    pub(crate) async fn run(
        mut self,
        mut inlets: Inlets,
        mut helpers: JoinSet<()>,
        fetcher: Fetcher,
    ) {
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                // In this order: what frees queues of other tasks comes before what fills them, and the tick comes last
                // because it only makes up for time that has passed.
                biased;
                () = inlets.cancel.cancelled() => break,
                Some(ended) = helpers.join_next() => {
                    tracing::error!(?ended, "a part of the network ended, so the network ends");
                    break;
                }
                Some(checked) = inlets.checked.recv() => self.on_checked(checked),
                Some(wish) = inlets.wishes.recv() => self.on_wish(wish),
                command = inlets.commands.recv() => match command {
                    Some(command) => self.on_command(command),
                    None => break,
                },
                event = self.base.swarm.select_next_some() => {
                    self.on_swarm_event(event);
                    // A flood keeps the swarm ready all the time, and the tick would never have its turn.
                    if self.last_tick.elapsed() > STARVED {
                        self.on_tick();
                    }
                }
                _ = tick.tick() => self.on_tick(),
            }
        }
        inlets.cancel.cancel();
        self.say_goodbye().await;
        // Jobs and served streams see the cancelled token. The gate ends with its queue. The outbox stays until they have
        // ended, because its end tells the application that nothing of the network is left.
        let Self {
            base: Base { swarm, .. },
            adverts: Adverts { gate, .. },
            ..
        } = self;
        drop((swarm, gate, inlets.checked));
        fetcher.closed().await;
        while helpers.join_next().await.is_some() {}
    }

    fn on_tick(&mut self) {
        let now = Instant::now();
        self.last_tick = now;
        // The outbox first: adverts are ignored while it has a backlog.
        self.base.outbox.flush();
        self.look_at_the_clock(now);
        let base = &mut self.base;
        self.gossip.forward_due(base, now);
        // Dead connections before dials: a peer that is about to go must not count as connected.
        base.check_deadlines(now);
        let (reception, presence) = (&mut self.reception, &mut self.presence);
        self.roll_call.tick(base, reception, presence, now);
        self.dialing.dial_due(base, now);
        self.dialing.dial_relayed(base, now);
        self.syncing.start_due(base, &self.adverts, now);
        self.exchange.ask_due(base, now);
        self.presence.tick(base, now);
        self.relaying.tick(base, now);
        base.lift_bans();
        if self.next_prune <= now {
            self.next_prune = now + PRUNE_EVERY;
            let now = crate::clock::now();
            self.adverts.book.prune(now);
            self.dialing.prune(now);
        }
    }

    fn on_command(&mut self, command: Command) {
        let base = &mut self.base;
        match command {
            Command::Publish(round, body, reply) => {
                let said = self.gossip.publish(base, &mut self.adverts, round, *body);
                // The caller may have stopped waiting. The advert is published all the same.
                _ = reply.send(said);
            }
            Command::Dial(address) => self.dialing.add_target(base, address),
            Command::Peers(reply) => _ = reply.send(base.peer_infos()),
            Command::Absent(reply) => {
                let heard = self.presence.heard().collect();
                _ = reply.send(self.dialing.absent(base, &heard));
            }
            Command::Follow(nodes) => self.follow(nodes),
            Command::Ask(wanted) => self.ask(&wanted),
            Command::Strike(node, reason) => self.strike(node, reason),
            Command::Ban(node, length, reason) => self.ban(node, length, reason),
            Command::Held(blob) => self.syncing.add_held(blob),
        }
    }

    fn on_wish(&mut self, wish: Wish) {
        match wish {
            Wish::Connect(nodes) => self.dialing.hurry(&self.base, nodes),
            Wish::Strike(node, reason) => self.strike(node, reason),
            Wish::Held(blob) => self.syncing.add_held(blob),
        }
    }

    fn on_checked(&mut self, checked: Checked) {
        let (base, adverts) = (&mut self.base, &mut self.adverts);
        match checked {
            Checked::Gossip { origin, outcome } => {
                let finding = self.gossip.on_checked(base, adverts, origin, outcome);
                self.act_on(finding);
            }
            Checked::Sync {
                peer,
                outcomes,
                more,
            } => {
                let findings = self.syncing.on_checked(base, adverts, peer, outcomes, more);
                self.act_on(findings);
            }
        }
    }

    fn on_swarm_event(&mut self, event: SwarmEvent<BehaviourEvent>) {
        match event {
            SwarmEvent::Behaviour(event) => self.on_behaviour_event(event),
            // The relay names addresses of its own here. The one that this node dialed is known to lead there.
            SwarmEvent::NewListenAddr { address, .. } if is_circuit(&address) => {}
            SwarmEvent::NewListenAddr { address, .. }
            | SwarmEvent::ExternalAddrConfirmed { address } => self.on_listening(address),
            SwarmEvent::ExpiredListenAddr { address, .. }
            | SwarmEvent::ExternalAddrExpired { address } => {
                self.base.on_listening_no_more(&address);
            }
            SwarmEvent::ListenerClosed {
                listener_id,
                addresses,
                reason,
            } => {
                self.relaying.on_closed(listener_id, &reason);
                addresses
                    .iter()
                    .for_each(|address| self.base.on_listening_no_more(address));
            }
            SwarmEvent::ConnectionEstablished {
                peer_id,
                connection_id,
                endpoint,
                ..
            } => {
                self.on_connected(&peer_id, connection_id, &endpoint);
            }
            SwarmEvent::ConnectionClosed {
                peer_id,
                connection_id,
                cause,
                ..
            } => {
                self.on_disconnected(&peer_id, connection_id, cause);
            }
            SwarmEvent::OutgoingConnectionError {
                connection_id,
                error,
                ..
            } => {
                let base = &mut self.base;
                self.dialing.on_dial_error(base, connection_id, &error);
            }
            SwarmEvent::IncomingConnectionError {
                send_back_addr,
                error,
                ..
            } => {
                tracing::debug!(address = %send_back_addr, %error, "an incoming connection failed");
            }
            SwarmEvent::NewExternalAddrCandidate { address } => {
                self.exchange.on_observed(&self.base, address);
            }
            _ => {}
        }
    }

    fn on_behaviour_event(&mut self, event: BehaviourEvent) {
        let (base, adverts) = (&mut self.base, &self.adverts);
        let findings = match event {
            BehaviourEvent::Greeting(event) => return self.reception.on_greeting(base, event),
            BehaviourEvent::Hello(event) => self.reception.on_event(base, event),
            BehaviourEvent::Sync(event) => {
                Vec::from_iter(self.syncing.on_event(base, adverts, event))
            }
            BehaviourEvent::Peers(event) => {
                Vec::from_iter(self.exchange.on_event(base, &mut self.dialing, event))
            }
            BehaviourEvent::Gossip(event) => {
                let taken = self.presence.take(base, event);
                let other = |event: Box<_>| self.gossip.on_event(base, adverts, *event);
                Vec::from_iter(taken.unwrap_or_else(other))
            }
            BehaviourEvent::Ping(event) => return base.on_ping(event),
            BehaviourEvent::Mdns(event) => return self.dialing.on_mdns(base, event),
            BehaviourEvent::Identify(identify::Event::Received { peer_id, info, .. }) => {
                let relays = info.protocols.iter().any(relaying::is_offer);
                return Relaying::on_protocols(base, &peer_id, relays);
            }
            BehaviourEvent::Punching(event) => {
                let (peer, result) = (event.remote_peer_id, event.result);
                return tracing::debug!(%peer, ?result, "dialed at the same moment as the peer");
            }
            BehaviourEvent::Relay(event) => return tracing::trace!(?event, "relay"),
            BehaviourEvent::RelayClient(event) => {
                return tracing::debug!(?event, "place at a relay");
            }
            BehaviourEvent::Identify(_) | BehaviourEvent::Streams(()) => return,
            BehaviourEvent::Crowd(never)
            | BehaviourEvent::Limits(never)
            | BehaviourEvent::Banned(never)
            | BehaviourEvent::Allowed(never) => match never {},
        };
        self.act_on(findings);
    }

    /// Does what follows from findings, in their order: a peer is up for the dialer before anything is asked of it.
    fn act_on(&mut self, findings: impl IntoIterator<Item = Finding>) {
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
            }
        }
    }

    /// This node listens at an address of its own, or others can reach it through a relay.
    fn on_listening(&mut self, address: Multiaddr) {
        let relay = relay_of(&address);
        self.base.on_listening(address);
        // At once and not at the next exchange: the relay is whom others ask for addresses.
        if let Some(relay) = relay {
            self.exchange.ask(&mut self.base, relay);
        }
    }

    fn on_connected(&mut self, peer: &PeerId, id: ConnectionId, endpoint: &ConnectedPoint) {
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

    fn on_disconnected(&mut self, peer: &PeerId, id: ConnectionId, cause: Option<ConnectionError>) {
        let Some(node) = node_id(peer) else { return };
        let base = &mut self.base;
        let Some(Gone { hello, target }) = base.peers.closed(&node, id) else {
            return;
        };
        match hello {
            Hello::Welcome { .. } => {
                base.shared.roster.remove(&node);
                self.dialing.lost(base, node);
                tracing::debug!(%node, ?cause, "peer down");
                base.tell(Event::PeerDown { node });
            }
            Hello::Refused => self.dialing.refused(base, node),
            Hello::Waiting => {
                if let Some(target) = target {
                    self.dialing.turned_away(base, &target);
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
    fn follow(&mut self, nodes: Vec<NodeId>) {
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
    fn ask(&mut self, wanted: &[Wanted]) {
        let adverts: Vec<_> = wanted.iter().map(|w| (w.author, w.advert)).collect();
        self.adverts.want(&adverts);
        let named_by: BTreeSet<NodeId> = wanted.iter().map(|w| w.named_by).collect();
        for node in named_by {
            self.syncing
                .ask_for_wanted(&mut self.base, &self.adverts, node);
        }
    }

    /// Adds a strike. Enough strikes are a ban.
    ///
    /// The evidence of all parts comes together here. One part alone would see too little of it.
    fn strike(&mut self, node: NodeId, reason: String) {
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

    fn ban(&mut self, node: NodeId, length: Duration, reason: String) {
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
    async fn say_goodbye(&mut self) {
        if self.base.peers.is_empty() {
            return;
        }
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
