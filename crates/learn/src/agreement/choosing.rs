//! How statistics and own model are joined, decided on the validation samples.
//!
//! Logarithms are mixed, not probabilities: of few validation samples a product of experts was better than a mean
//! (84.8 % beside 82.3 % in the study that this follows).
//!
//! | data | temperature | lambda |
//! |---|---|---|
//! | images | 4 | 0.65 |
//! | texts | 3 | 0.65 |
//! | features of a backbone | 3 | 0.5 |
//! | raw tables, whose classifier is calibrated as it is | 1 | 0.5 |
//!
//! Others are taken, or the node's own statistics alone, only if they are better on the validation samples by two
//! standard errors.

use burn::tensor::Device;
use burn::tensor::activation::softmax;
use fednode_data::Samples;
use fednode_mix::slots::Slots;
use fednode_mix::statistics::tempered;
use serde::{Deserialize, Serialize};

use super::fitting::standard_errors;
use super::{Agreement, SMALLEST, Solving, Source};
use crate::class_statistics::{TEMPERATURES, WEIGHTS, for_each_batch};
use crate::pool::Predictor;
use crate::weights;

/// Standard errors by which another choice must be better than the usual one.
///
/// One is too little where the best of 70 choices is taken: of 30 validation samples, chance alone promises so much. A
/// choice by log loss cost 1.0 to 1.9 points beside the usual one, on two regimes of 8 nodes × 300 images.
const CLEARLY: f64 = 2.0;

/// How statistics and own model are joined.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Choice {
    pub(super) source: Source,
    pub(super) temperature: f64,
    pub(super) weight: f64,
}

impl Choice {
    /// Where temperature and weight of the statistics lie without better knowledge.
    pub(super) const fn usual(source: Source, solving: Solving) -> Self {
        let (temperature, weight) = match solving {
            Solving::Classes => (4.0, 0.65),
            Solving::Features => (3.0, 0.5),
            Solving::Words => (3.0, 0.65),
            Solving::Sites => (1.0, 0.5),
        };
        Self {
            source,
            temperature,
            weight,
        }
    }
}

impl Agreement {
    /// Chooses how statistics and own model are joined, because one of them is another one now.
    pub(crate) fn choose(&mut self, own: &Predictor<'_>, validation: &Samples, device: &Device) {
        let sources = [Source::Slots, Source::Peers, Source::Own].into_iter();
        let candidates = sources.filter_map(|source| {
            let classifier = self.classifier(source)?;
            let judged = self.judge(&classifier, own, validation, device);
            Some(self.candidates(source, &classifier, &judged))
        });
        let candidates: Vec<Vec<Candidate>> = candidates.collect();
        // The first source that there is, as usual, unless the best of all is clearly better.
        let usual = candidates.first().and_then(|all| all.first());
        let all = candidates.iter().flatten();
        let best = all.min_by(|a, b| a.total().total_cmp(&b.total()));
        let chosen = usual.zip(best).map(|(usual, best)| {
            let is_better = best.is_clearly_better_than(usual);
            if is_better { best.choice } else { usual.choice }
        });
        (self.remembered.choice, self.remembered.left_out) = (chosen, false);
        self.serve(device);
    }

    /// Asks classifier and node about every validation sample.
    fn judge(
        &self,
        classifier: &Slots,
        own: &Predictor<'_>,
        validation: &Samples,
        device: &Device,
    ) -> Vec<Judged> {
        let mut judged = Vec::with_capacity(validation.len());
        for_each_batch(validation, device, |positions, inputs| {
            let alone = weights::values(&softmax(own.forward(inputs.clone()).logits, 1));
            let features = weights::values(&self.features_of(inputs));
            let rows = alone
                .chunks_exact(self.classes)
                .zip(features.chunks_exact(self.width));
            for (at, (alone, features)) in positions.iter().zip(rows) {
                judged.push(Judged {
                    class: usize::from(validation.labels[*at as usize]),
                    own: alone.iter().copied().map(f64::from).collect(),
                    logits: classifier.rows.logits(features),
                });
            }
        });
        judged
    }

    /// Returns the usual temperature and weight, then all others, each with its log losses.
    fn candidates(&self, source: Source, classifier: &Slots, judged: &[Judged]) -> Vec<Candidate> {
        let prior = self.classifiers.prior();
        let others = TEMPERATURES.iter().flat_map(|temperature| {
            WEIGHTS.map(|weight| Choice {
                source,
                temperature: *temperature,
                weight,
            })
        });
        let candidate = |choice: Choice| {
            let joined = [choice.temperature, choice.weight];
            let losses = judged
                .iter()
                .map(|judged| judged.loss(joined, classifier, &prior));
            let losses = losses.collect();
            Candidate { choice, losses }
        };
        let mut usual = Choice::usual(source, self.solving);
        if self.remembered.is_untrained {
            usual.weight = 1.0;
        }
        std::iter::once(usual)
            .chain(others)
            .map(candidate)
            .collect()
    }
}

/// A validation sample, and what is said of it.
pub(crate) struct Judged {
    pub(crate) class: usize,
    /// The own model's probabilities.
    pub(crate) own: Vec<f64>,
    /// The logits of the classifier's rows.
    pub(crate) logits: Vec<f64>,
}

impl Judged {
    /// Returns the log loss of the product, given the temperature and what the statistics count for.
    pub(crate) fn loss(
        &self,
        [temperature, weight]: [f64; 2],
        classifier: &Slots,
        prior: &[f64],
    ) -> f64 {
        let scores = classifier.scores(&self.logits, temperature);
        let statistics = tempered(&scores, 1.0, prior);
        let joined = |(statistics, own): (&f64, &f64)| {
            let [statistics, own] = [statistics, own].map(|p| (p + SMALLEST).ln());
            (weight * statistics + (1.0 - weight) * own).exp()
        };
        let scores: Vec<f64> = statistics.iter().zip(&self.own).map(joined).collect();
        scores.iter().sum::<f64>().ln() - scores[self.class].ln()
    }
}

/// A choice, and its log loss on each validation sample.
struct Candidate {
    choice: Choice,
    losses: Vec<f64>,
}

impl Candidate {
    fn total(&self) -> f64 {
        self.losses.iter().sum()
    }

    /// Tells whether it is better by more than [`CLEARLY`] standard errors of the difference.
    fn is_clearly_better_than(&self, other: &Self) -> bool {
        are_clearly_lower(&self.losses, &other.losses)
    }
}

/// Tells whether losses on samples are lower than others on the same ones, by more than [`CLEARLY`] standard errors of the
/// difference.
pub(crate) fn are_clearly_lower(losses: &[f64], others: &[f64]) -> bool {
    let pairs = others.iter().zip(losses);
    let errors = standard_errors(pairs.map(|(theirs, own)| theirs - own));
    errors.is_some_and(|errors| errors > CLEARLY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_choices_are_those_of_the_book() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../docs/explanation/agreement.md"
        );
        let page = std::fs::read_to_string(path).unwrap();
        for (data, solving) in [
            ("images, ", Solving::Classes),
            ("texts", Solving::Words),
            ("features of a backbone", Solving::Features),
            ("raw tables", Solving::Sites),
        ] {
            let Choice {
                temperature,
                weight,
                ..
            } = Choice::usual(Source::Peers, solving);
            let ending = format!("| {weight} | {temperature} |");
            let mut rows = page.lines().filter(|row| row.ends_with(&ending));
            let start = format!("| {data}");
            assert!(rows.any(|row| row.starts_with(&start)), "{data}: {ending}");
        }
    }
}
