//! The server: serves segments of held blobs to welcome peers, with a bounded number of streams and bytes in memory.
//!
//! `libp2p-stream` keeps one waiting stream and silently drops a second. So the accepting loop does nothing but hand streams
//! on. When all places are taken, the longest idle stream is asked to end and the new one is dropped. The other side tries
//! again in a moment.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fednode_core::{BlobId, BlobRef, BlobStore, NodeId};
use futures::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, StreamExt};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::errand::Errands;
use super::packing::{self, Width, Workbench};
use super::spares::Spares;
use super::{MAX_INBOUND, MAX_INBOUND_PER_PEER};
use crate::codec;
use crate::identity::node_id;
use crate::roster::Roster;
use crate::traffic::Traffic;
use crate::wire::{Answer, BlobAnswer, BlobAsk, MAX_BLOB_HEADER, Want};

/// Segments that are read ahead, over all streams: 16 MiB, beside the one that each stream may always hold. Slow peers can
/// take up the 16 MiB, and still every stream is served.
const MAX_AHEAD: usize = 16;
/// A stream without requests is closed after this time.
const IDLE: Duration = Duration::from_secs(30);
/// Time for a peer to take a segment (1 MiB at 280 kbit/s). After that its stream is closed, to make room for others.
const SEND_PATIENCE: Duration = Duration::from_secs(30);

/// Serves blobs until cancelled.
pub(crate) async fn serve(
    mut incoming: libp2p_stream::IncomingStreams,
    store: Arc<dyn BlobStore>,
    errands: Arc<Errands>,
    roster: Arc<Roster>,
    traffic: Arc<Traffic>,
    cancel: CancellationToken,
) {
    let places = Places::default();
    let spares: Arc<Spares> = Arc::default();
    let ahead = Arc::new(Semaphore::new(MAX_AHEAD));
    let workbench: Arc<Workbench> = Arc::default();
    let tasks = TaskTracker::new();
    loop {
        let (peer, stream) = tokio::select! {
            () = cancel.cancelled() => break,
            next = incoming.next() => match next {
                Some(next) => next,
                None => break,
            },
        };
        // Dropping the stream resets it: a stranger gets no answer, not even a refusal.
        let Some(node) = node_id(&peer).filter(|node| roster.role(node).is_some()) else {
            continue;
        };
        let Some(place) = places.take(node) else {
            continue;
        };
        let service = Service {
            node,
            store: store.clone(),
            errands: errands.clone(),
            roster: roster.clone(),
            traffic: traffic.clone(),
            own: Arc::new(Semaphore::new(1)),
            ahead: ahead.clone(),
            workbench: workbench.clone(),
            spares: spares.clone(),
            pressure: place.pressure.clone(),
        };
        let (places, cancel) = (places.clone(), cancel.clone());
        tasks.spawn(async move {
            let (spares, workbench) = (service.spares.clone(), service.workbench.clone());
            tokio::select! {
                () = cancel.cancelled() => {}
                ended = service.run(stream) => if let Err(error) = ended {
                    tracing::debug!(%node, %error, "blob stream ended");
                },
            }
            // The place is given back before the question whether all are free.
            drop(place);
            if places.are_free() {
                spares.clear();
                workbench.clear();
            }
        });
    }
    tasks.close();
    tasks.wait().await;
}

/// The places for streams.
#[derive(Debug, Clone)]
struct Places {
    all: Arc<Semaphore>,
    of_peer: Arc<Mutex<HashMap<NodeId, usize>>>,
    /// Wakes one idle stream to make room.
    pressure: Arc<Notify>,
}

impl Default for Places {
    fn default() -> Self {
        Self {
            all: Arc::new(Semaphore::new(MAX_INBOUND)),
            of_peer: Arc::default(),
            pressure: Arc::default(),
        }
    }
}

/// A taken place. It is given back when dropped.
#[derive(Debug)]
struct Place {
    node: NodeId,
    of_peer: Arc<Mutex<HashMap<NodeId, usize>>>,
    pressure: Arc<Notify>,
    _one: OwnedSemaphorePermit,
}

impl Places {
    /// Tells whether no peer is served.
    fn are_free(&self) -> bool {
        self.of_peer
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_empty()
    }

    fn take(&self, node: NodeId) -> Option<Place> {
        let Ok(one) = self.all.clone().try_acquire_owned() else {
            // Dropped all the same: the idle stream takes a moment to end, and the accepting loop must not wait for it.
            self.pressure.notify_one();
            return None;
        };
        let mut of_peer = self.of_peer.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = of_peer.entry(node).or_default();
        if *taken >= MAX_INBOUND_PER_PEER {
            return None;
        }
        *taken += 1;
        Some(Place {
            node,
            of_peer: self.of_peer.clone(),
            pressure: self.pressure.clone(),
            _one: one,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut of_peer = self.of_peer.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = of_peer.entry(self.node).or_default();
        *taken = taken.saturating_sub(1);
        // An empty map says that nobody is served, and names of peers that are gone must not add up.
        if *taken == 0 {
            of_peer.remove(&self.node);
        }
    }
}

/// The service of one stream.
struct Service {
    node: NodeId,
    store: Arc<dyn BlobStore>,
    errands: Arc<Errands>,
    roster: Arc<Roster>,
    traffic: Arc<Traffic>,
    /// Room for one segment of this stream.
    own: Arc<Semaphore>,
    /// Room for more segments, shared by all streams.
    ahead: Arc<Semaphore>,
    workbench: Arc<Workbench>,
    spares: Arc<Spares>,
    pressure: Arc<Notify>,
}

/// An answer that is ready to be sent. The permit is held until it is sent.
struct Ready {
    answer: BlobAnswer,
    bytes: Vec<u8>,
    _permit: OwnedSemaphorePermit,
}

impl Service {
    async fn run<S: AsyncRead + AsyncWrite + Unpin + Send>(
        self,
        stream: S,
    ) -> Result<(), codec::CodecError> {
        let (reader, writer) = stream.split();
        // One answer is sent while the next is read from disk.
        let (ready, answers) = mpsc::channel(1);
        let sending = self.send(writer, answers);
        let reading = self.read(reader, ready);
        futures::future::try_join(reading, sending)
            .await
            .map(|_| ())
    }

    async fn read<R: AsyncRead + Unpin + Send>(
        &self,
        mut reader: R,
        ready: mpsc::Sender<Ready>,
    ) -> Result<(), codec::CodecError> {
        loop {
            let asked = tokio::select! {
                asked = timeout(IDLE, codec::read::<BlobAsk, _>(&mut reader, MAX_BLOB_HEADER)) => asked,
                // Only an idle stream makes room: one that has answers to send is busy.
                () = self.pressure.notified(), if ready.capacity() == ready.max_capacity() => return Ok(()),
            };
            let ask = match asked {
                Ok(Ok((ask, _))) => ask,
                Ok(Err(error)) => return unless_over(error),
                Err(_) => return Ok(()),
            };
            // The place in the queue comes before the permit and the read. So one answer is being sent and one waits, and
            // a slow reader holds no more than that.
            let Ok(place) = ready.reserve().await else {
                return Ok(());
            };
            // The own room first. What all share is for streams whose own segment is still being sent.
            let permit = tokio::select! {
                biased;
                permit = self.own.clone().acquire_owned() => permit,
                permit = self.ahead.clone().acquire_owned() => permit,
            };
            let Ok(permit) = permit else { return Ok(()) };
            // Packing needs a turn, plain segments do not: they must not wait behind a compressor.
            let turn = match ask.want {
                Want::Packed { .. } => self.workbench.turn().await,
                Want::List | Want::Segment(_) | Want::Bring { .. } => None,
            };
            let (store, spares, workbench) = (
                self.store.clone(),
                self.spares.clone(),
                self.workbench.clone(),
            );
            let (id, want) = (ask.blob, ask.want);
            let read =
                tokio::task::spawn_blocking(move || answer(&*store, &ask, &spares, &workbench))
                    .await;
            drop(turn);
            let Ok((mut answer, bytes)) = read else {
                return Ok(());
            };
            // Somebody else may hold what this node lacks.
            if let (Want::Bring { size }, Answer::NotHeld) = (want, answer.outcome) {
                answer.outcome = self.errands.run(self.node, BlobRef { id, size });
            }
            place.send(Ready {
                answer,
                bytes,
                _permit: permit,
            });
        }
    }

    async fn send<W: AsyncWrite + Unpin + Send>(
        &self,
        mut writer: W,
        mut answers: mpsc::Receiver<Ready>,
    ) -> Result<(), codec::CodecError> {
        while let Some(ready) = answers.recv().await {
            // A peer that lost its welcome in the meantime gets nothing more.
            let role = self
                .roster
                .role(&self.node)
                .ok_or(io::Error::from(io::ErrorKind::ConnectionAborted))?;
            let sent = async {
                codec::write(&mut writer, &ready.answer, MAX_BLOB_HEADER).await?;
                writer.write_all(&ready.bytes).await?;
                writer.flush().await
            };
            timeout(SEND_PATIENCE, sent)
                .await
                .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
            self.traffic.blob_sent(role, ready.bytes.len() as u64);
            self.spares.give(ready.bytes);
        }
        writer.close().await?;
        Ok(())
    }
}

/// Reads the requested part, and packs it if that is requested and worthwhile.
fn answer(
    store: &dyn BlobStore,
    ask: &BlobAsk,
    spares: &Spares,
    workbench: &Workbench,
) -> (BlobAnswer, Vec<u8>) {
    let (outcome, bytes) = read(store, ask, spares, workbench).unwrap_or_else(|error| {
        tracing::warn!(blob = %ask.blob.short(), %error, "a held blob could not be read");
        // The stream goes on: the peer asks another holder for this segment, and this node for others.
        (Answer::Failed, Vec::new())
    });
    (
        BlobAnswer {
            id: ask.id,
            outcome,
        },
        bytes,
    )
}

fn read(
    store: &dyn BlobStore,
    ask: &BlobAsk,
    spares: &Spares,
    workbench: &Workbench,
) -> io::Result<(Answer, Vec<u8>)> {
    let Some(held) = store.held(&ask.blob) else {
        return Ok((Answer::NotHeld, Vec::new()));
    };
    let segment = |index| -> io::Result<Vec<u8>> {
        let mut bytes = spares.take();
        store.read_segment_into(&ask.blob, index, &mut bytes)?;
        Ok(bytes)
    };
    match ask.want {
        Want::List => Ok(plain(store.segment_list(&ask.blob)?.values().concat())),
        Want::Segment(index) => Ok(plain(segment(index)?)),
        // No bytes: whoever asks fetches segment by segment from here on, as from any holder.
        // "Here" is an answer without bytes. The asker then requests segments as from any holder.
        Want::Bring { size } if size == held => Ok(plain(Vec::new())),
        // Another size than was announced, so this is not the blob that the advert means.
        Want::Bring { .. } => Ok((Answer::Failed, Vec::new())),
        Want::Packed { index, width, base } => {
            let segment = segment(index)?;
            let base = base.and_then(|base| read_base(store, base, index, segment.len(), spares));
            Ok(pack(segment, base, width, spares, workbench))
        }
    }
}

/// Reads the base segment for packing. Returns `None` if this node holds none of that length.
fn read_base(
    store: &dyn BlobStore,
    id: BlobId,
    index: u32,
    length: usize,
    spares: &Spares,
) -> Option<Vec<u8>> {
    let base = BlobRef {
        id,
        size: store.held(&id)?,
    };
    // A difference needs as many bytes on both sides. The segment is packed alone then.
    if base.segment_len(index) != length as u64 {
        return None;
    }
    let mut bytes = spares.take();
    // Dropped from the store in this moment, perhaps. The peer gets the segment without it.
    // A base that cannot be read fails nothing: the segment is packed alone, and the answer says so.
    store.read_segment_into(&id, index, &mut bytes).ok()?;
    Some(bytes)
}

fn pack(
    segment: Vec<u8>,
    base: Option<Vec<u8>>,
    width: Width,
    spares: &Spares,
    workbench: &Workbench,
) -> (Answer, Vec<u8>) {
    let mut packed = spares.take();
    let mut tools = workbench.tools();
    let mut pack =
        |base: Option<&[u8]>| packing::pack(&segment, base, width, &mut tools, &mut packed);
    let against = base.as_deref().is_some_and(|base| pack(Some(base)));
    // A segment that does not resemble its base may still pack alone.
    let is_worthwhile = against || pack(None);
    base.into_iter().for_each(|base| spares.give(base));
    if !is_worthwhile {
        spares.give(packed);
        return plain(segment);
    }
    spares.give(segment);
    (
        Answer::Packed {
            bytes: u32::try_from(packed.len()).unwrap_or(u32::MAX),
            against,
        },
        packed,
    )
}

fn plain(bytes: Vec<u8>) -> (Answer, Vec<u8>) {
    (
        Answer::Bytes(u32::try_from(bytes.len()).unwrap_or(u32::MAX)),
        bytes,
    )
}
/// The end of a stream between two requests is no error.
fn unless_over(error: codec::CodecError) -> Result<(), codec::CodecError> {
    match error {
        codec::CodecError::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
        error => Err(error),
    }
}
