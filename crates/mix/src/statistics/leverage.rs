//! How much of a second moment is a sample's own: by that, whoever sees the sums can tell who is in them.
//!
//! ```text
//! h(z) = zᵀ (G + r I)⁻¹ z        G: the scatter, r: 10⁻⁵ of its mean diagonal entry, and what noise may add
//! ```
//!
//! Of D features of at most D samples, G has no direction but theirs. A sample that is in it then has `h <= 1`, and nearly
//! every other has a part outside, so its `h` is in the thousands. Of more samples than features the difference shrinks with
//! D divided by their number (the project's privacy study, section 5b).

use nalgebra::{DMatrix, DVector};

use super::{Statistics, StatisticsError};

/// What is added to the diagonal of the scatter, as a share of its mean: more than rounding of 32 bits.
const RIDGE: f64 = 1e-5;

impl Statistics {
    /// Returns the leverage of each row of features. Of noised sums, `noise` is the largest eigenvalue that noise may have.
    ///
    /// # Errors
    /// Fails where the scatter is no finite positive matrix.
    ///
    /// # Panics
    /// Panics if rows are not D numbers.
    pub fn leverages(&self, rows: &[Vec<f32>], noise: f64) -> Result<Vec<f64>, StatisticsError> {
        let width = self.width;
        let mut matrix = DMatrix::zeros(width, width);
        let mut products = self.scatter.iter();
        for row in 0..width {
            for (column, product) in (row..width).zip(products.by_ref()) {
                (matrix[(row, column)], matrix[(column, row)]) = (*product, *product);
            }
        }
        let ridge = RIDGE * matrix.trace() / width as f64 + noise;
        (0..width).for_each(|at| matrix[(at, at)] += ridge);
        let factor = matrix.cholesky().ok_or(StatisticsError::Degenerate)?;
        let leverage = |row: &Vec<f32>| {
            assert_eq!(row.len(), width, "features of this width");
            let mut row = DVector::from_iterator(width, row.iter().copied().map(f64::from));
            factor.l_dirty().solve_lower_triangular_mut(&mut row);
            row.norm_squared()
        };
        Ok(rows.iter().map(leverage).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three samples of four features: whoever is among them has at most 1, and another at least a hundred.
    #[test]
    fn whoever_is_in_a_sum_of_few_samples_is_told_from_others() {
        let members = [
            vec![1.0, 0.5, -0.5, 0.25],
            vec![0.0, 1.0, 2.0, -1.0],
            vec![3.0, 0.0, 0.5, 1.0],
        ];
        let mut sums = Statistics::new(1, 4);
        members.iter().for_each(|member| sums.add(member, 0));
        let found = sums.leverages(&members, 0.0).unwrap();
        assert!(found.iter().all(|h| (0.9..=1.0).contains(h)), "{found:?}");
        let others = [vec![1.0, 1.0, 1.0, 1.0], vec![0.0, 0.0, 0.0, 2.0]];
        let found = sums.leverages(&others, 0.0).unwrap();
        assert!(found.iter().all(|h| *h > 100.0), "{found:?}");
    }

    /// One feature: zᵀ G⁻¹ z is the share of the square.
    #[test]
    fn a_leverage_is_the_share_of_the_scatter() {
        let mut sums = Statistics::new(1, 1);
        [1.0, 2.0, 2.0]
            .iter()
            .for_each(|value| sums.add(&[*value], 0));
        let found = sums.leverages(&[vec![2.0]], 0.0).unwrap();
        assert!((found[0] - 4.0 / 9.0).abs() < 1e-4, "{found:?}");
        assert!(Statistics::new(1, 1).leverages(&[vec![1.0]], 0.0).is_err());
    }
}
