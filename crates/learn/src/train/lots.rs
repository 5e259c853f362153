//! One pass over the samples under a promise of privacy: lots of samples that are drawn, instead of batches.
//!
//! Each sample goes through the algorithm's step by itself, so that its gradient can be shortened by itself. That works with
//! every layer, and costs the time of batches of one.

use std::slice;

use fednode_core::work::{Progress, Watch};

use super::{Epoch, MOST_LOSS, Outcome};
use crate::algorithm::{Loss, StepContext};
use crate::error::LearnError;
use crate::private::{Draws, Lot};

impl Epoch<'_, '_> {
    /// Returns the mean loss over the samples that were drawn.
    pub(super) fn run_lots(
        &mut self,
        draws: &Draws,
        outcome: &mut Outcome,
        watch: &mut Watch<'_>,
    ) -> Result<f64, LearnError> {
        let mut lots = draws.lots(self.epoch, self.source.len());
        let sizes: Vec<usize> = lots.iter().map(Vec::len).collect();
        // A lot without samples shows its step one that does not count: no step is left out.
        let empty = lots.iter_mut().filter(|lot| lot.is_empty());
        empty.for_each(|lot| lot.push(0));
        self.begin(&lots.concat(), draws.streams(self.epoch));
        let batches = lots.len() as u32;
        let (mut total, mut last) = (0.0, None);
        for (batch, (lot, size)) in (1..).zip(lots.iter().zip(&sizes)) {
            let counts = *size > 0;
            let mut losses = Vec::with_capacity(lot.len());
            self.stepper.begin_lot(Lot::new(draws.plan.clip, counts));
            for position in lot {
                let sample = self.source.batch(self.algorithm, slice::from_ref(position));
                let step_ctx = &mut StepContext::new(self.ctx, self.stepper);
                let step = self.algorithm.step(self.stage, sample, step_ctx);
                if counts {
                    losses.push(step.loss);
                    outcome.count(&step.routed);
                }
            }
            // However large the loss of a sample is, nobody may see that it took part: no node ends for that.
            for loss in Loss::values(&losses) {
                let bounded = if loss.is_finite() { loss } else { MOST_LOSS };
                total += bounded.min(MOST_LOSS);
                last = Some(bounded.min(MOST_LOSS));
            }
            let parts = self.algorithm.parts_mut();
            self.stepper.end_lot(parts, draws, (self.epoch, batch));
            outcome.steps += 1;
            let progress = Progress {
                epoch: self.epoch,
                epochs: self.epochs,
                batch,
                batches,
                loss: last,
            };
            if watch(progress).is_break() {
                return Err(LearnError::Abandoned);
            }
        }
        let drawn = sizes.iter().sum::<usize>();
        Ok(total / drawn.max(1) as f64)
    }
}
