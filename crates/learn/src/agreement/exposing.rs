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
        let [members, others] = Rows::of_both([members, others], &features, device);
        let published = format!("second moment of {} numbers", self.width);
        let sums = self.read(&self.own.params());
        leverage(published, &sums, 0.0, [&members, &others])
            .into_iter()
            .collect()
    }
}
