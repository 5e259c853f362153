//! An attack on the statistics that a node publishes as they are.

use burn::tensor::Device;
use fednode_data::Samples;
use fednode_mix::Statistics;
use fednode_mix::sites::SiteSums;
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
        if let Some(total) = &self.total {
            let rows = [members, others];
            let found = match &total.promised {
                Some(promised) => self.exposed_promised(total, promised, rows),
                None => self.exposed_total(&sums.joined(GROUPS), rows),
            };
            return found.into_iter().collect();
        }
        // What the sums do not hold, such as rare words, tells an attacker nothing.
        let is_out = sums.left_out();
        members.leave_out(&is_out);
        others.leave_out(&is_out);
        let width = is_out.iter().filter(|is_out| !**is_out).count();
        let published = format!("second moment of {width} numbers");
        leverage(published, &sums, 0.0, [&members, &others])
            .into_iter()
            .collect()
    }

    /// Attacks the own part of the total of all sites, as whoever knows the rows of all others sees it. Means of classes are not in it.
    /// The attack is given them all the same, so a stronger one finds no more for want of them.
    fn exposed_total(
        &self,
        own: &Statistics,
        [mut members, mut others]: [Rows; 2],
    ) -> Option<Exposure> {
        let means = own.means();
        for rows in [&mut members, &mut others] {
            let pairs = rows.features.iter_mut().zip(&rows.classes);
            for (row, class) in pairs {
                let apart = row.iter_mut().zip(&means[*class]);
                apart.for_each(|(value, mean)| *value -= *mean as f32);
            }
        }
        let mut seen = Statistics::new(self.classes, self.width);
        seen.scatter = SiteSums::of(own).within().to_vec();
        let published = format!("its part of a total of {} columns", self.width);
        leverage(published, &seen, 0.0, [&members, &others])
    }
}
