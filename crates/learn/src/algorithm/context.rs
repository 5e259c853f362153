//! What an algorithm is told of the round that runs, and what a step may use.
//!
//! A [`RoundContext`] goes to every hook of a round; nothing of it outlives the round in an algorithm. A [`StepContext`]
//! goes to every step besides: it records weights on a tape, and makes steps with the optimiser of the training loop.

use fednode_core::Round;
use fednode_core::spec::TrainingSpec;

use burn::tensor::{Gradients as Tape, Tensor};

use super::Loss;
use super::part::{Gradients, Part};
use crate::optimizer::{self, Stepper};
use crate::random::Draws;
use crate::weights::{Mode, Weights};

/// The round that runs.
#[derive(Debug, Clone, Copy)]
pub struct RoundContext<'a> {
    /// Its number, counting from 1.
    pub round: Round,
    /// How many rounds the schedule of learning rates takes. After them it begins anew.
    pub rounds: u32,
    /// The local update.
    pub training: &'a TrainingSpec,
    /// How many training samples of each class of the model the node has.
    pub class_counts: &'a [u32],
    /// The federation's seed.
    pub seed: u64,
    /// The node's seed.
    pub node_seed: u64,
}

impl RoundContext<'_> {
    /// Starts the draws of this node in this round; the same again if the round is repeated.
    pub fn draws(&self) -> Draws {
        Draws::new(self.seed, self.node_seed, u64::from(self.round.0))
    }

    /// Returns what the schedule makes of every learning rate in this round.
    pub fn schedule_factor(&self) -> f64 {
        let place = self.round.0.saturating_sub(1) % self.rounds.max(1) + 1;
        optimizer::factor(self.training, place, self.rounds)
    }

    /// Returns the learning rate of this round.
    pub fn learning_rate(&self) -> f64 {
        self.training.learning_rate * self.schedule_factor()
    }
}

/// A step of a local update, or of what follows the last round.
#[derive(Debug)]
pub struct StepContext<'a> {
    /// The round that runs.
    pub round: &'a RoundContext<'a>,
    stepper: &'a mut Stepper,
}

impl<'a> StepContext<'a> {
    /// Joins a round and what makes its steps.
    pub const fn new(round: &'a RoundContext<'a>, stepper: &'a mut Stepper) -> Self {
        Self { round, stepper }
    }

    /// Records the weights of all parts on a new tape.
    pub fn record(&self, parts: &[Part]) -> Vec<Weights> {
        let one = |part: &Part| self.record_weights(&part.weights);
        parts.iter().map(one).collect()
    }

    /// Records the weights of some parts on a new tape; those of the others are plain, so that no step changes them.
    pub fn record_only(&self, parts: &[Part], trained: &[usize]) -> Vec<Weights> {
        let one = |(at, part): (usize, &Part)| {
            if trained.contains(&at) {
                self.record_weights(&part.weights)
            } else {
                part.weights.clone()
            }
        };
        parts.iter().enumerate().map(one).collect()
    }

    /// Records weights on a new tape.
    pub fn record_weights(&self, weights: &Weights) -> Weights {
        weights.recorded_with(self.stepper.dropout())
    }

    /// Makes one step in all recorded parts that the loss depends on; returns the loss.
    pub fn step(&mut self, parts: &mut [Part], tape: Vec<Weights>, loss: Tensor<1>) -> Loss {
        let found = self.differentiate(tape, loss);
        self.apply(parts, found)
    }

    /// Differentiates a loss. The tape is gone then.
    pub fn differentiate(&self, tape: Vec<Weights>, loss: Tensor<1>) -> Differentiated {
        differentiate(tape, loss)
    }

    /// Makes one step with what a loss says; returns the loss.
    pub fn apply(&mut self, parts: &mut [Part], found: Differentiated) -> Loss {
        for (part, statistics) in parts.iter_mut().zip(found.statistics) {
            for (at, statistic) in statistics {
                part.weights.change(at, |_| statistic);
            }
        }
        self.stepper.take(parts, found.gradients, &found.recorded);
        found.loss
    }
}

/// What a batch says about the parts of a model.
#[derive(Debug)]
pub struct Differentiated {
    /// The loss.
    pub loss: Loss,
    /// The gradients of all recorded parts.
    pub gradients: Gradients,
    /// Which parts are recorded.
    pub recorded: Vec<bool>,
    /// The running statistics after the batch, by part, each with its place.
    pub statistics: Vec<Vec<(usize, Tensor<1>)>>,
}

/// Differentiates a loss. The tape is gone then.
pub(crate) fn differentiate(tape: Vec<Weights>, loss: Tensor<1>) -> Differentiated {
    let kept = Loss::of(&loss);
    let statistics = tape.iter().map(Weights::take_statistics).collect();
    let is_recorded = |weights: &Weights| weights.mode() == Mode::Training;
    let recorded = tape.iter().map(is_recorded).collect();
    let mut gradients: Tape = loss.backward();
    // All gradients are taken before the first parameter changes: with the tape gone, the step happens in place.
    let taken = tape
        .into_iter()
        .map(|weights| weights.take_gradients(&mut gradients))
        .collect();
    Differentiated {
        loss: kept,
        gradients: taken,
        recorded,
        statistics,
    }
}
