//! Means and covariances of features and of the number to predict, together: what a node publishes of its rows.

use fednode_core::ParamSet;
use nalgebra::{DMatrix, DVector};

use super::{Intercept, Sums};

/// What is added to correlations before a slope is made of them, so that a few rows have one.
const STEADY: f64 = 0.1;
/// What rounding to 32 bits may add to a correlation.
const ROUNDING: f64 = 1e-4;

/// Means and covariances of D features and the number, of some rows.
#[derive(Debug, Clone, PartialEq)]
pub struct Joint {
    /// The means, `[D + 1]`; that of the number is the last.
    pub means: Vec<f64>,
    /// The covariances around them, divided by the number of rows, row by row of the upper triangle.
    pub covariances: Vec<f64>,
}

/// Tells why statistics are those of no rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum JointError {
    /// There are other tensors than means and covariances.
    #[error("its statistics are not means and covariances of features and a number")]
    Form,
    /// No rows have them.
    #[error(
        "its statistics are those of no rows: a variance is negative, or a covariance too large"
    )]
    Impossible,
}

impl Joint {
    /// Adds up rows, one after the other, with their numbers.
    ///
    /// # Panics
    /// Panics if features are no whole rows.
    pub fn of(features: &[f32], numbers: &[f32]) -> Self {
        let n_rows = numbers.len().max(1);
        let width = features.len() / n_rows;
        assert_eq!(width * n_rows, features.len(), "whole rows");
        let value = |row: usize, column: usize| match column {
            _ if column == width => f64::from(numbers[row]),
            _ => f64::from(features[row * width + column]),
        };
        let whole = DMatrix::from_fn(numbers.len(), width + 1, value);
        let means: Vec<f64> = whole
            .column_iter()
            .map(|column| column.sum() / n_rows as f64)
            .collect();
        // Around the means from the beginning: the difference of two large sums would have few digits.
        let centred = DMatrix::from_fn(numbers.len(), width + 1, |row, at| {
            whole[(row, at)] - means[at]
        });
        let products = centred.tr_mul(&centred) / n_rows as f64;
        let covariances = (0..=width).flat_map(|row| (row..=width).map(move |at| (row, at)));
        Self {
            covariances: covariances.map(|place| products[place]).collect(),
            means,
        }
    }

    /// Reads them as they travel.
    ///
    /// # Errors
    /// Refuses other tensors, and what is that of no rows.
    pub fn read(params: &ParamSet) -> Result<Self, JointError> {
        let numbers = |name: &str| {
            let is_it = |(whole, _): &(&str, _)| whole.rsplit('.').next() == Some(name);
            let (_, tensor) = params.iter().find(is_it).ok_or(JointError::Form)?;
            Ok(tensor
                .values()
                .iter()
                .copied()
                .map(f64::from)
                .collect::<Vec<f64>>())
        };
        let joint = Self {
            means: numbers("means")?,
            covariances: numbers("covariances")?,
        };
        joint.checked()
    }

    /// Refuses what is that of no rows.
    pub(super) fn checked(self) -> Result<Self, JointError> {
        let size = self.means.len();
        if size < 2 || self.covariances.len() != size * (size + 1) / 2 {
            return Err(JointError::Form);
        }
        if self.is_possible() {
            Ok(self)
        } else {
            Err(JointError::Impossible)
        }
    }

    /// Returns the mean squares of the features, summed, and of the number: variances, and squares of means.
    pub fn squares(&self) -> (f64, f64) {
        let size = self.means.len();
        let square = |at: usize| {
            let diagonal = diagonal(at, size);
            self.covariances[diagonal] + self.means[at].powi(2)
        };
        ((0..size - 1).map(square).sum(), square(size - 1))
    }

    /// Returns the same around means of zero.
    pub fn centred(&self) -> Self {
        Self {
            means: vec![0.0; self.means.len()],
            covariances: self.covariances.clone(),
        }
    }

    /// Returns the number of features.
    pub fn width(&self) -> usize {
        self.means.len() - 1
    }

    fn matrix(&self) -> DMatrix<f64> {
        let size = self.means.len();
        let mut matrix = DMatrix::zeros(size, size);
        let mut covariances = self.covariances.iter();
        for row in 0..size {
            for (column, value) in (row..size).zip(covariances.by_ref()) {
                (matrix[(row, column)], matrix[(column, row)]) = (*value, *value);
            }
        }
        matrix
    }

    /// Tells whether any rows have these covariances.
    fn is_possible(&self) -> bool {
        let all = self.means.iter().chain(&self.covariances);
        if !all.clone().all(|value| value.is_finite()) {
            return false;
        }
        let matrix = self.matrix();
        let scales = scales_of(&matrix);
        let size = matrix.nrows();
        let is_square = |at: usize| matrix[(at, at)] >= 0.0;
        (0..size).all(is_square) && {
            let correlations = DMatrix::from_fn(size, size, |row, at| {
                matrix[(row, at)] / (scales[row] * scales[at])
            });
            let slack = ROUNDING * size as f64;
            (correlations + DMatrix::identity(size, size) * slack)
                .cholesky()
                .is_some()
        }
    }

    /// Returns how the number follows the features, in deviations of both; zeros where it follows none. Nodes are compared by it.
    pub fn slope(&self) -> Vec<f64> {
        let (matrix, width) = (self.matrix(), self.width());
        let scales = scales_of(&matrix);
        let correlation = |row: usize, at: usize| matrix[(row, at)] / (scales[row] * scales[at]);
        let mut features = DMatrix::from_fn(width, width, correlation);
        (0..width).for_each(|at| features[(at, at)] += STEADY);
        let number = DVector::from_fn(width, |at, _| correlation(at, width));
        let solved = features.cholesky().map(|factor| factor.solve(&number));
        solved.map_or_else(|| vec![0.0; width], |slope| slope.iter().copied().collect())
    }

    /// Adds what so many rows like these have to sums, on the scale of a problem.
    pub(super) fn add_to(
        &self,
        sums: &mut Sums,
        weight: f64,
        (means, scales): (&[f64], &[f64]),
        intercept: Intercept,
    ) {
        let (matrix, width) = (self.matrix(), self.width());
        assert_eq!(width, scales.len(), "as many features as the own rows");
        let scale = |at: usize| scales.get(at).copied().unwrap_or(1.0);
        let place = |at: usize| match intercept {
            Intercept::Common => (self.means[at] - means[at]) / scale(at),
            Intercept::Own => 0.0,
        };
        let product = |row: usize, at: usize| {
            matrix[(row, at)] / (scale(row) * scale(at)) + place(row) * place(at)
        };
        if intercept == Intercept::Common {
            sums.matrix[(0, 0)] += weight;
            sums.vector[0] += weight * place(width);
            for at in 0..width {
                sums.matrix[(0, at + 1)] += weight * place(at);
                sums.matrix[(at + 1, 0)] += weight * place(at);
            }
        }
        for row in 0..width {
            sums.vector[row + 1] += weight * product(row, width);
            for at in 0..width {
                sums.matrix[(row + 1, at + 1)] += weight * product(row, at);
            }
        }
    }
}

/// Returns where a variance stands in the upper triangle of so many rows.
fn diagonal(at: usize, size: usize) -> usize {
    at * size - at * at.saturating_sub(1) / 2
}

/// Returns the deviations, 1 where there is none.
fn scales_of(matrix: &DMatrix<f64>) -> Vec<f64> {
    let deviation = |at: usize| Some(matrix[(at, at)].sqrt()).filter(|value| *value > 0.0);
    (0..matrix.nrows())
        .map(|at| deviation(at).unwrap_or(1.0))
        .collect()
}

/// Returns means and variances of all rows together, given how many rows each counts for.
pub(super) fn together<'a>(
    all: impl Iterator<Item = (f64, &'a Joint)> + Clone,
) -> (Vec<f64>, Vec<f64>) {
    let total: f64 = all.clone().map(|(weight, _)| weight).sum();
    let size = all.clone().next().map_or(0, |(_, joint)| joint.means.len());
    let mean = |at: usize| {
        all.clone()
            .map(|(weight, joint)| weight / total * joint.means[at])
            .sum()
    };
    let means: Vec<f64> = (0..size).map(mean).collect();
    let variance = |at: usize| {
        let part = |(weight, joint): (f64, &Joint)| {
            let between = (joint.means[at] - means[at]).powi(2);
            weight / total * (joint.covariances[diagonal(at, size)] + between)
        };
        all.clone().map(part).sum()
    };
    let variances = (0..size).map(variance).collect();
    (means, variances)
}
