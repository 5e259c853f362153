//! What a thread does for a node, and what comes of it.
//!
//! Both are plain data, so that an interrupted run can keep them. In a file `P` is a number, the place of the parameters
//! in the file.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fednode_core::ParamSet;
use fednode_core::work::{Order, Outcome, Progress, Received, WorkError, Worker};
use fednode_data::Split;
use fednode_learn::{ClassCount, LearnError, Learner};
use serde::{Deserialize, Serialize};

use fednode_cli::interrupt::Interrupts;

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

/// Orders for the learner of a node.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Task<P = Arc<ParamSet>> {
    /// What the node knows.
    pub(super) knowledge: Knowledge<P>,
    /// What to do, one after the other.
    pub(super) orders: Vec<Order<P>>,
    /// Whether this is the node's result, to be evaluated on everyone's test samples in the end.
    pub(super) is_result: bool,
}

/// The samples of all nodes.
pub(super) type Everyone = Arc<[Arc<Split>]>;

/// What came of a job.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Done<P = Arc<ParamSet>> {
    /// What the node knows now. A pool is evaluated, not kept.
    pub(super) knowledge: Knowledge<P>,
    /// What came of each order, and how long it took.
    pub(super) outcomes: Vec<(Outcome<P>, Duration)>,
    /// Right and all test samples of everyone, by class.
    pub(super) on_everyone: Option<Vec<ClassCount>>,
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
        interrupts: &Interrupts,
    ) -> Result<Done, WorkError> {
        let learner = &mut learners[self.learner];
        let Task {
            mut knowledge,
            orders,
            is_result,
        } = self.task;
        knowledge.give_to(learner, self.node_seed, self.data)?;
        let mut watch = |_: Progress| {
            if interrupts.count() > 0 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        };
        let mut outcomes = Vec::with_capacity(orders.len());
        for order in orders {
            let received = match &order {
                Order::Adopt(received) => Some(received.clone()),
                _ => None,
            };
            let started = Instant::now();
            let outcome = learner.perform(order, &mut watch)?;
            let took = started.elapsed();
            knowledge.follow(learner, &outcome, received);
            outcomes.push((outcome, took));
        }
        let everyone = self.everyone.filter(|_| is_result);
        let on_everyone = everyone
            .map(|everyone| on_everyone(learner, &everyone))
            .transpose()?;
        Ok(Done {
            knowledge,
            outcomes,
            on_everyone,
        })
    }
}

/// Adds up over everybody's test samples.
fn on_everyone(learner: &Learner, everyone: &[Arc<Split>]) -> Result<Vec<ClassCount>, LearnError> {
    let mut sums: Vec<ClassCount> = Vec::new();
    for split in everyone {
        let classes = learner.evaluate_on(&split.test)?.classes;
        sums.resize(classes.len().max(sums.len()), ClassCount::default());
        for (sum, class) in sums.iter_mut().zip(classes) {
            sum.correct += class.correct;
            sum.total += class.total;
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

    pub(super) fn give_to(
        &self,
        learner: &mut Learner,
        node_seed: u64,
        data: Arc<Split>,
    ) -> Result<(), LearnError> {
        let shared = self.shared.as_deref();
        learner.become_node(node_seed, data, &self.private, shared, &self.experts)
    }

    /// Takes over what an order changed. Parts that came or went are shared with whoever sent or gets them.
    fn follow(&mut self, learner: &Learner, outcome: &Outcome, received: Option<Received>) {
        match outcome {
            Outcome::Trained(update) => {
                self.private = Arc::new(learner.private_state());
                // What is added up in a later round is not published yet, and stays.
                self.shared = update.shared.clone().or(self.shared.take());
                let experts = update.experts.iter();
                self.experts = experts.map(|(params, _)| Arc::clone(params)).collect();
            }
            Outcome::Adopted => {
                let Received {
                    shared,
                    experts,
                    peers,
                    statistics,
                } = received.unwrap_or_default();
                let is_tried = !experts.is_empty() && learner.tries_experts();
                if !(peers.is_empty() && statistics.is_empty()) || is_tried {
                    // What became of the own experts is the algorithm's judgement, and so it is with statistics and what is tried.
                    *self = Self::of(learner);
                    return;
                }
                self.shared = shared.or(self.shared.take());
                for (slot, params) in experts {
                    self.experts[usize::from(slot.0)] = params;
                }
                self.private = Arc::new(learner.private_state());
            }
            Outcome::FineTuned(Some(_)) | Outcome::Module(Some(_)) | Outcome::WentOn => {
                *self = Self::of(learner)
            }
            Outcome::TrainedAhead
            | Outcome::Evaluated(_)
            | Outcome::FineTuned(None)
            | Outcome::Module(None)
            | Outcome::Pooled(_) => {}
        }
    }
}

impl<P> Knowledge<P> {
    /// Returns it with other parameters in place of its own.
    pub(super) fn map<Q>(self, to: &mut impl FnMut(P) -> Q) -> Knowledge<Q> {
        Knowledge {
            private: to(self.private),
            shared: self.shared.map(&mut *to),
            experts: self.experts.into_iter().map(to).collect(),
        }
    }
}

impl<P> Work<P> {
    /// As [`Knowledge::map`].
    pub(super) fn map<Q>(self, to: &mut impl FnMut(P) -> Q) -> Work<Q> {
        match self {
            Self::Asked(task) => Work::Asked(Task {
                knowledge: task.knowledge.map(to),
                orders: task.orders.into_iter().map(|order| order.map(to)).collect(),
                is_result: task.is_result,
            }),
            Self::Done(done) => Work::Done(Box::new(Done {
                knowledge: done.knowledge.map(to),
                outcomes: done
                    .outcomes
                    .into_iter()
                    .map(|(outcome, took)| (outcome.map(to), took))
                    .collect(),
                on_everyone: done.on_everyone,
            })),
        }
    }
}
