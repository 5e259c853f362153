//! An attack on the statistics that a node publishes as they are.

use burn::tensor::Device;
use fednode_data::Samples;

use super::Agreement;
use crate::exposure::{Exposure, Rows, leverage};

impl Agreement {
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
