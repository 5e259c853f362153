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

use std::collections::HashMap;
use std::time::Instant;

use fednode_core::{NodeId, Timestamp};
use libp2p::swarm::dial_opts::DialOpts;
use libp2p::swarm::{ConnectionId, DialError};
use libp2p::{Multiaddr, mdns};

use super::base::Base;
use super::dial_error::{Consequence, explain};
use super::finding::Finding;
use crate::addresses::{AddressBook, Reach, bare, node_of};
use crate::dialer::{Dialer, Failure, Target};
use crate::event::Event;
use crate::identity::{node_id, peer_id};
use crate::wire::SignedRecord;

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

    /// Dials the targets that are due.
    pub(super) fn dial_due(&mut self, base: &mut Base, now: Instant) {
        // Attempts count as peers: otherwise all that are under way could succeed and overshoot the limit.
        let taken = base.peers.len() + self.dials.len();
        let room = base.config.max_peers.saturating_sub(taken);
        let targets = self
            .dialer
            .begin(now, room, |node| base.peers.contains(node));
        for target in targets {
            let options = self.options(&target);
            let connection = options.connection_id();
            match base.swarm.dial(options) {
                Ok(()) => _ = self.dials.insert(connection, target),
                Err(error) => self.count_error(base, &target, &error),
            }
        }
    }

    fn options(&self, target: &Target) -> DialOpts {
        match target {
            Target::Address(address) => match node_of(address) {
                Some(node) => to_node(&node, vec![address.clone()]),
                // From a fresh port, see `to_node`.
                None => DialOpts::unknown_peer_id()
                    .address(address.clone())
                    .allocate_new_port()
                    .build(),
            },
            Target::Node(node) => to_node(node, self.addresses.addresses(node)),
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

    /// Notes that a target closed its connection before any hello.
    pub(super) fn turned_away(&mut self, base: &mut Base, target: &Target) {
        // The transport cannot tell these causes apart: the other side just closes.
        let reason = "the peer closed the connection before its hello: this node may not be on its allow-list, may be \
                      banned, or the peer is full";
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
