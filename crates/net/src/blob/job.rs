//! One job: a blob on its way, from the store's preparation to its finish.
//!
//! It keeps the [`Schedule`] busy: every request for a segment is a flight that ends with the verified bytes in the
//! store or with a failure of the peer. Who may be asked is looked up again whenever a flight lands and whenever peers
//! come and go.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fednode_core::{BlobId, BlobRef, BlobStore, ChainingValue, NodeId, Partial, SegmentError, SegmentList};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::watch;
use tokio::time::sleep_until;

use super::Wish;
use super::fetcher::{FetchError, Fetched, Job, Shared, State, lock};
use super::link::LinkError;
use super::schedule::{Failure, Rank, Schedule};
use crate::wire::Want;

/// How often a job looks around even if nothing happens.
const LOOK_AROUND: Duration = Duration::from_millis(500);
/// How often a job asks for a connection to a provider that is not connected.
const CONNECT_EVERY: Duration = Duration::from_secs(2);

/// One job at work.
pub(super) struct Run {
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
    pub(super) fn new(shared: Arc<Shared>, blob: BlobRef, job: Arc<Job>) -> Self {
        Self { shared, blob, job, connect_due: Mutex::new(Instant::now()) }
    }

    /// Brings the blob into the store, however long it takes.
    pub(super) async fn go(self) -> Result<Fetched, FetchError> {
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
        let (store, spares) = (self.shared.store.clone(), self.shared.spares.clone());
        let stored = tokio::task::spawn_blocking(move || {
            let outcome = list.verified(index, &bytes).map(|segment| store.write_verified(segment));
            spares.give(bytes);
            outcome
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
