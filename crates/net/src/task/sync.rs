//! Anti-entropy: adverts that gossip lost come from a random peer.
//!
//! The request says which adverts its sender has, author by author, and the reply brings the missing ones. Both name the
//! blobs that were completed since the last exchange. A session goes through all authors in ranges. The first session that
//! reaches the end without loss makes the peer synced.
//!
//! ```text
//!   idle ──ask(range)──► waiting ──reply──► checking (gate) ──┬─ more and some were new ──► ask(same range)
//!     ▲                     │                                 ├─ next range ──► ask(range)
//!     └──── failure ◄───────┘                                 └─ end of the last range ──► synced, idle
//! ```

use std::time::{Duration, Instant};

use fednode_core::{Advert, NodeId, SignedAdvert};
use libp2p::PeerId;
use libp2p::request_response::{
    Event as RpcEvent, Message, OutboundFailure, OutboundRequestId, ResponseChannel,
};
use rand::seq::IteratorRandom;

use super::Task;
use super::gossip::Admission;
use crate::bounded::Bounded;
use crate::event::Event;
use crate::gate::{Candidate, Objection};
use crate::identity::{node_id, peer_id};
use crate::wire::{SYNC_REPLY_BUDGET, SyncReply, SyncRequest};

/// What a request costs its sender's budget beyond the bytes of the reply: the look-up.
const REQUEST_COST: f64 = 16_384.0;
/// The lowest possible author.
const FIRST: NodeId = NodeId::from_bytes([0; 32]);
/// The highest possible author.
const LAST: NodeId = NodeId::from_bytes([255; 32]);
/// How many of a connected peer's own adverts may come by sync instead of gossip. After that the peer's gossip stream
/// counts as dead: one that failed five times stays closed, and only a new connection helps.
const MAX_MISSED: u32 = 8;
/// Time that gossip has for an advert before sync brings it. Otherwise both would bring it.
const GOSSIP_DUE: Duration = Duration::from_secs(2);

/// The state of the sync with one peer.
#[derive(Debug)]
pub(super) struct SyncState {
    step: Step,
    /// The range of authors that is being requested.
    first: NodeId,
    last: NodeId,
    synced: bool,
    /// Up to which number the peer knows the blobs that this node holds.
    told: u64,
    /// The value for `told` when the request under way is answered.
    telling: u64,
    missed: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Idle,
    Waiting(OutboundRequestId),
    Checking,
}

impl Default for SyncState {
    fn default() -> Self {
        Self {
            step: Step::Idle,
            first: FIRST,
            last: LAST,
            synced: false,
            told: 0,
            telling: 0,
            missed: 0,
        }
    }
}

impl SyncState {
    pub(super) fn gossip_is_alive(&mut self) {
        self.missed = 0;
    }
}

impl Task {
    /// Starts a session with one random peer when one is due.
    pub(super) fn sync_due(&mut self, now: Instant) {
        if self.next_sync > now {
            return;
        }
        self.next_sync = now + self.config.sync_every;
        let free = |peer: &super::Peer| peer.is_welcome() && peer.sync.step == Step::Idle;
        let free = self
            .peers
            .iter()
            .filter(|(_, peer)| free(peer))
            .map(|(node, _)| *node);
        if let Some(node) = free.choose(&mut self.rng) {
            self.start_sync(node);
        }
    }

    /// Starts a session at the first author, unless one is under way.
    pub(super) fn start_sync(&mut self, node: NodeId) {
        let Some(peer) = self.peers.get_mut(&node).filter(|peer| peer.is_welcome()) else {
            return;
        };
        if peer.sync.step == Step::Idle {
            peer.sync.first = FIRST;
            self.ask_sync(node);
        }
    }

    fn ask_sync(&mut self, node: NodeId) {
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        // The digest holds as many authors as fit. It says itself where it ends, and the next request begins there.
        let digest = self.book.digest(peer.sync.first);
        let (holds, telling) = self.holds.since(peer.sync.told);
        (peer.sync.last, peer.sync.telling) = (digest.last, telling);
        let request = SyncRequest {
            digest,
            everything: !peer.sync.synced,
            follows: Bounded::first_of(self.follows.iter().copied()),
            holds: Bounded::first_of(holds),
        };
        peer.sync.step = Step::Waiting(
            self.swarm
                .behaviour_mut()
                .sync
                .send_request(&peer_id(&node), request),
        );
    }

    pub(super) fn on_sync_event(&mut self, event: RpcEvent<SyncRequest, SyncReply>) {
        match event {
            RpcEvent::Message {
                peer,
                message:
                    Message::Request {
                        request, channel, ..
                    },
                ..
            } => {
                self.on_sync_request(&peer, request, channel);
            }
            RpcEvent::Message {
                peer,
                message:
                    Message::Response {
                        request_id,
                        response,
                    },
                ..
            } => {
                self.on_sync_reply(&peer, request_id, response);
            }
            RpcEvent::OutboundFailure {
                peer,
                request_id,
                error,
                ..
            } => {
                self.on_failed_request(&peer, &error);
                let state = node_id(&peer).and_then(|node| self.peers.get_mut(&node));
                if let Some(peer) = state.filter(|peer| peer.sync.step == Step::Waiting(request_id))
                {
                    peer.sync.step = Step::Idle;
                }
            }
            RpcEvent::InboundFailure { .. } | RpcEvent::ResponseSent { .. } => {}
        }
    }

    fn on_sync_request(
        &mut self,
        peer: &PeerId,
        request: SyncRequest,
        channel: ResponseChannel<SyncReply>,
    ) {
        let Some(node) = node_id(peer) else { return };
        let Some(known) = self.peers.get_mut(&node).filter(|peer| peer.is_welcome()) else {
            return;
        };
        // Without an answer the other side tries again later.
        if !known.budget.has_any(Instant::now()) {
            return;
        }
        let now = crate::clock::now();
        // A newcomer gets everything at once. Others get only what gossip has had its time for.
        let settled = if request.everything {
            now
        } else {
            now - GOSSIP_DUE
        };
        let follows = request.follows.as_slice().iter().copied().collect();
        let (adverts, more) =
            self.book
                .lacking(&request.digest, &follows, SYNC_REPLY_BUDGET, now, settled);
        let (holds, told) = self.holds.since(known.sync.told);
        known.sync.told = told;
        // The budget may go below zero: the size of a reply is known only once it is made.
        let bytes: usize = adverts.iter().map(|signed| signed.payload.len()).sum();
        known.budget.take(REQUEST_COST + bytes as f64);
        let first_contact = !known.sync.synced;
        let adverts = Bounded::first_of(adverts.iter().map(|signed| (**signed).clone()));
        let reply = SyncReply {
            adverts,
            more,
            holds: Bounded::first_of(holds),
        };
        // An error means that the peer is gone, and that comes as an event of its own.
        _ = self
            .swarm
            .behaviour_mut()
            .sync
            .send_response(channel, reply);
        self.shared
            .roster
            .note_holds(&node, request.holds.as_slice());
        if first_contact {
            // The request proves that the peer has accepted this node's hello, so a session can start now.
            self.start_sync(node);
        }
    }

    fn on_sync_reply(&mut self, peer: &PeerId, request: OutboundRequestId, reply: SyncReply) {
        let Some(node) = node_id(peer) else { return };
        let Some(known) = self
            .peers
            .get_mut(&node)
            .filter(|peer| peer.sync.step == Step::Waiting(request))
        else {
            return;
        };
        // Only the answer proves that the peer received the names of blobs in the request.
        known.sync.told = known.sync.told.max(known.sync.telling);
        known.sync.step = Step::Checking;
        self.shared.roster.note_holds(&node, reply.holds.as_slice());
        let adverts = reply.adverts.into_vec();
        if adverts.is_empty() {
            return self.on_range_done(node);
        }
        let candidate = Candidate::Sync {
            peer: node,
            adverts,
            more: reply.more,
        };
        if self.gate.try_send(candidate).is_err() {
            self.end_sync(node);
        }
    }

    pub(super) fn on_checked_sync(
        &mut self,
        peer: NodeId,
        outcomes: Vec<Result<(SignedAdvert, Advert), Objection>>,
        more: bool,
    ) {
        let mut admitted = 0;
        for outcome in outcomes {
            match outcome {
                Ok((signed, advert)) => {
                    // Asked before the advert is moved into the book, counted only if it was new.
                    let missed = self.should_have_been_gossiped(peer, &advert);
                    if self.admit(signed, advert) == Admission::Admitted {
                        admitted += 1;
                        self.count_missed(peer, missed);
                    }
                }
                Err(objection) if objection.is_innocent() => {}
                Err(objection) => {
                    self.strike(peer, format!("passed on a false advert: {objection}"));
                    return self.end_sync(peer);
                }
            }
        }
        match (more, admitted) {
            (false, _) => self.on_range_done(peer),
            // There is no room for the adverts, or the peer repeats itself: a later session goes on.
            (true, 0) => self.end_sync(peer),
            (true, _) => self.ask_sync(peer),
        }
    }

    fn on_range_done(&mut self, node: NodeId) {
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        if peer.sync.last < LAST {
            // Ranges include both ends, so no author between two ranges is missed.
            peer.sync.first = peer.sync.last;
            return self.ask_sync(node);
        }
        peer.sync.step = Step::Idle;
        if !std::mem::replace(&mut peer.sync.synced, true) {
            self.tell(Event::Synced { node });
        }
    }

    fn end_sync(&mut self, node: NodeId) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.sync.step = Step::Idle;
        }
    }

    fn should_have_been_gossiped(&self, peer: NodeId, advert: &Advert) -> bool {
        let Some(known) = self.peers.get(&peer) else {
            return false;
        };
        // Only an advert of the peer itself, issued while it was connected and old enough, proves that gossip failed.
        let said_here = advert.issued_at > known.up_since + GOSSIP_DUE;
        let said_to_all = self
            .audience
            .is_everybody(advert.author, advert.round, &advert.body);
        advert.author == peer
            && said_here
            && said_to_all
            && crate::clock::now().since(advert.issued_at) > GOSSIP_DUE
    }

    fn count_missed(&mut self, node: NodeId, missed: bool) {
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        peer.sync.missed += u32::from(missed);
        if peer.sync.missed >= MAX_MISSED {
            peer.sync.missed = 0;
            tracing::warn!(%node, "a connected peer is silent on gossip: connecting anew");
            self.reconnect(node);
        }
    }

    /// Notes a request that got no reply.
    ///
    /// A reply that breaks the protocol is evidence. A request that does is refused before it is read, but libp2p does not
    /// say who sent it.
    pub(super) fn on_failed_request(&mut self, peer: &PeerId, error: &OutboundFailure) {
        tracing::debug!(%peer, %error, "a request failed");
        if let (OutboundFailure::Io(cause), Some(node)) = (error, node_id(peer))
            && cause.kind() == std::io::ErrorKind::InvalidData
        {
            self.strike(node, format!("sent a malformed reply: {cause}"));
        }
    }
}
