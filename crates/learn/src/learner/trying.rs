//! Experts that others were mixed into, tried before they are taken: what counts is what they do, not what their owners say.
//!
//! ```text
//! for each slot    loss of every validation sample, with the own expert and with the mixed one, all else being equal
//! taken            unless the mean difference is more than two of its standard errors above zero
//! ```
//!
//! A node that has no validation samples takes what comes. A mix is taken or left as a whole: by then its sources are one.

use fednode_core::{ParamSet, Slot};

use super::Learner;
use crate::agreement::standard_errors;
use crate::evaluate;

/// Standard errors by which the loss may be larger.
const NOISE: f64 = 2.0;

/// What a mixed expert replaces: parts, and their numbers.
type Replaced = Vec<(usize, ParamSet)>;

impl Learner {
    /// Tells whether experts are tried, so that what is taken is not always what came.
    pub fn tries_experts(&self) -> bool {
        self.parts.algorithm.tries_experts() && !self.data.validation.is_empty()
    }

    /// Takes the mixed experts, or those of them that stand the trial.
    pub(super) fn take_experts(&mut self, mixed: Vec<(Slot, Replaced)>) {
        // Without a mix there is nothing to compare, and each loss is a pass over all validation samples.
        if mixed.is_empty() || !self.tries_experts() {
            let all = mixed.into_iter().flat_map(|(_, replaced)| replaced);
            return self.parts.load(all.collect());
        }
        let mut losses = self.losses();
        for (slot, replaced) in mixed {
            let before = self.parts.weights();
            self.parts.load(replaced);
            let with = self.losses();
            let differences = with
                .iter()
                .zip(&losses)
                .map(|(with, without)| with - without);
            match standard_errors(differences) {
                Some(errors) if errors > NOISE => {
                    tracing::warn!(
                        %slot,
                        "the mixed expert is left out: it makes the loss on the validation samples larger by {errors:.1} \
                         standard errors"
                    );
                    self.parts.put_back(before);
                }
                _ => losses = with,
            }
        }
    }

    /// Returns the log loss of each validation sample.
    fn losses(&self) -> Vec<f64> {
        let (samples, tensors) = (&self.data.validation, self.parts.device.tensors());
        let forward = |inputs| self.parts.algorithm.forward(inputs);
        let predict = || evaluate::predict(&forward, samples, tensors);
        let predictions = self.parts.device.run(predict);
        let loss = |(prediction, label): (&evaluate::Prediction, &u16)| {
            let probability = prediction.probabilities[usize::from(*label)];
            -f64::from(probability.max(f32::MIN_POSITIVE)).ln()
        };
        predictions.iter().zip(&samples.labels).map(loss).collect()
    }
}
