//! The last round of a learner that ends with class statistics (`statistics.enabled`).
//!
//! Until then all is as without. From the moment its sums are there, they are the node's shared part, and what was shared
//! before is its own affair. Which of the two holds is part of the node's memory, so it survives a restart.

use fednode_core::work::Update;
use fednode_core::{FederationSpec, Round};

use super::{Learner, count};
use crate::class_statistics::ClassStatistics;
use crate::error::LearnError;
use crate::last_stage;
use crate::model::multiply_adds;
use crate::pool::Predictor;
use crate::train;

impl Learner {
    /// Makes the statistics of the features that all nodes share.
    pub(super) fn empty_statistics(
        &self,
        spec: &FederationSpec,
    ) -> Result<ClassStatistics, LearnError> {
        let (algorithm, tensors) = (self.parts.algorithm.as_ref(), self.parts.device.tensors());
        let (source, width) = self
            .parts
            .device
            .run(|| last_stage::statistics_features(algorithm, spec, tensors))?;
        last_stage::check_dimensions(width, spec)?;
        Ok(ClassStatistics::new(spec, source, width, tensors))
    }

    /// Tells whether a round adds up statistics instead of training.
    pub(super) fn gathers_statistics_in(&self, round: Round) -> bool {
        self.parts
            .statistics
            .as_ref()
            .is_some_and(|(last, _)| *last == round)
    }

    /// Adds up the statistics instead of training; from then on they are what this node shares.
    pub(super) fn gather_statistics(&mut self) -> Update {
        let (algorithm, samples, tensors) = (
            self.parts.algorithm.as_ref(),
            &self.data.train,
            self.parts.device.tensors(),
        );
        let mut multiply_adds = 0;
        if let Some((_, statistics)) = &mut self.parts.statistics {
            let work = || statistics.gather(algorithm, samples, tensors);
            ((), multiply_adds) = self.parts.device.run(|| multiply_adds::counted(work));
        }
        let train_loss = self.score(&self.data.train).score.loss;
        self.report(train::Outcome {
            train_loss,
            multiply_adds,
            ..train::Outcome::default()
        })
    }

    /// Makes the classifier of the sums that were adopted.
    pub(super) fn adopt_statistics(&mut self) {
        let class_counts = count(&self.data.train, self.model.classes);
        let own = Predictor {
            algorithm: self.parts.algorithm.as_ref(),
            pool: self.pool.as_ref(),
        };
        let (validation, tensors) = (&self.data.validation, self.parts.device.tensors());
        if let Some((_, statistics)) = &mut self.parts.statistics {
            self.parts
                .device
                .run(|| statistics.adopt(&own, &class_counts, validation, tensors));
        }
    }
}
