//! The journal: what goes into the ledger and into `metrics.jsonl`, written in order by a thread of its own.
//!
//! The books are for restarts and for people. A disk that is slow or full must not hold up a round, so the queue is
//! bounded and what finds it full is dropped, once told.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fednode_core::{
    Advert, BlobId, ClosingId, NodeId, Role, Round, Sequence, SignedAdvert, Timestamp,
};
use fednode_store::ledger::{ClosedRound, Event, Transfer};
use fednode_store::{Ledger, LedgerError};
use tokio::sync::{mpsc, oneshot};
use tracing::warn;

use crate::history::Historian;
use crate::records;
use crate::status::RoundRecord;

/// Lines that may wait: some rounds' adverts of a large federation.
const WAITING: usize = 4096;

/// Something worth remembering.
#[derive(Debug)]
pub(crate) enum Entry {
    /// An accepted advert, for the next life.
    Advert(Box<(Advert, SignedAdvert)>),
    /// A complete record.
    Record(Box<RoundRecord>),
    /// A round's training starts.
    Started { round: Round, at: Timestamp },
    /// A round is closed.
    Closed { round: Round, closed: ClosedRound },
    /// A round is over without a mean in common.
    Ended(Round),
    /// The newest closed rounds that are followed, newest first.
    Follows(Vec<ClosingId>),
    /// A peer said a good hello.
    Peer {
        node: NodeId,
        role: Role,
        at: Timestamp,
    },
    /// A peer did something wrong.
    Strike { node: NodeId, at: Timestamp },
    /// Something that a user was told.
    Event(Event),
    /// A blob was received.
    Transfer(Transfer),
}

#[derive(Debug)]
enum Line {
    Entry(Entry),
    PublishedBy((NodeId, Sequence), oneshot::Sender<Vec<BlobId>>),
    Flush(oneshot::Sender<()>),
    Close(oneshot::Sender<()>),
}

/// The sending end of the journal; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Journal {
    lines: mpsc::Sender<Line>,
    complained: Arc<AtomicBool>,
}

impl Journal {
    /// Starts the thread. It ends when the last sending end is gone.
    ///
    /// # Errors
    /// Fails if the operating system has no thread left.
    pub(crate) fn start(ledger: Ledger, state: &Path) -> std::io::Result<Self> {
        let (lines, queue) = mpsc::channel(WAITING);
        let writer = Writer {
            ledger,
            records: records::path_in(state),
            historian: Historian::default(),
            complained: false,
        };
        std::thread::Builder::new()
            .name("journal".into())
            .spawn(move || writer.write_all(queue))?;
        Ok(Self {
            lines,
            complained: Arc::default(),
        })
    }

    /// Hands in an entry; never waits.
    pub(crate) fn add(&self, entry: Entry) {
        // A loop that waited here would train no faster than the disk writes.
        if self.lines.try_send(Line::Entry(entry)).is_err()
            && !self.complained.swap(true, Ordering::Relaxed)
        {
            warn!("the state folder's disk is too slow: some lines of its books are lost");
        }
    }

    /// Returns the blobs of all updates of a node before an advert that are kept, in the history too. Cancel-safe.
    pub(crate) async fn published_by(&self, author: NodeId, before: Sequence) -> Vec<BlobId> {
        let (found, is_found) = oneshot::channel();
        if self
            .lines
            .send(Line::PublishedBy((author, before), found))
            .await
            .is_err()
        {
            return Vec::new();
        }
        is_found.await.unwrap_or_default()
    }

    /// Waits until everything handed in so far is written. Cancel-safe.
    pub(crate) async fn flush(&self) {
        self.ask(Line::Flush).await;
    }

    /// Writes everything handed in so far and gives the ledger free. Cancel-safe.
    pub(crate) async fn close(self) {
        self.ask(Line::Close).await;
    }

    async fn ask(&self, line: impl FnOnce(oneshot::Sender<()>) -> Line) {
        // Unlike a line, a question is not dropped where there is no room: somebody waits for the answer.
        let (done, is_done) = oneshot::channel();
        if self.lines.send(line(done)).await.is_ok() {
            // A writer that is gone has nothing left to write.
            let _ = is_done.await;
        }
    }
}

/// The receiving end.
struct Writer {
    ledger: Ledger,
    records: PathBuf,
    historian: Historian,
    complained: bool,
}

impl Writer {
    fn write_all(mut self, mut queue: mpsc::Receiver<Line>) {
        while let Some(line) = queue.blocking_recv() {
            match line {
                Line::Entry(entry) => {
                    let written = self.write(&entry);
                    self.complain(written);
                }
                Line::PublishedBy((author, before), found) => {
                    let blobs = self.published_by(author, before);
                    _ = found.send(blobs);
                }
                // Whoever asked may have run out of patience.
                Line::Flush(done) => _ = done.send(()),
                // The ledger is closed before the answer: whoever waits may open it anew at once.
                Line::Close(done) => {
                    drop(self);
                    _ = done.send(());
                    return;
                }
            }
        }
    }

    fn published_by(&mut self, author: NodeId, before: Sequence) -> Vec<BlobId> {
        let said = self.ledger.updates_of(author);
        let said = said.map_err(JournalError::from);
        let said = said.unwrap_or_else(|error| {
            self.complain(Err(error));
            Vec::new()
        });
        // The disk is believed no more than a peer.
        let adverts = said
            .iter()
            .filter_map(|said| fednode_net::verify(said).ok());
        let earlier = adverts.filter(|advert| advert.sequence < before);
        let blobs = earlier.flat_map(|advert| advert.body.blobs());
        blobs.map(|blob| blob.id).collect()
    }

    fn write(&mut self, entry: &Entry) -> Result<(), JournalError> {
        let ledger = &self.ledger;
        match entry {
            Entry::Advert(said) => {
                ledger.remember_advert(&said.0, &said.1)?;
                self.historian.heard(ledger, &said.0, &said.1)?;
            }
            Entry::Record(record) => {
                // Two books of one fact: `metrics.jsonl` is for people and plots, the ledger for
                // queries over rounds.
                records::append(&self.records, std::slice::from_ref(record))?;
                ledger.record_metrics(record.round, &metrics_of(record))?;
            }
            Entry::Started { round, at } => ledger.start_round(*round, *at)?,
            Entry::Closed { round, closed } => ledger.close_round(*round, closed)?,
            Entry::Ended(round) => self.historian.ended(ledger, *round)?,
            Entry::Follows(chain) => self.historian.follows(ledger, chain)?,
            Entry::Peer { node, role, at } => ledger.saw_peer(*node, *role, *at)?,
            Entry::Strike { node, at } => ledger.strike_peer(*node, 1, *at).map(drop)?,
            Entry::Event(event) => ledger.record_event(event)?,
            Entry::Transfer(transfer) => ledger.record_transfer(transfer)?,
        }
        Ok(())
    }

    /// Tells the first failure of a streak.
    fn complain(&mut self, written: Result<(), JournalError>) {
        match written {
            Ok(()) => self.complained = false,
            // A full disk fails every line; one warning says it all.
            Err(error) if !self.complained => {
                warn!(%error, "the books of the state folder cannot be written, and training goes on: look at the space and the rights \
                      of that folder");
                self.complained = true;
            }
            Err(_) => {}
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum JournalError {
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error("metrics.jsonl: {0}")]
    Records(#[from] std::io::Error),
}

/// Returns the numbers of a record that are worth a curve.
fn metrics_of(record: &RoundRecord) -> Vec<(&'static str, f64)> {
    let always = [
        ("train_loss", record.train_loss),
        ("train_seconds", record.train_seconds),
        ("round_seconds", record.round_seconds),
        ("members", f64::from(record.members)),
        ("n_sources_used", f64::from(record.n_sources_used)),
        ("wire_bytes_sent", record.bytes_sent.wire as f64),
        ("wire_bytes_received", record.bytes_received.wire as f64),
    ];
    let sometimes = [
        ("accuracy", record.accuracy),
        (
            "accuracy_after_local_training",
            record.accuracy_after_local_training,
        ),
        ("loss", record.loss),
        ("score", record.judged.as_ref().and_then(|it| it.value)),
    ];
    always
        .into_iter()
        .chain(
            sometimes
                .into_iter()
                .filter_map(|(name, value)| Some((name, value?))),
        )
        .collect()
}
