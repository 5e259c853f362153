//! The advert book: which adverts of each author were received.
//!
//! It tells duplicates and keeps adverts for peers that missed them. Pure: adverts come in verified, and time is an
//! argument. Per author the book keeps
//!
//! - the highest [`Sequence`] and a window of the 64 counters up to it. Two topics and the sync protocol reorder
//!   adverts. So one that arrives late but inside the window is accepted, once. Older incarnations are stale;
//! - how many adverts were accepted per round, against floods;
//! - the last adverts themselves.
//!
//! ```text
//!   counter   … 40   41   42   43        newest = 43
//!   seen       1    0    1    1          41 is still welcome; 43 - 64 and below are stale
//! ```
//!
//! Everything is bounded. When there are too many authors, the author that was silent for longest is forgotten. A replay of
//! its unexpired adverts would then be accepted once more. The engine bears that, since adverts are idempotent. Refusing
//! newcomers instead would let a crowd of keys lock honest nodes out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use fednode_core::{
    Advert, AdvertId, Body, BroadcastSet, NodeId, Round, Sequence, SignedAdvert, Timestamp,
};

use crate::bounded::Bounded;
use crate::wire::{Digest, Heard, MAX_DIGEST, MAX_SYNC_ADVERTS};

/// Adverts that one author may publish about one round. A flood beyond that is ignored.
pub const MAX_ADVERTS_PER_ROUND: u8 = 8;
/// Counters below the newest in which a late advert is still accepted.
const WINDOW: u64 = 64;
/// Adverts kept per author for peers that missed them.
const KEPT_PER_AUTHOR: usize = 16;
/// The newest local updates of an author that stay, whatever else it says: closed rounds are held against their members' updates.
const KEPT_UPDATES: usize = 4;
/// Authors remembered: about fifty times the size of a large federation, at some 300 bytes each.
const MAX_AUTHORS: usize = 8192;
/// Bytes of adverts kept in all: a bootstrap node must live in 40 MB.
const MAX_KEPT_BYTES: usize = 12 << 20;
/// Rounds per author in which adverts are counted.
const COUNTED_ROUNDS: usize = 32;
/// Authors of whom the proof is kept that they signed two adverts under one number.
const MAX_PROOFS: usize = 64;
/// How long an advert that has expired is kept after it came. An author can say something shortly before its stamp expires;
/// who counts it by then must be able to show it.
const KEPT_LATE: Duration = Duration::from_secs(3600);
/// Bytes that an advert takes in a reply beyond its own.
const ADVERT_OVERHEAD: usize = 64;

/// The verdict of the book on an advert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is new: accept it.
    Fresh,
    /// It was received before.
    Duplicate,
    /// It is too old to tell whether it was received.
    Stale,
    /// The author has published enough about this round.
    TooFast,
}

/// The adverts received of every author.
#[derive(Debug, Default)]
pub(crate) struct Book {
    authors: BTreeMap<NodeId, Author>,
    /// The broadcast set; all nodes if absent.
    broadcast_set: Option<BroadcastSet>,
    /// Two adverts of one author under one number: they prove that it told some one thing and others another.
    proofs: BTreeMap<NodeId, [Arc<SignedAdvert>; 2]>,
    /// Authors of whom there was such a proof when there was no room for it.
    liars: BTreeSet<NodeId>,
    kept_bytes: usize,
    /// Grows with every insertion, and orders authors by their last advert.
    moment: u64,
}

#[derive(Debug, Default)]
struct Author {
    newest: Sequence,
    seen: u64,
    kept: BTreeMap<Sequence, Kept>,
    rounds: BTreeMap<Round, u8>,
    last_heard: u64,
}

#[derive(Debug)]
struct Kept {
    id: AdvertId,
    signed: Arc<SignedAdvert>,
    expires_at: Timestamp,
    entered_at: Timestamp,
    /// The advert of the next round makes it worthless, unlike a withdrawal or a pool offer.
    fleeting: bool,
    /// It is only for the followers of its author.
    whispered: bool,
}

impl Kept {
    fn bytes(&self) -> usize {
        advert_bytes(&self.signed)
    }
}

/// Returns the bytes that an advert takes in memory or in a reply.
fn advert_bytes(signed: &SignedAdvert) -> usize {
    signed.payload.len() + signed.signature.len() + ADVERT_OVERHEAD
}

impl Book {
    /// Makes an empty book of a federation.
    pub(crate) fn of(broadcast_set: BroadcastSet) -> Self {
        Self {
            broadcast_set: Some(broadcast_set),
            ..Self::default()
        }
    }

    /// Judges an advert without entering it.
    pub(crate) fn judge(&self, author: &NodeId, sequence: Sequence, round: Round) -> Verdict {
        let Some(known) = self.authors.get(author) else {
            return Verdict::Fresh;
        };
        let said = known.rounds.get(&round).copied().unwrap_or_default();
        match known.window(sequence) {
            // Adverts of rounds before the counted ones cannot be counted any more, so none is accepted.
            Verdict::Fresh if said >= MAX_ADVERTS_PER_ROUND || known.is_beyond_count(round) => {
                Verdict::TooFast
            }
            verdict => verdict,
        }
    }

    /// Enters an advert that was judged fresh.
    pub(crate) fn insert(&mut self, signed: Arc<SignedAdvert>, advert: &Advert, now: Timestamp) {
        let fleeting = matches!(advert.body, Body::Local(_));
        let whispered = self
            .broadcast_set
            .is_some_and(|all| !all.is_for_everybody(advert.author, advert.round, &advert.body));
        let kept = Kept {
            id: signed.id(),
            signed,
            expires_at: advert.expires_at,
            entered_at: now,
            fleeting,
            whispered,
        };
        self.kept_bytes += kept.bytes();
        // Mark and count before anything is dropped: that an advert was received outlives its text.
        let author = self.author(advert.author);
        author.mark(advert.sequence);
        author.count(advert.round);
        let replaced = author.kept.insert(advert.sequence, kept);
        let surplus = if author.kept.len() > KEPT_PER_AUTHOR {
            author.drop_least()
        } else {
            0
        };
        self.kept_bytes -= surplus + replaced.map_or(0, |kept| kept.bytes());
        self.enforce_bounds();
    }

    /// Holds an advert against the one that is kept under the same number. Returns whether they differ and no proof of that is
    /// kept of the author; it is kept from now on, while there is room.
    pub(crate) fn proves_equivocation(&mut self, advert: &Advert, signed: &SignedAdvert) -> bool {
        let known = self.authors.get(&advert.author);
        let kept = known.and_then(|author| author.kept.get(&advert.sequence));
        let Some(kept) = kept.filter(|kept| kept.id != signed.id()) else {
            return false;
        };
        let author = advert.author;
        if self.proofs.contains_key(&author) || self.liars.contains(&author) {
            return false;
        }
        if self.proofs.len() < MAX_PROOFS {
            let proof = [Arc::clone(&kept.signed), Arc::new(signed.clone())];
            self.proofs.insert(author, proof);
            return true;
        }
        // Beyond the bound the proof is not kept for others, who find their own. The author's name is, or everything else that it
        // signs under this number would be a proof again, and be passed on by all.
        if self.liars.len() >= MAX_AUTHORS {
            self.liars.pop_first();
        }
        self.liars.insert(author)
    }

    /// Visits the adverts that prove equivocations, for whoever is new.
    pub(crate) fn proofs(&self) -> impl Iterator<Item = &Arc<SignedAdvert>> {
        self.proofs.values().flatten()
    }

    /// Visits the adverts that are kept of an author, oldest first.
    pub(crate) fn all_of(&self, author: &NodeId) -> impl Iterator<Item = &Arc<SignedAdvert>> {
        let known = self.authors.get(author).into_iter();
        known.flat_map(|author| author.kept.values().map(|kept| &kept.signed))
    }

    /// Returns an author's advert by its name, if it is kept.
    pub(crate) fn by_name(&self, author: &NodeId, id: AdvertId) -> Option<&Arc<SignedAdvert>> {
        let kept = &self.authors.get(author)?.kept;
        let found = kept.values().find(|kept| kept.id == id);
        let proof = || self.proofs.get(author)?.iter().find(|said| said.id() == id);
        found.map(|kept| &kept.signed).or_else(proof)
    }

    /// Remembers that an earlier process of this node received `sequence` as the newest advert of an author.
    ///
    /// If the advert itself is not in the book, the earlier ones are unknown and count as received. If it is, the window
    /// that the adverts left is exact and stays: sync has to fill its gaps.
    pub(crate) fn remember(&mut self, author: NodeId, sequence: Sequence) {
        let author = self.author(author);
        let is_unheard_of = author.seen == 0;
        if is_unheard_of || sequence > author.newest {
            (author.newest, author.seen) = (sequence, u64::MAX);
        }
        self.enforce_bounds();
    }

    /// Returns the windows of the authors from `first` on, as many as fit into a digest.
    pub(crate) fn digest(&self, first: NodeId) -> Digest {
        let from_here = self.authors.range(first..);
        let mut heard: Vec<Heard> = from_here
            .take(MAX_DIGEST + 1)
            .map(|(author, known)| Heard {
                author: *author,
                newest: known.newest,
                seen: known.seen,
            })
            .collect();
        // One author more than fits was taken above, to learn whether there are more.
        let complete = heard.len() <= MAX_DIGEST;
        heard.truncate(MAX_DIGEST);
        let end = NodeId::from_bytes([255; 32]);
        let last = if complete {
            end
        } else {
            heard.last().map_or(end, |heard| heard.author)
        };
        Digest {
            first,
            last,
            heard: Bounded::first_of(heard),
        }
    }

    /// Returns the adverts that the sender of a digest lacks, oldest first per author, and whether there are more than fit.
    ///
    /// Adverts outside the broadcast set go only to followers of their author. Adverts entered after `settled` are left out,
    /// because gossip is still bringing them.
    pub(crate) fn lacking(
        &self,
        digest: &Digest,
        follows: &BTreeSet<NodeId>,
        budget: usize,
        now: Timestamp,
        settled: Timestamp,
    ) -> (Vec<Arc<SignedAdvert>>, bool) {
        // A range from a peer may be reversed, and `range` would panic.
        if digest.first > digest.last {
            return (Vec::new(), false);
        }
        let heard: BTreeMap<NodeId, &Heard> = digest
            .heard
            .as_slice()
            .iter()
            .map(|heard| (heard.author, heard))
            .collect();
        let (mut adverts, mut bytes) = (Vec::new(), 0);
        for (author, known) in self.authors.range(digest.first..=digest.last) {
            let lacks =
                |sequence: Sequence| heard.get(author).is_none_or(|heard| lacks(heard, sequence));
            let is_followed = follows.contains(author);
            let is_for = |kept: &Kept| is_followed || !kept.whispered;
            // What was entered in the future was entered by a clock that was set back since.
            let is_settled = |kept: &Kept| kept.entered_at <= settled || kept.entered_at > now;
            let due = |kept: &Kept| kept.expires_at >= now && is_settled(kept) && is_for(kept);
            let missing = known
                .kept
                .iter()
                .filter(|(sequence, kept)| due(kept) && lacks(**sequence));
            for (_, kept) in missing {
                bytes += kept.bytes();
                // The first that does not fit ends the reply: the sender asks for the same range again and misses nothing.
                if bytes > budget || adverts.len() == MAX_SYNC_ADVERTS {
                    return (adverts, true);
                }
                adverts.push(kept.signed.clone());
            }
        }
        (adverts, false)
    }

    /// Drops the text of expired adverts. Their sequence numbers stay known.
    pub(crate) fn prune(&mut self, now: Timestamp) {
        for author in self.authors.values_mut() {
            let expired = |kept: &Kept| kept.expires_at < now && kept.entered_at + KEPT_LATE < now;
            self.kept_bytes -= author
                .kept
                .values()
                .filter(|kept| expired(kept))
                .map(Kept::bytes)
                .sum::<usize>();
            author.kept.retain(|_, kept| !expired(kept));
        }
    }

    fn author(&mut self, author: NodeId) -> &mut Author {
        self.moment += 1;
        let known = self.authors.entry(author).or_default();
        known.last_heard = self.moment;
        known
    }

    fn enforce_bounds(&mut self) {
        if self.authors.len() > MAX_AUTHORS {
            // A key costs nothing, so a crowd of new authors must push out itself before those that speak regularly.
            let quietest = self
                .authors
                .iter()
                .min_by_key(|(_, author)| author.last_heard)
                .map(|(node, _)| *node);
            let forgotten = quietest.and_then(|node| self.authors.remove(&node));
            self.kept_bytes -= forgotten.map_or(0, |author| author.kept_bytes());
        }
        while self.kept_bytes > MAX_KEPT_BYTES {
            // The author that takes most space gives way, so that no author can push out the others.
            let Some(largest) = self
                .authors
                .values_mut()
                .max_by_key(|author| author.kept_bytes())
            else {
                return;
            };
            self.kept_bytes -= largest.drop_least();
        }
    }
}

impl Author {
    fn window(&self, sequence: Sequence) -> Verdict {
        let behind = self.newest.counter.saturating_sub(sequence.counter);
        match sequence.incarnation.cmp(&self.newest.incarnation) {
            std::cmp::Ordering::Less => Verdict::Stale,
            std::cmp::Ordering::Greater => Verdict::Fresh,
            std::cmp::Ordering::Equal if sequence.counter > self.newest.counter => Verdict::Fresh,
            std::cmp::Ordering::Equal if behind >= WINDOW => Verdict::Stale,
            std::cmp::Ordering::Equal if self.seen >> behind & 1 == 1 => Verdict::Duplicate,
            std::cmp::Ordering::Equal => Verdict::Fresh,
        }
    }

    fn mark(&mut self, sequence: Sequence) {
        if sequence.incarnation != self.newest.incarnation {
            // A restart counts from 1 again, so the old window means nothing.
            (self.newest, self.seen) = (sequence, 1);
        } else if sequence.counter > self.newest.counter {
            let ahead = sequence.counter - self.newest.counter;
            self.seen = if ahead >= WINDOW {
                1
            } else {
                self.seen << ahead | 1
            };
            self.newest = sequence;
        } else {
            self.seen |= 1 << (self.newest.counter - sequence.counter).min(WINDOW - 1);
        }
    }

    fn is_beyond_count(&self, round: Round) -> bool {
        // Only once counting has dropped a round: before that, an old round simply was not met yet.
        let oldest = self.rounds.first_key_value().map(|(oldest, _)| *oldest);
        self.rounds.len() >= COUNTED_ROUNDS && oldest.is_some_and(|oldest| round < oldest)
    }

    fn count(&mut self, round: Round) {
        let said = self.rounds.entry(round).or_default();
        *said = said.saturating_add(1);
        if self.rounds.len() > COUNTED_ROUNDS {
            self.rounds.pop_first();
        }
    }

    fn kept_bytes(&self) -> usize {
        self.kept.values().map(Kept::bytes).sum()
    }

    /// Drops the oldest local update, unless it is one of the newest few, or else the oldest advert of another kind. Returns
    /// its bytes.
    fn drop_least(&mut self) -> usize {
        let updates = self.kept.values().filter(|kept| kept.fleeting).count();
        let drops_update = updates > KEPT_UPDATES;
        let mut kept = self.kept.iter();
        let least = kept.find(|(_, kept)| kept.fleeting == drops_update);
        let least = least.or_else(|| self.kept.iter().next());
        let least = least.map(|(sequence, _)| *sequence);
        least
            .and_then(|sequence| self.kept.remove(&sequence))
            .map_or(0, |kept| kept.bytes())
    }
}

/// Tells whether a node with this window lacks an advert and would accept it.
fn lacks(heard: &Heard, sequence: Sequence) -> bool {
    let known = Author {
        newest: heard.newest,
        seen: heard.seen,
        ..Author::default()
    };
    known.window(sequence) == Verdict::Fresh
}

#[cfg(test)]
mod tests;
