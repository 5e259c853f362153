//! Whose samples are in a noised sum, guessed as well as whoever knows all of them can: for audits with canaries.
//!
//! ```text
//! v                    a sample's vector in the sum, super::noised
//! r = V (sum - what is known - ½ Σ v)       how much of each canary is in the sum, more or less than by half
//! ŝ = (V Vᵀ + 4 m² I)⁻¹ r                    the same without what canaries have in common; m: the noise
//! ```
//!
//! A canary that is in has s = ½, and one that is out has s = -½. `ŝ` is the best linear estimate of that, where all coins
//! are fair and noise is independent.

use fednode_privacy::statistics::Shares;
use fednode_privacy::units::Noise;
use nalgebra::{DMatrix, DVector};

use super::{Statistics, StatisticsError};

/// Features of a sample and its class.
pub type Canary = (Vec<f32>, usize);

impl Statistics {
    /// Returns the product of a sample's vector with this sum of such vectors.
    ///
    /// # Panics
    /// Panics if the features are not D numbers or the class is none.
    pub fn product(&self, features: &[f32], class: usize) -> f64 {
        let (of_counts, of_sums, of_scatter) = Shares::STUDY.parts();
        let width = self.width;
        assert_eq!(features.len(), width, "features of this width");
        let sums = &self.sums[class * width..][..width];
        let first = features.iter().zip(sums);
        let first: f64 = first.map(|(value, sum)| f64::from(*value) * sum).sum();
        let mut products = self.scatter.iter();
        let mut second = 0.0;
        for (at, left) in features.iter().enumerate() {
            let row = features[at..].iter().zip(products.by_ref());
            for (place, (right, entry)) in row.enumerate() {
                let twice = if place == 0 { 1.0 } else { 2.0 };
                second += twice * f64::from(*left) * f64::from(*right) * entry;
            }
        }
        of_counts * self.counts[class] + of_sums * first + of_scatter * second
    }
}

/// Returns the product of two samples' vectors.
pub fn product_of(one: (&[f32], usize), other: (&[f32], usize)) -> f64 {
    let (of_counts, of_sums, of_scatter) = Shares::STUDY.parts();
    let pairs = one.0.iter().zip(other.0);
    let cosine: f64 = pairs.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
    let same = f64::from(u8::from(one.1 == other.1));
    same * (of_counts + of_sums * cosine) + of_scatter * cosine * cosine
}

/// Estimates for each canary whether it is in a sum with noise: above 0 if it rather is. `unknown` is the sum less all that is
/// known to be in it.
///
/// # Errors
/// Fails where the sum has what is no number.
pub fn estimates(
    unknown: &Statistics,
    canaries: &[Canary],
    noise: Noise,
) -> Result<Vec<f64>, StatisticsError> {
    let vectors = || canaries.iter().map(|(row, class)| (row.as_slice(), *class));
    let mut products = DMatrix::from_fn(canaries.len(), canaries.len(), |row, column| {
        let [one, other] = [row, column].map(|at| (canaries[at].0.as_slice(), canaries[at].1));
        if row <= column {
            product_of(one, other)
        } else {
            0.0
        }
    });
    products.fill_lower_triangle_with_upper_triangle();
    let half = products.column_sum() * 0.5;
    let seen = vectors().map(|(row, class)| unknown.product(row, class));
    let seen = DVector::from_iterator(canaries.len(), seen) - half;
    let ridge = 4.0 * noise.get().powi(2);
    (0..canaries.len()).for_each(|at| products[(at, at)] += ridge);
    let factor = products.cholesky().ok_or(StatisticsError::Degenerate)?;
    let found = factor.solve(&seen);
    let is_finite = found.iter().all(|value| value.is_finite());
    is_finite
        .then(|| found.iter().copied().collect())
        .ok_or(StatisticsError::Degenerate)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::noised::WholeSums;

    fn canaries() -> Vec<Canary> {
        let rows = [[1.0_f32, 0.0], [0.0, 1.0], [0.6, 0.8], [-0.8, 0.6]];
        rows.map(|row| row.to_vec())
            .into_iter()
            .zip([0, 0, 1, 1])
            .collect()
    }

    /// A sample's product with a sum is that with each of its samples.
    #[test]
    fn products_with_a_sum_add_up() {
        let mut sum = WholeSums::new(2, 2);
        let some = canaries();
        some.iter().for_each(|(row, class)| sum.add(row, *class));
        let sum = sum.statistics();
        for (row, class) in &some {
            let one = (row.as_slice(), *class);
            let each: f64 = some
                .iter()
                .map(|(row, class)| product_of(one, (row, *class)))
                .sum();
            assert!((sum.product(row, *class) - each).abs() < 1e-4);
            assert!((product_of(one, one) - 1.0).abs() < 1e-6);
        }
    }

    #[test]
    fn without_noise_each_canary_is_told() {
        let mut sum = WholeSums::new(2, 2);
        let some = canaries();
        for (row, class) in [&some[0], &some[3]] {
            sum.add(row, *class);
        }
        let none = Noise::new(1e-3).unwrap();
        let found = estimates(&sum.statistics(), &some, none).unwrap();
        let wanted = [0.5, -0.5, -0.5, 0.5];
        for (found, wanted) in found.iter().zip(wanted) {
            assert!((found - wanted).abs() < 0.01, "{found} {wanted}");
        }
    }
}
