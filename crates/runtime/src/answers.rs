//! What becomes of answers: each is an input of the machine, a line in the books, or both.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::time::Duration;

use fednode_core::work::{Evaluations, LastStage, Update, WorkError};
use fednode_core::{Advert, BlobRef, LocalReport, MixedIn, Round, SignedAdvert};
use fednode_engine::book::{Due, Measured, Point, Work};
use fednode_engine::{AverageReport, Fetch, FetchKind, Input, MergeReport};
use fednode_net::{Fetched, PublishError};
use fednode_store::ledger::{Transfer, TransferKind};
use fednode_store::{SaveError, Saved};

use crate::checkpointing::Snapshot;
use crate::driver::Driver;
use crate::error::RunError;
use crate::journal::Entry;
use crate::machine::Machine;
use crate::pooling::{Made, Pooled};
use crate::resources;
use crate::status::traffic;
use crate::trainer::Timed;
use crate::work::{self, Checked, Purpose};

/// An evaluation that is already in the trainer's queue.
pub(crate) type Evaluating =
    Pin<Box<dyn Future<Output = Result<Timed<Evaluations>, WorkError>> + Send>>;

/// A local update that can be published.
pub(crate) struct Learned {
    pub(crate) report: LocalReport,
    pub(crate) update: Timed<Update>,
    /// How long its blobs took to write.
    pub(crate) publish: Duration,
    /// Absent in rounds that are only evaluated after the exchange.
    pub(crate) evaluating: Option<Evaluating>,
}

/// A merge that the trainer has adopted.
pub(crate) struct Mixed {
    pub(crate) report: MergeReport,
    pub(crate) took: Duration,
    pub(crate) n_sources: u32,
    /// Whose experts were mixed in.
    pub(crate) mixed: Vec<MixedIn>,
    /// Absent if nothing has changed since the last one, or nobody asks.
    pub(crate) evaluating: Option<Evaluating>,
}

/// What came over the network for a fetch.
pub(crate) struct Received {
    pub(crate) from: Fetched,
    pub(crate) took: Duration,
}

/// What a task comes back with.
pub(crate) enum Answer {
    Done,
    Fetched {
        fetch: Fetch,
        result: Result<Checked, String>,
        received: Option<Received>,
    },
    Published(Result<Box<(Advert, SignedAdvert)>, PublishError>),
    Trained(Result<Box<Learned>, RunError>),
    /// Epochs that follow this round's update are trained.
    TrainedAhead {
        round: Round,
        result: Result<Duration, WorkError>,
    },
    NotStored {
        update: Box<Timed<Update>>,
        purpose: Purpose,
        evaluating: Option<Evaluating>,
        error: io::Error,
    },
    Evaluated {
        due: Due,
        result: Result<Timed<Evaluations>, WorkError>,
    },
    Merged(Result<Box<Mixed>, RunError>),
    Averaged {
        report: AverageReport,
        trouble: Option<String>,
    },
    Module(Result<Box<Made>, RunError>),
    Pooled(Result<Box<Pooled>, RunError>),
    Copied {
        snapshot: Box<Snapshot>,
        round: Round,
        took: Duration,
    },
    NotCopied(WorkError),
    Saved(Result<Saved, SaveError>),
    Finalised(Result<Box<LastStage>, RunError>),
}

impl<M: Machine> Driver<M> {
    /// Takes an answer.
    ///
    /// # Errors
    /// What the member cannot go on from.
    pub(crate) fn on_answer(&mut self, answer: Answer) -> Result<(), RunError> {
        match answer {
            Answer::Done => {}
            Answer::Fetched {
                fetch,
                result,
                received,
            } => {
                self.enter_transfers(&fetch, received);
                self.on_fetched(&fetch, result);
            }
            Answer::Published(result) => self.on_published(result),
            Answer::Trained(Err(RunError::Trainer(WorkError::Abandoned)))
                if self.ending.is_leaving() =>
            {
                self.book.abandoned();
            }
            // The books stay in the last stage: the model may be between two states, and no checkpoint may hold it.
            Answer::Module(Err(RunError::Trainer(WorkError::Abandoned)))
            | Answer::Pooled(Err(RunError::Trainer(WorkError::Abandoned)))
            | Answer::Finalised(Err(RunError::Trainer(WorkError::Abandoned)))
                if self.ending.is_leaving() => {}
            Answer::Trained(result) => self.on_trained(*result?),
            Answer::TrainedAhead {
                result: Err(WorkError::Abandoned),
                ..
            } => {}
            Answer::TrainedAhead { round, result } => {
                self.book.trained_ahead(round, self.clock.now(), result?);
            }
            Answer::NotStored {
                update,
                purpose,
                evaluating,
                error,
            } => {
                let text = format!(
                    "the update of round {} waits for disk space: {error}",
                    purpose.round
                );
                self.notebook.warn(self.clock.now(), text);
                self.store_later(update, purpose, evaluating);
            }
            Answer::Evaluated { due, result } => {
                let Timed { value, took } = result?;
                self.book.evaluated(due, &value, took);
            }
            Answer::Merged(result) => self.on_merged(*result?),
            Answer::Averaged { report, trouble } => {
                if let Some(trouble) = trouble {
                    self.notebook.warn(self.clock.now(), trouble);
                }
                self.feed(Input::Averaged(report));
            }
            Answer::Module(result) => self.on_module(*result?),
            Answer::Pooled(result) => self.on_pooled(*result?),
            Answer::Copied {
                snapshot,
                round,
                took,
            } => self.on_copied(snapshot, round, took),
            Answer::NotCopied(error) => {
                self.saving.not_copied();
                return Err(error.into());
            }
            Answer::Saved(result) => self.on_saved(&result),
            Answer::Finalised(result) => self.on_finalised(result)?,
        }
        self.complete_records();
        self.advance_ending();
        Ok(())
    }

    fn on_fetched(&mut self, fetch: &Fetch, result: Result<Checked, String>) {
        self.fetches.ended(fetch);
        self.start_fetches();
        if fetch.kind == FetchKind::Expert {
            self.book.expert_settled(self.clock.now());
        }
        match result {
            Ok(Checked::Params) => {
                self.feed(Input::Fetched(fetch.blob.id));
                // What the machine waits for must not make room for what it waits for, too.
                self.blobs.protect(self.kept_blobs());
            }
            Ok(Checked::Proxies(proxies)) => self.feed(Input::Proxies {
                blob: fetch.blob.id,
                proxies,
            }),
            Ok(Checked::Malformed(reason)) => self.fetch_failed(fetch, &reason, true),
            Ok(Checked::Lost(reason)) | Err(reason) => self.fetch_failed(fetch, &reason, false),
        }
    }

    fn enter_transfers(&self, fetch: &Fetch, received: Option<Received>) {
        let Some(Received { from, took }) = received else {
            return;
        };
        let round = self.machine.status(self.clock.now()).round;
        let kind = match fetch.kind {
            FetchKind::Expert => TransferKind::Expert,
            FetchKind::Proxies => TransferKind::Proxies,
            FetchKind::Shared => TransferKind::Shared,
            FetchKind::Module => TransferKind::Pool,
        };
        for (source, size) in from.bytes_received {
            let blob = BlobRef { size, ..fetch.blob };
            self.journal.add(Entry::Transfer(Transfer {
                round,
                blob,
                source,
                duration: took,
                kind,
            }));
        }
    }

    fn on_published(&mut self, result: Result<Box<(Advert, SignedAdvert)>, PublishError>) {
        self.publishing.busy = false;
        match result {
            Ok(said) => {
                self.hear(said);
            }
            Err(PublishError::Closed) => {}
            Err(error) => self.notebook.warn(
                self.clock.now(),
                format!("not said to the federation: {error}"),
            ),
        }
        self.publish_next();
    }

    fn on_trained(&mut self, learned: Learned) {
        let Learned {
            report,
            update,
            publish,
            evaluating,
        } = learned;
        let (round, now) = (report.round, self.clock.now());
        self.book
            .trained(round, now, &update.value, [update.took, publish]);
        let blobs = work::offered(&report);
        // An expert may stand in for its successors for as many rounds as proxies are not refreshed.
        let refresh = self
            .spec
            .exchange
            .experts
            .as_ref()
            .map_or(1, |experts| experts.refresh_every);
        self.own
            .add(round, blobs.clone(), refresh.saturating_add(2));
        // The machine, which needs its own experts as they were trained, does not know of them yet.
        let mut kept = self.kept_blobs();
        kept.extend(report.own_experts.iter().map(|blob| blob.id));
        self.blobs.protect(kept);
        self.announce(blobs);
        if let Some(evaluating) = evaluating {
            let due = Due {
                round,
                point: Point::AfterTraining,
            };
            self.await_evaluation(due, evaluating);
        }
        self.ahead_due = Some(round).filter(|_| self.spec.training.ahead_epochs > 0);
        self.feed(Input::Trained(report));
        self.train_ahead();
        let trains = matches!(self.book.work(), Work::Training(_));
        if std::mem::take(&mut self.saving.after_training) && !trains {
            self.save();
        }
    }

    fn on_merged(&mut self, mixed: Mixed) {
        let Mixed {
            report,
            took,
            n_sources,
            mixed,
            evaluating,
        } = mixed;
        let round = report.round;
        self.book.merged(round, took, n_sources, mixed);
        match evaluating {
            Some(evaluating) => {
                let due = Due {
                    round,
                    point: Point::AfterExchange,
                };
                self.await_evaluation(due, evaluating);
            }
            None => self.book.unchanged(round),
        }
        self.feed(Input::Merged(report));
    }

    pub(crate) fn on_copied(&mut self, snapshot: Box<Snapshot>, round: Round, took: Duration) {
        self.book.saved(round, took);
        if let Some(snapshot) = self.saving.offer(snapshot) {
            self.write_checkpoint(snapshot);
        }
    }

    pub(crate) fn on_saved(&mut self, result: &Result<Saved, SaveError>) {
        if let Some(line) = self.saving.remark(result) {
            self.notebook.warn(self.clock.now(), line);
        }
        if let Some(next) = self.saving.written() {
            self.write_checkpoint(next);
        }
    }

    /// Writes the records that have become complete.
    fn complete_records(&mut self) {
        if self.book.all_complete() {
            return;
        }
        let now = self.clock.now();
        let complete = self.book.take_complete(|record| {
            let memory = resources::memory();
            Measured {
                traffic: traffic(&self.net.traffic()),
                round_seconds: now.since(record.started_at).as_secs_f64(),
                rss_bytes: memory.rss_bytes,
                peak_rss_bytes: memory.peak_rss_bytes,
            }
        });
        for record in complete {
            tracing::info!(
                round = %record.round,
                train_loss = record.train_loss,
                accuracy = record.accuracy,
                seconds = record.round_seconds,
                "round complete"
            );
            self.journal.add(Entry::Record(Box::new(record)));
        }
    }
}
