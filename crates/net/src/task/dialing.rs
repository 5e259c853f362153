//! Dialing: which nodes and addresses there are, and the attempts to connect to them.
//!
//! ```text
//!   configured addresses ──────────────────┐
//!   peer exchange ──records─► AddressBook ─┼─► Dialer: who is due? ──► swarm ──► connected, or an error to explain
//!   mDNS ────────────hints──►     │        │                            │
//!   fetches, follows: hurry ──────┴────────┘                          dials: which target an attempt belongs to
//! ```
//!
//! An address is only a hint of where a node is: the handshake proves who answers there.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Instant;

use fednode_core::{NodeId, Role, Timestamp};
use libp2p::multiaddr::Protocol;
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::swarm::{ConnectionId, DialError};
use libp2p::{Multiaddr, mdns};

use super::base::Base;
use super::dial_error::{Consequence, explain};
use super::finding::Finding;
use crate::addresses::{AddressBook, Reach, bare, is_circuit, is_loopback, is_tellable, node_of};
use crate::dialer::{Dialer, Failure, Target};
use crate::event::Event;
use crate::handle::{Absent, Route};
use crate::identity::{node_id, peer_id};
use crate::wire::SignedRecord;

/// Relayed connections that this node opens at a time: fewer than a relay gives to one member.
const MAX_RELAYED: usize = 12;

/// The targets of dials, and the attempts under way.
#[derive(Debug, Default)]
pub(super) struct Dialing {
    dialer: Dialer,
    /// By connection and not by peer: an address may lead to a node that nobody expected.
    dials: HashMap<ConnectionId, Target>,
    addresses: AddressBook,
}

impl Dialing {
    /// Adds a configured address.
    pub(super) fn add_target(&mut self, base: &Base, address: Multiaddr) {
        let node = node_of(&address);
        if node != Some(base.own) {
            self.dialer.add_address(address, node, Instant::now());
        }
    }

    /// Tries where members were in an earlier life.
    pub(super) fn remember(&mut self, base: &Base) {
        let (now, own) = (crate::clock::now(), base.own);
        for address in &base.config.remembered {
            let node = node_of(address).filter(|node| base.is_wanted(node));
            if let Some(node) = node.filter(|_| is_tellable(address) && !is_circuit(address)) {
                self.addresses.hint(node, bare(address), now);
                // It may be starting again, too, and remember this node.
                self.dialer.add_heard(node, own, Instant::now());
            }
        }
    }

    /// Returns where the connected members can be dialed without a relay, in their own words, with their ids. What others say of
    /// them is left out.
    pub(super) fn whereabouts(&self, base: &Base) -> Vec<Multiaddr> {
        let of_node = |node: NodeId| {
            let addresses = self.addresses.signed(&node).into_iter();
            let direct = addresses.filter(|address| !is_circuit(address));
            direct.map(move |address| address.with(Protocol::P2p(peer_id(&node))))
        };
        let connected = base.peers.welcome().map(|(node, _)| *node);
        connected.flat_map(of_node).collect()
    }

    /// Makes the dialer try nodes that a fetch waits for or that this node follows.
    pub(super) fn hurry(&mut self, base: &Base, nodes: Vec<NodeId>) {
        let now = Instant::now();
        for node in nodes {
            // Without an address a target would only fail; peer exchange may bring one later.
            let known = !self.addresses.addresses(&node).is_empty()
                || !self.dialer.addresses_of(&node).is_empty();
            if known
                && node != base.own
                && !base.peers.contains(&node)
                && !base.standing.is_banned(&node)
            {
                self.dialer.hurry(node, now);
            }
        }
    }

    /// Dials a peer again whose connections this node is closing.
    pub(super) fn renew(&mut self, node: NodeId) {
        // Only what peer exchange or mDNS told: a configured address is dialed again anyway, after `lost`.
        if !self.addresses.addresses(&node).is_empty() {
            self.dialer.hurry(node, Instant::now());
        }
    }

    /// Describes the members that are known and not connected, given those that others tell of, and why a peer was refused.
    pub(super) fn absent(
        &self,
        base: &Base,
        heard: &BTreeMap<NodeId, Role>,
        refused: impl Fn(&NodeId) -> Option<String>,
    ) -> Vec<Absent> {
        let known = self.dialer.nodes().chain(self.addresses.nodes());
        let known: BTreeSet<NodeId> = known.chain(heard.keys().copied()).collect();
        let absent = known
            .into_iter()
            .filter(|node| *node != base.own && !base.peers.is_welcome(node));
        let describe = |node| {
            let told = heard.get(&node).copied();
            let members = base.config.members.as_ref();
            let certified = || members.and_then(|book| Some(book.certificate(&node)?.role));
            Absent {
                node,
                role: told.or_else(certified),
                route: told.map_or(Route::None, |_| Route::Others),
                why: self.why_not(base, &node, refused(&node)),
            }
        };
        absent.map(describe).collect()
    }

    /// Says why there is no connection with a node.
    fn why_not(&self, base: &Base, node: &NodeId, refused: Option<String>) -> String {
        let addresses = self.addresses.addresses(node);
        let is_configured = !self.dialer.addresses_of(node).is_empty();
        if let Some(absence) = base.why_gone(node) {
            return format!("it {absence}");
        }
        if base.standing.is_banned(node) {
            return "it is banned".to_owned();
        }
        if let Some(refusal) = refused {
            return refusal;
        }
        match self.dialer.last_failure(node) {
            Some(reason) => reason.to_owned(),
            None if addresses.is_empty() && !is_configured => {
                "it has no address that others can dial".to_owned()
            }
            None if base.peers.len() >= base.config.max_peers => {
                "this node has as many peers as `max_peers` allows".to_owned()
            }
            None => "its addresses are being tried".to_owned(),
        }
    }

    /// Dials the targets that are due.
    pub(super) fn dial_due(&mut self, base: &mut Base, now: Instant) {
        // Attempts count as peers: otherwise all that are under way could succeed and overshoot the limit.
        let taken = base.peers.len() + self.dials.len();
        let room = base.config.max_peers.saturating_sub(taken);
        let targets = self
            .dialer
            .begin(now, room, |node| base.peers.contains(node));
        let mut relayed = base.peers.n_relayed();
        for target in targets {
            if self.is_relayed_only(&target) {
                // A relay refuses more, and asking it again and again would be all that many members do.
                if relayed >= MAX_RELAYED {
                    self.dialer.postpone(&target, now);
                    continue;
                }
                relayed += 1;
            }
            let options = self.options(base, &target);
            let connection = options.connection_id();
            match base.swarm.dial(options) {
                Ok(()) => _ = self.dials.insert(connection, target),
                // Here, because a dial that fails at once brings no event.
                Err(error) => self.count_error(base, &target, &error),
            }
        }
    }

    /// Dials peers directly that are connected through a relay alone.
    ///
    /// Dialing at the same moment finds many direct ways, and not that to a peer which anybody can dial: there both may end
    /// up in the same role.
    pub(super) fn dial_relayed(&mut self, base: &mut Base, now: Instant) {
        for node in base.peers.take_upgrades(now) {
            let mut addresses = self.addresses.addresses(&node);
            addresses.retain(|address| !is_circuit(address));
            let options = DialOpts::peer_id(peer_id(&node))
                // The relayed connection counts as one, and by default a connected peer is not dialed.
                .condition(PeerCondition::Always)
                .addresses(addresses)
                .allocate_new_port()
                .build();
            // It has no target: a failure changes nothing.
            if let Err(error) = base.swarm.dial(options) {
                tracing::trace!(%node, %error, "no direct way");
            }
        }
    }

    /// Tells whether a target is known to be reached through relays alone.
    fn is_relayed_only(&self, target: &Target) -> bool {
        let Target::Node(node) = target else {
            return false;
        };
        let addresses = self.addresses.addresses(node);
        !addresses.is_empty() && addresses.iter().all(is_circuit)
    }

    fn options(&self, base: &Base, target: &Target) -> DialOpts {
        match target {
            Target::Address(address) => {
                // From the own listening port: what a relay then sees is where a router lets packets in. If that fails, the
                // port may still be busy with the end of the last connection.
                let is_first = self.dialer.failures(target) == 0;
                let reuses = is_first && base.listens() && !is_loopback(address);
                let port = if reuses { Port::Listening } else { Port::Fresh };
                match node_of(address) {
                    Some(node) => to_node(&node, vec![address.clone()], port),
                    None => to_anybody(address.clone(), port),
                }
            }
            // All at once, those through a relay too: a direct way that is slower replaces them later.
            Target::Node(node) => to_node(node, self.addresses.addresses(node), Port::Fresh),
        }
    }

    /// Ends an attempt and returns its target. Connections that a peer opened have none.
    pub(super) fn take(&mut self, connection: ConnectionId) -> Option<Target> {
        self.dials.remove(&connection)
    }

    pub(super) fn on_dial_error(
        &mut self,
        base: &mut Base,
        connection: ConnectionId,
        error: &DialError,
    ) {
        // Dials that libp2p begins by itself have no target here, and no back-off.
        if let Some(target) = self.take(connection) {
            self.count_error(base, &target, error);
        }
    }

    fn count_error(&mut self, base: &mut Base, target: &Target, error: &DialError) {
        tracing::debug!(?target, %error, "a dial failed");
        match explain(error, base.config.network_key.is_some()) {
            Consequence::Count(failure, reason) => self.failed(base, target, failure, reason),
            Consequence::Postpone => self.dialer.postpone(target, Instant::now()),
            Consequence::Forget => self.dialer.forget(target),
        }
    }

    /// Counts a failed attempt, and reports it when the dialer says so.
    fn failed(&mut self, base: &mut Base, target: &Target, failure: Failure, reason: String) {
        let now = Instant::now();
        self.dialer.note_reason(target, &reason);
        let attempts = self.dialer.failed(target, failure, now, &mut base.rng);
        // Learned nodes fail silently; a configured address is something that a person can correct.
        if let (Some(attempts), Target::Address(address)) = (attempts, target) {
            base.tell(Event::DialFailed {
                address: address.clone(),
                reason,
                attempts,
            });
        }
    }

    /// Notes that a target led to a connection.
    pub(super) fn connected(&mut self, target: &Target, node: NodeId) {
        self.dialer.connected(target, node);
    }

    /// Notes an accepted hello.
    pub(super) fn welcomed(&mut self, node: NodeId) {
        self.dialer.welcomed(node);
    }

    /// Notes that the last connection to a welcome node is gone.
    pub(super) fn lost(&mut self, base: &mut Base, node: NodeId) {
        self.dialer.lost(node, Instant::now(), &mut base.rng);
    }

    /// Notes a refusal or a ban.
    pub(super) fn refused(&mut self, base: &mut Base, node: NodeId) {
        self.dialer.refused(node, Instant::now(), &mut base.rng);
    }

    /// Notes that a connection to a target ended before any hello.
    pub(super) fn ended_without_hello(&mut self, base: &mut Base, target: &Target, end: End) {
        let reason = match end {
            // The transport cannot tell these causes apart: the other side just closes.
            End::TurnedAway => {
                "the peer closed the connection before its hello: this node may not be on its allow-list, may be banned, the \
                 peer may be full, or it has as many connections from this address or network as it allows (its `max_peers` \
                 bounds both)"
            }
            End::Unanswered => {
                "the peer did not answer this node's hello: is it a member of the same version, and does its process respond \
                 (`fednode status` there)?"
            }
        };
        self.failed(base, target, Failure::Passing, reason.to_owned());
    }

    /// Draws records of other nodes for a peer.
    pub(super) fn draw(&self, base: &mut Base, reach: Reach, peer: &NodeId) -> Vec<SignedRecord> {
        self.addresses.draw(reach, peer, &mut base.rng)
    }

    /// Enters the records of wanted nodes that a welcome peer told, and makes the dialer try those nodes.
    pub(super) fn learn(
        &mut self,
        base: &Base,
        from: NodeId,
        records: Vec<SignedRecord>,
    ) -> Option<Finding> {
        // The peer may have been refused or may have gone since it was asked. Only members are believed.
        if !base.peers.is_welcome(&from) {
            return None;
        }
        let (federation, now) = (base.config.federation, crate::clock::now());
        for record in records {
            let is_one = |node: &NodeId| base.is_wanted(node);
            match self.addresses.enter(record, from, federation, now, is_one) {
                Ok(node) => self.dialer.add_told(node, Instant::now()),
                Err(error) if error.is_innocent() => {}
                // One false record is evidence enough; the rest of the list is not worth verifying.
                Err(error) => return Some(Finding::Fault(from, format!("passed on {error}"))),
            }
        }
        None
    }

    pub(super) fn on_mdns(&mut self, base: &Base, event: mdns::Event) {
        // That an answer has expired needs no care: hints expire by themselves.
        let mdns::Event::Discovered(found) = event else {
            return;
        };
        let now = crate::clock::now();
        for (peer, address) in found {
            let Some(node) = node_id(&peer) else { continue };
            // Anything on the local network can answer mDNS; the handshake proves who is there.
            if base.is_wanted(&node) {
                self.addresses.hint(node, bare(&address), now);
                self.dialer.add_heard(node, base.own, Instant::now());
            }
        }
    }

    /// Forgets addresses that have expired.
    pub(super) fn prune(&mut self, now: Timestamp) {
        self.addresses.prune(now);
    }
}

/// How a connection ended on which no hello came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// The peer has closed it.
    TurnedAway,
    /// This side has closed it, since nothing came.
    Unanswered,
}

/// The local port of a dial.
///
/// A reused port may still be busy with the end of the last connection. And two nodes that dial each other from their
/// listening ports can end up with one connection that both opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Port {
    Fresh,
    Listening,
}

fn to_node(node: &NodeId, addresses: Vec<Multiaddr>, port: Port) -> DialOpts {
    let options = DialOpts::peer_id(peer_id(node)).addresses(addresses);
    match port {
        Port::Fresh => options.allocate_new_port().build(),
        Port::Listening => options.build(),
    }
}

fn to_anybody(address: Multiaddr, port: Port) -> DialOpts {
    let options = DialOpts::unknown_peer_id().address(address);
    match port {
        Port::Fresh => options.allocate_new_port().build(),
        Port::Listening => options.build(),
    }
}
