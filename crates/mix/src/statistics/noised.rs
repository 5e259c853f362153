//! Statistics under differential privacy: what a node counts in whole numbers, and what is made of noised sums.
//!
//! ```text
//! one sample (z, y)      v = ( √a e_y ; √b e_y ⊗ z ; √c vech(z zᵀ) )        |z| <= 1, a + b + c = 1, so |v| <= 1
//!                        vech: the upper triangle; products of two different features times √2
//! a node publishes once  V = sum of v in whole numbers + discrete Gaussian noise of deviation m
//! then, of sums          mu_c   drawn towards the mean of all (James and Stein), as far as noise explains how they differ
//!                        W      eigenvalues below the edge of the noise's spectrum are raised to it
//! ```
//!
//! Adding or removing one sample changes `V` by at most 1 in length. So counts, sums and scatter together are one release of
//! a Gaussian mechanism ([`fednode_privacy::statistics`]). Numbers of a sample are cut to whole ones towards zero, so rounding
//! lengthens nothing. What is computed of published sums costs no privacy.
//!
//! Shares and constants are those of a study, chosen on two divisions of Fashion-MNIST of which no number is reported.

use fednode_privacy::statistics::{STUDY_SAMPLES, Shares};
use fednode_privacy::units::Noise;
use nalgebra::{DMatrix, SymmetricEigen};

use super::{Discriminant, IMPOSSIBLE, Statistics, StatisticsError};

/// Whole numbers in a length of 1.
pub const GRID: f64 = (1_u64 << 20) as f64;
/// How far above the edge of the noise's spectrum eigenvalues are kept.
const EDGE: f64 = 0.25;
/// Deviations of the noise that it never has, in as many numbers as there are.
const CERTAINLY: f64 = 8.0;
/// The smallest eigenvalue of the covariance, as a share of their mean.
const LEAST_EIGENVALUE: f64 = 0.02;

/// Sums over samples in whole numbers of `1 / GRID`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WholeSums {
    width: usize,
    counts: Vec<i64>,
    sums: Vec<i64>,
    scatter: Vec<i64>,
}

impl WholeSums {
    /// Starts with nothing.
    pub fn new(classes: usize, width: usize) -> Self {
        Self {
            width,
            counts: vec![0; classes],
            sums: vec![0; classes * width],
            scatter: vec![0; width * (width + 1) / 2],
        }
    }

    /// Adds one sample. Features longer than 1 are shortened to 1, and a sample with what is no number is left out.
    ///
    /// # Panics
    /// Panics if the features are not D numbers or the class is none.
    pub fn add(&mut self, features: &[f32], class: usize) {
        assert_eq!(features.len(), self.width, "features of this width");
        let Some(unit) = at_most_one_long(features) else {
            return;
        };
        let roots = Roots::new();
        self.counts[class] += whole(roots.count);
        let sums = &mut self.sums[class * self.width..][..self.width];
        for (sum, value) in sums.iter_mut().zip(&unit) {
            *sum += whole(roots.sum * value);
        }
        let mut products = self.scatter.iter_mut();
        for (row, first) in unit.iter().enumerate() {
            for (column, (second, entry)) in unit[row..].iter().zip(products.by_ref()).enumerate() {
                *entry += whole(roots.of_product(column == 0) * first * second);
            }
        }
    }

    /// Visits all numbers, for adding noise to each.
    pub fn numbers_mut(&mut self) -> impl Iterator<Item = &mut i64> {
        let counts = self.counts.iter_mut().chain(&mut self.sums);
        counts.chain(&mut self.scatter)
    }

    /// Returns counts, sums and scatter in their own units.
    pub fn statistics(&self) -> Statistics {
        let roots = Roots::new();
        let in_units = |root: f64| move |number: &i64| *number as f64 / GRID / root;
        let mut statistics = Statistics::new(self.counts.len(), self.width);
        statistics.counts = self.counts.iter().map(in_units(roots.count)).collect();
        statistics.sums = self.sums.iter().map(in_units(roots.sum)).collect();
        let rows =
            (0..self.width).flat_map(|row| (row..self.width).map(move |column| row == column));
        let entries = self.scatter.iter().zip(rows);
        let entries =
            entries.map(|(number, is_square)| in_units(roots.of_product(is_square))(number));
        statistics.scatter = entries.collect();
        statistics
    }
}

/// What the parts of a sample are multiplied by.
struct Roots {
    count: f64,
    sum: f64,
    square: f64,
}

impl Roots {
    fn new() -> Self {
        let (counts, sums, scatter) = Shares::STUDY.parts();
        Self {
            count: counts.sqrt(),
            sum: sums.sqrt(),
            square: scatter.sqrt(),
        }
    }

    /// The product of two different features stands for two entries of the matrix.
    fn of_product(&self, is_square: bool) -> f64 {
        if is_square {
            self.square
        } else {
            self.square * std::f64::consts::SQRT_2
        }
    }
}

/// Cuts a number to whole ones towards zero.
fn whole(value: f64) -> i64 {
    (value * GRID) as i64
}

/// Returns features that are at most 1 long; nothing where one is no number.
fn at_most_one_long(features: &[f32]) -> Option<Vec<f64>> {
    let values: Vec<f64> = features.iter().copied().map(f64::from).collect();
    let length = values.iter().map(|value| value * value).sum::<f64>().sqrt();
    let longest = length.max(1.0);
    length
        .is_finite()
        .then(|| values.iter().map(|value| value / longest).collect())
}

/// Returns how often a node adds its own exact sums again to a sum over `total` samples: the noisier that is, the more they
/// count. `own` are the node's samples.
pub fn own_again(noise: Noise, total: f64, own: f64) -> f64 {
    let relative = noise.get() * STUDY_SAMPLES / total.max(1.0);
    let share = 0.1 + 0.65 * relative / (relative + 2.5);
    share / (1.0 - share) * total.max(1.0) / own.max(1.0)
}

impl Statistics {
    /// Says what sums with noise would not be if they were of samples that are at most 1 long.
    pub fn doubt(&self, noise: Noise) -> Option<&'static str> {
        let (of_counts, of_sums, of_scatter) = Shares::STUDY.parts();
        let width = self.width as f64;
        let slack = |share: f64| CERTAINLY * noise.get() / share.sqrt();
        let numbers = self.counts.iter().chain(&self.sums).chain(&self.scatter);
        if !numbers.clone().all(|number| number.is_finite()) {
            return Some("a number is none");
        }
        if self.counts.iter().any(|count| *count < -slack(of_counts)) {
            return Some("a class has fewer samples than none");
        }
        let longest =
            |count: &f64| count.max(0.0) + slack(of_counts) + slack(of_sums) * width.sqrt();
        let is_long = |(sums, count): (&[f64], &f64)| {
            sums.iter().map(|sum| sum * sum).sum::<f64>().sqrt() > longest(count)
        };
        if self
            .sums
            .chunks_exact(self.width)
            .zip(&self.counts)
            .any(is_long)
        {
            return Some("a class sum is longer than its samples together");
        }
        let squares = (0..self.width).scan(0, |at, row| {
            let square = self.scatter[*at];
            *at += self.width - row;
            Some(square)
        });
        let squares: Vec<f64> = squares.collect();
        let is_negative = squares.iter().any(|square| *square < -slack(of_scatter));
        let all = self.total().max(0.0) + slack(of_counts) * (self.counts.len() as f64).sqrt();
        let is_large = squares.iter().sum::<f64>() > all + slack(of_scatter) * width.sqrt();
        (is_negative || is_large).then_some("its products are not those of so many samples")
    }

    /// Solves for the classifier of sums whose every number has noise of this many lengths of a sample.
    ///
    /// # Errors
    /// Fails without any sample, and if what is left of the covariance is not finite and positive.
    pub fn solve_noised(&self, noise: Noise) -> Result<Discriminant, StatisticsError> {
        let width = self.width;
        let counts: Vec<f64> = self.counts.iter().map(|count| count.max(1.0)).collect();
        let total: f64 = counts.iter().sum();
        if !self.total().is_finite() || self.total() <= 0.0 {
            return Err(StatisticsError::Empty);
        }
        let means = self.shrunk_means(&counts, total, noise);
        let eigen = self.spectrum(&counts, &means, total);
        let floor = self.floor(&eigen.eigenvalues, total, noise);
        if !eigen.eigenvalues.iter().all(|value| value.is_finite())
            || floor.is_nan()
            || floor <= 0.0
        {
            return Err(StatisticsError::Degenerate);
        }
        let inverse = eigen.eigenvalues.map(|value| 1.0 / value.max(floor));
        let matrix =
            &eigen.eigenvectors * DMatrix::from_diagonal(&inverse) * eigen.eigenvectors.transpose();
        let all = DMatrix::from_fn(means.len(), width, |class, at| means[class][at]);
        let rows = &all * matrix;
        let offset = |class: usize| {
            let square = rows.row(class).dot(&all.row(class));
            if self.counts[class] == 0.0 {
                IMPOSSIBLE
            } else {
                -0.5 * square
            }
        };
        Ok(Discriminant {
            width,
            offsets: (0..means.len()).map(offset).collect(),
            weights: rows.transpose().as_slice().to_vec(),
        })
    }

    /// Returns the class means, drawn towards the mean of all by the positive part of James and Stein's rule.
    fn shrunk_means(&self, counts: &[f64], total: f64, noise: Noise) -> Vec<Vec<f64>> {
        let width = self.width;
        let classes = || self.sums.chunks_exact(width).zip(counts);
        let centre: Vec<f64> = (0..width)
            .map(|at| classes().map(|(sums, _)| sums[at]).sum::<f64>() / total)
            .collect();
        let variance = noise.get().powi(2) * width as f64 / Shares::STUDY.parts().1;
        let shrunk = |(sums, count): (&[f64], &f64)| {
            let apart = |(sum, centre): (&f64, &f64)| sum / count - centre;
            let apart: Vec<f64> = sums.iter().zip(&centre).map(apart).collect();
            let square: f64 = apart.iter().map(|value| value * value).sum();
            let explained = variance / (count * count);
            let kept = if square > 0.0 {
                (1.0 - explained / square).max(0.0)
            } else {
                0.0
            };
            let pairs = centre.iter().zip(&apart);
            pairs.map(|(centre, apart)| centre + kept * apart).collect()
        };
        classes().map(shrunk).collect()
    }

    /// Returns eigenvalues and eigenvectors of the covariance within the classes.
    fn spectrum(
        &self,
        counts: &[f64],
        means: &[Vec<f64>],
        total: f64,
    ) -> SymmetricEigen<f64, nalgebra::Dyn> {
        let width = self.width;
        let mut matrix = DMatrix::zeros(width, width);
        let mut products = self.scatter.iter();
        for row in 0..width {
            for (column, product) in (row..width).zip(products.by_ref()) {
                let between = means
                    .iter()
                    .zip(counts)
                    .map(|(mean, n)| n * mean[row] * mean[column]);
                let within = (product - between.sum::<f64>()) / total;
                (matrix[(row, column)], matrix[(column, row)]) = (within, within);
            }
        }
        SymmetricEigen::new(matrix)
    }

    /// Returns the smallest eigenvalue to keep: some way to where the spectrum of noise alone would end.
    fn floor(&self, eigenvalues: &nalgebra::DVector<f64>, total: f64, noise: Noise) -> f64 {
        let width = self.width as f64;
        let entry = noise.get() / Shares::STUDY.parts().2.sqrt() / total;
        EDGE * entry * (2.0 * width).sqrt() + LEAST_EIGENVALUE * eigenvalues.sum() / width
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(value: f64) -> Noise {
        Noise::new(value).unwrap()
    }

    #[track_caller]
    fn assert_near(got: &[f64], expected: &[f64], within: f64) {
        let pairs = got.iter().zip(expected);
        let is_near =
            got.len() == expected.len() && pairs.clone().all(|(a, b)| (a - b).abs() < within);
        assert!(is_near, "{got:?} is not {expected:?}");
    }

    /// Counts, sums and scatter of noised samples, solved by the formulas in numpy. The larger noise raises an eigenvalue.
    #[test]
    fn noised_sums_give_the_classifier_of_the_study() {
        let mut sums = Statistics::new(2, 3);
        sums.counts = vec![6.5, 5.75];
        sums.sums = vec![-0.9, 0.6, 1.2, 1.1, 0.4, -0.5];
        sums.scatter = vec![0.9, -0.2, -0.3, 0.4, 0.05, 0.6];
        let small = sums.solve_noised(noise(0.2)).unwrap();
        let rows = [
            -0.098539915,
            3.790782579,
            5.301621106,
            4.781615193,
            5.739833976,
            -0.374815751,
        ];
        assert_near(&small.weights, &rows, 1e-8);
        assert_near(&small.offsets, &[-0.617487122, -0.613044542], 1e-8);
        let large = sums.solve_noised(noise(0.4)).unwrap();
        let rows = [
            0.458228214,
            2.437783599,
            2.499140608,
            1.935210759,
            2.889543731,
            0.592232488,
        ];
        assert_near(&large.weights, &rows, 1e-8);
        assert_near(&large.offsets, &[-0.231160615, -0.195762522], 1e-8);
    }

    #[test]
    fn whole_numbers_are_the_sums_but_for_their_grid() {
        let samples: [(&[f32], usize); 3] = [
            (&[0.6, -0.5, 0.2], 0),
            (&[0.1, 0.7, 0.7], 1),
            (&[0.0, 0.0, -1.0], 1),
        ];
        let (mut whole, mut exact) = (WholeSums::new(2, 3), Statistics::new(2, 3));
        for (features, class) in samples {
            whole.add(features, class);
            exact.add(features, class);
        }
        let got = whole.statistics();
        // A number is cut by one unit of the grid at most, over the root of the smallest share.
        let within = 3.0 * 8.0 / GRID;
        assert_near(&got.counts, &exact.counts, within);
        assert_near(&got.sums, &exact.sums, within);
        assert_near(&got.scatter, &exact.scatter, within);
    }

    /// What one sample changes bounds the noise that is needed.
    #[test]
    fn no_sample_is_longer_than_one() {
        for features in [
            [0.6_f32, 0.8, 0.0],
            [3.0, -4.0, 12.0],
            [0.1, -0.1, 0.3],
            [1e30, 0.0, 1e-30],
        ] {
            let mut whole = WholeSums::new(2, 3);
            whole.add(&features, 1);
            let square: f64 = whole
                .numbers_mut()
                .map(|number| (*number as f64).powi(2))
                .sum();
            assert!(square.sqrt() <= GRID, "{features:?}");
        }
        let mut whole = WholeSums::new(1, 2);
        whole.add(&[f32::NAN, 0.5], 0);
        assert_eq!(
            whole,
            WholeSums::new(1, 2),
            "what is no number is no sample"
        );
    }

    /// 20 nodes of 405 samples that each add the noise of one epsilon, and 6 of 270 (computed in numpy).
    #[test]
    fn own_sums_count_more_the_noisier_the_others_are() {
        assert_near(
            &[own_again(noise(4.8), 8100.0, 405.0)],
            &[22.318840579710148],
            1e-9,
        );
        assert_near(
            &[own_again(noise(1.0), 1620.0, 270.0)],
            &[6.857142857142857],
            1e-9,
        );
    }

    /// Sums of unit vectors with noise are believed, and those that a liar has moved are not.
    #[test]
    fn sums_that_no_samples_have_are_doubted() {
        let mut sums = Statistics::new(2, 2);
        for _ in 0..50 {
            sums.add(&[0.6, 0.8], 0);
            sums.add(&[1.0, 0.0], 1);
        }
        assert_eq!(sums.doubt(noise(1.0)), None);
        assert_eq!(Statistics::new(2, 2).doubt(noise(1.0)), None);
        let changed = |change: &dyn Fn(&mut Statistics)| {
            let mut changed = sums.clone();
            change(&mut changed);
            changed.doubt(noise(1.0))
        };
        assert!(changed(&|sums| sums.counts[0] = -100.0).is_some());
        assert!(changed(&|sums| sums.sums[3] = -200.0).is_some());
        assert!(changed(&|sums| sums.scatter[0] = 400.0).is_some());
        assert!(changed(&|sums| sums.scatter[2] = -20.0).is_some());
        assert!(changed(&|sums| sums.scatter[1] = f64::NAN).is_some());
        // What noise may do is no lie.
        assert_eq!(changed(&|sums| sums.counts[0] = -20.0), None);
    }

    #[test]
    fn sums_of_nothing_give_no_classifier() {
        assert!(Statistics::new(2, 3).solve_noised(noise(1.0)).is_err());
        let mut broken = Statistics::new(1, 1);
        (broken.counts[0], broken.scatter[0]) = (2.0, f64::NAN);
        assert!(broken.solve_noised(noise(1.0)).is_err());
    }
}
