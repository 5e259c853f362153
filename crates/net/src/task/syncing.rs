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

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fednode_core::{Advert, BlobId, NodeId, SignedAdvert, SignedStatement};
use libp2p::request_response::{Event as RpcEvent, Message, OutboundRequestId, ResponseChannel};
use rand::seq::IteratorRandom;

use super::adverts::{Admission, Adverts};
use super::base::Base;
use super::finding::Finding;
use super::peers::Peer;
use crate::bounded::Bounded;
use crate::event::Event;
use crate::gate::{Candidate, Objection};
use crate::holds::Holds;
use crate::identity::{node_id, peer_id};
use crate::membership::MembershipError;
use crate::wire::{MAX_STATEMENTS_AT_ONCE, SYNC_REPLY_BUDGET, SyncReply, SyncRequest};

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

/// The sync with all peers. The state of each is with the peer, so that it ends with the last connection.
#[derive(Debug)]
pub(super) struct Syncing {
    /// Travels with the requests and replies, which go to every peer anyway.
    holds: Holds,
    /// How often a session is due, and when the next one is.
    every: Duration,
    next: Instant,
}

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
    /// The peer's own adverts that should have come by gossip and did not, since the last message of gossip.
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

    fn awaits(&self, request: OutboundRequestId) -> bool {
        self.step == Step::Waiting(request)
    }
}

impl Syncing {
    pub(super) fn new(every: Duration, now: Instant) -> Self {
        Self {
            holds: Holds::default(),
            every,
            next: now + every,
        }
    }

    /// Notes a complete blob, which peers will hear of.
    pub(super) fn add_held(&mut self, blob: BlobId) {
        self.holds.add(blob);
    }

    /// Starts a session with one random peer when one is due.
    pub(super) fn start_due(&mut self, base: &mut Base, adverts: &Adverts, now: Instant) {
        if self.next > now {
            return;
        }
        self.next = now + self.every;
        let idle = |peer: &Peer| peer.sync.step == Step::Idle;
        let free = base
            .peers
            .welcome()
            .filter(|(_, peer)| idle(peer))
            .map(|(node, _)| *node);
        if let Some(node) = free.choose(&mut base.rng) {
            self.start(base, adverts, node);
        }
    }

    /// Asks a peer for the adverts that are wanted by name, or anybody if that peer is not connected.
    pub(super) fn ask_for_wanted(&self, base: &mut Base, adverts: &Adverts, named_by: NodeId) {
        let welcome: Vec<NodeId> = base.peers.welcome().map(|(node, _)| *node).collect();
        let is_here = welcome.contains(&named_by);
        let anybody = welcome.into_iter().choose(&mut base.rng);
        let node = if is_here { Some(named_by) } else { anybody };
        if let Some(node) = node {
            self.start(base, adverts, node);
        }
    }

    /// Starts a session at the first author, unless one is under way.
    pub(super) fn start(&self, base: &mut Base, adverts: &Adverts, node: NodeId) {
        let Some(peer) = base.peers.welcome_mut(&node) else {
            return;
        };
        if peer.sync.step == Step::Idle {
            peer.sync.first = FIRST;
            self.ask(base, adverts, node);
        }
    }

    fn ask(&self, base: &mut Base, adverts: &Adverts, node: NodeId) {
        // A request says whom this node follows and what it lacks, which is nobody's business who was refused since.
        let Some(peer) = base.peers.welcome_mut(&node) else {
            return;
        };
        // The digest holds as many authors as fit. It says itself where it ends, and the next request begins there.
        let digest = adverts.book.digest(peer.sync.first);
        let (holds, telling) = self.holds.since(peer.sync.told);
        (peer.sync.last, peer.sync.telling) = (digest.last, telling);
        let request = SyncRequest {
            digest,
            everything: !peer.sync.synced,
            follows: Bounded::first_of(adverts.follows.iter().copied()),
            wanted: Bounded::first_of(adverts.wanted()),
            holds: Bounded::first_of(holds),
            statements: base
                .config
                .members
                .as_ref()
                .map_or(0, |book| book.reached()),
        };
        peer.sync.step = Step::Waiting(
            base.swarm
                .behaviour_mut()
                .sync
                .send_request(&peer_id(&node), request),
        );
    }

    pub(super) fn on_event(
        &self,
        base: &mut Base,
        adverts: &Adverts,
        event: RpcEvent<SyncRequest, SyncReply>,
    ) -> Option<Finding> {
        match event {
            RpcEvent::Message { peer, message, .. } => {
                let node = node_id(&peer)?;
                match message {
                    Message::Request {
                        request, channel, ..
                    } => self.on_request(base, adverts, node, request, channel),
                    Message::Response {
                        request_id,
                        response,
                    } => return self.on_reply(base, adverts, node, request_id, response),
                }
                None
            }
            RpcEvent::OutboundFailure {
                peer,
                request_id,
                error,
                ..
            } => {
                let known = node_id(&peer).and_then(|node| base.peers.get_mut(&node));
                if let Some(known) = known.filter(|known| known.sync.awaits(request_id)) {
                    known.sync.step = Step::Idle;
                }
                Finding::of_failed_request(&peer, &error)
            }
            RpcEvent::InboundFailure { .. } | RpcEvent::ResponseSent { .. } => None,
        }
    }

    fn on_request(
        &self,
        base: &mut Base,
        adverts: &Adverts,
        node: NodeId,
        request: SyncRequest,
        channel: ResponseChannel<SyncReply>,
    ) {
        let Some(peer) = base.peers.welcome_mut(&node) else {
            return;
        };
        // Without an answer the other side tries again later.
        if !peer.budget.has_any(Instant::now()) {
            return;
        }
        let mut reply = self.reply(peer, adverts, &request);
        if let Some(book) = &base.config.members {
            let statements = book.some_after(request.statements, MAX_STATEMENTS_AT_ONCE);
            reply.statements = Bounded::first_of(statements);
        }
        let first_contact = !peer.sync.synced;
        // An error means that the peer is gone, and that comes as an event of its own.
        _ = base
            .swarm
            .behaviour_mut()
            .sync
            .send_response(channel, reply);
        base.shared
            .roster
            .note_holds(&node, request.holds.as_slice());
        if first_contact {
            // The request proves that the peer has accepted this node's hello, so a session can start now.
            self.start(base, adverts, node);
        }
    }

    /// Makes a reply, at the cost of the peer's budget.
    fn reply(&self, peer: &mut Peer, adverts: &Adverts, request: &SyncRequest) -> SyncReply {
        let now = crate::clock::now();
        // A newcomer gets everything at once. Others get only what gossip has had its time for.
        let settled = if request.everything {
            now
        } else {
            now - GOSSIP_DUE
        };
        let follows = request.follows.as_slice().iter().copied().collect();
        // What is wanted by name comes first, then the proofs that a newcomer should know.
        let wanted = request.wanted.as_slice().iter();
        let named = wanted.filter_map(|(author, id)| adverts.book.by_name(author, *id));
        let proofs = adverts.book.proofs().filter(|_| request.everything);
        // Half of the reply at most: whoever names much must still come to the end of what it lacks.
        let mut sent = within_budget(named.chain(proofs));
        let left = SYNC_REPLY_BUDGET - bytes_of(&sent);
        let (lacking, more) = adverts
            .book
            .lacking(&request.digest, &follows, left, now, settled);
        sent.extend(lacking);
        // An advert that is wanted may be one that is lacking, too.
        let mut seen = BTreeSet::new();
        sent.retain(|signed| seen.insert(signed.id()));
        let (holds, told) = self.holds.since(peer.sync.told);
        // The reply counts as received. If it is lost, the peer still finds the blobs by asking for them.
        peer.sync.told = told;
        // The budget may go below zero: the size of a reply is known only once it is made.
        peer.budget.take(REQUEST_COST + bytes_of(&sent) as f64);
        SyncReply {
            adverts: Bounded::first_of(sent.iter().map(|signed| (**signed).clone())),
            more,
            holds: Bounded::first_of(holds),
            statements: Bounded::first_of([]),
        }
    }

    fn on_reply(
        &self,
        base: &mut Base,
        adverts: &Adverts,
        node: NodeId,
        request: OutboundRequestId,
        reply: SyncReply,
    ) -> Option<Finding> {
        // Of the request under way only: a late reply belongs to a range that the session has left.
        let known = base.peers.get_mut(&node);
        let peer = known.filter(|peer| peer.sync.awaits(request))?;
        // Only the answer proves that the peer received the names of blobs in the request.
        peer.sync.told = peer.sync.told.max(peer.sync.telling);
        peer.sync.step = Step::Checking;
        base.shared.roster.note_holds(&node, reply.holds.as_slice());
        if let Some(reason) = take_statements(base, reply.statements) {
            end(base, &node);
            return Some(Finding::Fault(node, reason));
        }
        let received = reply.adverts.into_vec();
        if received.is_empty() {
            self.on_range_done(base, adverts, node);
            return None;
        }
        let candidate = Candidate::Sync {
            peer: node,
            adverts: received,
            more: reply.more,
        };
        // A full gate ends the session; a later one asks for the same adverts again.
        if adverts.gate.try_send(candidate).is_err() {
            end(base, &node);
        }
        None
    }

    /// Takes the adverts of a reply that come back from the gate.
    pub(super) fn on_checked(
        &self,
        base: &mut Base,
        adverts: &mut Adverts,
        peer: NodeId,
        outcomes: Vec<Result<(SignedAdvert, Advert), Objection>>,
        more: bool,
    ) -> Vec<Finding> {
        let mut findings = Vec::new();
        let (mut admitted, mut lost) = (0, 0);
        for outcome in outcomes {
            match outcome {
                Ok((signed, advert)) => {
                    // Asked before the advert is moved into the book, counted only if it was new.
                    let missed = should_have_been_gossiped(base, adverts, &peer, &advert);
                    match adverts.admit(base, signed, advert) {
                        Admission::Admitted => admitted += 1,
                        Admission::NoRoom => {
                            lost += 1;
                            continue;
                        }
                        Admission::Proof | Admission::Ignored => continue,
                    }
                    if missed {
                        findings.extend(count_missed(base, peer));
                    }
                }
                Err(Objection::Late(late)) => adverts.hear_late(base, *late),
                Err(objection) if objection.is_innocent() => base.note_refused(&objection),
                Err(objection) => {
                    let reason = format!("passed on a false advert: {objection}");
                    findings.push(Finding::Fault(peer, reason));
                    end(base, &peer);
                    return findings;
                }
            }
        }
        // The peer may have come back over a new connection, which has a session of its own.
        let known = base.peers.get(&peer);
        if known.is_none_or(|known| known.sync.step != Step::Checking) {
            return findings;
        }
        match (more, admitted) {
            // Not all was received, so a later session goes on.
            _ if lost > 0 => end(base, &peer),
            (false, _) => self.on_range_done(base, adverts, peer),
            // The peer repeats itself.
            (true, 0) => end(base, &peer),
            (true, _) => self.ask(base, adverts, peer),
        }
        findings
    }

    fn on_range_done(&self, base: &mut Base, adverts: &Adverts, node: NodeId) {
        let Some(peer) = base.peers.get_mut(&node) else {
            return;
        };
        if peer.sync.last < LAST {
            // Ranges include both ends, so no author between two ranges is missed.
            peer.sync.first = peer.sync.last;
            return self.ask(base, adverts, node);
        }
        peer.sync.step = Step::Idle;
        if !std::mem::replace(&mut peer.sync.synced, true) {
            base.tell(Event::Synced { node });
        }
    }
}

/// Takes statements of the organiser. Returns the fault of a peer whose statements it did not sign.
fn take_statements(
    base: &Base,
    statements: Bounded<SignedStatement, MAX_STATEMENTS_AT_ONCE>,
) -> Option<String> {
    let book = base.config.members.as_ref()?;
    for signed in statements.into_vec() {
        match book.take(&signed) {
            Ok(_) => {}
            // The organiser's own fault: whoever passes it on is innocent.
            Err(MembershipError::Statement(error)) => tracing::warn!(%error, "a statement"),
            Err(error) => return Some(format!("passed on a false statement: {error}")),
        }
    }
    None
}

/// Returns as many of these adverts as half a reply holds.
fn within_budget<'a>(
    adverts: impl Iterator<Item = &'a Arc<SignedAdvert>>,
) -> Vec<Arc<SignedAdvert>> {
    let mut bytes = 0;
    let fits = |signed: &&Arc<SignedAdvert>| {
        bytes += signed.payload.len();
        bytes <= SYNC_REPLY_BUDGET / 2
    };
    adverts.take_while(fits).cloned().collect()
}

fn bytes_of(adverts: &[Arc<SignedAdvert>]) -> usize {
    adverts.iter().map(|signed| signed.payload.len()).sum()
}

/// Ends a session before its last range. The next one starts at the first author again.
fn end(base: &mut Base, node: &NodeId) {
    if let Some(peer) = base.peers.get_mut(node) {
        peer.sync.step = Step::Idle;
    }
}

fn should_have_been_gossiped(
    base: &Base,
    adverts: &Adverts,
    peer: &NodeId,
    advert: &Advert,
) -> bool {
    let Some(known) = base.peers.get(peer) else {
        return false;
    };
    // Only an advert of the peer itself, issued while it was connected and old enough, proves that gossip failed.
    let said_here = advert.issued_at > known.up_since + GOSSIP_DUE;
    advert.author == *peer
        && said_here
        && !adverts.was_crowded_after(advert.issued_at)
        && adverts.is_for_everybody(advert)
        && crate::clock::now().since(advert.issued_at) > GOSSIP_DUE
}

/// Counts an advert that gossip should have brought. Too many in a row are a finding.
fn count_missed(base: &mut Base, node: NodeId) -> Option<Finding> {
    let peer = base.peers.get_mut(&node)?;
    peer.sync.missed += 1;
    if peer.sync.missed < MAX_MISSED {
        return None;
    }
    peer.sync.missed = 0;
    Some(Finding::Silence(node))
}
