//! What each simulated node knows, and the record of each of its rounds.
//!
//! A round of a node is one job: take over what the last exchange brought, evaluate that, train. So an exchange is
//! evaluated when the next round begins, the last one by [`Models::conclude`].

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use fednode_core::work::{LastStage, Order, Outcome, Received, Splits, Update};
use fednode_core::{BlobId, ParamSet, Round, Timestamp};
use fednode_data::Split;
use fednode_engine::book::{
    Bytes, Calendar, Due, Measured, Point, RoundBook, RoundRecord, Traffic,
};
use fednode_engine::execute::Adoption;
use fednode_learn::ClassCount;
use fednode_sim::{self as sim, Answer, ClosedRound, Moment, Trainers};
use serde::{Deserialize, Serialize};

use super::job::{Done, Everyone, Job, Knowledge, Task, Work};
use super::pool::{Pending, Pool};
use super::progress::Progress;
use super::saver::Saver;
use crate::swarm::interrupt::Interrupts;

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
    failed: Option<String>,
}

/// One node.
struct Node {
    /// Which of the models it has.
    model: usize,
    data: Arc<Split>,
    mind: Mind,
    pending: Option<Pending>,
}

/// Everything about a node that an interrupted run keeps, but for its job. `P` is the parameters, or their place in a
/// file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Mind<P = Arc<ParamSet>> {
    knowledge: Knowledge<P>,
    saved: Knowledge<P>,
    /// What the next job takes over before it evaluates the newest exchange.
    received: Option<Received<P>>,
    /// What it takes over after that: a node that rested received it in a later round.
    then_received: Option<Received<P>>,
    /// The round that it trained last, unless it had to go back since.
    trained: Option<Round>,
    /// The round that its job trains.
    training: Option<Round>,
    /// The evaluations of its job, in order.
    due: Vec<Due>,
    book: RoundBook,
    /// The complete records.
    pub(super) done: Vec<RoundRecord>,
    traffic: Traffic,
    on_everyone: Option<Vec<ClassCount>>,
    started_at: Timestamp,
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
    fn outcome(&mut self, member: usize) -> Result<Outcome, String> {
        let done = self.nodes[member]
            .pending
            .take()
            .ok_or("a job ended that never began")?
            .wait()?;
        let outcome = self.nodes[member].mind.enter(done);
        self.take_records(member);
        Ok(outcome)
    }

    fn take_records(&mut self, member: usize) {
        let mind = &mut self.nodes[member].mind;
        let traffic = mind.traffic;
        let complete = mind.book.take_complete(|record| Measured {
            traffic,
            round_seconds: record.train_seconds + record.waited_seconds.evaluate,
            ..Measured::default()
        });
        for record in complete {
            self.progress.enter(&record);
            mind.done.push(record);
        }
    }

    /// Evaluates the last exchange of every node, and lets it train for itself where the algorithm does that; tells
    /// whether that is done.
    fn conclude(&mut self) -> Result<bool, String> {
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
    pub(super) fn failure(&self) -> Option<&str> {
        self.failed.as_deref()
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
        let Knowledge {
            private,
            shared,
            experts,
        } = &self.nodes[member].mind.knowledge;
        let parts = std::iter::once(private).chain(shared).chain(experts);
        let names: Vec<u8> = parts
            .flat_map(|part| *part.to_blob().0.id.as_bytes())
            .collect();
        BlobId::of(&names)
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

impl Mind {
    fn new(initial: Knowledge, book: RoundBook) -> Self {
        Self {
            knowledge: initial.clone(),
            saved: initial,
            received: None,
            then_received: None,
            trained: None,
            training: None,
            due: Vec::new(),
            book,
            done: Vec::new(),
            traffic: Traffic::default(),
            on_everyone: None,
            started_at: Timestamp(0),
        }
    }

    /// Puts what is still to be taken over and evaluated before the orders.
    fn task(&mut self, orders: Vec<Order>) -> Task {
        self.training = orders.iter().find_map(|order| match order {
            Order::Train(round) => Some(*round),
            _ => None,
        });
        let calendar = self.book.calendar();
        self.due = self.book.due();
        let evaluate = |due: &Due| Order::Evaluate(calendar.splits(due.round));
        let mut due = self.due.iter().map(evaluate);
        // Training ahead starts from the model as it was published, and only of a node that trained the round before.
        let ahead = self
            .training
            .filter(|round| self.trained.map(Round::next) == Some(*round));
        let first = ahead
            .map(Order::TrainAhead)
            .into_iter()
            .chain(self.received.take().map(Order::Adopt))
            .chain(due.next())
            .chain(self.then_received.take().map(Order::Adopt))
            .chain(due);
        let mut all: Vec<Order> = first.chain(orders).collect();
        if let Some(round) = self
            .training
            .filter(|round| calendar.evaluates_fully(*round))
        {
            let point = Point::AfterTraining;
            self.due.push(Due { round, point });
            all.push(Order::Evaluate(Splits::ValidationAndTest));
        }
        Task {
            knowledge: self.knowledge.clone(),
            orders: all,
            is_result: false,
        }
    }

    /// Enters what came of a job into the books, and returns what came of its last order but evaluations.
    fn enter(&mut self, done: Done) -> Outcome {
        let mut due = std::mem::take(&mut self.due).into_iter();
        let mut ahead = Duration::ZERO;
        let mut last = Outcome::Adopted;
        for (outcome, took) in done.outcomes {
            match &outcome {
                Outcome::TrainedAhead => ahead = took,
                Outcome::Trained(update) => self.enter_update(update, ahead + took),
                Outcome::Evaluated(evaluations) => match &last {
                    Outcome::Pooled(pool) => self.book.pooled(pool.clone(), evaluations.clone()),
                    _ => {
                        if let Some(due) = due.next() {
                            self.book.evaluated(due, evaluations, took);
                        }
                    }
                },
                Outcome::FineTuned(evaluations) => self.book.fine_tuned(evaluations.clone()),
                Outcome::Module(_) | Outcome::Pooled(_) | Outcome::Adopted => {}
            }
            if !matches!(outcome, Outcome::Evaluated(_)) {
                last = outcome;
            }
        }
        self.knowledge = done.knowledge;
        if done.on_everyone.is_some() {
            self.on_everyone = done.on_everyone;
        }
        last
    }

    fn enter_update(&mut self, update: &Update, took: Duration) {
        if let Some(round) = self.training.take() {
            self.book.begin(round, self.started_at, self.traffic);
            self.book
                .trained(round, self.started_at, update, [took, Duration::ZERO]);
            self.trained = Some(round);
        }
    }
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

    fn end(&mut self, member: usize) -> Result<Outcome, String> {
        let outcome = self.outcome(member)?;
        if let Outcome::Trained(update) = &outcome {
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
        let mind = &mut self.nodes[member].mind;
        let used = adoption.used.iter().flat_map(|(_, sources)| sources);
        let foreign: BTreeSet<_> = used
            .map(|(expert, _)| *expert)
            .filter(|expert| expert.owner != me)
            .collect();
        let n_sources = u32::try_from(foreign.len()).unwrap_or(u32::MAX);
        mind.book
            .merged(round, Duration::ZERO, n_sources, adoption.mixed);
        let received = Received {
            shared: adoption.shared,
            experts: adoption.experts,
        };
        if received.is_empty() {
            return;
        }
        // A node that rested in this round may still have an earlier one to evaluate.
        if mind.book.due().is_empty() {
            mind.received = Some(received);
        } else {
            mind.then_received = Some(received);
        }
    }

    fn save(&mut self, member: usize) {
        let node = &mut self.nodes[member];
        if node.pending.is_none() {
            node.mind.saved = node.mind.knowledge.clone();
        }
    }

    fn restore(&mut self, member: usize) {
        let node = &mut self.nodes[member];
        let mind = &mut node.mind;
        mind.knowledge = mind.saved.clone();
        (node.pending, mind.received, mind.trained) = (None, None, None);
    }

    fn closed(&mut self, member: usize, closed: ClosedRound) {
        self.progress.close(closed.round);
        let mind = &mut self.nodes[member].mind;
        mind.book.rest(closed.round, mind.started_at, mind.traffic);
        mind.traffic = Traffic {
            sent: bytes(closed.sent),
            received: bytes(closed.received),
        };
        let closing = Closing {
            by: closed.by,
            members: closed.members,
            traffic: Some(mind.traffic),
        };
        mind.book.closed(closed.round, closing);
        mind.started_at = closed.at;
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
        let mind = self.mind;
        Kept {
            mind: Mind {
                knowledge: mind.knowledge.map(to),
                saved: mind.saved.map(to),
                received: mind.received.map(|received| received.map(to)),
                then_received: mind.then_received.map(|received| received.map(to)),
                trained: mind.trained,
                training: mind.training,
                due: mind.due,
                book: mind.book,
                done: mind.done,
                traffic: mind.traffic,
                on_everyone: mind.on_everyone,
                started_at: mind.started_at,
            },
            work: self.work.map(|work| work.map(to)),
        }
    }
}

/// Sorts the simulator's bytes as a live node's: there is no control traffic, and nothing is encrypted.
const fn bytes(moved: sim::Bytes) -> Bytes {
    Bytes {
        aggregator: moved.aggregator,
        peer_to_peer: moved.peer_to_peer,
        gossip: moved.gossip,
        control: 0,
        wire: moved.aggregator + moved.peer_to_peer + moved.gossip,
    }
}
