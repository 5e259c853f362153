//! The swarm task: the one owner of the swarm and of all state about peers.
//!
//! It handles commands, requests of the fetcher, judged adverts, swarm events and the tick of a timer, one at a time. It
//! waits for nothing else.
//!
//! ```text
//!   commands ─┐                 ┌─► Reception  hello: who is let in
//!     wishes ─┤                 ├─► Dialing    whom to connect to, and where
//!    checked ─┼─► Task ─► Parts ┼─► Exchange   addresses told and asked for
//!     events ─┤            ▲    ├─► Gossip     adverts as they are published
//!       tick ─┘            │    ├─► Syncing    adverts that gossip lost
//!                          │    ├─► Presence   who is here without a connection
//!                          │    ├─► Relaying   places at relays, for members that nobody can dial
//!                          │    ├─► RollCall   who is a member no more
//!                          │    └─► Adverts    what is known, wanted and made here
//!                          └─ findings ─┘          (all are lent the Base)
//! ```
//!
//! This file selects and dispatches. Each part owns its state and does not call the others, except those it is lent. What
//! concerns several of them (a connection, a ban, a change of who is followed) is decided by [`Parts`], and what a part
//! finds out comes back as a finding.

mod adverts;
mod base;
mod clocks;
mod dial_error;
mod dialing;
mod exchange;
mod finding;
mod gossip;
mod hello;
mod parts;
mod peers;
mod presence;
mod relaying;
mod roll_call;
mod routers;
mod syncing;
mod turned_away;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use libp2p::identify;
use libp2p::swarm::{Swarm, SwarmEvent};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::addresses::is_circuit;
use crate::behaviour::{Behaviour, BehaviourEvent, Topics};
use crate::blob::{Fetcher, Wish};
use crate::book::Book;
use crate::config::Config;
use crate::event::Outbox;
use crate::gate::{Candidate, Checked};
use crate::handle::{Command, Shared};
use crate::identity::Identity;
use adverts::Adverts;
use base::Base;
pub(crate) use dial_error::{reason_of, socket_error};
use parts::Parts;
use relaying::Relaying;

/// The beat of all periodic work: shorter than the shortest back-off.
const TICK: Duration = Duration::from_millis(100);
/// A tick this late is made up for in the midst of a flood.
const STARVED: Duration = Duration::from_millis(300);
/// How often expired adverts and records are forgotten.
const PRUNE_EVERY: Duration = Duration::from_secs(60);
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
    parts: Parts,
    next_prune: Instant,
    last_tick: Instant,
}

impl Task {
    pub(crate) fn new(beginning: Beginning, outlets: Outlets, shared: Arc<Shared>) -> Self {
        let now = Instant::now();
        Self {
            parts: Parts::new(beginning, outlets, shared, now),
            next_prune: now + PRUNE_EVERY,
            last_tick: now,
        }
    }

    /// Runs until cancelled, or until the application has dropped every handle.
    pub(crate) async fn run(
        mut self,
        mut inlets: Inlets,
        mut helpers: JoinSet<()>,
        fetcher: Fetcher,
    ) {
        let mut tick = interval(TICK);
        // By default ticks that were missed come in a burst, and each would only repeat the work of the one before.
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
                event = self.parts.base.swarm.select_next_some() => {
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
        self.parts.say_goodbye().await;
        // Jobs and served streams see the cancelled token. The gate ends with its queue. The outbox stays until they have
        // ended, because its end tells the application that nothing of the network is left.
        let Parts {
            base: Base { swarm, .. },
            adverts: Adverts { gate, .. },
            ..
        } = self.parts;
        drop((swarm, gate, inlets.checked));
        fetcher.closed().await;
        while helpers.join_next().await.is_some() {}
    }

    fn on_tick(&mut self) {
        let now = Instant::now();
        self.last_tick = now;
        // The outbox first: adverts are ignored while it has a backlog.
        self.parts.base.outbox.flush();
        self.parts.look_at_the_clock(now);
        let base = &mut self.parts.base;
        self.parts.gossip.forward_due(base, now);
        // Dead connections before dials: a peer that is about to go must not count as connected.
        base.check_deadlines(now);
        let (reception, presence) = (&mut self.parts.reception, &mut self.parts.presence);
        self.parts.roll_call.tick(base, reception, presence, now);
        self.parts.dialing.dial_due(base, now);
        self.parts.dialing.dial_relayed(base, now);
        self.parts.syncing.start_due(base, &self.parts.adverts, now);
        self.parts.exchange.ask_due(base, now);
        self.parts.presence.tick(base, now);
        self.parts.relaying.tick(base, now);
        base.lift_bans();
        if self.next_prune <= now {
            self.next_prune = now + PRUNE_EVERY;
            let now = crate::clock::now();
            self.parts.adverts.book.prune(now);
            self.parts.dialing.prune(now);
        }
    }

    fn on_command(&mut self, command: Command) {
        let base = &mut self.parts.base;
        match command {
            Command::Publish(round, body, reply) => {
                let said = self
                    .parts
                    .gossip
                    .publish(base, &mut self.parts.adverts, round, *body);
                // The caller may have stopped waiting. The advert is published all the same.
                _ = reply.send(said);
            }
            Command::Dial(address) => self.parts.dialing.add_target(base, address),
            Command::Peers(reply) => _ = reply.send(base.peer_infos()),
            Command::Absent(reply) => {
                let heard = self.parts.presence.heard().collect();
                let refused = |node: &fednode_core::NodeId| self.parts.reception.why_refused(node);
                _ = reply.send(self.parts.dialing.absent(base, &heard, refused));
            }
            Command::Whereabouts(reply) => _ = reply.send(self.parts.dialing.whereabouts(base)),
            Command::Follow(nodes) => self.parts.follow(nodes),
            Command::Ask(wanted) => self.parts.ask(&wanted),
            Command::Strike(node, reason) => self.parts.strike(node, reason),
            Command::Ban(node, length, reason) => self.parts.ban(node, length, reason),
            Command::Held(blob) => self.parts.syncing.add_held(blob),
        }
    }

    fn on_wish(&mut self, wish: Wish) {
        match wish {
            Wish::Connect(nodes) => self.parts.dialing.hurry(&self.parts.base, nodes),
            Wish::Strike(node, reason) => self.parts.strike(node, reason),
            Wish::Held(blob) => self.parts.syncing.add_held(blob),
        }
    }

    fn on_checked(&mut self, checked: Checked) {
        let (base, adverts) = (&mut self.parts.base, &mut self.parts.adverts);
        match checked {
            Checked::Gossip { origin, outcome } => {
                let finding = self.parts.gossip.on_checked(base, adverts, origin, outcome);
                self.parts.act_on(finding);
            }
            Checked::Sync {
                peer,
                outcomes,
                more,
            } => {
                let findings = self
                    .parts
                    .syncing
                    .on_checked(base, adverts, peer, outcomes, more);
                self.parts.act_on(findings);
            }
        }
    }

    fn on_swarm_event(&mut self, event: SwarmEvent<BehaviourEvent>) {
        match event {
            SwarmEvent::Behaviour(event) => self.on_behaviour_event(event),
            // The relay names addresses of its own here. The one that this node dialed is known to lead there.
            SwarmEvent::NewListenAddr { address, .. } if is_circuit(&address) => {}
            SwarmEvent::NewListenAddr { address, .. }
            | SwarmEvent::ExternalAddrConfirmed { address } => self.parts.on_listening(address),
            SwarmEvent::ExpiredListenAddr { address, .. }
            | SwarmEvent::ExternalAddrExpired { address } => {
                self.parts.base.on_listening_no_more(&address);
            }
            SwarmEvent::ListenerClosed {
                listener_id,
                addresses,
                reason,
            } => {
                self.parts.relaying.on_closed(listener_id, &reason);
                addresses
                    .iter()
                    .for_each(|address| self.parts.base.on_listening_no_more(address));
            }
            SwarmEvent::ConnectionEstablished {
                peer_id,
                connection_id,
                endpoint,
                ..
            } => {
                self.parts.on_connected(&peer_id, connection_id, &endpoint);
            }
            SwarmEvent::ConnectionClosed {
                peer_id,
                connection_id,
                cause,
                ..
            } => {
                self.parts.on_disconnected(&peer_id, connection_id, cause);
            }
            SwarmEvent::OutgoingConnectionError {
                connection_id,
                error,
                ..
            } => {
                let base = &mut self.parts.base;
                self.parts
                    .dialing
                    .on_dial_error(base, connection_id, &error);
            }
            SwarmEvent::IncomingConnectionError {
                peer_id,
                send_back_addr: address,
                error,
                ..
            } => self.parts.base.on_caller_failed(peer_id, address, &error),
            SwarmEvent::NewExternalAddrCandidate { address } => {
                self.parts.exchange.on_observed(&self.parts.base, address);
            }
            SwarmEvent::ListenerError { error, .. } => {
                tracing::warn!(%error, "a listener has trouble: too many open files are one cause");
            }
            _ => {}
        }
    }

    fn on_behaviour_event(&mut self, event: BehaviourEvent) {
        let (base, adverts) = (&mut self.parts.base, &mut self.parts.adverts);
        let findings = match event {
            BehaviourEvent::Greeting(event) => {
                return self.parts.reception.on_greeting(base, event);
            }
            BehaviourEvent::Hello(event) => self.parts.reception.on_event(base, event),
            BehaviourEvent::Sync(event) => {
                Vec::from_iter(self.parts.syncing.on_event(base, adverts, event))
            }
            BehaviourEvent::Peers(event) => Vec::from_iter(self.parts.exchange.on_event(
                base,
                &mut self.parts.dialing,
                event,
            )),
            BehaviourEvent::Gossip(event) => {
                let taken = self.parts.presence.take(base, event);
                let other = |event: Box<_>| self.parts.gossip.on_event(base, adverts, *event);
                Vec::from_iter(taken.unwrap_or_else(other))
            }
            BehaviourEvent::Ping(event) => return base.on_ping(event),
            BehaviourEvent::Mdns(event) => return self.parts.dialing.on_mdns(base, event),
            BehaviourEvent::Identify(identify::Event::Received { peer_id, info, .. }) => {
                let relays = info.protocols.iter().any(relaying::is_offer);
                self.parts.exchange.on_identified(base, &peer_id);
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
            BehaviourEvent::Router(event) => return routers::tell(&event),
            BehaviourEvent::Identify(_) | BehaviourEvent::Streams(()) => return,
            BehaviourEvent::Crowd(never)
            | BehaviourEvent::Limits(never)
            | BehaviourEvent::Banned(never)
            | BehaviourEvent::Allowed(never) => match never {},
        };
        self.parts.act_on(findings);
    }
}
