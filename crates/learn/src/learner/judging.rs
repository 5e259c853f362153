//! What is served, judged by the measure that the spec names (`metric`), as the rounds go by.

use fednode_core::Judged;

use super::{Learner, Subset};
use crate::evaluate::Evaluation;
use crate::metric;

impl Learner {
    /// Evaluates on one division of the node's data, also by the measure that the spec names, if it names one.
    ///
    /// Numbers are judged in the unit of the data, as users read them.
    pub fn judge(&self, subset: Subset) -> (Evaluation, Option<Judged>) {
        let samples = self.samples(subset);
        let Some(judge) = self.judge.filter(|_| !samples.is_empty()) else {
            return (self.score(samples), None);
        };
        // One pass serves both: a forward pass is what an evaluation costs.
        let mut predictions = Vec::with_capacity(samples.len());
        let evaluation = self.score_and(samples, |prediction| {
            predictions.push(self.places.prediction(prediction));
        });
        let truth = self.places.truth(samples);
        let predictions = metric::against(&predictions, &samples.labels, truth.as_deref()).ok();
        (evaluation, Some(judge.judged(predictions.as_ref())))
    }
}
