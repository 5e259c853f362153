//! The training loop: seeded shuffles, batches, progress, and a way out after every batch.
//!
//! It knows epochs and batches but no algorithm; what one batch does is [`Algorithm::step`]. The order of samples in an
//! epoch comes from a fresh stream per (seed, node, round, epoch), so an interrupted round repeats identically. Batches are
//! of nearly one size and nothing is dropped.

use std::borrow::Cow;

use burn::tensor::activation::log_softmax;
use burn::tensor::{Device, Tensor};
use fednode_core::spec::TrainingSpec;
use fednode_core::work::{Progress, Watch};
use fednode_core::{Augmentation, Round};
use fednode_data::Samples;
use rand_chacha::ChaCha8Rng;

use crate::algorithm::{Algorithm, Selection, Stage, descent};
use crate::augment::Augmenter;
use crate::batch;
use crate::error::LearnError;
use crate::frozen::Source;
use crate::random::{self, Draws, Purpose};
use crate::room::Room;

/// What determines a local update besides parameters and data.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Schedule<'a> {
    pub(crate) training: &'a TrainingSpec,
    pub(crate) classes: usize,
    pub(crate) seed: u64,
    pub(crate) node_seed: u64,
    pub(crate) round: Round,
    pub(crate) epochs: Epochs,
    pub(crate) room: &'a Room,
}

/// Which epochs of a local update are run, counting from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Epochs {
    All,
    /// So many, in advance of the rest.
    First(u32),
    /// The rest.
    After(u32),
}

impl Epochs {
    fn contain(self, epoch: u32) -> bool {
        match self {
            Self::All => true,
            Self::First(n) => epoch <= n,
            Self::After(n) => epoch > n,
        }
    }
}

/// What a local update reports, besides the changed parameters.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Outcome {
    /// Mean loss of the last epoch.
    pub(crate) train_loss: f64,
    /// Samples routed to each expert, over all epochs.
    pub(crate) routed: Vec<u32>,
    pub(crate) steps: u32,
    /// Multiply-adds of all layers.
    pub(crate) multiply_adds: u64,
}

impl Outcome {
    /// Adds what the epochs after these did.
    pub(crate) fn and_then(mut self, later: Self) -> Self {
        if later.steps == 0 {
            return self;
        }
        self.count(&later.routed);
        Self {
            train_loss: later.train_loss,
            routed: self.routed,
            steps: self.steps + later.steps,
            multiply_adds: self.multiply_adds + later.multiply_adds,
        }
    }
}

/// Runs all epochs of a local update.
pub(crate) fn train(
    algorithm: &mut dyn Algorithm,
    samples: &Samples,
    schedule: Schedule<'_>,
    device: &Device,
    watch: &mut Watch<'_>,
) -> Result<Outcome, LearnError> {
    let Schedule {
        seed,
        node_seed,
        round,
        ..
    } = schedule;
    algorithm.begin_round(Draws::new(seed, node_seed, u64::from(round.0)));
    let passes = algorithm.passes(schedule.training);
    let stages: Vec<_> = passes
        .into_iter()
        .enumerate()
        .map(|(pass, epochs)| (Stage::Pass(pass), epochs))
        .collect();
    let outcome = run(algorithm, &stages, samples, schedule, device, watch)?;
    algorithm.end_round();
    Ok(outcome)
}

/// Runs all epochs that a node trains for itself after the last round.
pub(crate) fn finish(
    algorithm: &mut dyn Algorithm,
    samples: &Samples,
    schedule: Schedule<'_>,
    device: &Device,
    watch: &mut Watch<'_>,
) -> Result<Outcome, LearnError> {
    let passes = algorithm.finishing_passes().into_iter().enumerate();
    let stages: Vec<_> = passes
        .map(|(pass, epochs)| (Stage::Finishing(pass), epochs))
        .collect();
    run(algorithm, &stages, samples, schedule, device, watch)
}

fn run(
    algorithm: &mut dyn Algorithm,
    stages: &[(Stage, u32)],
    samples: &Samples,
    schedule: Schedule<'_>,
    device: &Device,
    watch: &mut Watch<'_>,
) -> Result<Outcome, LearnError> {
    descent::begin(algorithm.parts_mut(), schedule.training);
    let epochs = stages.iter().map(|(_, epochs)| epochs).sum();
    let mut outcome = Outcome::default();
    let mut epoch = 0;
    for (stage, stage_epochs) in stages {
        let selection = algorithm.selection(*stage);
        let samples = &select(samples, &selection, schedule);
        if let Stage::Finishing(pass) = stage {
            // What has nothing to learn from must not count as trained.
            if samples.is_empty() {
                epoch += stage_epochs;
                continue;
            }
            algorithm.begin_finishing(*pass);
        }
        let batch_size = selection.batch_size.unwrap_or(schedule.training.batch_size);
        let source = &mut Source::new(
            samples,
            schedule.classes,
            device,
            schedule.room,
            (*stage, *stage_epochs),
        );
        for _ in 0..*stage_epochs {
            epoch += 1;
            if !schedule.epochs.contain(epoch) {
                continue;
            }
            let mut run = Epoch {
                algorithm,
                source,
                schedule,
                stage: *stage,
                epoch,
                epochs,
                batch_size,
            };
            outcome.train_loss = run.run(&mut outcome, watch)?;
        }
    }
    descent::end(algorithm.parts_mut());
    Ok(outcome)
}

/// Returns some of a node's samples; which those are is the same in every round.
fn select<'a>(
    samples: &'a Samples,
    selection: &Selection,
    schedule: Schedule<'_>,
) -> Cow<'a, Samples> {
    if selection.twentieths == Selection::ALL.twentieths {
        return Cow::Borrowed(samples);
    }
    let count = samples.len() as u32;
    let mut stream = random::stream(Purpose::Division, [schedule.seed, schedule.node_seed, 0]);
    let order = random::permutation(&mut stream, count);
    Cow::Owned(samples.subset(&order[selection.of(samples.len())]))
}

/// One pass over the samples.
struct Epoch<'a, 'b> {
    algorithm: &'a mut dyn Algorithm,
    source: &'a mut Source<'b>,
    schedule: Schedule<'a>,
    stage: Stage,
    epoch: u32,
    epochs: u32,
    batch_size: usize,
}

impl Epoch<'_, '_> {
    /// Returns the mean loss over the samples.
    fn run(&mut self, outcome: &mut Outcome, watch: &mut Watch<'_>) -> Result<f64, LearnError> {
        let Schedule {
            training, round, ..
        } = self.schedule;
        let order = self.order();
        let stream = self.stream([Purpose::Augmentation, Purpose::FinishingAugmentation]);
        let looks_only = self.algorithm.looks_only(self.stage);
        let augmentation = if looks_only {
            Augmentation::None
        } else {
            training.augmentation
        };
        self.source
            .begin_epoch(Augmenter::new(augmentation, stream));
        let batches = order.len().div_ceil(self.batch_size) as u32;
        let mut total_loss = 0.0;
        for (batch, positions) in (1..).zip(batch::divide(&order, self.batch_size)) {
            let samples = self.source.batch(self.algorithm, positions);
            let step = match self.stage {
                Stage::Pass(pass) => self.algorithm.step(pass, samples),
                Stage::Finishing(pass) => self.algorithm.finishing_step(pass, samples),
            };
            let (loss, learning_rate) = (step.loss, training.learning_rate);
            if !loss.is_finite() {
                return Err(LearnError::Diverged {
                    round,
                    epoch: self.epoch,
                    batch,
                    loss,
                    learning_rate,
                });
            }
            total_loss += loss * positions.len() as f64;
            outcome.steps += 1;
            outcome.count(&step.routed);
            let progress = Progress {
                epoch: self.epoch,
                epochs: self.epochs,
                batch,
                batches,
                loss,
            };
            if watch(progress).is_break() {
                return Err(LearnError::Abandoned);
            }
        }
        Ok(total_loss / order.len().max(1) as f64)
    }

    /// Returns the order of the samples.
    fn order(&self) -> Vec<u32> {
        let mut stream = self.stream([Purpose::Order, Purpose::FinishingOrder]);
        random::permutation(&mut stream, self.source.len() as u32)
    }

    /// Returns this epoch's stream of the first purpose in a local update, of the second after the last round.
    fn stream(&self, [update, finishing]: [Purpose; 2]) -> ChaCha8Rng {
        let Schedule {
            seed,
            node_seed,
            round,
            ..
        } = self.schedule;
        let purpose = match self.stage {
            Stage::Pass(_) => update,
            Stage::Finishing(_) => finishing,
        };
        random::stream(
            purpose,
            [
                seed,
                node_seed,
                u64::from(round.0) << 32 | u64::from(self.epoch),
            ],
        )
    }
}

impl Outcome {
    fn count(&mut self, routed: &[u32]) {
        self.routed.resize(routed.len(), 0);
        for (total, more) in self.routed.iter_mut().zip(routed) {
            *total += more;
        }
    }
}

/// Returns the mean cross-entropy of logits against one-hot targets.
pub fn cross_entropy(logits: Tensor<2>, targets: Tensor<2>) -> Tensor<1> {
    let n_samples = logits.dims()[0];
    (log_softmax(logits, 1) * targets)
        .sum()
        .mul_scalar(-1.0 / n_samples as f64)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fednode_data::Pixels;

    use super::*;

    #[test]
    fn twentieths_divide_the_samples_once_for_all() {
        let names: Arc<[String]> = (0..50).map(|class| class.to_string()).collect();
        let samples = Samples::new(
            [1, 1, 1],
            Pixels::Floats(vec![0.0; 50]),
            (0..50).collect(),
            names,
        )
        .unwrap();
        let labels = |twentieths, round| {
            let selection = Selection {
                twentieths,
                ..Selection::ALL
            };
            let training = &TrainingSpec::default();
            let (round, room) = (Round(round), &Room::default());
            let schedule = Schedule {
                training,
                classes: 50,
                seed: 1,
                node_seed: 2,
                round,
                epochs: Epochs::All,
                room,
            };
            select(&samples, &selection, schedule).labels.clone()
        };
        let (gate, personal) = (labels(0..5, 1), labels(5..20, 1));
        assert_eq!(
            (gate.len(), personal.len()),
            (12, 38),
            "the first quarter, rounded down, and the rest"
        );
        assert_eq!(gate, labels(0..5, 7), "in every round the same");
        let mut all = [gate, personal].concat();
        assert_ne!(all, samples.labels);
        all.sort_unstable();
        assert_eq!(all, samples.labels, "every sample once");
        assert_eq!(labels(0..20, 1), samples.labels);
    }
}
