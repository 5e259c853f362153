//! What each simulated node knows, and the record of each of its rounds.
//!
//! A round of a node is one job: take over what the last exchange brought, evaluate that, train. So an exchange is
//! evaluated when the next round begins, the last one by [`Models::conclude`].

mod mind;

use std::sync::Arc;
use std::time::Duration;

use fednode_core::work::{LastStage, Order, Outcome, Splits, WorkError};
use fednode_core::{BlobId, ParamSet, Round, Timestamp};
use fednode_data::Split;
use fednode_engine::book::{Calendar, RoundBook, RoundRecord, Traffic};
use fednode_engine::execute::Adoption;
use fednode_learn::ClassCount;
use fednode_sim::{self as sim, Answer, ClosedRound, Moment, Trainers};
use serde::{Deserialize, Serialize};

use self::mind::Mind;
use super::job::{Everyone, Job, Knowledge, Task, Work};
use super::pool::{Pending, Pool};
use super::progress::Progress;
use super::saver::Saver;
use fednode_cli::interrupt::Interrupts;

/// How long to wait for a job before looking around.
const STEP: Duration = Duration::from_millis(50);

/// The nodes of a simulation.
pub(super) struct Models {
    pool: Pool,
    interrupts: Interrupts,
    progress: Progress,
    saver: Saver,
    initial_shared: Option<Arc<ParamSet>>,
    nodes: Vec<Node>,
    seed: u64,
    rounds: u32,
    everyone: Option<Everyone>,
    /// Why the last stage failed.
    failed: Option<WorkError>,
}

/// One node.
struct Node {
    /// Which of the models it has.
    model: usize,
    data: Arc<Split>,
    mind: Mind,
    pending: Option<Pending>,
}

/// A node of an interrupted run.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Kept<P = Arc<ParamSet>> {
    pub(super) mind: Mind<P>,
    work: Option<Work<P>>,
}

/// The settings of a run.
pub(super) struct Settings {
    /// Seed of the run, from which the nodes have their names.
    pub(super) seed: u64,
    /// When evaluations are due.
    pub(super) calendar: Calendar,
    /// Whether the results are evaluated on everyone's test samples too.
    pub(super) global_test: bool,
}

impl Models {
    pub(super) fn new(
        pool: Pool,
        interrupts: Interrupts,
        progress: Progress,
        saver: Saver,
        initial: &[Knowledge],
        data: Vec<Arc<Split>>,
        settings: &Settings,
    ) -> Self {
        let Settings {
            seed,
            calendar,
            global_test,
        } = *settings;
        let node = |(member, data): (usize, Arc<Split>)| {
            let model = member % initial.len();
            let book = RoundBook::new(sim::node_id(seed, member), calendar);
            Node {
                model,
                data,
                mind: Mind::new(initial[model].clone(), book),
                pending: None,
            }
        };
        let everyone = global_test.then(|| Everyone::from(data.as_slice()));
        let nodes = data.into_iter().enumerate().map(node).collect();
        Self {
            pool,
            interrupts,
            progress,
            saver,
            initial_shared: initial[0].shared.clone(),
            nodes,
            seed,
            rounds: calendar.rounds,
            everyone,
            failed: None,
        }
    }

    /// Makes all nodes what they were when the run was interrupted.
    pub(super) fn go_on(&mut self, kept: Vec<Kept>) {
        for (member, Kept { mind, work }) in kept.into_iter().enumerate() {
            let pending = work.map(|work| match work {
                Work::Asked(task) => self
                    .pool
                    .submit(self.job(member, task), Timestamp::default()),
                Work::Done(done) => Pending::done(*done),
            });
            mind.done
                .iter()
                .for_each(|record| self.progress.know(record));
            let node = &mut self.nodes[member];
            (node.mind, node.pending) = (mind, pending);
        }
    }

    /// Returns what is saved.
    pub(super) fn saver(&self) -> &Saver {
        &self.saver
    }

    fn job(&self, member: usize, task: Task) -> Job {
        let node = &self.nodes[member];
        Job {
            learner: node.model,
            node_seed: member as u64,
            data: Arc::clone(&node.data),
            everyone: self.everyone.clone(),
            task,
        }
    }

    /// Starts a job that is asked for at a virtual time. It begins with what is still to be taken over and evaluated.
    fn submit(&mut self, member: usize, orders: Vec<Order>, ends: Ending, wanted: Timestamp) {
        let task = Task {
            is_result: ends == Ending::Final,
            ..self.nodes[member].mind.task(orders)
        };
        let pending = self.pool.submit(self.job(member, task), wanted);
        self.nodes[member].pending = Some(pending);
    }

    /// Waits for a node's job, enters its evaluations into the books and returns what came of its last other order.
    fn outcome(&mut self, member: usize) -> Result<Outcome, WorkError> {
        let done = self.nodes[member]
            .pending
            .take()
            .ok_or(WorkError::WrongAnswer)?
            .wait()?;
        let outcome = self.nodes[member].mind.enter(done);
        self.take_records(member);
        Ok(outcome)
    }

    fn take_records(&mut self, member: usize) {
        for record in self.nodes[member].mind.take_records() {
            self.progress.enter(record);
        }
    }

    /// Evaluates the last exchange of every node, and lets it train for itself where the algorithm does that; tells
    /// whether that is done.
    fn conclude(&mut self) -> Result<bool, WorkError> {
        for member in 0..self.nodes.len() {
            let node = &self.nodes[member];
            if node.pending.is_none() && !node.mind.book.due().is_empty() {
                let orders = vec![Order::FineTune(Round(self.rounds))];
                self.submit(member, orders, Ending::Final, Timestamp::default());
            }
        }
        for member in 0..self.nodes.len() {
            if self.nodes[member].pending.is_some() {
                if !self.is_ready(member) {
                    return Ok(false);
                }
                self.outcome(member)?;
            }
        }
        self.progress.finish();
        Ok(true)
    }

    /// Returns why the last stage failed.
    pub(super) fn failure(&self) -> Option<&WorkError> {
        self.failed.as_ref()
    }

    /// Returns the records of a node.
    pub(super) fn records(&self, member: usize) -> &[RoundRecord] {
        &self.nodes[member].mind.done
    }

    /// Returns how many of everyone's test samples a node's result gets right, and how many there are, by class.
    pub(super) fn on_everyone(&self, member: usize) -> Option<&[ClassCount]> {
        self.nodes[member].mind.on_everyone.as_deref()
    }

    /// Names everything that a node has learned: one hash of its private part, its shared part and its experts.
    pub(super) fn parameters_hash(&self, member: usize) -> BlobId {
        self.nodes[member].mind.parameters_hash()
    }

    /// Returns the samples of a node.
    pub(super) fn data(&self, member: usize) -> Arc<Split> {
        Arc::clone(&self.nodes[member].data)
    }

    /// Returns what a node knows.
    pub(super) fn knowledge(&self, member: usize) -> &Knowledge {
        &self.nodes[member].mind.knowledge
    }

    /// Returns what came after a node's last round.
    pub(super) fn last_stage(&self, member: usize) -> &LastStage {
        self.nodes[member].mind.book.last_stage()
    }

    /// Returns the bytes that a node sent and received.
    pub(super) fn traffic(&self, member: usize) -> Traffic {
        self.nodes[member].mind.traffic
    }
}

/// Whether a job ends with what the node will be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    Final,
    Interim,
}

impl Trainers for Models {
    fn initial_shared(&mut self) -> Option<ParamSet> {
        self.initial_shared.as_deref().cloned()
    }

    fn begin(&mut self, member: usize, order: Order, ends: Timestamp) {
        let last = Round(self.rounds);
        let (orders, ending) = match order {
            // What a node trains for itself after the last round comes before its private module is made.
            Order::MakeModule => (vec![Order::FineTune(last), order], Ending::Interim),
            Order::AssemblePool(_) => {
                let evaluate = Order::Evaluate(Splits::ValidationAndTest);
                (vec![order, evaluate], Ending::Final)
            }
            order => (vec![order], Ending::Interim),
        };
        let trains = matches!(orders[0], Order::Train(_));
        self.submit(member, orders, ending, ends);
        if trains {
            // The job has the experts now, and returns others: the node need not hold them until then.
            self.nodes[member].mind.knowledge.experts = Vec::new();
        }
    }

    fn end(&mut self, member: usize) -> Result<Outcome, WorkError> {
        let outcome = self.outcome(member)?;
        // Where tables are prepared nothing is trained.
        if let Outcome::Trained(update) = &outcome
            && update.multiply_adds > 0
        {
            let round = self.nodes[member].mind.trained.unwrap_or_default();
            self.progress
                .train(round, update.n_samples, update.train_loss);
        }
        Ok(outcome)
    }

    fn shared(&mut self, member: usize) -> Option<Arc<ParamSet>> {
        self.nodes[member].mind.knowledge.shared.clone()
    }

    fn adopt(&mut self, member: usize, round: Round, adoption: Adoption) {
        let me = sim::node_id(self.seed, member);
        self.nodes[member].mind.adopt(me, round, adoption);
    }

    fn save(&mut self, member: usize) {
        let node = &mut self.nodes[member];
        if node.pending.is_none() {
            node.mind.save();
        }
    }

    fn restore(&mut self, member: usize) {
        let node = &mut self.nodes[member];
        node.mind.restore();
        node.pending = None;
    }

    fn closed(&mut self, member: usize, closed: ClosedRound) {
        self.progress.close(closed.round);
        self.nodes[member].mind.close(closed);
    }

    fn is_ready(&mut self, member: usize) -> bool {
        let Some(pending) = &mut self.nodes[member].pending else {
            return true;
        };
        loop {
            let is_done = pending.is_done(STEP);
            // Who is interrupted gives its job up, which looks like an answer.
            if self.interrupts.count() > 0 || self.saver.is_due() {
                return false;
            }
            if is_done {
                return true;
            }
        }
    }

    fn concludes(&mut self) -> bool {
        self.conclude().unwrap_or_else(|reason| {
            self.failed = Some(reason);
            true
        })
    }

    fn remember(&mut self, answer: &Answer) {
        self.saver.remember(answer);
    }

    fn pauses(&mut self, moment: &Moment<'_>) -> bool {
        let stops = self.interrupts.count() > 0;
        if !moment.is_past && (stops || self.saver.is_due()) {
            let nodes = self.nodes.iter_mut().map(Node::keep).collect();
            self.saver.save(moment, nodes);
            if let (Some(reason), false) = (self.saver.failure(), stops) {
                self.progress.warn(reason);
            }
        }
        stops
    }
}

impl Node {
    fn keep(&mut self) -> Kept {
        Kept {
            mind: self.mind.clone(),
            work: self.pending.as_mut().and_then(Pending::work),
        }
    }
}

impl<P> Kept<P> {
    /// Returns it with other parameters in place of its own.
    pub(super) fn map<Q>(self, to: &mut impl FnMut(P) -> Q) -> Kept<Q> {
        Kept {
            mind: self.mind.map(to),
            work: self.work.map(|work| work.map(to)),
        }
    }
}
