//! What each simulated node knows, and the record of each of its rounds.
//!
//! A round of a node is one job: take over what the last exchange brought, evaluate that, train. So an exchange is
//! evaluated when the next round begins, the last one by [`Models::conclude`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fednode_core::{NodeId, ParamSet, Round, Timestamp};
use fednode_data::Split;
use fednode_engine::PoolReport;
use fednode_engine::execute::Adoption;
use fednode_engine::sim::{self, ClosedRound, Trainers};
use fednode_learn::{ClassCount, Evaluation};
use fednode_runtime::status::{Bytes, RoundRecord};
use fednode_runtime::trainer::{Evaluations, LastStage};

use super::pool::{Adopted, Done, Evaluated, Everyone, Job, Knowledge, Pending, Pool, wait};
use super::progress::Progress;
use crate::swarm::interrupt::Interrupts;

/// The nodes of a simulation.
pub(super) struct Models {
    pool: Pool,
    interrupts: Interrupts,
    progress: Progress,
    initial_shared: Option<Arc<ParamSet>>,
    nodes: Vec<Node>,
    seed: u64,
    rounds: u32,
    evaluate_every: u32,
    everyone: Option<Everyone>,
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
    pending: Option<Pending>,
    /// The rounds that still lack something.
    open: BTreeMap<Round, RoundRecord>,
    /// The round whose exchange is still to be evaluated.
    unevaluated: Option<Round>,
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
            pending: None,
            open: BTreeMap::new(),
            unevaluated: None,
            done: Vec::new(),
            traffic: Default::default(),
            last_stage: LastStage::default(),
            on_everyone: None,
            started_at: Timestamp(0),
        };
        let everyone = settings.global_test.then(|| Everyone::from(data.as_slice()));
        let nodes = data.into_iter().enumerate().map(node).collect();
        let initial_shared = initial[0].shared.clone();
        let Settings { seed, rounds, evaluate_every, .. } = *settings;
        Self { pool, interrupts, progress, initial_shared, nodes, seed, rounds, evaluate_every, everyone }
    }

    fn evaluates_fully(&self, round: Round) -> bool {
        round.0 == self.rounds || round.0.is_multiple_of(self.evaluate_every.max(1))
    }

    /// Makes the next job of a node out of what is still to be done.
    fn job(&mut self, member: usize, train: Option<Round>) -> Job {
        let full = |models: &Self, round: Option<Round>| round.map(|round| models.evaluates_fully(round));
        let evaluate_first = full(self, self.nodes[member].unevaluated);
        let evaluate_last = full(self, train).unwrap_or(false);
        let node = &mut self.nodes[member];
        Job {
            learner: node.model,
            node_seed: member as u64,
            data: Arc::clone(&node.data),
            knowledge: node.knowledge.clone(),
            adopted: node.adopted.take(),
            evaluate_first,
            train,
            evaluate_last,
            finish: None,
            make_module: false,
            everyone: None,
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

    /// Evaluates the last exchange of every node, and lets it train for itself where the algorithm does that.
    ///
    /// # Errors
    /// Says why that failed.
    pub(super) fn conclude(&mut self) -> Result<(), String> {
        let unevaluated: Vec<usize> =
            (0..self.nodes.len()).filter(|member| self.nodes[*member].unevaluated.is_some()).collect();
        let pending: Vec<Pending> = unevaluated
            .iter()
            .map(|member| {
                let job = self.job(*member, None);
                self.pool.submit(Job { finish: Some(Round(self.rounds)), everyone: self.everyone.clone(), ..job })
            })
            .collect();
        for (member, pending) in unevaluated.into_iter().zip(pending) {
            let done = wait(&pending)?;
            self.enter_last(member, done);
        }
        self.progress.finish();
        Ok(())
    }

    /// Enters what came after the last round; returns the private module, if that was part of it.
    fn enter_last(&mut self, member: usize, done: Done) -> Option<sim::PrivateModule> {
        let Done { knowledge, first, finished, module, on_everyone, pool, evaluated, .. } = done;
        self.enter_first(member, first, evaluated);
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

    fn begin(&mut self, member: usize, round: Round) {
        let job = self.job(member, Some(round));
        let node = &mut self.nodes[member];
        node.knowledge = Knowledge { experts: Vec::new(), ..node.knowledge.clone() };
        node.pending = Some(self.pool.submit(job));
    }

    fn finish(&mut self, member: usize, round: Round) -> Result<sim::LocalUpdate, String> {
        let pending = self.nodes[member].pending.take().ok_or("training ended that never began")?;
        let done = wait(&pending)?;
        self.enter_first(member, done.first, Duration::ZERO);
        let update = done.update.ok_or("a job came back without its local update")?;
        let me = sim::node_id(self.seed, member);
        let node = &mut self.nodes[member];
        let mut record = RoundRecord::new(round, me, node.started_at);
        record.train_loss = update.train_loss;
        record.n_samples = update.n_samples;
        record.train_seconds = done.trained.as_secs_f64();
        record.waited_seconds.evaluate = done.evaluated.as_secs_f64();
        record.expert_share.clone_from(&update.expert_share);
        if let Some(last) = &done.last {
            record.accuracy_after_local_training = Some(last.test.score.accuracy);
            record.loss_after_local_training = Some(last.test.score.loss);
            record.validation_after_local_training = score(last.validation.as_ref());
        }
        node.open.insert(round, record);
        node.knowledge = done.knowledge;
        let routed = update.experts.iter().map(|(_, routed)| *routed);
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
            let used = adoption.used.iter().flat_map(|(_, sources)| sources).map(|(expert, _)| *expert);
            let foreign: std::collections::BTreeSet<_> = used.filter(|expert| expert.owner != id).collect();
            record.n_sources_used = u32::try_from(foreign.len()).unwrap_or(u32::MAX);
        }
        if adoption.shared.is_some() || !adoption.experts.is_empty() {
            node.adopted = Some(Adopted { shared: adoption.shared, experts: adoption.experts });
        }
    }

    fn begin_module(&mut self, member: usize, round: Round) {
        let job = self.job(member, None);
        let pending = self.pool.submit(Job { finish: Some(round), make_module: true, ..job });
        self.nodes[member].pending = Some(pending);
    }

    fn finish_module(&mut self, member: usize) -> Result<Option<sim::PrivateModule>, String> {
        let pending = self.nodes[member].pending.take().ok_or("a module is made that was never begun")?;
        let done = wait(&pending)?;
        Ok(self.enter_last(member, done))
    }

    fn begin_pool(&mut self, member: usize, modules: Vec<(NodeId, Arc<ParamSet>)>) {
        let job = self.job(member, None);
        let pending = self.pool.submit(Job { modules: Some(modules), everyone: self.everyone.clone(), ..job });
        self.nodes[member].pending = Some(pending);
    }

    fn finish_pool(&mut self, member: usize) -> Result<PoolReport, String> {
        let pending = self.nodes[member].pending.take().ok_or("a pool is made that was never begun")?;
        let done = wait(&pending)?;
        let refused = done.pool.as_ref().map(|pool| pool.refused.clone()).unwrap_or_default();
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
        (node.pending, node.adopted) = (None, None);
    }

    fn closed(&mut self, member: usize, closed: ClosedRound) {
        let node = &mut self.nodes[member];
        let (sent, received) = std::mem::replace(&mut node.traffic, (closed.sent, closed.received));
        if let Some(record) = node.open.get_mut(&closed.round) {
            (record.closed_by, record.members) = (closed.by, closed.members);
            record.bytes_sent = since(closed.sent, sent);
            record.bytes_received = since(closed.received, received);
            node.unevaluated = Some(closed.round);
        }
        node.started_at = closed.at;
    }

    fn stops(&mut self) -> bool {
        self.interrupts.count() > 0
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
    evaluation.map(|evaluation| evaluation.score).filter(|score| score.n_samples > 0)
}

fn since(now: sim::Bytes, before: sim::Bytes) -> Bytes {
    let aggregator = now.aggregator - before.aggregator;
    let peer_to_peer = now.peer_to_peer - before.peer_to_peer;
    let gossip = now.gossip - before.gossip;
    Bytes { aggregator, peer_to_peer, gossip, control: 0, wire: aggregator + peer_to_peer + gossip }
}
