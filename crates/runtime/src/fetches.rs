//! The queue of fetches: a bounded number at once, some for each author, and none forgotten after its deadline.
//!
//! Callers that want the same blob are joined further down, in the network; here only the number is bounded. A blob that
//! nobody can deliver keeps its place until its deadline, so nobody's announcements may take up all places.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fednode_core::{BlobRef, BlobStore, FederationSpec, NodeId, Round, Timestamp};
use fednode_engine::{Fetch, FetchKind};
use fednode_net::{FetchError, Handle, Packing};
use fednode_store::Blobs;
use fednode_store::ledger::{Transfer, TransferKind};
use tracing::debug;

use crate::answers::{Answer, Received};
use crate::base::{Base, on_worker};
use crate::decoded::Decoded;
use crate::journal::Entry;
use crate::work;

/// Fetches at once. How many bytes are on their way is bounded by the network.
const AT_ONCE: usize = 64;
/// Of these, what one node announced: all experts of most.
const OF_ONE: usize = 8;
/// Fetches that may wait: all experts of a large federation's plan.
const WAITING: usize = 4096;

/// Why a blob was not fetched.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotFetched {
    #[error("too many fetches wait")]
    QueueFull,
    #[error("it has {held} bytes, and {announced} were announced")]
    AnotherSize { held: u64, announced: u64 },
    #[error(transparent)]
    Network(Box<FetchError>),
}

/// Fetches that run and fetches that wait.
#[derive(Debug, Default)]
pub(crate) struct Fetches {
    running: usize,
    /// How many of them each announced.
    announced: BTreeMap<NodeId, usize>,
    waiting: VecDeque<Fetch>,
}

impl Fetches {
    /// Adds a fetch; it comes back if there is no room for it.
    pub(crate) fn add(&mut self, fetch: Fetch) -> Option<Fetch> {
        if self.waiting.len() >= WAITING {
            return Some(fetch);
        }
        self.waiting.push_back(fetch);
        None
    }

    /// Takes the next one that may start now.
    pub(crate) fn start_next(&mut self) -> Option<Fetch> {
        if self.running >= AT_ONCE {
            return None;
        }
        let may_start = |fetch: &Fetch| author(fetch).is_none_or(|author| self.of(author) < OF_ONE);
        // The first that may start, not the first: an author with many experts must not block the
        // others behind it.
        let next = self.waiting.iter().position(may_start)?;
        let next = self.waiting.remove(next)?;
        self.running += 1;
        if let Some(author) = author(&next) {
            *self.announced.entry(author).or_default() += 1;
        }
        Some(next)
    }

    fn of(&self, author: NodeId) -> usize {
        self.announced.get(&author).copied().unwrap_or_default()
    }

    /// One has ended.
    pub(crate) fn ended(&mut self, fetch: &Fetch) {
        self.running = self.running.saturating_sub(1);
        let Some(author) = author(fetch) else { return };
        match self.of(author) {
            0 | 1 => _ = self.announced.remove(&author),
            more => _ = self.announced.insert(author, more - 1),
        }
    }

    /// Gets a blob, as soon as there is room for another fetch.
    pub(crate) fn queue(&mut self, base: &mut Base, fetch: Fetch) {
        // The answer takes the usual way through the loop, as the machine may not be fed while it
        // is being carried out.
        if let Some(refused) = self.add(fetch) {
            debug!(blob = %refused.blob.id, "not fetched: too many fetches wait");
            let until = base.now();
            base.start(async move {
                Answer::Fetched {
                    fetch: Fetch { until, ..refused },
                    result: Err(NotFetched::QueueFull),
                    received: None,
                }
            });
        }
        self.start(base);
    }

    /// Starts the fetches that there is room for.
    fn start(&mut self, base: &mut Base) {
        while let Some(fetch) = self.start_next() {
            let deadline = fetch.until.since(base.now());
            let (decoded, blobs) = (Arc::clone(&base.decoded), Arc::clone(&base.blobs));
            let (spec, net) = (Arc::clone(&base.spec), base.net.clone());
            base.start(fetch_and_check(fetch, deadline, spec, net, decoded, blobs));
        }
    }

    /// A fetch of this round has ended: enters what it moved into the ledger, and starts the next one.
    pub(crate) fn settle(
        &mut self,
        base: &mut Base,
        fetch: &Fetch,
        received: Option<Received>,
        round: Round,
    ) {
        if let Some(received) = received {
            enter(base, fetch, received, round);
        }
        self.ended(fetch);
        self.start(base);
    }

    /// Takes those whose time is up before they could start.
    pub(crate) fn take_expired(&mut self, now: Timestamp) -> Vec<Fetch> {
        let (expired, waiting): (Vec<Fetch>, Vec<Fetch>) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|fetch| fetch.until <= now);
        self.waiting = VecDeque::from(waiting);
        expired
    }
}

/// Enters the bytes of a fetch into the ledger, by their source.
fn enter(base: &Base, fetch: &Fetch, received: Received, round: Round) {
    let kind = match fetch.kind {
        FetchKind::Expert => TransferKind::Expert,
        FetchKind::Proxies => TransferKind::Proxies,
        FetchKind::Shared => TransferKind::Shared,
        FetchKind::Module => TransferKind::Pool,
    };
    // Segments of one blob may come from several peers; the ledger answers who sent what.
    for (source, size) in received.from.bytes_received {
        base.journal.add(Entry::Transfer(Transfer {
            round,
            blob: BlobRef { size, ..fetch.blob },
            source,
            duration: received.took,
            kind,
        }));
    }
}

async fn fetch_and_check(
    fetch: Fetch,
    deadline: Duration,
    spec: Arc<FederationSpec>,
    net: Handle,
    decoded: Arc<Decoded>,
    blobs: Arc<Blobs>,
) -> Answer {
    let started = Instant::now();
    // The store could collect the base while the difference to it is on its way.
    let _base = fetch.base.map(|base| blobs.pin(base));
    let fetched = match blobs.held(&fetch.blob.id) {
        // Held already, perhaps from an earlier life: still checked below, since only its hash was
        // ever looked at.
        Some(held) if held == fetch.blob.size => Ok(None),
        // Whoever counts it under a false size counts what nobody else can fetch.
        Some(held) => Err(NotFetched::AnotherSize {
            held,
            announced: fetch.blob.size,
        }),
        None => {
            let packing = Packing {
                width: work::precision_of(fetch.kind, &spec).into(),
                base: fetch.base,
            };
            net.fetch_packed(fetch.blob, fetch.from.clone(), deadline, packing)
                .await
                .map(Some)
                .map_err(|error| NotFetched::Network(Box::new(error)))
        }
    };
    match fetched {
        Ok(from) => {
            let received = from.map(|from| Received {
                from,
                took: started.elapsed(),
            });
            let wanted = fetch.clone();
            let result = Ok(on_worker(move || work::check(&wanted, &spec, &decoded, &blobs)).await);
            Answer::Fetched {
                fetch,
                result,
                received,
            }
        }
        Err(error) => Answer::Fetched {
            fetch,
            result: Err(error),
            received: None,
        },
    }
}

/// Returns who announced what is fetched.
fn author(fetch: &Fetch) -> Option<NodeId> {
    fetch.from.first().copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use fednode_core::BlobRef;
    use fednode_engine::FetchKind;

    fn fetch(n: u64) -> Fetch {
        let blob = BlobRef::of(&n.to_le_bytes());
        Fetch {
            blob,
            kind: FetchKind::Expert,
            from: vec![],
            base: None,
            until: Timestamp(n),
        }
    }

    #[test]
    fn no_more_than_a_few_run_and_the_others_wait_until_their_deadline() {
        let mut fetches = Fetches::default();
        (0..68).for_each(|n| assert_eq!(fetches.add(fetch(n)), None));
        let started: Vec<Fetch> = std::iter::from_fn(|| fetches.start_next()).collect();
        assert_eq!(started.len(), AT_ONCE);
        assert_eq!(fetches.take_expired(Timestamp(65)), [fetch(64), fetch(65)]);
        fetches.ended(&fetch(0));
        assert_eq!(fetches.start_next(), Some(fetch(66)));
        assert_eq!(fetches.start_next(), None);
    }

    #[test]
    fn fetches_from_one_author_leave_room_for_others() {
        let mut fetches = Fetches::default();
        let of = |author: u8, n: u64| Fetch {
            from: vec![NodeId::from_bytes([author; 32])],
            ..fetch(n)
        };
        (0..10).for_each(|n| assert_eq!(fetches.add(of(1, n)), None));
        assert_eq!(fetches.add(of(2, 99)), None);
        let started: Vec<Fetch> = std::iter::from_fn(|| fetches.start_next()).collect();
        assert_eq!(
            started,
            (0..8)
                .map(|n| of(1, n))
                .chain([of(2, 99)])
                .collect::<Vec<_>>()
        );
        fetches.ended(&of(1, 3));
        assert_eq!(fetches.start_next(), Some(of(1, 8)));
    }
}
