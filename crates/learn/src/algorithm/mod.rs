//! Federated algorithms: one file per algorithm, one row per algorithm in [`TABLE`].
//!
//! A file states what its paper states. It says how the model is split into [`Part`]s and which of them are shared. It
//! says what one batch does ([`Algorithm::step`]) and how the algorithm predicts ([`Algorithm::forward`]). It has the
//! hyper-parameters with the paper's defaults. Its [`Exchange`] is all that the engine ever knows of it. Loading,
//! saving, adopting, training loop and evaluation are the same for all and live elsewhere.
//!
//! What happens to an algorithm, in order; a node may be restored from a checkpoint before any round:
//!
//! ```text
//! build ─► [ adopt ─► begin_round ─► step … step ─► end_round ─► share ] per round
//!       ─► [ begin_fine_tuning ─► step … ] per pass after the last round (if it has any)
//! ```
//!
//! Every hook is given the [`RoundContext`]. Steps are made by the optimiser of the training loop, which a step reaches
//! through its [`StepContext`].
//!
//! What outlives a round is a part, if it is numbers, or the [`Memory`], if it is a mode or a choice. Both are saved.

mod class_means;
mod common_experts;
mod companion;
mod context;
mod dbe;
mod dflmoe;
mod distances;
mod ditto;
mod exchange;
mod extractor;
mod fd;
mod fed_syn_moe;
mod fedapen;
mod fedavg;
mod fedavg_ft;
mod fedbabu;
mod fedbn;
mod fedcp;
mod fedem;
mod fedfomo;
mod fedgen;
mod fedgh;
mod fedjets;
mod fedkd;
mod fedmix;
mod fedmoe_da;
mod fedpac;
mod fedper;
mod fedproto;
mod fedprox;
mod fedrep;
mod fedrod;
mod fml;
mod gpfl;
mod guide;
mod halves;
mod hyper;
mod ifca;
mod lg_fedavg;
mod local;
mod loss;
mod module;
mod moon;
mod movement;
mod numbers;
mod part;
mod peers;
mod pfedmoe;
mod pfl_moe;
mod plain;
mod scaffold;
mod sigmoid_gate;
mod switch_gate;
#[cfg(test)]
pub(crate) mod testing;
mod whole;

use std::ops::Range;

use burn::tensor::{Device, Tensor};
use fednode_core::config::unknown_name;
use fednode_core::spec::{Architecture, TrainingSpec};
use fednode_core::{ConfigError, Exchange, FederationSpec, ParamSet};
use fednode_onnx::{Graph, Value};

use crate::batch::Batch;
use crate::error::LearnError;
use crate::memory::Memory;
use crate::optimizer::{Method, StepRule};

pub(crate) use context::differentiate;
pub use context::{Differentiated, RoundContext, StepContext};
use exchange::averaged;
pub use exchange::{check_exchange, fill_exchange};
pub use extractor::Extractor;
pub use guide::{guide, weighting};
pub use hyper::{Hyper, Kind, Profile, Values};
pub use loss::Loss;
pub use module::{Modular, Module, ModuleKind, Opened};
pub use part::{Gradients, Part, Role};
pub use peers::{HeldOut, Peer};

/// One algorithm, as it is listed and built.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// The name in `algorithm`.
    pub name: &'static str,
    /// What it is, in one line.
    pub summary: &'static str,
    /// Where it is from.
    pub reference: &'static str,
    /// What is averaged over all nodes.
    pub averages: &'static str,
    /// What goes from peer to peer.
    pub peer_to_peer: &'static str,
    /// What never leaves the node.
    pub keeps_private: &'static str,
    /// Whether epochs of the next local update may be trained before the exchange is over (`training.ahead_epochs`): they
    /// are all alike, and nothing is derived from what was received last.
    pub trains_ahead: bool,
    /// Which optimisers of `training` it takes.
    pub optimizers: Optimizers,
    /// Its hyper-parameters.
    pub hyper: &'static [Hyper],
    /// Its named sets of defaults, the first of which is the default.
    pub profiles: &'static [Profile],
    /// What it shares, given its hyper-parameters.
    pub exchange: fn(&Values) -> Exchange,
    /// Makes a node's instance.
    pub build: fn(&Setup<'_>) -> Result<Box<dyn Algorithm>, LearnError>,
}

/// Which optimisers of `training` an algorithm takes. Every algorithm takes every schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Optimizers {
    /// All of them.
    Any,
    /// Plain steps alone, for this reason: `sgd` without momentum, weight decay and clipping.
    PlainSteps(&'static str),
}

impl Optimizers {
    /// Refuses settings that the algorithm does not take.
    fn check(self, algorithm: &str, training: &TrainingSpec) -> Result<(), ConfigError> {
        let is_plain = Method::of(training) == Method::Sgd
            && training.weight_decay + training.clip_norm == 0.0;
        match self {
            Self::PlainSteps(reason) if !is_plain => Err(ConfigError(format!(
                "`{algorithm}` {reason}: leave `training.optimizer` at `sgd`, and `training.momentum`, \
                 `training.weight_decay` and `training.clip_norm` at 0"
            ))),
            _ => Ok(()),
        }
    }
}

/// All algorithms.
pub static TABLE: &[Row] = &[
    fedmoe_da::ROW,
    fedavg::ROW,
    local::ROW,
    fedper::ROW,
    lg_fedavg::ROW,
    fedrep::ROW,
    fedrod::ROW,
    fedbabu::ROW,
    gpfl::ROW,
    fedcp::ROW,
    dbe::ROW,
    fedgh::ROW,
    fedprox::ROW,
    scaffold::ROW,
    moon::ROW,
    fedproto::ROW,
    fd::ROW,
    pfl_moe::FB,
    pfl_moe::MF,
    pfl_moe::MFE,
    fed_syn_moe::ROW,
    pfedmoe::ROW,
    fml::ROW,
    fedkd::ROW,
    fedapen::ROW,
    fedgen::ROW,
    fedpac::ROW,
    fedmix::ROW,
    fedjets::ROW,
    fedbn::ROW,
    fedavg_ft::ROW,
    ditto::ROW,
    ifca::ROW,
    fedem::ROW,
    fedfomo::ROW,
    dflmoe::ROW,
];

/// What an algorithm is built from.
#[derive(Debug)]
pub struct Setup<'a> {
    /// The model of this node.
    pub model: &'a Architecture,
    /// The local update.
    pub training: &'a TrainingSpec,
    /// The algorithm's hyper-parameters.
    pub hyper: &'a Values,
    /// Share of the nodes that train in a round: |S| / N.
    pub participation: f64,
    /// How many nodes there are.
    pub nodes: u32,
    /// How many rounds there are.
    pub rounds: u32,
    /// Seed of what all nodes must draw alike.
    pub seed: u64,
    /// Where the tensors live.
    pub device: &'a Device,
}

/// Builds one node's instance of the algorithm that a spec names.
///
/// # Errors
/// Fails on an unknown algorithm, model or hyper-parameter, and on settings that do not go together.
pub fn build(spec: &FederationSpec, device: &Device) -> Result<Box<dyn Algorithm>, LearnError> {
    let row = find(&spec.algorithm)?;
    let hyper = &row.values(&spec.hyper)?;
    row.optimizers.check(row.name, &spec.training)?;
    let (participation, rounds) = (spec.trained_share(), spec.rounds);
    (row.build)(&Setup {
        model: &spec.architecture(),
        training: &spec.training,
        hyper,
        participation,
        nodes: spec.nodes,
        rounds,
        seed: spec.seed,
        device,
    })
}

/// Checks that the algorithm takes the model: one of a single layer cannot be divided in two.
///
/// # Errors
/// Names the model, and what to choose instead.
pub fn check_model(spec: &FederationSpec) -> Result<(), LearnError> {
    if crate::model::halves(&spec.architecture(), crate::model::Cut::Head).is_ok() {
        return Ok(());
    }
    build(spec, &Device::flex()).map(drop)
}

/// What one batch did.
#[derive(Debug, Clone)]
pub struct Step {
    /// The loss that was minimised.
    pub loss: Loss,
    /// Samples routed to each expert; empty without experts.
    pub routed: Vec<u32>,
}

/// What the batches of a stretch of training are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// This pass of a local update.
    Pass(usize),
    /// This pass after the last round.
    FineTuning(usize),
}

/// A stretch of a node's samples, in parts of the whole: from `start / of` to before `end / of`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fraction {
    start: usize,
    end: usize,
    of: usize,
}

impl Fraction {
    /// All samples.
    pub const ALL: Self = Self::new(0, 1, 1);

    /// Takes the stretch from `start / of` to before `end / of`.
    pub const fn new(start: usize, end: usize, of: usize) -> Self {
        debug_assert!(
            start <= end && end <= of,
            "a stretch lies within the samples"
        );
        Self { start, end, of }
    }

    /// Returns which of so many samples it is.
    pub const fn of(self, samples: usize) -> Range<usize> {
        samples * self.start / self.of..samples * self.end / self.of
    }
}

/// Which of the node's training samples a stage goes over, and how many at a time.
///
/// The samples are divided once for all rounds, in an order of the node's own, so that stages with other fractions never
/// see each other's samples.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    /// Which samples, in the node's order.
    pub fraction: Fraction,
    /// Samples of a batch; the spec's if nothing else.
    pub batch_size: Option<usize>,
}

impl Selection {
    /// All samples, in the spec's batches.
    pub const ALL: Self = Self {
        fraction: Fraction::ALL,
        batch_size: None,
    };
}

/// What a model says about a batch.
#[derive(Debug)]
pub struct Output {
    /// `[batch, classes]`.
    pub logits: Tensor<2>,
    /// The chosen expert of each sample, if there are experts.
    pub chosen: Option<Vec<usize>>,
    /// How many experts there are.
    pub n_experts: usize,
}

/// One node's instance of an algorithm: its parts and what a batch does to them.
pub trait Algorithm: Send + Sync {
    /// Returns the parts of the model.
    fn parts(&self) -> &[Part];

    /// Returns the parts for changing them.
    fn parts_mut(&mut self) -> &mut [Part];

    /// Returns the parts that start as copies, each with what it copies.
    fn copies(&self) -> &'static [[usize; 2]] {
        &[]
    }

    /// Returns how often each pass of a local update goes over the samples; most algorithms have one pass.
    fn passes(&self, ctx: &RoundContext<'_>) -> Vec<u32> {
        vec![ctx.training.local_epochs]
    }

    /// Returns what the steps of a stage take instead of a batch's inputs: what parts that stay as they are throughout the
    /// stage make of them, `[batch, any]`, a row of each sample by itself. It is computed once per sample. `None`, as for
    /// most: the steps take the inputs.
    fn frozen(&self, _stage: Stage, _inputs: Tensor<2>) -> Option<Tensor<2>> {
        None
    }

    /// Trains on one batch of a stage.
    fn step(&mut self, stage: Stage, batch: Batch, ctx: &mut StepContext<'_>) -> Step;

    /// Returns how the steps of a stage are made; most algorithms leave that to the federation.
    fn step_rule(&self, _stage: Stage) -> StepRule {
        StepRule::Federation
    }

    /// Prepares a local update, before its first batch. Shared parts are what was adopted last, or the node's own from
    /// its last update if nothing was; private parts are as the node left them. Whatever else the algorithm keeps for
    /// this round, it derives from them here. If the update fails, all parts are put back to what they were before.
    fn begin_round(&mut self, _ctx: &RoundContext<'_>) {}

    /// Completes a local update, after its last batch and before anything of it is shared.
    fn end_round(&mut self, _ctx: &RoundContext<'_>) {}

    /// Returns which samples a stage goes over; most go over all.
    fn selection(&self, _stage: Stage) -> Selection {
        Selection::ALL
    }

    /// Tells whether experts that others were mixed into are tried on the node's validation samples before they are taken.
    fn tries_experts(&self) -> bool {
        false
    }

    /// Tells whether a stage trains nothing and only looks at the samples: those are then as they are, not augmented.
    fn looks_only(&self, _stage: Stage) -> bool {
        false
    }

    /// Returns how often each pass after the last round goes over the samples, for the node alone; most algorithms have no
    /// such pass.
    fn fine_tuning_passes(&self) -> Vec<u32> {
        Vec::new()
    }

    /// Prepares a pass after the last round, before its first batch. A node may be fine-tuned more than once, each time
    /// from the parts as they are.
    fn begin_fine_tuning(&mut self, _pass: usize, _ctx: &RoundContext<'_>) {}

    /// Judges experts of other nodes that were handed over as they are, and changes its parts accordingly; only where the
    /// exchange hands them over (matching `each`).
    fn judge(&mut self, _peers: &[Peer], _held_out: &HeldOut<'_>) {}

    /// Returns the extractor that all nodes share; `None` where nodes have no extractor in common.
    fn extractor(&self) -> Option<Extractor<'_>> {
        None
    }

    /// Returns what that extractor makes of a batch, `[batch, D]`, without training it.
    fn features(&self, inputs: Tensor<2>) -> Option<Tensor<2>> {
        Some(self.extractor()?.forward(inputs))
    }

    /// Returns the algorithm opened at its private module, for the stage after the last round (`pool`); `None` where
    /// nodes have no private module, or nothing else.
    fn modular(&self) -> Option<&dyn Modular> {
        None
    }

    /// Returns what the algorithm remembers besides its parts; most have nothing to remember.
    fn memory(&self) -> Option<Memory> {
        None
    }

    /// Remembers what a state says, or nothing, as at the beginning. `retired` are the arrays that an older version kept
    /// instead, of those that [`Self::retired`] names.
    ///
    /// # Errors
    /// Refuses a memory that it would not have written; nothing is changed then.
    fn recall(&mut self, _memory: Option<&Memory>, _retired: &ParamSet) -> Result<(), LearnError> {
        Ok(())
    }

    /// Returns the arrays that states of older versions have, and that are no parts any more.
    fn retired(&self) -> &'static [&'static str] {
        &[]
    }

    /// Called when parts were replaced from outside: adopted, restored or put back.
    fn on_parts_replaced(&mut self) {}

    /// Runs the model without training it.
    fn forward(&self, inputs: Tensor<2>) -> Output;

    /// Writes into a graph the logits that [`Self::forward`] computes; the numbers of texts are whole there.
    fn emit(&self, graph: &mut Graph, inputs: Value) -> Value;
}

/// Looks an algorithm up.
///
/// # Errors
/// Offers the nearest name.
pub fn find(name: &str) -> Result<&'static Row, ConfigError> {
    TABLE.iter().find(|row| row.name == name).ok_or_else(|| {
        let names: Vec<&str> = TABLE.iter().map(|row| row.name).collect();
        ConfigError(unknown_name("algorithm", name, &names))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_the_nearest_algorithm() {
        assert_eq!(
            find("fedmoeda").unwrap_err().0,
            "unknown algorithm `fedmoeda`: did you mean `fedmoe-da`?"
        );
    }
}
