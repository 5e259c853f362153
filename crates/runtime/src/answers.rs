//! What becomes of answers: each is an input of the machine, a line in the books, or both.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::time::Duration;

use fednode_core::masked::Unmask;
use fednode_core::work::{Evaluations, LastStage, Update, WorkError};
use fednode_core::{BlobId, LocalReport, MixedIn, NodeId, Round};
use fednode_engine::book::{Due, Work};
use fednode_engine::{
    AverageReport, Fetch, FetchKind, Input, JoinReport, MergeReport, SliceReport,
};
use fednode_net::{Fetched, PublishError};
use fednode_store::{SaveError, Saved};
use tracing::debug;

use crate::checkpointing::Snapshot;
use crate::desk;
use crate::driver::Driver;
use crate::error::RunError;
use crate::fetches::NotFetched;
use crate::last_stage::{self, Made, Pooled};
use crate::machine::Machine;
use crate::masks::Published;
use crate::publisher::Signed;
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
    /// Whether what was mixed in before is forgotten, because its owners took it back.
    pub(crate) forgets: bool,
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
    /// What was taken back is deleted, as far as the disk lets it.
    Forgotten,
    /// What a node published before it took something back.
    PublishedBefore {
        owner: NodeId,
        blobs: Vec<BlobId>,
    },
    Fetched {
        fetch: Fetch,
        result: Result<Checked, NotFetched>,
        received: Option<Received>,
    },
    Published(Result<Signed, PublishError>),
    Trained(Result<Box<Learned>, RunError>),
    /// Epochs that follow this round's update are trained.
    TrainedAhead {
        round: Round,
        result: Result<Duration, WorkError>,
    },
    NotStored {
        update: Box<Timed<Update>>,
        purpose: Purpose,
        published: Box<Published>,
        evaluating: Option<Evaluating>,
        error: io::Error,
    },
    Evaluated {
        due: Due,
        result: Result<Timed<Evaluations>, WorkError>,
    },
    Merged(Result<Box<Mixed>, RunError>),
    Averaged {
        report: Box<AverageReport>,
        trouble: Option<String>,
    },
    Unmasked {
        round: Round,
        word: Option<Unmask>,
    },
    Sliced(Box<SliceReport>),
    Joined(Box<JoinReport>),
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

impl<M: Machine> Driver<'_, M> {
    /// Takes an answer.
    ///
    /// # Errors
    /// What the member cannot go on from.
    pub(crate) fn on_answer(&mut self, answer: Answer) -> Result<(), RunError> {
        match answer {
            Answer::Done => {}
            Answer::Forgotten => self.withdrawals.deleted(),
            Answer::PublishedBefore { owner, blobs } => self.on_published_before(owner, &blobs),
            Answer::Fetched {
                fetch,
                result,
                received,
            } => self.on_fetched(&fetch, result, received),
            Answer::Published(result) => {
                match self.publisher.published(&mut self.base, result) {
                    Some(signed) => self.receive(signed),
                    // It may have been the answer to a withdrawal, which is then due again.
                    None => self.withdrawals.not_published(),
                }
                self.publisher.publish_next(&mut self.base);
            }
            Answer::Averaged { report, trouble } => {
                trouble.into_iter().for_each(|text| self.base.warn(text));
                self.feed(Input::Averaged(*report));
            }
            Answer::Unmasked { round, word } => self.feed(Input::Unmasked { round, word }),
            Answer::Sliced(report) => self.feed(Input::Sliced(*report)),
            Answer::Joined(report) => self.feed(Input::Joined(*report)),
            Answer::Copied {
                snapshot,
                round,
                took,
            } => {
                self.desk.book.saved(round, took);
                self.keeper.copied(&mut self.base, snapshot);
            }
            // Without its trainer the member can neither train nor save, so there is nothing to go on with.
            Answer::NotCopied(error) => {
                self.keeper.saving.not_copied();
                return Err(error.into());
            }
            Answer::Saved(result) => self.keeper.saved(&mut self.base, &result),
            of_worker => self.on_work(of_worker)?,
        }
        // Any answer may be the last that a record, or the end, waits for.
        self.desk.write_records(&mut self.base);
        self.advance_ending();
        Ok(())
    }

    /// Takes an answer of the worker. What a leaving member abandons is no failure.
    fn on_work(&mut self, answer: Answer) -> Result<(), RunError> {
        match answer {
            Answer::Trained(Err(error)) if self.ending.excuses(&error) => {
                self.desk.book.now(Work::Idle)
            }
            // The books stay in the last stage: the model may be between two states, and no checkpoint may hold it.
            Answer::Module(Err(error))
            | Answer::Pooled(Err(error))
            | Answer::Finalised(Err(error))
                if self.ending.excuses(&error) => {}
            Answer::TrainedAhead {
                result: Err(WorkError::Abandoned),
                ..
            } => {}
            Answer::Trained(result) => self.on_trained(*result?),
            Answer::TrainedAhead { round, result } => {
                let now = self.base.now();
                self.desk.book.trained_ahead(round, now, result?);
            }
            Answer::NotStored {
                update,
                purpose,
                published,
                evaluating,
                error,
            } => {
                self.say_without_space(purpose.round, &error);
                desk::store_later(&mut self.base, (update, published), purpose, evaluating);
            }
            Answer::Evaluated { due, result } => {
                let Timed { value, took } = result?;
                self.desk.book.evaluated(due, &value, took);
            }
            Answer::Merged(result) => {
                let mixed = result?;
                self.withdrawals.merged(&mixed);
                let report = self.desk.merged(&mut self.base, *mixed);
                self.feed(Input::Merged(report));
            }
            Answer::Module(result) => self.on_module(*result?),
            Answer::Pooled(result) => {
                let report = self.desk.pooled(&mut self.base, *result?);
                self.feed(Input::Pooled(report));
            }
            Answer::Finalised(result) => self.on_finalised(*result?),
            Answer::Done
            | Answer::Forgotten
            | Answer::PublishedBefore { .. }
            | Answer::Fetched { .. }
            | Answer::Published(_)
            | Answer::Averaged { .. }
            | Answer::Unmasked { .. }
            | Answer::Sliced(_)
            | Answer::Joined(_)
            | Answer::Copied { .. }
            | Answer::NotCopied(_)
            | Answer::Saved(_) => {}
        }
        Ok(())
    }

    /// Says that an update waits for disk space; aloud once for several rounds.
    fn say_without_space(&mut self, round: Round, error: &io::Error) {
        let line = format!("the update of round {round} waits for disk space: {error}");
        if self.desk.is_first_without_space(round) {
            self.base.warn(line);
        } else {
            debug!("{line}");
        }
    }

    fn on_fetched(
        &mut self,
        fetch: &Fetch,
        result: Result<Checked, NotFetched>,
        received: Option<Received>,
    ) {
        // What was refused never had a place. Before the machine is told: what it orders next must find the place free.
        if !matches!(result, Err(NotFetched::QueueFull)) {
            let round = self.machine.status(self.base.now()).round;
            self.fetches.settle(&mut self.base, fetch, received, round);
        }
        if fetch.kind == FetchKind::Expert {
            self.desk.book.expert_settled(self.base.now());
        }
        let reason = match result {
            Ok(Checked::Params) => {
                self.feed(Input::Fetched(fetch.blob.id));
                // What the machine waits for must not make room for what it waits for, too.
                return self.base.blobs.protect(self.kept_blobs());
            }
            Ok(Checked::Proxies(proxies)) => {
                return self.feed(Input::Proxies {
                    blob: fetch.blob.id,
                    proxies,
                });
            }
            Ok(Checked::Malformed(reason)) => {
                // The first provider is the author, who signed what the blob should be. Those who
                // pass it on cannot know better.
                if let Some(author) = fetch.from.first() {
                    let text = format!("announced a blob that is not what it said: {reason}");
                    self.base.strike(*author, text);
                }
                reason
            }
            Ok(Checked::Lost(reason)) => reason,
            Err(error) => error.to_string(),
        };
        debug!(blob = %fetch.blob.id, kind = ?fetch.kind, %reason, "fetch failed");
        self.feed(Input::FetchFailed {
            blob: fetch.blob,
            kind: fetch.kind,
        });
    }

    fn on_trained(&mut self, mut learned: Learned) {
        self.desk.trained(&mut self.base, &mut learned);
        let report = learned.report;
        // An expert may stand in for its successors for as many rounds as proxies are not refreshed.
        let experts = self.base.spec.exchange.experts.as_ref();
        let refresh = experts.map_or(1, |experts| experts.refresh_every);
        // The machine, which needs its own experts as they were trained, does not know of them yet.
        let unknown = report.own_experts.iter().map(|blob| blob.id).collect();
        let keep_rounds = refresh.saturating_add(2);
        self.offer(report.round, work::offered(&report), keep_rounds, unknown);
        self.feed(Input::Trained(report));
        self.train_ahead();
        let is_training = self.desk.is_training();
        if std::mem::take(&mut self.keeper.saving.after_training) && !is_training {
            self.save();
        }
    }

    fn on_module(&mut self, made: Made) {
        let report = self.desk.module_made(&mut self.base, made);
        if let Some(report) = &report {
            let blobs = report.blob.iter().map(|blob| blob.id).collect();
            let last = Round(self.base.spec.rounds);
            self.offer(last, blobs, last_stage::KEPT_ROUNDS, Vec::new());
        }
        self.feed(Input::Module(report));
    }

    /// Keeps own blobs of a round for others and announces them; protects `more` besides, of which the machine does not
    /// know yet.
    fn offer(&mut self, round: Round, blobs: Vec<BlobId>, keep_rounds: u32, more: Vec<BlobId>) {
        self.keeper.own.add(round, blobs.clone(), keep_rounds);
        // Protected before they are announced: a fetch that comes at once must find them.
        let mut kept = self.kept_blobs();
        kept.extend(more);
        self.base.blobs.protect(kept);
        self.base.announce(blobs);
    }
}
