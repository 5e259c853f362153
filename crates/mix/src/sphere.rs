//! Features on the sphere, of which noise spares most: whitened by directions that no real sample had a part in.
//!
//! ```text
//! u = √phi / |√phi|                     phi: features that are not negative, such as maps of random filters
//! z = M (u - m0),  z ← z / |z|          m0, M from silhouettes that everybody draws alike ([`silhouettes`])
//! M = the d leading principal directions, each divided by (its variance)^(p/2), p = 0.75
//! ```
//!
//! Noise is the same for each number of z, so numbers that matter alike lose least. Length 1 bounds what one sample can change.
//!
//! All nodes must find the same directions, though variances lie close together. So silhouettes, their features and their
//! directions are numbers of 64 bits: processors that round otherwise then differ by less than 32 bits hold. Directions
//! come by a fixed number of subspace iterations from a drawn start (Halko, Martinsson and Tropp, SIAM Review 2011). They
//! need not have converged: what counts is that everybody has the same.

mod silhouettes;

use fednode_core::random::{Purpose, nearly_normal, stream};
use nalgebra::{DMatrix, DVector, SymmetricEigen};

pub use silhouettes::silhouettes;

/// How far variances are made alike: 0 leaves them, 1 makes all the same.
const POWER: f64 = 0.75;
/// Directions beside those that are kept, which make these come sooner.
const SPARE: usize = 16;
/// Times that the start is multiplied by the covariance.
const ITERATIONS: usize = 8;
/// The smallest variance, as a share of the largest.
const LEAST: f64 = 1e-9;

/// How features come onto the sphere.
#[derive(Debug, Clone, PartialEq)]
pub struct Sphere {
    /// m0, one number for each feature.
    pub mean: Vec<f64>,
    /// M, `[d, features]`.
    pub directions: Vec<f64>,
}

impl Sphere {
    /// Finds mean and directions of rows of features, of which none is negative. There are as many directions as features
    /// at most.
    ///
    /// # Panics
    /// Panics without rows, and if they are not of one width.
    pub fn of(mut rows: Vec<Vec<f64>>, directions: usize, seed: u64) -> Self {
        rows.iter_mut().for_each(|row| to_root(row));
        let (count, width) = (rows.len(), rows[0].len());
        let kept = directions.min(width);
        let mean = (0..width).map(|at| rows.iter().map(|row| row[at]).sum::<f64>() / count as f64);
        let mean: Vec<f64> = mean.collect();
        let covariance = covariance(&rows, &mean);
        let found = leading(&covariance, kept, seed);
        let largest = found.first().map_or(0.0, |(variance, _)| *variance);
        let directions = found.iter().flat_map(|(variance, direction)| {
            let scale = variance.max(LEAST * largest).powf(-POWER / 2.0);
            direction.iter().map(move |value| value * scale)
        });
        Self {
            directions: directions.collect(),
            mean,
        }
    }

    /// Returns the number of directions.
    pub fn width(&self) -> usize {
        self.directions.len() / self.mean.len()
    }
}

/// Takes the root of each number, and makes the row 1 long; a row of zeros stays.
fn to_root(row: &mut [f64]) {
    row.iter_mut()
        .for_each(|value| *value = value.max(0.0).sqrt());
    let length = row.iter().map(|value| value * value).sum::<f64>().sqrt();
    if length > 0.0 {
        row.iter_mut().for_each(|value| *value /= length);
    }
}

fn covariance(rows: &[Vec<f64>], mean: &[f64]) -> DMatrix<f64> {
    let centred = DMatrix::from_fn(rows.len(), mean.len(), |row, at| rows[row][at] - mean[at]);
    centred.tr_mul(&centred) / rows.len() as f64
}

/// Returns the leading variances with their directions, the largest first. The largest number of a direction is positive.
fn leading(covariance: &DMatrix<f64>, count: usize, seed: u64) -> Vec<(f64, Vec<f64>)> {
    let width = covariance.nrows();
    let tried = (count + SPARE).min(width);
    let mut draws = stream(Purpose::Whitening, [seed, width as u64, tried as u64]);
    let mut basis = DMatrix::from_vec(width, tried, nearly_normal(&mut draws, width * tried));
    for _ in 0..ITERATIONS {
        basis = (covariance * basis).qr().q();
    }
    let within = basis.tr_mul(&(covariance * &basis));
    let eigen = SymmetricEigen::new((&within + within.transpose()) * 0.5);
    let mut order: Vec<usize> = (0..tried).collect();
    order.sort_by(|a, b| eigen.eigenvalues[*b].total_cmp(&eigen.eigenvalues[*a]));
    let direction = |at: &usize| {
        let direction: DVector<f64> = &basis * eigen.eigenvectors.column(*at);
        let largest = direction[direction.iamax()];
        let values = direction.iter().map(|value| value * largest.signum());
        (eigen.eigenvalues[*at], values.collect())
    };
    order.iter().take(count).map(direction).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of roots with a mean of their own and three variances (checked with numpy's eigh).
    #[test]
    fn directions_are_principal_ones_made_nearly_alike() {
        let rows: Vec<Vec<f64>> = (0..400_u32)
            .map(|at| {
                let [a, b, c] = [7, 11, 13].map(|step| f64::from(at * step % 17) / 17.0);
                vec![1.0 + a, 0.4 + 0.5 * b, 0.3 + 0.2 * c, 0.5]
            })
            .collect();
        let sphere = Sphere::of(rows.clone(), 2, 1);
        assert_eq!((sphere.width(), sphere.mean.len()), (2, 4));
        let mut roots = rows;
        roots.iter_mut().for_each(|row| to_root(row));
        let whitened = |row: &Vec<f64>, at: usize| -> f64 {
            let direction = &sphere.directions[4 * at..][..4];
            let pairs = row.iter().zip(&sphere.mean).zip(direction);
            pairs.map(|((value, mean), m)| (value - mean) * m).sum()
        };
        // What is left of a variance v is v^(1/4), and different directions do not go together.
        let covariance = covariance(&roots, &sphere.mean);
        let eigen = SymmetricEigen::new(covariance);
        let mut variances: Vec<f64> = eigen.eigenvalues.iter().copied().collect();
        variances.sort_by(|a, b| b.total_cmp(a));
        for (at, variance) in variances.iter().take(2).enumerate() {
            let square: f64 = roots.iter().map(|row| whitened(row, at).powi(2)).sum();
            let left = square / roots.len() as f64;
            assert!(
                (left / variance.powf(0.25) - 1.0).abs() < 1e-6,
                "{at}: {left}"
            );
        }
        let products = roots.iter().map(|row| whitened(row, 0) * whitened(row, 1));
        assert!(products.sum::<f64>().abs() < 1e-6);
    }

    #[test]
    fn everybody_finds_the_same_directions() {
        let rows = || silhouettes([1, 8, 8], 60, 5);
        let shifted = |rows: Vec<Vec<f64>>| -> Vec<Vec<f64>> {
            let up = |row: Vec<f64>| row.iter().map(|value| value + 1.0).collect();
            rows.into_iter().map(up).collect()
        };
        let first = Sphere::of(shifted(rows()), 12, 3);
        assert_eq!(first, Sphere::of(shifted(rows()), 12, 3));
        // Rounding of another processor stays rounding.
        let mut other = shifted(rows());
        for (at, value) in other.iter_mut().flatten().enumerate() {
            *value *= 1.0 + 1e-15 * (at % 3) as f64;
        }
        let other = Sphere::of(other, 12, 3);
        let pairs = first.directions.iter().zip(&other.directions);
        let apart = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(apart < 1e-7, "{apart}");
    }
}
