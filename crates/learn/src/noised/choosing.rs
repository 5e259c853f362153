//! How much peers' statistics count beside what the node does alone, decided on its validation samples.
//!
//! ```text
//! argmin over T, lambda of   sum of log losses + 3 (lambda - .8)² + .25 (log2 T - 2)²
//! ```
//!
//! A node has few validation samples, and the best of many choices promises more than it keeps. The second part holds the
//! choice where it was best in the study that this follows (section 2.5), unless the samples speak against it.

use burn::tensor::activation::softmax;
use burn::tensor::{Device, Tensor};
use fednode_data::Samples;
use fednode_mix::slots::Slots;
use serde::{Deserialize, Serialize};

use super::sphere::OnSphere;
use crate::agreement::Judged;
use crate::algorithm::Output;
use crate::class_statistics::{TEMPERATURES, WEIGHTS, for_each_batch};
use crate::weights;

/// How both are joined.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Choice {
    /// T: what the classifier's logits are divided by.
    pub(super) temperature: f64,
    /// Lambda: what the peers' statistics count for, 0 to 1.
    pub(super) weight: f64,
}

impl Choice {
    /// Returns what speaks against it before any sample is seen.
    fn prejudice(self) -> f64 {
        3.0 * (self.weight - 0.8).powi(2) + 0.25 * (self.temperature.log2() - 2.0).powi(2)
    }
}

/// Chooses how a classifier goes with what `alone` predicts.
pub(super) fn choose(
    classifier: &Slots,
    prior: &[f64],
    features: &OnSphere,
    alone: &dyn Fn(Tensor<2>) -> Output,
    validation: &Samples,
    device: &Device,
) -> Choice {
    let mut judged = Vec::with_capacity(validation.len());
    for_each_batch(validation, device, |positions, inputs| {
        let own = weights::values(&softmax(alone(inputs.clone()).logits, 1));
        let features_of = weights::values(&features.of(inputs));
        let rows = own
            .chunks_exact(prior.len())
            .zip(features_of.chunks_exact(features.width()));
        for (at, (own, features)) in positions.iter().zip(rows) {
            judged.push(Judged {
                class: usize::from(validation.labels[*at as usize]),
                own: own.iter().copied().map(f64::from).collect(),
                logits: classifier.rows.logits(features),
            });
        }
    });
    let choices = TEMPERATURES.iter().flat_map(|temperature| {
        WEIGHTS.map(|weight| Choice {
            temperature: *temperature,
            weight,
        })
    });
    let loss = |choice: &Choice| -> f64 {
        let joined = [choice.temperature, choice.weight];
        let losses = judged
            .iter()
            .map(|judged| judged.loss(joined, classifier, prior));
        losses.sum::<f64>() + choice.prejudice()
    };
    let best = choices.map(|choice| (loss(&choice), choice));
    let best = best.min_by(|a, b| a.0.total_cmp(&b.0));
    best.expect("there are temperatures and weights").1
}
