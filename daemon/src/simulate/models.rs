//! What each simulated node knows, and the record of each of its rounds.
//!
//! A round of a node is one job: take over what the last exchange brought, evaluate that, train. So an exchange is
//! evaluated when the next round begins, the last one by [`Models::conclude`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fednode_core::{BlobId, NodeId, ParamSet, Round, Timestamp};
use fednode_data::Split;
use fednode_engine::PoolReport;
use fednode_engine::execute::Adoption;
use fednode_learn::{ClassCount, Evaluation};
use fednode_runtime::status::{Bytes, RoundRecord};
use fednode_runtime::trainer::{Evaluations, LastStage};
use fednode_sim::{self as sim, Answer, ClosedRound, Moment, Trainers};

use super::job::{Adopted, Done, Evaluated, Everyone, Job, Knowledge, Module, Task, Work};
use super::kept::Kept;
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
    evaluate_every: u32,
    everyone: Option<Everyone>,
    /// Why the last stage failed.
    failed: Option<String>,
}

/// One node.
struct Node {
    /// Which of the models it has.
    model: usize,
    data: Arc<Split>,
    knowledge: Knowledge,
    saved: Knowledge,
    /// What the next job takes over.
    adopted: Option<Adopted>,
    /// What it takes over then, in a round in which the node rested.
    then_adopted: Option<Adopted>,
    pending: Option<Pending>,
    /// The round that it trained last, unless it had to go back since.
    trained: Option<Round>,
    /// The rounds that still lack something.
    open: BTreeMap<Round, RoundRecord>,
    /// The round whose exchange is still to be evaluated.
    unevaluated: Option<Round>,
    /// Whether the last round, in which it rested, is to be evaluated after that.
    rested: bool,
    done: Vec<RoundRecord>,
    traffic: (sim::Bytes, sim::Bytes),
    last_stage: LastStage,
    on_everyone: Option<Vec<ClassCount>>,
    started_at: Timestamp,
}

/// The settings of a run.
pub(super) struct Settings {
    /// Seed of the run, from which the nodes have their names.
    pub(super) seed: u64,
    /// Rounds in all.
    pub(super) rounds: u32,
    /// Rounds between two complete evaluations.
    pub(super) evaluate_every: u32,
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
        let node = |(member, data): (usize, Arc<Split>)| Node {
            model: member % initial.len(),
            data,
            knowledge: initial[member % initial.len()].clone(),
            saved: initial[member % initial.len()].clone(),
            adopted: None,
            then_adopted: None,
            pending: None,
            trained: None,
            open: BTreeMap::new(),
            unevaluated: None,
            rested: false,
            done: Vec::new(),
            traffic: Default::default(),
            last_stage: LastStage::default(),
            on_everyone: None,
            started_at: Timestamp(0),
        };
        let everyone = settings
            .global_test
            .then(|| Everyone::from(data.as_slice()));
        let nodes = data.into_iter().enumerate().map(node).collect();
        let initial_shared = initial[0].shared.clone();
        let Settings {
            seed,
            rounds,
            evaluate_every,
            ..
        } = *settings;
        Self {
            pool,
            interrupts,
            progress,
            saver,
            initial_shared,
            nodes,
            seed,
            rounds,
            evaluate_every,
            everyone,
            failed: None,
        }
    }

    /// Makes all nodes what they were when the run was interrupted.
    pub(super) fn go_on(&mut self, kept: Vec<Kept>) {
        for (member, kept) in kept.into_iter().enumerate() {
            let pending = kept.work.map(|work| match work {
                Work::Asked(task) => self
                    .pool
                    .submit(self.job(member, task), Timestamp::default()),
                Work::Done(done) => Pending::done(*done),
            });
            kept.done
                .iter()
                .for_each(|record| self.progress.know(record));
            let node = &mut self.nodes[member];
            *node = Node {
                model: node.model,
                data: Arc::clone(&node.data),
                knowledge: kept.knowledge,
                saved: kept.saved,
                adopted: kept.adopted,
                then_adopted: kept.then_adopted,
                pending,
                trained: kept.trained,
                open: kept
                    .open
                    .into_iter()
                    .map(|record| (record.round, record))
                    .collect(),
                unevaluated: kept.unevaluated,
                rested: kept.rested,
                done: kept.done,
                traffic: kept.traffic,
                last_stage: kept.last_stage,
                on_everyone: kept.on_everyone,
                started_at: kept.started_at,
            };
        }
    }

    /// Returns what is saved.
    pub(super) fn saver(&self) -> &Saver {
        &self.saver
    }

    fn evaluates_fully(&self, round: Round) -> bool {
        round.0 == self.rounds || round.0.is_multiple_of(self.evaluate_every.max(1))
    }

    fn job(&self, member: usize, task: Task) -> Job {
        let node = &self.nodes[member];
        let (learner, data, everyone) = (node.model, Arc::clone(&node.data), self.everyone.clone());
        Job {
            learner,
            node_seed: member as u64,
            data,
            everyone,
            task,
        }
    }

    fn submit(&mut self, member: usize, task: Task) {
        self.submit_until(member, task, Timestamp::default());
    }

    fn submit_until(&mut self, member: usize, task: Task, wanted: Timestamp) {
        let pending = self.pool.submit(self.job(member, task), wanted);
        self.nodes[member].pending = Some(pending);
    }

    /// Makes the next task of a node out of what is still to be done.
    fn task(&mut self, member: usize, train: Option<Round>) -> Task {
        let full =
            |models: &Self, round: Option<Round>| round.map(|round| models.evaluates_fully(round));
        let evaluate_first = full(self, self.nodes[member].unevaluated);
        let evaluate_last = full(self, train).unwrap_or(false) || self.nodes[member].rested;
        let node = &mut self.nodes[member];
        Task {
            knowledge: node.knowledge.clone(),
            adopted: node.adopted.take(),
            evaluate_first,
            then_adopted: node.then_adopted.take(),
            train,
            train_ahead: train.is_some() && node.trained.map(Round::next) == train,
            evaluate_last,
            finish: None,
            make_module: false,
            is_result: false,
            modules: None,
        }
    }

    /// Enters the evaluation of the newest exchange.
    fn enter_first(&mut self, member: usize, first: Option<Evaluated>, took: Duration) {
        let node = &mut self.nodes[member];
        if let (Some(round), Some(evaluated)) = (node.unevaluated.take(), first)
            && let Some(mut record) = node.open.remove(&round)
        {
            record.accuracy = Some(evaluated.test.score.accuracy);
            record.loss = Some(evaluated.test.score.loss);
            record.validation = score(evaluated.validation.as_ref());
            record.test_samples = evaluated.test.score.n_samples;
            record.test_expert_share = evaluated.test.expert_share;
            record.waited_seconds.evaluate += took.as_secs_f64();
            record.round_seconds = record.train_seconds + record.waited_seconds.evaluate;
            self.progress.enter(&record);
            node.done.push(record);
        }
    }

    /// Returns what a node was asked to do.
    fn done(&mut self, member: usize) -> Result<Done, String> {
        self.nodes[member]
            .pending
            .take()
            .ok_or("a job ended that never began")?
            .wait()
    }

    /// Evaluates the last exchange of every node, and lets it train for itself where the algorithm does that; tells
    /// whether that is done.
    fn conclude(&mut self) -> Result<bool, String> {
        for member in 0..self.nodes.len() {
            let node = &self.nodes[member];
            if node.unevaluated.is_some() && node.pending.is_none() {
                let task = self.task(member, None);
                self.submit(
                    member,
                    Task {
                        finish: Some(Round(self.rounds)),
                        is_result: true,
                        ..task
                    },
                );
            }
        }
        for member in 0..self.nodes.len() {
            if self.nodes[member].pending.is_some() {
                if !self.is_ready(member) {
                    return Ok(false);
                }
                let done = self.done(member)?;
                self.enter_last(member, done);
            }
        }
        self.progress.finish();
        Ok(true)
    }

    /// Returns why the last stage failed.
    pub(super) fn failure(&self) -> Option<&str> {
        self.failed.as_deref()
    }

    /// Enters what came after the last round; returns the private module, if that was part of it.
    fn enter_last(&mut self, member: usize, done: Done) -> Option<Module> {
        let Done {
            knowledge,
            first,
            last,
            finished,
            module,
            on_everyone,
            pool,
            evaluated,
            ..
        } = done;
        self.enter_first(member, first, evaluated);
        if std::mem::take(&mut self.nodes[member].rested) {
            self.nodes[member].unevaluated = Some(Round(self.rounds));
            self.enter_first(member, last, Duration::ZERO);
        }
        let node = &mut self.nodes[member];
        node.knowledge = knowledge;
        let evaluations = finished.as_ref().map(evaluations);
        node.last_stage.evaluations = evaluations.or(node.last_stage.evaluations.take());
        node.last_stage.pool = pool.or(node.last_stage.pool.take());
        node.on_everyone = on_everyone.or(node.on_everyone.take());
        module
    }

    /// Returns the records of a node.
    pub(super) fn records(&self, member: usize) -> &[RoundRecord] {
        &self.nodes[member].done
    }

    /// Returns how many of everyone's test samples a node's result gets right, and how many there are, by class.
    pub(super) fn on_everyone(&self, member: usize) -> Option<&[ClassCount]> {
        self.nodes[member].on_everyone.as_deref()
    }

    /// Names everything that a node has learned: one hash of its private part, its shared part and its experts.
    pub(super) fn parameters_hash(&self, member: usize) -> BlobId {
        let Knowledge {
            private,
            shared,
            experts,
        } = &self.nodes[member].knowledge;
        let parts = std::iter::once(private).chain(shared).chain(experts);
        let names: Vec<u8> = parts
            .flat_map(|part| *part.to_blob().0.id.as_bytes())
            .collect();
        BlobId::of(&names)
    }

    /// Returns what came after a node's last round.
    pub(super) fn last_stage(&self, member: usize) -> &LastStage {
        &self.nodes[member].last_stage
    }

    /// Returns the bytes that a node sent and received.
    pub(super) fn traffic(&self, member: usize) -> (sim::Bytes, sim::Bytes) {
        self.nodes[member].traffic
    }
}

impl Trainers for Models {
    fn initial_shared(&mut self) -> Option<ParamSet> {
        self.initial_shared.as_deref().cloned()
    }

    fn begin(&mut self, member: usize, round: Round, ends: Timestamp) {
        let task = self.task(member, Some(round));
        let node = &mut self.nodes[member];
        node.knowledge = Knowledge {
            experts: Vec::new(),
            ..node.knowledge.clone()
        };
        self.submit_until(member, task, ends);
    }

    fn finish(&mut self, member: usize, round: Round) -> Result<sim::LocalUpdate, String> {
        let done = self.done(member)?;
        self.enter_first(member, done.first, Duration::ZERO);
        let update = done
            .update
            .ok_or("a job came back without its local update")?;
        let me = sim::node_id(self.seed, member);
        let node = &mut self.nodes[member];
        let mut record = RoundRecord::new(round, me, node.started_at);
        record.train_loss = update.train_loss;
        record.n_samples = update.n_samples;
        record.train_seconds = done.trained.as_secs_f64();
        record.waited_seconds.evaluate = done.evaluated.as_secs_f64();
        record.expert_share.clone_from(&update.expert_share);
        record.multiply_adds = Some(update.multiply_adds);
        if let Some(last) = &done.last {
            record.accuracy_after_local_training = Some(last.test.score.accuracy);
            record.loss_after_local_training = Some(last.test.score.loss);
            record.validation_after_local_training = score(last.validation.as_ref());
        }
        self.progress.train(&record);
        node.open.insert(round, record);
        (node.knowledge, node.trained) = (done.knowledge, Some(round));
        let routed = update.routed.into_iter();
        Ok(sim::LocalUpdate {
            shared: node.knowledge.shared.clone(),
            experts: node.knowledge.experts.iter().cloned().zip(routed).collect(),
            proxies: update.proxies,
            n_samples: update.n_samples,
            train_loss: update.train_loss,
            expert_share: update.expert_share,
        })
    }

    fn shared(&mut self, member: usize) -> Option<Arc<ParamSet>> {
        self.nodes[member].knowledge.shared.clone()
    }

    fn adopt(&mut self, member: usize, round: Round, adoption: Adoption) {
        let node = &mut self.nodes[member];
        if let Some(record) = node.open.get_mut(&round) {
            let id = record.node_id;
            let used = adoption
                .used
                .iter()
                .flat_map(|(_, sources)| sources)
                .map(|(expert, _)| *expert);
            let foreign: std::collections::BTreeSet<_> =
                used.filter(|expert| expert.owner != id).collect();
            record.n_sources_used = u32::try_from(foreign.len()).unwrap_or(u32::MAX);
            record.mixed.clone_from(&adoption.mixed);
        }
        if adoption.shared.is_some() || !adoption.experts.is_empty() {
            let adopted = Some(Adopted {
                shared: adoption.shared,
                experts: adoption.experts,
            });
            // Whoever rested in this round may still have an earlier one to evaluate.
            match node.unevaluated {
                None => node.adopted = adopted,
                Some(_) => node.then_adopted = adopted,
            }
        }
    }

    fn begin_module(&mut self, member: usize, round: Round) {
        let task = self.task(member, None);
        self.submit(
            member,
            Task {
                finish: Some(round),
                make_module: true,
                ..task
            },
        );
    }

    fn finish_module(&mut self, member: usize) -> Result<Option<sim::PrivateModule>, String> {
        let done = self.done(member)?;
        let module = self.enter_last(member, done);
        Ok(module.map(
            |Module {
                 kind,
                 params,
                 score,
             }| sim::PrivateModule {
                kind,
                params,
                score,
            },
        ))
    }

    fn begin_pool(&mut self, member: usize, modules: Vec<(NodeId, Arc<ParamSet>)>) {
        let task = self.task(member, None);
        self.submit(
            member,
            Task {
                modules: Some(modules),
                is_result: true,
                ..task
            },
        );
    }

    fn finish_pool(&mut self, member: usize) -> Result<PoolReport, String> {
        let done = self.done(member)?;
        let refused = done
            .pool
            .as_ref()
            .map(|pool| pool.refused.clone())
            .unwrap_or_default();
        self.enter_last(member, done);
        Ok(PoolReport { refused })
    }

    fn save(&mut self, member: usize) {
        let node = &mut self.nodes[member];
        if node.pending.is_none() {
            node.saved = node.knowledge.clone();
        }
    }

    fn restore(&mut self, member: usize) {
        let node = &mut self.nodes[member];
        node.knowledge = node.saved.clone();
        (node.pending, node.adopted, node.trained) = (None, None, None);
    }

    fn closed(&mut self, member: usize, closed: ClosedRound) {
        self.progress.close(closed.round);
        let (me, is_last) = (
            sim::node_id(self.seed, member),
            closed.round.0 == self.rounds,
        );
        let node = &mut self.nodes[member];
        // How good a node is in the end is known of all, of those too that rested.
        if is_last && !node.open.contains_key(&closed.round) {
            node.open.insert(
                closed.round,
                RoundRecord::new(closed.round, me, node.started_at),
            );
            node.rested = node.unevaluated.is_some();
        }
        let (sent, received) = std::mem::replace(&mut node.traffic, (closed.sent, closed.received));
        if let Some(record) = node.open.get_mut(&closed.round) {
            (record.closed_by, record.members) = (closed.by, closed.members);
            record.bytes_sent = since(closed.sent, sent);
            record.bytes_received = since(closed.received, received);
            node.unevaluated.get_or_insert(closed.round);
        }
        node.started_at = closed.at;
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
            knowledge: self.knowledge.clone(),
            saved: self.saved.clone(),
            adopted: self.adopted.clone(),
            then_adopted: self.then_adopted.clone(),
            work: self.pending.as_mut().and_then(Pending::work),
            trained: self.trained,
            open: self.open.values().cloned().collect(),
            unevaluated: self.unevaluated,
            rested: self.rested,
            done: self.done.clone(),
            traffic: self.traffic,
            last_stage: self.last_stage.clone(),
            on_everyone: self.on_everyone.clone(),
            started_at: self.started_at,
        }
    }
}

fn evaluations(evaluated: &Evaluated) -> Evaluations {
    Evaluations {
        validation: score(evaluated.validation.as_ref()),
        test: score(Some(&evaluated.test)),
        expert_share: evaluated.test.expert_share.clone(),
    }
}

fn score(evaluation: Option<&Evaluation>) -> Option<fednode_core::Score> {
    evaluation
        .map(|evaluation| evaluation.score)
        .filter(|score| score.n_samples > 0)
}

fn since(now: sim::Bytes, before: sim::Bytes) -> Bytes {
    let aggregator = now.aggregator - before.aggregator;
    let peer_to_peer = now.peer_to_peer - before.peer_to_peer;
    let gossip = now.gossip - before.gossip;
    Bytes {
        aggregator,
        peer_to_peer,
        gossip,
        control: 0,
        wire: aggregator + peer_to_peer + gossip,
    }
}
