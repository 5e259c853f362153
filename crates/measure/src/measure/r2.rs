//! R²: the share of the truth's variance that the predictions explain.
//!
//! 1 − Σ (ŷ − y)² / Σ (y − ȳ)², as scikit-learn's `r2_score`. It is 1 at best, 0 for the mean of the truth, and below 0 for
//! what is worse than that.
//!
//! It has no value if the truth is constant, one row included. scikit-learn then gives 0 or 1 unless it is told
//! `force_finite=False`.

use super::mean::mean;
use super::{Better, Measure, Prepare, Row, Weighed};
use crate::Estimated;

pub(super) const ROW: Row = Row {
    measure: Measure::R2,
    name: "r2",
    label: "R²",
    about: "share of the target's variance that is explained: 1 at best, 0 for the mean",
    better: Better::Higher,
    is_share: true,
    prepare: Prepare::Numbers(prepare),
};

fn prepare(estimated: &Estimated) -> Weighed<'_> {
    let squares: Vec<f64> = estimated.errors().map(|error| error * error).collect();
    Box::new(move |counts| {
        let truth = estimated.truth();
        if is_constant(truth, counts) {
            return None;
        }
        let center = mean(truth, counts)?;
        let deviations = truth.iter().map(|number| (number - center).powi(2));
        let pairs = deviations.zip(squares.iter().zip(counts));
        let (unexplained, whole) = pairs.fold(
            (0.0, 0.0),
            |(error, whole), (deviation, (square, &count))| {
                let count = f64::from(count);
                (error + square * count, whole + deviation * count)
            },
        );
        Some(1.0 - unexplained / whole)
    })
}

/// Tells whether all rows that count have the same number. Sums would not: rounding moves the mean of equal numbers.
fn is_constant(truth: &[f64], counts: &[u32]) -> bool {
    let mut counted = truth
        .iter()
        .zip(counts)
        .filter(|(_, count)| **count > 0)
        .map(|(number, _)| number);
    let first = counted.next();
    counted.all(|number| Some(number) == first)
}
