//! Attacks on the statistics that a node publishes as they are.

use burn::tensor::Device;
use fednode_data::Samples;
use fednode_mix::slots::GROUPS;

use super::Agreement;
use crate::exposure::{Exposure, Rows};

/// Fewest others of a class whose mean stands for what is usual.
const FEWEST: usize = 3;

impl Agreement {
    /// Attacks the published sums with samples that are in them and others that are not.
    pub(crate) fn exposures(
        &self,
        members: &[&Samples],
        others: &[&Samples],
        device: &Device,
    ) -> Vec<Exposure> {
        let features = |inputs| self.features_of(inputs);
        let [members, others] = [members, others].map(|some| Rows::of(some, &features, device));
        let sums = self.read(&self.own.params());
        let leverage = [&members, &others].map(|rows| sums.leverages(&rows.features, 0.0));
        let leverage = match leverage {
            [Ok(inside), Ok(outside)] => {
                let scores =
                    [inside, outside].map(|all| all.iter().map(|h| -h).collect::<Vec<_>>());
                let published = format!("second moment of {} numbers", self.width);
                Exposure::of(published, "leverage", &scores[0], &scores[1])
            }
            // Features that are all alike have no second moment to attack.
            _ => None,
        };
        let classes = sums.joined(GROUPS);
        let means = classes.means();
        let usual = Usual::of(&others, self.classes, self.width);
        let score = |rows: &Rows, are_usual: bool| -> Vec<f64> {
            let score = |(features, class): (&[f32], usize)| {
                let mean = usual.mean(class, are_usual.then_some(features));
                let apart = |values: &[f64]| -> Vec<f64> {
                    values
                        .iter()
                        .zip(&mean)
                        .map(|(value, mean)| value - mean)
                        .collect()
                };
                let published = apart(&means[class]);
                let own: Vec<f64> = features.iter().copied().map(f64::from).collect();
                let own = apart(&own);
                let length: f64 = own.iter().map(|value| value * value).sum();
                let product: f64 = own.iter().zip(&published).map(|(a, b)| a * b).sum();
                product / length.max(f64::MIN_POSITIVE).sqrt()
            };
            rows.iter().map(score).collect()
        };
        let (inside, outside) = (score(&members, false), score(&others, true));
        let filter = Exposure::of("class sums", "matched filter", &inside, &outside);
        leverage.into_iter().chain(filter).collect()
    }
}

/// What samples of a class usually are, by those that have no part in what is published.
struct Usual {
    counts: Vec<f64>,
    sums: Vec<Vec<f64>>,
    all: Vec<f64>,
    total: f64,
}

impl Usual {
    fn of(others: &Rows, classes: usize, width: usize) -> Self {
        let mut usual = Self {
            counts: vec![0.0; classes],
            sums: vec![vec![0.0; width]; classes],
            all: vec![0.0; width],
            total: 0.0,
        };
        for (features, class) in others.iter() {
            usual.counts[class] += 1.0;
            usual.total += 1.0;
            for (at, value) in features.iter().copied().map(f64::from).enumerate() {
                usual.sums[class][at] += value;
                usual.all[at] += value;
            }
        }
        usual
    }

    /// Returns the mean of a class, or of all where the class has few; without one sample that is among them.
    fn mean(&self, class: usize, without: Option<&[f32]>) -> Vec<f64> {
        let less = f64::from(u8::from(without.is_some()));
        let has_class = self.counts[class] - less >= FEWEST as f64;
        let (sum, count) = if has_class {
            (&self.sums[class], self.counts[class] - less)
        } else {
            (&self.all, (self.total - less).max(1.0))
        };
        let value = |at: usize| without.map_or(0.0, |features| f64::from(features[at]));
        (0..sum.len())
            .map(|at| (sum[at] - value(at)) / count)
            .collect()
    }
}
