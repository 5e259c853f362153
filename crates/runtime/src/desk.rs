//! The trainer's desk: the thread that trains, and the books of what it does.
//!
//! ```text
//!   train ──► task: train, write blobs ──► trained ──► (evaluate) ──► record
//!   merge ──► task: mix, adopt ──────────► merged ───► (evaluate) ──► record
//! ```
//!
//! What comes after the last round is in [`crate::last_stage`]. An aggregator's desk has no thread.

use std::collections::BTreeSet;
use std::sync::Arc;

use fednode_core::work::{Order, Outcome, Splits, Update, WorkError};
use fednode_core::{FederationSpec, Lineage, Round, Schedule};
use fednode_engine::book::{Due, Measured, Point, RoundBook, Work};
use fednode_engine::masks::MaskOrder;
use fednode_engine::{MergeOrder, MergeReport};
use fednode_store::Blobs;
use tokio::sync::watch;

use crate::answers::{Answer, Evaluating, Learned, Mixed};
use crate::base::{Base, FULL_PAUSE, on_worker};
use crate::drift::Drift;
use crate::journal::Entry;
use crate::masks::{MaskKeeper, Published, SharedPart};
use crate::merging::{MixedBefore, Mixing};
use crate::releases::Releases;
use crate::resources;
use crate::spans;
use crate::trainer::{Timed, TrainerCard, TrainerThread};
use crate::work::{self, Purpose};

/// Whoever trains at a desk.
pub(crate) struct Staff {
    pub(crate) thread: TrainerThread,
    pub(crate) card: watch::Receiver<TrainerCard>,
    pub(crate) releases: Releases,
}

/// The thread that trains, what it is, and its books.
pub(crate) struct Desk {
    pub(crate) trainer: Option<TrainerThread>,
    card: Option<watch::Receiver<TrainerCard>>,
    pub(crate) book: RoundBook,
    /// What is counted before it is published, of a member that trains.
    releases: Option<Releases>,
    /// The round after which training ahead begins, once its update is published and copied for a checkpoint.
    ahead_due: Option<Round>,
    /// The newest round whose update had to wait for disk space.
    without_space: Option<Round>,
    /// Whether the model gets worse on the node's own validation samples.
    drift: Drift,
}

impl Desk {
    /// Makes the desk of whoever trains, or of nobody.
    pub(crate) fn new(staff: Option<Staff>, book: RoundBook) -> Self {
        let (trainer, card, releases) = match staff {
            Some(staff) => (Some(staff.thread), Some(staff.card), Some(staff.releases)),
            None => Default::default(),
        };
        Self {
            trainer,
            card,
            book,
            releases,
            ahead_due: None,
            without_space: None,
            drift: Drift::default(),
        }
    }

    /// Describes whoever trains, as it is now; nothing of a member that does not train.
    pub(crate) fn card(&self) -> Option<TrainerCard> {
        self.card.as_ref().map(|card| card.borrow().clone())
    }

    /// Tells whether a local update runs.
    pub(crate) fn is_training(&self) -> bool {
        matches!(self.book.work(), Work::Training(_))
    }

    /// Makes whatever is trained now, and all that comes later, stop after its batch.
    pub(crate) fn abandon(&self) {
        if let Some(trainer) = &self.trainer {
            trainer.abandon();
        }
    }

    /// Trains a round from the shared part of this lineage, and puts masks on what comes of it if sums are masked.
    pub(crate) fn train(
        &mut self,
        base: &mut Base,
        (round, lineage): (Round, Lineage),
        order: Option<Box<MaskOrder>>,
    ) {
        let (Some(trainer), Some(releases)) = (self.trainer.clone(), self.releases.clone()) else {
            return;
        };
        let purpose = Purpose {
            round,
            lineage,
            with_proxies: Schedule::of(&base.spec).refreshes_in(round),
            with_sketches: base.spec.uses_sketches().then(|| base.spec.draw_seed()),
            precision: base.spec.transfer.precision,
        };
        self.book.begin(round, base.now(), base.traffic());
        // An evaluation takes the trainer's time, so those before the exchange are made in some rounds only.
        let fully = self.book.calendar().evaluates_fully(round);
        let splits = fully.then_some(Splits::ValidationAndTest);
        base.start(train(
            trainer,
            purpose,
            splits,
            releases,
            Masking {
                keeper: Arc::clone(&base.masks),
                spec: Arc::clone(&base.spec),
                order,
            },
            Arc::clone(&base.blobs),
        ));
    }

    /// Tells whether this round is the first whose update waits for disk space, and not the next of several.
    pub(crate) fn is_first_without_space(&mut self, round: Round) -> bool {
        let before = self.without_space.replace(round);
        before.is_none_or(|before| round > before.next())
    }

    /// Enters a local update whose blobs are written, and waits for its evaluation.
    pub(crate) fn trained(&mut self, base: &mut Base, learned: &mut Learned) {
        let round = learned.report.round;
        let took = [learned.update.took, learned.publish];
        self.book
            .trained(round, base.now(), &learned.update.value, took);
        if let Some(evaluating) = learned.evaluating.take() {
            let point = Point::AfterTraining;
            await_evaluation(base, Due { round, point }, evaluating);
        }
        // Noted, not begun: the copy for the checkpoint is ordered first, and must hold this round's model.
        self.ahead_due = Some(round).filter(|_| base.spec.training.ahead_epochs > 0);
    }

    /// Begins with the next round, if that is due.
    pub(crate) fn train_ahead(&mut self, base: &mut Base) {
        let last = Round(base.spec.rounds);
        // After the last round there is nothing to train ahead for.
        let round = self.ahead_due.take().filter(|round| *round < last);
        let (Some(trainer), Some(round)) = (&self.trainer, round) else {
            return;
        };
        let training = trainer.perform(Order::TrainAhead(round.next()));
        base.start(async move {
            Answer::TrainedAhead {
                round,
                result: training.await.map(|ahead| ahead.took),
            }
        });
    }

    /// Mixes experts and adopts the shared part.
    pub(crate) fn merge(&mut self, base: &mut Base, order: MergeOrder, before: MixedBefore) {
        let Some(trainer) = self.trainer.clone() else {
            return;
        };
        self.book.merge_begins(order.round, base.now());
        let mixing = Mixing {
            trainer,
            spec: Arc::clone(&base.spec),
            me: base.me,
            decoded: Arc::clone(&base.decoded),
            blobs: Arc::clone(&base.blobs),
            // The books decide now, not when the merge is over: by then they may stand in the next
            // round.
            due: self.book.due_after_exchange(order.round),
            order,
            before,
        };
        base.start(async move { Answer::Merged(mixing.run().await.map(Box::new)) });
    }

    /// Enters a merge that the worker has adopted, and waits for its evaluation.
    pub(crate) fn merged(&mut self, base: &mut Base, mixed: Mixed) -> MergeReport {
        let round = mixed.report.round;
        self.book
            .merged(round, mixed.took, mixed.n_sources, mixed.mixed);
        match mixed.evaluating {
            Some(evaluating) => {
                let point = Point::AfterExchange;
                await_evaluation(base, Due { round, point }, evaluating);
            }
            // A merge that changed nothing needs no evaluation: the figures from before it still
            // hold.
            None => self.book.unchanged(round),
        }
        mixed.report
    }

    /// Catches up on evaluations that a restart cut off; to be called before anything else is asked of the worker.
    pub(crate) fn resume(&mut self, base: &mut Base, written: &BTreeSet<Round>) {
        let Some(trainer) = &self.trainer else {
            return;
        };
        for due in self.book.resume(written) {
            let splits = self.book.calendar().splits(due.round);
            await_evaluation(base, due, Box::pin(trainer.evaluate(splits)));
        }
    }

    /// Writes the records that have become complete.
    pub(crate) fn write_records(&mut self, base: &mut Base) {
        // Asked after every answer, so the common case must cost nothing: no look at `/proc`, no
        // snapshot of the traffic.
        if self.book.all_complete() {
            return;
        }
        let now = base.now();
        let complete = self.book.take_complete(|record| {
            let memory = resources::memory();
            Measured {
                traffic: base.traffic(),
                round_seconds: now.since(record.started_at).as_secs_f64(),
                rss_bytes: memory.rss_bytes,
                peak_rss_bytes: memory.peak_rss_bytes,
            }
        });
        for record in complete {
            let _of_round = spans::of_round(record.round).entered();
            tracing::info!(
                round = %record.round,
                train_loss = record.train_loss,
                accuracy = record.accuracy,
                score = record.judged.as_ref().and_then(|judged| judged.value),
                seconds = record.round_seconds,
                "round complete"
            );
            if let Some(line) = self.drift.heed(&record) {
                tracing::info!("{line}");
                base.remark(line);
            }
            base.journal.add(Entry::Record(Box::new(record)));
        }
    }

    /// Says so if the node trains on other samples than before.
    pub(crate) fn tell_of_samples(&mut self, base: &mut Base) {
        let Some(card) = self
            .card
            .as_mut()
            // A card without a sender is one that never changes, which is no error.
            .filter(|card| card.has_changed().unwrap_or(false))
        else {
            return;
        };
        let n_samples = card.borrow_and_update().train_samples;
        let line =
            format!("this node's data have changed: it trains on {n_samples} samples from now on");
        tracing::info!("{line}");
        base.remark(line);
    }
}

/// Waits for an evaluation that is in the worker's queue.
fn await_evaluation(base: &mut Base, due: Due, evaluating: Evaluating) {
    base.start(async move {
        Answer::Evaluated {
            due,
            result: evaluating.await,
        }
    });
}

/// Tries again to store an update that did not fit on the disk.
pub(crate) fn store_later(
    base: &mut Base,
    update: Made,
    purpose: Purpose,
    evaluating: Option<Evaluating>,
) {
    let blobs = Arc::clone(&base.blobs);
    base.start(async move {
        // The update is kept in memory meanwhile. To train it again would cost more, and give
        // another model.
        tokio::time::sleep(FULL_PAUSE).await;
        store(update, purpose, evaluating, blobs).await
    });
}

/// Trains, then stores the update while the trainer already evaluates it, if it does.
async fn train(
    trainer: TrainerThread,
    purpose: Purpose,
    splits: Option<Splits>,
    releases: Releases,
    masking: Masking,
    blobs: Arc<Blobs>,
) -> Answer {
    let trained = trainer.perform(Order::Train(purpose.round)).await;
    let update = match trained.and_then(|trained| trained.try_map(Outcome::into_update)) {
        Ok(update) => update,
        Err(error) => return Answer::Trained(Err(error.into())),
    };
    // Checked before anything is stored: a model of NaN that was published would be screened out
    // everywhere and make this node look like a liar.
    if !update.value.train_loss.is_finite() {
        let reason = format!(
            "the loss of round {} is no longer a number: lower the learning rate",
            purpose.round
        );
        return Answer::Trained(Err(WorkError::Training(reason).into()));
    }
    let (masked, update) = on_worker(move || (masking.publish(&update.value), update)).await;
    let published = match masked {
        Ok(published) => published,
        Err(error) => return Answer::Trained(Err(error.into())),
    };
    // The mean that all started from tells nothing of this node.
    let is_release = !matches!(published.part, SharedPart::StandIn(_));
    // After the masks: a part that takes none is not published, so it must not cost any of the budget.
    let update = if is_release {
        admitted(releases, update).await
    } else {
        Ok(update)
    };
    let update = match update {
        Ok(update) => update,
        Err(error) => return Answer::Trained(Err(error.into())),
    };
    let evaluating = splits.map(|splits| Box::pin(trainer.evaluate(splits)) as Evaluating);
    let update = (Box::new(update), Box::new(published));
    store(update, purpose, evaluating, blobs).await
}

/// What it takes to put masks on an update.
struct Masking {
    keeper: Arc<MaskKeeper>,
    spec: Arc<FederationSpec>,
    /// Nothing where sums are open.
    order: Option<Box<MaskOrder>>,
}

impl Masking {
    fn publish(&self, update: &Update) -> Result<Published, WorkError> {
        match &self.order {
            Some(order) => self.keeper.publish(order, update, &self.spec),
            None => Ok(Published::OPEN),
        }
    }
}

/// A local update, and how its shared part is published.
type Made = (Box<Timed<Update>>, Box<Published>);

/// Enters what will be published into the owner's file of releases, which may refuse it. A full disk is waited for.
async fn admitted(
    releases: Releases,
    mut update: Timed<Update>,
) -> Result<Timed<Update>, WorkError> {
    let when = fednode_net::now().0 / 1000;
    let mut has_waited = false;
    loop {
        // The update goes to the thread and comes back, since a copy would take its memory twice.
        let ours = releases.clone();
        let entering = on_worker(move || (ours.admit(&update.value, when), update));
        let entered;
        (entered, update) = entering.await;
        match entered {
            Ok(()) => return Ok(update),
            Err(error) if error.is_full_disk() => {
                if !has_waited {
                    tracing::warn!("the update waits for disk space: {error}");
                }
                has_waited = true;
                tokio::time::sleep(FULL_PAUSE).await;
            }
            Err(error) => return Err(WorkError::Withheld(error.to_string())),
        }
    }
}

async fn store(
    (update, published): Made,
    purpose: Purpose,
    evaluating: Option<Evaluating>,
    blobs: Arc<Blobs>,
) -> Answer {
    let (stored, update, published) = on_worker(move || {
        let stored = work::store_update(&update.value, &published, purpose, &blobs);
        (stored, update, published)
    })
    .await;
    match stored {
        Ok(Timed {
            value: report,
            took: publish,
        }) => Answer::Trained(Ok(Box::new(Learned {
            report,
            update: *update,
            publish,
            evaluating,
        }))),
        Err(error) => Answer::NotStored {
            update,
            purpose,
            published,
            evaluating,
            error,
        },
    }
}
