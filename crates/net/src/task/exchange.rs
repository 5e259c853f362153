//! Peer exchange: any member leads to all others.
//!
//! The request holds the addresses of its sender; the reply holds those of the answering node and of others. A node that
//! is learned of is dialed while there is room ([`super::dialing`]).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use fednode_core::NodeId;
use libp2p::Multiaddr;
use libp2p::request_response::{Event as RpcEvent, Message, ResponseChannel};
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
/// Addresses remembered at which peers claim to see this node.
const MAX_OBSERVED: usize = 64;
/// How many of those, the most frequently claimed, go into this node's own record.
const TOLD_OBSERVED: usize = 4;

/// The requests for addresses, and what this node says of its own.
#[derive(Debug)]
pub(super) struct Exchange {
    /// Addresses at which peers claim to see this node, with the number of claims.
    observed: BTreeMap<Multiaddr, u32>,
    next: Instant,
}

impl Exchange {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            observed: BTreeMap::new(),
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
        let all = base
            .config
            .external
            .iter()
            .chain(
                base.swarm
                    .listeners()
                    .filter(|address| !is_circuit(address)),
            )
            .chain(base.swarm.external_addresses())
            .chain(self.most_observed());
        let mut addresses: Vec<Multiaddr> = Vec::new();
        for address in all.map(bare) {
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

    /// Returns the addresses at which most peers claim to see this node.
    fn most_observed(&self) -> impl Iterator<Item = &Multiaddr> {
        // Most claimed first: one peer can claim anything, several that agree are probably right.
        let mut observed: Vec<(&Multiaddr, &u32)> = self.observed.iter().collect();
        observed.sort_by_key(|(_, times)| std::cmp::Reverse(**times));
        let most = observed.into_iter().take(TOLD_OBSERVED);
        most.map(|(address, _)| address)
    }

    pub(super) fn on_observed(&mut self, base: &Base, address: Multiaddr) {
        // An observed address is of no use if this node does not listen. It may also be no address at all: a peer can claim
        // to have seen anything.
        if !base.listens() || is_circuit(&address) || !is_tellable(&address) {
            return;
        }
        if let Some(times) = self.observed.get_mut(&address) {
            *times = times.saturating_add(1);
        } else if self.observed.len() < MAX_OBSERVED {
            self.observed.insert(address, 1);
        }
    }
}
