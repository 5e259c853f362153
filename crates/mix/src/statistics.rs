//! A linear classifier from sums over all nodes' features: discriminant analysis with a common covariance.
//!
//! ```text
//! every node adds up over its samples      n_c = count, s_c = sum of r, G = sum of r rᵀ          r in R^D
//! sums over nodes, then everywhere alike   mu_c = s_c / n_c
//!                                          W = (G - sum_c n_c mu_c mu_cᵀ) / sum_c n_c + eps · mean(diag W) · I
//!                                          A = mu W⁻¹,  b_c = -½ mu_cᵀ W⁻¹ mu_c
//! a node predicts, with its own prior pi   softmax((A r + b) / T + log(pi + 10⁻³))
//! ```
//!
//! The sums are additive, so a mean of them weighted by samples is as good as the sum: the result does not depend on a
//! common factor. Classes that nobody has get probability 0. All in double precision.

pub mod canaries;
mod leverage;
pub mod noised;
pub mod robust;

use fednode_core::{ParamSet, Tensor};

use crate::names;

/// Added to a prior before its logarithm: a class that the node has never seen stays possible.
pub const PRIOR_FLOOR: f64 = 1e-3;
/// The regularisation of the covariance, relative to its mean variance.
pub const EPSILON: f64 = 0.01;
/// The offset of a class that nobody has.
pub(crate) const IMPOSSIBLE: f64 = -1e30;

/// Tells why there is no classifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StatisticsError {
    /// There is no sample.
    #[error("there are no samples to take statistics of")]
    Empty,
    /// The covariance is not finite and positive.
    #[error(
        "the features' covariance is not a finite positive matrix: they are all alike, or not numbers"
    )]
    Degenerate,
}

/// Share by which rounding may break a law of sums.
const ROUNDING: f64 = 0.02;
/// Share of the largest square that counts as nothing.
const TINY: f64 = 1e-6;

/// Sums over samples' features.
#[derive(Debug, Clone, PartialEq)]
pub struct Statistics {
    width: usize,
    /// n, one per class.
    pub counts: Vec<f64>,
    /// s, `[classes, D]`.
    pub sums: Vec<f64>,
    /// The upper triangle of G row by row, D (D + 1) / 2 numbers.
    pub scatter: Vec<f64>,
}

impl Statistics {
    /// Starts with nothing.
    pub fn new(classes: usize, width: usize) -> Self {
        let scatter = vec![0.0; width * (width + 1) / 2];
        Self {
            width,
            counts: vec![0.0; classes],
            sums: vec![0.0; classes * width],
            scatter,
        }
    }

    /// Reads the sums of a part as it travels; nothing if it is no part of the statistics expert.
    pub fn of_part(part: &ParamSet) -> Option<Self> {
        let [counts, sums, scatter] =
            [names::COUNTS, names::SUMS, names::SCATTER].map(|name| part.get(name));
        let (counts, sums, scatter) = (counts?, sums?, scatter?);
        let [classes, width] = *sums.shape() else {
            return None;
        };
        let is_whole = counts.values().len() == classes
            && scatter.values().len() == width * (width + 1) / 2
            && width > 0;
        let numbers = |tensor: &Tensor| tensor.values().iter().copied().map(f64::from).collect();
        is_whole.then(|| Self {
            width,
            counts: numbers(counts),
            sums: numbers(sums),
            scatter: numbers(scatter),
        })
    }

    /// Adds one sample to counts and sums, and not to the scatter.
    ///
    /// # Panics
    /// As [`Self::add`].
    pub fn count(&mut self, features: &[f32], class: usize) {
        assert_eq!(features.len(), self.width, "features of this width");
        self.counts[class] += 1.0;
        let sums = &mut self.sums[class * self.width..][..self.width];
        sums.iter_mut()
            .zip(features)
            .for_each(|(sum, value)| *sum += f64::from(*value));
    }

    /// Adds one sample.
    ///
    /// # Panics
    /// Panics if the features are not D numbers or the class is none.
    pub fn add(&mut self, features: &[f32], class: usize) {
        self.count(features, class);
        let mut row = 0;
        for (at, value) in features.iter().enumerate() {
            let others = &features[at..];
            let value = f64::from(*value);
            // Behind a ReLU half of the features are zero.
            if value != 0.0 {
                let scatter = self.scatter[row..row + others.len()].iter_mut();
                scatter
                    .zip(others)
                    .for_each(|(sum, other)| *sum += value * f64::from(*other));
            }
            row += others.len();
        }
    }

    /// Says which law these sums break that the sums of any real samples keep. Whoever sends such sums has made them up.
    ///
    /// Counts are not negative. By the inequality of Cauchy and Schwarz `G_dd >= sum_c s_cd² / n_c` for each feature, and
    /// `|G_ij|² <= G_ii G_jj` for each two. Numbers may have travelled in 16 bits, so a share of `ROUNDING` is allowed.
    pub fn fault(&self) -> Option<&'static str> {
        let all = || self.counts.iter().chain(&self.sums).chain(&self.scatter);
        if !all().all(|value| value.is_finite()) {
            return Some("not all of them are numbers");
        }
        if self.counts.iter().any(|count| *count < 0.0) || self.total() <= 0.0 {
            return Some("counts below zero, or of nothing");
        }
        let squares = self.squares();
        let largest = squares.iter().copied().fold(0.0, f64::max);
        let allowed = |square: f64| square * (1.0 + ROUNDING) + largest * TINY;
        for (feature, square) in squares.iter().enumerate() {
            let sums = self.sums.iter().skip(feature).step_by(self.width);
            let between = sums.zip(&self.counts).map(|(sum, count)| match count {
                0.0 if *sum == 0.0 => 0.0,
                0.0 => f64::INFINITY,
                count => sum * sum / count,
            });
            if between.sum::<f64>() > allowed(*square) {
                return Some("means that are too large for the second moments");
            }
        }
        let mut scatter = self.scatter.iter();
        for (first, square) in squares.iter().enumerate() {
            for other in &squares[first..] {
                let product = scatter.next().copied().unwrap_or_default();
                if product.abs() > allowed((square * other).sqrt()) {
                    return Some("products that are too large for the squares");
                }
            }
        }
        None
    }

    /// Returns the diagonal of G.
    fn squares(&self) -> Vec<f64> {
        let mut row = 0;
        let square = |width| {
            let square = self.scatter[row];
            row += width;
            square
        };
        (1..=self.width).rev().map(square).collect()
    }

    /// Returns the number of samples, or the sum of whatever weights they had.
    pub fn total(&self) -> f64 {
        self.counts.iter().sum()
    }

    /// Multiplies everything by a number.
    pub fn scale(&mut self, factor: f64) {
        let all = self
            .counts
            .iter_mut()
            .chain(&mut self.sums)
            .chain(&mut self.scatter);
        all.for_each(|value| *value *= factor);
    }

    /// Leaves features out, as if all samples had zeros there.
    ///
    /// # Panics
    /// Panics if the marks are not D.
    pub fn leave_out(&mut self, is_out: &[bool]) {
        assert_eq!(is_out.len(), self.width, "a mark for each feature");
        for sums in self.sums.chunks_exact_mut(self.width) {
            let marked = sums.iter_mut().zip(is_out).filter(|(_, is_out)| **is_out);
            marked.for_each(|(sum, _)| *sum = 0.0);
        }
        let mut scatter = self.scatter.iter_mut();
        for (at, row_is_out) in is_out.iter().enumerate() {
            let row = scatter.by_ref().take(self.width - at);
            for (value, is_out) in row.zip(&is_out[at..]) {
                if *row_is_out || *is_out {
                    *value = 0.0;
                }
            }
        }
    }

    /// Marks the features that are zero in all samples.
    pub fn left_out(&self) -> Vec<bool> {
        let mut diagonal = 0;
        let is_out = |at: usize| {
            let square = self.scatter[diagonal];
            diagonal += self.width - at;
            square == 0.0
        };
        (0..self.width).map(is_out).collect()
    }

    /// Adds another node's sums, each times a weight.
    ///
    /// # Panics
    /// Panics if they are of other classes or features.
    pub fn add_weighted(&mut self, other: &Self, weight: f64) {
        let own = [&mut self.counts, &mut self.sums, &mut self.scatter];
        let theirs = [&other.counts, &other.sums, &other.scatter];
        for (own, theirs) in own.into_iter().zip(theirs) {
            assert_eq!(own.len(), theirs.len(), "sums of the same form");
            let pairs = own.iter_mut().zip(theirs);
            pairs.for_each(|(own, value)| *own += weight * value);
        }
    }

    /// Adds up every `parts` classes that follow each other, which are parts of one.
    pub fn joined(&self, parts: usize) -> Self {
        let width = self.width;
        let counts = self.counts.chunks(parts).map(|part| part.iter().sum());
        let sums = self.sums.chunks(parts * width).flat_map(|part| {
            let total = |feature: usize| part.iter().skip(feature).step_by(width).sum();
            (0..width).map(total).collect::<Vec<f64>>()
        });
        Self {
            width,
            counts: counts.collect(),
            sums: sums.collect(),
            scatter: self.scatter.clone(),
        }
    }

    /// Returns D.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns the means of the classes; zeros where there are no samples.
    pub fn means(&self) -> Vec<Vec<f64>> {
        let mean = |(count, sums): (&f64, &[f64])| {
            let share = |sum: &f64| if *count > 0.0 { sum / count } else { 0.0 };
            sums.iter().map(share).collect()
        };
        let classes = self.counts.iter().zip(self.sums.chunks_exact(self.width));
        classes.map(mean).collect()
    }

    /// Solves for the classifier.
    ///
    /// # Errors
    /// Fails without any sample, and if the covariance is not finite and positive.
    pub fn solve(&self, epsilon: f64) -> Result<Discriminant, StatisticsError> {
        self.solve_for(&self.means(), epsilon)
    }

    /// Solves for a classifier that has these means in place of the classes' own, which the covariance is taken around.
    ///
    /// # Errors
    /// As [`Self::solve`].
    pub fn solve_for(
        &self,
        means: &[Vec<f64>],
        epsilon: f64,
    ) -> Result<Discriminant, StatisticsError> {
        let width = self.width;
        let factor = cholesky(self.covariance(epsilon)?, width)?;
        let mut weights = Vec::with_capacity(self.sums.len());
        let mut offsets = Vec::with_capacity(means.len());
        for (mean, count) in means.iter().zip(&self.counts) {
            let row = back_substitute(&factor, width, mean);
            let square: f64 = row.iter().zip(mean).map(|(a, mu)| a * mu).sum();
            offsets.push(if *count > 0.0 {
                -0.5 * square
            } else {
                IMPOSSIBLE
            });
            weights.extend(row);
        }
        Ok(Discriminant {
            width,
            weights,
            offsets,
        })
    }

    /// Returns W as its lower triangle, row by row in a square of zeros.
    ///
    /// # Errors
    /// Fails without any sample.
    pub(crate) fn covariance(&self, epsilon: f64) -> Result<Vec<f64>, StatisticsError> {
        let (width, total, means) = (self.width, self.total(), self.means());
        if total.is_nan() || total <= 0.0 {
            return Err(StatisticsError::Empty);
        }
        let mut matrix = vec![0.0; width * width];
        let mut next = self.scatter.iter();
        for (row, column) in
            (0..width).flat_map(|row| (row..width).map(move |column| (row, column)))
        {
            let between: f64 = means
                .iter()
                .zip(&self.counts)
                .map(|(mean, n)| n * mean[row] * mean[column])
                .sum();
            matrix[column * width + row] = (next.next().copied().unwrap_or(0.0) - between) / total;
        }
        let mean_variance =
            (0..width).map(|at| matrix[at * width + at]).sum::<f64>() / width as f64;
        (0..width).for_each(|at| matrix[at * width + at] += epsilon * mean_variance);
        Ok(matrix)
    }
}

/// The classifier.
#[derive(Debug, Clone, PartialEq)]
pub struct Discriminant {
    width: usize,
    /// A, `[classes, D]`.
    pub weights: Vec<f64>,
    /// b, one per class.
    pub offsets: Vec<f64>,
}

impl Discriminant {
    /// Makes a classifier of weights `[classes, D]` and offsets `[classes]` that were solved before.
    pub fn new(weights: Vec<f64>, offsets: Vec<f64>) -> Self {
        Self {
            width: weights.len() / offsets.len().max(1),
            weights,
            offsets,
        }
    }

    /// Returns `A r + b`, one number per class.
    pub fn logits(&self, features: &[f32]) -> Vec<f64> {
        let rows = self.weights.chunks_exact(self.width).zip(&self.offsets);
        let dot = |row: &[f64]| {
            row.iter()
                .zip(features)
                .map(|(a, r)| a * f64::from(*r))
                .sum::<f64>()
        };
        rows.map(|(row, offset)| dot(row) + offset).collect()
    }

    /// Returns the probability of each class for a node with this prior.
    pub fn probabilities(&self, features: &[f32], temperature: f64, prior: &[f64]) -> Vec<f64> {
        tempered(&self.logits(features), temperature, prior)
    }
}

/// Returns `softmax(logits / T + log(prior + 10⁻³))`.
pub fn tempered(logits: &[f64], temperature: f64, prior: &[f64]) -> Vec<f64> {
    let scores = logits
        .iter()
        .zip(prior)
        .map(|(logit, pi)| logit / temperature + (pi + PRIOR_FLOOR).ln());
    let scores: Vec<f64> = scores.collect();
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let powers: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
    let total: f64 = powers.iter().sum();
    powers.into_iter().map(|power| power / total).collect()
}

/// Factors a symmetric positive matrix, given by its lower triangle, into `L Lᵀ`.
pub(crate) fn cholesky(mut matrix: Vec<f64>, width: usize) -> Result<Vec<f64>, StatisticsError> {
    for row in 0..width {
        let (above, current) = matrix.split_at_mut(row * width);
        for column in 0..=row {
            let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
            if column < row {
                let other = &above[column * width..][..width];
                current[column] =
                    (current[column] - dot(&current[..column], &other[..column])) / other[column];
            } else {
                let square = current[row] - dot(&current[..row], &current[..row]);
                if square.is_nan() || square <= 0.0 || square.is_infinite() {
                    return Err(StatisticsError::Degenerate);
                }
                current[row] = square.sqrt();
            }
        }
    }
    Ok(matrix)
}

/// Solves `L Lᵀ x = y`.
pub(crate) fn back_substitute(factor: &[f64], width: usize, y: &[f64]) -> Vec<f64> {
    let mut x = y.to_vec();
    for row in 0..width {
        let known: f64 = factor[row * width..][..row]
            .iter()
            .zip(&x)
            .map(|(l, value)| l * value)
            .sum();
        x[row] = (x[row] - known) / factor[row * width + row];
    }
    for row in (0..width).rev() {
        let known: f64 = (row + 1..width)
            .map(|below| factor[below * width + row] * x[below])
            .sum();
        x[row] = (x[row] - known) / factor[row * width + row];
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_statistics_give_no_classifier() {
        assert!(Statistics::new(2, 3).solve(EPSILON).is_err());
        let mut broken = Statistics::new(1, 1);
        broken.add(&[f32::NAN], 0);
        assert!(broken.solve(EPSILON).is_err());
    }

    #[test]
    fn sums_that_no_samples_have_are_named() {
        let mut sums = Statistics::new(2, 3);
        sums.add(&[1.0, 0.5, -2.0], 0);
        sums.add(&[0.5, 0.5, 1.0], 0);
        sums.add(&[-1.0, 2.0, 0.0], 1);
        sums.scale(1.0 / 3.0);
        assert_eq!(sums.fault(), None);
        let fault = |change: &dyn Fn(&mut Statistics)| {
            let mut sums = sums.clone();
            change(&mut sums);
            sums.fault().is_some()
        };
        assert!(!fault(&|sums| sums.scale(1e3)), "a factor is no lie");
        assert!(fault(&|sums| sums.counts[0] = f64::NAN));
        assert!(fault(&|sums| sums.counts[1] *= -1.0));
        assert!(fault(&|sums| sums.counts = vec![0.0; 2]));
        assert!(
            fault(&|sums| sums.sums[4] *= 3.0),
            "a class mean that is moved"
        );
        assert!(
            fault(&|sums| sums.counts[0] = 0.0),
            "sums of a class without samples"
        );
        assert!(fault(&|sums| sums.scatter[0] *= -1.0), "a negative square");
        assert!(
            fault(&|sums| sums.scatter[2] = 9.0),
            "a product beyond its squares"
        );
    }

    #[test]
    fn features_that_are_left_out_are_as_if_they_were_zero() {
        let samples = [
            ([1.0, 0.5, -2.0], 0),
            ([0.5, 0.5, 1.0], 0),
            ([-1.0, 2.0, 0.0], 1),
        ];
        let (mut sums, mut expected) = (Statistics::new(2, 3), Statistics::new(2, 3));
        for (features, class) in samples {
            sums.add(&features, class);
            expected.add(&[features[0], 0.0, features[2]], class);
        }
        assert_eq!(sums.left_out(), [false; 3]);
        sums.leave_out(&[false, true, false]);
        assert_eq!(sums, expected);
        assert_eq!(sums.left_out(), [false, true, false]);
    }

    #[test]
    fn a_common_factor_changes_nothing() {
        let mut statistics = Statistics::new(2, 2);
        for (features, class) in [
            ([1.0, 2.0], 0),
            ([0.5, -1.0], 1),
            ([0.0, 3.0], 0),
            ([-1.0, 0.25], 1),
        ] {
            statistics.add(&features, class);
        }
        let solved = statistics.solve(EPSILON).unwrap();
        statistics.scale(1.0 / 64.0);
        assert_eq!(statistics.solve(EPSILON).unwrap(), solved);
    }

    #[test]
    fn a_class_that_nobody_has_is_impossible() {
        let mut statistics = Statistics::new(3, 1);
        for (value, class) in [(0.0, 0), (1.0, 0), (3.0, 2), (4.0, 2)] {
            statistics.add(&[value], class);
        }
        let probabilities =
            statistics
                .solve(EPSILON)
                .unwrap()
                .probabilities(&[0.5], 1.0, &[0.4, 0.2, 0.4]);
        assert_eq!(probabilities[1], 0.0);
        assert!(probabilities[0] > 0.9, "{probabilities:?}");
    }
}
