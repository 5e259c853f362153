//! The adverts of this node: which it has, which it wants, and those it makes itself.
//!
//! Gossip and sync bring adverts in different ways, and both end here. So an advert is new only once, whatever way it took,
//! and an own one is in the book before it is sent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fednode_core::{
    ADVERT_LIFE, Advert, AdvertId, Body, BroadcastSet, MAX_ADVERT_BYTES, NodeId, Round, Sequence,
    SignedAdvert,
};
use tokio::sync::mpsc;

use super::base::Base;
use crate::book::{Book, Verdict};
use crate::codec;
use crate::event::Event;
use crate::gate::Candidate;
use crate::handle::PublishError;
use crate::wire::{MAX_FOLLOWED, MAX_WANTED};

/// How long an advert is wanted that was asked for by name. The application asks again if it still needs it.
const WANTED_FOR: Duration = Duration::from_secs(30);

/// The result for an advert that passed the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    /// It is new and went to the application.
    Admitted,
    /// It and another one prove that its author signed two under one number: others must see it, too.
    Proof,
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
    /// Adverts that the application asked for by name, with their authors, and until when they are wanted.
    wanted: BTreeMap<AdvertId, (NodeId, Instant)>,
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
            wanted: BTreeMap::new(),
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
        let now = base.config.clock.now();
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
        // What was asked for by name is wanted also if it is old, or its author's last word.
        let is_wanted = base.outbox.has_room() && self.wanted.remove(&signed.id()).is_some();
        if advert.author == base.own {
            let is_forgotten = self.hear_oneself(base, &signed, &advert);
            if is_wanted || is_forgotten {
                base.tell(Event::Advert { signed, advert });
            }
            return Admission::Ignored;
        }
        if self.book.proves_equivocation(&advert, &signed) {
            tracing::warn!(author = %advert.author, "a node signed two adverts under one number");
            base.tell(Event::Equivocated {
                node: advert.author,
            });
            if is_wanted {
                base.tell(Event::Advert { signed, advert });
            }
            return Admission::Proof;
        }
        // A peer may still send what this node has just stopped following.
        if !self.is_for_everybody(&advert) && !self.follows.contains(&advert.author) {
            return Admission::Ignored;
        }
        // A closed round counts for what its members signed: others may follow it already.
        let is_closing = matches!(advert.body, Body::Global(_));
        let verdict = self
            .book
            .judge(&advert.author, advert.sequence, advert.round);
        if verdict != Verdict::Fresh
            || base.standing.is_banned(&advert.author) && !is_closing
            || !base.outbox.has_room()
        {
            tracing::trace!(author = %advert.author, ?verdict, is_wanted, "an advert was not admitted");
            if is_wanted {
                base.tell(Event::Advert { signed, advert });
            }
            return Admission::Ignored;
        }
        // Into the book only once there is room: an advert that is marked as known is never offered again.
        self.book
            .insert(Arc::new(signed.clone()), &advert, crate::clock::now());
        let shared = &base.shared;
        shared.catalogue.note(&advert, &shared.roster);
        tracing::debug!(author = %advert.author, kind = advert.body.kind(), round = %advert.round, "advert");
        base.tell(Event::Advert { signed, advert });
        Admission::Admitted
    }

    /// Takes an advert whose day is over, if it was asked for by name: a closed round counts it, and others can hold it against
    /// that round only if they have it.
    pub(super) fn hear_late(&mut self, base: &mut Base, (signed, advert): (SignedAdvert, Advert)) {
        if !base.outbox.has_room() || self.wanted.remove(&signed.id()).is_none() {
            return;
        }
        if self.book.proves_equivocation(&advert, &signed) {
            let node = advert.author;
            base.tell(Event::Equivocated { node });
        }
        base.tell(Event::Advert { signed, advert });
    }

    /// Takes in what this node itself has said. Tells whether an earlier process of it said something that this one does not
    /// know: it was killed before it wrote that down, or the folder is an older one, from a backup. Others go on from it, as a
    /// closed round can count it, or be announced in it.
    fn hear_oneself(&mut self, base: &mut Base, signed: &SignedAdvert, advert: &Advert) -> bool {
        let (said, own) = (advert.sequence.incarnation, base.config.incarnation);
        // A later incarnation of the own key is another process that was started after this one.
        if said > own {
            base.tell(Event::Superseded);
        }
        let verdict = self
            .book
            .judge(&advert.author, advert.sequence, advert.round);
        let is_forgotten = said < own && verdict == Verdict::Fresh && base.outbox.has_room();
        if is_forgotten {
            let known = Arc::new(signed.clone());
            self.book.insert(known, advert, crate::clock::now());
        }
        is_forgotten
    }

    /// Wants these adverts, whatever was heard of their authors.
    pub(super) fn want(&mut self, adverts: &[(NodeId, AdvertId)]) {
        let now = Instant::now();
        self.wanted.retain(|_, (_, until)| *until > now);
        let room = MAX_WANTED.saturating_sub(self.wanted.len());
        let until = now + WANTED_FOR;
        let wanted = adverts.iter().take(room);
        self.wanted
            .extend(wanted.map(|(author, advert)| (*advert, (*author, until))));
    }

    /// Visits the adverts that are wanted by name, with their authors.
    pub(super) fn wanted(&self) -> impl Iterator<Item = (NodeId, AdvertId)> + '_ {
        let now = Instant::now();
        let wanted = self
            .wanted
            .iter()
            .filter(move |(_, (_, until))| *until > now);
        wanted.map(|(advert, (author, _))| (*author, *advert))
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
