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

/// What a node has at home to choose with.
#[derive(Clone, Copy)]
pub(super) struct AtHome<'a> {
    /// Predicts without any peer.
    pub(super) alone: &'a dyn Fn(Tensor<2>) -> Output,
    pub(super) validation: &'a Samples,
    pub(super) device: &'a Device,
}

/// A classifier beside what the node does alone, on each validation sample.
pub(super) struct Judging<'a> {
    classifier: Slots,
    prior: &'a [f64],
    judged: Vec<Judged>,
}

impl<'a> Judging<'a> {
    /// Runs both on the validation samples. `prior` are the shares of the classes among the own training samples.
    pub(super) fn new(
        classifier: Slots,
        prior: &'a [f64],
        features: &OnSphere,
        home: AtHome<'_>,
    ) -> Self {
        let mut judged = Vec::with_capacity(home.validation.len());
        for_each_batch(home.validation, home.device, |positions, inputs| {
            let own = weights::values(&softmax((home.alone)(inputs.clone()).logits, 1));
            let features_of = weights::values(&features.of(inputs));
            let rows = own
                .chunks_exact(prior.len())
                .zip(features_of.chunks_exact(features.width()));
            for (at, (own, features)) in positions.iter().zip(rows) {
                judged.push(Judged {
                    class: usize::from(home.validation.labels[*at as usize]),
                    own: own.iter().copied().map(f64::from).collect(),
                    logits: classifier.rows.logits(features),
                });
            }
        });
        Self {
            classifier,
            prior,
            judged,
        }
    }

    /// Chooses how the classifier goes with what the node does alone.
    pub(super) fn choice(&self) -> Choice {
        let choices = TEMPERATURES.iter().flat_map(|temperature| {
            WEIGHTS.map(|weight| Choice {
                temperature: *temperature,
                weight,
            })
        });
        let loss = |choice: &Choice| self.losses(*choice).sum::<f64>() + choice.prejudice();
        let best = choices.map(|choice| (loss(&choice), choice));
        let best = best.min_by(|a, b| a.0.total_cmp(&b.0));
        best.expect("there are temperatures and weights").1
    }

    /// Returns the log loss of each sample by this choice.
    pub(super) fn losses(&self, choice: Choice) -> impl Iterator<Item = f64> {
        let joined = [choice.temperature, choice.weight];
        let judged = self.judged.iter();
        judged.map(move |judged| judged.loss(joined, &self.classifier, self.prior))
    }

    /// Returns the log loss of each sample by what the node does alone.
    pub(super) fn losses_alone(&self) -> impl Iterator<Item = f64> {
        self.losses(Choice {
            temperature: 1.0,
            weight: 0.0,
        })
    }
}
