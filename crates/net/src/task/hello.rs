//! The hello. Both sides greet, then the one that opened the connection sends its hello, the other answers, and both check.
//!
//! ```text
//!   dialer ── greeting: version, proof ─────────────────────────► listener
//!          ◄─ greeting: version; proof and certificate, if the dialer's proof is good
//!          ── hello: certificate, role, spec, clock, if the listener is a member ──►
//!          ◄─ hello, or "you are no member" ──────────────────────
//! ```
//!
//! A stranger learns the version of the protocol and nothing else: no federation, no class, no column. In a federation
//! without an organiser there are no proofs, and everybody is told the spec.
//!
//! There is no message for a refusal. Each side has the hello of the other and finds the first difference itself. So both
//! know the reason, and neither has to believe the other.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use fednode_core::limits::CLOCK_SKEW;
use fednode_core::{
    Absence, Greeting, Hello, HelloReply, NodeId, PROTOCOL_VERSION, Proof, Refusal, Role,
    SignedStatement,
};
use libp2p::PeerId;
use libp2p::request_response::{Event as RpcEvent, Message, OutboundFailure};

use super::base::Base;
use super::finding::Finding;
use super::peers::{self, Peer};
use crate::event::Event;
use crate::identity::{node_id, peer_id};

/// Largest number of letters of a peer's text that is shown to people.
const MAX_SHOWN: usize = 256;
/// A refused peer has this long to read the hello before this side closes the connection.
const REFUSAL_PATIENCE: Duration = Duration::from_secs(3);
/// A peer beyond `max_peers` stays this long: enough to learn the addresses of others.
const GUEST_STAY: Duration = Duration::from_secs(10);
/// Refusals remembered. Beyond that a refusal may be reported twice.
const MAX_REFUSALS: usize = 1024;
/// How often another reason of the same kind is reported of one peer. What it differs in is its own word.
const TELL_AGAIN: Duration = Duration::from_secs(60);

/// Lets peers in, or not.
#[derive(Debug, Default)]
pub(super) struct Reception {
    /// Refusals that were reported already, and when: a peer that keeps coming back is no news.
    refusals: BTreeMap<NodeId, (Refusal, Instant)>,
}

/// What a hello changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entrance {
    /// The peer is up and was not before.
    New,
    /// The hello is good and changes nothing: a second connection, or one that is gone already.
    Again,
    /// The peer is refused.
    Refused,
}

impl Reception {
    /// Greets over a connection that this node opened.
    pub(super) fn greet(&self, base: &mut Base, peer: &PeerId) {
        let Some(node) = node_id(peer) else { return };
        let greeting = Greeting {
            protocol: PROTOCOL_VERSION,
            proof: own_proof(base, node),
            certificate: None,
        };
        let behaviour = base.swarm.behaviour_mut();
        behaviour.greeting.send_request(peer, greeting);
    }

    pub(super) fn on_greeting(&mut self, base: &mut Base, event: RpcEvent<Greeting, Greeting>) {
        match event {
            RpcEvent::Message {
                peer,
                connection_id,
                message,
            } => {
                let Some(node) = node_id(&peer) else { return };
                match message {
                    Message::Request {
                        request, channel, ..
                    } => {
                        base.close_superseded(&node, connection_id);
                        let answer = self.greeted(base, node, &request);
                        let behaviour = base.swarm.behaviour_mut();
                        // An error says that the peer is gone, which comes as an event of its own.
                        _ = behaviour.greeting.send_response(channel, answer);
                    }
                    Message::Response { response, .. } => {
                        match self.greeted_back(base, node, response) {
                            Ok(()) => {
                                let own = own_hello(base);
                                base.swarm.behaviour_mut().hello.send_request(&peer, own);
                            }
                            Err(refusal) => {
                                self.refuse(base, node, refusal);
                                base.disconnect(&node);
                            }
                        }
                    }
                }
            }
            RpcEvent::OutboundFailure { peer, error, .. } => self.on_failure(base, &peer, &error),
            RpcEvent::InboundFailure { .. } | RpcEvent::ResponseSent { .. } => {}
        }
    }

    /// Answers a greeting. Who shows no proof learns the version of the protocol and no more.
    fn greeted(&mut self, base: &mut Base, node: NodeId, theirs: &Greeting) -> Greeting {
        let refusal = if theirs.protocol != PROTOCOL_VERSION {
            Some(Refusal::Protocol {
                ours: PROTOCOL_VERSION,
                theirs: theirs.protocol,
            })
        } else {
            refusal_of_proof(base, node, theirs.proof)
        };
        let is_fine = refusal.is_none();
        if let Some(refusal) = refusal {
            self.refuse(base, node, refusal);
        } else if let Some(peer) = base.peers.get_mut(&node) {
            peer.has_greeted = true;
        }
        Greeting {
            protocol: PROTOCOL_VERSION,
            proof: own_proof(base, node).filter(|_| is_fine),
            certificate: own_certificate(base).filter(|_| is_fine),
        }
    }

    /// Checks the answer to a greeting: the other side must be a member before it is told anything.
    fn greeted_back(&self, base: &mut Base, node: NodeId, theirs: Greeting) -> Result<(), Refusal> {
        if theirs.protocol != PROTOCOL_VERSION {
            return Err(Refusal::Protocol {
                ours: PROTOCOL_VERSION,
                theirs: theirs.protocol,
            });
        }
        // The proof first: it is a hash, while a certificate costs a signature check that a stranger must not cause.
        refusal_of_proof(base, node, theirs.proof).map_or(Ok(()), Err)?;
        membership(base, node, theirs.certificate.as_ref()).map_err(Refusal::NoMember)?;
        if let Some(peer) = base.peers.get_mut(&node) {
            peer.has_greeted = true;
        }
        Ok(())
    }

    pub(super) fn on_event(
        &mut self,
        base: &mut Base,
        event: RpcEvent<Hello, HelloReply>,
    ) -> Vec<Finding> {
        match event {
            RpcEvent::Message { peer, message, .. } => {
                let Some(node) = node_id(&peer) else {
                    return Vec::new();
                };
                match message {
                    Message::Request {
                        request, channel, ..
                    } => {
                        let role = entitled(base, node, &request);
                        let answer = match role {
                            Ok(_) => HelloReply::Hello(Box::new(own_hello(base))),
                            Err(absence) => {
                                let members = base.config.members.as_ref();
                                let said = members.and_then(|book| book.revocation_of(&node));
                                HelloReply::Unwelcome(absence, said)
                            }
                        };
                        // The peer is let in before it hears so: it may ask for a blob in the next moment, and a stranger's
                        // stream is dropped.
                        let findings = self.on_request(base, node, request, role);
                        let hello = &mut base.swarm.behaviour_mut().hello;
                        // An error says that the peer is gone, which comes as an event of its own.
                        _ = hello.send_response(channel, answer);
                        findings
                    }
                    Message::Response { response, .. } => self.on_answer(base, node, response),
                }
            }
            RpcEvent::OutboundFailure { peer, error, .. } => {
                self.on_failure(base, &peer, &error);
                Vec::new()
            }
            RpcEvent::InboundFailure { .. } | RpcEvent::ResponseSent { .. } => Vec::new(),
        }
    }

    fn on_request(
        &mut self,
        base: &mut Base,
        node: NodeId,
        hello: Hello,
        role: Result<(), Absence>,
    ) -> Vec<Finding> {
        if let Err(absence) = role {
            // A stranger was refused at its greeting already, with a better reason.
            if base.peers.get(&node).is_some_and(|peer| peer.has_greeted) {
                self.refuse(base, node, Refusal::NoMember(absence));
            }
            return Vec::new();
        }
        // A refused peer is not disconnected here: it must read the answer to learn why.
        match self.check(base, node, hello) {
            Entrance::New => vec![Finding::Arrival(node)],
            Entrance::Again | Entrance::Refused => Vec::new(),
        }
    }

    fn on_answer(&mut self, base: &mut Base, node: NodeId, answer: HelloReply) -> Vec<Finding> {
        let hello = match answer {
            HelloReply::Hello(hello) => *hello,
            HelloReply::Unwelcome(absence, said) => {
                // Signed by the organiser or nothing: a member cannot end another by its own word.
                if let (Some(book), Some(signed)) = (&base.config.members, said)
                    && let Err(error) = book.take(&signed)
                {
                    tracing::debug!(%node, %error, "a revocation was refused");
                }
                self.refuse(base, node, Refusal::Unwelcome(absence));
                base.disconnect(&node);
                return Vec::new();
            }
        };
        if let Err(absence) = entitled(base, node, &hello) {
            self.refuse(base, node, Refusal::NoMember(absence));
            base.disconnect(&node);
            return Vec::new();
        }
        match self.check(base, node, hello) {
            Entrance::New => vec![Finding::Arrival(node), Finding::Answer(node)],
            Entrance::Again => vec![Finding::Answer(node)],
            Entrance::Refused => {
                // The peer has our hello and finds the reason itself.
                base.disconnect(&node);
                Vec::new()
            }
        }
    }

    /// Turns peers away that are no members any more.
    pub(super) fn turn_out(&mut self, base: &mut Base) {
        let now = crate::clock::now();
        let Some(book) = base.config.members.clone() else {
            return;
        };
        let welcome = base.peers.welcome().map(|(node, _)| *node);
        let gone: Vec<(NodeId, Absence)> = welcome
            .filter_map(|node| Some((node, book.role(&node, now).err()?)))
            .collect();
        for (node, absence) in gone {
            self.refuse(base, node, Refusal::NoMember(absence));
            base.disconnect(&node);
        }
    }

    /// Checks a hello, and lets its sender in or refuses it.
    fn check(&mut self, base: &mut Base, node: NodeId, hello: Hello) -> Entrance {
        let hello = tidy(hello);
        let max_skew = CLOCK_SKEW;
        match own_hello(base).check(&hello, max_skew, crate::clock::now()) {
            Ok(()) => self.welcome(base, node, hello.role, hello.software),
            Err(refusal) => {
                tracing::debug!(%node, %refusal, "refused");
                self.refuse(base, node, refusal);
                Entrance::Refused
            }
        }
    }

    fn on_failure(&mut self, base: &mut Base, peer: &PeerId, error: &OutboundFailure) {
        let Some(node) = node_id(peer) else { return };
        // Of two connections one may fail; a peer that is welcome by the other stays.
        if base.peers.get(&node).is_none_or(Peer::is_welcome) {
            return;
        }
        tracing::debug!(%node, %error, "no hello");
        // A peer that answers and does not know the protocol is another program, or another version of this one.
        if matches!(error, OutboundFailure::UnsupportedProtocols) {
            let refusal = Refusal::Protocol {
                ours: PROTOCOL_VERSION,
                theirs: 0,
            };
            self.refuse(base, node, refusal);
        }
        base.disconnect(&node);
        // Whatever else fails, the peer has closed the connection or the stream.
        let is_silent = matches!(error, OutboundFailure::Timeout);
        if let Some(peer) = base.peers.get_mut(&node) {
            peer.is_closed_here = is_silent;
        }
    }

    /// Notes an accepted hello.
    fn welcome(&mut self, base: &mut Base, node: NodeId, role: Role, software: String) -> Entrance {
        // A full node still lets newcomers in for a moment, so that they learn the addresses of others.
        let guest = base.peers.welcome().count() >= base.config.max_peers;
        let Some(peer) = base.peers.get_mut(&node) else {
            return Entrance::Again;
        };
        let is_new = !peer.is_welcome();
        peer.hello = peers::Hello::Welcome { role, software };
        base.swarm.behaviour_mut().gossip.open(peer_id(&node));
        if is_new {
            // Whom this node dialed stays: a full node dials only what a person configured.
            peer.deadline = (guest && !peer.is_outbound()).then(|| Instant::now() + GUEST_STAY);
            peer.up_since = crate::clock::now();
        }
        // Even if it is not new: its role may have changed with a restart.
        base.shared.roster.enter(node, role);
        if !is_new {
            return Entrance::Again;
        }
        // A peer that was let in and is refused again later is news.
        self.refusals.remove(&node);
        base.tell(Event::PeerUp { node, role });
        Entrance::New
    }

    /// Notes a refusal, reports it unless it was reported before, and lets the connection end.
    fn refuse(&mut self, base: &mut Base, node: NodeId, refusal: Refusal) {
        let Some(peer) = base.peers.get_mut(&node) else {
            return;
        };
        let was_up = peer.is_welcome();
        let was_refused = peer.hello == peers::Hello::Refused;
        // The peer closes the connection itself once it has read this node's hello; the deadline is for those that do not.
        peer.hello = peers::Hello::Refused;
        base.swarm.behaviour_mut().gossip.close(peer_id(&node));
        // Once: a peer that is refused again and again, over one connection, would stay for ever.
        if !was_refused {
            peer.deadline = Some(Instant::now() + REFUSAL_PATIENCE);
        }
        let address = peer
            .connections
            .first()
            .map(|connection| connection.address.to_string())
            .unwrap_or_default();
        if was_up {
            base.shared.roster.remove(&node);
            base.tell(Event::PeerDown { node });
        }
        if self.note_refusal(node, &refusal, Instant::now()) {
            base.tell(Event::Refused {
                node: Some(node),
                address,
                refusal,
            });
        }
    }

    /// Says why a peer was refused when it was last here.
    pub(super) fn why_refused(&self, node: &NodeId) -> Option<String> {
        self.refusals
            .get(node)
            .map(|(refusal, _)| refusal.to_string())
    }

    /// Remembers a refusal. Tells whether it is news.
    fn note_refusal(&mut self, node: NodeId, refusal: &Refusal, now: Instant) -> bool {
        let is_known = |(told, at): &(Refusal, Instant)| {
            let is_recent = now.saturating_duration_since(*at) < TELL_AGAIN;
            same_cause(told, refusal) || is_recent && same_kind(told, refusal)
        };
        if self.refusals.get(&node).is_some_and(is_known) {
            return false;
        }
        if self.refusals.len() >= MAX_REFUSALS {
            // Whichever it is: forgotten too early, a refusal is only told twice.
            self.refusals.pop_first();
        }
        self.refusals.insert(node, (refusal.clone(), now));
        true
    }
}

/// Returns why the proof of a peer is not that of a member of this federation.
fn refusal_of_proof(base: &Base, node: NodeId, proof: Option<Proof>) -> Option<Refusal> {
    match (&base.config.members, proof) {
        (None, None) => None,
        (None, Some(_)) => Some(Refusal::Closed),
        (Some(book), proof) => {
            let expected = Proof::make(book.organiser(), node, base.own);
            let is_good = proof.is_some_and(|proof| proof.is(expected));
            (!is_good).then_some(Refusal::Stranger)
        }
    }
}

fn own_proof(base: &Base, verifier: NodeId) -> Option<Proof> {
    let book = base.config.members.as_ref()?;
    Some(Proof::make(book.organiser(), base.own, verifier))
}

fn own_certificate(base: &Base) -> Option<SignedStatement> {
    base.config.members.as_ref()?.proof_of(&base.own)
}

/// Takes the certificate that a peer shows, and returns what the peer may be. Without an organiser nobody needs one.
fn membership(
    base: &Base,
    node: NodeId,
    certificate: Option<&SignedStatement>,
) -> Result<Option<Role>, Absence> {
    let Some(book) = &base.config.members else {
        return Ok(None);
    };
    // One that was not signed by the organiser changes nothing, and the book then has none of this node.
    if let Some(Err(error)) = certificate.map(|signed| book.take(signed)) {
        tracing::debug!(%node, %error, "a certificate was refused");
    }
    book.role(&node, crate::clock::now()).map(Some)
}

/// Checks that a peer has greeted, is a member, and is what its certificate says.
fn entitled(base: &Base, node: NodeId, hello: &Hello) -> Result<(), Absence> {
    if base.peers.get(&node).is_none_or(|peer| !peer.has_greeted) {
        return Err(Absence::Unknown);
    }
    match membership(base, node, hello.certificate.as_ref())? {
        Some(role) if role != hello.role => Err(Absence::Role),
        _ => Ok(()),
    }
}

fn own_hello(base: &Base) -> Hello {
    Hello {
        protocol: PROTOCOL_VERSION,
        software: base.config.software.clone(),
        role: base.config.role,
        federation: base.config.federation,
        spec: base.config.spec.entries(),
        clock: crate::clock::now(),
        certificate: own_certificate(base),
    }
}

/// Tells whether two refusals have the same cause. The seconds of a wrong clock change all the time, so they do not count.
fn same_cause(told: &Refusal, refusal: &Refusal) -> bool {
    matches!((told, refusal), (Refusal::Clock(_), Refusal::Clock(_))) || told == refusal
}

fn same_kind(told: &Refusal, refusal: &Refusal) -> bool {
    std::mem::discriminant(told) == std::mem::discriminant(refusal)
}

/// Shortens a peer's texts and removes control characters, because they end up in logs and refusals.
fn tidy(mut hello: Hello) -> Hello {
    hello.software = shown(&hello.software);
    for entry in &mut hello.spec {
        entry.key = shown(&entry.key);
        entry.value = shown(&entry.value);
    }
    hello
}

fn shown(text: &str) -> String {
    text.chars()
        .filter(|letter| !letter.is_control())
        .take(MAX_SHOWN)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each greeting can name another version, and each hello another value of a setting.
    #[test]
    fn what_a_refused_peer_says_anew_is_no_news_for_a_while() {
        let mut reception = Reception::default();
        let node = NodeId::from_bytes([1; 32]);
        let start = Instant::now();
        let mut news = |theirs: u32, seconds: u64| {
            let refusal = Refusal::Protocol { ours: 1, theirs };
            let now = start + Duration::from_secs(seconds);
            reception.note_refusal(node, &refusal, now)
        };
        assert!(news(2, 0));
        assert!((3..100).all(|theirs| !news(theirs, 1)));
        assert!(news(3, 61), "it has been updated, to another wrong version");
        assert!(!news(3, 999), "the same");
    }

    #[test]
    fn a_peers_words_cannot_steer_a_terminal() {
        assert_eq!(shown("a\u{1b}[31mb\nc"), "a[31mbc");
        assert_eq!(shown(&"x".repeat(9999)).len(), MAX_SHOWN);
    }
}
