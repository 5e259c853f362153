//! The stage after the last round: a mixture of everybody's private modules (PM-MoE, arXiv 2502.00354,
//! preset `fixed` unless the spec says otherwise).
//!
//! ```text
//! own module ─┐
//! foreign ────┴► admit ─► cache: inputs and outputs of every member ─► score, drop the worst ─► train the gate
//!                                                                                                  │
//!      serve the own module ◄── validation samples speak against it ◄── evaluate ◄─────────────────┘
//!      serve the mixture    ◄── they do not
//! ```
//!
//! Backbone and members are frozen and only read; all that is trained is the gate (`fine_tune`: the own module, before it
//! is published). Each file holds one idea: `assemble` the order of it all, `admit` who may take part, and `cache` the
//! constants. The file `gate` holds the network, `orthogonal` its start, `gating` its training, and `train` the epochs.
//! Fine-tuning is in `fine_tune`. The file `controls` holds what a study compares with, and `mixture` what is served
//! and saved. What is reported is [`fednode_core::PoolOutcome`].

mod admit;
mod assemble;
mod cache;
mod controls;
mod fine_tune;
mod gate;
mod gating;
mod mixture;
mod orthogonal;
mod settings;
mod train;

use burn::tensor::Device;
use fednode_core::spec::TrainingSpec;
use fednode_data::Split;

use crate::algorithm::{Algorithm, Modular, ModuleKind};
use crate::feature_cache::CacheBudget;
use crate::metric::Judge;

pub(crate) use assemble::assemble;
pub(crate) use fine_tune::fine_tune;
pub(crate) use gate::input as gate_input;
pub(crate) use mixture::{Mixture, PREFIX, Predictor, layout, own, parts, save};
pub use settings::{BiasStart, GateInput, GateSettings, ModuleScore, PoolSettings, Renormalize};
pub(crate) use train::Meter;

/// The node whose stage it is.
#[derive(Clone, Copy)]
pub(crate) struct Node<'a> {
    pub(crate) algorithm: &'a dyn Algorithm,
    pub(crate) modular: &'a dyn Modular,
    pub(crate) data: &'a Split,
    pub(crate) training: &'a TrainingSpec,
    pub(crate) classes: usize,
    pub(crate) device: &'a Device,
    /// The federation's seed and the node's.
    pub(crate) seeds: [u64; 2],
    pub(crate) budget: &'a CacheBudget,
    /// Judges by the measure that the spec names, if it names one; else accuracy decides.
    pub(crate) judge: Option<Judge>,
}

impl Node<'_> {
    /// Tells whether its module can be fine-tuned on cached inputs; an extractor's inputs are the samples themselves.
    pub(crate) fn is_tunable(&self) -> bool {
        self.modular.module().kind != ModuleKind::Extractor
    }
}
