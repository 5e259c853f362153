//! Slices of means: fetched from many members at once, averaged, and put together.
//!
//! The slices of all parts are written to one file without a name, one after the other. So memory holds 64 MiB of them,
//! or one, whatever the number of members, and nothing is left behind if the process dies.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fednode_core::{BlobId, BlobRef, BlobStore, FederationSpec, NodeId, Precision, Round};
use fednode_engine::{JoinOrder, JoinReport, SliceOrder, SliceReport, execute};
use fednode_net::{FetchError, Fetched, Handle, Packing};
use fednode_store::Blobs;
use fednode_store::ledger::{Transfer, TransferKind};
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use tokio::time::error::Elapsed;
use tokio::time::timeout;
use tracing::debug;

use crate::answers::Answer;
use crate::base::{Base, on_worker};
use crate::journal::{Entry, Journal};

/// Slices that are fetched at once.
const AT_ONCE: usize = 8;
/// Bytes of slices that are in memory at once, but for one slice that is larger.
const IN_MEMORY: u64 = 64 << 20;

/// What it takes to fetch slices and to compute with them.
struct Tools {
    spec: Arc<FederationSpec>,
    net: Handle,
    blobs: Arc<Blobs>,
    journal: Journal,
}

/// Why a part's slice is not here.
enum Failure {
    /// Its owner did not bring it.
    Peer(NodeId, FetchError),
    /// The own disk did not take it, for which no member is to blame.
    Disk(io::Error),
}

impl Base {
    /// Fetches a slice of the parts of many members, and averages it.
    pub(crate) fn average_slice(&mut self, order: SliceOrder) {
        let (tools, deadline) = (self.tools(), order.until.since(self.now()));
        self.start(async move { Answer::Sliced(Box::new(tools.average(order, deadline).await)) });
    }

    /// Fetches the slices of a mean, and puts them together.
    pub(crate) fn join_slices(&mut self, order: JoinOrder) {
        let (tools, deadline) = (self.tools(), order.until.since(self.now()));
        self.start(async move { Answer::Joined(Box::new(tools.join(order, deadline).await)) });
    }

    fn tools(&self) -> Tools {
        Tools {
            spec: Arc::clone(&self.spec),
            net: self.net.clone(),
            blobs: Arc::clone(&self.blobs),
            journal: self.journal.clone(),
        }
    }
}

impl Tools {
    async fn average(self, order: SliceOrder, deadline: Duration) -> SliceReport {
        let blobs = Arc::clone(&self.blobs);
        let scratch = match on_worker(move || blobs.scratch()).await {
            Ok(scratch) => Arc::new(scratch),
            Err(error) => {
                tracing::warn!(%error, "a slice is not averaged: no temporary file can be made");
                return SliceReport::of(&order);
            }
        };
        let mut fetches = Vec::with_capacity(order.members.len());
        for (place, member) in order.members.iter().enumerate() {
            let wanted = (place, member.node, member.shared);
            fetches.push(self.bring(wanted, &order, deadline, &scratch).boxed());
        }
        // The store could collect the base while differences to it are on their way.
        let base = order.base.map(|base| self.blobs.pin(base));
        let at_once = at_once(order.slicing.len(order.slice));
        // The first that is lost is enough: without it there is no mean.
        let lost = match first_failure(fetches, at_once, deadline).await {
            Ok(None) => None,
            Ok(Some(Failure::Peer(node, error))) => {
                debug!(node = %node.short(), %error, "a slice cannot be had");
                Some(vec![node])
            }
            Ok(Some(Failure::Disk(error))) => {
                tracing::warn!(%error, "a slice is not averaged: parts cannot be written to the disk");
                Some(Vec::new())
            }
            Err(late) => {
                debug!(round = %order.round, slice = order.slice, %late, "a slice is not averaged");
                Some(Vec::new())
            }
        };
        drop(base);
        if let Some(lost) = lost {
            return SliceReport {
                lost,
                ..SliceReport::of(&order)
            };
        }
        let (spec, blobs, net) = (self.spec, self.blobs, self.net);
        let report = on_worker(move || compute(&order, &spec, &blobs, &scratch)).await;
        for (node, why) in &report.left_out {
            let (round, slice) = (report.round, report.slice);
            debug!(%round, slice, node = %node.short(), why, "left out of a slice");
        }
        if let Some(mean) = report.mean {
            net.announce_held(mean.id).await;
        }
        report
    }

    /// Brings one part's slice into its place. Returns why it is not there, if it is not.
    async fn bring(
        &self,
        (place, node, part): (usize, NodeId, BlobRef),
        order: &SliceOrder,
        deadline: Duration,
        scratch: &Arc<File>,
    ) -> Option<Failure> {
        let segments = order.slicing.segments(order.slice);
        let at = place as u64 * order.slicing.len(order.slice);
        let bytes = match self.held(part, segments.clone()).await {
            Some(bytes) => bytes,
            None => {
                let packing = Packing {
                    width: Precision::F32.into(),
                    base: order.base,
                };
                let started = Instant::now();
                let wanted = (part, segments);
                let fetched = self.net.fetch_window(wanted, vec![node], deadline, packing);
                match fetched.await {
                    Ok((fetched, bytes)) => {
                        self.enter(order.round, part, fetched, started.elapsed());
                        bytes
                    }
                    Err(error) => return Some(Failure::Peer(node, error)),
                }
            }
        };
        let scratch = Arc::clone(scratch);
        let written = on_worker(move || scratch.write_all_at(&bytes, at)).await;
        written.err().map(Failure::Disk)
    }

    /// Returns segments of a part that is here.
    async fn held(&self, part: BlobRef, segments: Range<u32>) -> Option<Vec<u8>> {
        let blobs = Arc::clone(&self.blobs);
        on_worker(move || {
            // The order divides a part by its announced size. A blob of another size would give other numbers.
            (blobs.held(&part.id) == Some(part.size)).then_some(())?;
            let read = |index| blobs.read_segment(&part.id, index).ok();
            let read: Option<Vec<Vec<u8>>> = segments.map(read).collect();
            Some(read?.concat())
        })
        .await
    }

    /// Fetches a slice of a mean into the store. Returns why it cannot be had, if it cannot.
    async fn bring_whole(
        &self,
        (round, slice): (Round, BlobRef),
        from: Vec<NodeId>,
        deadline: Duration,
        packing: Packing,
    ) -> Option<FetchError> {
        let started = Instant::now();
        match self.net.fetch_packed(slice, from, deadline, packing).await {
            Ok(fetched) => {
                self.enter(round, slice, fetched, started.elapsed());
                None
            }
            Err(error) => Some(error),
        }
    }

    /// Enters the bytes of a transfer into the ledger, by their source.
    fn enter(&self, round: Round, blob: BlobRef, fetched: Fetched, duration: Duration) {
        for (source, size) in fetched.bytes_received {
            self.journal.add(Entry::Transfer(Transfer {
                round,
                blob: BlobRef { size, ..blob },
                source,
                duration,
                kind: TransferKind::Shared,
            }));
        }
    }

    async fn join(self, order: JoinOrder, deadline: Duration) -> JoinReport {
        let packing = Packing {
            width: Precision::F32.into(),
            base: None,
        };
        let mut fetches = Vec::with_capacity(order.slices.len());
        for (authors, slice) in &order.slices {
            let from = authors.iter().copied().chain(order.closer).collect();
            let wanted = (order.round, *slice);
            let fetch = self.bring_whole(wanted, from, deadline, packing);
            fetches.push(fetch.boxed());
        }
        match first_failure(fetches, AT_ONCE, deadline).await {
            Ok(None) => {}
            Ok(Some(error)) => {
                debug!(round = %order.round, %error, "a slice of the mean cannot be had");
                return JoinReport::of(&order, None);
            }
            Err(late) => {
                debug!(round = %order.round, %late, "slices of the mean did not come");
                return JoinReport::of(&order, None);
            }
        }
        let blobs = Arc::clone(&self.blobs);
        let slices: Vec<BlobRef> = order.slices.iter().map(|(_, slice)| *slice).collect();
        let mean = match on_worker(move || put_together(&slices, &blobs)).await {
            Ok(mean) => Some(mean),
            Err(error) => {
                tracing::warn!(round = %order.round, %error, "slices of the mean cannot be put together");
                None
            }
        };
        if let Some(mean) = mean {
            self.net.announce_held(mean.id).await;
        }
        JoinReport::of(&order, mean)
    }
}

/// Waits until all are here, or one cannot be had, a few at once.
async fn first_failure<T>(
    fetches: Vec<BoxFuture<'_, Option<T>>>,
    at_once: usize,
    deadline: Duration,
) -> Result<Option<T>, Elapsed> {
    let ended = futures::stream::iter(fetches).buffer_unordered(at_once);
    let mut failures = std::pin::pin!(ended.filter_map(std::future::ready));
    // A fetch counts its patience from its own turn on. Without this the last could end long after the deadline.
    timeout(deadline, failures.next()).await
}

/// Returns how many slices of this length are fetched at once.
fn at_once(length: u64) -> usize {
    let most = usize::try_from(IN_MEMORY / length.max(1)).unwrap_or(AT_ONCE);
    most.clamp(1, AT_ONCE)
}

/// Averages what lies in the file, and stores the slice.
fn compute(
    order: &SliceOrder,
    spec: &FederationSpec,
    blobs: &Blobs,
    scratch: &File,
) -> SliceReport {
    let length = order.slicing.len(order.slice);
    // Two members may have the same part: it lies there twice.
    let places: BTreeMap<BlobId, u64> = (0..)
        .zip(&order.members)
        .map(|(place, member)| (member.shared.id, place * length))
        .collect();
    let mut load = |blob: &BlobId, _: Range<u64>| {
        let mut bytes = vec![0; usize::try_from(length).ok()?];
        scratch.read_exact_at(&mut bytes, *places.get(blob)?).ok()?;
        Some(bytes)
    };
    let (bytes, mut report) = execute::average_slice(order, spec, &mut load);
    match bytes.map(|bytes| blobs.put(&bytes)) {
        Some(Ok(mean)) => report.mean = Some(mean),
        Some(Err(error)) => {
            tracing::warn!(round = %order.round, %error, "a slice of the mean cannot be stored");
        }
        None => {}
    }
    report
}

/// Stores slices as one blob.
fn put_together(slices: &[BlobRef], blobs: &Blobs) -> io::Result<BlobRef> {
    let all: u64 = slices.iter().map(|slice| slice.size).sum();
    let mut bytes = Vec::with_capacity(usize::try_from(all).unwrap_or_default());
    for slice in slices {
        for segment in 0..slice.n_segments() {
            bytes.extend(blobs.read_segment(&slice.id, segment)?);
        }
    }
    blobs.put(&bytes)
}
