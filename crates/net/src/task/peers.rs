//! Peer exchange: any member leads to all others.
//!
//! The request holds the addresses of its sender; the reply holds those of the answering node and of others. A node that
//! is learned of is dialed while there is room. An answer of mDNS is only a hint, and the allow-list decides.

use std::time::{Duration, Instant};

use fednode_core::NodeId;
use libp2p::request_response::{Event as RpcEvent, Message, ResponseChannel};
use libp2p::{Multiaddr, PeerId, mdns};
use rand::seq::IteratorRandom;

use super::Task;
use crate::addresses::{Reach, bare, own_records};
use crate::bounded::Bounded;
use crate::config::Config;
use crate::event::Event;
use crate::identity::{node_id, peer_id};
use crate::score::Standing;
use crate::wire::{PeersReply, PeersRequest, SignedRecord};

/// How often a node exchanges addresses with one random peer.
pub(super) const EXCHANGE_EVERY: Duration = Duration::from_secs(30);
/// What an exchange costs the budget of the requesting peer.
const EXCHANGE_COST: f64 = 65_536.0;
/// Addresses remembered at which peers claim to see this node.
const MAX_OBSERVED: usize = 64;
/// How many of those, the most frequently claimed, go into this node's own record.
const TOLD_OBSERVED: usize = 4;

impl Task {
    pub(super) fn exchange_due(&mut self, now: Instant) {
        if self.next_exchange > now {
            return;
        }
        self.next_exchange = now + EXCHANGE_EVERY;
        let welcome = self
            .peers
            .iter()
            .filter(|(_, peer)| peer.is_welcome())
            .map(|(node, _)| *node);
        if let Some(node) = welcome.choose(&mut self.rng) {
            self.exchange_with(node);
        }
    }

    pub(super) fn exchange_with(&mut self, node: NodeId) {
        let Some(reach) = self.peers.get(&node).map(super::Peer::reach) else {
            return;
        };
        let mine = Bounded::first_of(self.own_records(reach));
        self.swarm
            .behaviour_mut()
            .peers
            .send_request(&peer_id(&node), PeersRequest { mine });
    }

    pub(super) fn on_peers_event(&mut self, event: RpcEvent<PeersRequest, PeersReply>) {
        match event {
            RpcEvent::Message { peer, message, .. } => {
                let Some(node) = node_id(&peer) else { return };
                match message {
                    Message::Request {
                        request, channel, ..
                    } => self.on_peers_request(node, request, channel),
                    Message::Response { response, .. } => {
                        self.learn(node, response.records.into_vec())
                    }
                }
            }
            RpcEvent::OutboundFailure { peer, error, .. } => self.on_failed_request(&peer, &error),
            RpcEvent::InboundFailure { .. } | RpcEvent::ResponseSent { .. } => {}
        }
    }

    fn on_peers_request(
        &mut self,
        node: NodeId,
        request: PeersRequest,
        channel: ResponseChannel<PeersReply>,
    ) {
        let Some(peer) = self.peers.get_mut(&node).filter(|peer| peer.is_welcome()) else {
            return;
        };
        // A peer over its budget gets no answer, and its request times out.
        if !peer.budget.has_any(Instant::now()) {
            return;
        }
        peer.budget.take(EXCHANGE_COST);
        let reach = peer.reach();
        let others = self.addresses.draw(reach, &node, &mut self.rng);
        // The own records first: they must not fall off the end of a full list.
        let records = Bounded::first_of(self.own_records(reach).into_iter().chain(others));
        // An error means that the peer is gone, and that comes as an event of its own.
        _ = self
            .swarm
            .behaviour_mut()
            .peers
            .send_response(channel, PeersReply { records });
        self.learn(node, request.mine.into_vec());
    }

    /// Enters the records of wanted nodes and makes the dialer try those nodes.
    fn learn(&mut self, from: NodeId, records: Vec<SignedRecord>) {
        if !self.peers.get(&from).is_some_and(super::Peer::is_welcome) {
            return;
        }
        let now = crate::clock::now();
        for record in records {
            let is_one = |node: &NodeId| is_wanted(node, self.own, &self.config, &self.standing);
            match self
                .addresses
                .enter(record, from, self.config.federation, now, is_one)
            {
                Ok(node) => self.dialer.add_told(node, Instant::now()),
                Err(error) if error.is_innocent() => {}
                // One false record is evidence enough; the rest of the list is not worth verifying.
                Err(error) => return self.strike(from, format!("passed on {error}")),
            }
        }
    }

    fn own_records(&self, reach: Reach) -> Vec<SignedRecord> {
        // Most claimed first: one peer can claim anything, several that agree are probably right.
        let mut observed: Vec<(&Multiaddr, &u32)> = self.observed.iter().collect();
        observed.sort_by_key(|(_, times)| std::cmp::Reverse(**times));
        let observed = observed
            .into_iter()
            .take(TOLD_OBSERVED)
            .map(|(address, _)| address);
        let all = self
            .config
            .external
            .iter()
            .chain(self.swarm.listeners())
            .chain(observed);
        let mut addresses: Vec<Multiaddr> = Vec::new();
        for address in all.map(bare) {
            // To a reader elsewhere a loopback address would point at the reader itself.
            let here_only = crate::addresses::is_loopback(&address) && reach == Reach::Elsewhere;
            if !here_only && !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        own_records(
            &self.identity,
            self.config.federation,
            &addresses,
            crate::clock::now(),
        )
    }

    pub(super) fn on_mdns(&mut self, event: mdns::Event) {
        let mdns::Event::Discovered(found) = event else {
            return;
        };
        let now = crate::clock::now();
        for (peer, address) in found {
            let Some(node) = node_id(&peer) else { continue };
            // Anything on the local network can answer mDNS; the handshake proves who is there.
            if is_wanted(&node, self.own, &self.config, &self.standing) {
                self.addresses.hint(node, bare(&address), now);
                self.dialer.add_heard(node, self.own, Instant::now());
            }
        }
    }

    pub(super) fn on_observed(&mut self, address: Multiaddr) {
        // An observed address is of no use if this node does not listen. It may also be no address at all: a peer can claim
        // to have seen anything.
        if self.swarm.listeners().next().is_none() || !crate::addresses::is_tellable(&address) {
            return;
        }
        if let Some(times) = self.observed.get_mut(&address) {
            *times = times.saturating_add(1);
        } else if self.observed.len() < MAX_OBSERVED {
            self.observed.insert(address, 1);
        }
    }

    pub(super) fn on_listening(&mut self, address: Multiaddr) {
        let address = self.with_own_id(&address);
        let mut listeners = self
            .shared
            .listeners
            .write()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if listeners.contains(&address) {
            return;
        }
        listeners.push(address.clone());
        drop(listeners);
        self.tell(Event::Listening(address));
    }

    pub(super) fn on_listening_no_more(&mut self, address: &Multiaddr) {
        let address = self.with_own_id(address);
        let mut listeners = self
            .shared
            .listeners
            .write()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        listeners.retain(|known| *known != address);
    }

    fn with_own_id(&self, address: &Multiaddr) -> Multiaddr {
        let own: PeerId = peer_id(&self.own);
        bare(address).with(libp2p::multiaddr::Protocol::P2p(own))
    }
}

/// Tells whether to connect to a node: it is not this node, is allowed and is not banned.
fn is_wanted(node: &NodeId, own: NodeId, config: &Config, standing: &Standing) -> bool {
    let allowed = config
        .allow
        .as_ref()
        .is_none_or(|allow| allow.contains(node));
    *node != own && allowed && !standing.is_banned(node)
}
