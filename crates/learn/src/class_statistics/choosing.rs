//! How much of the statistics expert, decided on the validation samples by log loss.

use burn::tensor::Device;
use burn::tensor::activation::softmax;
use fednode_data::Samples;
use fednode_mix::blend::{Gate, Seen};
use fednode_mix::statistics::tempered;

use super::serving::{Mixing, SMALLEST};
use super::{ClassStatistics, for_each_batch};
use crate::pool::Predictor;
use crate::weights;

/// What the temperature is chosen from.
pub(crate) const TEMPERATURES: [f64; 5] = [1.0, 2.0, 4.0, 8.0, 16.0];
/// What the weight of the statistics is chosen from.
pub(crate) const WEIGHTS: [f64; 7] = [0.0, 0.2, 0.35, 0.5, 0.65, 0.8, 1.0];

/// A validation sample, and what is said of it.
struct Judged {
    class: usize,
    /// The node's own probabilities.
    own: Vec<f64>,
    /// The statistics expert's logits.
    logits: Vec<f64>,
}

impl Judged {
    /// Returns the log loss of the mixture.
    fn loss(&self, temperature: f64, weight: f64, prior: &[f64]) -> f64 {
        let statistics = tempered(&self.logits, temperature, prior)[self.class];
        -(weight * statistics + (1.0 - weight) * self.own[self.class])
            .max(SMALLEST)
            .ln()
    }

    /// Returns what a gate is fitted to.
    fn seen(&self, temperature: f64, prior: &[f64]) -> Seen {
        let statistics = tempered(&self.logits, temperature, prior);
        Seen {
            own: self.own[self.class],
            statistics: statistics[self.class],
            entropies: [relative_entropy(&self.own), relative_entropy(&statistics)],
        }
    }
}

impl ClassStatistics {
    /// Returns the temperature and weight of the lowest log loss, or the gate at that temperature; `None` without
    /// validation samples or classifier.
    pub(super) fn choose(
        &self,
        predictor: &Predictor<'_>,
        prior: &[f64],
        validation: &Samples,
        device: &Device,
    ) -> Option<(f64, Mixing)> {
        let judged = self.judge(predictor, validation, device)?;
        let loss = |temperature: f64, weight: f64| -> f64 {
            let of = |judged: &Judged| judged.loss(temperature, weight, prior);
            judged.iter().map(of).sum()
        };
        let choices = TEMPERATURES
            .iter()
            .flat_map(|temperature| WEIGHTS.map(|weight| (*temperature, weight)));
        let (temperature, weight) =
            choices.min_by(|a, b| loss(a.0, a.1).total_cmp(&loss(b.0, b.1)))?;
        let fit = || {
            let seen = judged.iter().map(|judged| judged.seen(temperature, prior));
            Gate::fit(&seen.collect::<Vec<_>>())
        };
        let gate = self.gates_samples.then(fit).flatten();
        Some((
            temperature,
            gate.map_or(Mixing::Weight(weight), Mixing::Gate),
        ))
    }

    /// Asks node and statistics about every validation sample; `None` without samples or classifier.
    fn judge(
        &self,
        predictor: &Predictor<'_>,
        validation: &Samples,
        device: &Device,
    ) -> Option<Vec<Judged>> {
        // Why there is none is said where it is served.
        let solved = self.classifier().ok().filter(|_| !validation.is_empty())?;
        let mut judged = Vec::with_capacity(validation.len());
        for_each_batch(validation, device, |positions, inputs| {
            let own = weights::values(&softmax(predictor.forward(inputs.clone()).logits, 1));
            let features = self.features(predictor.algorithm, inputs);
            let features = features
                .map(|features| weights::values(&features))
                .unwrap_or_default();
            for ((at, own), features) in positions
                .iter()
                .zip(own.chunks_exact(self.classes))
                .zip(features.chunks_exact(self.width))
            {
                judged.push(Judged {
                    class: usize::from(validation.labels[*at as usize]),
                    own: own.iter().copied().map(f64::from).collect(),
                    logits: solved.logits(features),
                });
            }
        });
        Some(judged)
    }
}

/// Returns the entropy of probabilities, divided by that of as many equal ones.
fn relative_entropy(probabilities: &[f64]) -> f64 {
    let terms = probabilities.iter().map(|p| -p * (p + SMALLEST).ln());
    terms.sum::<f64>() / (probabilities.len() as f64).ln()
}
