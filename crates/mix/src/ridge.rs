//! Ridge regression of the own rows and of what peers say of theirs: the closed form where a number is predicted.
//!
//! A peer publishes means and covariances of features and number together ([`Joint`]). A node has its own rows besides, so it
//! finds out what peers are worth to it:
//!
//! ```text
//! A = Σ_own x xᵀ + t P + ρ D     b = Σ_own x y + t p     x = (1, features), features and number centred
//! P, p                           the same sums of peers, each as many rows as its weight says
//!                                own intercept: around each peer's own means, so that sites may differ
//! line                           A⁻¹ b, an offset and a weight for each feature
//! error of a row left out        (y - xᵀ A⁻¹ b) / (1 - xᵀ A⁻¹ x)          exact, without solving anew
//! ```
//!
//! D is diagonal: the features' own variances, and 0 for the offset. So ρ counts in rows, and no unit of a column matters.
//! Of settings with one t, ρ and the kind of intercept are those with the least mean square of these errors over the own rows.
//! Trust is 1 unless another one is better by two standard errors of the difference: of few rows chance alone promises more. With
//! t = 1 and a common intercept the line is ridge regression of all rows together. What the node does alone is solved for by
//! itself, on the scale of its own rows ([`solve`]).

mod joint;
pub mod noised;
pub mod summed;

use nalgebra::{Cholesky, DMatrix, DVector, Dyn};

use crate::statistics::StatisticsError;

pub use joint::{Joint, JointError};

/// What a peer's row may count for beside an own one, if not as much.
const LESS_TRUST: [f64; 5] = [0.3, 0.1, 0.03, 0.01, 0.0];
/// Standard errors by which less trust must be better.
const CLEARLY: f64 = 2.0;
/// How many rows the ridge may be worth.
const RIDGES: [f64; 5] = [0.3, 3.0, 30.0, 300.0, 3000.0];
/// How many times as large a mean square of errors is beyond all doubt.
const FAR_BETTER: f64 = 2.0;
/// A variance below this share of the square of the mean is rounding: the feature is the same everywhere.
const ROUNDING: f64 = 1e-10;

/// Where offsets come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intercept {
    /// All nodes have one line.
    Common,
    /// Each node has its own offset, and all have one slope.
    Own,
}

/// All kinds of them.
const INTERCEPTS: [Intercept; 2] = [Intercept::Own, Intercept::Common];

/// How a line is found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Setting {
    /// What a peer's row counts for, beside an own one.
    pub trust: f64,
    /// How many rows the ridge is worth.
    pub ridge: f64,
    /// Where the offset comes from.
    pub intercept: Intercept,
}

/// A linear function of features.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// A weight for each feature.
    pub weights: Vec<f64>,
    /// The value where all features are 0.
    pub offset: f64,
}

impl Line {
    /// Returns the number that is predicted for a row of features.
    pub fn at(&self, features: &[f32]) -> f64 {
        let terms = self.weights.iter().zip(features);
        self.offset + terms.map(|(w, x)| w * f64::from(*x)).sum::<f64>()
    }
}

/// A line, how it was found, and how far off it is on own rows that had no part in it.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// The line.
    pub line: Line,
    /// How it was found.
    pub setting: Setting,
    /// The square of the error of each own row, left out.
    squares: Vec<f64>,
}

impl Found {
    /// Returns the mean square of the errors of own rows, each left out.
    pub fn square(&self) -> f64 {
        self.squares.iter().sum::<f64>() / self.squares.len() as f64
    }

    /// Returns another line, unless this one is clearly better, or far better on average.
    fn or_if_not_worse(self, other: Self) -> Self {
        // One row that is far off hides in the standard error that it makes.
        let is_better =
            self.is_clearly_better_than(&other) || FAR_BETTER * self.square() < other.square();
        if is_better { self } else { other }
    }

    /// Tells whether it is better than another by more than [`CLEARLY`] standard errors of the difference.
    fn is_clearly_better_than(&self, other: &Self) -> bool {
        let differences = other.squares.iter().zip(&self.squares);
        let differences: Vec<f64> = differences.map(|(theirs, own)| theirs - own).collect();
        let n = differences.len() as f64;
        let mean = differences.iter().sum::<f64>() / n;
        let variance = differences.iter().map(|d| (d - mean).powi(2)).sum::<f64>() / (n - 1.0);
        mean > CLEARLY * (variance / n).sqrt()
    }
}

/// The own rows and the sums of peers, on one scale.
#[derive(Debug)]
pub struct Problem {
    /// A one and the centred, scaled features of each own row.
    rows: DMatrix<f64>,
    numbers: DVector<f64>,
    own: Sums,
    common: Sums,
    by_site: Sums,
    /// How many times the own rows are in the sums of peers.
    own_again: f64,
    /// What was taken from features and number, and what the features were divided by.
    means: Vec<f64>,
    scales: Vec<f64>,
}

/// Sums of products: `[1 + D, 1 + D]` and `[1 + D]`.
#[derive(Debug)]
struct Sums {
    matrix: DMatrix<f64>,
    vector: DVector<f64>,
}

/// Returns what a feature is divided by: its deviation, or 1 where it is the same everywhere.
fn scale(variance: f64, mean: f64) -> f64 {
    if variance <= ROUNDING * mean * mean {
        1.0
    } else {
        variance.sqrt()
    }
}

/// Returns the line of a node, given its own rows with their numbers, and peers with the rows that each counts for.
///
/// It is that of the own rows alone, on their own scale, if that is clearly better, or far better on average: sums of peers may have been made to spoil the
/// scale of all.
///
/// # Errors
/// As [`Problem::new`]; fails, too, where no setting has a line.
///
/// # Panics
/// As [`Problem::new`].
pub fn solve(
    features: &[f32],
    numbers: &[f32],
    peers: &[(f64, &Joint)],
) -> Result<Found, StatisticsError> {
    let alone = Problem::new(features, numbers, &[])?.alone();
    if peers.is_empty() {
        return alone;
    }
    let together = Problem::new(features, numbers, peers)?.with_peers()?;
    Ok(joined(alone, together))
}

/// Returns the line with others, unless that of the own rows alone is better.
fn joined(alone: Result<Found, StatisticsError>, together: Found) -> Found {
    match alone {
        Ok(alone) => alone.or_if_not_worse(together),
        Err(_) => together,
    }
}

impl Problem {
    /// Takes the own rows, one after the other, with their numbers, and peers with the rows that each counts for.
    ///
    /// # Errors
    /// Fails without any row, and on features or numbers that are not finite.
    ///
    /// # Panics
    /// Panics if features are no whole rows, or a peer has another number of features.
    pub fn new(
        features: &[f32],
        numbers: &[f32],
        peers: &[(f64, &Joint)],
    ) -> Result<Self, StatisticsError> {
        let n_rows = numbers.len();
        if n_rows == 0 {
            return Err(StatisticsError::Empty);
        }
        let width = features.len() / n_rows;
        let own = Joint::of(features, numbers);
        let all = peers.iter().copied().chain([(n_rows as f64, &own)]);
        let (means, variances) = joint::together(all);
        if means
            .iter()
            .chain(&variances)
            .any(|value| !value.is_finite())
        {
            return Err(StatisticsError::Degenerate);
        }
        let pairs = variances.iter().zip(&means).take(width);
        let scales: Vec<f64> = pairs
            .map(|(variance, mean)| scale(*variance, *mean))
            .collect();
        let rows = DMatrix::from_fn(n_rows, 1 + width, |row, column| match column {
            0 => 1.0,
            _ => {
                let at = column - 1;
                (f64::from(features[row * width + at]) - means[at]) / scales[at]
            }
        });
        let numbers = numbers
            .iter()
            .map(|number| f64::from(*number) - means[width]);
        let numbers = DVector::from_iterator(n_rows, numbers);
        let own = Sums {
            matrix: rows.tr_mul(&rows),
            vector: rows.tr_mul(&numbers),
        };
        let of_peers = |intercept| {
            let mut sums = Sums {
                matrix: DMatrix::zeros(1 + width, 1 + width),
                vector: DVector::zeros(1 + width),
            };
            for (weight, peer) in peers {
                peer.add_to(&mut sums, *weight, (&means, &scales), intercept);
            }
            sums
        };
        Ok(Self {
            common: of_peers(Intercept::Common),
            by_site: of_peers(Intercept::Own),
            rows,
            numbers,
            own,
            own_again: 0.0,
            means,
            scales,
        })
    }

    /// Returns the line of the least error, of all settings with these kinds of trust and of intercepts.
    fn best(&self, trusts: &[f64], intercepts: &[Intercept]) -> Result<Found, StatisticsError> {
        let settings = trusts.iter().flat_map(|trust| {
            // Without peers all kinds are the same.
            let kinds = if *trust > 0.0 { intercepts.len() } else { 1 };
            intercepts.iter().take(kinds).flat_map(move |intercept| {
                RIDGES.map(|ridge| Setting {
                    trust: *trust,
                    ridge,
                    intercept: *intercept,
                })
            })
        });
        let found = settings.filter_map(|setting| self.find(setting).ok());
        let least = found.min_by(|a, b| a.square().total_cmp(&b.square()));
        least.ok_or(StatisticsError::Degenerate)
    }

    /// Returns the best line with peers: with full trust, unless less is clearly better.
    ///
    /// # Errors
    /// Fails where no setting has a line.
    pub fn with_peers(&self) -> Result<Found, StatisticsError> {
        let usual = self.best(&[1.0], &INTERCEPTS);
        let other = self.best(&LESS_TRUST, &INTERCEPTS)?;
        match usual {
            Ok(usual) if !other.is_clearly_better_than(&usual) => Ok(usual),
            _ => Ok(other),
        }
    }

    /// Returns the line of the least error, whatever the trust, with an offset of the node's own. It is for a sum of all sites, the own
    /// rows among them.
    ///
    /// Full trust is not the usual one here, as it is with peers. No single site can be left out of a sum, and half of them may go the other
    /// way. `experiments/README.md` compares both rules.
    ///
    /// # Errors
    /// As [`Self::with_peers`].
    fn with_sum(&self) -> Result<Found, StatisticsError> {
        let trusts = [&[1.0], LESS_TRUST.as_slice()].concat();
        self.best(&trusts, &[Intercept::Own])
    }

    /// Returns the best line of the own rows alone.
    ///
    /// # Errors
    /// As [`Self::with_peers`].
    pub fn alone(&self) -> Result<Found, StatisticsError> {
        self.best(&[0.0], &INTERCEPTS)
    }

    /// Returns the line of a setting.
    ///
    /// # Errors
    /// Fails where the sums are those of no rows.
    pub fn find(&self, setting: Setting) -> Result<Found, StatisticsError> {
        let peers = match setting.intercept {
            Intercept::Common => &self.common,
            Intercept::Own => &self.by_site,
        };
        let mut matrix = &self.own.matrix + &peers.matrix * setting.trust;
        (1..matrix.nrows()).for_each(|at| matrix[(at, at)] += setting.ridge);
        let vector = &self.own.vector + &peers.vector * setting.trust;
        let factor = matrix.cholesky().ok_or(StatisticsError::Degenerate)?;
        let solution = factor.solve(&vector);
        // What is left out is left out of the peers' sums, too, as far as it is in them.
        let again = 1.0 + setting.trust * self.own_again;
        let squares = self.squares_of_left_out(&factor, &solution, again);
        if !squares.iter().sum::<f64>().is_finite() {
            return Err(StatisticsError::Degenerate);
        }
        let slopes = solution.iter().skip(1).zip(&self.scales);
        let weights: Vec<f64> = slopes.map(|(slope, scale)| slope / scale).collect();
        let at_zero: f64 = weights
            .iter()
            .zip(&self.means)
            .map(|(w, mean)| w * mean)
            .sum();
        let offset = solution[0] + self.means[weights.len()] - at_zero;
        Ok(Found {
            line: Line { weights, offset },
            setting,
            squares,
        })
    }

    /// Returns the squares of the errors of own rows, each left out as often as it counts.
    fn squares_of_left_out(
        &self,
        factor: &Cholesky<f64, Dyn>,
        solution: &DVector<f64>,
        times: f64,
    ) -> Vec<f64> {
        let mut leverages = self.rows.transpose();
        factor.l_dirty().solve_lower_triangular_mut(&mut leverages);
        let errors = &self.numbers - &self.rows * solution;
        let squares = errors.iter().zip(leverages.column_iter());
        let of_row = |(error, column): (&f64, nalgebra::DVectorView<'_, f64>)| {
            let rest = 1.0 - times * column.norm_squared();
            // Without the row nothing would be known along it.
            if rest > 0.0 {
                (error / rest).powi(2)
            } else {
                f64::INFINITY
            }
        };
        squares.map(of_row).collect()
    }
}
