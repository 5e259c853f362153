//! The fetcher: brings blobs here, one job per blob however many callers want it.
//!
//! A caller waits for a job with a deadline of its own; when the last caller is gone, the job ends and what it stored
//! stays for the next one. A job prepares the store, gets and verifies the segment list, keeps the [`Schedule`] busy and
//! has the store finish the blob. Who may be asked is looked up again whenever peers come and go.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fednode_core::{
    BlobId, BlobRef, BlobStore, ChainingValue, MAX_BLOB_BYTES, NodeId, Partial, SegmentError, SegmentList,
};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use libp2p::StreamProtocol;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::link::{self, Link, LinkError};
use super::schedule::{Failure, Rank, Schedule};
use super::{MAX_IN_FLIGHT, MAX_OUTBOUND, STALL, Wish};
use crate::identity::peer_id;
use crate::roster::Roster;
use crate::traffic::Traffic;
use crate::wire::{BLOB_PROTOCOL, Want};

/// How often a job looks around even if nothing happens.
const LOOK_AROUND: Duration = Duration::from_millis(500);
/// How often a job asks for a connection to a provider that is not connected.
const CONNECT_EVERY: Duration = Duration::from_secs(2);
/// Rates remembered of peers whose link has ended.
const MAX_RATES: usize = 1024;

/// What a fetch brought.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fetched {
    /// Payload bytes received from each node, what was received twice included.
    pub bytes_received: BTreeMap<NodeId, u64>,
    /// The nodes from which segments came that were right.
    pub from: Vec<NodeId>,
    /// Bytes that were here already.
    pub resumed_bytes: u64,
}

/// Tells why a blob could not be fetched.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    /// The blob is larger than any may be.
    #[error("a blob of {0} bytes is larger than any may be")]
    TooLarge(u64),
    /// Time is up; what was received is kept.
    #[error("blob {blob} not complete after {after:?} ({done} of {all} segments): {providers}")]
    Deadline {
        /// Which blob.
        blob: BlobId,
        /// The time that was given.
        after: Duration,
        /// Segments here.
        done: usize,
        /// Segments in all.
        all: usize,
        /// What came of each provider.
        providers: String,
    },
    /// The store cannot take it.
    #[error("cannot store blob {blob}: {message}")]
    Store {
        /// Which blob.
        blob: BlobId,
        /// The kind of error, to tell a full disk from a broken one.
        kind: io::ErrorKind,
        /// The store's words.
        message: String,
    },
    /// The network is shutting down.
    #[error("the network is shutting down")]
    Closed,
}

/// Who wants what.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) blob: BlobRef,
    pub(crate) providers: Vec<NodeId>,
    pub(crate) deadline: Duration,
}

/// Brings blobs; a cheap clone of one shared state.
#[derive(Clone)]
pub(crate) struct Fetcher(Arc<Shared>);

struct Shared {
    store: Arc<dyn BlobStore>,
    roster: Arc<Roster>,
    traffic: Arc<Traffic>,
    control: libp2p_stream::Control,
    wishes: mpsc::Sender<Wish>,
    /// One permit per KiB that may be in flight in all.
    budget: Arc<Semaphore>,
    jobs: Mutex<HashMap<BlobRef, Arc<Job>>>,
    links: Mutex<HashMap<NodeId, Link>>,
    rates: Mutex<HashMap<NodeId, f64>>,
    tasks: TaskTracker,
    cancel: CancellationToken,
}

/// A blob on its way, as its callers see it.
struct Job {
    providers: Mutex<BTreeSet<NodeId>>,
    state: watch::Sender<State>,
}

#[derive(Debug, Clone)]
enum State {
    Running { done: usize, all: usize, providers: String },
    Over(Result<Fetched, FetchError>),
}

impl std::fmt::Debug for Fetcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fetcher").field("jobs", &lock(&self.0.jobs).len()).finish_non_exhaustive()
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
            jobs: Mutex::default(),
            links: Mutex::default(),
            rates: Mutex::default(),
            tasks: TaskTracker::new(),
            cancel,
        }))
    }

    /// Fetches a blob unless it is here. Cancel-safe: dropping the future abandons the wait, never stored bytes.
    pub(crate) async fn fetch(&self, request: Request) -> Result<Fetched, FetchError> {
        let Request { blob, providers, deadline } = request;
        if blob.size > MAX_BLOB_BYTES {
            return Err(FetchError::TooLarge(blob.size));
        }
        let store = self.0.store.clone();
        let held = tokio::task::spawn_blocking(move || store.held(&blob.id)).await;
        if held.is_ok_and(|size| size == Some(blob.size)) {
            return Ok(Fetched::default());
        }
        let mut state = self.join(blob, providers);
        let over = async { state.wait_for(|state| matches!(state, State::Over(_))).await.map(|over| over.clone()) };
        match timeout(deadline, over).await {
            Ok(Ok(State::Over(outcome))) => outcome,
            Ok(_) => Err(FetchError::Closed),
            Err(_) => Err(late(blob, deadline, &state.borrow())),
        }
    }

    /// Waits until all jobs and links have ended, after the token was cancelled.
    pub(crate) async fn closed(&self) {
        self.0.tasks.close();
        self.0.tasks.wait().await;
    }

    /// Joins the job of a blob, or starts it.
    fn join(&self, blob: BlobRef, providers: Vec<NodeId>) -> watch::Receiver<State> {
        let mut jobs = lock(&self.0.jobs);
        let job = jobs.entry(blob).or_insert_with(|| {
            let all = blob.n_segments() as usize;
            let start = State::Running { done: 0, all, providers: "nobody was asked yet".to_owned() };
            let job = Arc::new(Job { providers: Mutex::default(), state: watch::Sender::new(start) });
            self.0.tasks.spawn(supervise(self.0.clone(), blob, job.clone()));
            job
        });
        lock(&job.providers).extend(providers);
        job.state.subscribe()
    }
}

fn late(blob: BlobRef, after: Duration, state: &State) -> FetchError {
    match state {
        State::Running { done, all, providers } => {
            FetchError::Deadline { blob: blob.id, after, done: *done, all: *all, providers: providers.clone() }
        }
        State::Over(_) => FetchError::Closed,
    }
}

/// Runs a job until it is over, nobody wants it any more, or the network shuts down.
async fn supervise(shared: Arc<Shared>, blob: BlobRef, job: Arc<Job>) {
    let connect_due = Mutex::new(Instant::now());
    let mut run = std::pin::pin!(Run { shared: shared.clone(), blob, job: job.clone(), connect_due }.go());
    let outcome = loop {
        tokio::select! {
            outcome = &mut run => break outcome,
            () = shared.cancel.cancelled() => break Err(FetchError::Closed),
            () = job.state.closed() => {
                let mut jobs = lock(&shared.jobs);
                // Somebody may have joined between the last one's leaving and this line.
                if job.state.is_closed() {
                    jobs.remove(&blob);
                    return;
                }
            }
        }
    };
    if let Err(error) = &outcome {
        tracing::debug!(blob = %blob.id.short(), %error, "fetch failed");
    }
    let mut jobs = lock(&shared.jobs);
    jobs.remove(&blob);
    job.state.send_replace(State::Over(outcome));
}

/// One job at work.
struct Run {
    shared: Arc<Shared>,
    blob: BlobRef,
    job: Arc<Job>,
    /// When to ask again for connections to absent providers.
    connect_due: Mutex<Instant>,
}

/// What came of one request for a segment.
struct Flight {
    node: NodeId,
    index: u32,
    received: u64,
    outcome: Result<(), FlightError>,
}

enum FlightError {
    Peer(Failure),
    Store(io::Error),
}

impl Run {
    async fn go(self) -> Result<Fetched, FetchError> {
        let blob = self.blob;
        let partial = self.store(move |store| store.begin(blob)).await?;
        let have = flags(blob, &partial);
        let resumed = |(index, here): (usize, &bool)| if *here { blob.segment_len(index as u32) } else { 0 };
        let resumed_bytes = have.iter().enumerate().map(resumed).sum();
        let mut fetched = Fetched { resumed_bytes, ..Fetched::default() };
        let mut schedule = Schedule::new(&have);
        let list = Arc::new(self.list(&mut schedule, partial.list, &mut fetched).await?);
        self.segments(&mut schedule, &list, &mut fetched).await?;
        self.store(move |store| store.finish(blob)).await?;
        _ = self.shared.wishes.try_send(Wish::Held(blob.id));
        Ok(fetched)
    }

    /// Gets the verified segment list: from the store, from the name itself, or from a provider.
    async fn list(
        &self,
        schedule: &mut Schedule,
        kept: Option<Vec<ChainingValue>>,
        fetched: &mut Fetched,
    ) -> Result<SegmentList, FetchError> {
        let only = (self.blob.n_segments() == 1).then(|| vec![*self.blob.id.as_bytes()]);
        if let Some(list) = kept.or(only).and_then(|values| SegmentList::verify(self.blob, values).ok()) {
            return Ok(list);
        }
        let mut around = self.shared.roster.watch();
        let expected = 32 * u64::from(self.blob.n_segments());
        loop {
            self.look_around(schedule);
            let Some(node) = schedule.pick(Instant::now()) else {
                self.wait(schedule, &mut around).await;
                continue;
            };
            let failure = match self.ask(node, Want::List, expected).await {
                Ok(bytes) => {
                    *fetched.bytes_received.entry(node).or_default() += bytes.len() as u64;
                    let (values, _) = bytes.as_chunks::<32>();
                    match SegmentList::verify(self.blob, values.to_vec()) {
                        Ok(list) => {
                            let kept = list.clone();
                            self.store(move |store| store.keep_list(&kept)).await?;
                            return Ok(list);
                        }
                        Err(error) => self.convict(node, &error),
                    }
                }
                Err(error) => self.judge(node, error),
            };
            schedule.blame(node, failure, Instant::now());
        }
    }

    async fn segments(
        &self,
        schedule: &mut Schedule,
        list: &Arc<SegmentList>,
        fetched: &mut Fetched,
    ) -> Result<(), FetchError> {
        let mut around = self.shared.roster.watch();
        let mut flights = FuturesUnordered::new();
        while !schedule.is_complete() {
            self.look_around(schedule);
            while let Some((node, index)) = schedule.next(Instant::now()) {
                flights.push(self.fly(node, index, list.clone()));
            }
            tokio::select! {
                Some(flight) = flights.next(), if !flights.is_empty() => {
                    if let Err(error) = land(schedule, fetched, flight) {
                        return Err(store_error(self.blob.id, &error));
                    }
                }
                () = self.wait(schedule, &mut around) => {}
            }
        }
        Ok(())
    }

    /// Brings one segment from one provider into the store. The bytes stay on the budgets until they are stored.
    async fn fly(&self, node: NodeId, index: u32, list: Arc<SegmentList>) -> Flight {
        let lost = |failure| Flight { node, index, received: 0, outcome: Err(FlightError::Peer(failure)) };
        let expected = self.blob.segment_len(index);
        let Ok(link) = self.shared.link(node) else { return lost(Failure::Lost) };
        let permits = u32::try_from(expected.div_ceil(1024)).unwrap_or(u32::MAX);
        let (Ok(_of_peer), Ok(_of_all)) =
            (link.budget().acquire_many(permits).await, self.shared.budget.acquire_many(permits).await)
        else {
            return lost(Failure::Lost);
        };
        let bytes = match link.ask(self.blob.id, Want::Segment(index), expected).await {
            Ok(bytes) => bytes,
            Err(error) => return lost(self.judge(node, error)),
        };
        let received = bytes.len() as u64;
        self.shared.count_received(node, received);
        let (store, blob) = (self.shared.store.clone(), self.blob);
        let stored = tokio::task::spawn_blocking(move || {
            list.check(index, &bytes).map(|()| store.write_segment(blob, index, &bytes))
        });
        let outcome = match stored.await {
            Ok(Ok(Ok(()))) => Ok(()),
            Ok(Ok(Err(error))) => Err(FlightError::Store(error)),
            Ok(Err(error)) => Err(FlightError::Peer(self.convict(node, &error))),
            Err(panicked) => Err(FlightError::Store(io::Error::other(panicked))),
        };
        Flight { node, index, received, outcome }
    }

    async fn ask(&self, node: NodeId, want: Want, expected: u64) -> Result<Vec<u8>, LinkError> {
        let link = self.shared.link(node)?;
        let bytes = link.ask(self.blob.id, want, expected).await?;
        self.shared.count_received(node, bytes.len() as u64);
        Ok(bytes)
    }

    fn judge(&self, node: NodeId, error: LinkError) -> Failure {
        match error {
            LinkError::NotHeld => Failure::NotHeld,
            LinkError::Lost => Failure::Lost,
            LinkError::Violation => {
                let reason = format!("broke the blob protocol for {}", self.blob.id.short());
                _ = self.shared.wishes.try_send(Wish::Strike(node, reason));
                Failure::Corrupt
            }
        }
    }

    fn convict(&self, node: NodeId, error: &SegmentError) -> Failure {
        let reason = format!("sent wrong bytes for blob {}: {error}", self.blob.id.short());
        _ = self.shared.wishes.try_send(Wish::Strike(node, reason));
        Failure::Corrupt
    }

    /// Tells the schedule who can be asked now, asks for connections to those who cannot, and reports progress.
    fn look_around(&self, schedule: &mut Schedule) {
        let named = lock(&self.job.providers).clone();
        let connected = self.shared.roster.candidates(&self.blob.id);
        schedule.set_providers(
            connected
                .into_iter()
                .map(|(node, holds)| (node, if holds || named.contains(&node) { Rank::Holder } else { Rank::Guess })),
        );
        let (done, all) = schedule.progress();
        let providers = schedule.report();
        self.job.state.send_replace(State::Running { done, all, providers });
    }

    /// Waits until something may have changed; asks meanwhile for connections to the named providers.
    async fn wait(&self, schedule: &Schedule, around: &mut watch::Receiver<u64>) {
        let now = Instant::now();
        let at = schedule.wakes_at(now).map_or(now + LOOK_AROUND, |wake| wake.min(now + LOOK_AROUND));
        self.wish_for_providers(now);
        tokio::select! {
            () = sleep_until(at.into()) => {}
            changed = around.changed() => {
                if changed.is_err() {
                    sleep_until(at.into()).await;
                }
            }
        }
    }

    fn wish_for_providers(&self, now: Instant) {
        let mut due = lock(&self.connect_due);
        if *due > now {
            return;
        }
        *due = now + CONNECT_EVERY;
        let away = |node: &NodeId| self.shared.roster.role(node).is_none();
        let missing: Vec<NodeId> = lock(&self.job.providers).iter().copied().filter(away).collect();
        if !missing.is_empty() {
            _ = self.shared.wishes.try_send(Wish::Connect(missing));
        }
    }

    async fn store<T, F>(&self, work: F) -> Result<T, FetchError>
    where
        T: Send + 'static,
        F: FnOnce(&dyn BlobStore) -> io::Result<T> + Send + 'static,
    {
        let store = self.shared.store.clone();
        let done = tokio::task::spawn_blocking(move || work(&*store)).await;
        done.unwrap_or_else(|panicked| Err(io::Error::other(panicked)))
            .map_err(|error| store_error(self.blob.id, &error))
    }
}

/// Notes what came of a request; fails only if the store does.
fn land(schedule: &mut Schedule, fetched: &mut Fetched, flight: Flight) -> io::Result<()> {
    let Flight { node, index, received, outcome } = flight;
    if received > 0 {
        *fetched.bytes_received.entry(node).or_default() += received;
    }
    match outcome {
        Ok(()) => {
            if schedule.delivered(node, index) && !fetched.from.contains(&node) {
                fetched.from.push(node);
            }
        }
        Err(FlightError::Peer(failure)) => schedule.failed(node, index, failure, Instant::now()),
        Err(FlightError::Store(error)) => return Err(error),
    }
    Ok(())
}

fn store_error(blob: BlobId, error: &io::Error) -> FetchError {
    FetchError::Store { blob, kind: error.kind(), message: error.to_string() }
}

/// Returns one flag per segment; what the store says about another number of segments counts for nothing.
fn flags(blob: BlobRef, partial: &Partial) -> Vec<bool> {
    let n = blob.n_segments() as usize;
    if partial.have.len() == n { partial.have.clone() } else { vec![false; n] }
}

impl Shared {
    /// Returns the link to a peer, opening it if there is none.
    fn link(self: &Arc<Self>, node: NodeId) -> Result<Link, LinkError> {
        let mut links = lock(&self.links);
        links.retain(|_, link| !link.is_closed());
        if let Some(link) = links.get(&node) {
            return Ok(link.clone());
        }
        if links.len() >= MAX_OUTBOUND {
            let idle = links.iter().find(|(_, link)| link.is_idle()).map(|(node, _)| *node);
            // With every link busy, the caller tries again after a rest.
            links.remove(&idle.ok_or(LinkError::Lost)?);
        }
        let (link, asks) = Link::new();
        links.insert(node, link.clone());
        self.tasks.spawn(open_and_run(self.clone(), node, asks));
        Ok(link)
    }

    fn count_received(&self, node: NodeId, bytes: u64) {
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
        let rate = link::run(stream, asks, rate).await;
        let mut rates = lock(&shared.rates);
        if rates.len() >= MAX_RATES {
            rates.clear();
        }
        rates.insert(node, rate.0);
    };
    tokio::select! {
        () = work => {}
        () = shared.cancel.cancelled() => {}
    }
}

/// A panic elsewhere while a lock was held leaves a map that is still well formed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
