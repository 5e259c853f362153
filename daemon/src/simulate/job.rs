//! What a thread does for a node, and what comes of it.
//!
//! What is to be done and what was done are plain data, so that an interrupted run can keep them. In a file `P` is a
//! number, the place of the parameters in the file.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fednode_core::{NodeId, ParamSet, PoolOutcome, ProxySet, Round, Slot};
use fednode_data::Split;
use fednode_learn::{
    ClassCount, Evaluation, LearnError, Learner, LocalUpdate, PoolSettings, Progress, Subset,
};
use serde::{Deserialize, Serialize};

use crate::swarm::interrupt::Interrupts;

/// What a node knows; copies share the numbers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Knowledge<P = Arc<ParamSet>> {
    /// Gate and private parts.
    pub(super) private: P,
    /// The averaged part.
    pub(super) shared: Option<P>,
    /// The experts by slot.
    pub(super) experts: Vec<P>,
}

/// What an exchange brought.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Adopted<P = Arc<ParamSet>> {
    /// The averaged part.
    pub(super) shared: Option<P>,
    /// Mixed experts.
    pub(super) experts: Vec<(Slot, P)>,
}

/// Work for one node.
#[derive(Debug)]
pub(super) struct Job {
    /// Which of a thread's learners it is for: each is of one model.
    pub(super) learner: usize,
    /// The node's number, which tells its draws from others'.
    pub(super) node_seed: u64,
    /// Its samples.
    pub(super) data: Arc<Split>,
    /// The samples of all nodes, if its result is evaluated on them.
    pub(super) everyone: Option<Everyone>,
    /// What to do.
    pub(super) task: Task,
}

/// What to do, in this order: adopt, evaluate, adopt, train, evaluate, finish, make a module, pool.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Task<P = Arc<ParamSet>> {
    /// What the node knows.
    pub(super) knowledge: Knowledge<P>,
    /// What it takes over first.
    pub(super) adopted: Option<Adopted<P>>,
    /// Whether to evaluate then, and if so whether on validation samples too.
    pub(super) evaluate_first: Option<bool>,
    /// What it takes over then.
    pub(super) then_adopted: Option<Adopted<P>>,
    /// What to train then.
    pub(super) train: Option<Round>,
    /// Whether the first epochs of that are trained before anything is taken over.
    pub(super) train_ahead: bool,
    /// Whether to evaluate after that.
    pub(super) evaluate_last: bool,
    /// After which last round to train for the node alone, if it is time for that.
    pub(super) finish: Option<Round>,
    /// Whether to make the private module then.
    pub(super) make_module: bool,
    /// Whether this is the node's result, to be evaluated on everyone's test samples in the end.
    pub(super) is_result: bool,
    /// Whose private modules to pool with the node's own, if it is time for that.
    pub(super) modules: Option<Vec<(NodeId, P)>>,
}

/// The samples of all nodes.
pub(super) type Everyone = Arc<[Arc<Split>]>;

/// An evaluation on validation and test samples.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Evaluated {
    /// On validation samples, if asked for.
    pub(super) validation: Option<Evaluation>,
    /// On test samples.
    pub(super) test: Evaluation,
}

/// A local update without its parts, which are in the knowledge.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Update {
    /// Training samples that were routed to each expert.
    pub(super) routed: Vec<u32>,
    /// The gating proxies.
    #[serde(with = "proxies")]
    pub(super) proxies: Option<ProxySet>,
    /// Training samples.
    pub(super) n_samples: u32,
    /// Mean loss over the last local epoch.
    pub(super) train_loss: f64,
    /// Share of the training samples routed to each expert.
    pub(super) expert_share: Vec<f64>,
    /// Multiply-adds of its layers, forward and backward.
    pub(super) multiply_adds: u64,
}

/// A private module.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Module<P = Arc<ParamSet>> {
    /// What it is.
    pub(super) kind: String,
    /// Its parameters.
    pub(super) params: P,
    /// Accuracy on the node's validation samples.
    pub(super) score: f64,
}

/// What came of a job.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Done<P = Arc<ParamSet>> {
    /// What the node knows now.
    pub(super) knowledge: Knowledge<P>,
    /// The first evaluation.
    pub(super) first: Option<Evaluated>,
    /// The local update.
    pub(super) update: Option<Update>,
    /// The last evaluation.
    pub(super) last: Option<Evaluated>,
    /// The evaluation after the stage that follows the last round, if there is one.
    pub(super) finished: Option<Evaluated>,
    /// The private module.
    pub(super) module: Option<Module<P>>,
    /// Right and all test samples of everyone, by class.
    pub(super) on_everyone: Option<Vec<ClassCount>>,
    /// What became of the pool. The model with it is evaluated, not kept.
    pub(super) pool: Option<PoolOutcome>,
    /// Time of training.
    pub(super) trained: Duration,
    /// Time of both evaluations.
    pub(super) evaluated: Duration,
}

/// A job under way, as an interrupted run leaves it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Work<P = Arc<ParamSet>> {
    /// It is to be done.
    Asked(Task<P>),
    /// It is done.
    Done(Box<Done<P>>),
}

impl Job {
    /// Does it with one of a thread's learners.
    ///
    /// # Errors
    /// As the learner's steps; also if the user interrupts.
    pub(super) fn run(
        self,
        learners: &mut [Learner],
        pool: &PoolSettings,
        interrupts: &Interrupts,
    ) -> Result<Done, LearnError> {
        let (learner, task) = (&mut learners[self.learner], self.task);
        let Knowledge {
            private,
            shared,
            experts,
        } = &task.knowledge;
        learner.become_node(
            self.node_seed,
            self.data,
            private,
            shared.as_deref(),
            experts,
        )?;
        let mut knowledge = task.knowledge;
        let mut watch = |_: Progress| {
            if interrupts.count() > 0 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        };
        let started = Instant::now();
        if let Some(round) = task.train.filter(|_| task.train_ahead) {
            learner.train_ahead(round, &mut watch)?;
        }
        let ahead = started.elapsed();
        if let Some(adopted) = task.adopted {
            knowledge.take_over(learner, adopted)?;
        }
        let mut evaluated = Duration::ZERO;
        let first = task
            .evaluate_first
            .map(|with_validation| evaluate(learner, with_validation, &mut evaluated));
        if let Some(adopted) = task.then_adopted {
            knowledge.take_over(learner, adopted)?;
        }
        let started = Instant::now();
        let update = task
            .train
            .map(|round| learner.local_update(round, &mut watch))
            .transpose()?;
        let trained = ahead + started.elapsed();
        let update = update.map(|update| knowledge.take(learner.private_state(), update));
        let last = task
            .evaluate_last
            .then(|| evaluate(learner, true, &mut evaluated));
        let steps = task
            .finish
            .map_or(Ok(0), |last| learner.finish(last, &mut watch))?;
        let mut finished = (steps > 0).then(|| evaluate(learner, true, &mut evaluated));
        let module = task
            .make_module
            .then(|| make_module(learner, pool, &mut watch))
            .transpose()?
            .flatten();
        if steps > 0 || module.is_some() {
            knowledge = Knowledge::of(learner);
        }
        let pool = task
            .modules
            .map(|modules| learner.assemble_pool(pool, modules, &mut watch))
            .transpose()?;
        if pool.is_some() {
            finished = Some(evaluate(learner, true, &mut evaluated));
        }
        let everyone = self.everyone.filter(|_| task.is_result);
        let on_everyone = everyone
            .map(|everyone| on_everyone(learner, &everyone))
            .transpose()?;
        Ok(Done {
            knowledge,
            first,
            update,
            last,
            finished,
            module,
            on_everyone,
            pool,
            trained,
            evaluated,
        })
    }
}

fn make_module(
    learner: &mut Learner,
    pool: &PoolSettings,
    watch: &mut (dyn FnMut(Progress) -> ControlFlow<()> + Send),
) -> Result<Option<Module>, LearnError> {
    if pool.fine_tune && learner.module_layout().is_some() {
        learner.fine_tune_module(pool, watch)?;
    }
    let score = learner.evaluate(Subset::Validation).score.accuracy;
    let module = learner.module();
    Ok(module.map(|module| Module {
        kind: module.kind.into(),
        params: Arc::new(module.params),
        score,
    }))
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
    /// Returns what a learner knows.
    pub(super) fn of(learner: &Learner) -> Self {
        Self {
            private: Arc::new(learner.private_state()),
            shared: learner.shared().map(Arc::new),
            experts: learner.experts().into_iter().map(Arc::new).collect(),
        }
    }

    /// Takes the parts of a local update over.
    fn take(&mut self, private: ParamSet, update: LocalUpdate) -> Update {
        let LocalUpdate {
            shared,
            experts,
            proxies,
            n_samples,
            train_loss,
            expert_share,
            multiply_adds,
            ..
        } = update;
        let routed = experts.iter().map(|(_, routed)| *routed).collect();
        self.private = Arc::new(private);
        self.shared = shared.map(Arc::new);
        self.experts = experts
            .into_iter()
            .map(|(params, _)| Arc::new(params))
            .collect();
        Update {
            routed,
            proxies,
            n_samples,
            train_loss,
            expert_share,
            multiply_adds,
        }
    }

    /// Takes over what an exchange brought, with the learner.
    fn take_over(&mut self, learner: &mut Learner, adopted: Adopted) -> Result<(), LearnError> {
        let Adopted { shared, experts } = adopted;
        let plain = experts
            .iter()
            .map(|(slot, params)| (*slot, ParamSet::clone(params)))
            .collect();
        learner.adopt(shared.as_deref().cloned(), plain)?;
        self.shared = shared.or(self.shared.take());
        for (slot, params) in experts {
            self.experts[usize::from(slot.0)] = params;
        }
        self.private = Arc::new(learner.private_state());
        Ok(())
    }
}

fn evaluate(learner: &Learner, with_validation: bool, took: &mut Duration) -> Evaluated {
    let started = Instant::now();
    let validation = with_validation.then(|| learner.evaluate(Subset::Validation));
    let evaluated = Evaluated {
        validation,
        test: learner.evaluate(Subset::Test),
    };
    *took += started.elapsed();
    evaluated
}

impl<P> Knowledge<P> {
    /// Returns it with other parameters in place of its own.
    pub(super) fn map<Q>(&self, to: &mut impl FnMut(&P) -> Q) -> Knowledge<Q> {
        let Self {
            private,
            shared,
            experts,
        } = self;
        Knowledge {
            private: to(private),
            shared: shared.as_ref().map(&mut *to),
            experts: experts.iter().map(to).collect(),
        }
    }
}

impl<P> Adopted<P> {
    /// As [`Knowledge::map`].
    pub(super) fn map<Q>(&self, to: &mut impl FnMut(&P) -> Q) -> Adopted<Q> {
        let shared = self.shared.as_ref().map(&mut *to);
        Adopted {
            shared,
            experts: self
                .experts
                .iter()
                .map(|(slot, params)| (*slot, to(params)))
                .collect(),
        }
    }
}

impl<P> Work<P> {
    /// As [`Knowledge::map`].
    pub(super) fn map<Q>(self, to: &mut impl FnMut(&P) -> Q) -> Work<Q> {
        match self {
            Self::Asked(task) => Work::Asked(task.map(to)),
            Self::Done(done) => Work::Done(Box::new(done.map(to))),
        }
    }
}

impl<P> Task<P> {
    fn map<Q>(self, to: &mut impl FnMut(&P) -> Q) -> Task<Q> {
        Task {
            knowledge: self.knowledge.map(to),
            adopted: self.adopted.map(|adopted| adopted.map(to)),
            evaluate_first: self.evaluate_first,
            then_adopted: self.then_adopted.map(|adopted| adopted.map(to)),
            train: self.train,
            train_ahead: self.train_ahead,
            evaluate_last: self.evaluate_last,
            finish: self.finish,
            make_module: self.make_module,
            is_result: self.is_result,
            modules: self.modules.map(|modules| {
                modules
                    .iter()
                    .map(|(node, params)| (*node, to(params)))
                    .collect()
            }),
        }
    }
}

impl<P> Done<P> {
    fn map<Q>(self, to: &mut impl FnMut(&P) -> Q) -> Done<Q> {
        let Self {
            knowledge,
            first,
            update,
            last,
            finished,
            module,
            on_everyone,
            pool,
            trained,
            evaluated,
        } = self;
        let knowledge = knowledge.map(to);
        let module = module.map(
            |Module {
                 kind,
                 params,
                 score,
             }| Module {
                kind,
                params: to(&params),
                score,
            },
        );
        Done {
            knowledge,
            first,
            update,
            last,
            finished,
            module,
            on_everyone,
            pool,
            trained,
            evaluated,
        }
    }
}

/// Proxies in a file: as the parameters that they travel as.
mod proxies {
    use fednode_core::{ParamSet, ProxySet};
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(
        proxies: &Option<ProxySet>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        proxies
            .as_ref()
            .map(|proxies| proxies.to_params().to_bytes())
            .serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<ProxySet>, D::Error> {
        let bytes = Option::<Vec<u8>>::deserialize(deserializer)?;
        let decode = |bytes: Vec<u8>| {
            ParamSet::decode(&bytes).and_then(|params| ProxySet::from_params(&params))
        };
        bytes.map(decode).transpose().map_err(D::Error::custom)
    }
}
