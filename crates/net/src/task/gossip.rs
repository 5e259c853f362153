//! Gossip: adverts that this node publishes, adverts that it receives, and the verdict on forwarding them.
//!
//! ```text
//!   gossip ─► welcome peer? size? ─► gate (thread) ─► book: fresh? ─► application queue has room? ─► accept, forward
//!                 │ ignore / reject      │ objection      │ ignore          │ ignore: sync offers it again
//! ```
//!
//! An accepted advert goes to the application at once and is forwarded a moment later.
//!
//! In a large federation each author has a topic of its own for what is not for everybody. A follower subscribes to it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use fednode_core::{Advert, Body, NodeId, Round, SignedAdvert};
use libp2p::PeerId;
use libp2p::gossipsub::{
    self, Event as GossipEvent, MessageAcceptance, MessageId, PublishError as GossipError,
    TopicHash,
};
use rand::Rng;

use super::adverts::{Admission, Adverts};
use super::base::Base;
use super::finding::Finding;
use super::peers::Peer;
use crate::behaviour::Topics;
use crate::codec;
use crate::gate::{Candidate, MAX_SIGNED_BYTES, Objection, Origin};
use crate::handle::PublishError;
use crate::identity::node_id;

/// Adverts kept that were published before any peer subscribed. The first subscriber gets them; sync would be later.
const MAX_UNHEARD: usize = 16;
/// How long an accepted advert waits on average before it is forwarded.
///
/// Every node that received it from its author announces that to the others at once, and those need not send it again. In
/// a full mesh of five, forwarding at once multiplies the bytes by almost four. A hop in a large federation takes this
/// much longer, which rounds of seconds do not notice.
const FORWARD_DELAY: Duration = Duration::from_millis(150);
/// Adverts that wait to be forwarded. Beyond that the oldest is forwarded at once.
const MAX_FORWARDS: usize = 1024;

/// The adverts on their way into gossip.
#[derive(Debug)]
pub(super) struct Gossip {
    topics: Topics,
    /// Own adverts that had no subscriber yet.
    unheard: VecDeque<(TopicHash, Vec<u8>)>,
    /// Accepted adverts that wait to be forwarded, with time and source.
    forwards: VecDeque<(Instant, MessageId, PeerId)>,
}

impl Gossip {
    pub(super) fn new(topics: Topics) -> Self {
        Self {
            topics,
            unheard: VecDeque::new(),
            forwards: VecDeque::new(),
        }
    }

    /// Makes an advert and gossips it.
    pub(super) fn publish(
        &mut self,
        base: &mut Base,
        adverts: &mut Adverts,
        round: Round,
        body: Body,
    ) -> Result<(Advert, SignedAdvert), PublishError> {
        let (advert, signed) = adverts.make(base, round, body)?;
        let topic = self
            .topics
            .of_advert(&adverts.broadcast_set, &advert)
            .hash();
        self.send(base, topic, codec::encode(&signed));
        Ok((advert, signed))
    }

    /// Hands an encoded advert to gossip. Without a subscriber the advert waits for the first one.
    fn send(&mut self, base: &mut Base, topic: TopicHash, message: Vec<u8>) {
        match base
            .swarm
            .behaviour_mut()
            .gossip
            .inner
            .publish(topic.clone(), message.clone())
        {
            Ok(_) => {}
            // Such a message is not marked as published, so the same bytes can be tried again.
            Err(GossipError::NoPeersSubscribedToTopic) => {
                self.unheard.push_back((topic, message));
                if self.unheard.len() > MAX_UNHEARD {
                    self.unheard.pop_front();
                }
            }
            // The queues are full: sync will bring the advert.
            Err(error) => tracing::debug!(%error, "not gossiped"),
        }
    }

    /// Gossips the adverts that had no subscriber.
    fn send_unheard(&mut self, base: &mut Base) {
        for (topic, message) in std::mem::take(&mut self.unheard) {
            self.send(base, topic, message);
        }
    }

    /// Subscribes to the topics of authors that are followed from now on.
    pub(super) fn subscribe(&self, base: &mut Base, authors: &[NodeId]) {
        for author in authors {
            let topic = self.topics.of_author(author);
            if let Err(error) = base.swarm.behaviour_mut().gossip.inner.subscribe(&topic) {
                tracing::debug!(%author, %error, "not followed on gossip: sync only");
            }
        }
    }

    /// Unsubscribes from the topics of authors that are no longer followed.
    pub(super) fn unsubscribe(&self, base: &mut Base, authors: &[NodeId]) {
        for author in authors {
            let topic = self.topics.of_author(author);
            base.swarm.behaviour_mut().gossip.inner.unsubscribe(&topic);
        }
    }

    /// Unsubscribes from the topics of the federation, so that peers drop this node from their meshes at once.
    pub(super) fn leave(&self, base: &mut Base) {
        for topic in self.topics.common() {
            base.swarm.behaviour_mut().gossip.inner.unsubscribe(topic);
        }
    }

    pub(super) fn on_event(
        &mut self,
        base: &mut Base,
        adverts: &mut Adverts,
        event: GossipEvent,
    ) -> Option<Finding> {
        match event {
            GossipEvent::Message {
                propagation_source,
                message_id,
                message,
            } => return on_message(base, adverts, propagation_source, message_id, message),
            GossipEvent::SlowPeer {
                peer_id,
                failed_messages,
            } => {
                tracing::debug!(peer = %peer_id, ?failed_messages, "a peer does not keep up with gossip");
            }
            GossipEvent::GossipsubNotSupported { peer_id } => {
                tracing::debug!(peer = %peer_id, "a peer without gossip: sync only");
            }
            // The first subscriber may be the only peer; without this, the first adverts would wait for a sync.
            GossipEvent::Subscribed { .. } => self.send_unheard(base),
            GossipEvent::Unsubscribed { .. } => {}
        }
        None
    }

    /// Takes an advert that comes back from the gate.
    pub(super) fn on_checked(
        &mut self,
        base: &mut Base,
        adverts: &mut Adverts,
        origin: Origin,
        outcome: Result<(SignedAdvert, Advert), Objection>,
    ) -> Option<Finding> {
        leave_gate(base, &origin.source);
        match outcome {
            // The signature covers no topic, so whoever passes an advert on answers for it.
            Ok((_, advert)) if origin.topic != self.topic_of(adverts, &advert) => reject(
                base,
                &origin,
                "passed on an advert on the wrong topic".to_owned(),
            ),
            Ok((signed, advert)) => {
                match adverts.admit(base, signed, advert) {
                    Admission::Admitted | Admission::Proof => self.forward_later(base, origin),
                    Admission::Ignored => ignore(base, &origin),
                    Admission::NoRoom => {
                        adverts.note_crowded();
                        ignore(base, &origin);
                    }
                }
                None
            }
            Err(Objection::Late(late)) => {
                adverts.hear_late(base, *late);
                ignore(base, &origin);
                None
            }
            Err(objection) if objection.is_innocent() => {
                tracing::debug!(source = %origin.source, %objection, "an advert was ignored");
                base.note_refused(&objection);
                ignore(base, &origin);
                None
            }
            Err(objection) => reject(
                base,
                &origin,
                format!("passed on a false advert: {objection}"),
            ),
        }
    }

    fn topic_of(&self, adverts: &Adverts, advert: &Advert) -> TopicHash {
        self.topics.of_advert(&adverts.broadcast_set, advert).hash()
    }

    /// Accepts an advert for forwarding after a moment. In that moment most peers announce that they have it.
    fn forward_later(&mut self, base: &mut Base, origin: Origin) {
        // With jitter: nodes that received the advert together would otherwise forward it together.
        let due = Instant::now() + FORWARD_DELAY.mul_f64(base.rng.random_range(0.5..1.5));
        self.forwards.push_back((due, origin.id, origin.source));
        if self.forwards.len() > MAX_FORWARDS
            && let Some((_, id, source)) = self.forwards.pop_front()
        {
            verdict(base, &id, &source, MessageAcceptance::Accept);
        }
    }

    /// Forwards the adverts that have waited long enough.
    pub(super) fn forward_due(&mut self, base: &mut Base, now: Instant) {
        // All are looked at, because jitter makes their order another than that of their times.
        for (due, id, source) in std::mem::take(&mut self.forwards) {
            if due <= now {
                verdict(base, &id, &source, MessageAcceptance::Accept);
            } else {
                self.forwards.push_back((due, id, source));
            }
        }
    }
}

fn on_message(
    base: &mut Base,
    adverts: &mut Adverts,
    source: PeerId,
    id: MessageId,
    message: gossipsub::Message,
) -> Option<Finding> {
    let origin = Origin {
        id,
        source,
        topic: message.topic,
    };
    let peer = node_id(&source).and_then(|node| base.peers.welcome_mut(&node));
    let Some(peer) = peer else {
        ignore(base, &origin);
        return None;
    };
    // Before anything is refused: also a bad message shows that the stream of gossip works.
    peer.sync.gossip_is_alive();
    if peer.floods(Instant::now()) {
        ignore(base, &origin);
        return node_id(&source).map(Finding::Flood);
    }
    // By size before it takes room at the gate: the transport's limit is twice as large (see `behaviour`).
    if message.data.len() > MAX_SIGNED_BYTES {
        return reject(base, &origin, "passed on an oversized advert".to_owned());
    }
    // Only now: whoever is refused above has taken no place.
    let may_enter = enter_gate(base, &origin.source);
    let (id, source) = (origin.id.clone(), origin.source);
    let candidate = Candidate::Gossip {
        origin,
        bytes: message.data,
    };
    // A full gate means "ignore", not "reject": the sender did nothing wrong, and sync offers the advert again.
    if !may_enter || adverts.gate.try_send(candidate).is_err() {
        if may_enter {
            leave_gate(base, &source);
        }
        adverts.note_crowded();
        verdict(base, &id, &source, MessageAcceptance::Ignore);
    }
    None
}

/// Takes a place at the gate for an advert of a peer.
fn enter_gate(base: &mut Base, source: &PeerId) -> bool {
    let peer = node_id(source).and_then(|node| base.peers.get_mut(&node));
    peer.is_some_and(Peer::enter_gate)
}

/// Gives back the place that a peer's advert had at the gate.
fn leave_gate(base: &mut Base, source: &PeerId) {
    if let Some(peer) = node_id(source).and_then(|node| base.peers.get_mut(&node)) {
        peer.leave_gate();
    }
}

/// Stops a message here, at no cost to anybody's standing.
fn ignore(base: &mut Base, origin: &Origin) {
    verdict(base, &origin.id, &origin.source, MessageAcceptance::Ignore);
}

/// Stops a message here and blames the peer that passed it on: an honest one would have stopped it too.
fn reject(base: &mut Base, origin: &Origin, reason: String) -> Option<Finding> {
    verdict(base, &origin.id, &origin.source, MessageAcceptance::Reject);
    Some(Finding::Fault(node_id(&origin.source)?, reason))
}

/// Tells gossip what becomes of a message. Until then gossip does not forward it.
pub(super) fn verdict(
    base: &mut Base,
    id: &MessageId,
    source: &PeerId,
    acceptance: MessageAcceptance,
) {
    base.swarm
        .behaviour_mut()
        .gossip
        .inner
        .report_message_validation_result(id, source, acceptance);
}
