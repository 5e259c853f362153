//! Errands: this node fetches a blob for a peer that cannot reach whoever made it, and serves it then like any other.
//!
//! ```text
//!   asker ──bring──► held? ────────────────────────────────► "here"
//!                     │ no
//!                     └► named by an advert, and an owner or holder connected, and room? ──► fetch ──► "later"
//!                                                   │ no ──► "not held"
//! ```
//!
//! The asker comes again. So nothing is waited for, and one transfer serves all who ask. What is fetched is verified by
//! its hash like anything else. The store gives such blobs up first when its quota is used up.
//!
//! An errand that does not move on is ended. So is a large one if others ask and nothing else makes room. What it has
//! stored stays for the next time. An errand never leads to another one, so there is no chain and no circle of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fednode_core::{BlobRef, NodeId};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::fetcher::{Detours, FetchError, Fetched, Fetcher, Request};
use crate::catalogue::Catalogue;
use crate::roster::Roster;
use crate::wire::Answer;

/// Errands at once.
const MAX_ERRANDS: usize = 32;
/// Of these, for one peer: all experts of most.
const MAX_OF_ONE: usize = 8;
/// Bytes of the blobs of all errands at once.
const MAX_BYTES: u64 = 512 << 20;
/// Of these, for one peer, unless nobody else asks for anything.
const MAX_BYTES_OF_ONE: u64 = MAX_BYTES / 4;
/// Time for an errand, beside that for its bytes.
const PATIENCE: Duration = Duration::from_secs(20);
/// Errands of a peer end if none of them brings a segment for so long. Over a slow link they wait for each other.
const STALL: Duration = Duration::from_secs(20);
/// How often it is looked whether an errand moves on.
const LOOK: Duration = Duration::from_secs(1);
/// Bytes per second of the slowest link that an errand is run over.
const SLOWEST: u64 = 64 << 10;
/// After a failure nobody is served with this blob for so long.
const REST: Duration = Duration::from_secs(5);
/// Failures that are remembered.
const MAX_FAILURES: usize = 1024;

/// The errands of this node.
#[derive(Debug)]
pub(crate) struct Errands {
    fetcher: Fetcher,
    catalogue: Arc<Catalogue>,
    roster: Arc<Roster>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    running: HashMap<BlobRef, Errand>,
    failed: HashMap<BlobRef, Instant>,
}

#[derive(Debug)]
struct Errand {
    /// The peer that asked first.
    asker: NodeId,
    /// When it began, or brought the last segment.
    moved: Instant,
    /// Ends it, so that others have room.
    cancel: CancellationToken,
}

/// How an errand ended.
#[derive(Debug)]
enum End {
    Fetched(Result<Fetched, FetchError>),
    Stalled,
    /// It made room and is off the list already.
    Displaced,
}

impl Errands {
    pub(crate) fn new(fetcher: Fetcher, catalogue: Arc<Catalogue>, roster: Arc<Roster>) -> Self {
        Self {
            fetcher,
            catalogue,
            roster,
            state: Mutex::default(),
        }
    }

    /// Begins an errand if that is possible, or says that one is under way.
    ///
    /// Must be called within the runtime.
    pub(super) fn run(self: &Arc<Self>, asker: NodeId, blob: BlobRef) -> Answer {
        let providers = self.providers(asker, &blob);
        let now = Instant::now();
        let mut state = self.state();
        if state.running.contains_key(&blob) {
            return Answer::Later;
        }
        if providers.is_empty() || !state.take_room(asker, blob, now) {
            return Answer::NotHeld;
        }
        let errand = Errand::new(asker, now);
        let cancel = errand.cancel.clone();
        state.running.insert(blob, errand);
        drop(state);
        tracing::debug!(blob = %blob.id.short(), %asker, "fetching a blob for a peer");
        let this = Arc::clone(self);
        self.fetcher.spawn(async move {
            let deadline = PATIENCE + Duration::from_secs(blob.size / SLOWEST);
            let fetched = this.fetcher.fetch(Request {
                blob,
                providers,
                deadline,
                // The asker names no width and no base, so segments come plain.
                packing: None,
                detours: Detours::Never,
            });
            let end = tokio::select! {
                fetched = fetched => End::Fetched(fetched),
                () = this.stalls(&blob) => End::Stalled,
                () = cancel.cancelled() => End::Displaced,
            };
            this.settle(blob, end);
        });
        Answer::Later
    }

    /// Resolves when an errand, and all others of its asker, have brought nothing for too long.
    async fn stalls(&self, blob: &BlobRef) {
        let mut done = 0;
        loop {
            sleep(LOOK).await;
            let now = Instant::now();
            let reached = self.fetcher.segments_of(blob);
            let mut state = self.state();
            if reached > done {
                done = reached;
                state.moved(blob, now);
            } else if state.is_stalled(blob, now) {
                return;
            }
        }
    }

    fn settle(&self, blob: BlobRef, end: End) {
        let mut state = self.state();
        // A displaced errand is off the list, and its blob may be on it again for another asker.
        if !matches!(end, End::Displaced) {
            state.running.remove(&blob);
        }
        if !matches!(end, End::Fetched(Ok(_))) {
            tracing::debug!(blob = %blob.id.short(), ?end, "a blob for a peer was not fetched");
            let now = Instant::now();
            state.failed.retain(|_, until| *until > now);
            // Past the bound a failure is not remembered. Its blob is only tried again sooner.
            if state.failed.len() < MAX_FAILURES {
                state.failed.insert(blob, now + REST);
            }
        }
    }

    /// Returns the connected peers that made a blob or announced that they hold it, if an advert names it.
    fn providers(&self, asker: NodeId, blob: &BlobRef) -> Vec<NodeId> {
        let owners = self.catalogue.owners(blob);
        if owners.is_empty() {
            return Vec::new();
        }
        let candidates = self.roster.candidates(&blob.id).into_iter();
        let good =
            candidates.filter(|(node, holds)| *node != asker && (*holds || owners.contains(node)));
        good.map(|(node, _)| node).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Errand {
    fn new(asker: NodeId, now: Instant) -> Self {
        Self {
            asker,
            moved: now,
            cancel: CancellationToken::new(),
        }
    }
}

impl State {
    /// Tells whether an errand may begin. A larger one than others may have makes room for it if need be.
    fn take_room(&mut self, asker: NodeId, blob: BlobRef, now: Instant) -> bool {
        if !self.may_ask(asker, blob, now) {
            return false;
        }
        while !self.fits(blob) && self.bytes_of(asker).saturating_add(blob.size) <= MAX_BYTES_OF_ONE
        {
            let is_over = |by: NodeId| by != asker && self.bytes_of(by) > MAX_BYTES_OF_ONE;
            let large = self.running.iter().filter(|(_, it)| is_over(it.asker));
            let largest = large.map(|(blob, _)| *blob).max_by_key(|blob| blob.size);
            let Some(errand) = largest.and_then(|largest| self.running.remove(&largest)) else {
                return false;
            };
            // It left the list first, so its room is free although its task ends later.
            errand.cancel.cancel();
        }
        self.fits(blob)
    }

    fn may_ask(&self, asker: NodeId, blob: BlobRef, now: Instant) -> bool {
        let of_one = self.running.values().filter(|it| it.asker == asker).count();
        let is_alone = of_one == self.running.len();
        let bytes = self.bytes_of(asker).saturating_add(blob.size);
        let has_failed = self.failed.get(&blob).is_some_and(|until| *until > now);
        of_one < MAX_OF_ONE && (is_alone || bytes <= MAX_BYTES_OF_ONE) && !has_failed
    }

    fn fits(&self, blob: BlobRef) -> bool {
        let bytes: u64 = self.running.keys().map(|blob| blob.size).sum();
        // A blob larger than the bound is brought if there is nothing else to do.
        let fits = self.running.is_empty() || bytes.saturating_add(blob.size) <= MAX_BYTES;
        self.running.len() < MAX_ERRANDS && fits
    }

    fn bytes_of(&self, asker: NodeId) -> u64 {
        let of_one = self.running.iter().filter(|(_, it)| it.asker == asker);
        of_one.map(|(blob, _)| blob.size).sum()
    }

    fn moved(&mut self, blob: &BlobRef, now: Instant) {
        if let Some(errand) = self.running.get_mut(blob) {
            errand.moved = now;
        }
    }

    fn is_stalled(&self, blob: &BlobRef, now: Instant) -> bool {
        let Some(asker) = self.running.get(blob).map(|it| it.asker) else {
            return false;
        };
        let of_one = self.running.values().filter(|it| it.asker == asker);
        let last = of_one.map(|it| it.moved).max();
        last.is_some_and(|last| now.saturating_duration_since(last) >= STALL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes() -> [NodeId; 3] {
        [1, 2, 3].map(|n| NodeId::from_bytes([n; 32]))
    }

    fn blob(n: u64, size: u64) -> BlobRef {
        BlobRef {
            size,
            ..BlobRef::of(&n.to_le_bytes())
        }
    }

    /// Begins an errand if there is room.
    fn begin(state: &mut State, asker: NodeId, blob: BlobRef, now: Instant) -> bool {
        let has_room = state.take_room(asker, blob, now);
        if has_room {
            state.running.insert(blob, Errand::new(asker, now));
        }
        has_room
    }

    #[test]
    fn one_asker_and_large_blobs_leave_room_for_others() {
        let ([ann, bob, _], now) = (nodes(), Instant::now());
        let mut state = State::default();
        assert!(state.take_room(ann, blob(99, MAX_BYTES + 1), now));
        for n in 0..MAX_OF_ONE as u64 {
            assert!(begin(&mut state, ann, blob(n, 1), now));
        }
        assert!(!state.take_room(ann, blob(9, 1), now));
        assert!(state.take_room(bob, blob(9, 1), now));
        assert!(!state.take_room(bob, blob(9, MAX_BYTES), now));
        state.failed.insert(blob(9, 1), now + REST);
        assert!(!state.take_room(bob, blob(9, 1), now));
        assert!(state.take_room(bob, blob(9, 1), now + REST));
    }

    #[test]
    fn a_large_errand_makes_room_for_those_who_ask_for_less() {
        let ([ann, bob, cat], now) = (nodes(), Instant::now());
        let mut state = State::default();
        assert!(begin(&mut state, ann, blob(1, MAX_BYTES), now));
        let cancel = state.running[&blob(1, MAX_BYTES)].cancel.clone();
        assert!(!begin(&mut state, bob, blob(2, MAX_BYTES / 2), now));
        assert!(!cancel.is_cancelled(), "who asks for more gets nothing");
        assert!(begin(&mut state, bob, blob(3, MAX_BYTES_OF_ONE), now));
        assert!(cancel.is_cancelled());
        assert!(begin(&mut state, bob, blob(4, 1), now), "alone, more");
        assert!(begin(&mut state, cat, blob(5, MAX_BYTES_OF_ONE), now));
        assert!(
            !begin(&mut state, cat, blob(6, 1), now),
            "a quarter for one"
        );
    }

    #[test]
    fn errands_that_bring_nothing_end_and_slow_ones_wait_for_each_other() {
        let ([ann, bob, _], now) = (nodes(), Instant::now());
        let mut state = State::default();
        for (asker, n) in [(ann, 1), (ann, 2), (bob, 3)] {
            assert!(begin(&mut state, asker, blob(n, 1), now));
        }
        let later = now + STALL / 2;
        state.moved(&blob(1, 1), later);
        assert!(!state.is_stalled(&blob(3, 1), later));
        let stalled = |at| [1, 2, 3].map(|n| state.is_stalled(&blob(n, 1), at));
        assert_eq!(stalled(now + STALL), [false, false, true]);
        assert_eq!(stalled(later + STALL), [true, true, true]);
    }
}
