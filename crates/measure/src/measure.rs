//! The table of measures: one file and one row of [`TABLE`] each.
//!
//! A row names a measure, says which way is better, and *prepares* it for given predictions. A prepared measure
//! answers for any counts of the rows, which is what a bootstrap asks a thousand times.
//!
//! | kind | measures | in common |
//! |---|---|---|
//! | of decisions | accuracy, balanced accuracy, macro-F1 | the predicted classes (`tally.rs`) |
//! | of order | AUROC, AUPRC | rows sorted by the probability of a class (`ranking.rs`) |
//! | of probabilities | log loss, Brier score, calibration error | |
//! | of numbers | MAE, RMSE, R² | |
//!
//! Sums run in `f64` in the order of the rows.

mod accuracy;
mod auprc;
mod auroc;
mod balanced_accuracy;
mod brier;
mod calibration_error;
mod log_loss;
mod macro_f1;
mod mae;
mod mean;
mod r2;
mod ranking;
mod rmse;
mod tally;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub use auprc::of_each_class as auprc_of_each_class;
pub use auroc::of_each_class as auroc_of_each_class;

use crate::{Classified, Estimated, Predictions, Task};

/// One measure. Its name in files and on the command line is in kebab case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "&'static str")]
pub enum Measure {
    /// The share of rows whose class is predicted.
    Accuracy,
    /// The mean of the classes' recalls.
    BalancedAccuracy,
    /// The mean of the classes' F1.
    MacroF1,
    /// The area under the ROC curve.
    Auroc,
    /// The area under the precision-recall curve.
    Auprc,
    /// The mean negative logarithm of the true class's probability.
    LogLoss,
    /// The mean squared error of the probabilities.
    Brier,
    /// The expected calibration error.
    CalibrationError,
    /// The mean absolute error.
    Mae,
    /// The root of the mean squared error.
    Rmse,
    /// The share of the variance that is explained.
    R2,
}

/// All measures, in the order of [`Measure`].
pub const TABLE: &[Row] = &[
    accuracy::ROW,
    balanced_accuracy::ROW,
    macro_f1::ROW,
    auroc::ROW,
    auprc::ROW,
    log_loss::ROW,
    brier::ROW,
    calibration_error::ROW,
    mae::ROW,
    rmse::ROW,
    r2::ROW,
];

/// What is to be known of one measure.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// The measure.
    pub measure: Measure,
    /// Its name in files and on the command line.
    pub name: &'static str,
    /// What people call it.
    pub label: &'static str,
    /// What it is, in one line.
    pub about: &'static str,
    /// Which way is better.
    pub better: Better,
    /// Whether it is a share, which is shown in percent.
    pub is_share: bool,
    prepare: Prepare,
}

/// Which way a measure is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Better {
    /// A higher value is better.
    Higher,
    /// A lower value is better.
    Lower,
}

/// A measure made ready for predictions: given how often each row counts, it returns its value if it has one.
pub(crate) type Weighed<'a> = Box<dyn Fn(&[u32]) -> Option<f64> + 'a>;

/// How a measure is made ready, and for what.
#[derive(Debug, Clone, Copy)]
enum Prepare {
    Classes(fn(&Classified) -> Weighed<'_>),
    Numbers(fn(&Estimated) -> Weighed<'_>),
}

/// No measure has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no measure `{0}`: choose one of {list}", list = names())]
pub struct UnknownMeasure(pub String);

impl Measure {
    /// Visits all measures.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|row| row.measure)
    }

    /// Visits the measures of one task.
    pub fn all_of(task: Task) -> impl Iterator<Item = Self> {
        Self::all().filter(move |measure| measure.task() == task)
    }

    /// Returns its row of the table.
    pub fn row(self) -> &'static Row {
        &TABLE[self as usize]
    }

    /// Returns its name in files and on the command line.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Returns what people call it.
    pub fn label(self) -> &'static str {
        self.row().label
    }

    /// Says in one line what it is.
    pub fn about(self) -> &'static str {
        self.row().about
    }

    /// Tells which way is better.
    pub fn better(self) -> Better {
        self.row().better
    }

    /// Tells whether it is a share, which is shown in percent.
    pub fn is_share(self) -> bool {
        self.row().is_share
    }

    /// Tells whether it is for classes or for numbers.
    pub fn task(self) -> Task {
        match self.row().prepare {
            Prepare::Classes(_) => Task::Classes,
            Prepare::Numbers(_) => Task::Numbers,
        }
    }

    /// Tells by how much `value` is better than `other`: below 0 if it is worse.
    pub fn gain(self, value: f64, other: f64) -> f64 {
        match self.better() {
            Better::Higher => value - other,
            Better::Lower => other - value,
        }
    }

    /// Returns its value, or `None` where it has none.
    ///
    /// It has none for predictions of the other task, where its own file says so, and where squares of huge numbers
    /// exceed 64 bits.
    pub fn of(self, predictions: &Predictions) -> Option<f64> {
        let ones = vec![1; predictions.rows()];
        self.prepare(predictions)?(&ones)
    }

    /// Makes it ready for these predictions; `None` if they are of the other task.
    pub(crate) fn prepare(self, predictions: &Predictions) -> Option<Weighed<'_>> {
        let weighed = match (self.row().prepare, predictions) {
            (Prepare::Classes(prepare), Predictions::Classes(classified)) => prepare(classified),
            (Prepare::Numbers(prepare), Predictions::Numbers(estimated)) => prepare(estimated),
            _ => return None,
        };
        Some(Box::new(move |counts| {
            weighed(counts).filter(|value| value.is_finite())
        }))
    }
}

impl fmt::Display for Measure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

impl FromStr for Measure {
    type Err = UnknownMeasure;

    fn from_str(name: &str) -> Result<Self, UnknownMeasure> {
        let row = TABLE.iter().find(|row| row.name == name);
        row.map(|row| row.measure)
            .ok_or_else(|| UnknownMeasure(name.to_owned()))
    }
}

impl TryFrom<String> for Measure {
    type Error = UnknownMeasure;

    fn try_from(name: String) -> Result<Self, UnknownMeasure> {
        name.parse()
    }
}

impl From<Measure> for &'static str {
    fn from(measure: Measure) -> Self {
        measure.name()
    }
}

fn names() -> String {
    let names: Vec<&str> = TABLE.iter().map(|row| row.name).collect();
    names.join(", ")
}

/// Returns how many rows count, each as often as it does.
fn total(counts: &[u32]) -> u64 {
    counts.iter().map(|&count| u64::from(count)).sum()
}

/// Returns a share; `None` of nothing.
fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

#[cfg(test)]
mod tests;
