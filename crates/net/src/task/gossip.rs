//! Say: adverts out, adverts in, and the verdict that decides whether they go on.
//!
//! ```text
//!   gossip ─► welcome peer? size? ─► gate (thread) ─► book: fresh? ─► application queue has room? ─► accept, forward
//!                 │ ignore / reject      │ objection      │ ignore          │ ignore: sync offers it again
//! ```
//!
//! An accepted advert is told to the application at once and forwarded a moment later.

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

/// Adverts that were said before anybody listened, kept for the first who does; sync would bring them later.
const MAX_UNHEARD: usize = 16;
/// How long an accepted advert waits on average before it is forwarded. Everybody who got it from its author tells the
/// others so at once, and those need not get it again: in a full mesh of five, forwarding at once multiplies the bytes
/// by almost four. A hop in a large federation takes this much longer, which rounds of seconds do not notice.
const FORWARD_DELAY: Duration = Duration::from_millis(150);
/// Adverts that wait to be forwarded; beyond that the oldest goes at once.
const MAX_FORWARDS: usize = 1024;

/// What became of a good advert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    /// It is new and was told to the application.
    Admitted,
    /// It was heard before, is our own, or there is no room for it now.
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
        self.counter += 1;
        self.book.insert(Arc::new(signed.clone()), &advert, now);
        let topic = self.topics.of_advert(&self.audience, &advert).hash();
        self.gossip(topic, codec::encode(&signed));
        Ok((advert, signed))
    }

    /// Hands an encoded advert to gossip; what nobody listens to yet waits for the first who does.
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
            // Queues are full: sync brings it.
            Err(error) => tracing::debug!(%error, "not gossiped"),
        }
    }

    /// Gossips what nobody listened to.
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

    /// Takes an advert that passed the gate, if it is new and the application has room for it.
    pub(super) fn admit(&mut self, signed: SignedAdvert, advert: Advert) -> Admission {
        if advert.author == self.own {
            if advert.sequence.incarnation > self.config.incarnation {
                self.tell(Event::Superseded);
            }
            return Admission::Ignored;
        }
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
        self.book
            .insert(Arc::new(signed.clone()), &advert, crate::clock::now());
        tracing::debug!(author = %advert.author, kind = advert.body.kind(), round = %advert.round, "advert");
        self.tell(Event::Advert { signed, advert });
        Admission::Admitted
    }

    /// Accepts an advert for forwarding after a moment, in which most peers say that they have it already.
    fn forward_later(&mut self, id: MessageId, source: PeerId) {
        let due = Instant::now() + FORWARD_DELAY.mul_f64(self.rng.random_range(0.5..1.5));
        self.forwards.push_back((due, id, source));
        if self.forwards.len() > MAX_FORWARDS
            && let Some((_, id, source)) = self.forwards.pop_front()
        {
            self.verdict(&id, &source, MessageAcceptance::Accept);
        }
    }

    /// Forwards what has waited long enough.
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
