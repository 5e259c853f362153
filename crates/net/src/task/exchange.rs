//! Peer exchange: any member leads to all others.
//!
//! The request holds the addresses of its sender; the reply holds those of the answering node and of others. A node that
//! is learned of is dialed while there is room ([`super::dialing`]).

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use fednode_core::NodeId;
use libp2p::request_response::{Event as RpcEvent, Message, ResponseChannel};
use libp2p::{Multiaddr, PeerId};
use rand::seq::IteratorRandom;

use super::base::Base;
use super::dialing::Dialing;
use super::finding::Finding;
use super::peers::Peer;
use crate::addresses::{Reach, bare, is_circuit, is_loopback, is_tellable, own_records};
use crate::bounded::Bounded;
use crate::identity::{node_id, peer_id};
use crate::wire::{PeersReply, PeersRequest, SignedRecord};

/// How often a node exchanges addresses with one random peer.
const EXCHANGE_EVERY: Duration = Duration::from_secs(30);
/// How soon after news: time for a newcomer to get a place at a relay.
const SOON: Duration = Duration::from_secs(2);
/// What an exchange costs the budget of the requesting peer.
const EXCHANGE_COST: f64 = 65_536.0;
/// Addresses remembered at which one peer claims to see this node: by TCP and QUIC, in IPv4 and IPv6.
const MAX_OBSERVED: usize = 4;
/// How many of those, that most peers claim, go into this node's own record.
const TOLD_OBSERVED: usize = 4;

/// The requests for addresses, and what this node says of its own.
#[derive(Debug)]
pub(super) struct Exchange {
    /// Addresses at which peers claim to see this node, the newest of each peer last.
    observed: BTreeMap<NodeId, VecDeque<Multiaddr>>,
    /// Whose claims come now.
    claimant: Option<NodeId>,
    next: Instant,
}

impl Exchange {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            observed: BTreeMap::new(),
            claimant: None,
            next: now + EXCHANGE_EVERY,
        }
    }

    /// Asks one random peer when that is due.
    pub(super) fn ask_due(&mut self, base: &mut Base, now: Instant) {
        if self.next > now {
            return;
        }
        self.next = now + EXCHANGE_EVERY;
        let welcome = base.peers.welcome().map(|(node, _)| *node);
        if let Some(node) = welcome.choose(&mut base.rng) {
            self.ask(base, node);
        }
    }

    /// Asks soon: somebody is here whose addresses may be known by now.
    pub(super) fn hasten(&mut self, now: Instant) {
        self.next = self.next.min(now + SOON);
    }

    /// Asks a peer for addresses and tells it this node's own.
    pub(super) fn ask(&self, base: &mut Base, node: NodeId) {
        let Some(reach) = base.peers.get(&node).map(Peer::reach) else {
            return;
        };
        let mine = Bounded::first_of(self.own_records(base, reach));
        base.swarm
            .behaviour_mut()
            .peers
            .send_request(&peer_id(&node), PeersRequest { mine });
    }

    pub(super) fn on_event(
        &mut self,
        base: &mut Base,
        dialing: &mut Dialing,
        event: RpcEvent<PeersRequest, PeersReply>,
    ) -> Option<Finding> {
        match event {
            RpcEvent::Message { peer, message, .. } => {
                let node = node_id(&peer)?;
                match message {
                    Message::Request {
                        request, channel, ..
                    } => self.on_request(base, dialing, node, request, channel),
                    Message::Response { response, .. } => {
                        dialing.learn(base, node, response.records.into_vec())
                    }
                }
            }
            RpcEvent::OutboundFailure { peer, error, .. } => {
                Finding::of_failed_request(&peer, &error)
            }
            RpcEvent::InboundFailure { .. } | RpcEvent::ResponseSent { .. } => None,
        }
    }

    fn on_request(
        &self,
        base: &mut Base,
        dialing: &mut Dialing,
        node: NodeId,
        request: PeersRequest,
        channel: ResponseChannel<PeersReply>,
    ) -> Option<Finding> {
        let peer = base.peers.welcome_mut(&node)?;
        // A peer over its budget gets no answer, and its request times out.
        if !peer.budget.has_any(Instant::now()) {
            return None;
        }
        peer.budget.take(EXCHANGE_COST);
        let reach = peer.reach();
        let others = dialing.draw(base, reach, &node);
        // The own records first: they must not fall off the end of a full list.
        let own = self.own_records(base, reach);
        let records = Bounded::first_of(own.into_iter().chain(others));
        // An error means that the peer is gone, and that comes as an event of its own.
        _ = base
            .swarm
            .behaviour_mut()
            .peers
            .send_response(channel, PeersReply { records });
        dialing.learn(base, node, request.mine.into_vec())
    }

    fn own_records(&self, base: &Base, reach: Reach) -> Vec<SignedRecord> {
        // What a person configured comes first, and what peers claim last: a record holds only the first few.
        let all = base
            .config
            .external
            .iter()
            .chain(
                // A place at a relay is an external address once the relay has given it.
                base.swarm
                    .listeners()
                    .filter(|address| !is_circuit(address)),
            )
            .chain(base.swarm.external_addresses())
            .cloned()
            .chain(self.most_observed(base));
        let mut addresses: Vec<Multiaddr> = Vec::new();
        for address in all.map(|address| bare(&address)) {
            // To a reader elsewhere a loopback address would point at the reader itself.
            let here_only = is_loopback(&address) && reach == Reach::Elsewhere;
            if !here_only && !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        own_records(
            &base.identity,
            base.config.federation,
            &addresses,
            crate::clock::now(),
        )
    }

    /// Returns the addresses at which most peers claim to see this node. Only those that were let in count: everybody dials
    /// what a record names, and a stranger could have them dial whom it likes.
    fn most_observed(&self, base: &Base) -> Vec<Multiaddr> {
        let mut claims: BTreeMap<&Multiaddr, usize> = BTreeMap::new();
        let welcome = self.observed.iter();
        let welcome = welcome.filter(|(node, _)| base.peers.is_welcome(node));
        for address in welcome.flat_map(|(_, addresses)| addresses) {
            *claims.entry(address).or_default() += 1;
        }
        // Most claimed first: one peer can claim anything, several that agree are probably right.
        let mut observed: Vec<(&Multiaddr, usize)> = claims.into_iter().collect();
        observed.sort_by_key(|(_, peers)| std::cmp::Reverse(*peers));
        let most = observed.into_iter().take(TOLD_OBSERVED);
        most.map(|(address, _)| address.clone()).collect()
    }

    /// A peer has told of itself, and where it sees this node comes next.
    pub(super) fn on_identified(&mut self, base: &Base, peer: &PeerId) {
        self.claimant = node_id(peer);
        // What was claimed over connections that are gone says nothing of the network that this node is in now.
        self.observed.retain(|node, _| base.peers.contains(node));
    }

    pub(super) fn on_observed(&mut self, base: &Base, address: Multiaddr) {
        // An observed address is of no use if this node does not listen. It may also be no address at all: a peer can claim
        // to have seen anything.
        if !base.listens() || is_circuit(&address) || !is_tellable(&address) {
            return;
        }
        let Some(node) = self.claimant.filter(|node| base.peers.contains(node)) else {
            return;
        };
        let claimed = self.observed.entry(node).or_default();
        claimed.retain(|known| *known != address);
        claimed.push_back(address);
        if claimed.len() > MAX_OBSERVED {
            claimed.pop_front();
        }
    }
}
