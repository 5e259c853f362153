//! Epochs over cached samples: what training a gate and fine-tuning a module have in common.
//!
//! Orders are seeded per stage and epoch. With somebody to judge, the epoch with the lowest validation loss is the
//! result, else the last one. Training that diverges ends there; what was best until then still counts.

use std::ops::ControlFlow;

use burn::tensor::Tensor;

use crate::algorithm::differentiate;
use crate::batch;
use crate::error::LearnError;
use crate::model;
use crate::random::{self, Purpose};
use fednode_core::work::{Progress, Watch};

use crate::weights::{self, Weights};

/// Counts the epochs of a stage, for whoever watches.
pub(crate) struct Meter<'a, 'w> {
    pub(crate) watch: &'a mut Watch<'w>,
    pub(crate) epoch: u32,
    pub(crate) epochs: u32,
}

/// What is trained; the streams of two stages never share numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Gate = 0,
    FineTuning = 1,
}

/// How it is trained.
pub(super) struct Plan {
    pub(super) stage: Stage,
    pub(super) seeds: [u64; 2],
    pub(super) samples: usize,
    pub(super) epochs: u32,
    pub(super) batch_size: usize,
    /// Whether samples that do not fill a batch are left out, unless no batch would be left.
    pub(super) drops_last: bool,
}

impl Plan {
    /// Divides an epoch's samples into batches.
    fn batches<'a>(&self, order: &'a [u32]) -> Vec<&'a [u32]> {
        if self.drops_last && order.len() >= self.batch_size {
            order.chunks_exact(self.batch_size).collect()
        } else {
            batch::divide(order, self.batch_size).collect()
        }
    }
}

/// Returns the validation loss of weights.
pub(super) type Judge<'a, W> = &'a dyn Fn(&W) -> Result<f64, LearnError>;

/// The result of training.
#[derive(Debug, Clone)]
pub(super) struct Best<W> {
    pub(super) weights: W,
    /// Counting from 1.
    pub(super) epoch: u32,
    /// Validation loss; nothing if nobody judged.
    pub(super) loss: Option<f64>,
}

/// Trains; returns the best epoch, if any came to its end, and the steps of gradient descent.
///
/// `step` trains on the samples at some positions and returns their loss.
///
/// # Errors
/// Fails when the watcher breaks off, and with what `step` and `judge` fail with.
pub(super) fn run<W: Clone>(
    plan: &Plan,
    mut weights: W,
    mut step: impl FnMut(&mut W, &[u32]) -> Result<f64, LearnError>,
    judge: Option<Judge<'_, W>>,
    meter: &mut Meter<'_, '_>,
) -> Result<(Option<Best<W>>, u32), LearnError> {
    let mut best: Option<Best<W>> = None;
    let mut steps = 0;
    for epoch in 1..=plan.epochs {
        meter.epoch += 1;
        let index = (plan.stage as u64) << 32 | u64::from(epoch);
        let mut rng = random::stream(Purpose::PoolOrder, [plan.seeds[0], plan.seeds[1], index]);
        let order = random::permutation(&mut rng, plan.samples as u32);
        let divided = plan.batches(&order);
        let batches = divided.len() as u32;
        for (batch, positions) in (1..).zip(divided) {
            let loss = step(&mut weights, positions)?;
            steps += 1;
            let progress = Progress {
                epoch: meter.epoch,
                epochs: meter.epochs,
                batch,
                batches,
                loss: Some(loss),
            };
            if (meter.watch)(progress) == ControlFlow::Break(()) {
                return Err(LearnError::Abandoned);
            }
            if !loss.is_finite() {
                // Those of the last epoch are no result if nobody judges.
                return Ok((best.filter(|_| judge.is_some()), steps));
            }
        }
        let loss = judge.map(|judge| judge(&weights)).transpose()?;
        let is_better = match (loss, best.as_ref().and_then(|best| best.loss)) {
            (Some(loss), Some(least)) => loss < least,
            (Some(loss), None) => loss.is_finite(),
            (None, _) => true,
        };
        if is_better {
            best = Some(Best {
                weights: weights.clone(),
                epoch,
                loss,
            });
        }
    }
    Ok((best, steps))
}

/// Makes one step of gradient descent in recorded weights; returns the loss.
pub(super) fn sgd_step(
    weights: &mut [Weights],
    tape: Vec<Weights>,
    loss: Tensor<1>,
    learning_rate: f64,
) -> f64 {
    let found = differentiate(tape, loss);
    for (weights, statistics) in weights.iter_mut().zip(found.statistics) {
        for (at, statistic) in statistics {
            weights.change(at, |_| statistic);
        }
    }
    for (weights, gradients) in weights.iter_mut().zip(found.gradients) {
        for (at, gradient) in gradients.into_iter().enumerate() {
            let Some(gradient) = gradient else { continue };
            weights.change(at, |values| {
                model::sgd_step(values, gradient, learning_rate)
            });
        }
    }
    found.loss.value()
}

/// Returns the sum of the cross-entropies of logits `[batch, classes]`, in double precision.
pub(super) fn log_loss(logits: &Tensor<2>, labels: &[usize]) -> f64 {
    let classes = logits.dims()[1];
    let of = |(row, label): (&[f32], &usize)| {
        let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = row
            .iter()
            .map(|logit| f64::from(logit - largest).exp())
            .sum();
        sum.ln() - f64::from(row[*label] - largest)
    };
    weights::values(logits)
        .chunks_exact(classes)
        .zip(labels)
        .map(of)
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incomplete_batch_is_dropped_if_another_remains() {
        let sizes = |samples: u32, drops_last| {
            let order: Vec<u32> = (0..samples).collect();
            let (stage, seeds) = (Stage::Gate, [0, 0]);
            let plan = Plan {
                stage,
                seeds,
                samples: order.len(),
                epochs: 1,
                batch_size: 10,
                drops_last,
            };
            plan.batches(&order)
                .into_iter()
                .map(<[u32]>::len)
                .collect::<Vec<_>>()
        };
        assert_eq!(sizes(27, true), [10, 10]);
        assert_eq!(sizes(27, false), [9, 9, 9]);
        assert_eq!(sizes(7, true), [7]);
    }
}
