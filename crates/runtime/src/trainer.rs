//! The trainer: whoever has the tensors, on a thread of its own.
//!
//! ```text
//!   driver ── job ──► [ queue of JOBS ] ──► trainer thread ── answer ──► task that waits for it
//!      └──── abandon (a flag) ─────────────────┘  looks at it after every batch
//! ```
//!
//! Jobs run one after the other in the order in which they were handed in; that order is what keeps a checkpoint's
//! model and the machine's state together. Training never blocks the loop, and the loop never blocks training.

use std::future::Future;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fednode_core::{NodeId, ParamSet, PoolOutcome, ProxySet, Round, Score, Slot};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot, watch};

/// Jobs that may wait for the trainer: per round one training, two evaluations, an adoption and a few saves.
const JOBS: usize = 32;

/// Whoever trains the model. Implemented by the daemon over its tensor library.
pub trait Trainer: Send + 'static {
    /// Returns the shared part that every node of the federation starts from.
    fn initial_shared(&self) -> Option<ParamSet>;

    /// Returns the shared part as it is now.
    fn shared(&self) -> Option<ParamSet>;

    /// Trains one round and calls `watch` after every batch.
    ///
    /// # Errors
    /// [`TrainerError::Abandoned`] if `watch` breaks off; otherwise what went wrong.
    fn local_update(&mut self, round: Round, watch: &mut Watch<'_>)
    -> Result<Update, TrainerError>;

    /// Trains the first epochs of a round that has not begun, as many as the spec wants, while the exchange before it still
    /// runs. What everything else here says and takes is the model as it was published; [`Trainer::local_update`] of that
    /// round goes on from there.
    ///
    /// # Errors
    /// As [`Trainer::local_update`].
    fn train_ahead(&mut self, _round: Round, _watch: &mut Watch<'_>) -> Result<(), TrainerError> {
        Ok(())
    }

    /// Trains for this node alone after the last round, and evaluates the result; `None` if the algorithm has no such
    /// stage. What comes out is for use, not for another round.
    ///
    /// # Errors
    /// As [`Trainer::local_update`].
    fn finish(
        &mut self,
        last: Round,
        watch: &mut Watch<'_>,
    ) -> Result<Option<Evaluations>, TrainerError>;

    /// Returns the private module that others may take into their pools, after [`Trainer::finish`] and the fine-tuning
    /// that the spec asks for; `None` if the algorithm has none.
    ///
    /// # Errors
    /// As [`Trainer::local_update`].
    fn module(&mut self, watch: &mut Watch<'_>) -> Result<Option<PrivateModule>, TrainerError>;

    /// Makes a pool of the own module and these, in node order, and serves the outcome from now on.
    ///
    /// # Errors
    /// As [`Trainer::local_update`]; a module that does not fit is no error but left out.
    fn pool(
        &mut self,
        modules: Modules,
        watch: &mut Watch<'_>,
    ) -> Result<PoolOutcome, TrainerError>;

    /// Takes over a shared part and mixed experts.
    ///
    /// # Errors
    /// Fails if they do not fit the model.
    fn adopt(
        &mut self,
        shared: Option<ParamSet>,
        experts: Vec<(Slot, ParamSet)>,
    ) -> Result<(), TrainerError>;

    /// Evaluates the model as it is on the test split, and on the validation split if asked, without changing anything
    /// that later training depends on.
    ///
    /// # Errors
    /// Fails if the device does.
    fn evaluate(&mut self, with_validation: bool) -> Result<Evaluations, TrainerError>;

    /// Returns everything that a restart needs.
    fn state(&self) -> ParamSet;

    /// Goes on from a state.
    ///
    /// # Errors
    /// Fails if it does not fit the model.
    fn restore(&mut self, state: &ParamSet) -> Result<(), TrainerError>;

    /// Describes model, data and device.
    fn describe(&self) -> TrainerCard;
}

/// Where training is.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct TrainProgress {
    /// The local epoch, counting from 1.
    pub epoch: u32,
    /// Local epochs in all.
    pub epochs: u32,
    /// The batch within the epoch, counting from 1.
    pub batch: u32,
    /// Batches per epoch.
    pub batches: u32,
    /// Loss of the last batch.
    pub loss: f64,
}

/// What a local update produced.
#[derive(Debug, Clone)]
pub struct Update {
    /// The node's version of the averaged part.
    pub shared: Option<ParamSet>,
    /// Its experts in slot order, with the samples that the gate routed to each.
    pub experts: Vec<(ParamSet, u32)>,
    /// Its gating proxies.
    pub proxies: Option<ProxySet>,
    /// Training samples.
    pub n_samples: u32,
    /// Mean loss over the last local epoch.
    pub train_loss: f64,
    /// Share of training samples routed to each expert.
    pub expert_share: Vec<f64>,
    /// Multiply-adds of its layers, forward and backward.
    pub multiply_adds: u64,
}

/// What a node offers to the pools of others.
#[derive(Debug, Clone, PartialEq)]
pub struct PrivateModule {
    /// What it is: `head`, `extractor`, `vector`, `expert`.
    pub kind: String,
    /// Its parameters.
    pub params: ParamSet,
    /// Accuracy on the node's validation samples; 0 without any.
    pub score: f64,
}

/// Private modules with whose they are, in node order; modules of one content are one in memory.
pub type Modules = Vec<(NodeId, Arc<ParamSet>)>;

/// What came after the last round.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct LastStage {
    /// How good the model is then; `None` if nothing came after the last round.
    pub evaluations: Option<Evaluations>,
    /// What became of the pool, if there was to be one and the algorithm has a private module.
    pub pool: Option<PoolOutcome>,
}

/// How good the model is.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Evaluations {
    /// On the validation split; `None` if there is none or it was not asked for.
    pub validation: Option<Score>,
    /// On the test split; `None` if there is none.
    pub test: Option<Score>,
    /// Share of test samples routed to each expert.
    pub expert_share: Vec<f64>,
}

/// What a trainer is: model, data, device.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TrainerCard {
    /// The device, for people.
    pub device: String,
    /// The model's name.
    pub model: String,
    /// Parameters of the whole model.
    pub n_parameters: u64,
    /// Samples it trains on.
    pub train_samples: u32,
    /// Samples held out for validation.
    pub validation_samples: u32,
    /// Samples held out for testing.
    pub test_samples: u32,
    /// Labels that occur in the node's data.
    pub classes: Vec<u32>,
    /// Hash of the partition that the data come from; empty if the node brings its own.
    pub partition_hash: String,
}

/// Tells why a trainer could not do its job.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TrainerError {
    /// It was told to stop.
    #[error("training was abandoned")]
    Abandoned,
    /// Training failed.
    #[error("training failed: {0}")]
    Training(String),
    /// The data cannot be used.
    #[error("the data cannot be used: {0}")]
    Data(String),
    /// Parameters do not fit the model.
    #[error("parameters do not fit the model: {0}")]
    Misfit(String),
    /// The thread ended on its own, which a crash of a driver or a defect may cause.
    #[error(
        "the trainer's thread ended unexpectedly: a crash of the device driver or a defect of this software"
    )]
    Died,
}

/// A value and how long it took to make, on the trainer's thread alone.
#[derive(Debug, Clone)]
pub(crate) struct Timed<T> {
    pub(crate) value: T,
    pub(crate) took: Duration,
}

/// Told after every batch where training is; says whether to go on.
pub type Watch<'a> = dyn FnMut(TrainProgress) -> ControlFlow<()> + Send + 'a;

type Job = Box<dyn FnOnce(&mut dyn Trainer) + Send>;

/// A handle on the trainer's thread. The thread ends when the last handle is dropped and its queue is done.
#[derive(Debug, Clone)]
pub(crate) struct TrainerThread {
    jobs: mpsc::Sender<Job>,
    abandon: Arc<AtomicBool>,
    progress: Arc<watch::Sender<Option<TrainProgress>>>,
}

impl TrainerThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// Fails if the operating system has no thread left.
    pub(crate) fn spawn(trainer: Box<dyn Trainer>) -> std::io::Result<Self> {
        let (jobs, queue) = mpsc::channel(JOBS);
        std::thread::Builder::new()
            .name("trainer".into())
            .spawn(move || work(trainer, queue))?;
        Ok(Self {
            jobs,
            abandon: Arc::default(),
            progress: Arc::new(watch::Sender::new(None)),
        })
    }

    /// Hands in a job at once and returns a future of its result.
    ///
    /// The job runs even if the future is dropped.
    pub(crate) fn call<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut dyn Trainer) -> T + Send + 'static,
    ) -> impl Future<Output = Result<Timed<T>, TrainerError>> + Send + 'static {
        let (answer, answered) = oneshot::channel();
        let timed = move |trainer: &mut dyn Trainer| {
            let started = Instant::now();
            let value = job(trainer);
            // Whoever asked may be gone; the job's effect on the trainer stays.
            let _ = answer.send(Timed {
                value,
                took: started.elapsed(),
            });
        };
        let accepted = self.jobs.try_send(Box::new(timed));
        async move {
            accepted.map_err(|_| TrainerError::Died)?;
            answered.await.map_err(|_| TrainerError::Died)
        }
    }

    /// Trains a round.
    pub(crate) fn train(
        &self,
        round: Round,
    ) -> impl Future<Output = Result<Timed<Result<Update, TrainerError>>, TrainerError>> + Send + 'static
    {
        self.call_watched(move |trainer, watch| trainer.local_update(round, watch))
    }

    /// Trains the first epochs of a round in advance.
    pub(crate) fn train_ahead(
        &self,
        round: Round,
    ) -> impl Future<Output = Result<Timed<Result<(), TrainerError>>, TrainerError>> + Send + 'static
    {
        self.call_watched(move |trainer, watch| trainer.train_ahead(round, watch))
    }

    /// Trains for this node alone after the last round.
    pub(crate) fn finish(
        &self,
        last: Round,
    ) -> impl Future<Output = Result<Timed<Result<Option<Evaluations>, TrainerError>>, TrainerError>>
    + Send
    + 'static {
        self.call_watched(move |trainer, watch| trainer.finish(last, watch))
    }

    /// Makes the private module.
    pub(crate) fn module(
        &self,
    ) -> impl Future<
        Output = Result<Timed<Result<Option<PrivateModule>, TrainerError>>, TrainerError>,
    > + Send
    + 'static {
        self.call_watched(|trainer, watch| trainer.module(watch))
    }

    /// Makes a pool.
    pub(crate) fn pool(
        &self,
        modules: Modules,
    ) -> impl Future<Output = Result<Timed<Result<PoolOutcome, TrainerError>>, TrainerError>>
    + Send
    + 'static {
        self.call_watched(move |trainer, watch| trainer.pool(modules, watch))
    }

    /// Hands in a job that shows its progress and can be abandoned.
    fn call_watched<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut dyn Trainer, &mut Watch<'_>) -> T + Send + 'static,
    ) -> impl Future<Output = Result<Timed<T>, TrainerError>> + Send + 'static {
        let abandon = Arc::clone(&self.abandon);
        let progress = Arc::clone(&self.progress);
        self.call(move |trainer| {
            let mut watch = |now: TrainProgress| {
                progress.send_replace(Some(now));
                match abandon.load(Ordering::Relaxed) {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            };
            let result = job(trainer, &mut watch);
            progress.send_replace(None);
            result
        })
    }

    /// Makes the training that runs, and every later one, stop after its current batch.
    pub(crate) fn abandon(&self) {
        self.abandon.store(true, Ordering::Relaxed);
    }

    /// Returns where training is, if it runs.
    pub(crate) fn progress(&self) -> Option<TrainProgress> {
        *self.progress.borrow()
    }
}

fn work(mut trainer: Box<dyn Trainer>, mut queue: mpsc::Receiver<Job>) {
    while let Some(job) = queue.blocking_recv() {
        job(trainer.as_mut());
    }
}
