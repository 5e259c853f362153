//! Evaluation and prediction, in batches so that memory stays bounded whatever the size of the data.
//!
//! Where a number is predicted, R² stands for the accuracy: the share of the variance of these samples that is explained. It is
//! 0 where all numbers are the same. The loss is half the mean square of the error, with the range of the spec from -1 to 1.

use std::collections::BTreeMap;

use burn::tensor::{Device, Tensor};
use fednode_core::{Score, Slot};
use fednode_data::Samples;
use serde::{Deserialize, Serialize};

use crate::algorithm::Output;
use crate::batch;
use crate::gate::argmax;
use crate::weights;

/// Samples of an evaluation batch: large enough to keep a device busy, and a few megabytes of feature maps.
pub(crate) const BATCH: usize = 64;

/// How a model did on one class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ClassCount {
    /// Samples of this class that were recognised.
    pub correct: u32,
    /// Samples of this class.
    pub total: u32,
}

/// How a model did on one split of a node's data.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Evaluation {
    /// Accuracy and loss.
    pub score: Score,
    /// Per class.
    pub classes: Vec<ClassCount>,
    /// Share of the samples that chose each expert; empty without experts.
    pub expert_share: Vec<f64>,
    /// How much the choice of the expert says of a sample's domain, 0 (nothing) to 1 (all): their mutual information, divided
    /// by the entropy of the domains. `None` without experts, and where the domains are not known or are only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain_information: Option<f64>,
}

/// What a model says about one sample.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// The most probable class; 0 where a number is predicted.
    pub class: u16,
    /// Probability of each class; empty where a number is predicted.
    pub probabilities: Vec<f32>,
    /// The number, where one is predicted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<f32>,
    /// The expert that decided, if there are experts.
    pub expert: Option<Slot>,
}

/// A model, as a function from a batch of inputs.
pub(crate) type Forward<'a> = &'a (dyn Fn(Tensor<2>) -> Output + Sync);

/// Evaluates on samples that have been checked; none give a score of zero samples.
pub(crate) fn evaluate(
    forward: Forward<'_>,
    samples: &Samples,
    n_classes: usize,
    device: &Device,
) -> Evaluation {
    evaluate_and(forward, samples, n_classes, device, |_| ())
}

/// Evaluates, and hands each prediction on, in the order of the samples.
pub(crate) fn evaluate_and(
    forward: Forward<'_>,
    samples: &Samples,
    n_classes: usize,
    device: &Device,
    mut visit: impl FnMut(Prediction),
) -> Evaluation {
    let truth = samples.targets.as_deref();
    let mut classes = vec![ClassCount::default(); if truth.is_some() { 0 } else { n_classes }];
    let mut squares = 0.0;
    let mut routed: Vec<u32> = Vec::new();
    let mut by_domain = BTreeMap::new();
    let mut loss = 0.0;
    for_each(forward, samples, device, |at, prediction, n_experts| {
        if let Some((number, truth)) = prediction.number.zip(truth) {
            squares += (f64::from(number) - f64::from(truth[at])).powi(2);
        } else {
            let label = usize::from(samples.labels[at]);
            classes[label].total += 1;
            classes[label].correct += u32::from(usize::from(prediction.class) == label);
            // Below the smallest positive float the loss is cut, not infinite: one sample must not hide all others.
            loss -= f64::from(prediction.probabilities[label].max(f32::MIN_POSITIVE)).ln();
        }
        routed.resize(n_experts, 0);
        if let Some(expert) = prediction.expert {
            routed[usize::from(expert.0)] += 1;
            let domain = samples.domains.as_ref().map(|domains| domains[at]);
            *by_domain.entry((expert, domain)).or_default() += 1;
        }
        visit(prediction);
    });
    let n_samples = samples.len() as u32;
    let correct: u32 = classes.iter().map(|class| class.correct).sum();
    let n = f64::from(n_samples.max(1));
    let score = Score {
        accuracy: truth.map_or(f64::from(correct) / n, |truth| explained(squares, truth)),
        loss: truth.map_or(loss, |_| 0.5 * squares) / n,
        n_samples,
    };
    let expert_share = routed
        .into_iter()
        .map(|count| f64::from(count) / n)
        .collect();
    Evaluation {
        score,
        classes,
        expert_share,
        domain_information: information(&by_domain),
    }
}

/// Returns R², given the sum of the squares of the errors; 0 where all numbers are the same.
fn explained(squares: f64, truth: &[f32]) -> f64 {
    let numbers = || truth.iter().copied().map(f64::from);
    let mean = numbers().sum::<f64>() / truth.len().max(1) as f64;
    let variation: f64 = numbers().map(|number| (number - mean).powi(2)).sum();
    if variation > 0.0 {
        1.0 - squares / variation
    } else {
        0.0
    }
}

/// Returns the mutual information of expert and domain, divided by the entropy of the domains; nothing where that is zero.
fn information(counts: &BTreeMap<(Slot, Option<u16>), u32>) -> Option<f64> {
    let total: f64 = counts.values().copied().map(f64::from).sum();
    let (mut experts, mut domains) = (BTreeMap::new(), BTreeMap::new());
    for ((expert, domain), count) in counts {
        let share = f64::from(*count) / total;
        *experts.entry(*expert).or_insert(0.0) += share;
        *domains.entry(*domain).or_insert(0.0) += share;
    }
    let entropy: f64 = domains
        .values()
        .map(|share: &f64| -share * share.ln())
        .sum();
    let shared = counts.iter().map(|((expert, domain), count)| {
        let share = f64::from(*count) / total;
        share * (share / (experts[expert] * domains[domain])).ln()
    });
    (domains.len() > 1).then(|| (shared.sum::<f64>() / entropy).clamp(0.0, 1.0))
}

/// Predicts every sample.
pub(crate) fn predict(forward: Forward<'_>, samples: &Samples, device: &Device) -> Vec<Prediction> {
    let mut predictions = Vec::with_capacity(samples.len());
    for_each(forward, samples, device, |_, prediction, _| {
        predictions.push(prediction)
    });
    predictions
}

/// Visits position, prediction and number of experts for every sample, in order.
fn for_each(
    forward: Forward<'_>,
    samples: &Samples,
    device: &Device,
    mut visit: impl FnMut(usize, Prediction, usize),
) {
    let positions: Vec<u32> = (0..samples.len() as u32).collect();
    for chunk in positions.chunks(BATCH) {
        let Output {
            logits,
            chosen,
            n_experts,
        } = forward(batch::inputs(samples, chunk, device));
        let n_classes = logits.dims()[1];
        let logits = weights::values(&logits);
        let best = argmax(&logits, n_classes);
        for (row, at) in chunk.iter().enumerate() {
            let outputs = &logits[row * n_classes..(row + 1) * n_classes];
            let (number, probabilities) = match outputs {
                [number] => (Some(*number), Vec::new()),
                logits => (None, softmax(logits)),
            };
            let expert = chosen.as_ref().map(|chosen| Slot(chosen[row] as u16));
            visit(
                *at as usize,
                Prediction {
                    class: best[row] as u16,
                    probabilities,
                    number,
                    expert,
                },
                n_experts,
            );
        }
    }
}

fn softmax(logits: &[f32]) -> Vec<f32> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f64> = logits
        .iter()
        .map(|logit| f64::from(logit - largest).exp())
        .collect();
    let total: f64 = powers.iter().sum();
    powers
        .into_iter()
        .map(|power| (power / total) as f32)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_judged_by_the_variance_that_is_explained() {
        let truth = [1.0, 2.0, 3.0, 6.0];
        assert_eq!(explained(0.0, &truth), 1.0);
        assert_eq!(explained(14.0, &truth), 0.0, "the mean of the truth, 3");
        assert!(explained(28.0, &truth) < 0.0, "worse than the mean");
        assert_eq!(explained(1.0, &[5.0, 5.0]), 0.0, "nothing varies");
    }

    /// By hand: an expert for each domain says all, a single expert nothing. With shares 3/8, 1/8, 1/8, 3/8 the mutual
    /// information is 3/4 ln(3/2) + 1/4 ln(1/2) = 0.1308, of an entropy of ln 2.
    #[test]
    fn the_choice_of_an_expert_tells_of_the_domain() {
        let information = |counts: &[(u16, u16, u32)]| {
            let entry =
                |(expert, domain, n): &(u16, u16, u32)| ((Slot(*expert), Some(*domain)), *n);
            information(&counts.iter().map(entry).collect())
        };
        let close = |got: Option<f64>, expected: f64| (got.unwrap() - expected).abs() < 1e-4;
        assert!(close(information(&[(0, 0, 5), (1, 1, 3)]), 1.0));
        assert!(close(information(&[(0, 0, 5), (0, 1, 3)]), 0.0));
        let mixed = information(&[(0, 0, 3), (0, 1, 1), (1, 0, 1), (1, 1, 3)]);
        assert!(close(mixed, 0.1308 / 2.0f64.ln()), "{mixed:?}");
        assert_eq!(information(&[(0, 0, 5), (1, 0, 3)]), None, "one domain");
        assert_eq!(information(&[]), None);
    }
}
