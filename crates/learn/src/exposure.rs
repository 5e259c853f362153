//! What a node's published parts say of who is in its data: attacks that the owner runs at home, on real samples.
//!
//! ```text
//! members   training samples      ─┐
//!                                  ├─► a score each, higher for members ─► area under the curve, hits at 1 % false alarms
//! others    held-out samples      ─┘
//! ```
//!
//! | published | attack | source |
//! |---|---|---|
//! | a second moment | leverage: who lies within the span of the samples | the project's study, 5b |
//! | sums with noise | matched filter: how much the sums say of the sample, beyond its likes | the same |
//! | parameters | loss: samples that were trained on fit better | Yeom et al., CSF 2018 |
//! | class sums | images redrawn by a linear decoder ([`redrawn`]) | the project's study, 5a |
//!
//! An attack is a lower bound. A stronger one may find more, and what it finds is not below. Noise has an upper bound too:
//! that of the strongest attack on a Gaussian release, which knows all samples but one.

mod redrawn;

use burn::tensor::{Device, Tensor};
use fednode_data::Samples;
use fednode_mix::Statistics;
use serde::Serialize;

use crate::class_statistics::for_each_batch;
use crate::weights;

pub use redrawn::Redrawn;
pub(crate) use redrawn::{ClassSums, Images, one_image, own_classes};

/// The share of false alarms at which hits are counted.
pub const FALSE_ALARMS: f64 = 0.01;
/// Fewest others by which so small a share can be measured.
const FEWEST_OTHERS: usize = 100;

/// What one attack on one published part reaches.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Exposure {
    /// What is published.
    pub published: String,
    /// How it is attacked.
    pub attack: &'static str,
    /// Training samples that were tried.
    pub members: usize,
    /// Samples that were tried and have no part in it.
    pub others: usize,
    /// The area under the curve of hits over false alarms: 0.5 is guessing, 1 is certainty.
    pub auc: f64,
    /// The share of members that are found at 1 % of false alarms; absent of fewer than 100 others.
    pub hits: Option<f64>,
    /// What no attack exceeds, area and hits; absent without noise.
    pub most: Option<[f64; 2]>,
}

impl Exposure {
    /// Judges an attack by its scores; nothing without members or others.
    pub(crate) fn of(
        published: impl Into<String>,
        attack: &'static str,
        members: &[f64],
        others: &[f64],
    ) -> Option<Self> {
        let is_any = !members.is_empty() && !others.is_empty();
        is_any.then(|| Self {
            published: published.into(),
            attack,
            members: members.len(),
            others: others.len(),
            auc: area(members, others),
            hits: hits(members, others),
            most: None,
        })
    }
}

/// Samples as what is added up of them.
pub(crate) struct Rows {
    /// The features of each.
    pub(crate) features: Vec<Vec<f32>>,
    /// The class of each.
    pub(crate) classes: Vec<usize>,
}

impl Rows {
    /// Makes the features of members and of others.
    pub(crate) fn of_both(
        samples: [&[&Samples]; 2],
        features: &dyn Fn(Tensor<2>) -> Tensor<2>,
        device: &Device,
    ) -> [Self; 2] {
        samples.map(|some| Self::of(some, features, device))
    }

    /// Makes the features of samples.
    pub(crate) fn of(
        samples: &[&Samples],
        features: &dyn Fn(Tensor<2>) -> Tensor<2>,
        device: &Device,
    ) -> Self {
        let mut rows = Self {
            features: Vec::new(),
            classes: Vec::new(),
        };
        for samples in samples {
            for_each_batch(samples, device, |positions, inputs| {
                let found = weights::values(&features(inputs));
                let width = found.len() / positions.len().max(1);
                let found = found.chunks_exact(width.max(1)).map(<[f32]>::to_vec);
                rows.features.extend(found);
                let labels = positions.iter().map(|at| samples.labels[*at as usize]);
                rows.classes.extend(labels.map(usize::from));
            });
        }
        rows
    }

    /// Puts zeros where features are left out.
    pub(crate) fn leave_out(&mut self, is_out: &[bool]) {
        for row in &mut self.features {
            let marked = row.iter_mut().zip(is_out).filter(|(_, is_out)| **is_out);
            marked.for_each(|(value, _)| *value = 0.0);
        }
    }

    /// Visits features and class of each.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[f32], usize)> {
        let features = self.features.iter().map(Vec::as_slice);
        features.zip(self.classes.iter().copied())
    }
}

/// Attacks a scatter: whoever is in it has little outside of its directions. Nothing where there is nothing to invert, as of
/// features that are all alike, or of noise beyond the largest eigenvalue that it should have.
pub(crate) fn leverage(
    published: String,
    sums: &Statistics,
    noise: f64,
    rows: [&Rows; 2],
) -> Option<Exposure> {
    let scores = rows.map(|rows| {
        let leverages = sums.leverages(&rows.features, noise).ok()?;
        Some(leverages.iter().map(|h| -h).collect::<Vec<f64>>())
    });
    let [Some(inside), Some(outside)] = scores else {
        return None;
    };
    Exposure::of(published, "leverage", &inside, &outside)
}

/// Returns the probability that a member's score is above another's; equal scores count by half.
fn area(members: &[f64], others: &[f64]) -> f64 {
    let mut sorted = others.to_vec();
    sorted.sort_by(f64::total_cmp);
    let above = |score: &f64| {
        let below = sorted.partition_point(|other| other < score);
        let up_to = sorted.partition_point(|other| other <= score);
        0.5 * (below + up_to) as f64
    };
    members.iter().map(above).sum::<f64>() / (members.len() * others.len()) as f64
}

/// Returns the share of members above all but 1 % of the others.
fn hits(members: &[f64], others: &[f64]) -> Option<f64> {
    if others.len() < FEWEST_OTHERS {
        return None;
    }
    let mut sorted = others.to_vec();
    sorted.sort_by(|a, b| b.total_cmp(a));
    let threshold = sorted[(others.len() as f64 * FALSE_ALARMS) as usize];
    let found = members.iter().filter(|score| **score > threshold).count();
    Some(found as f64 / members.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: of 2 x 3 pairs, one is above, one is equal, four are below.
    #[test]
    fn the_area_counts_pairs() {
        assert_eq!(area(&[1.0, 2.0], &[2.0, 3.0, 1.5]), (1.0 + 0.5) / 6.0);
        assert_eq!(area(&[5.0], &[1.0, 2.0]), 1.0);
        assert_eq!(area(&[1.0; 4], &[1.0; 3]), 0.5);
    }

    #[test]
    fn hits_are_counted_above_all_but_one_in_a_hundred() {
        let others: Vec<f64> = (0..200).map(f64::from).collect();
        // Two of two hundred may be above: 198 and 199. So the threshold is 197.
        assert_eq!(hits(&[197.0, 197.5, 300.0, 0.0], &others), Some(0.5));
        assert_eq!(hits(&[1.0], &others[..50]), None);
        assert_eq!(Exposure::of("sums", "loss", &[], &others), None);
    }
}
