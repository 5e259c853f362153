//! The learners of a simulation: one per thread, each of which becomes one node after the other.

use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use fednode_core::spec::PoolSpec;
use fednode_core::{ParamSet, PoolOutcome, Round, Slot};
use fednode_data::Split;
use fednode_engine::sim::PrivateModule;
use fednode_learn::{ClassCount, Evaluation, LearnError, Learner, LocalUpdate, Progress, Subset};
use fednode_runtime::trainer::Modules;

use crate::swarm::interrupt::Interrupts;

/// What a node knows; copies share the numbers.
#[derive(Debug, Clone)]
pub(super) struct Knowledge {
    /// Gate and private parts.
    pub(super) private: Arc<ParamSet>,
    /// The averaged part.
    pub(super) shared: Option<Arc<ParamSet>>,
    /// The experts by slot.
    pub(super) experts: Vec<Arc<ParamSet>>,
}

/// What an exchange brought.
#[derive(Debug, Clone, Default)]
pub(super) struct Adopted {
    /// The averaged part.
    pub(super) shared: Option<Arc<ParamSet>>,
    /// Mixed experts.
    pub(super) experts: Vec<(Slot, Arc<ParamSet>)>,
}

/// Work for one node, in this order: adopt, evaluate, train, evaluate, finish, make a module, pool.
#[derive(Debug)]
pub(super) struct Job {
    /// Which of a thread's learners it is for: each is of one model.
    pub(super) learner: usize,
    /// The node's number, which tells its draws from others'.
    pub(super) node_seed: u64,
    /// Its samples.
    pub(super) data: Arc<Split>,
    /// What it knows.
    pub(super) knowledge: Knowledge,
    /// What it takes over first.
    pub(super) adopted: Option<Adopted>,
    /// Whether to evaluate then, and if so whether on validation samples too.
    pub(super) evaluate_first: Option<bool>,
    /// What to train then.
    pub(super) train: Option<Round>,
    /// Whether to evaluate after that.
    pub(super) evaluate_last: bool,
    /// After which last round to train for the node alone, if it is time for that.
    pub(super) finish: Option<Round>,
    /// Whether to make the private module then.
    pub(super) make_module: bool,
    /// On whose test samples to evaluate in the end.
    pub(super) everyone: Option<Everyone>,
    /// Whose private modules to pool with the node's own, if it is time for that.
    pub(super) modules: Option<Modules>,
}

/// The samples of all nodes.
pub(super) type Everyone = Arc<[Arc<Split>]>;

/// An evaluation on validation and test samples.
#[derive(Debug, Clone)]
pub(super) struct Evaluated {
    /// On validation samples, if asked for.
    pub(super) validation: Option<Evaluation>,
    /// On test samples.
    pub(super) test: Evaluation,
}

/// What came of a job.
#[derive(Debug)]
pub(super) struct Done {
    /// What the node knows now.
    pub(super) knowledge: Knowledge,
    /// The first evaluation.
    pub(super) first: Option<Evaluated>,
    /// The local update, its parts moved into the knowledge.
    pub(super) update: Option<LocalUpdate>,
    /// The last evaluation.
    pub(super) last: Option<Evaluated>,
    /// The evaluation after the stage that follows the last round, if there is one.
    pub(super) finished: Option<Evaluated>,
    /// The private module.
    pub(super) module: Option<PrivateModule>,
    /// Right and all test samples of everyone, by class.
    pub(super) on_everyone: Option<Vec<ClassCount>>,
    /// What became of the pool. The model with it is evaluated, not kept.
    pub(super) pool: Option<PoolOutcome>,
    /// Time of training.
    pub(super) trained: Duration,
    /// Time of both evaluations.
    pub(super) evaluated: Duration,
}

/// A job under way.
pub(super) type Pending = Receiver<Result<Done, String>>;

/// A job, and where its answer goes.
type Order = (Box<Job>, SyncSender<Result<Done, String>>);

/// The threads; they end when it is dropped and its jobs are done.
#[derive(Debug)]
pub(super) struct Pool {
    jobs: SyncSender<Order>,
}

impl Pool {
    /// Starts one thread per list of learners, one learner for each model. Each of `nodes` has at most one job at a time. Jobs are given up when the user
    /// interrupts.
    ///
    /// # Errors
    /// Fails if the system has no threads left.
    pub(super) fn start(
        learners: Vec<Vec<Learner>>,
        nodes: usize,
        pool: &PoolSpec,
        interrupts: &Interrupts,
    ) -> std::io::Result<Self> {
        let (jobs, queue) = sync_channel(nodes);
        let queue: Arc<Mutex<Receiver<Order>>> = Arc::new(Mutex::new(queue));
        for mut learners in learners {
            let (queue, pool, interrupts) = (Arc::clone(&queue), pool.clone(), interrupts.clone());
            thread::Builder::new().name("learner".into()).spawn(move || {
                loop {
                    let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok((job, answer)) = next else { return };
                    // Whoever asked may be gone: the run was interrupted.
                    let learner = &mut learners[job.learner];
                    let _ = answer.send(job.run(learner, &pool, &interrupts).map_err(|error| error.to_string()));
                }
            })?;
        }
        Ok(Self { jobs })
    }

    /// Hands in a job.
    pub(super) fn submit(&self, job: Job) -> Pending {
        let (answer, pending) = sync_channel(1);
        // If no thread is left, nobody answers, and whoever waits sees that.
        let _ = self.jobs.send((Box::new(job), answer));
        pending
    }
}

/// Waits for a job.
///
/// # Errors
/// Says why it failed.
pub(super) fn wait(pending: &Pending) -> Result<Done, String> {
    pending.recv().unwrap_or_else(|_| Err("a learner's thread ended unexpectedly".into()))
}

impl Job {
    fn run(self, learner: &mut Learner, pool: &PoolSpec, interrupts: &Interrupts) -> Result<Done, LearnError> {
        let Knowledge { private, shared, experts } = &self.knowledge;
        learner.become_node(self.node_seed, self.data, private, shared.as_deref(), experts)?;
        let mut knowledge = self.knowledge;
        if let Some(Adopted { shared, experts }) = self.adopted {
            let plain = experts.iter().map(|(slot, params)| (*slot, ParamSet::clone(params))).collect();
            learner.adopt(shared.as_deref().cloned(), plain)?;
            knowledge.adopt(shared, experts);
            knowledge.private = Arc::new(learner.private_state());
        }
        let mut evaluated = Duration::ZERO;
        let first = self.evaluate_first.map(|with_validation| evaluate(learner, with_validation, &mut evaluated));
        let mut watch =
            |_: Progress| if interrupts.count() > 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        let started = Instant::now();
        let mut update = self.train.map(|round| learner.local_update(round, &mut watch)).transpose()?;
        let trained = started.elapsed();
        if let Some(update) = &mut update {
            knowledge.private = Arc::new(learner.private_state());
            knowledge.shared = update.shared.take().map(Arc::new);
            knowledge.experts = update.experts.iter_mut().map(|(params, _)| Arc::new(std::mem::take(params))).collect();
        }
        let last = self.evaluate_last.then(|| evaluate(learner, true, &mut evaluated));
        let steps = self.finish.map_or(Ok(0), |last| learner.finish(last, &mut watch))?;
        let mut finished = (steps > 0).then(|| evaluate(learner, true, &mut evaluated));
        let module = self.make_module.then(|| make_module(learner, pool, &mut watch)).transpose()?.flatten();
        if steps > 0 || module.is_some() {
            knowledge.private = Arc::new(learner.private_state());
            knowledge.shared = learner.shared().map(Arc::new);
            knowledge.experts = learner.experts().into_iter().map(Arc::new).collect();
        }
        let pool = self.modules.map(|modules| learner.assemble_pool(pool, modules, &mut watch)).transpose()?;
        if pool.is_some() {
            finished = Some(evaluate(learner, true, &mut evaluated));
        }
        let on_everyone = self.everyone.map(|everyone| on_everyone(learner, &everyone)).transpose()?;
        Ok(Done { knowledge, first, update, last, finished, module, on_everyone, pool, trained, evaluated })
    }
}

fn make_module(
    learner: &mut Learner,
    pool: &PoolSpec,
    watch: &mut (dyn FnMut(Progress) -> ControlFlow<()> + Send),
) -> Result<Option<PrivateModule>, LearnError> {
    if pool.fine_tune && learner.module_layout().is_some() {
        learner.fine_tune_module(pool, watch)?;
    }
    let score = learner.evaluate(Subset::Validation).score.accuracy;
    let module = learner.module();
    Ok(module.map(|module| PrivateModule { kind: module.kind.into(), params: Arc::new(module.params), score }))
}

/// Adds up over everybody's test samples.
fn on_everyone(learner: &Learner, everyone: &[Arc<Split>]) -> Result<Vec<ClassCount>, LearnError> {
    let mut sums: Vec<ClassCount> = Vec::new();
    for split in everyone {
        let classes = learner.evaluate_on(&split.test)?.classes;
        sums.resize(classes.len().max(sums.len()), ClassCount::default());
        for (sum, class) in sums.iter_mut().zip(classes) {
            (sum.correct, sum.total) = (sum.correct + class.correct, sum.total + class.total);
        }
    }
    Ok(sums)
}

impl Knowledge {
    fn adopt(&mut self, shared: Option<Arc<ParamSet>>, experts: Vec<(Slot, Arc<ParamSet>)>) {
        self.shared = shared.or(self.shared.take());
        for (slot, params) in experts {
            self.experts[usize::from(slot.0)] = params;
        }
    }
}

fn evaluate(learner: &Learner, with_validation: bool, took: &mut Duration) -> Evaluated {
    let started = Instant::now();
    let validation = with_validation.then(|| learner.evaluate(Subset::Validation));
    let evaluated = Evaluated { validation, test: learner.evaluate(Subset::Test) };
    *took += started.elapsed();
    evaluated
}
