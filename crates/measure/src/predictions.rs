//! Predictions beside the truth, checked once: every measure relies on what is checked here.
//!
//! Predictions are of classes ([`Classified`]) or of numbers ([`Estimated`]). Nothing here is ever empty, and no value is
//! NaN or infinite.

mod classified;
mod estimated;

pub use classified::Classified;
pub use estimated::Estimated;

/// Most rows: a row's number and its count in a resample fit into 32 bits.
pub const MAX_ROWS: usize = u32::MAX as usize;

/// How far the probabilities of a row may add up from 1: rounding to 16 bits passes, and logits do not.
pub const SUM_TOLERANCE: f64 = 0.01;

/// What is predicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Task {
    /// One class of several, by probabilities.
    Classes,
    /// A number.
    Numbers,
}

/// Predictions beside the truth.
#[derive(Debug, Clone, PartialEq)]
pub enum Predictions {
    /// Probabilities of classes, and the true classes.
    Classes(Classified),
    /// Predicted numbers, and the true ones.
    Numbers(Estimated),
}

/// Tells why predictions cannot be measured.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PredictionsError {
    /// There is no row.
    #[error("there are no rows to measure: give at least one")]
    Empty,
    /// There are more rows than can be counted.
    #[error("{0} rows are too many: measure at most {MAX_ROWS} at a time")]
    TooManyRows(usize),
    /// There are fewer than two classes.
    #[error("{0} classes are too few: give one probability for each of at least two classes")]
    TooFewClasses(usize),
    /// The probabilities are not one per row and class.
    #[error(
        "{found} probabilities do not make {rows} rows of {classes} classes: give {}",
        rows * classes
    )]
    Probabilities {
        /// How many probabilities were given.
        found: usize,
        /// How many labels were given.
        rows: usize,
        /// How many classes there are.
        classes: usize,
    },
    /// A row has more or fewer probabilities than the first.
    #[error("row {row} has {found} probabilities, and row 0 has {expected}: give one per class")]
    RowLength {
        /// The number of the row, from 0.
        row: usize,
        /// How many probabilities it has.
        found: usize,
        /// How many the first row has.
        expected: usize,
    },
    /// A probability is no number from 0 to 1.
    #[error("row {row} gives class {class} a probability of {value}: it must be from 0 to 1")]
    Probability {
        /// The number of the row, from 0.
        row: usize,
        /// The class.
        class: usize,
        /// What was given.
        value: f64,
    },
    /// The probabilities of a row do not add up to 1.
    #[error(
        "the probabilities of row {row} add up to {sum}: they must add up to 1, as softmax's do"
    )]
    Sum {
        /// The number of the row, from 0.
        row: usize,
        /// What they add up to.
        sum: f64,
    },
    /// A label names no class.
    #[error("row {row} has label {label}: with {classes} classes labels are 0 to {}", classes - 1)]
    Label {
        /// The number of the row, from 0.
        row: usize,
        /// Its label.
        label: u16,
        /// How many classes there are.
        classes: usize,
    },
    /// There are not as many predicted numbers as true ones.
    #[error("{predicted} predicted numbers and {truth} true ones: give one of each for every row")]
    Numbers {
        /// How many predicted numbers were given.
        predicted: usize,
        /// How many true ones.
        truth: usize,
    },
    /// A predicted number is NaN or infinite.
    #[error("row {row} predicts {value}: it must be a finite number")]
    Predicted {
        /// The number of the row, from 0.
        row: usize,
        /// What was given.
        value: f64,
    },
    /// A true number is NaN or infinite.
    #[error(
        "row {row} has the true number {value}: it must be finite, so leave out rows without one"
    )]
    Truth {
        /// The number of the row, from 0.
        row: usize,
        /// What was given.
        value: f64,
    },
}

/// A floating-point number of 32 or 64 bits.
///
/// Measures compute in 64 bits. The type matters for log loss alone, which bounds probabilities by its precision.
pub trait Real: Copy + Into<f64> + sealed::Sealed {
    /// The distance from 1 to the next number.
    const EPSILON: f64;
}

impl Real for f32 {
    const EPSILON: f64 = f32::EPSILON as f64;
}

impl Real for f64 {
    const EPSILON: f64 = f64::EPSILON;
}

mod sealed {
    #[allow(unnameable_types, reason = "nobody else implements `Real`")]
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
}

impl Predictions {
    /// Takes the probabilities of `classes` classes, row by row, and the true class of each row, counted from 0.
    ///
    /// # Errors
    /// As [`Classified::new`].
    pub fn of_classes<P: Real>(
        classes: usize,
        probabilities: &[P],
        labels: &[u16],
    ) -> Result<Self, PredictionsError> {
        Classified::new(classes, probabilities, labels).map(Self::Classes)
    }

    /// Takes predicted numbers, and the true number of each row.
    ///
    /// # Errors
    /// As [`Estimated::new`].
    pub fn of_numbers<P: Real, T: Real>(
        predicted: &[P],
        truth: &[T],
    ) -> Result<Self, PredictionsError> {
        Estimated::new(predicted, truth).map(Self::Numbers)
    }

    /// Returns the number of rows, at least 1.
    pub fn rows(&self) -> usize {
        match self {
            Self::Classes(classified) => classified.rows(),
            Self::Numbers(estimated) => estimated.rows(),
        }
    }

    /// Returns what is predicted.
    pub fn task(&self) -> Task {
        match self {
            Self::Classes(_) => Task::Classes,
            Self::Numbers(_) => Task::Numbers,
        }
    }

    /// Tells whether both predict the same rows: as many of them, with the same truth in the same order.
    pub fn predict_the_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Classes(one), Self::Classes(two)) => {
                one.classes() == two.classes() && one.labels() == two.labels()
            }
            (Self::Numbers(one), Self::Numbers(two)) => one.truth() == two.truth(),
            _ => false,
        }
    }
}

/// Refuses no rows, and more than can be counted.
fn check_rows(rows: usize) -> Result<(), PredictionsError> {
    match rows {
        0 => Err(PredictionsError::Empty),
        1..=MAX_ROWS => Ok(()),
        _ => Err(PredictionsError::TooManyRows(rows)),
    }
}
