//! Carrying out what a machine orders: the one `match` over its outputs.
//!
//! Every order that asks for something becomes a task with exactly one answer (`answers`); the others are done and
//! forgotten. Nothing here decides anything about the federation.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fednode_core::{BlobId, BlobStore, Body, FederationSpec, NodeId, Precision, Round};
use fednode_engine::{
    AverageOrder, Fetch, FetchKind, Input, MergeOrder, MergeReport, Note, Output,
};
use fednode_net::{Handle, Packing};
use fednode_store::Blobs;
use fednode_store::ledger::{ClosedRound, Event, EventLevel};
use tracing::debug;

use crate::answers::{Answer, Evaluating, Learned, Mixed, Received};
use crate::checkpointing::{self, Meta, Snapshot};
use crate::decoded::Decoded;
use crate::driver::Driver;
use crate::error::RunError;
use crate::journal::Entry;
use crate::machine::Machine;
use crate::records::Stage;
use crate::trainer::{Timed, TrainerError, TrainerThread, Update};
use crate::work::{self, Purpose};

/// Adverts that may wait to be said; more than any machine says in a round.
const UNSAID: usize = 256;
/// How long a machine's ban lasts: as long as the network keeps one.
const BAN: Duration = Duration::from_secs(3600);
/// Pause before something is tried again that failed for want of disk space.
pub(crate) const FULL_PAUSE: Duration = Duration::from_secs(5);
/// Share of the quota up to which blobs that nobody needs are kept for others, and its limit in bytes.
const KEPT_SHARE: u64 = 2;
const KEPT_BYTES: u64 = 256 << 20;

/// Adverts are said one after the other, so that their order is the machine's.
#[derive(Debug, Default)]
pub(crate) struct Publishing {
    pub(crate) busy: bool,
    waiting: VecDeque<(Round, Body)>,
}

impl Publishing {
    /// Tells whether everything was said.
    pub(crate) fn is_idle(&self) -> bool {
        !self.busy && self.waiting.is_empty()
    }
}

impl<M: Machine> Driver<M> {
    pub(crate) fn carry_out(&mut self, output: Output) {
        match output {
            // A new update would take the goodbye back.
            Output::Publish { .. } | Output::Train { .. } if self.ending.is_leaving() => {}
            Output::Publish { round, body } => self.publish(round, body),
            Output::Fetch(fetch) => self.queue_fetch(fetch),
            Output::Train { round } => self.train(round),
            Output::Follow(nodes) => self.follow(nodes),
            Output::Merge(order) => self.merge(order),
            Output::Average(order) => self.average(order),
            Output::Module { round } => self.make_module(round),
            Output::Pool(order) => self.assemble_pool(order),
            Output::Save => {
                self.save();
                self.train_ahead();
            }
            Output::SetTimer { timer, at } => self.timers.set(timer, at),
            Output::Strike { node, reason } => self.strike(node, reason),
            Output::Ban { node, reason } => self.ban(node, reason),
            Output::Forget(blobs) => self.forget(blobs),
            Output::Note(note) => self.note(&note),
        }
    }

    fn publish(&mut self, round: Round, body: Body) {
        if self.publishing.waiting.len() >= UNSAID {
            let now = self.clock.now();
            return self.notebook.warn(
                now,
                format!("an advert about round {round} was dropped: too many wait"),
            );
        }
        self.publishing.waiting.push_back((round, body));
        self.publish_next();
    }

    pub(crate) fn publish_next(&mut self) {
        if self.publishing.busy {
            return;
        }
        let Some((round, body)) = self.publishing.waiting.pop_front() else {
            return;
        };
        self.publishing.busy = true;
        let net = self.net.clone();
        self.tasks
            .spawn(async move { Answer::Published(net.publish(round, body).await.map(Box::new)) });
    }

    fn follow(&mut self, nodes: Vec<NodeId>) {
        let net = self.net.clone();
        self.tasks.spawn(async move {
            net.follow(nodes).await;
            Answer::Done
        });
    }

    fn queue_fetch(&mut self, fetch: Fetch) {
        if let Some(refused) = self.fetches.add(fetch) {
            debug!(blob = %refused.blob.id, "not fetched: too many fetches wait");
            let until = self.clock.now();
            self.tasks.spawn(async move {
                let result = Err("too many fetches wait".into());
                Answer::Fetched {
                    fetch: Fetch { until, ..refused },
                    result,
                    received: None,
                }
            });
        }
        self.start_fetches();
    }

    pub(crate) fn start_fetches(&mut self) {
        while let Some(fetch) = self.fetches.start_next() {
            let deadline = fetch.until.since(self.clock.now());
            let (decoded, blobs) = (Arc::clone(&self.decoded), Arc::clone(&self.blobs));
            let (spec, net) = (Arc::clone(&self.spec), self.net.clone());
            self.tasks
                .spawn(fetch_and_check(fetch, deadline, spec, net, decoded, blobs));
        }
    }

    fn train(&mut self, round: Round) {
        let (Some(trainer), Some(state)) = (&self.trainer, self.machine.training_state()) else {
            return;
        };
        let with_proxies = self.spec.refreshes_in(round);
        let with_sketches = self.spec.uses_sketches().then(|| self.spec.draw_seed());
        let precision = self.spec.transfer.precision;
        let purpose = Purpose {
            round,
            lineage: state.lineage,
            with_proxies,
            with_sketches,
            precision,
        };
        self.training = true;
        let fully = self.config.evaluates_fully(round);
        let stages = if fully {
            &Stage::BOTH[..]
        } else {
            &[Stage::Merged]
        };
        self.records
            .begin(round, self.clock.now(), self.net.traffic().into(), stages);
        self.tasks.spawn(train(
            trainer.clone(),
            purpose,
            fully,
            Arc::clone(&self.blobs),
        ));
        self.collect_garbage();
    }

    /// Lets the trainer begin with the next round as soon as the newest update is published, and copied for a checkpoint.
    pub(crate) fn train_ahead(&mut self) {
        let Some(round) = self.ahead_due.take() else {
            return;
        };
        let last = Round(self.spec.rounds);
        let (Some(trainer), true) = (&self.trainer, round < last && !self.ending.is_leaving())
        else {
            return;
        };
        let training = trainer.train_ahead(round.next());
        self.tasks.spawn(async move {
            Answer::TrainedAhead {
                round,
                result: flatten(training.await),
            }
        });
    }

    /// Tries again to store an update that did not fit on the disk.
    pub(crate) fn store_later(
        &mut self,
        update: Box<Timed<Update>>,
        purpose: Purpose,
        evaluating: Option<Evaluating>,
    ) {
        let blobs = Arc::clone(&self.blobs);
        self.tasks.spawn(async move {
            tokio::time::sleep(FULL_PAUSE).await;
            store(update, purpose, evaluating, blobs).await
        });
    }

    fn merge(&mut self, order: MergeOrder) {
        let Some(trainer) = &self.trainer else { return };
        self.merging = true;
        self.records.merge_begins(order.round, self.clock.now());
        let mixing = Mixing {
            trainer: trainer.clone(),
            spec: Arc::clone(&self.spec),
            me: self.me,
            decoded: Arc::clone(&self.decoded),
            blobs: Arc::clone(&self.blobs),
            evaluate: self.records.is_open(order.round),
            fully: self.config.evaluates_fully(order.round),
            order,
        };
        self.tasks
            .spawn(async move { Answer::Merged(mixing.run().await.map(Box::new)) });
    }

    fn average(&mut self, order: AverageOrder) {
        let (spec, blobs, net) = (
            Arc::clone(&self.spec),
            Arc::clone(&self.blobs),
            self.net.clone(),
        );
        let decoded = Arc::clone(&self.decoded);
        self.tasks.spawn(async move {
            let round = order.round;
            let (report, error) =
                on_worker(move || work::average(&order, &spec, &decoded, &blobs)).await;
            if let Some(mean) = report.mean {
                net.announce_held(mean.id).await;
            }
            let Some(error) = error else {
                return Answer::Averaged {
                    report,
                    trouble: None,
                };
            };
            // The machine tries again at once; a full disk does not empty itself that fast.
            tokio::time::sleep(FULL_PAUSE).await;
            let trouble = format!("the mean of round {round} cannot be stored: {error}");
            Answer::Averaged {
                report,
                trouble: Some(trouble),
            }
        });
    }

    /// Orders a checkpoint of this moment; during training, of the moment when it ends.
    pub(crate) fn save(&mut self) {
        self.ending.look_again();
        if self.training {
            self.saving.after_training = true;
            return;
        }
        let (number, partition_hash) = (self.saving.order(), self.card.partition_hash.clone());
        let snapshot = Snapshot {
            number,
            meta: self.meta(),
            model: None,
            partition_hash,
        };
        let round = self.machine.status(self.clock.now()).round;
        let copying = self
            .trainer
            .as_ref()
            .map(|trainer| trainer.call(|trainer| trainer.state()));
        self.tasks.spawn(async move {
            let Some(copying) = copying else {
                return Answer::Copied {
                    snapshot: Box::new(snapshot),
                    round,
                    took: Duration::ZERO,
                };
            };
            match copying.await {
                Ok(Timed { value, took }) => {
                    let model = on_worker(move || value.to_bytes()).await;
                    let snapshot = Box::new(Snapshot {
                        model: Some(model),
                        ..snapshot
                    });
                    Answer::Copied {
                        snapshot,
                        round,
                        took,
                    }
                }
                Err(error) => Answer::NotCopied(error),
            }
        });
    }

    fn meta(&self) -> Meta {
        Meta {
            machine: self.machine.snapshot(),
            own: self.own.clone(),
            records: self.records.open(),
            last_record: self.records.last().cloned(),
            last_stage: self.last_stage.clone(),
        }
    }

    pub(crate) fn write_checkpoint(&mut self, mut snapshot: Box<Snapshot>) {
        let checkpoints = Arc::clone(&self.checkpoints);
        self.tasks.spawn(async move {
            Answer::Saved(
                on_worker(move || checkpointing::write(&mut snapshot, &checkpoints)).await,
            )
        });
    }

    fn strike(&mut self, node: NodeId, reason: String) {
        let net = self.net.clone();
        let at = self.clock.now();
        self.notebook
            .remark(at, format!("peer {}: {reason}", node.short()));
        self.tasks.spawn(async move {
            net.strike(node, reason).await;
            Answer::Done
        });
    }

    fn ban(&mut self, node: NodeId, reason: String) {
        let net = self.net.clone();
        self.tasks.spawn(async move {
            net.ban(node, BAN, reason).await;
            Answer::Done
        });
    }

    fn forget(&mut self, forgotten: Vec<BlobId>) {
        let blobs = Arc::clone(&self.blobs);
        self.tasks.spawn(async move {
            on_worker(move || {
                for blob in forgotten {
                    if let Err(error) = blobs.remove(&blob) {
                        tracing::warn!(%blob, %error, "a withdrawn blob is not removed");
                    }
                }
            })
            .await;
            Answer::Done
        });
    }

    fn note(&mut self, note: &Note) {
        let at = self.clock.now();
        let text = self.notebook.note(at, note);
        self.journal.add(Entry::Event(Event {
            time: at,
            level: EventLevel::Info,
            text,
        }));
        match note {
            Note::RoundStarted(round) => self.journal.add(Entry::Started { round: *round, at }),
            // How good a node is in the end is known of all.
            Note::SitsOut(round) if round.0 == self.spec.rounds => {
                self.records
                    .begin(*round, at, self.net.traffic().into(), &[Stage::Merged]);
            }
            Note::RoundClosed { round, by, members } => {
                self.records.closed(*round, *by, *members);
                self.enter_closed(*by, *members);
            }
            _ => {}
        }
        self.ending.look_again();
    }

    /// Enters the newest closed round into the ledger; a round that ended without a mean is none.
    fn enter_closed(&self, by: Option<NodeId>, members: u32) {
        let closed_at = self.clock.now();
        let head = self.machine.status(closed_at).head;
        if let (Some(closed_by), Some(mean)) = (by, head.mean) {
            let closed = ClosedRound {
                closed_at,
                closed_by,
                members,
                mean,
                history: head.history,
            };
            self.journal.add(Entry::Closed {
                round: head.round,
                closed,
            });
        }
    }

    /// Tells peers that these blobs can be had here.
    pub(crate) fn announce(&mut self, blobs: Vec<BlobId>) {
        let net = self.net.clone();
        self.tasks.spawn(async move {
            for blob in blobs {
                net.announce_held(blob).await;
            }
            Answer::Done
        });
    }

    /// Returns the blobs that must stay: what the machine needs and what others may still want of this node.
    pub(crate) fn kept_blobs(&self) -> BTreeSet<BlobId> {
        let mut keep = self.machine.needed_blobs();
        keep.extend(self.own.ids());
        keep
    }

    fn collect_garbage(&mut self) {
        let (keep, blobs) = (self.kept_blobs(), Arc::clone(&self.blobs));
        let target = (blobs.quota_bytes() / KEPT_SHARE).min(KEPT_BYTES);
        self.tasks.spawn(async move {
            let collected = on_worker(move || work::collect(&keep, target, &blobs)).await;
            if let Err(error) = collected {
                tracing::warn!(%error, "unneeded blobs cannot be removed");
            }
            Answer::Done
        });
    }

    /// Catches up on evaluations that a restart cut off; to be called before anything else is asked of the trainer.
    pub(crate) fn resume_records(&mut self, written: &BTreeSet<Round>) {
        let Some(trainer) = self.trainer.clone() else {
            return;
        };
        for (round, stage) in self.records.resume(written) {
            let fully = self.config.evaluates_fully(round);
            self.await_evaluation(round, stage, evaluate(&trainer, fully));
        }
    }

    pub(crate) fn await_evaluation(&mut self, round: Round, stage: Stage, evaluating: Evaluating) {
        self.tasks.spawn(async move {
            Answer::Evaluated {
                round,
                stage,
                result: flatten(evaluating.await),
            }
        });
    }

    /// Answers a fetch that did not bring what was announced.
    pub(crate) fn fetch_failed(&mut self, fetch: &Fetch, reason: &str, malformed: bool) {
        debug!(blob = %fetch.blob.id, kind = ?fetch.kind, reason, "fetch failed");
        if let Some(author) = fetch.from.first().filter(|_| malformed) {
            self.strike(
                *author,
                format!("announced a blob that is not what it said: {reason}"),
            );
        }
        self.feed(Input::FetchFailed(fetch.blob.id));
    }
}

/// Runs blocking work on a worker thread.
pub(crate) async fn on_worker<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is going away, and this task with it.
            Err(_) => std::future::pending().await,
        },
    }
}

/// Turns the two ways in which a job can fail into one.
pub(crate) fn flatten<T>(
    result: Result<Timed<Result<T, TrainerError>>, TrainerError>,
) -> Result<Timed<T>, TrainerError> {
    let Timed { value, took } = result?;
    Ok(Timed {
        value: value?,
        took,
    })
}

async fn fetch_and_check(
    fetch: Fetch,
    deadline: Duration,
    spec: Arc<FederationSpec>,
    net: Handle,
    decoded: Arc<Decoded>,
    blobs: Arc<Blobs>,
) -> Answer {
    let started = Instant::now();
    let _base = fetch.base.map(|base| blobs.pin(base));
    let fetched = match blobs.held(&fetch.blob.id) {
        Some(_) => Ok(None),
        None => {
            let packing = Packing {
                width: precision_of(fetch.kind, &spec).into(),
                base: fetch.base,
            };
            net.fetch_packed(fetch.blob, fetch.from.clone(), deadline, packing)
                .await
                .map(Some)
        }
    };
    match fetched {
        Ok(from) => {
            let received = from.map(|from| Received {
                from,
                took: started.elapsed(),
            });
            let wanted = fetch.clone();
            let result = Ok(on_worker(move || work::check(&wanted, &spec, &decoded, &blobs)).await);
            Answer::Fetched {
                fetch,
                result,
                received,
            }
        }
        Err(error) => Answer::Fetched {
            fetch,
            result: Err(error.to_string()),
            received: None,
        },
    }
}

/// Returns the precision of the numbers that a fetch brings.
fn precision_of(kind: FetchKind, spec: &FederationSpec) -> Precision {
    match kind {
        FetchKind::Expert | FetchKind::Module => spec.transfer.precision,
        FetchKind::Shared | FetchKind::Proxies => Precision::F32,
    }
}

/// Hands in an evaluation.
fn evaluate(trainer: &TrainerThread, with_validation: bool) -> Evaluating {
    Box::pin(trainer.call(move |trainer| trainer.evaluate(with_validation)))
}

/// Trains, then stores the update while the trainer already evaluates it, if it does.
async fn train(trainer: TrainerThread, purpose: Purpose, fully: bool, blobs: Arc<Blobs>) -> Answer {
    let update = match flatten(trainer.train(purpose.round).await) {
        Ok(update) => update,
        Err(error) => return Answer::Trained(Err(error.into())),
    };
    if !update.value.train_loss.is_finite() {
        let reason = format!(
            "the loss of round {} is no longer a number: lower the learning rate",
            purpose.round
        );
        return Answer::Trained(Err(TrainerError::Training(reason).into()));
    }
    let evaluating = fully.then(|| evaluate(&trainer, true));
    store(Box::new(update), purpose, evaluating, blobs).await
}

async fn store(
    update: Box<Timed<Update>>,
    purpose: Purpose,
    evaluating: Option<Evaluating>,
    blobs: Arc<Blobs>,
) -> Answer {
    let (stored, update) =
        on_worker(move || (work::store_update(&update, purpose, &blobs), update)).await;
    match stored {
        Ok(stored) => Answer::Trained(Ok(Box::new(Learned { stored, evaluating }))),
        Err(error) => Answer::NotStored {
            update,
            purpose,
            evaluating,
            error,
        },
    }
}

/// A merge under way.
struct Mixing {
    trainer: TrainerThread,
    spec: Arc<FederationSpec>,
    me: NodeId,
    decoded: Arc<Decoded>,
    blobs: Arc<Blobs>,
    order: MergeOrder,
    /// Whether anybody wants to know how good the result is.
    evaluate: bool,
    /// Whether the model was evaluated before the exchange, too.
    fully: bool,
}

impl Mixing {
    async fn run(self) -> Result<Mixed, RunError> {
        let Self {
            trainer,
            spec,
            me,
            decoded,
            blobs,
            order,
            evaluate: asked,
            fully,
        } = self;
        let own_shared = match order.adopt {
            Some(_) => trainer.call(|trainer| trainer.shared()).await?.value,
            None => None,
        };
        let mixed = on_worker(move || {
            work::merge(&order, &spec, me, own_shared.as_ref(), &decoded, &blobs)
        })
        .await;
        let Timed {
            value: (mut adoption, report),
            took,
        } = mixed;
        let n_sources = work::n_sources(&adoption, me);
        let mixed = std::mem::take(&mut adoption.mixed);
        if adoption.shared.is_none() && adoption.experts.is_empty() {
            let evaluating = (asked && !fully).then(|| evaluate(&trainer, false));
            return Ok(Mixed {
                report,
                took,
                n_sources,
                mixed,
                evaluating,
            });
        }
        let shared = adoption.shared.map(Arc::unwrap_or_clone);
        let experts = adoption.experts.into_iter();
        let experts = experts
            .map(|(slot, params)| (slot, Arc::unwrap_or_clone(params)))
            .collect();
        let adopting = trainer.call(move |trainer| trainer.adopt(shared, experts));
        // Handed in together, so that no later order comes between.
        let evaluating = asked.then(|| evaluate(&trainer, fully));
        let adopted = adopting.await?;
        let report = judge(report, adopted.value)?;
        Ok(Mixed {
            report,
            took: took + adopted.took,
            n_sources,
            mixed,
            evaluating,
        })
    }
}

/// A shared part that passed every screen and still does not fit is refused like one that did not pass.
fn judge(report: MergeReport, adopted: Result<(), TrainerError>) -> Result<MergeReport, RunError> {
    match adopted {
        Ok(()) => Ok(report),
        Err(TrainerError::Misfit(reason)) => Ok(MergeReport {
            refused_mean: Some(reason),
            ..report
        }),
        Err(error) => Err(error.into()),
    }
}
