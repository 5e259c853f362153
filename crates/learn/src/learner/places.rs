//! A learner of numbers sees each as its place in the range of the spec, and answers in the unit of the data.

use std::borrow::Cow;
use std::sync::Arc;

use fednode_core::spec::Target;
use fednode_data::{Samples, Split};

use crate::error::LearnError;
use crate::evaluate::Prediction;

/// From how many halves of the range on a number is far outside.
const FAR: f32 = 10.0;

/// The number that a learner predicts; nothing where it predicts classes.
pub(super) struct Places(Option<Target>);

impl Places {
    /// Takes what a spec says of the number.
    pub(super) fn of(target: Option<&Target>) -> Self {
        Self(target.cloned())
    }

    /// Tells whether numbers are predicted.
    pub(super) fn are_numbers(&self) -> bool {
        self.0.is_some()
    }

    /// Returns what is predicted.
    pub(super) fn target(&self) -> Option<&Target> {
        self.0.as_ref()
    }

    /// Checks that samples have numbers where they are predicted, and classes elsewhere.
    ///
    /// # Errors
    /// Says how to name the column.
    pub(super) fn check(&self, samples: &Samples) -> Result<(), LearnError> {
        match (&self.0, &samples.targets) {
            (Some(target), None) => Err(LearnError::NoNumbers(target.name.clone())),
            (None, Some(_)) => Err(LearnError::Numbers(samples.class_names[0].clone())),
            (Some(_), Some(_)) | (None, None) => Ok(()),
        }
    }

    /// Returns all samples of a node as they are learned from.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub(super) fn split(&self, data: Arc<Split>) -> Result<Arc<Split>, LearnError> {
        for samples in [&data.train, &data.validation, &data.test] {
            self.check(samples)?;
        }
        let Some(target) = &self.0 else {
            return Ok(data);
        };
        let placed =
            |samples: &Samples| samples.clone().with_targets(|number| target.place(number));
        Ok(Arc::new(Split {
            train: placed(&data.train),
            validation: placed(&data.validation),
            test: placed(&data.test),
        }))
    }

    /// Returns samples as they are learned from.
    pub(super) fn samples<'a>(&self, samples: Cow<'a, Samples>) -> Cow<'a, Samples> {
        match &self.0 {
            None => samples,
            Some(target) => {
                let placed = samples.into_owned();
                Cow::Owned(placed.with_targets(|number| target.place(number)))
            }
        }
    }

    /// Says what to do about numbers that lie far outside of the range, if there are any: training diverges of them.
    pub(super) fn advice(&self, samples: &Samples) -> Option<String> {
        let target = self.0.as_ref()?;
        let places = samples.targets.iter().flatten();
        let farthest = places.max_by(|a, b| a.abs().total_cmp(&b.abs()))?;
        let [low, high] = target.range;
        (farthest.abs() > FAR).then(|| {
            format!(
                "`{}` reaches {}, far outside of `data.target.range` ({low} to {high}): widen that in the spec, or leave such rows out",
                target.name,
                target.number(*farthest)
            )
        })
    }

    /// Returns the true numbers of samples in the unit of the data; nothing where classes are predicted.
    pub(super) fn truth(&self, samples: &Samples) -> Option<Vec<f32>> {
        let target = self.0.as_ref()?;
        let places = samples.targets.iter().flatten();
        Some(places.map(|place| target.number(*place)).collect())
    }

    /// Returns a prediction in the unit of the data.
    pub(super) fn prediction(&self, prediction: Prediction) -> Prediction {
        let number = prediction.number.zip(self.0.as_ref());
        Prediction {
            number: number.map(|(place, target)| target.number(place)),
            ..prediction
        }
    }
}
