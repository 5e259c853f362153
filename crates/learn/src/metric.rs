//! By what models are judged: `metric` of the spec, else accuracy, or R² where a number is predicted.
//!
//! ```text
//! fitted        by log loss or squares, whatever the measure is: of few samples a proper score tells more
//! guarded       by the measure: what the federation brought is left out where it is worse on the validation samples, by
//!               more than chance explains; a pool's mixture, where it is worse at all, and joined with statistics where
//!               its log loss is larger
//! reported      by the measure: served, alone, difference, interval, worst node
//! ```
//!
//! The guard of statistics stands only where the spec names a measure. Without one, what is fitted decides alone.

use fednode_core::{ConfigError, FederationSpec, Judged};
use fednode_data::Samples;
use fednode_measure::predictions::PredictionsError;
use fednode_measure::{Bootstrap, Classified, Estimated, Measure, Predictions, Task};

use crate::evaluate::Prediction;

/// What a model lacks that a guard has left peers out of.
pub(crate) const LEFT_OUT: &str =
    "nothing of peers, who made the federation's measure worse on this node's validation samples";

/// Returns the measure by which the models of a federation are judged.
///
/// # Errors
/// Names the measures that there are, where the spec names none of them.
pub fn of(spec: &FederationSpec) -> Result<Measure, ConfigError> {
    let (task, usual) = match spec.data.target {
        None => (Task::Classes, Measure::Accuracy),
        Some(_) => (Task::Numbers, Measure::R2),
    };
    let Some(name) = &spec.metric else {
        return Ok(usual);
    };
    let names: Vec<&str> = Measure::all_of(task).map(Measure::name).collect();
    let measure: Option<Measure> = name.parse().ok();
    measure
        .filter(|measure| measure.task() == task)
        .ok_or_else(|| {
            let what = match task {
                Task::Classes => "where classes are predicted",
                Task::Numbers => "where a number is predicted",
            };
            let names = names.join(", ");
            ConfigError(format!(
                "`metric` is `{name}`, which is no measure {what}: choose one of {names}"
            ))
        })
}

/// Puts predictions beside the truth: of numbers in the unit in which both are given.
///
/// # Errors
/// Fails without a sample, and on predictions that are no probabilities or not finite.
pub fn beside(
    predictions: &[Prediction],
    truth: &Samples,
) -> Result<Predictions, PredictionsError> {
    against(predictions, &truth.labels, truth.targets.as_deref())
}

/// Puts predictions beside true numbers, if there are some, else beside true classes.
///
/// # Errors
/// As [`beside`].
pub(crate) fn against(
    predictions: &[Prediction],
    labels: &[u16],
    numbers: Option<&[f32]>,
) -> Result<Predictions, PredictionsError> {
    if let Some(numbers) = numbers {
        let predicted = predictions
            .iter()
            .map(|prediction| prediction.number.unwrap_or(f32::NAN));
        let predicted: Vec<f32> = predicted.collect();
        return Estimated::new(&predicted, numbers).map(Predictions::Numbers);
    }
    let rows = predictions
        .iter()
        .map(|prediction| prediction.probabilities.as_slice());
    let rows: Vec<&[f32]> = rows.collect();
    Classified::from_rows::<f32, _>(&rows, labels).map(Predictions::Classes)
}

/// Judges what is served beside what else could be, on the same samples.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Judge {
    measure: Measure,
}

impl Judge {
    /// Returns the judge that a spec asks for; nothing where it names no measure.
    pub(crate) fn of(spec: &FederationSpec) -> Result<Option<Self>, ConfigError> {
        let measure = of(spec)?;
        Ok(spec.metric.is_some().then_some(Self { measure }))
    }

    /// Says how good predictions are; without a value where the measure has none for them.
    pub(crate) fn judged(self, predictions: Option<&Predictions>) -> Judged {
        Judged {
            measure: self.measure.name().to_owned(),
            value: predictions.and_then(|predictions| self.measure.of(predictions)),
        }
    }

    /// Tells whether the first is worse than the second; nothing where one has no value.
    pub(crate) fn is_worse(self, one: &Predictions, two: &Predictions) -> Option<bool> {
        let values = self.measure.of(one).zip(self.measure.of(two));
        values.map(|(one, two)| self.measure.gain(one, two) < 0.0)
    }

    /// Tells whether the first is worse than the second by more than chance explains: the whole 95 % interval of a paired
    /// bootstrap, drawn from this seed, lies below no difference.
    pub(crate) fn is_clearly_worse(self, one: &Predictions, two: &Predictions, seed: u64) -> bool {
        // Most often it is not worse at all, and then nothing is drawn.
        if self.is_worse(one, two) != Some(true) {
            return false;
        }
        let gain = Bootstrap::seeded(seed).gain(self.measure, one, two);
        gain.ok().flatten().is_some_and(|gain| gain.high < 0.0)
    }

    /// Returns its name, for people.
    pub(crate) fn name(self) -> &'static str {
        self.measure.label()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fednode_core::spec::Target;

    fn spec(metric: Option<&str>, is_number: bool) -> FederationSpec {
        let mut spec = FederationSpec {
            metric: metric.map(str::to_owned),
            ..FederationSpec::default()
        };
        spec.data.target = is_number.then(|| Target {
            name: "y".into(),
            range: [0.0, 1.0],
        });
        spec
    }

    #[test]
    fn accuracy_and_r2_are_the_measures_of_a_spec_that_names_none() {
        assert_eq!(of(&spec(None, false)).unwrap(), Measure::Accuracy);
        assert_eq!(of(&spec(None, true)).unwrap(), Measure::R2);
        assert_eq!(of(&spec(Some("auroc"), false)).unwrap(), Measure::Auroc);
        assert!(Judge::of(&spec(None, false)).unwrap().is_none());
    }

    #[test]
    fn a_measure_of_the_other_task_is_refused_with_those_that_fit() {
        let error = of(&spec(Some("mae"), false)).unwrap_err().0;
        assert!(
            error.contains("`metric` is `mae`") && error.contains("auroc"),
            "{error}"
        );
        let error = of(&spec(Some("auroc"), true)).unwrap_err().0;
        assert!(error.contains("choose one of mae, rmse, r2"), "{error}");
        assert!(of(&spec(Some("aurok"), false)).is_err());
    }

    /// The second has every pair in the right order, the first has none. Of two rows chance may explain that, of 40 it does not.
    #[test]
    fn what_chance_explains_is_not_clearly_worse() {
        let judge = Judge::of(&spec(Some("auroc"), false)).unwrap().unwrap();
        let predictions = |n: usize, right: f64| {
            let labels: Vec<u16> = (0..n).map(|at| (at % 2) as u16).collect();
            let row = |label: &u16| {
                let one = if *label == 1 { right } else { 1.0 - right };
                [1.0 - one, one]
            };
            let probabilities: Vec<f64> = labels.iter().flat_map(row).collect();
            Predictions::of_classes(2, &probabilities, &labels).unwrap()
        };
        for (n, is_clear) in [(2, false), (40, true)] {
            let [wrong, right] = [predictions(n, 0.2), predictions(n, 0.9)];
            assert_eq!(judge.is_worse(&wrong, &right), Some(true));
            assert_eq!(judge.is_worse(&right, &wrong), Some(false));
            assert_eq!(
                judge.is_clearly_worse(&wrong, &right, 7),
                is_clear,
                "{n} rows"
            );
            assert!(!judge.is_clearly_worse(&right, &wrong, 7));
        }
    }
}
