//! A link: one stream to one peer, with several requests under way.
//!
//! Requests are sent as they come, and answers come back in the same order. A writer and a reader share the stream. A queue
//! of owed answers runs between them. Any failure ends the link, and all owed answers fail with it: after a wrong order or
//! length, or a timeout, the rest of the stream has no meaning.
//!
//! ```text
//!   Ask ─► writer ─► stream ─► peer                 patience for one answer = max(5 s, 4 × expected),
//!             └─ owed ─► reader ◄─ stream           and no more than 5 s without a byte
//! ```

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fednode_core::{BlobId, SEGMENT_BYTES};
use futures::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::timeout;

use super::spares::Spares;
use super::{MAX_PEER_IN_FLIGHT, STALL};
use crate::codec;
use crate::wire::{Answer, BlobAnswer, BlobAsk, MAX_BLOB_HEADER, Want};

/// Requests under way on one link. The budget of bytes is reached first, except with tiny blobs.
const PIPELINE: usize = 32;
/// An unused link is closed after this time, so that the peer can serve others.
const IDLE: Duration = Duration::from_secs(5);
/// Expected bytes per second of an unknown peer: 2 Mbit/s.
const FIRST_RATE: f64 = 256.0 * 1024.0;
/// Lowest expected rate of a peer, however often it was too slow.
const LOWEST_RATE: f64 = 4.0 * 1024.0;
/// Weight of the newest measurement.
const SMOOTHING: f64 = 0.3;
/// Size of the smallest answer that is measured. Smaller ones say more about latency than about the rate.
const MEASURED_BYTES: usize = 64 << 10;
/// Bytes per read.
const CHUNK: usize = 256 << 10;

/// Tells why a request was not answered with bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub(crate) enum LinkError {
    #[error("the peer does not hold it")]
    NotHeld,
    /// The author of the advert may have named a wrong size, so this says nothing about the peer.
    #[error("what the peer holds by that name is of another size")]
    OtherSize,
    #[error("the peer is fetching it")]
    Later,
    #[error("the link was lost")]
    Lost,
    #[error("the peer broke the protocol")]
    Violation,
}

/// The bytes received for a request.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Received {
    pub(crate) bytes: Vec<u8>,
    pub(crate) form: Form,
}

/// The form of received bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Form {
    /// The requested bytes.
    Plain,
    /// The packed form of them.
    Packed {
        /// Whether they are packed against the named base.
        against: bool,
    },
}

/// One request, and the place for its answer.
#[derive(Debug)]
pub(crate) struct Ask {
    pub(crate) blob: BlobId,
    pub(crate) want: Want,
    /// The number of bytes of an honest answer, unpacked.
    pub(crate) expected: u64,
    pub(crate) reply: oneshot::Sender<Result<Received, LinkError>>,
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
        (
            Self {
                asks,
                budget: Arc::new(Semaphore::new(budget)),
            },
            queue,
        )
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.asks.is_closed()
    }

    /// Tells whether no request is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.budget.available_permits()
            == usize::try_from(MAX_PEER_IN_FLIGHT >> 10).unwrap_or(usize::MAX)
    }

    pub(crate) fn budget(&self) -> &Arc<Semaphore> {
        &self.budget
    }

    /// Sends a request and waits for the answer.
    pub(crate) async fn ask(
        &self,
        blob: BlobId,
        want: Want,
        expected: u64,
    ) -> Result<Received, LinkError> {
        let (reply, answer) = oneshot::channel();
        self.asks
            .send(Ask {
                blob,
                want,
                expected,
                reply,
            })
            .await
            .map_err(|_| LinkError::Lost)?;
        answer.await.unwrap_or(Err(LinkError::Lost))
    }
}

/// Runs a link until it is idle, fails or is dropped. Returns the rate of the peer for the next link.
pub(crate) async fn run<S>(
    stream: S,
    asks: mpsc::Receiver<Ask>,
    rate: Option<f64>,
    spares: &Spares,
) -> Rate
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let (reader, writer) = stream.split();
    let (owe, owed) = mpsc::channel(PIPELINE);
    // A slot per request under way. The writer waits for a free one, and all slots free means that nothing is owed.
    let slots = Arc::new(Semaphore::new(PIPELINE));
    let mut rate = Rate(rate.unwrap_or(FIRST_RATE));
    // The side that ends first ends the link.
    tokio::select! {
        _ = write_asks(writer, asks, owe, slots) => {}
        () = read_answers(reader, owed, &mut rate, spares) => {}
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
            // A moving mean: one segment that came from a cache or met a busy disk should not decide.
            let now = bytes as f64 / took.as_secs_f64().max(1e-6);
            self.0 += SMOOTHING * (now - self.0);
        }
    }

    /// Halves the expected rate of a peer that took too long.
    fn disappointed(&mut self) {
        self.0 = (self.0 / 2.0).max(LOWEST_RATE);
    }
}

/// An answer that the peer owes.
#[derive(Debug)]
struct Owed {
    id: u32,
    want: Want,
    expected: u64,
    reply: oneshot::Sender<Result<Received, LinkError>>,
    /// Held until the answer was read.
    _slot: OwnedSemaphorePermit,
}

impl Owed {
    /// Returns how many bytes follow a header, and their form. There is no form if the blob has another size.
    ///
    /// Refuses a header that does not answer the request.
    fn announced(&self, answer: &BlobAnswer) -> Result<(usize, Option<Form>), LinkError> {
        let based = matches!(self.want, Want::Packed { base: Some(_), .. });
        let packed = matches!(self.want, Want::Packed { .. });
        match answer.outcome {
            // Answers come in order, so another id means that the peer skipped or made up an answer.
            _ if answer.id != self.id => Err(LinkError::Violation),
            Answer::NotHeld | Answer::Failed => Err(LinkError::NotHeld),
            Answer::Later if matches!(self.want, Want::Bring { .. }) => Err(LinkError::Later),
            Answer::Later => Err(LinkError::Violation),
            Answer::Bytes(length) if u64::from(length) == self.expected => {
                Ok((length as usize, Some(Form::Plain)))
            }
            Answer::Packed { against, .. } if !packed || against && !based => {
                Err(LinkError::Violation)
            }
            // A packed segment must be shorter. Otherwise it would cost more than the plain one, and more than its budget.
            Answer::Packed { bytes, against } if u64::from(bytes) < self.expected => {
                Ok((bytes as usize, Some(Form::Packed { against })))
            }
            // Another size: the bytes are still read, so that the stream can go on with the next answer.
            Answer::Bytes(length) | Answer::Packed { bytes: length, .. } => {
                if u64::from(length) <= SEGMENT_BYTES {
                    Ok((length as usize, None))
                } else {
                    Err(LinkError::Violation)
                }
            }
        }
    }
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
        let Some(ask) = next_ask(&mut asks, &slots).await else {
            return Ok(());
        };
        // The slot comes before the request, so the queue of owed answers has room for all that was sent.
        let slot = slots
            .clone()
            .acquire_owned()
            .await
            .map_err(io::Error::other)?;
        let Ask {
            blob,
            want,
            expected,
            reply,
        } = ask;
        // Flushed one by one: a request that waits in a buffer is a round trip lost.
        let sent = async {
            codec::write(&mut writer, &BlobAsk { id, blob, want }, MAX_BLOB_HEADER).await?;
            writer.flush().await
        };
        timeout(STALL, sent)
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        owe.send(Owed {
            id,
            want,
            expected,
            reply,
            _slot: slot,
        })
        .await
        .map_err(io::Error::other)?;
    }
    Ok(())
}

/// Waits for the next request. Returns `None` when there are no callers any more and no answer is owed.
async fn next_ask(asks: &mut mpsc::Receiver<Ask>, slots: &Semaphore) -> Option<Ask> {
    loop {
        match timeout(IDLE, asks.recv()).await {
            Ok(Some(ask)) => return Some(ask),
            Ok(None) => {
                let everything = u32::try_from(PIPELINE).unwrap_or(u32::MAX);
                // The slots come back when all answers are read. The end of the reader ends this wait.
                _ = slots.acquire_many(everything).await;
                return None;
            }
            // Idle only if nothing is owed: a slow peer may need longer than this for an answer.
            Err(_) if slots.available_permits() == PIPELINE => return None,
            Err(_) => {}
        }
    }
}

async fn read_answers<R>(
    mut reader: R,
    mut owed: mpsc::Receiver<Owed>,
    rate: &mut Rate,
    spares: &Spares,
) where
    R: AsyncRead + Unpin + Send,
{
    while let Some(next) = owed.recv().await {
        // The clock starts when the answer is next in line: time behind earlier answers is not the fault of this one.
        let started = Instant::now();
        let answer = timeout(
            rate.patience(next.expected),
            read_answer(&mut reader, &next, spares),
        )
        .await;
        let outcome = match answer {
            Ok(outcome) => outcome,
            Err(_) => {
                rate.disappointed();
                Err(LinkError::Lost)
            }
        };
        if let Ok(received) = &outcome {
            rate.measured(received.bytes.len(), started.elapsed());
        }
        let over = matches!(outcome, Err(LinkError::Lost | LinkError::Violation));
        // The caller may have stopped waiting. The bytes had to be read all the same.
        let _ = next.reply.send(outcome);
        if over {
            return;
        }
    }
}

async fn read_answer<R: AsyncRead + Unpin + Send>(
    reader: &mut R,
    owed: &Owed,
    spares: &Spares,
) -> Result<Received, LinkError> {
    let header = codec::read::<BlobAnswer, _>(reader, MAX_BLOB_HEADER);
    let (header, _) = match header.await {
        Ok(header) => header,
        Err(codec::CodecError::Io(_)) => return Err(LinkError::Lost),
        Err(_) => return Err(LinkError::Violation),
    };
    let (length, form) = owed.announced(&header)?;
    let bytes = read_bytes(reader, length, spares.take()).await?;
    match form {
        Some(form) => Ok(Received { bytes, form }),
        None => {
            spares.give(bytes);
            Err(LinkError::OtherSize)
        }
    }
}

/// Reads `length` bytes, in place of the content of `bytes`.
async fn read_bytes<R: AsyncRead + Unpin>(
    reader: &mut R,
    length: usize,
    mut bytes: Vec<u8>,
) -> Result<Vec<u8>, LinkError> {
    // A header cannot make this large: `announced` passes the expected length, or one segment at most.
    bytes.resize(length, 0);
    let mut filled = 0;
    while filled < length {
        // A timeout per read, not for the whole: a slow peer that still sends is not dead.
        let end = length.min(filled + CHUNK);
        let read = timeout(STALL, reader.read(&mut bytes[filled..end])).await;
        match read {
            Ok(Ok(n)) if n > 0 => filled += n,
            _ => return Err(LinkError::Lost),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use tokio::task::JoinHandle;
    use tokio_util::compat::{Compat, TokioAsyncReadCompatExt};

    use super::*;
    use crate::blob::Width;

    type Stream = Compat<tokio::io::DuplexStream>;

    /// Starts a link to a peer that the test plays.
    fn link() -> (Link, Stream, JoinHandle<Rate>) {
        let (near, far) = tokio::io::duplex(64 << 10);
        let (link, asks) = Link::new();
        (
            link,
            far.compat(),
            tokio::spawn(async { run(near.compat(), asks, None, &Spares::default()).await }),
        )
    }

    async fn hear(stream: &mut Stream) -> BlobAsk {
        codec::read(stream, MAX_BLOB_HEADER).await.unwrap().0
    }

    async fn say(stream: &mut Stream, id: u32, outcome: Answer, bytes: &[u8]) {
        codec::write(stream, &BlobAnswer { id, outcome }, MAX_BLOB_HEADER)
            .await
            .unwrap();
        stream.write_all(bytes).await.unwrap();
        stream.flush().await.unwrap();
    }

    fn ask(link: &Link, index: u32, expected: u64) -> JoinHandle<Result<Received, LinkError>> {
        want(link, Want::Segment(index), expected)
    }

    fn want(link: &Link, want: Want, expected: u64) -> JoinHandle<Result<Received, LinkError>> {
        let link = link.clone();
        tokio::spawn(async move { link.ask(BlobId::of(b"x"), want, expected).await })
    }

    fn plain(bytes: &[u8]) -> Received {
        Received {
            bytes: bytes.to_vec(),
            form: Form::Plain,
        }
    }

    #[tokio::test]
    async fn requests_are_under_way_together_and_a_missing_blob_ends_nothing() {
        let (link, mut peer, running) = link();
        let asked = [ask(&link, 0, 3), ask(&link, 1, 3), ask(&link, 2, 3)];
        let heard = [
            hear(&mut peer).await,
            hear(&mut peer).await,
            hear(&mut peer).await,
        ];
        assert_eq!(
            heard.each_ref().map(|ask| ask.id),
            [0, 1, 2],
            "all before any answer"
        );
        say(&mut peer, 0, Answer::Bytes(3), b"abc").await;
        say(&mut peer, 1, Answer::NotHeld, b"").await;
        say(&mut peer, 2, Answer::Bytes(3), b"def").await;
        let mut answers = Vec::new();
        for asked in asked {
            answers.push(asked.await.unwrap());
        }
        answers.sort();
        assert_eq!(
            answers,
            [
                Ok(plain(b"abc")),
                Ok(plain(b"def")),
                Err(LinkError::NotHeld)
            ]
        );
        drop(link);
        running.await.unwrap();
    }

    #[tokio::test]
    async fn a_peer_that_breaks_order_length_or_header_ends_the_link() {
        for (id, outcome) in [(1, Answer::Bytes(3)), (0, Answer::Bytes(u32::MAX))] {
            let (link, mut peer, running) = link();
            let asked = ask(&link, 0, 3);
            hear(&mut peer).await;
            say(&mut peer, id, outcome, b"").await;
            assert_eq!(
                asked.await.unwrap(),
                Err(LinkError::Violation),
                "{id} {outcome:?}"
            );
            running.await.unwrap();
            assert!(link.is_closed());
        }
        let (link, mut peer, _running) = self::link();
        let asked = ask(&link, 0, 3);
        hear(&mut peer).await;
        peer.write_all(&u32::MAX.to_le_bytes()).await.unwrap();
        assert_eq!(asked.await.unwrap(), Err(LinkError::Violation));
    }

    #[tokio::test]
    async fn a_blob_of_another_size_convicts_nobody_and_ends_nothing() {
        let (link, mut peer, _running) = link();
        for (id, length) in [(0, 4), (1, 2)] {
            let asked = ask(&link, id, 3);
            hear(&mut peer).await;
            say(
                &mut peer,
                id,
                Answer::Bytes(length),
                &[7; 4][..length as usize],
            )
            .await;
            assert_eq!(asked.await.unwrap(), Err(LinkError::OtherSize));
        }
        let asked = ask(&link, 2, 3);
        hear(&mut peer).await;
        say(&mut peer, 2, Answer::Bytes(3), b"abc").await;
        assert_eq!(asked.await.unwrap(), Ok(plain(b"abc")));
    }

    #[tokio::test]
    async fn packed_bytes_answer_only_whoever_asked_for_them() {
        let packed = |bytes, against| Answer::Packed { bytes, against };
        let wanted = |base| Want::Packed {
            index: 0,
            width: Width::Four,
            base,
        };
        let base = Some(BlobId::of(b"base"));
        let allowed = [
            (wanted(None), Answer::Bytes(3), Form::Plain),
            (
                wanted(None),
                packed(2, false),
                Form::Packed { against: false },
            ),
            (
                wanted(base),
                packed(2, false),
                Form::Packed { against: false },
            ),
            (
                wanted(base),
                packed(2, true),
                Form::Packed { against: true },
            ),
        ];
        for (asked, outcome, form) in allowed {
            let (link, mut peer, _running) = link();
            let answer = want(&link, asked, 3);
            assert_eq!(hear(&mut peer).await.want, asked);
            let bytes = if form == Form::Plain {
                b"abc".as_slice()
            } else {
                b"ab"
            };
            say(&mut peer, 0, outcome, bytes).await;
            assert_eq!(
                answer.await.unwrap(),
                Ok(Received {
                    bytes: bytes.to_vec(),
                    form
                })
            );
        }
        let forbidden = [
            (Want::Segment(0), packed(2, false)),
            (Want::List, packed(2, false)),
            (wanted(None), packed(2, true)),
            (wanted(base), packed(u32::MAX, false)),
        ];
        for (asked, outcome) in forbidden {
            let (link, mut peer, _running) = link();
            let answer = want(&link, asked, 3);
            hear(&mut peer).await;
            say(&mut peer, 0, outcome, b"").await;
            assert_eq!(
                answer.await.unwrap(),
                Err(LinkError::Violation),
                "{asked:?} {outcome:?}"
            );
        }
    }

    #[tokio::test]
    async fn a_peer_that_falls_silent_is_given_up_and_all_owed_is_lost() {
        let (link, mut peer, running) = link();
        let asked = [ask(&link, 0, 1000), ask(&link, 1, 1000)];
        hear(&mut peer).await;
        say(&mut peer, 0, Answer::Bytes(1000), &[1; 999]).await;
        let started = Instant::now();
        for asked in asked {
            assert_eq!(asked.await.unwrap(), Err(LinkError::Lost));
        }
        let took = started.elapsed();
        assert!(
            took >= STALL - Duration::from_millis(100) && took < 2 * STALL,
            "{took:?}"
        );
        running.await.unwrap();
    }

    #[test]
    fn patience_follows_the_rate_and_the_rate_the_peer() {
        let mut rate = Rate(FIRST_RATE);
        assert_eq!(rate.patience(1000), STALL);
        assert_eq!(
            rate.patience(1 << 20),
            Duration::from_secs(16),
            "four times four seconds"
        );
        rate.measured(1 << 20, Duration::from_secs(1));
        assert!((rate.0 - (0.7 * FIRST_RATE + 0.3 * 1_048_576.0)).abs() < 1e-6);
        rate.measured(10, Duration::from_secs(1));
        assert!(rate.0 > FIRST_RATE, "tiny answers say nothing");
        (0..99).for_each(|_| rate.disappointed());
        assert_eq!(rate, Rate(LOWEST_RATE));
    }
}
