//! The swarm task: the one owner of the swarm and of all state about peers.
//!
//! It handles commands, requests of the fetcher, judged adverts, swarm events and the tick of a timer, one at a time. It
//! waits for nothing else. This file holds the state and the loop; each protocol has a file beside it.

mod commands;
mod connections;
mod dial_error;
mod follow;
mod gossip;
mod hello;
mod peers;
mod sync;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fednode_core::{Audience, NodeId, Refusal};
use futures::StreamExt;
use libp2p::gossipsub::{MessageId, TopicHash};
use libp2p::swarm::{ConnectionId, Swarm, SwarmEvent};
use libp2p::{Multiaddr, PeerId};
use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use crate::addresses::AddressBook;
use crate::behaviour::{Behaviour, BehaviourEvent, Topics};
use crate::blob::{Fetcher, Wish};
use crate::book::Book;
use crate::config::Config;
use crate::dialer::{Dialer, Target};
use crate::event::{Event, Outbox};
use crate::gate::{Candidate, Checked};
use crate::handle::{Command, Shared};
use crate::holds::Holds;
use crate::identity::{Identity, peer_id};
use crate::score::Standing;
use connections::Peer;
pub(crate) use dial_error::socket_error;

/// The beat of all periodic work: shorter than the shortest back-off.
const TICK: Duration = Duration::from_millis(100);
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
    swarm: Swarm<Behaviour>,
    config: Config,
    identity: Identity,
    own: NodeId,
    topics: Topics,
    audience: Audience,
    /// The authors outside the broadcast set whose adverts this node wants.
    follows: BTreeSet<NodeId>,
    book: Book,
    peers: BTreeMap<NodeId, Peer>,
    dialer: Dialer,
    dials: HashMap<ConnectionId, Target>,
    addresses: AddressBook,
    /// Addresses at which peers claim to see this node, with the number of claims.
    observed: BTreeMap<Multiaddr, u32>,
    /// Refusals that were reported already: a peer that keeps coming back is no news.
    refusals: BTreeMap<NodeId, Refusal>,
    standing: Standing,
    holds: Holds,
    outbox: Outbox,
    gate: mpsc::Sender<Candidate>,
    shared: Arc<Shared>,
    /// Own adverts that had no subscriber yet.
    unheard: VecDeque<(TopicHash, Vec<u8>)>,
    /// Accepted adverts that wait to be forwarded, with time and source.
    forwards: VecDeque<(Instant, MessageId, PeerId)>,
    /// The counter of the next advert of this incarnation.
    counter: u64,
    rng: StdRng,
    next_sync: Instant,
    next_exchange: Instant,
    next_prune: Instant,
}

impl Task {
    pub(crate) fn new(beginning: Beginning, outlets: Outlets, shared: Arc<Shared>) -> Self {
        let Beginning {
            swarm,
            config,
            identity,
            topics,
            book,
        } = beginning;
        let now = Instant::now();
        let mut task = Self {
            swarm,
            own: identity.node_id(),
            identity,
            topics,
            audience: Audience::of(&config.spec),
            follows: BTreeSet::new(),
            book,
            peers: BTreeMap::new(),
            dialer: Dialer::default(),
            dials: HashMap::new(),
            addresses: AddressBook::default(),
            observed: BTreeMap::new(),
            refusals: BTreeMap::new(),
            standing: Standing::default(),
            holds: Holds::default(),
            outbox: outlets.events,
            gate: outlets.gate,
            shared,
            unheard: VecDeque::new(),
            forwards: VecDeque::new(),
            counter: 1,
            rng: StdRng::from_os_rng(),
            next_sync: now + config.sync_every,
            next_exchange: now + peers::EXCHANGE_EVERY,
            next_prune: now + PRUNE_EVERY,
            config,
        };
        let listeners: Vec<Multiaddr> = task.swarm.listeners().cloned().collect();
        listeners
            .into_iter()
            .for_each(|address| task.on_listening(address));
        let configured = task.config.peers.clone();
        configured
            .into_iter()
            .for_each(|address| task.add_target(address));
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
                event = self.swarm.select_next_some() => self.on_swarm_event(event),
                _ = tick.tick() => self.on_tick(),
            }
        }
        inlets.cancel.cancel();
        self.say_goodbye().await;
        // Jobs and served streams see the cancelled token. The gate ends with its queue.
        let Self { swarm, gate, .. } = self;
        drop((swarm, gate, inlets.checked));
        fetcher.closed().await;
        while helpers.join_next().await.is_some() {}
    }

    fn on_tick(&mut self) {
        let now = Instant::now();
        // The outbox first: adverts are ignored while it has a backlog.
        self.outbox.flush();
        self.forward_due(now);
        // Dead connections before dials: a peer that is about to go must not count as connected.
        self.check_deadlines(now);
        self.dial_due(now);
        self.sync_due(now);
        self.exchange_due(now);
        self.lift_bans();
        if self.next_prune <= now {
            self.next_prune = now + PRUNE_EVERY;
            let now = crate::clock::now();
            self.book.prune(now);
            self.addresses.prune(now);
        }
    }

    fn on_swarm_event(&mut self, event: SwarmEvent<BehaviourEvent>) {
        match event {
            SwarmEvent::Behaviour(event) => self.on_behaviour_event(event),
            SwarmEvent::NewListenAddr { address, .. } => self.on_listening(address),
            SwarmEvent::ExpiredListenAddr { address, .. } => self.on_listening_no_more(&address),
            SwarmEvent::ListenerClosed {
                addresses, reason, ..
            } => {
                tracing::warn!(?reason, "a listener closed");
                addresses
                    .iter()
                    .for_each(|address| self.on_listening_no_more(address));
            }
            SwarmEvent::ConnectionEstablished {
                peer_id,
                connection_id,
                endpoint,
                ..
            } => {
                self.on_connected(peer_id, connection_id, &endpoint);
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
                // Dials that libp2p begins by itself have no target here, and no back-off.
                if let Some(target) = self.dials.remove(&connection_id) {
                    self.on_dial_error(&target, &error);
                }
            }
            SwarmEvent::IncomingConnectionError {
                send_back_addr,
                error,
                ..
            } => {
                tracing::debug!(address = %send_back_addr, %error, "an incoming connection failed");
            }
            SwarmEvent::NewExternalAddrCandidate { address } => self.on_observed(address),
            _ => {}
        }
    }

    fn on_behaviour_event(&mut self, event: BehaviourEvent) {
        match event {
            BehaviourEvent::Hello(event) => self.on_hello_event(event),
            BehaviourEvent::Sync(event) => self.on_sync_event(event),
            BehaviourEvent::Peers(event) => self.on_peers_event(event),
            BehaviourEvent::Gossip(event) => self.on_gossip_event(event),
            BehaviourEvent::Ping(event) => self.on_ping(event),
            BehaviourEvent::Mdns(event) => self.on_mdns(event),
            BehaviourEvent::Identify(_) | BehaviourEvent::Streams(()) => {}
            BehaviourEvent::Limits(never)
            | BehaviourEvent::Banned(never)
            | BehaviourEvent::Allowed(never) => match never {},
        }
    }

    fn on_wish(&mut self, wish: Wish) {
        match wish {
            Wish::Connect(nodes) => self.hurry(nodes),
            Wish::Strike(node, reason) => self.strike(node, reason),
            Wish::Held(blob) => self.holds.add(blob),
        }
    }

    /// Sends last messages and closes connections, in half a second at most.
    async fn say_goodbye(&mut self) {
        if self.peers.is_empty() {
            return;
        }
        self.follow(Vec::new());
        for topic in [self.topics.advert.clone(), self.topics.control.clone()] {
            self.swarm.behaviour_mut().gossip.unsubscribe(&topic);
        }
        // The swarm sends only while it is polled, so it is polled for a moment with its events thrown away.
        let swarm = &mut self.swarm;
        _ = timeout(LAST_WORDS, async { while swarm.next().await.is_some() {} }).await;
        let connected: Vec<NodeId> = self.peers.keys().copied().collect();
        connected
            .iter()
            .for_each(|node| _ = self.swarm.disconnect_peer_id(peer_id(node)));
        let swarm = &mut self.swarm;
        let closed = async {
            while swarm.network_info().num_peers() > 0 {
                swarm.next().await;
            }
        };
        _ = timeout(FAREWELL, closed).await;
    }

    fn tell(&mut self, event: Event) {
        self.outbox.send(event);
    }
}
