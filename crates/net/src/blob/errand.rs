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
//! its hash like anything else. An errand never leads to another one, so there is no chain and no circle of them. The store
//! gives such blobs up first when its quota is used up.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fednode_core::{BlobRef, NodeId};

use super::fetcher::{Detours, FetchError, Fetcher, Request};
use crate::catalogue::Catalogue;
use crate::roster::Roster;
use crate::wire::Answer;

/// Errands at once.
const MAX_ERRANDS: usize = 32;
/// Of these, for one peer: all experts of most.
const MAX_OF_ONE: usize = 8;
/// Bytes of the blobs of all errands at once.
const MAX_BYTES: u64 = 512 << 20;
/// Time for an errand, beside that for its bytes.
const PATIENCE: Duration = Duration::from_secs(20);
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
    /// With the peer that asked first.
    running: HashMap<BlobRef, NodeId>,
    failed: HashMap<BlobRef, Instant>,
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
        let mut state = self.state();
        if state.running.contains_key(&blob) {
            return Answer::Later;
        }
        if providers.is_empty() || !state.has_room(asker, blob, Instant::now()) {
            return Answer::NotHeld;
        }
        state.running.insert(blob, asker);
        drop(state);
        tracing::debug!(blob = %blob.id.short(), %asker, "fetching a blob for a peer");
        let this = Arc::clone(self);
        self.fetcher.spawn(async move {
            let deadline = PATIENCE + Duration::from_secs(blob.size / SLOWEST);
            let fetched = this.fetcher.fetch(Request {
                blob,
                providers,
                deadline,
                packing: None,
                detours: Detours::Never,
            });
            this.settle(blob, fetched.await.err());
        });
        Answer::Later
    }

    fn settle(&self, blob: BlobRef, error: Option<FetchError>) {
        let mut state = self.state();
        state.running.remove(&blob);
        if let Some(error) = error {
            tracing::debug!(blob = %blob.id.short(), %error, "a blob for a peer could not be fetched");
            let now = Instant::now();
            state.failed.retain(|_, until| *until > now);
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

impl State {
    fn has_room(&self, asker: NodeId, blob: BlobRef, now: Instant) -> bool {
        let of_one = self.running.values().filter(|by| **by == asker).count();
        let bytes: u64 = self.running.keys().map(|blob| blob.size).sum();
        let has_failed = self.failed.get(&blob).is_some_and(|until| *until > now);
        // A blob larger than the bound is brought if there is nothing else to do.
        let fits = self.running.is_empty() || bytes.saturating_add(blob.size) <= MAX_BYTES;
        self.running.len() < MAX_ERRANDS && of_one < MAX_OF_ONE && fits && !has_failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_asker_and_large_blobs_leave_room_for_others() {
        let (ann, bob, now) = (
            NodeId::from_bytes([1; 32]),
            NodeId::from_bytes([2; 32]),
            Instant::now(),
        );
        let blob = |n: u64, size| BlobRef {
            size,
            ..BlobRef::of(&n.to_le_bytes())
        };
        let mut state = State::default();
        assert!(state.has_room(ann, blob(99, MAX_BYTES + 1), now));
        for n in 0..MAX_OF_ONE as u64 {
            assert!(state.has_room(ann, blob(n, 1), now));
            state.running.insert(blob(n, 1), ann);
        }
        assert!(!state.has_room(ann, blob(9, 1), now));
        assert!(state.has_room(bob, blob(9, 1), now));
        assert!(!state.has_room(bob, blob(9, MAX_BYTES), now));
        state.failed.insert(blob(9, 1), now + REST);
        assert!(!state.has_room(bob, blob(9, 1), now));
        assert!(state.has_room(bob, blob(9, 1), now + REST));
    }
}
