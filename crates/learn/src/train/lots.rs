//! One pass over the samples under a promise of privacy: lots of samples that are drawn, instead of batches.
//!
//! Each sample goes through the algorithm's step by itself, so that its gradient can be shortened by itself. That works with
//! every layer, and costs the time of batches of one.

use std::slice;

use fednode_core::work::{Progress, Watch};

use super::{Epoch, Losses, Outcome};
use crate::algorithm::StepContext;
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
        self.begin(&lots.concat());
        let batches = lots.len() as u32;
        let mut losses = Losses::default();
        for (batch, (lot, size)) in (1..).zip(lots.iter().zip(&sizes)) {
            let counts = *size > 0;
            self.stepper.begin_lot(Lot::new(draws.plan.clip, counts));
            for position in lot {
                let sample = self.source.batch(self.algorithm, slice::from_ref(position));
                let step_ctx = &mut StepContext::new(self.ctx, self.stepper);
                let step = self.algorithm.step(self.stage, sample, step_ctx);
                if counts {
                    losses.add(step.loss, 1);
                    outcome.count(&step.routed);
                }
            }
            self.check(losses.read().map(|(_, loss)| (batch, loss)))?;
            let parts = self.algorithm.parts_mut();
            self.stepper.end_lot(parts, draws, (self.epoch, batch));
            outcome.steps += 1;
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
        let drawn = sizes.iter().sum::<usize>();
        Ok(losses.total / drawn.max(1) as f64)
    }
}
