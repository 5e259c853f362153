//! The adverts of this node: which it has, which it wants, and those it makes itself.
//!
//! Gossip and sync bring adverts in different ways, and both end here. So an advert is new only once, whatever way it took,
//! and an own one is in the book before it is sent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fednode_core::{
    ADVERT_LIFE, Advert, AdvertId, Body, BroadcastSet, MAX_ADVERT_BYTES, NodeId, Round, Sequence,
    SignedAdvert, Timestamp,
};
use tokio::sync::mpsc;

use super::base::Base;
use crate::book::{Book, Verdict};
use crate::codec;
use crate::event::Event;
use crate::gate::Candidate;
use crate::handle::{PublishError, Wanted};
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
    /// It is known, is this node's own, or is not wanted from its author.
    Ignored,
    /// It would be admitted, and the application has no room for it now.
    NoRoom,
}

/// The adverts that are known, and what decides about new ones.
#[derive(Debug)]
pub(super) struct Adverts {
    pub(super) broadcast_set: BroadcastSet,
    /// The authors outside the broadcast set whose adverts this node wants.
    pub(super) follows: BTreeSet<NodeId>,
    pub(super) book: Book,
    /// Adverts that the application asked for by name.
    wanted: BTreeMap<AdvertId, Wish>,
    /// Checks signatures and bounds on a thread. What comes from a peer goes there first.
    pub(super) gate: mpsc::Sender<Candidate>,
    /// When gossip brought something last for which there was no room. Sync brings it again, and its author is not to blame.
    crowded: Option<Timestamp>,
    /// The counter of the next advert of this incarnation.
    counter: u64,
}

/// An advert that was asked for by name.
#[derive(Debug, Clone, Copy)]
struct Wish {
    author: NodeId,
    /// Who has named it.
    named_by: NodeId,
    /// Until when it is wanted.
    until: Instant,
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
            crowded: None,
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
        // Before the book judges it: to the window the second advert under a number is a duplicate of the first.
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
        let is_fine =
            verdict == Verdict::Fresh && (is_closing || !base.standing.is_banned(&advert.author));
        if !is_fine || !base.outbox.has_room() {
            tracing::trace!(author = %advert.author, ?verdict, is_wanted, "an advert was not admitted");
            if is_wanted {
                base.tell(Event::Advert { signed, advert });
            }
            return if is_fine {
                Admission::NoRoom
            } else {
                Admission::Ignored
            };
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
        // What this incarnation says is in the book since `make`. Once it has said anything, the earlier ones are stale there.
        let is_forgotten = said < own && verdict == Verdict::Fresh && base.outbox.has_room();
        if is_forgotten {
            // Otherwise every further copy of it would be news again, and sync would ask each peer for it.
            let known = Arc::new(signed.clone());
            self.book.insert(known, advert, crate::clock::now());
        }
        is_forgotten
    }

    /// Wants these adverts, whatever was heard of their authors.
    ///
    /// A request names no more than [`MAX_WANTED`], so what is beyond would wait here without ever being asked for. If there is
    /// no room, whoever named most gives way: a closing may name members that there are not.
    pub(super) fn want(&mut self, adverts: &[Wanted]) {
        let now = Instant::now();
        self.wanted.retain(|_, wish| wish.until > now);
        for wanted in adverts {
            if self.wanted.len() >= MAX_WANTED
                && !self.wanted.contains_key(&wanted.advert)
                && !self.make_room(wanted.named_by)
            {
                continue;
            }
            let wish = Wish {
                author: wanted.author,
                named_by: wanted.named_by,
                until: now + WANTED_FOR,
            };
            self.wanted.insert(wanted.advert, wish);
        }
    }

    /// Forgets one of what was named by whoever named most, if that is more than this one. Returns whether it did.
    fn make_room(&mut self, named_by: NodeId) -> bool {
        let mut named: BTreeMap<NodeId, usize> = BTreeMap::new();
        for wish in self.wanted.values() {
            *named.entry(wish.named_by).or_default() += 1;
        }
        let own = named.get(&named_by).copied().unwrap_or_default();
        let Some((greedy, most)) = named.into_iter().max_by_key(|(_, n)| *n) else {
            return false;
        };
        let is_its = |(_, wish): &(&AdvertId, &Wish)| wish.named_by == greedy;
        let gives_way = self.wanted.iter().find(is_its).map(|(id, _)| *id);
        // Of equals nobody gives way, or two would drive out each other's for ever.
        most > own + 1 && gives_way.is_some_and(|id| self.wanted.remove(&id).is_some())
    }

    /// Visits the adverts that are wanted by name, with their authors.
    pub(super) fn wanted(&self) -> impl Iterator<Item = (NodeId, AdvertId)> + '_ {
        let now = Instant::now();
        let wanted = self.wanted.iter().filter(move |(_, wish)| wish.until > now);
        wanted.map(|(advert, wish)| (wish.author, *advert))
    }

    /// Gossip brought something for which there is no room here.
    pub(super) fn note_crowded(&mut self) {
        self.crowded = Some(crate::clock::now());
    }

    /// Tells whether gossip may have brought an advert of this time when there was no room for it.
    pub(super) fn was_crowded_after(&self, issued: Timestamp) -> bool {
        self.crowded.is_some_and(|crowded| issued <= crowded)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A closing may name members that there are not, and whoever made it has no such adverts.
    #[test]
    fn who_names_much_leaves_room_for_what_others_name() {
        let spec = fednode_core::FederationSpec::default();
        let gate = mpsc::channel(1).0;
        let mut adverts = Adverts::new(BroadcastSet::of(&spec), Book::default(), gate);
        let [liar, honest] = [1, 2].map(|byte| NodeId::from_bytes([byte; 32]));
        let named = |named_by, numbers: std::ops::Range<u32>| -> Vec<Wanted> {
            let wanted = |n: u32| Wanted {
                advert: AdvertId::of(&n.to_be_bytes()),
                author: honest,
                named_by,
            };
            numbers.map(wanted).collect()
        };
        adverts.want(&named(liar, 0..2_000));
        assert_eq!(adverts.wanted().count(), MAX_WANTED);
        adverts.want(&named(honest, 5_000..5_100));
        let wanted: BTreeSet<AdvertId> = adverts.wanted().map(|(_, id)| id).collect();
        let is_wanted = |it: &Wanted| wanted.contains(&it.advert);
        assert!(named(honest, 5_000..5_100).iter().all(is_wanted));
        assert_eq!(wanted.len(), MAX_WANTED);
        // Neither has more than half, whoever asks last.
        adverts.want(&named(honest, 6_000..8_000));
        let left = adverts.wanted().filter(|(_, id)| {
            let is_it = |it: &Wanted| it.advert == *id;
            named(liar, 0..2_000).iter().any(is_it)
        });
        assert!(left.count() >= MAX_WANTED / 2 - 1);
    }
}
