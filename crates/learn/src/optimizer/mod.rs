//! Optimisers of the local update: how gradients move parameters. The training loop owns them; algorithms hand them
//! gradients.
//!
//! ```text
//! loss ─► gradients of all parts ─► clip_norm ─► one Optimizer per parameter ─► parameters
//!                                                    ▲
//!                       learning rate of the round ──┘  (`schedule`)
//! ```
//!
//! Each optimiser is one file and one arm of `Method::start`. An optimiser's memory (momentum, moments) begins anew in
//! every local update. The literature does the same for clients with momentum or Adam (Reddi et al., "Adaptive
//! Federated Optimization", ICLR 2021; Wang et al., "A Field Guide to Federated Optimization", 2021). The exchange has
//! since replaced the parameters, so a memory of their gradients points elsewhere. Besides, a node would have to save
//! and send it.
//!
//! Under a promise of privacy gradients come sample by sample. They are shortened and added up to a `Lot`, and one step is
//! made with its sum (`private`). `clip_norm` is the length of each then.

mod adam;
mod adamw;
mod momentum;
mod schedule;
mod sgd;

use std::sync::{Arc, Mutex};

use burn::tensor::Tensor;
use fednode_core::spec::{OptimizerKind, TrainingSpec};
use rand_chacha::ChaCha8Rng;

use crate::algorithm::{Gradients, Part};
use crate::private::{Draws, Lot};
use crate::weights::{self, DropoutDraws};

pub(crate) use schedule::factor;

/// How far a step goes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// The learning rate.
    pub learning: f64,
    /// What share of itself a parameter loses in a step, times the learning rate.
    pub weight_decay: f64,
}

/// An optimiser of one parameter, with what it remembers of the parameter's gradients.
pub trait Optimizer: std::fmt::Debug + Send + Sync {
    /// Makes one step.
    fn step(&mut self, values: Tensor<1>, gradient: Tensor<1>, rate: Rate) -> Tensor<1>;
}

/// Which optimiser, with its own settings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Method {
    /// Stochastic gradient descent.
    Sgd,
    /// The same with momentum.
    Momentum(f64),
    /// Adam; weight decay is part of the gradient.
    Adam,
    /// Adam; weight decay is apart from the gradient.
    AdamW,
}

impl Method {
    /// Returns the optimiser that a spec names.
    pub fn of(training: &TrainingSpec) -> Self {
        match training.optimizer {
            OptimizerKind::Sgd if training.momentum == 0.0 => Self::Sgd,
            OptimizerKind::Sgd => Self::Momentum(training.momentum),
            OptimizerKind::Adam => Self::Adam,
            OptimizerKind::Adamw => Self::AdamW,
        }
    }

    /// Starts the optimiser of one parameter, without a memory.
    fn start(self) -> Box<dyn Optimizer> {
        match self {
            Self::Sgd => Box::new(sgd::Sgd),
            Self::Momentum(momentum) => Box::new(momentum::Momentum::new(momentum)),
            Self::Adam => Box::new(adam::Adam::default()),
            Self::AdamW => Box::new(adamw::AdamW::default()),
        }
    }
}

/// How the steps of a stage are made.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum StepRule {
    /// As `training` says.
    Federation,
    /// The same at another learning rate, which follows the schedule, too.
    At(f64),
    /// By an optimiser that the algorithm's method prescribes, at a constant rate and without `clip_norm`.
    Prescribed(Method, Rate),
}

/// Makes the steps of a stretch of training.
#[derive(Debug)]
pub struct Stepper {
    federation: Method,
    training: Rate,
    clip_norm: f64,
    /// What the schedule makes of every learning rate in this round.
    factor: f64,
    rule: StepRule,
    /// The draws of dropout in the epoch that runs.
    dropout: Option<DropoutDraws>,
    /// What gradients are added up to under a promise of privacy; no step is made meanwhile.
    lot: Option<Lot>,
    /// Optimisers by part and parameter, once a parameter has had a gradient.
    optimizers: Vec<Vec<Option<Box<dyn Optimizer>>>>,
}

impl Stepper {
    /// Begins a stretch of training: nothing is remembered from before.
    pub fn new(training: &TrainingSpec, factor: f64) -> Self {
        Self {
            federation: Method::of(training),
            training: Rate {
                learning: training.learning_rate,
                weight_decay: training.weight_decay,
            },
            clip_norm: training.clip_norm,
            factor,
            rule: StepRule::Federation,
            dropout: None,
            lot: None,
            optimizers: Vec::new(),
        }
    }

    /// Begins a stage. What was remembered stays, unless one of the two stages has an optimiser of its own.
    pub(crate) fn begin_stage(&mut self, rule: StepRule) {
        let is_own = |rule: &StepRule| matches!(rule, StepRule::Prescribed(..));
        if is_own(&rule) || is_own(&self.rule) {
            self.optimizers.clear();
        }
        self.rule = rule;
    }

    /// Begins an epoch, with the draws of its dropout.
    pub(crate) fn begin_epoch(&mut self, draws: ChaCha8Rng) {
        self.dropout = Some(Arc::new(Mutex::new(draws)));
    }

    /// Returns the draws of dropout, for the weights of a step.
    pub(crate) fn dropout(&self) -> Option<DropoutDraws> {
        self.dropout.clone()
    }

    /// Adds up gradients from now on, until the lot is over.
    pub(crate) fn begin_lot(&mut self, lot: Lot) {
        self.lot = Some(lot);
    }

    /// Makes one step with the mean of a lot and its noise.
    pub(crate) fn end_lot(&mut self, parts: &mut [Part], draws: &Draws, (epoch, step): (u32, u32)) {
        if let Some(lot) = self.lot.take() {
            let gradients = lot.noised(parts, draws, epoch, step);
            let (method, rate, _) = self.ruled();
            self.move_by(parts, gradients, method, rate);
        }
    }

    /// Takes what a batch says: makes a step, or adds it to the lot. `recorded` says which parts are trained.
    pub(crate) fn take(&mut self, parts: &mut [Part], gradients: Gradients, recorded: &[bool]) {
        match &mut self.lot {
            Some(lot) => lot.add(parts, &gradients, recorded),
            None => self.step(parts, gradients),
        }
    }

    /// Makes one step in all parts; parameters without a gradient stay as they are, bit for bit.
    pub(crate) fn step(&mut self, parts: &mut [Part], mut gradients: Gradients) {
        let (method, rate, clip_norm) = self.ruled();
        if clip_norm > 0.0 {
            clip(&mut gradients, clip_norm);
        }
        self.move_by(parts, gradients, method, rate);
    }

    /// Returns how steps of the stage are made, and from which length on gradients are shortened.
    fn ruled(&self) -> (Method, Rate, f64) {
        match self.rule {
            StepRule::Federation => self.scheduled(self.training.learning),
            StepRule::At(learning) => self.scheduled(learning),
            StepRule::Prescribed(method, rate) => (method, rate, 0.0),
        }
    }

    fn move_by(&mut self, parts: &mut [Part], gradients: Gradients, method: Method, rate: Rate) {
        self.optimizers.resize_with(parts.len(), Vec::new);
        for ((part, gradients), optimizers) in
            parts.iter_mut().zip(gradients).zip(&mut self.optimizers)
        {
            optimizers.resize_with(gradients.len(), || None);
            let rate = Rate {
                weight_decay: rate.weight_decay + part.weight_decay,
                ..rate
            };
            for (at, (gradient, optimizer)) in gradients.into_iter().zip(optimizers).enumerate() {
                let Some(gradient) = gradient else { continue };
                let optimizer = optimizer.get_or_insert_with(|| method.start());
                part.weights
                    .change(at, |values| optimizer.step(values, gradient, rate));
            }
        }
    }

    /// Returns the federation's optimiser at a learning rate.
    fn scheduled(&self, learning: f64) -> (Method, Rate, f64) {
        let rate = Rate {
            learning: learning * self.factor,
            ..self.training
        };
        (self.federation, rate, self.clip_norm)
    }
}

/// Shortens gradients that are together longer than this, as PyTorch's `clip_grad_norm_`.
fn clip(gradients: &mut Gradients, longest: f64) {
    let square = |tensor: &Tensor<1>| {
        weights::values(tensor)
            .iter()
            .map(|value| f64::from(*value).powi(2))
            .sum::<f64>()
    };
    let length = gradients
        .iter()
        .flatten()
        .flatten()
        .map(square)
        .sum::<f64>()
        .sqrt();
    if length > longest {
        for gradient in gradients.iter_mut().flatten() {
            *gradient = gradient
                .take()
                .map(|gradient| gradient.mul_scalar(longest / length));
        }
    }
}

#[cfg(test)]
mod tests;
