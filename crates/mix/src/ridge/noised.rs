//! One sum of all sites under differential privacy: how number and features go together, and nothing else, with noise.
//!
//! ```text
//! one row (x, y) more at node i      n += 1
//!                                    p += n_i / (n_i + 1) (y - y_i) (x - x_i)       x_i, y_i: the means of its rows before
//! |x| <= r, |y| <= 1                 v = ( √a n ; √(1 - a) / (4 r) p )              changes by 1 at most
//! ```
//!
//! Rows are cut to the length r, and numbers to the range of the spec. So p has D numbers, where the scatter of all features has
//! D (D + 1) / 2, and a few hundred rows can bear their noise. What features do among themselves a node knows of its own rows, which stay
//! at home. With C, the covariance of rows as they are cut with rows as they are, and V, that of cut rows, both the node's own:
//!
//! ```text
//! p of N rows is about N C w                          w: the slope; cutting is in C, so it turns nothing
//! its covariance            R = (N σ² + N² τ² / n) V + s² 1      n: the node's rows, s: the noise of a number of p
//! precision, and its vector A = N² Cᵀ R⁻¹ C σ²                   b = N Cᵀ R⁻¹ p σ²
//! ```
//!
//! Of the variance of the number at the node, σ² is what its line alone does not explain, and τ² what it does. The middle term of R
//! says that C is known from n rows only. A and b are in rows, so they stand for a peer's sums in [`super::Problem`]. Along directions in
//! which noise is larger than what rows say, they are next to nothing, and the node goes by its own rows.

use fednode_privacy::units::Noise;
use nalgebra::{DMatrix, DVector};

use super::{Found, Problem, Sums, joined};
use crate::statistics::StatisticsError;
use crate::statistics::noised::GRID;

/// What of a row's length says that there is one; the rest says how number and features go together.
const SHARE_OF_ROWS: f64 = 0.05;
/// How far apart two numbers lie at most.
const FARTHEST: f64 = 2.0;
/// Deviations of the noise that it never has, in as many numbers as there are.
const CERTAINLY: f64 = 8.0;
/// Fewest rows that say anything.
const FEWEST: f64 = 3.0;

/// Returns how many numbers [`CutRows::whole`] has.
pub const fn n_whole(width: usize) -> usize {
    1 + width
}

/// How many own rows the sum counts for at least: with less it is not spoken of.
const LEAST_COUNT: f64 = 1.0;

/// What n and p are multiplied by, so that a row is 1 long.
struct Roots {
    rows: f64,
    moment: f64,
}

impl Roots {
    fn of(radius: f64) -> Self {
        Self {
            rows: SHARE_OF_ROWS.sqrt(),
            moment: (1.0 - SHARE_OF_ROWS).sqrt() / (2.0 * radius * FARTHEST),
        }
    }
}

/// Rows of one node as they are cut, with their numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct CutRows {
    features: DMatrix<f64>,
    numbers: DVector<f64>,
}

impl CutRows {
    /// Takes rows of so many features that are at most so long as the radius, one after the other. Numbers are cut to their range.
    ///
    /// # Panics
    /// Panics if features are no whole rows.
    pub fn new(width: usize, features: &[f32], numbers: &[f32]) -> Self {
        assert_eq!(width * numbers.len(), features.len(), "whole rows");
        let at = |row: usize, at: usize| f64::from(features[row * width + at]);
        let cut = numbers.iter().map(|number| number.clamp(-1.0, 1.0));
        Self {
            features: DMatrix::from_fn(numbers.len(), width, at),
            numbers: DVector::from_iterator(numbers.len(), cut.map(f64::from)),
        }
    }

    /// Returns the features, each less its mean.
    fn centred(&self) -> DMatrix<f64> {
        let mut centred = self.features.clone();
        for mut column in centred.column_iter_mut() {
            let mean = column.mean();
            column.add_scalar_mut(-mean);
        }
        centred
    }

    /// Returns n and p in whole numbers of lengths of a row. Another row changes all of them together by 1 at most, rounding
    /// included.
    pub fn whole(&self, radius: f64) -> Vec<i64> {
        let (roots, n) = (Roots::of(radius), self.numbers.len());
        let shorter = GRID - (n_whole(self.features.ncols()) as f64).sqrt();
        let mean = if n == 0 { 0.0 } else { self.numbers.mean() };
        let moment = self.centred().tr_mul(&self.numbers.add_scalar(-mean));
        let moment = moment.iter().map(|number| number * roots.moment);
        let lengths = std::iter::once(n as f64 * roots.rows).chain(moment);
        lengths
            .map(|length| (length * shorter).round() as i64)
            .collect()
    }

    /// Returns what one row more changes in a release, in lengths of a row.
    ///
    /// # Panics
    /// Panics if the row has another number of features.
    pub fn change(&self, row: &[f32], number: f32, radius: f64) -> Vec<f64> {
        let (roots, width) = (Roots::of(radius), self.features.ncols());
        assert_eq!(row.len(), width, "features of this width");
        let mut change = vec![roots.rows];
        if self.numbers.is_empty() {
            change.resize(n_whole(width), 0.0);
            return change;
        }
        let n = self.numbers.len() as f64;
        let number = f64::from(number.clamp(-1.0, 1.0)) - self.numbers.mean();
        let share = n / (n + 1.0) * number * roots.moment;
        let apart = row.iter().zip(self.features.column_iter());
        change.extend(apart.map(|(value, column)| share * (f64::from(*value) - column.mean())));
        change
    }
}

/// n and p of all sites, with noise.
#[derive(Debug, Clone, PartialEq)]
pub struct NoisyMoments {
    rows: f64,
    moment: DVector<f64>,
    radius: f64,
    of_rows: f64,
    of_moment: f64,
}

impl NoisyMoments {
    /// Reads whole numbers that [`CutRows::whole`] made and that were added up, given the noise in lengths of a row.
    pub fn of_whole(radius: f64, noise: Noise, numbers: &[i64]) -> Self {
        let roots = Roots::of(radius);
        let mut lengths = numbers.iter().map(|number| *number as f64 / GRID);
        let rows = lengths.next().unwrap_or_default() / roots.rows;
        let moment: Vec<f64> = lengths.map(|length| length / roots.moment).collect();
        Self {
            rows,
            moment: DVector::from_vec(moment),
            radius,
            of_rows: noise.get() / roots.rows,
            of_moment: noise.get() / roots.moment,
        }
    }

    /// Says what rows would not say, whatever the noise.
    pub fn doubt(&self) -> Option<&'static str> {
        let slack = CERTAINLY * self.of_rows;
        let of_length = CERTAINLY * self.of_moment * (self.moment.len() as f64).sqrt();
        let farthest = 2.0 * self.radius * FARTHEST * (self.rows.max(0.0) + slack) + of_length;
        let is_possible = self.rows >= -slack && self.moment.norm() <= farthest;
        (!is_possible).then_some("number and features go together more than rows can")
    }

    /// Tells whether there are as many rows as say anything.
    pub fn has_rows(&self) -> bool {
        self.rows >= FEWEST
    }

    /// Returns the line of a node's own rows, as they are and as they are cut, and of these sums.
    ///
    /// It is that of the own rows alone if that is clearly better, or far better on average, or if noise leaves nothing of the sum. Its trust
    /// is what a row of the sum counts for beside an own one.
    ///
    /// # Errors
    /// As [`super::solve`].
    ///
    /// # Panics
    /// As [`super::solve`].
    pub fn solve(
        &self,
        features: &[f32],
        numbers: &[f32],
        cut: &CutRows,
    ) -> Result<Found, StatisticsError> {
        let mut problem = Problem::new(features, numbers, &[])?;
        let alone = problem.alone()?;
        let sums = self.sums(&problem, cut, alone.square());
        let sums = sums.ok_or(StatisticsError::Degenerate)?;
        // A feature of an own row has a square of 1 on average.
        let width = self.moment.len().max(1) as f64;
        let counts = sums.matrix.trace() / width;
        problem.by_site = sums;
        // What the own rows are of it is little beside the noise. To leave a row out of it, too, would leave none of the gain.
        let together = problem.with_sum()?;
        if together.setting.trust * counts < LEAST_COUNT {
            return Ok(alone);
        }
        let mut found = joined(Ok(alone), together);
        found.setting.trust *= (counts / self.rows).min(1.0);
        Ok(found)
    }

    /// Returns A and b on the scale of a problem, given the square of the errors of the own rows alone.
    fn sums(&self, problem: &Problem, cut: &CutRows, square: f64) -> Option<Sums> {
        let (n, scales) = (problem.numbers.len() as f64, &problem.scales);
        let (rows, noise) = (self.rows, self.of_moment.powi(2));
        let mut cut = cut.centred();
        for (mut column, scale) in cut.column_iter_mut().zip(scales) {
            column.unscale_mut(*scale);
        }
        let whole = problem.rows.columns(1, scales.len());
        let both = cut.tr_mul(&whole) * (rows / n);
        let explained = (problem.numbers.norm_squared() / n - square).max(0.0);
        let of_rows = rows * square + rows * rows * explained / n;
        let mut spread = cut.tr_mul(&cut) * (of_rows / n);
        for (at, scale) in scales.iter().enumerate() {
            spread[(at, at)] += noise / (scale * scale);
        }
        let filtered = spread.cholesky()?.solve(&both) * square;
        let mut moment = self.moment.clone();
        for (number, scale) in moment.iter_mut().zip(scales) {
            *number /= scale;
        }
        let width = scales.len();
        let mut sums = Sums {
            matrix: DMatrix::zeros(1 + width, 1 + width),
            vector: DVector::zeros(1 + width),
        };
        let mut matrix = sums.matrix.view_mut((1, 1), (width, width));
        matrix.copy_from(&both.tr_mul(&filtered));
        sums.vector
            .rows_mut(1, width)
            .copy_from(&filtered.tr_mul(&moment));
        Some(sums)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ridge::solve;

    const RADIUS: f64 = 1.5;

    /// Rows of three features within the radius, of which a number follows.
    fn rows(seed: usize, n: usize) -> (Vec<f32>, Vec<f32>) {
        let mut state = seed as u64;
        // Knuth's generator, of -1 to 1.
        let mut draw = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1_u32 << 23) as f32 - 1.0
        };
        let mut all = (Vec::new(), Vec::new());
        for _ in 0..n {
            let common = 0.3 * draw();
            let x = [common + 0.5 * draw(), common + 0.5 * draw(), 0.6 * draw()];
            all.1.push(0.5 * x[0] - 0.3 * x[1] + 0.1 + 0.3 * draw());
            all.0.extend(x);
        }
        all
    }

    fn noise(value: f64) -> Noise {
        Noise::new(value).unwrap()
    }

    /// Lengths of what `whole` says of two sets of rows, the one less the other.
    fn apart(one: &[i64], other: &[i64]) -> Vec<f64> {
        let pairs = one.iter().zip(other);
        pairs.map(|(a, b)| (a - b) as f64 / GRID).collect()
    }

    #[test]
    fn another_row_changes_a_release_by_what_is_said_and_by_one_at_most() {
        for n in [0, 1, 2, 40] {
            let (features, numbers) = rows(3, n + 1);
            let before = CutRows::new(3, &features[..3 * n], &numbers[..n]);
            let after = CutRows::new(3, &features, &numbers);
            let [less, more] = [before.clone(), after].map(|rows| rows.whole(RADIUS));
            let changed = apart(&more, &less);
            let length = changed
                .iter()
                .map(|value| value * value)
                .sum::<f64>()
                .sqrt();
            assert!(length <= 1.0, "{n}: {length}");
            let said = before.change(&features[3 * n..], numbers[n], RADIUS);
            assert_eq!(said.len(), n_whole(3));
            let pairs = changed.iter().zip(&said);
            pairs.for_each(|(a, b)| assert!((a - b).abs() < 1e-5, "{n}: {a} {b}"));
        }
        // The most that a row can do: it lies at one end, and many others at the other one.
        let others = vec![[-RADIUS as f32, 0.0, 0.0]; 1000].concat();
        let others = CutRows::new(3, &others, &vec![-7.0; 1000]);
        let change = others.change(&[RADIUS as f32, 0.0, 0.0], 7.0, RADIUS);
        let length = change.iter().map(|value| value * value).sum::<f64>().sqrt();
        assert!((0.998..=1.0).contains(&length), "{length}");
    }

    /// What a node of these rows would serve, with so much noise of which none was drawn. Its rows are in the sum.
    fn line(own: &(Vec<f32>, Vec<f32>), others: &(Vec<f32>, Vec<f32>), of: f64) -> Found {
        let cut = |(features, numbers): &(Vec<f32>, Vec<f32>)| CutRows::new(3, features, numbers);
        let [mine, theirs] = [own, others].map(|rows| cut(rows).whole(RADIUS));
        let sum: Vec<i64> = mine.iter().zip(theirs).map(|(a, b)| a + b).collect();
        let sums = NoisyMoments::of_whole(RADIUS, noise(of), &sum);
        assert!(sums.has_rows() && sums.doubt().is_none());
        sums.solve(&own.0, &own.1, &cut(own)).unwrap()
    }

    /// The slope that rows follow.
    const SLOPE: [f64; 3] = [0.5, -0.3, 0.0];

    fn error(found: &Found) -> f64 {
        let pairs = found.line.weights.iter().zip(SLOPE);
        pairs
            .map(|(weight, true_one)| (weight - true_one).powi(2))
            .sum()
    }

    /// Over twenty draws of a few own rows: the less noise, the nearer the slope of others, and never farther off than alone.
    #[test]
    fn others_bring_the_slope_nearer_as_far_as_noise_lets_them() {
        let trust = |of| line(&rows(1, 20), &rows(2, 600), of).setting.trust;
        assert!(trust(0.1) > 0.0);
        assert_eq!(trust(1e4), 0.0, "a sum that says nothing is not spoken of");
        let of = |noise: Option<f64>| -> f64 {
            let errors = (0..20).map(|seed| {
                let (own, others) = (rows(seed, 20), rows(100 + seed, 600));
                error(&match noise {
                    Some(noise) => line(&own, &others, noise),
                    None => solve(&own.0, &own.1, &[]).unwrap(),
                })
            });
            errors.sum()
        };
        let alone = of(None);
        let [little, some, much] = [0.1, 3.0, 1e4].map(|noise| of(Some(noise)));
        assert!(little < 0.75 * alone, "{little} {alone}");
        assert!(little < some && some < alone, "{little} {some} {alone}");
        assert!((much - alone).abs() < 1e-3 * alone, "{much} {alone}");
    }

    #[test]
    fn sums_that_no_rows_have_are_doubted() {
        let numbers = |rows: f64, moment: f64| {
            let roots = Roots::of(RADIUS);
            let lengths = [rows * roots.rows, moment * roots.moment, 0.0, 0.0];
            lengths.map(|length| (length * GRID) as i64)
        };
        let doubt = |rows, moment| {
            NoisyMoments::of_whole(RADIUS, noise(1.0), &numbers(rows, moment)).doubt()
        };
        assert_eq!(doubt(100.0, 300.0), None);
        assert_eq!(doubt(-20.0, 0.0), None, "noise may be that large");
        assert!(doubt(-100.0, 0.0).is_some());
        assert!(doubt(10.0, 1e4).is_some());
    }
}
