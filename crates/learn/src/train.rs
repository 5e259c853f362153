//! The training loop: seeded shuffles, batches, progress, and a way out after every batch.
//!
//! It knows epochs and batches but no algorithm; what one batch does is [`Algorithm::step`]. The order of samples in an
//! epoch comes from a fresh stream per (seed, node, round, epoch), so an interrupted round repeats identically. Batches are
//! of nearly one size and nothing is dropped.

mod lots;

use std::borrow::Cow;

use burn::tensor::activation::log_softmax;
use burn::tensor::{Device, Tensor};
use fednode_core::Augmentation;
use fednode_core::work::{Progress, Watch};
use fednode_data::Samples;
use rand_chacha::ChaCha8Rng;

use crate::algorithm::{Algorithm, Fraction, Loss, RoundContext, Selection, Stage, StepContext};
use crate::augment::Augmenter;
use crate::batch;
use crate::error::LearnError;
use crate::explosion;
use crate::feature_cache::CacheBudget;
use crate::frozen::Source;
use crate::optimizer::Stepper;
use crate::private::Draws;
use crate::random::{self, Purpose};
use crate::resident::Resident;

/// A loss beyond this says that training has left all bounds: to be sure of a wrong answer costs 87 at most where
/// probabilities are 32-bit numbers.
const MOST_LOSS: f64 = 1e4;

/// What determines a local update besides parameters and data.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Schedule<'a> {
    pub(crate) ctx: RoundContext<'a>,
    pub(crate) epochs: Epochs,
    pub(crate) budget: &'a CacheBudget,
    /// The samples on the device, if they are there.
    pub(crate) resident: Option<&'a Resident>,
    /// Under a promise of privacy, the draws of the round.
    pub(crate) draws: Option<&'a Draws>,
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
    let ctx = &schedule.ctx;
    algorithm.begin_round(ctx);
    let passes = algorithm.passes(ctx);
    let stages: Vec<_> = passes
        .into_iter()
        .enumerate()
        .map(|(pass, epochs)| (Stage::Pass(pass), epochs))
        .collect();
    let stepper = Stepper::new(ctx.training, ctx.schedule_factor());
    let outcome = run(
        algorithm,
        &stages,
        samples,
        (schedule, stepper),
        device,
        watch,
    )?;
    algorithm.end_round(ctx);
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
    let passes = algorithm.fine_tuning_passes().into_iter().enumerate();
    let stages: Vec<_> = passes
        .map(|(pass, epochs)| (Stage::FineTuning(pass), epochs))
        .collect();
    // The schedule is that of the rounds, which are over.
    let stepper = Stepper::new(schedule.ctx.training, 1.0);
    run(
        algorithm,
        &stages,
        samples,
        (schedule, stepper),
        device,
        watch,
    )
}

fn run(
    algorithm: &mut dyn Algorithm,
    stages: &[(Stage, u32)],
    samples: &Samples,
    (schedule, mut stepper): (Schedule<'_>, Stepper),
    device: &Device,
    watch: &mut Watch<'_>,
) -> Result<Outcome, LearnError> {
    let ctx = &schedule.ctx;
    let epochs = stages.iter().map(|(_, epochs)| epochs).sum();
    let mut outcome = Outcome::default();
    let mut epoch = 0;
    for (stage, stage_epochs) in stages {
        let selection = algorithm.selection(*stage);
        let samples = &select(samples, &selection, schedule);
        if let Stage::FineTuning(pass) = stage {
            // What has nothing to learn from must not count as trained.
            if samples.is_empty() {
                epoch += stage_epochs;
                continue;
            }
            algorithm.begin_fine_tuning(*pass, ctx);
        }
        stepper.begin_stage(algorithm.step_rule(*stage));
        let batch_size = selection.batch_size.unwrap_or(ctx.training.batch_size);
        // Some of the samples are others than those that were uploaded.
        let resident = schedule
            .resident
            .filter(|_| matches!(samples, Cow::Borrowed(_)));
        let source = &mut Source::new(
            samples,
            ctx.class_counts.len(),
            device,
            schedule.budget,
            (*stage, *stage_epochs),
        )
        .resident(resident);
        for _ in 0..*stage_epochs {
            epoch += 1;
            if !schedule.epochs.contain(epoch) {
                continue;
            }
            let mut run = Epoch {
                algorithm,
                stepper: &mut stepper,
                source,
                ctx,
                stage: *stage,
                epoch,
                epochs,
                batch_size,
            };
            outcome.train_loss = match (schedule.draws, stage) {
                (Some(draws), Stage::Pass(_)) => run.run_lots(draws, &mut outcome, watch)?,
                _ => run.run(&mut outcome, watch)?,
            };
        }
    }
    Ok(outcome)
}

/// Returns some of a node's samples; which those are is the same in every round.
fn select<'a>(
    samples: &'a Samples,
    selection: &Selection,
    schedule: Schedule<'_>,
) -> Cow<'a, Samples> {
    if selection.fraction == Fraction::ALL {
        return Cow::Borrowed(samples);
    }
    let count = samples.len() as u32;
    let mut stream = random::stream(
        Purpose::Division,
        [schedule.ctx.seed, schedule.ctx.node_seed, 0],
    );
    let order = random::permutation(&mut stream, count);
    Cow::Owned(samples.subset(&order[selection.fraction.of(samples.len())]))
}

/// The losses of an epoch. Those that a GPU holds are read many at once: to read one, the host waits for the device.
#[derive(Debug, Default)]
struct Losses {
    /// With how many samples each is the mean of.
    unread: Vec<(Loss, usize)>,
    n_read: u32,
    /// The sum over all samples whose loss was read.
    total: f64,
    /// The last one that was read.
    last: Option<f64>,
}

impl Losses {
    /// How many a GPU holds at most: a second's steps, so that a number that is none does not stay unseen for long.
    const AT_ONCE: usize = 256;

    fn add(&mut self, loss: Loss, n_samples: usize) {
        self.unread.push((loss, n_samples));
    }

    /// Tells whether it is time to read: numbers that are here wait for nothing.
    fn are_due(&self) -> bool {
        let is_known = matches!(self.unread.last(), Some((Loss::Known(_), _)));
        is_known || self.unread.len() == Self::AT_ONCE
    }

    /// Reads them. Returns the first batch, counting from 1, whose loss has left all bounds, and that loss.
    fn read(&mut self) -> Option<(u32, f64)> {
        let (losses, counts): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.unread).into_iter().unzip();
        for (loss, n_samples) in Loss::values(&losses).into_iter().zip(counts) {
            self.n_read += 1;
            if !loss.is_finite() || loss > MOST_LOSS {
                return Some((self.n_read, loss));
            }
            self.total += loss * n_samples as f64;
            self.last = Some(loss);
        }
        None
    }
}

/// One pass over the samples.
struct Epoch<'a, 'b> {
    algorithm: &'a mut dyn Algorithm,
    stepper: &'a mut Stepper,
    source: &'a mut Source<'b>,
    ctx: &'a RoundContext<'a>,
    stage: Stage,
    epoch: u32,
    epochs: u32,
    batch_size: usize,
}

impl Epoch<'_, '_> {
    /// Returns the mean loss over the samples.
    fn run(&mut self, outcome: &mut Outcome, watch: &mut Watch<'_>) -> Result<f64, LearnError> {
        let order = self.order();
        let streams = [
            [Purpose::Augmentation, Purpose::FinishingAugmentation],
            [Purpose::Dropout, Purpose::FineTuningDropout],
        ];
        self.begin(&order, streams.map(|purposes| self.stream(purposes)));
        let batches = order.len().div_ceil(self.batch_size) as u32;
        let mut losses = Losses::default();
        for (batch, positions) in (1..).zip(batch::divide(&order, self.batch_size)) {
            let samples = self.source.batch(self.algorithm, positions);
            let step_ctx = &mut StepContext::new(self.ctx, self.stepper);
            let step = self.algorithm.step(self.stage, samples, step_ctx);
            losses.add(step.loss, positions.len());
            if losses.are_due() || batch == batches {
                self.check(losses.read())?;
            }
            outcome.steps += 1;
            outcome.count(&step.routed);
            let progress = Progress {
                epoch: self.epoch,
                epochs: self.epochs,
                batch,
                batches,
                loss: losses.last,
            };
            if watch(progress).is_break() {
                return Err(LearnError::Abandoned);
            }
        }
        Ok(losses.total / order.len().max(1) as f64)
    }

    /// Begins to go over the samples in this order, with streams for augmentation and for dropout.
    fn begin(&mut self, order: &[u32], [augmentation, dropout]: [ChaCha8Rng; 2]) {
        self.stepper.begin_epoch(dropout);
        let looks_only = self.algorithm.looks_only(self.stage);
        let kind = if looks_only {
            Augmentation::None
        } else {
            self.ctx.training.augmentation
        };
        self.source
            .begin_epoch(order, Augmenter::new(kind, augmentation));
    }

    /// Refuses a batch whose loss has left all bounds.
    fn check(&self, bad: Option<(u32, f64)>) -> Result<(), LearnError> {
        let Some((batch, loss)) = bad else {
            return Ok(());
        };
        Err(LearnError::Diverged {
            round: self.ctx.round,
            epoch: self.epoch,
            batch,
            loss,
            advice: explosion::lower_the_step(self.ctx.training),
        })
    }

    /// Returns the order of the samples.
    fn order(&self) -> Vec<u32> {
        let mut stream = self.stream([Purpose::Order, Purpose::FinishingOrder]);
        random::permutation(&mut stream, self.source.len() as u32)
    }

    /// Returns this epoch's stream of the first purpose in a local update, of the second after the last round.
    fn stream(&self, [update, finishing]: [Purpose; 2]) -> ChaCha8Rng {
        let RoundContext {
            seed,
            node_seed,
            round,
            ..
        } = *self.ctx;
        let purpose = match self.stage {
            Stage::Pass(_) => update,
            Stage::FineTuning(_) => finishing,
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

/// Returns how far a model's outputs are off, as a mean over the samples: the cross-entropy of logits against one-hot targets.
/// Of a single output it is half the square of its distance from the number.
pub(crate) fn misfit(outputs: Tensor<2>, targets: Tensor<2>) -> Tensor<1> {
    let [n_samples, n_outputs] = outputs.dims();
    if n_outputs > 1 {
        return cross_entropy(outputs, targets);
    }
    let distances = outputs - targets;
    (distances.clone() * distances)
        .sum()
        .mul_scalar(0.5 / n_samples as f64)
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

    use fednode_core::Round;
    use fednode_core::spec::TrainingSpec;
    use fednode_data::Pixels;

    use super::*;

    #[test]
    fn fractions_divide_the_samples_once_for_all() {
        let names: Arc<[String]> = (0..50).map(|class| class.to_string()).collect();
        let samples = Samples::new(
            [1, 1, 1],
            Pixels::Floats(vec![0.0; 50]),
            (0..50).collect(),
            names,
        )
        .unwrap();
        let labels = |fraction, round| {
            let selection = Selection {
                fraction,
                ..Selection::ALL
            };
            let ctx = RoundContext {
                round: Round(round),
                rounds: 9,
                training: &TrainingSpec::default(),
                class_counts: &[1; 50],
                seed: 1,
                node_seed: 2,
            };
            let schedule = Schedule {
                ctx,
                epochs: Epochs::All,
                budget: &CacheBudget::default(),
                resident: None,
                draws: None,
            };
            select(&samples, &selection, schedule).labels.clone()
        };
        let quarter = Fraction::new(0, 1, 4);
        let (gate, personal) = (labels(quarter, 1), labels(Fraction::new(1, 4, 4), 1));
        assert_eq!(
            (gate.len(), personal.len()),
            (12, 38),
            "the first quarter, rounded down, and the rest"
        );
        assert_eq!(gate, labels(quarter, 7), "in every round the same");
        let mut all = [gate, personal].concat();
        assert_ne!(all, samples.labels);
        all.sort_unstable();
        assert_eq!(all, samples.labels, "every sample once");
        assert_eq!(labels(Fraction::ALL, 1), samples.labels);
    }
}
