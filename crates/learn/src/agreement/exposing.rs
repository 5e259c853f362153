//! An attack on the statistics that a node publishes as they are.

use burn::tensor::Device;
use fednode_data::Samples;
use fednode_mix::slots::GROUPS;

use super::Agreement;
use crate::exposure::{ClassSums, Exposure, Rows, leverage};

impl Agreement {
    /// Returns the class sums of so many samples, as they are. Published are their shares of one sample.
    pub(crate) fn class_sums(&self, samples: usize) -> ClassSums<'_> {
        let mut sums = self.read(&self.own.params()).joined(GROUPS);
        sums.scale(samples as f64);
        ClassSums {
            published: format!("class sums of {} numbers", self.width),
            sums,
            noise: 0.0,
            features: Box::new(|inputs| self.features_of(inputs)),
        }
    }

    /// Attacks the published scatter with samples that are in it and others that are not. Class sums tell less, and whoever has
    /// them has the scatter, too.
    pub(crate) fn exposures(
        &self,
        members: &[&Samples],
        others: &[&Samples],
        device: &Device,
    ) -> Vec<Exposure> {
        let features = |inputs| self.features_of(inputs);
        let [mut members, mut others] = Rows::of_both([members, others], &features, device);
        let sums = self.read(&self.own.params());
        // What the sums do not hold, such as rare words, tells an attacker nothing.
        let is_out = sums.left_out();
        for row in members.features.iter_mut().chain(&mut others.features) {
            let marked = row.iter_mut().zip(&is_out).filter(|(_, is_out)| **is_out);
            marked.for_each(|(value, _)| *value = 0.0);
        }
        let width = is_out.iter().filter(|is_out| !**is_out).count();
        let published = format!("second moment of {width} numbers");
        leverage(published, &sums, 0.0, [&members, &others])
            .into_iter()
            .collect()
    }
}
