//! One job: the transfer of one blob, from the preparation of the store to the complete blob.
//!
//! It keeps the [`Schedule`] busy. Every request for a segment is a flight. A flight ends with the verified bytes in the
//! store, or with a failure of the peer. The providers are looked up again whenever a flight lands and whenever peers come
//! and go.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fednode_core::{
    BlobId, BlobRef, BlobStore, ChainingValue, NodeId, Partial, SegmentError, SegmentList,
};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::watch;
use tokio::time::sleep_until;

use super::detour::Detour;
use super::fetcher::{FetchError, Fetched, Job, Shared, State, lock};
use super::link::{Form, LinkError, Received};
use super::packing::{self, Malformed, Packing, Workbench};
use super::schedule::{Failure, Rank, Schedule};
use super::spares::Spares;
use super::window::Window;
use super::{Wish, may_go_on};
use crate::wire::Want;

/// How often a job looks up its providers even if nothing happens.
const LOOK_AROUND: Duration = Duration::from_millis(500);
/// How often a job asks for a connection to a provider that is not connected.
const CONNECT_EVERY: Duration = Duration::from_secs(2);

/// A running job.
pub(super) struct Run {
    shared: Arc<Shared>,
    /// Where segments go: the store that all share, or a window.
    store: Arc<dyn BlobStore>,
    blob: BlobRef,
    job: Arc<Job>,
    /// What peers are told once it is here.
    news: Option<Wish>,
    /// The blob against which segments may be packed, while the store can read it.
    base: Mutex<Option<BlobRef>>,
    /// When to request connections to absent providers again.
    connect_due: Mutex<Instant>,
    detour: Detour,
}

/// The result of one request for a segment.
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

/// Tells why received bytes were not stored.
enum Rejection {
    /// They are packed against a base that the store cannot read any more.
    Base(io::Error),
    Packed(Malformed),
    Segment(SegmentError),
    Store(io::Error),
}

impl Run {
    pub(super) fn new(shared: Arc<Shared>, blob: BlobRef, job: Arc<Job>) -> Self {
        let connect_due = Mutex::new(Instant::now());
        let detour = Detour::new(shared.clone(), blob, job.clone());
        Self {
            detour,
            store: shared.store.clone(),
            news: Some(Wish::Held(blob.id)),
            shared,
            blob,
            job,
            base: Mutex::default(),
            connect_due,
        }
    }

    /// Brings some of the blob into a window.
    pub(super) fn into_window(self, window: Arc<Window>) -> Self {
        Self {
            store: window,
            news: None,
            ..self
        }
    }

    /// Brings the blob into the store. Callers have deadlines; the job has none.
    pub(super) async fn go(mut self) -> Result<Fetched, FetchError> {
        let news = self.news.take();
        let fetched = tokio::select! {
            fetched = self.transfer() => fetched,
            never = self.detour.run() => match never {},
        };
        if let Some(news) = news.filter(|_| fetched.is_ok()) {
            // A full queue loses only the news: peers also find a blob by asking.
            _ = self.shared.wishes.try_send(news);
        }
        fetched
    }

    async fn transfer(&self) -> Result<Fetched, FetchError> {
        let blob = self.blob;
        let partial = self.store(move |store| store.begin(blob)).await?;
        self.look_for_base().await?;
        let have = flags(blob, &partial);
        let resumed = |(index, here): (usize, &bool)| {
            if *here {
                blob.segment_len(index as u32)
            } else {
                0
            }
        };
        let resumed_bytes = have.iter().enumerate().map(resumed).sum();
        let mut fetched = Fetched {
            resumed_bytes,
            ..Fetched::default()
        };
        let mut schedule = Schedule::new(&have);
        // The list before any segment: it folds to the blob's name, and only with it can a segment be verified alone.
        let list = Arc::new(self.list(&mut schedule, partial.list, &mut fetched).await?);
        self.segments(&mut schedule, &list, &mut fetched).await?;
        // Only a finished blob has its name in the store; until then a crash leaves a partial one.
        self.store(move |store| store.finish(blob)).await?;
        Ok(fetched)
    }

    /// Returns the verified segment list: from the store, from the name itself, or from a provider.
    async fn list(
        &self,
        schedule: &mut Schedule,
        kept: Option<Vec<ChainingValue>>,
        fetched: &mut Fetched,
    ) -> Result<SegmentList, FetchError> {
        // The name of a blob of one segment is that segment's hash, so nothing has to be fetched.
        let only = (self.blob.n_segments() == 1).then(|| vec![*self.blob.id.as_bytes()]);
        if let Some(list) = kept
            .or(only)
            .and_then(|values| SegmentList::verify(self.blob, values).ok())
        {
            return Ok(list);
        }
        let mut around = self.shared.roster.watch();
        let expected = 32 * u64::from(self.blob.n_segments());
        // One provider at a time: the list is small, and a wrong one convicts its sender at once.
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
                            // Kept, so that a restart can verify the segments that it finds on the disk.
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

    async fn look_for_base(&self) -> Result<(), FetchError> {
        let Some(base) = self.job.packing.and_then(|packing| packing.base) else {
            return Ok(());
        };
        let size = self.store(move |store| Ok(store.held(&base))).await?;
        *lock(&self.base) = size.map(|size| BlobRef { id: base, size });
        Ok(())
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
            // Fill all windows before waiting: a provider with room and no request is lost time.
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

    /// Brings one segment from one provider into the store. The bytes count on both budgets until they are stored.
    async fn fly(&self, node: NodeId, index: u32, list: Arc<SegmentList>) -> Flight {
        let lost = |failure| Flight {
            node,
            index,
            received: 0,
            outcome: Err(FlightError::Peer(failure)),
        };
        let expected = self.blob.segment_len(index);
        let Ok(link) = self.shared.link(node) else {
            return lost(Failure::Lost);
        };
        // The peer's own budget first: a slow peer then waits for itself and does not hold permits that all share.
        let permits = u32::try_from(expected.div_ceil(1024)).unwrap_or(u32::MAX);
        let (Ok(_of_peer), Ok(_of_all)) = (
            link.budget().acquire_many(permits).await,
            self.shared.budget.acquire_many(permits).await,
        ) else {
            return lost(Failure::Lost);
        };
        let came = match link.ask(self.blob.id, self.want(index), expected).await {
            Ok(came) => came,
            Err(error) => return lost(self.judge(node, error)),
        };
        let received = came.bytes.len() as u64;
        self.shared.count_received(node, received);
        let outcome = self.take_in(index, came, list).await.map_err(|rejection| match rejection {
            Rejection::Store(error) => FlightError::Store(error),
            // The size is the word of who announced the blob, and whoever holds it cannot know that it is false.
            Rejection::Segment(_) if may_go_on(self.blob) => FlightError::Peer(Failure::Corrupt),
            Rejection::Packed(error) => FlightError::Peer(self.convict(node, &error)),
            Rejection::Segment(error) => FlightError::Peer(self.convict(node, &error)),
            Rejection::Base(error) => {
                // The peer did nothing wrong: the own store dropped the base. The segment is requested again, plain.
                tracing::debug!(blob = %self.blob.id.short(), %error, "the base is no longer here");
                *lock(&self.base) = None;
                FlightError::Peer(Failure::Lost)
            }
        });
        Flight {
            node,
            index,
            received,
            outcome,
        }
    }

    fn want(&self, index: u32) -> Want {
        let Some(Packing { width, .. }) = self.job.packing else {
            return Want::Segment(index);
        };
        // A difference needs as many bytes on both sides, so a base is named only where its segment is as long.
        let is_like = |base: &BlobRef| base.segment_len(index) == self.blob.segment_len(index);
        Want::Packed {
            index,
            width,
            base: lock(&self.base).filter(is_like).map(|base| base.id),
        }
    }

    /// Unpacks a segment if it is packed, verifies it and stores it, on a thread.
    async fn take_in(
        &self,
        index: u32,
        came: Received,
        list: Arc<SegmentList>,
    ) -> Result<(), Rejection> {
        let (store, spares) = (self.store.clone(), self.shared.spares.clone());
        let workbench = self.shared.workbench.clone();
        let packing = match came.form {
            Form::Plain => None,
            Form::Packed { against } => self
                .job
                .packing
                .map(|packing| packing.with_base_if(against)),
        };
        // Waited for here and not on the thread, so that no thread is blocked while another unpacks.
        let _turn = match packing {
            Some(_) => self.shared.workbench.turn().await,
            None => None,
        };
        let stored = tokio::task::spawn_blocking(move || {
            let mut bytes = came.bytes;
            let unpacked = match packing {
                Some(packing) => unpack(
                    &mut bytes,
                    list.blob(),
                    index,
                    packing,
                    &*store,
                    &spares,
                    &workbench,
                ),
                None => Ok(()),
            };
            let outcome = unpacked.and_then(|()| {
                // Whatever the peer sent and however it was packed: only bytes with the right hash reach the store.
                let segment = list.verified(index, &bytes).map_err(Rejection::Segment)?;
                store.write_verified(segment).map_err(Rejection::Store)
            });
            spares.give(bytes);
            outcome
        });
        stored
            .await
            .unwrap_or_else(|panicked| Err(Rejection::Store(io::Error::other(panicked))))
    }

    async fn ask(&self, node: NodeId, want: Want, expected: u64) -> Result<Vec<u8>, LinkError> {
        let link = self.shared.link(node)?;
        let Received { bytes, .. } = link.ask(self.blob.id, want, expected).await?;
        self.shared.count_received(node, bytes.len() as u64);
        Ok(bytes)
    }

    fn judge(&self, node: NodeId, error: LinkError) -> Failure {
        match error {
            // A wrong size may be the fault of the advert's author, so the peer gets no strike for it.
            LinkError::NotHeld | LinkError::Later | LinkError::OtherSize => {
                self.detour.on_not_held(node);
                Failure::NotHeld
            }
            LinkError::Lost => Failure::Lost,
            LinkError::Violation => {
                let reason = format!("broke the blob protocol for {}", self.blob.id.short());
                _ = self.shared.wishes.try_send(Wish::Strike(node, reason));
                Failure::Corrupt
            }
        }
    }

    fn convict(&self, node: NodeId, error: &dyn std::fmt::Display) -> Failure {
        let reason = format!(
            "sent wrong bytes for blob {}: {error}",
            self.blob.id.short()
        );
        _ = self.shared.wishes.try_send(Wish::Strike(node, reason));
        Failure::Corrupt
    }

    /// Tells the schedule which providers are connected now, and reports progress.
    fn look_around(&self, schedule: &mut Schedule) {
        let named = lock(&self.job.providers).clone();
        let connected = self.shared.roster.candidates(&self.blob.id);
        schedule.set_providers(connected.into_iter().map(|(node, holds)| {
            (
                node,
                if holds || named.contains(&node) {
                    Rank::Holder
                } else {
                    Rank::Guess
                },
            )
        }));
        let fresh = self.detour.take_fresh();
        fresh.iter().for_each(|node| schedule.forgive(node));
        let (done, all) = schedule.progress();
        let providers = self.detour.report().unwrap_or_else(|| schedule.report());
        self.job.state.send_replace(State::Running {
            done,
            all,
            providers,
        });
    }

    /// Waits until something may have changed, and requests connections to the named providers.
    async fn wait(&self, schedule: &Schedule, around: &mut watch::Receiver<u64>) {
        let now = Instant::now();
        let at = schedule
            .wakes_at(now)
            .map_or(now + LOOK_AROUND, |wake| wake.min(now + LOOK_AROUND));
        self.wish_for_providers(now);
        tokio::select! {
            () = sleep_until(at.into()) => {}
            () = self.detour.news.notified() => {}
            // A closed roster means shutdown. The sleep keeps the loop from spinning until the token is seen.
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
        // Only the named providers: whom else to connect to is the dialer's business.
        let away = |node: &NodeId| self.shared.roster.role(node).is_none();
        let missing: Vec<NodeId> = lock(&self.job.providers)
            .iter()
            .copied()
            .filter(away)
            .collect();
        if !missing.is_empty() {
            _ = self.shared.wishes.try_send(Wish::Connect(missing));
        }
    }

    async fn store<T, F>(&self, work: F) -> Result<T, FetchError>
    where
        T: Send + 'static,
        F: FnOnce(&dyn BlobStore) -> io::Result<T> + Send + 'static,
    {
        let store = self.store.clone();
        let done = tokio::task::spawn_blocking(move || work(&*store)).await;
        done.unwrap_or_else(|panicked| Err(io::Error::other(panicked)))
            .map_err(|error| store_error(self.blob.id, &error))
    }
}

/// Notes the result of a flight. Fails only if the store fails.
fn land(schedule: &mut Schedule, fetched: &mut Fetched, flight: Flight) -> io::Result<()> {
    let Flight {
        node,
        index,
        received,
        outcome,
    } = flight;
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

/// Unpacks a segment, in place of the received bytes.
fn unpack(
    bytes: &mut Vec<u8>,
    blob: BlobRef,
    index: u32,
    packing: Packing,
    store: &dyn BlobStore,
    spares: &Spares,
    workbench: &Workbench,
) -> Result<(), Rejection> {
    let length = blob.segment_len(index) as usize;
    let mut base = spares.take();
    if let Some(id) = packing.base {
        store
            .read_segment_into(&id, index, &mut base)
            .map_err(Rejection::Base)?;
    }
    let against = packing.base.is_some().then_some(base.as_slice());
    let unpacked = packing::unpack(
        bytes,
        against,
        packing.width,
        length,
        &mut workbench.tools(),
    );
    spares.give(base);
    unpacked.map_err(Rejection::Packed)
}

fn store_error(blob: BlobId, error: &io::Error) -> FetchError {
    FetchError::Store {
        blob,
        kind: error.kind(),
        message: error.to_string(),
    }
}

/// Returns one flag per segment; what the store says about another number of segments counts for nothing.
fn flags(blob: BlobRef, partial: &Partial) -> Vec<bool> {
    let n = blob.n_segments() as usize;
    if partial.have.len() == n {
        partial.have.clone()
    } else {
        vec![false; n]
    }
}
