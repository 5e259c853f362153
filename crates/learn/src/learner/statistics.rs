//! The last round of a learner that ends with class statistics (`statistics.enabled`).
//!
//! Until then all is as without. From the moment its sums are there, they are the node's shared part, and what was shared
//! before is its own affair. Which of the two holds is part of the node's memory, so it survives a restart.

use std::sync::Arc;

use fednode_core::work::{MemberStatistics, Update};
use fednode_core::{FederationSpec, ParamSet, Round};
use fednode_mix::Part;
use fednode_mix::statistics::robust;

use super::Learner;
use super::training::count;
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

    /// Goes on with rounds that were added after an end: what that end made of the model is forgotten, and what is shared is the
    /// model again.
    pub(crate) fn go_on(&mut self) {
        (self.pool, self.ahead) = (None, None);
        if let Some((_, statistics)) = &mut self.parts.statistics {
            self.parts.device.run(|| statistics.begin_anew());
        }
        self.choose_agreement();
    }

    /// Returns the mean of the statistics that this node believes, judged by its own ones, which are always in it. It is the
    /// mean that came, where that has no others.
    pub(crate) fn believed(
        &self,
        mean: Option<Arc<ParamSet>>,
        others: &[MemberStatistics],
    ) -> Option<Arc<ParamSet>> {
        let mean = mean?;
        if others.is_empty() || !self.parts.shares_statistics() {
            return Some(mean);
        }
        let own = Part {
            weight: self.data.train.len() as f64,
            params: Arc::new(self.shared()?),
        };
        let theirs = others.iter().map(|member| Part {
            weight: member.weight,
            params: Arc::clone(&member.params),
        });
        let theirs: Vec<Part> = theirs.collect();
        let Some(judged) = robust::judge(&own, &theirs, self.limits) else {
            return Some(mean);
        };
        for (member, doubt) in others.iter().zip(&judged.doubts) {
            if let Some(doubt) = doubt {
                let node = member.node.short();
                tracing::warn!(%node, "statistics are left out: {doubt}");
            }
        }
        let is_common = robust::are_alike(&judged.mean, &mean);
        Some(if is_common {
            mean
        } else {
            Arc::new(judged.mean)
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
            self.guard();
        }
    }
}
