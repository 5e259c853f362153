//! The work of a node in plain numbers: what is ordered of whoever has the tensors, and what comes of it.
//!
//! ```text
//!   live driver ───┐                    ┌──► Outcome ──► records, adverts, blobs
//!                  ├── Order ─► Worker ─┤
//!   simulator  ────┘                    └──► WorkError
//! ```
//!
//! There is one [`Worker`] for both callers, so a round is executed by the same code live and simulated. Everything
//! here can be written to a file. `P` says how parameters are held: in memory as `Arc<ParamSet>`, in the snapshot of a
//! simulation as a number, the place of the parameters in the file.

use std::ops::ControlFlow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{
    Composition, ExpertId, Judged, NodeId, ParamSet, PoolOutcome, ProxySet, Round, Score, Slot,
};

/// Private modules and their owners, in node order. Modules of the same content are one in memory.
pub type Modules<P = Arc<ParamSet>> = Vec<(NodeId, P)>;

/// Called after every batch; `Break` abandons the work.
pub type Watch<'a> = dyn FnMut(Progress) -> ControlFlow<()> + Send + 'a;

/// Whoever has the model, the node's data and the device.
pub trait Worker: Send {
    /// Carries out an order and answers with the outcome of the same name.
    ///
    /// # Errors
    /// [`WorkError::Abandoned`] if `watch` breaks off, otherwise what went wrong. The model is then as it was before the
    /// order.
    fn perform(&mut self, order: Order, watch: &mut Watch<'_>) -> Result<Outcome, WorkError>;

    /// Returns the shared part that every node of the federation starts from; `None` if nothing is averaged.
    fn initial_shared(&self) -> Option<ParamSet>;

    /// Returns the shared part as it is now.
    fn shared(&self) -> Option<ParamSet>;

    /// Returns everything that a restart needs.
    fn state(&self) -> ParamSet;

    /// Goes on from a state.
    ///
    /// # Errors
    /// [`WorkError::Misfit`] if it does not fit the model; nothing is changed then.
    fn restore(&mut self, state: &ParamSet) -> Result<(), WorkError>;

    /// Returns how the steps of a round's training are protected; `None` where nothing bounds what they tell of a sample.
    fn noisy_steps(&self) -> Option<NoisySteps> {
        None
    }

    /// Takes a secret of the node, the same after every start: what it draws of it nobody else can know.
    fn take_secret(&mut self, secret: &[u8; 32]);
}

/// Steps of training, each with noise on a sum over samples that were drawn.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct NoisySteps {
    /// The probability with which each sample takes part in a step, above 0, at most 1.
    pub rate: f64,
    /// The standard deviation of the noise over the length of the longest summand.
    pub noise: f64,
    /// How many steps.
    pub steps: u32,
}

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Order<P = Arc<ParamSet>> {
    /// Train the first epochs of a round that has not begun, as many as the spec wants. The model stays as it was
    /// published; [`Order::Train`] of that round goes on from there.
    TrainAhead(Round),
    /// Train a round, or gather statistics in a round that does that instead.
    Train(Round),
    /// Take over what an exchange brought.
    Adopt(Received<P>),
    /// Evaluate the model as it is. Nothing changes that later training depends on.
    Evaluate(Splits),
    /// Train for this node alone after this last round, and evaluate the result.
    FineTune(Round),
    /// Make the private module that others may take into their pools, fine-tuned as the spec asks.
    MakeModule,
    /// Make a pool of the node's own module and these, and serve the result from now on.
    AssemblePool(Modules<P>),
    /// Go on with rounds that were added after an end: forget what that end made of the model, a pool and everybody's statistics.
    GoOn,
    /// Delete what was made of peers' statistics, because they took these back. What was trained on parts of others stays.
    ForgetPeers,
}

/// What came of an [`Order`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Outcome<P = Arc<ParamSet>> {
    /// The first epochs of a round are trained.
    TrainedAhead,
    /// A round is trained.
    Trained(Update<P>),
    /// The parts were taken over, or those of peers forgotten.
    Adopted,
    /// How good the model is.
    Evaluated(Evaluations),
    /// How good the model is after its fine-tuning; `None` if the algorithm has no such stage.
    FineTuned(Option<Evaluations>),
    /// The private module; `None` if the algorithm has none.
    Module(Option<PrivateModule<P>>),
    /// What became of the pool.
    Pooled(PoolOutcome),
    /// The model is one to train again.
    WentOn,
}

/// The splits that a model is evaluated on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Splits {
    /// The test split.
    Test,
    /// The validation split and the test split.
    ValidationAndTest,
}

/// A finished local update.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Update<P = Arc<ParamSet>> {
    /// The node's version of the shared part; `None` if nothing is averaged.
    pub shared: Option<P>,
    /// The node's experts in slot order, each with the training samples that the gate routed to it over all epochs.
    pub experts: Vec<(P, u32)>,
    /// The gating proxies; `None` without a gate.
    pub proxies: Option<ProxySet>,
    /// Training samples.
    pub n_samples: u32,
    /// Mean loss over the last local epoch.
    pub train_loss: f64,
    /// Share of the training samples routed to each expert, 0 to 1.
    pub expert_share: Vec<f64>,
    /// Steps of gradient descent.
    pub steps: u32,
    /// Multiply-adds of convolutions and fully connected layers, forward and backward.
    pub multiply_adds: u64,
}

/// Parts that an exchange brought.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Received<P = Arc<ParamSet>> {
    /// The new shared part; `None` to keep the node's own.
    pub shared: Option<P>,
    /// The experts that others were mixed into.
    pub experts: Vec<(Slot, P)>,
    /// Experts of others as they are, for an algorithm that judges them itself.
    #[serde(default = "Vec::new")]
    pub peers: Vec<PeerExpert<P>>,
    /// The others' statistics of which the new shared part is the mean; nothing unless it is one, and all of them are here.
    #[serde(default = "Vec::new")]
    pub statistics: Vec<MemberStatistics<P>>,
}

/// The statistics of another member, as it shared them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MemberStatistics<P = Arc<ParamSet>> {
    /// Whose they are.
    pub node: NodeId,
    /// What it weighs in the mean: its samples.
    pub weight: f64,
    /// Its sums.
    pub params: P,
}

/// An expert of another node, to which nothing was done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PeerExpert<P = Arc<ParamSet>> {
    /// Whose it is.
    pub expert: ExpertId,
    /// How much it counts by the plan, 0 to 1: the weights of the peers of a slot and that of the own expert sum to 1.
    pub weight: f64,
    /// Its parameters.
    pub params: P,
}

/// What a node offers to the pools of others (PM-MoE).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PrivateModule<P = Arc<ParamSet>> {
    /// What it is: `head`, `extractor`, `vector` or `expert`.
    pub kind: String,
    /// Its parameters, under the names that they have in the node's state.
    pub params: P,
    /// Accuracy on the node's validation samples, 0 to 1; 0 without any.
    pub score: f64,
}

/// Where training is.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Progress {
    /// The running epoch, counting from 1.
    pub epoch: u32,
    /// Epochs of this local update.
    pub epochs: u32,
    /// The batch within the epoch, counting from 1.
    pub batch: u32,
    /// Batches of an epoch.
    pub batches: u32,
    /// Loss of the last batch whose loss is known; a GPU is asked for many at once.
    pub loss: Option<f64>,
}

/// How good a model is.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Evaluations {
    /// On the validation split; `None` if the node has none or nobody asked.
    pub validation: Option<Score>,
    /// On the test split; `None` if the node has none.
    pub test: Option<Score>,
    /// By the measure that the spec names, on the test split; `None` if it names none, or if the node has no test split.
    #[serde(default)]
    pub judged: Option<Judged>,
    /// Share of the test samples routed to each expert, 0 to 1.
    pub expert_share: Vec<f64>,
    /// How much the choice of the expert says of a test sample's domain, 0 to 1; `None` where domains are not known.
    #[serde(default)]
    pub domain_information: Option<f64>,
    /// What the model lacks of what the spec asks for, in one line with the reason: a statistics expert, for example.
    #[serde(default)]
    pub lacks: Option<String>,
    /// Why the model is of no use, in one line, if it is no better than a constant answer.
    #[serde(default)]
    pub useless: Option<String>,
    /// What the model is made of, where it is more than the algorithm's.
    #[serde(default)]
    pub composition: Option<Composition>,
}

/// What came after the last round.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct LastStage {
    /// How good the model is then; `None` if nothing came after the last round.
    pub evaluations: Option<Evaluations>,
    /// What became of the pool, if there was to be one and the algorithm has a private module.
    pub pool: Option<PoolOutcome>,
}

/// Tells why an order could not be carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WorkError {
    /// The watcher broke off.
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
    /// What was trained is not published: the owner's budget or its file does not allow it.
    #[error("nothing was published: {0}")]
    Withheld(String),
    /// The worker answered something else than was ordered, which is a defect.
    #[error("the trainer answered another order than was given: please report this defect")]
    WrongAnswer,
    /// More orders wait than a round has, which is a defect.
    #[error("{0} orders wait for the trainer, more than a round has: please report this defect")]
    Crowded(usize),
    /// The worker's thread ended, which a crash of a driver or a defect may cause.
    #[error(
        "the trainer's thread ended unexpectedly: a crash of the device driver or a defect of this software"
    )]
    Died,
}

impl<P> Outcome<P> {
    /// Returns the update of [`Order::Train`].
    ///
    /// # Errors
    /// [`WorkError::WrongAnswer`] if it is the outcome of another order; so do the functions below.
    pub fn into_update(self) -> Result<Update<P>, WorkError> {
        match self {
            Self::Trained(update) => Ok(update),
            _ => Err(WorkError::WrongAnswer),
        }
    }

    /// Returns the scores of [`Order::Evaluate`].
    ///
    /// # Errors
    /// As [`Outcome::into_update`].
    pub fn into_evaluations(self) -> Result<Evaluations, WorkError> {
        match self {
            Self::Evaluated(evaluations) => Ok(evaluations),
            _ => Err(WorkError::WrongAnswer),
        }
    }

    /// Returns the scores of [`Order::FineTune`].
    ///
    /// # Errors
    /// As [`Outcome::into_update`].
    pub fn into_fine_tuned(self) -> Result<Option<Evaluations>, WorkError> {
        match self {
            Self::FineTuned(evaluations) => Ok(evaluations),
            _ => Err(WorkError::WrongAnswer),
        }
    }

    /// Returns the module of [`Order::MakeModule`].
    ///
    /// # Errors
    /// As [`Outcome::into_update`].
    pub fn into_module(self) -> Result<Option<PrivateModule<P>>, WorkError> {
        match self {
            Self::Module(module) => Ok(module),
            _ => Err(WorkError::WrongAnswer),
        }
    }

    /// Returns the result of [`Order::AssemblePool`].
    ///
    /// # Errors
    /// As [`Outcome::into_update`].
    pub fn into_pool(self) -> Result<PoolOutcome, WorkError> {
        match self {
            Self::Pooled(outcome) => Ok(outcome),
            _ => Err(WorkError::WrongAnswer),
        }
    }

    /// Takes note of [`Order::GoOn`].
    ///
    /// # Errors
    /// As [`Outcome::into_update`].
    pub fn into_went_on(self) -> Result<(), WorkError> {
        match self {
            Self::WentOn => Ok(()),
            _ => Err(WorkError::WrongAnswer),
        }
    }

    /// Returns the same outcome with other parameters in place of its own.
    pub fn map<Q>(self, to: &mut impl FnMut(P) -> Q) -> Outcome<Q> {
        match self {
            Self::TrainedAhead => Outcome::TrainedAhead,
            Self::Trained(update) => Outcome::Trained(update.map(to)),
            Self::Adopted => Outcome::Adopted,
            Self::Evaluated(evaluations) => Outcome::Evaluated(evaluations),
            Self::FineTuned(evaluations) => Outcome::FineTuned(evaluations),
            Self::Module(module) => Outcome::Module(module.map(|module| module.map(to))),
            Self::Pooled(outcome) => Outcome::Pooled(outcome),
            Self::WentOn => Outcome::WentOn,
        }
    }
}

impl<P> Order<P> {
    /// Returns the same order with other parameters in place of its own.
    pub fn map<Q>(self, to: &mut impl FnMut(P) -> Q) -> Order<Q> {
        match self {
            Self::TrainAhead(round) => Order::TrainAhead(round),
            Self::Train(round) => Order::Train(round),
            Self::Adopt(received) => Order::Adopt(received.map(to)),
            Self::Evaluate(splits) => Order::Evaluate(splits),
            Self::FineTune(round) => Order::FineTune(round),
            Self::MakeModule => Order::MakeModule,
            Self::AssemblePool(modules) => Order::AssemblePool(
                modules
                    .into_iter()
                    .map(|(node, params)| (node, to(params)))
                    .collect(),
            ),
            Self::GoOn => Order::GoOn,
            Self::ForgetPeers => Order::ForgetPeers,
        }
    }
}

impl<P> Update<P> {
    fn map<Q>(self, to: &mut impl FnMut(P) -> Q) -> Update<Q> {
        Update {
            shared: self.shared.map(&mut *to),
            experts: self
                .experts
                .into_iter()
                .map(|(params, routed)| (to(params), routed))
                .collect(),
            proxies: self.proxies,
            n_samples: self.n_samples,
            train_loss: self.train_loss,
            expert_share: self.expert_share,
            steps: self.steps,
            multiply_adds: self.multiply_adds,
        }
    }
}

impl<P> Received<P> {
    /// Returns the same parts, held in another way.
    pub fn map<Q>(self, to: &mut impl FnMut(P) -> Q) -> Received<Q> {
        Received {
            shared: self.shared.map(&mut *to),
            experts: self
                .experts
                .into_iter()
                .map(|(slot, params)| (slot, to(params)))
                .collect(),
            peers: self.peers.into_iter().map(|peer| peer.map(to)).collect(),
            statistics: self
                .statistics
                .into_iter()
                .map(|member| MemberStatistics {
                    node: member.node,
                    weight: member.weight,
                    params: to(member.params),
                })
                .collect(),
        }
    }

    /// Tells whether the exchange brought nothing.
    pub fn is_empty(&self) -> bool {
        self.shared.is_none() && self.experts.is_empty() && self.peers.is_empty()
    }
}

impl<P> PeerExpert<P> {
    fn map<Q>(self, to: &mut impl FnMut(P) -> Q) -> PeerExpert<Q> {
        PeerExpert {
            expert: self.expert,
            weight: self.weight,
            params: to(self.params),
        }
    }
}

impl<P> PrivateModule<P> {
    fn map<Q>(self, to: &mut impl FnMut(P) -> Q) -> PrivateModule<Q> {
        PrivateModule {
            kind: self.kind,
            params: to(self.params),
            score: self.score,
        }
    }
}
