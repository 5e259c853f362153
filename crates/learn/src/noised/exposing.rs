//! Attacks on the release, and the bound that no attack exceeds.

use burn::tensor::Device;
use fednode_data::Samples;
use fednode_mix::Statistics;
use fednode_mix::statistics::canaries::product_of;
use fednode_mix::statistics::noised::GRID;
use fednode_privacy::gaussian::strongest_attack;
use fednode_privacy::statistics::Shares;
use fednode_privacy::units::Noise;

use super::solving::add;
use super::{NoiseKey, Noised};
use crate::exposure::{ClassSums, Exposure, FALSE_ALARMS, Rows, leverage};

/// How far beyond the edge of the noise's spectrum an attacker goes, to be sure that a matrix can be inverted.
const OVER_THE_EDGE: f64 = 1.2;

impl Noised {
    /// Attacks the release with samples that are in it and others that are not.
    ///
    /// For the matched filter the score of a sample is the product of its vector with the released sum, less what it would be
    /// if the sum were of others. [`fednode_mix::statistics::noised`] says what the vector of a sample is.
    pub(crate) fn exposures(
        &self,
        members: &[&Samples],
        others: &[&Samples],
        device: &Device,
    ) -> Vec<Exposure> {
        let features = |inputs| self.features.of(inputs);
        let [mut members, mut others] = Rows::of_both([members, others], &features, device);
        let released = self.seen();
        if self.noise.is_none() {
            // What the sums do not hold, such as rare words, tells an attacker nothing.
            let is_out = released.left_out();
            members.leave_out(&is_out);
            others.leave_out(&is_out);
        }
        let total = released.total().round().max(1.0);
        let score = |rows: &Rows, are_usual: bool| -> Vec<f64> {
            let score = |(at, (row, class)): (usize, (&[f32], usize))| {
                let without = are_usual.then_some(at);
                let usual = usual_product(row, class, &others, without);
                released.product(row, class) - total * usual
            };
            rows.iter().enumerate().map(score).collect()
        };
        let (inside, outside) = (score(&members, false), score(&others, true));
        let width = self.features.width();
        let published = self.published();
        let filter = Exposure::of(published.clone(), "matched filter", &inside, &outside);
        let noise = self.noise_seen();
        let entry = noise.map_or(0.0, Noise::get) / Shares::STUDY.parts().2.sqrt();
        // Each sample's products are cut to whole numbers, which moves no eigenvalue by more.
        let cut = total * width as f64 / GRID;
        let edge = OVER_THE_EDGE * entry * (2.0 * width as f64).sqrt() + cut;
        let leverage = leverage(published, &released, edge, [&members, &others]);
        let bound = noise.map(|noise| strongest_attack(noise, FALSE_ALARMS));
        let bounded = |exposure| Exposure {
            most: bound.as_ref().map(|bound| [bound.auc, bound.hits]),
            ..exposure
        };
        filter.into_iter().chain(leverage).map(bounded).collect()
    }
}

impl Noised {
    /// Returns the class sums that an attacker sees.
    pub(crate) fn class_sums(&self) -> ClassSums<'_> {
        let (_, of_sums, _) = Shares::STUDY.parts();
        ClassSums {
            published: self.published(),
            sums: self.seen(),
            noise: self.noise_seen().map_or(0.0, Noise::get) / of_sums.sqrt(),
            features: Box::new(|inputs| self.features.of(inputs)),
        }
    }

    /// Says what is published.
    pub(super) fn published(&self) -> String {
        let width = self.features.width();
        match (self.total, self.noise) {
            (None, _) => format!("noised sums of {width} numbers"),
            (Some(_), Some(_)) => format!("its part of a noised total of {width} numbers"),
            (Some(_), None) => format!("its part of a total of {width} numbers"),
        }
    }

    /// Returns what an attacker sees: the release, or what is left of a total for whoever knows the samples of all others.
    fn seen(&self) -> Statistics {
        match (self.total, self.noise_seen()) {
            (None, _) => self.statistics([0, 1, 2].map(|at| self.numbers(&self.released, at))),
            (Some(_), None) => self.exact(),
            (Some(_), Some(noise)) => {
                let mut drawn = self.nothing();
                NoiseKey::of_system().add_noise(drawn.numbers_mut(), noise, [0, 0]);
                let mut seen = self.exact();
                add(&mut seen, &drawn.statistics(), 1.0);
                seen
            }
        }
    }

    /// Returns the noise of what an attacker sees. Of a total it is that of the fewest members that hide a sample.
    pub(super) fn noise_seen(&self) -> Option<Noise> {
        let noise = self.noise?;
        Noise::new(noise.get() * f64::from(self.hiding).sqrt()).ok()
    }
}

/// Returns the mean product of a sample's vector with those of others, one of them left out.
fn usual_product(row: &[f32], class: usize, others: &Rows, without: Option<usize>) -> f64 {
    let mut sum = 0.0;
    for (at, (other, its_class)) in others.iter().enumerate() {
        if without == Some(at) {
            continue;
        }
        sum += product_of((row, class), (other, its_class));
    }
    let count = others.classes.len() - usize::from(without.is_some());
    sum / (count as f64).max(1.0)
}
