//! A module that is trained on, before it is published or to compare with (preset `best`, `pool.controls`).
//!
//! The rest of the model is frozen, so the module's inputs are computed once. Learning rate and batch size are the
//! federation's. With the guard the epoch of the lowest validation loss is taken, the module as it was among them;
//! without it the last epoch. A node with the guard and without validation samples keeps its module as it was.

use burn::tensor::Tensor;

use super::Node;
use super::cache::{Cache, Keeps, Source};
use super::mixture::{self, Member};
use super::settings::PoolSettings;
use super::train::{self, Judge, Meter, Plan, Stage};
use crate::error::LearnError;
use crate::train::cross_entropy;
use crate::weights::Weights;

/// The samples that a module is trained and judged on.
struct Tuning<'a> {
    node: &'a Node<'a>,
    training: Cache,
    validation: Cache,
}

/// Fine-tunes a copy of the own module; returns it with the steps of gradient descent. Not for extractors.
///
/// # Errors
/// Fails when the watcher breaks off.
pub(crate) fn fine_tune(
    node: &Node<'_>,
    spec: &PoolSettings,
    meter: &mut Meter<'_, '_>,
) -> Result<(Member, u32), LearnError> {
    debug_assert!(node.is_tunable(), "an extractor's inputs are not cached");
    let start = mixture::own(node.algorithm, node.modular);
    if spec.guard && node.data.validation.is_empty() {
        return Ok((start, 0));
    }
    let tuning = Tuning::prepare(node, meter)?;
    let plan = Plan {
        stage: Stage::FineTuning,
        seeds: node.seeds,
        samples: tuning.training.len(),
        epochs: spec.epochs,
        batch_size: node.training.batch_size,
        drops_last: false,
    };
    let step = |member: &mut Member, positions: &[u32]| tuning.step(member, positions);
    let judge = |member: &Member| tuning.loss(member);
    let before = spec.guard.then(|| judge(&start)).transpose()?;
    let judge: Option<Judge<'_, Member>> = if spec.guard { Some(&judge) } else { None };
    let (best, steps) = train::run(&plan, start.clone(), step, judge, meter)?;
    let is_better = |loss: Option<f64>| match (loss, before) {
        (Some(after), Some(before)) => after < before,
        _ => true,
    };
    let best = best.filter(|best| is_better(best.loss));
    Ok((best.map_or(start, |best| best.weights), steps))
}

impl<'a> Tuning<'a> {
    /// Computes the module's inputs.
    fn prepare(node: &'a Node<'a>, meter: &mut Meter<'_, '_>) -> Result<Self, LearnError> {
        let source = Source {
            node: *node,
            keeps: Keeps::ModuleInput,
            epochs: meter.epochs,
        };
        Ok(Self {
            node,
            training: Cache::fill(&source, &[], &node.data.train, meter.watch)?,
            validation: Cache::fill(&source, &[], &node.data.validation, meter.watch)?,
        })
    }

    /// Trains a module on the samples at some positions; returns their loss.
    fn step(&self, member: &mut Member, positions: &[u32]) -> Result<f64, LearnError> {
        let tape: Vec<Weights> = member.iter().map(Weights::recorded).collect();
        let batch = self.training.batch(positions, self.node.device)?;
        let logits = self.logits(&tape, batch.side, batch.input);
        let loss = cross_entropy(logits, batch.targets);
        let learning_rate = self.node.training.learning_rate;
        Ok(train::sgd_step(member, tape, loss, learning_rate))
    }

    /// Returns the mean loss of a module on the validation samples.
    fn loss(&self, member: &Member) -> Result<f64, LearnError> {
        self.validation.mean_loss(self.node.device, |_, batch| {
            Ok(self.logits(member, batch.side, batch.input))
        })
    }

    fn logits(&self, member: &Member, side: Option<Tensor<2>>, input: Tensor<2>) -> Tensor<2> {
        let modular = self.node.modular;
        modular.close(side, modular.run_module(member, input))
    }
}
