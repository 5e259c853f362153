//! A link: one stream to one peer, with several requests under way on it.
//!
//! Requests go out as they come, answers come back in the same order. A writer and a reader share the stream; between
//! them runs a queue of what is owed. Whatever goes wrong ends the link, and everything owed fails with it: a peer that
//! breaks the order, the length or the time cannot be followed any further.
//!
//! ```text
//!   Ask ─► writer ─► stream ─► peer                 patience for one answer = max(5 s, 4 × expected),
//!             └─ owed ─► reader ◄─ stream           and no more than 5 s without a byte
//! ```

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fednode_core::BlobId;
use futures::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::timeout;

use super::{MAX_PEER_IN_FLIGHT, STALL};
use crate::codec;
use crate::wire::{Answer, BlobAnswer, BlobAsk, MAX_BLOB_HEADER, Want};

/// Requests under way on one link; the budget of bytes is reached first, except with tiny blobs.
const PIPELINE: usize = 32;
/// An unused link is closed after this, so that the peer can serve somebody else.
const IDLE: Duration = Duration::from_secs(5);
/// What a peer of which nothing is known is expected to send per second: 2 Mbit/s.
const FIRST_RATE: f64 = 256.0 * 1024.0;
/// Below this no peer is expected to be, however often it was too slow.
const LOWEST_RATE: f64 = 4.0 * 1024.0;
/// Weight of the newest measurement.
const SMOOTHING: f64 = 0.3;
/// Answers below this say more about latency than about the rate.
const MEASURED_BYTES: usize = 64 << 10;
/// Bytes per read.
const CHUNK: usize = 256 << 10;

/// Tells why a request was not answered with bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LinkError {
    #[error("the peer does not hold it")]
    NotHeld,
    #[error("the link was lost")]
    Lost,
    #[error("the peer broke the protocol")]
    Violation,
}

/// One request and where its answer goes.
#[derive(Debug)]
pub(crate) struct Ask {
    pub(crate) blob: BlobId,
    pub(crate) want: Want,
    /// The bytes that an honest answer has.
    pub(crate) expected: u64,
    pub(crate) reply: oneshot::Sender<Result<Vec<u8>, LinkError>>,
}

/// The asking side of a link.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    asks: mpsc::Sender<Ask>,
    /// One permit per KiB that may be in flight.
    budget: Arc<Semaphore>,
}

impl Link {
    /// Makes the two ends: the handle, and the queue for [`run`].
    pub(crate) fn new() -> (Self, mpsc::Receiver<Ask>) {
        let (asks, queue) = mpsc::channel(PIPELINE);
        let budget = usize::try_from(MAX_PEER_IN_FLIGHT >> 10).unwrap_or(usize::MAX);
        (Self { asks, budget: Arc::new(Semaphore::new(budget)) }, queue)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.asks.is_closed()
    }

    /// Tells whether nobody waits for anything on it.
    pub(crate) fn is_idle(&self) -> bool {
        self.budget.available_permits() == usize::try_from(MAX_PEER_IN_FLIGHT >> 10).unwrap_or(usize::MAX)
    }

    pub(crate) fn budget(&self) -> &Arc<Semaphore> {
        &self.budget
    }

    /// Asks and waits for the answer.
    pub(crate) async fn ask(&self, blob: BlobId, want: Want, expected: u64) -> Result<Vec<u8>, LinkError> {
        let (reply, answer) = oneshot::channel();
        self.asks.send(Ask { blob, want, expected, reply }).await.map_err(|_| LinkError::Lost)?;
        answer.await.unwrap_or(Err(LinkError::Lost))
    }
}

/// Runs a link until it is idle, fails or is dropped; returns the rate of the peer for the next one.
pub(crate) async fn run<S>(stream: S, asks: mpsc::Receiver<Ask>, rate: Option<f64>) -> Rate
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let (reader, writer) = stream.split();
    let (owe, owed) = mpsc::channel(PIPELINE);
    let slots = Arc::new(Semaphore::new(PIPELINE));
    let mut rate = Rate(rate.unwrap_or(FIRST_RATE));
    // Whichever side ends first ends the link.
    tokio::select! {
        _ = write_asks(writer, asks, owe, slots) => {}
        () = read_answers(reader, owed, &mut rate) => {}
    }
    rate
}

/// The expected bytes per second of a peer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Rate(pub(crate) f64);

impl Rate {
    fn patience(self, bytes: u64) -> Duration {
        STALL.max(Duration::from_secs_f64(4.0 * bytes as f64 / self.0))
    }

    fn measured(&mut self, bytes: usize, took: Duration) {
        if bytes >= MEASURED_BYTES {
            let now = bytes as f64 / took.as_secs_f64().max(1e-6);
            self.0 += SMOOTHING * (now - self.0);
        }
    }

    /// The peer took longer than expected, so less is expected from now on.
    fn disappointed(&mut self) {
        self.0 = (self.0 / 2.0).max(LOWEST_RATE);
    }
}

/// What the peer owes us.
#[derive(Debug)]
struct Owed {
    id: u32,
    expected: u64,
    reply: oneshot::Sender<Result<Vec<u8>, LinkError>>,
    /// Held until the answer was read.
    _slot: OwnedSemaphorePermit,
}

async fn write_asks<W>(
    mut writer: W,
    mut asks: mpsc::Receiver<Ask>,
    owe: mpsc::Sender<Owed>,
    slots: Arc<Semaphore>,
) -> io::Result<()>
where
    W: AsyncWrite + Unpin + Send,
{
    for id in 0.. {
        let Some(ask) = next_ask(&mut asks, &slots).await else { return Ok(()) };
        let slot = slots.clone().acquire_owned().await.map_err(io::Error::other)?;
        let Ask { blob, want, expected, reply } = ask;
        let sent = async {
            codec::write(&mut writer, &BlobAsk { id, blob, want }, MAX_BLOB_HEADER).await?;
            writer.flush().await
        };
        timeout(STALL, sent).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        owe.send(Owed { id, expected, reply, _slot: slot }).await.map_err(io::Error::other)?;
    }
    Ok(())
}

/// Waits for the next request; `None` when nobody asks any more and nothing is owed.
async fn next_ask(asks: &mut mpsc::Receiver<Ask>, slots: &Semaphore) -> Option<Ask> {
    loop {
        match timeout(IDLE, asks.recv()).await {
            Ok(Some(ask)) => return Some(ask),
            Ok(None) => {
                let everything = u32::try_from(PIPELINE).unwrap_or(u32::MAX);
                // The slots come back when all answers were read; the reader's end ends this wait.
                _ = slots.acquire_many(everything).await;
                return None;
            }
            Err(_) if slots.available_permits() == PIPELINE => return None,
            Err(_) => {}
        }
    }
}

async fn read_answers<R>(mut reader: R, mut owed: mpsc::Receiver<Owed>, rate: &mut Rate)
where
    R: AsyncRead + Unpin + Send,
{
    while let Some(next) = owed.recv().await {
        let started = Instant::now();
        let answer = timeout(rate.patience(next.expected), read_answer(&mut reader, &next)).await;
        let outcome = match answer {
            Ok(outcome) => outcome,
            Err(_) => {
                rate.disappointed();
                Err(LinkError::Lost)
            }
        };
        if let Ok(bytes) = &outcome {
            rate.measured(bytes.len(), started.elapsed());
        }
        let over = matches!(outcome, Err(LinkError::Lost | LinkError::Violation));
        // Nobody may be waiting any more; the bytes had to be read all the same.
        let _ = next.reply.send(outcome);
        if over {
            return;
        }
    }
}

async fn read_answer<R: AsyncRead + Unpin + Send>(reader: &mut R, owed: &Owed) -> Result<Vec<u8>, LinkError> {
    let header = codec::read::<BlobAnswer, _>(reader, MAX_BLOB_HEADER);
    let (header, _) = match header.await {
        Ok(header) => header,
        Err(codec::CodecError::Io(_)) => return Err(LinkError::Lost),
        Err(_) => return Err(LinkError::Violation),
    };
    match header.outcome {
        _ if header.id != owed.id => Err(LinkError::Violation),
        Answer::NotHeld | Answer::Failed => Err(LinkError::NotHeld),
        Answer::Bytes(length) if u64::from(length) != owed.expected => Err(LinkError::Violation),
        Answer::Bytes(length) => read_bytes(reader, length as usize).await,
    }
}

async fn read_bytes<R: AsyncRead + Unpin>(reader: &mut R, length: usize) -> Result<Vec<u8>, LinkError> {
    let mut bytes = vec![0; length];
    let mut filled = 0;
    while filled < length {
        let end = length.min(filled + CHUNK);
        let read = timeout(STALL, reader.read(&mut bytes[filled..end])).await;
        match read {
            Ok(Ok(n)) if n > 0 => filled += n,
            _ => return Err(LinkError::Lost),
        }
    }
    Ok(bytes)
}
