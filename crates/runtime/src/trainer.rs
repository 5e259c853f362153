//! The trainer's thread: carries out a worker's orders, one after the other.
//!
//! ```text
//!   driver ── order ──► [ queue of ORDERS ] ──► worker's thread ── outcome ──► task that waits for it
//!      └──── abandon (a flag) ──────────────────┘  looks at it after every batch
//! ```
//!
//! Orders run in the order in which they were handed in. That order is what keeps a checkpoint's model and the machine's
//! state together. Training never blocks the loop, and the loop never blocks training.

use std::future::Future;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fednode_core::ParamSet;
use fednode_core::work::{Evaluations, Order, Outcome, Progress, Splits, WorkError, Worker};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot, watch};
use tracing::Span;

/// Orders that may wait: per round one training, two evaluations, an adoption and a few saves.
const ORDERS: usize = 32;

/// A worker and its description.
pub struct Trainer {
    /// Whoever has the tensors.
    pub worker: Box<dyn Worker>,
    /// Model, data and device as they are now, for people.
    pub card: watch::Receiver<TrainerCard>,
}

impl Trainer {
    /// Makes a trainer that stays what it is.
    pub fn of(worker: Box<dyn Worker>, card: TrainerCard) -> Self {
        Self {
            worker,
            // The sender goes at once and the value stays, since nothing will change it.
            card: watch::Sender::new(card).subscribe(),
        }
    }
}

impl std::fmt::Debug for Trainer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trainer")
            .field("card", &self.card)
            .finish_non_exhaustive()
    }
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

/// A value and how long it took to make, on the worker's thread alone.
#[derive(Debug, Clone)]
pub(crate) struct Timed<T> {
    pub(crate) value: T,
    pub(crate) took: Duration,
}

impl<T> Timed<T> {
    /// Turns the value into another, made in the same time.
    pub(crate) fn try_map<U, E>(self, to: impl FnOnce(T) -> Result<U, E>) -> Result<Timed<U>, E> {
        Ok(Timed {
            value: to(self.value)?,
            took: self.took,
        })
    }
}

type Job = Box<dyn FnOnce(&mut dyn Worker) + Send>;

/// A handle on the worker's thread. The thread ends when the last handle is dropped and its queue is done.
#[derive(Debug, Clone)]
pub(crate) struct TrainerThread {
    jobs: mpsc::Sender<Job>,
    abandon: Arc<AtomicBool>,
    progress: Arc<watch::Sender<Option<Progress>>>,
}

impl TrainerThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// Fails if the operating system has no thread left.
    pub(crate) fn spawn(worker: Box<dyn Worker>) -> std::io::Result<Self> {
        let (jobs, queue) = mpsc::channel(ORDERS);
        std::thread::Builder::new()
            .name("trainer".into())
            .spawn(move || run(worker, queue))?;
        Ok(Self {
            jobs,
            abandon: Arc::default(),
            progress: Arc::new(watch::Sender::new(None)),
        })
    }

    /// Hands in an order at once and returns a future of its outcome.
    ///
    /// The order is carried out even if the future is dropped.
    pub(crate) fn perform(
        &self,
        order: Order,
    ) -> impl Future<Output = Result<Timed<Outcome>, WorkError>> + Send + 'static {
        let abandon = Arc::clone(&self.abandon);
        let progress = Arc::clone(&self.progress);
        let performing = self.call(move |worker| {
            let mut watch = |now: Progress| {
                progress.send_replace(Some(now));
                if abandon.load(Ordering::Relaxed) {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            };
            let outcome = worker.perform(order, &mut watch);
            // Whatever came of it: nobody may see the progress of work that has ended.
            progress.send_replace(None);
            outcome
        });
        async move { performing.await?.try_map(|outcome| outcome) }
    }

    /// Hands in an evaluation at once, as [`Self::perform`].
    pub(crate) fn evaluate(
        &self,
        splits: Splits,
    ) -> impl Future<Output = Result<Timed<Evaluations>, WorkError>> + Send + 'static {
        let evaluating = self.perform(Order::Evaluate(splits));
        async move { evaluating.await?.try_map(Outcome::into_evaluations) }
    }

    /// Hands in a copy of everything that a restart needs, as [`Self::perform`].
    pub(crate) fn state(
        &self,
    ) -> impl Future<Output = Result<Timed<ParamSet>, WorkError>> + Send + 'static {
        self.call(|worker| worker.state())
    }

    /// Hands in a copy of the shared part, as [`Self::perform`].
    pub(crate) fn shared(
        &self,
    ) -> impl Future<Output = Result<Timed<Option<ParamSet>>, WorkError>> + Send + 'static {
        self.call(|worker| worker.shared())
    }

    /// Hands in a state to go on from, as [`Self::perform`].
    pub(crate) fn restore(
        &self,
        state: ParamSet,
    ) -> impl Future<Output = Result<(), WorkError>> + Send + 'static {
        let restoring = self.call(move |worker| worker.restore(&state));
        async move { restoring.await?.value }
    }

    fn call<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut dyn Worker) -> T + Send + 'static,
    ) -> impl Future<Output = Result<Timed<T>, WorkError>> + Send + 'static {
        let (answer, answered) = oneshot::channel();
        let span = Span::current();
        let timed = move |worker: &mut dyn Worker| {
            let started = Instant::now();
            let value = span.in_scope(|| job(worker));
            // Whoever asked may be gone; the job's effect on the worker stays.
            let _ = answer.send(Timed {
                value,
                took: started.elapsed(),
            });
        };
        // Handed in here and not in the future, which may be polled late: the order of calls is the order of work.
        let accepted = self.jobs.try_send(Box::new(timed));
        async move {
            accepted.map_err(|refused| match refused {
                TrySendError::Full(_) => WorkError::Crowded(ORDERS),
                TrySendError::Closed(_) => WorkError::Died,
            })?;
            answered.await.map_err(|_| WorkError::Died)
        }
    }

    /// Makes the training that runs, and every later one, stop after its current batch.
    pub(crate) fn abandon(&self) {
        // The flag guards no other memory, and one batch more does no harm.
        self.abandon.store(true, Ordering::Relaxed);
    }

    /// Returns where training is, if it runs.
    pub(crate) fn progress(&self) -> Option<Progress> {
        *self.progress.borrow()
    }
}

fn run(mut worker: Box<dyn Worker>, mut queue: mpsc::Receiver<Job>) {
    while let Some(job) = queue.blocking_recv() {
        job(worker.as_mut());
    }
}
