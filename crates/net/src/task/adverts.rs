//! The adverts of this node: which it has, which it wants, and those it makes itself.
//!
//! Gossip and sync bring adverts in different ways, and both end here. So an advert is new only once, whatever way it took,
//! and an own one is in the book before it is sent.

use std::collections::BTreeSet;
use std::sync::Arc;

use fednode_core::{
    ADVERT_LIFE, Advert, Body, BroadcastSet, MAX_ADVERT_BYTES, NodeId, Round, Sequence,
    SignedAdvert,
};
use tokio::sync::mpsc;

use super::base::Base;
use crate::book::{Book, Verdict};
use crate::codec;
use crate::event::Event;
use crate::gate::Candidate;
use crate::handle::PublishError;
use crate::wire::MAX_FOLLOWED;

/// The result for an advert that passed the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    /// It is new and went to the application.
    Admitted,
    /// It is known, is this node's own, or there is no room for it now.
    Ignored,
}

/// The adverts that are known, and what decides about new ones.
#[derive(Debug)]
pub(super) struct Adverts {
    pub(super) broadcast_set: BroadcastSet,
    /// The authors outside the broadcast set whose adverts this node wants.
    pub(super) follows: BTreeSet<NodeId>,
    pub(super) book: Book,
    /// Checks signatures and bounds on a thread. What comes from a peer goes there first.
    pub(super) gate: mpsc::Sender<Candidate>,
    /// The counter of the next advert of this incarnation.
    counter: u64,
}

/// A change of the authors that this node follows.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) dropped: Vec<NodeId>,
    pub(super) new: Vec<NodeId>,
}

impl Adverts {
    pub(super) fn new(
        broadcast_set: BroadcastSet,
        book: Book,
        gate: mpsc::Sender<Candidate>,
    ) -> Self {
        Self {
            broadcast_set,
            follows: BTreeSet::new(),
            book,
            gate,
            counter: 1,
        }
    }

    /// Stamps, signs and remembers an advert of this node.
    pub(super) fn make(
        &mut self,
        base: &Base,
        round: Round,
        body: Body,
    ) -> Result<(Advert, SignedAdvert), PublishError> {
        let now = crate::clock::now();
        let sequence = Sequence {
            incarnation: base.config.incarnation,
            counter: self.counter,
        };
        let (federation, author) = (base.config.federation, base.own);
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
        advert.check(&base.config.spec, federation, now)?;
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
            signature: base.identity.sign_advert(&payload),
            payload,
        };
        // The counter grows only now: a gap in the sequence would look like a lost advert to sync.
        self.counter += 1;
        self.book.insert(Arc::new(signed.clone()), &advert, now);
        Ok((advert, signed))
    }

    /// Admits an advert that passed the gate, if it is new and the application has room for it.
    pub(super) fn admit(
        &mut self,
        base: &mut Base,
        signed: SignedAdvert,
        advert: Advert,
    ) -> Admission {
        if advert.author == base.own {
            // A later incarnation of the own key is another process that was started after this one.
            if advert.sequence.incarnation > base.config.incarnation {
                base.tell(Event::Superseded);
            }
            return Admission::Ignored;
        }
        // A peer may still send what this node has just stopped following.
        if !self.is_for_everybody(&advert) && !self.follows.contains(&advert.author) {
            return Admission::Ignored;
        }
        let verdict = self
            .book
            .judge(&advert.author, advert.sequence, advert.round);
        if verdict != Verdict::Fresh
            || base.standing.is_banned(&advert.author)
            || !base.outbox.has_room()
        {
            tracing::trace!(author = %advert.author, ?verdict, "an advert was not admitted");
            return Admission::Ignored;
        }
        // Into the book only once there is room: an advert that is marked as known is never offered again.
        self.book
            .insert(Arc::new(signed.clone()), &advert, crate::clock::now());
        tracing::debug!(author = %advert.author, kind = advert.body.kind(), round = %advert.round, "advert");
        base.tell(Event::Advert { signed, advert });
        Admission::Admitted
    }

    /// Tells whether an advert is for all nodes and not only for followers of its author.
    pub(super) fn is_for_everybody(&self, advert: &Advert) -> bool {
        self.broadcast_set
            .is_for_everybody(advert.author, advert.round, &advert.body)
    }

    /// Follows these nodes and no others.
    pub(super) fn follow(&mut self, own: NodeId, nodes: Vec<NodeId>) -> Change {
        let wanted: BTreeSet<NodeId> = nodes
            .into_iter()
            .filter(|node| *node != own)
            .take(MAX_FOLLOWED)
            .collect();
        let change = Change {
            dropped: self.follows.difference(&wanted).copied().collect(),
            new: wanted.difference(&self.follows).copied().collect(),
        };
        self.follows = wanted;
        change
    }
}
