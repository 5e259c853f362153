//! Gossip: adverts that this node publishes, adverts that it receives, and the verdict on forwarding them.
//!
//! ```text
//!   gossip ─► welcome peer? size? ─► gate (thread) ─► book: fresh? ─► application queue has room? ─► accept, forward
//!                 │ ignore / reject      │ objection      │ ignore          │ ignore: sync offers it again
//! ```
//!
//! An accepted advert goes to the application at once and is forwarded a moment later.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fednode_core::{
    ADVERT_LIFE, Advert, Body, MAX_ADVERT_BYTES, NodeId, Round, Sequence, SignedAdvert,
};
use libp2p::PeerId;
use libp2p::gossipsub::{
    self, Event as GossipEvent, MessageAcceptance, MessageId, PublishError as GossipError,
    TopicHash,
};
use rand::Rng;

use super::Task;
use crate::book::Verdict;
use crate::codec;
use crate::event::Event;
use crate::gate::{Candidate, Checked, MAX_SIGNED_BYTES, Objection};
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

/// The result for an advert that passed the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    /// It is new and went to the application.
    Admitted,
    /// It is known, is this node's own, or there is no room for it now.
    Ignored,
}

impl Task {
    /// Stamps, signs, remembers and gossips.
    pub(super) fn publish(
        &mut self,
        round: Round,
        body: Body,
    ) -> Result<(Advert, SignedAdvert), PublishError> {
        let now = crate::clock::now();
        let sequence = Sequence {
            incarnation: self.config.incarnation,
            counter: self.counter,
        };
        let (federation, author) = (self.config.federation, self.own);
        let advert = Advert {
            federation,
            author,
            sequence,
            round,
            issued_at: now,
            expires_at: now + ADVERT_LIFE,
            body,
        };
        // The checks of every receiver, before anything is signed: a refused advert would cost this node its standing.
        advert.check(&self.config.spec, federation, now)?;
        if self.book.judge(&author, sequence, round) == Verdict::TooFast {
            return Err(PublishError::TooMany(round));
        }
        let payload = codec::encode(&advert);
        if payload.len() > MAX_ADVERT_BYTES {
            return Err(PublishError::TooLarge {
                size: payload.len(),
                limit: MAX_ADVERT_BYTES,
            });
        }
        let signed = SignedAdvert {
            signature: self.identity.sign_advert(&payload),
            payload,
        };
        // The counter grows only now: a gap in the sequence would look like a lost advert to sync.
        self.counter += 1;
        self.book.insert(Arc::new(signed.clone()), &advert, now);
        let topic = self.topics.of_advert(&self.audience, &advert).hash();
        self.gossip(topic, codec::encode(&signed));
        Ok((advert, signed))
    }

    /// Hands an encoded advert to gossip. Without a subscriber the advert waits for the first one.
    fn gossip(&mut self, topic: TopicHash, message: Vec<u8>) {
        match self
            .swarm
            .behaviour_mut()
            .gossip
            .publish(topic.clone(), message.clone())
        {
            Ok(_) => {}
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
    fn gossip_unheard(&mut self) {
        for (topic, message) in std::mem::take(&mut self.unheard) {
            self.gossip(topic, message);
        }
    }

    pub(super) fn on_gossip_event(&mut self, event: GossipEvent) {
        match event {
            GossipEvent::Message {
                propagation_source,
                message_id,
                message,
            } => {
                self.on_gossip(propagation_source, message_id, message);
            }
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
            GossipEvent::Subscribed { .. } => self.gossip_unheard(),
            GossipEvent::Unsubscribed { .. } => {}
        }
    }

    fn on_gossip(&mut self, source: PeerId, id: MessageId, message: gossipsub::Message) {
        let peer = node_id(&source)
            .and_then(|node| self.peers.get_mut(&node))
            .filter(|peer| peer.is_welcome());
        let Some(peer) = peer else {
            return self.verdict(&id, &source, MessageAcceptance::Ignore);
        };
        peer.sync.gossip_is_alive();
        // By size before anything else: the transport's limit is twice as large (see `behaviour`).
        if message.data.len() > MAX_SIGNED_BYTES {
            self.blame_source(&source, "passed on an oversized advert".to_owned());
            return self.verdict(&id, &source, MessageAcceptance::Reject);
        }
        let candidate = Candidate::Gossip {
            id: id.clone(),
            source,
            topic: message.topic,
            bytes: message.data,
        };
        // A full gate means "ignore", not "reject": the sender did nothing wrong, and sync offers the advert again.
        if self.gate.try_send(candidate).is_err() {
            self.verdict(&id, &source, MessageAcceptance::Ignore);
        }
    }

    pub(super) fn on_checked(&mut self, checked: Checked) {
        match checked {
            Checked::Gossip {
                id,
                source,
                topic,
                outcome,
            } => match self.on_checked_gossip(&source, &topic, outcome) {
                MessageAcceptance::Accept => self.forward_later(id, source),
                refused => self.verdict(&id, &source, refused),
            },
            Checked::Sync {
                peer,
                outcomes,
                more,
            } => self.on_checked_sync(peer, outcomes, more),
        }
    }

    fn on_checked_gossip(
        &mut self,
        source: &PeerId,
        topic: &TopicHash,
        outcome: Result<(SignedAdvert, Advert), Objection>,
    ) -> MessageAcceptance {
        match outcome {
            Ok((_, advert)) if *topic != self.topics.of_advert(&self.audience, &advert).hash() => {
                self.blame_source(source, "passed on an advert on the wrong topic".to_owned());
                MessageAcceptance::Reject
            }
            Ok((signed, advert)) => match self.admit(signed, advert) {
                Admission::Admitted => MessageAcceptance::Accept,
                Admission::Ignored => MessageAcceptance::Ignore,
            },
            // `Ignore` stops the advert here and lowers no peer's standing; `Reject` lowers that of its source.
            Err(objection) if objection.is_innocent() => {
                tracing::debug!(%source, %objection, "an advert was ignored");
                MessageAcceptance::Ignore
            }
            Err(objection) => {
                self.blame_source(source, format!("passed on a false advert: {objection}"));
                MessageAcceptance::Reject
            }
        }
    }

    /// Admits an advert that passed the gate, if it is new and the application has room for it.
    pub(super) fn admit(&mut self, signed: SignedAdvert, advert: Advert) -> Admission {
        if advert.author == self.own {
            // A later incarnation of the own key is another process that was started after this one.
            if advert.sequence.incarnation > self.config.incarnation {
                self.tell(Event::Superseded);
            }
            return Admission::Ignored;
        }
        // A peer may still send what this node has just stopped following.
        let is_for_us = self
            .audience
            .is_everybody(advert.author, advert.round, &advert.body);
        if !is_for_us && !self.follows.contains(&advert.author) {
            return Admission::Ignored;
        }
        let verdict = self
            .book
            .judge(&advert.author, advert.sequence, advert.round);
        if verdict != Verdict::Fresh
            || self.standing.is_banned(&advert.author)
            || !self.outbox.has_room()
        {
            tracing::trace!(author = %advert.author, ?verdict, "an advert was not admitted");
            return Admission::Ignored;
        }
        // Into the book only once there is room: an advert that is marked as known is never offered again.
        self.book
            .insert(Arc::new(signed.clone()), &advert, crate::clock::now());
        tracing::debug!(author = %advert.author, kind = advert.body.kind(), round = %advert.round, "advert");
        self.tell(Event::Advert { signed, advert });
        Admission::Admitted
    }

    /// Accepts an advert for forwarding after a moment. In that moment most peers announce that they have it.
    fn forward_later(&mut self, id: MessageId, source: PeerId) {
        // With jitter: nodes that received the advert together would otherwise forward it together.
        let due = Instant::now() + FORWARD_DELAY.mul_f64(self.rng.random_range(0.5..1.5));
        self.forwards.push_back((due, id, source));
        if self.forwards.len() > MAX_FORWARDS
            && let Some((_, id, source)) = self.forwards.pop_front()
        {
            self.verdict(&id, &source, MessageAcceptance::Accept);
        }
    }

    /// Forwards the adverts that have waited long enough.
    pub(super) fn forward_due(&mut self, now: Instant) {
        for (due, id, source) in std::mem::take(&mut self.forwards) {
            if due <= now {
                self.verdict(&id, &source, MessageAcceptance::Accept);
            } else {
                self.forwards.push_back((due, id, source));
            }
        }
    }

    fn blame_source(&mut self, source: &PeerId, reason: String) {
        let node: Option<NodeId> = node_id(source);
        if let Some(node) = node {
            self.strike(node, reason);
        }
    }

    fn verdict(&mut self, id: &MessageId, source: &PeerId, acceptance: MessageAcceptance) {
        self.swarm
            .behaviour_mut()
            .gossip
            .report_message_validation_result(id, source, acceptance);
    }
}
