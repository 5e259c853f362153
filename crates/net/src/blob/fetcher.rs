//! The fetcher: fetches blobs, with one job per blob for any number of callers.
//!
//! A caller waits for a job with a deadline of its own. When the last caller is gone, the job ends. The stored segments stay
//! for the next job. All jobs share the links to peers and the budgets of bytes in flight.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fednode_core::{BlobId, BlobRef, BlobStore, MAX_BLOB_BYTES, NodeId};
use libp2p::StreamProtocol;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::job::Run;
use super::link::{self, Link, LinkError};
use super::packing::{Packing, Workbench};
use super::spares::Spares;
use super::window::Window;
use super::{MAX_IN_FLIGHT, MAX_OUTBOUND, STALL, Wish};
use crate::identity::peer_id;
use crate::roster::Roster;
use crate::traffic::Traffic;
use crate::wire::BLOB_PROTOCOL;

/// Remembered rates of peers whose link has ended.
const MAX_RATES: usize = 1024;

/// The result of a fetch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fetched {
    /// Payload bytes received from each node, as they came: packed or not, duplicates included.
    pub bytes_received: BTreeMap<NodeId, u64>,
    /// The nodes that sent right segments.
    pub from: Vec<NodeId>,
    /// Bytes that an earlier fetch had stored.
    pub resumed_bytes: u64,
}

/// Tells why a blob could not be fetched.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    /// The blob is larger than a blob may be.
    #[error("a blob of {0} bytes is larger than any may be")]
    TooLarge(u64),
    /// The deadline is over. Received segments are kept.
    #[error("blob {blob} not complete after {after:?} ({done} of {all} segments): {providers}")]
    Deadline {
        /// Which blob.
        blob: BlobId,
        /// The deadline.
        after: Duration,
        /// Stored segments.
        done: usize,
        /// Segments in all.
        all: usize,
        /// What each provider did.
        providers: String,
    },
    /// The store cannot take it.
    #[error("cannot store blob {blob}: {message}")]
    Store {
        /// Which blob.
        blob: BlobId,
        /// The kind of error, which tells a full disk from a broken one.
        kind: io::ErrorKind,
        /// The error of the store.
        message: String,
    },
    /// The network is shutting down.
    #[error("the network is shutting down")]
    Closed,
}

/// Whether a peer may be asked to fetch a blob that no connected peer holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Detours {
    Allowed,
    Never,
}

/// A request for a blob.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) blob: BlobRef,
    pub(crate) providers: Vec<NodeId>,
    pub(crate) deadline: Duration,
    pub(crate) packing: Option<Packing>,
    pub(crate) detours: Detours,
}

/// Fetches blobs. A cheap clone of one shared state.
#[derive(Clone)]
pub(crate) struct Fetcher(Arc<Shared>);

pub(super) struct Shared {
    pub(super) store: Arc<dyn BlobStore>,
    pub(super) roster: Arc<Roster>,
    traffic: Arc<Traffic>,
    control: libp2p_stream::Control,
    pub(super) wishes: mpsc::Sender<Wish>,
    /// One permit per KiB that may be in flight in all.
    pub(super) budget: Arc<Semaphore>,
    pub(super) spares: Arc<Spares>,
    pub(super) workbench: Arc<Workbench>,
    jobs: Mutex<HashMap<BlobRef, Arc<Job>>>,
    links: Mutex<HashMap<NodeId, Link>>,
    rates: Mutex<HashMap<NodeId, f64>>,
    tasks: TaskTracker,
    cancel: CancellationToken,
}

/// A blob under way, as its callers see it.
pub(super) struct Job {
    pub(super) packing: Option<Packing>,
    pub(super) providers: Mutex<BTreeSet<NodeId>>,
    pub(super) state: watch::Sender<State>,
    may_detour: AtomicBool,
}

impl Job {
    fn new(blob: BlobRef, packing: Option<Packing>) -> Self {
        let start = State::Running {
            done: 0,
            all: blob.n_segments() as usize,
            providers: "nobody was asked yet".to_owned(),
        };
        Self {
            packing,
            providers: Mutex::default(),
            state: watch::Sender::new(start),
            may_detour: AtomicBool::new(false),
        }
    }

    /// Takes what a caller knows. Later ones may know more providers; the job looks at the set again and again.
    fn join(&self, providers: Vec<NodeId>, detours: Detours) {
        lock(&self.providers).extend(providers);
        if detours == Detours::Allowed {
            self.may_detour.store(true, Ordering::Relaxed);
        }
    }

    /// Tells whether any of its callers allows detours.
    pub(super) fn may_detour(&self) -> bool {
        self.may_detour.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Clone)]
pub(super) enum State {
    Running {
        done: usize,
        all: usize,
        providers: String,
    },
    Over(Result<Fetched, FetchError>),
}

impl std::fmt::Debug for Fetcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fetcher")
            .field("jobs", &lock(&self.0.jobs).len())
            .finish_non_exhaustive()
    }
}

impl Fetcher {
    pub(crate) fn new(
        store: Arc<dyn BlobStore>,
        roster: Arc<Roster>,
        traffic: Arc<Traffic>,
        control: libp2p_stream::Control,
        wishes: mpsc::Sender<Wish>,
        cancel: CancellationToken,
    ) -> Self {
        let permits = usize::try_from(MAX_IN_FLIGHT >> 10).unwrap_or(Semaphore::MAX_PERMITS);
        Self(Arc::new(Shared {
            store,
            roster,
            traffic,
            control,
            wishes,
            budget: Arc::new(Semaphore::new(permits)),
            spares: Arc::default(),
            workbench: Arc::default(),
            jobs: Mutex::default(),
            links: Mutex::default(),
            rates: Mutex::default(),
            tasks: TaskTracker::new(),
            cancel,
        }))
    }

    /// Fetches a blob unless the store holds it. Cancel-safe: dropping the future abandons the wait, never stored bytes.
    pub(crate) async fn fetch(&self, request: Request) -> Result<Fetched, FetchError> {
        let (blob, deadline) = (request.blob, request.deadline);
        if blob.size > MAX_BLOB_BYTES {
            return Err(FetchError::TooLarge(blob.size));
        }
        // A blob that is held costs no job. The look-up touches the disk, so it runs on a thread.
        let store = self.0.store.clone();
        let held = tokio::task::spawn_blocking(move || store.held(&blob.id)).await;
        if held.is_ok_and(|size| size == Some(blob.size)) {
            return Ok(Fetched::default());
        }
        let mut state = self.join(request);
        let over = async {
            state
                .wait_for(|state| matches!(state, State::Over(_)))
                .await
                .map(|over| over.clone())
        };
        match timeout(deadline, over).await {
            Ok(Ok(State::Over(outcome))) => outcome,
            Ok(_) => Err(FetchError::Closed),
            Err(_) => Err(late(blob, deadline, &state.borrow())),
        }
    }

    /// Fetches some segments of a blob into memory.
    pub(crate) async fn fetch_window(
        &self,
        request: Request,
        segments: Range<u32>,
    ) -> Result<(Fetched, Vec<u8>), FetchError> {
        let (blob, deadline) = (request.blob, request.deadline);
        if blob.size > MAX_BLOB_BYTES {
            return Err(FetchError::TooLarge(blob.size));
        }
        let window = Arc::new(Window::new(self.0.store.clone(), blob, segments));
        let job = Arc::new(Job::new(blob, request.packing));
        job.join(request.providers, request.detours);
        let run = Run::new(self.0.clone(), blob, job.clone()).into_window(window.clone());
        let fetched = tokio::select! {
            () = self.0.cancel.cancelled() => return Err(FetchError::Closed),
            fetched = timeout(deadline, run.go()) => fetched,
        };
        match fetched {
            Ok(fetched) => Ok((fetched?, window.take())),
            Err(_) => Err(late(blob, deadline, &job.state.borrow())),
        }
    }

    /// Returns how many segments of a blob under way are stored.
    pub(super) fn segments_of(&self, blob: &BlobRef) -> usize {
        let job = lock(&self.0.jobs).get(blob).cloned();
        job.map_or(0, |job| match *job.state.borrow() {
            State::Running { done, .. } => done,
            State::Over(_) => 0,
        })
    }

    /// Runs work that ends before the fetcher is closed.
    pub(super) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.0.tasks.spawn(work);
    }

    /// Waits until all jobs and links have ended. The token must be cancelled before.
    pub(crate) async fn closed(&self) {
        self.0.tasks.close();
        self.0.tasks.wait().await;
    }

    /// Joins the job of a blob, or starts it.
    fn join(&self, request: Request) -> watch::Receiver<State> {
        let Request { blob, packing, .. } = request;
        let mut jobs = lock(&self.0.jobs);
        let job = jobs.entry(blob).or_insert_with(|| {
            let job = Arc::new(Job::new(blob, packing));
            self.0
                .tasks
                .spawn(supervise(self.0.clone(), blob, job.clone()));
            job
        });
        job.join(request.providers, request.detours);
        // Subscribed while the lock on the jobs is held, so that `supervise` cannot end the job in between.
        job.state.subscribe()
    }
}

fn late(blob: BlobRef, after: Duration, state: &State) -> FetchError {
    match state {
        State::Running {
            done,
            all,
            providers,
        } => FetchError::Deadline {
            blob: blob.id,
            after,
            done: *done,
            all: *all,
            providers: providers.clone(),
        },
        State::Over(_) => FetchError::Closed,
    }
}

/// Runs a job until it is over, its last caller is gone, or the network shuts down.
async fn supervise(shared: Arc<Shared>, blob: BlobRef, job: Arc<Job>) {
    let mut run = std::pin::pin!(Run::new(shared.clone(), blob, job.clone()).go());
    let outcome = loop {
        tokio::select! {
            outcome = &mut run => break outcome,
            () = shared.cancel.cancelled() => break Err(FetchError::Closed),
            () = job.state.closed() => {
                let mut jobs = lock(&shared.jobs);
                // A caller may have joined after the last one left and before the lock was taken.
                if job.state.is_closed() {
                    shared.remove(&mut jobs, blob);
                    return;
                }
            }
        }
    };
    if let Err(error) = &outcome {
        tracing::debug!(blob = %blob.id.short(), %error, "fetch failed");
    }
    // Both under one lock. Otherwise a new caller could join a job that is over, and get its old error.
    let mut jobs = lock(&shared.jobs);
    shared.remove(&mut jobs, blob);
    job.state.send_replace(State::Over(outcome));
}

impl Shared {
    fn remove(&self, jobs: &mut HashMap<BlobRef, Arc<Job>>, blob: BlobRef) {
        jobs.remove(&blob);
        // Between transfers a node is quiet for minutes, so the buffers go back to the system.
        if jobs.is_empty() {
            self.spares.clear();
            self.workbench.clear();
        }
    }

    /// Returns the link to a peer, and opens it if there is none.
    pub(super) fn link(self: &Arc<Self>, node: NodeId) -> Result<Link, LinkError> {
        let mut links = lock(&self.links);
        links.retain(|_, link| !link.is_closed());
        if let Some(link) = links.get(&node) {
            return Ok(link.clone());
        }
        if links.len() >= MAX_OUTBOUND {
            // An idle link keeps a stream of the peer's server busy for nothing, so it makes room.
            let idle = links
                .iter()
                .find(|(_, link)| link.is_idle())
                .map(|(node, _)| *node);
            // If every link is busy, the caller tries again after a rest.
            links.remove(&idle.ok_or(LinkError::Lost)?);
        }
        let (link, asks) = Link::new();
        links.insert(node, link.clone());
        self.tasks.spawn(open_and_run(self.clone(), node, asks));
        Ok(link)
    }

    pub(super) fn count_received(&self, node: NodeId, bytes: u64) {
        // A peer may leave before its last bytes are counted. They count all the same.
        let role = self.roster.role(&node).unwrap_or(fednode_core::Role::Node);
        self.traffic.blob_received(role, bytes);
    }
}

async fn open_and_run(shared: Arc<Shared>, node: NodeId, asks: mpsc::Receiver<link::Ask>) {
    let mut control = shared.control.clone();
    let opening = control.open_stream(peer_id(&node), StreamProtocol::new(BLOB_PROTOCOL));
    let work = async {
        let stream = match timeout(STALL, opening).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return tracing::debug!(%node, %error, "no blob stream"),
            Err(_) => return tracing::debug!(%node, "no blob stream in time"),
        };
        let rate = lock(&shared.rates).get(&node).copied();
        let rate = link::run(stream, asks, rate, &shared.spares).await;
        // The rate outlives the link: an idle link is closed after seconds, and the next one should not learn anew.
        let mut rates = lock(&shared.rates);
        if rates.len() >= MAX_RATES {
            // Rates have no order of age, so all go at once. Each is learned anew within a few segments.
            rates.clear();
        }
        rates.insert(node, rate.0);
    };
    tokio::select! {
        () = work => {}
        () = shared.cancel.cancelled() => {}
    }
}

/// Locks a mutex. A panic elsewhere while it was held leaves a map that is still well formed.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
