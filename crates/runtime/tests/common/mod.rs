//! A trainer of a few floats, and members that run in this process over real loopback sockets.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use fednode_core::work::{
    Evaluations, Modules, Order, Outcome, PrivateModule, Progress, Received, Update, Watch,
    WorkError, Worker,
};
use fednode_core::{
    Averaging, Exchange, ExpertExchange, FederationSpec, Judged, Matching, NodeId, ParamSet,
    PeersPerExpert, PoolMember, PoolOutcome, ProxySet, Round, Rule, Score, Scores, Served,
    Weighting,
};
use fednode_runtime::{
    Finished, MemberConfig, Process, RunError, Trainer, TrainerCard, run_aggregator, run_node,
    telemetry,
};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Experts per node.
const EXPERTS: u16 = 2;

/// What a last stage adds to a number, far more than all rounds do.
pub const FINISHING: f32 = 100.0;

/// What a test wants to know of a trainer that runs on another thread.
#[derive(Debug, Default)]
pub struct Counters {
    /// Local updates finished.
    pub trained: AtomicU32,
    /// Calls of `restore`.
    pub restored: AtomicU32,
    /// Last stages begun.
    pub finishing: AtomicU32,
    /// Last stages done.
    pub finished: AtomicU32,
    /// Set by a test: the last stage does not end before this is taken back.
    pub held: AtomicBool,
    /// Pools begun.
    pub pooling: AtomicU32,
}

/// A model of one shared vector and two experts; training adds a number that depends on the node and the round.
pub struct Toy {
    number: u8,
    shared: Vec<f32>,
    experts: Vec<Vec<f32>>,
    batch: Duration,
    counters: Arc<Counters>,
}

impl Toy {
    pub fn new(number: u8, batch: Duration) -> (Box<Self>, Arc<Counters>) {
        let counters = Arc::new(Counters::default());
        let experts = (0..EXPERTS)
            .map(|slot| vec![f32::from(slot) + 1.0; 3])
            .collect();
        let toy = Self {
            number,
            shared: vec![1.0, 2.0],
            experts,
            batch,
            counters: Arc::clone(&counters),
        };
        (Box::new(toy), counters)
    }

    /// Takes its time, unless it is told to stop.
    fn run_batches(&self, watch: &mut Watch<'_>) -> Result<(), WorkError> {
        for batch in 1..=4 {
            std::thread::sleep(self.batch);
            let progress = Progress {
                epoch: 1,
                epochs: 1,
                batch,
                batches: 4,
                loss: Some(1.0),
            };
            if watch(progress).is_break() {
                return Err(WorkError::Abandoned);
            }
        }
        Ok(())
    }
}

pub fn params(name: &str, values: &[f32]) -> ParamSet {
    let mut params = ParamSet::new();
    params
        .insert(name, &[values.len()], values.to_vec())
        .unwrap();
    params
}

fn values(params: &ParamSet, name: &str) -> Result<Vec<f32>, WorkError> {
    let tensor = params
        .get(name)
        .ok_or_else(|| WorkError::Misfit(format!("`{name}` is missing")))?;
    Ok(tensor.values().to_vec())
}

impl Toy {
    fn train(&mut self, round: Round, watch: &mut Watch<'_>) -> Result<Update, WorkError> {
        self.run_batches(watch)?;
        let step = f32::from(self.number) * 0.01;
        self.shared.iter_mut().for_each(|value| *value += step);
        self.experts
            .iter_mut()
            .flatten()
            .for_each(|value| *value += step);
        self.counters.trained.fetch_add(1, Ordering::Relaxed);
        let experts = self
            .experts
            .iter()
            .map(|expert| (Arc::new(params("e", expert)), 5))
            .collect();
        let proxies: Vec<f32> = self.experts.iter().flatten().copied().collect();
        Ok(Update {
            shared: Some(Arc::new(params("w", &self.shared))),
            experts,
            proxies: Some(ProxySet::new(3, proxies).unwrap()),
            n_samples: 10,
            train_loss: 1.0 / f64::from(round.0),
            expert_share: vec![0.5, 0.5],
            steps: 4,
            multiply_adds: 0,
        })
    }

    /// Adds to an expert, so that it shows how often it was done; takes as long as a local update.
    fn fine_tune(&mut self, watch: &mut Watch<'_>) -> Result<(), WorkError> {
        self.counters.finishing.fetch_add(1, Ordering::Relaxed);
        self.run_batches(watch)?;
        while self.counters.held.load(Ordering::Relaxed) {
            self.run_batches(watch)?;
        }
        self.experts[0]
            .iter_mut()
            .for_each(|value| *value += FINISHING);
        self.counters.finished.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn module(&self) -> PrivateModule {
        PrivateModule {
            kind: "expert".into(),
            params: Arc::new(params("e", &self.experts[0])),
            score: 0.25,
        }
    }

    /// Takes as long as a local update.
    fn pool(&mut self, modules: &Modules, watch: &mut Watch<'_>) -> Result<PoolOutcome, WorkError> {
        self.counters.pooling.fetch_add(1, Ordering::Relaxed);
        self.run_batches(watch)?;
        let member = |node: Option<NodeId>| PoolMember {
            node,
            score: None,
            kept: true,
            gate_mass: 0.0,
        };
        let scores = Scores {
            own: Score::default(),
            mixture: None,
        };
        let others = modules.iter().map(|(node, _)| member(Some(*node)));
        Ok(PoolOutcome {
            members: [member(None)].into_iter().chain(others).collect(),
            refused: Vec::new(),
            served: Served::Mixture,
            epochs: 1,
            unseen: 0,
            best_epoch: Some(1),
            learning_rate: None,
            validation: scores,
            test: scores,
            controls: None,
        })
    }

    fn adopt(&mut self, received: &Received) -> Result<(), WorkError> {
        if let Some(shared) = &received.shared {
            self.shared = values(shared, "w")?;
        }
        for (slot, expert) in &received.experts {
            self.experts[usize::from(slot.0)] = values(expert, "e")?;
        }
        Ok(())
    }

    fn evaluate(&self) -> Evaluations {
        let score = Score {
            accuracy: f64::from(self.shared[0]) / 10.0,
            loss: 0.5,
            n_samples: 4,
        };
        Evaluations {
            validation: Some(score),
            test: Some(score),
            judged: Some(Judged {
                measure: "auroc".to_owned(),
                value: Some(0.75),
            }),
            expert_share: vec![0.5, 0.5],
            domain_information: None,
            lacks: None,
            useless: None,
            composition: None,
        }
    }
}

impl Worker for Toy {
    fn perform(&mut self, order: Order, watch: &mut Watch<'_>) -> Result<Outcome, WorkError> {
        Ok(match order {
            Order::TrainAhead(_) => Outcome::TrainedAhead,
            Order::Train(round) => Outcome::Trained(self.train(round, watch)?),
            Order::Adopt(received) => {
                self.adopt(&received)?;
                Outcome::Adopted
            }
            Order::Evaluate(_) => Outcome::Evaluated(self.evaluate()),
            Order::FineTune(_) => {
                self.fine_tune(watch)?;
                Outcome::FineTuned(None)
            }
            Order::MakeModule => Outcome::Module(Some(self.module())),
            Order::AssemblePool(modules) => Outcome::Pooled(self.pool(&modules, watch)?),
            Order::GoOn => Outcome::WentOn,
            Order::ForgetPeers => Outcome::Adopted,
        })
    }

    fn initial_shared(&self) -> Option<ParamSet> {
        Some(params("w", &[1.0, 2.0]))
    }

    fn shared(&self) -> Option<ParamSet> {
        Some(params("w", &self.shared))
    }

    fn state(&self) -> ParamSet {
        let mut state = params("shared", &self.shared);
        for (slot, expert) in self.experts.iter().enumerate() {
            state
                .extend_prefixed(&format!("experts.{slot}."), params("e", expert))
                .unwrap();
        }
        state
    }

    /// A toy draws nothing.
    fn take_secret(&mut self, _: &[u8; 32]) {}

    fn restore(&mut self, state: &ParamSet) -> Result<(), WorkError> {
        self.shared = values(state, "shared")?;
        for slot in 0..self.experts.len() {
            self.experts[slot] = values(state, &format!("experts.{slot}.e"))?;
        }
        self.counters.restored.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// Describes a toy as the trainer of a member.
pub fn trainer(toy: Box<Toy>) -> Trainer {
    let card = TrainerCard {
        device: "toy".into(),
        model: "toy".into(),
        n_parameters: 8,
        ..TrainerCard::default()
    };
    Trainer::of(toy, card)
}

/// A federation that averages and mixes.
pub fn spec(nodes: u32, rounds: u32) -> FederationSpec {
    let mut spec = FederationSpec {
        nodes,
        rounds,
        hyper: BTreeMap::new(),
        ..FederationSpec::default()
    };
    spec.round.quorum = 1.0;
    spec.round.grace_seconds = 1.0;
    spec.round.deadline_seconds = 8.0;
    spec.exchange = Exchange {
        averaging: Some(Averaging {
            weighting: Weighting::Uniform,
            rule: Rule::default(),
        }),
        experts: Some(ExpertExchange {
            peers_per_expert: PeersPerExpert::ALL,
            refresh_every: 1,
            temperature: 1.0,
            weighting: Weighting::Uniform,
            slots_per_node: None,
            max_distance: None,
            matching: Matching::default(),
            noise: None,
        }),
        everybody_first: false,
        prepares: false,
        total: None,
    };
    spec
}

/// A federation in which everybody trains alone.
pub fn lonely_spec(rounds: u32) -> FederationSpec {
    FederationSpec {
        exchange: Exchange::default(),
        ..spec(1, rounds)
    }
}

pub fn config(spec: &FederationSpec, state: &Path, peers: &[String]) -> MemberConfig {
    MemberConfig {
        listen: vec!["/ip4/127.0.0.1/tcp/0".into()],
        peers: peers.to_vec(),
        exit_when_finished: true,
        linger: Duration::from_secs(1),
        ..MemberConfig::new(Arc::new(spec.clone()), state)
    }
}

/// A member that runs in the background.
pub struct Running {
    pub stop: CancellationToken,
    pub counters: Arc<Counters>,
    task: JoinHandle<Result<Finished, RunError>>,
}

impl Running {
    /// Starts a node; with `FEDNODE_LOG` set, what happens in it can be read on standard error.
    pub fn node(number: u8, config: MemberConfig, batch: Duration) -> Self {
        if std::env::var_os(telemetry::FILTER_VARIABLE).is_some() {
            // The first test of the process installs it for all.
            let _ = telemetry::install(telemetry::Format::Human);
        }
        let stop = CancellationToken::new();
        let (toy, counters) = Toy::new(number, batch);
        let mut process = Process::new(&stop);
        let task = tokio::spawn(async move { run_node(config, trainer(toy), &mut process).await });
        Self {
            stop,
            counters,
            task,
        }
    }

    /// Starts an aggregator and returns it with the address to dial.
    pub async fn aggregator(mut config: MemberConfig) -> (Self, String) {
        let (told, mut addresses) = mpsc::channel(8);
        config.on_listening = Some(told);
        let stop = CancellationToken::new();
        let mut process = Process::new(&stop);
        let task = tokio::spawn(async move { run_aggregator(config, &mut process).await });
        let address = within(10, addresses.recv()).await.unwrap();
        (
            Self {
                stop,
                counters: Arc::default(),
                task,
            },
            address,
        )
    }

    pub async fn end(self) -> Result<Finished, RunError> {
        within(120, self.task).await.unwrap()
    }
}

/// Waits with a limit, so that a test that hangs says so.
pub async fn within<T>(seconds: u64, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(seconds), future)
        .await
        .expect("it takes far too long")
}

/// Waits until something holds.
pub async fn until(mut holds: impl FnMut() -> bool) {
    let look = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    within(60, look).await;
}
