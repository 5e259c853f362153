//! One slope for all nodes, an intercept for each: the closed form for tables of a few hundred rows.
//!
//! What a site measures differs from what another does by more than its patients do, so class means of different sites are
//! not compared as they are. A class mean is that of the site, plus what the class adds everywhere:
//!
//! ```text
//! m_ic = s_i + mu_c            least squares over all nodes i and classes c, weighted by samples n_ic; the mu_c sum to 0
//! W    = (sum_i S_i + rho I) / (N + rho)            S_i: scatter within node i's own classes, around its own means
//! log p(c | r) = (W^-1 mu_c) . (r - s) - mu_c . W^-1 mu_c / 2 + log prior_c        s: the node's own site
//! ```
//!
//! That is a linear discriminant with fixed effects of sites. For two classes the difference of the `mu_c` is the mean of the
//! nodes' own differences, weighted by `n_i0 n_i1 / n_i`. Features are standardised, so the ridge is one number: as
//! many rows of independent features, [`RIDGE_ROWS`], are added.
//!
//! Both the least squares and W are made of sums over nodes ([`SiteSums`]). So the sums alone are enough, and nobody need know
//! a single node's.

mod noised;
mod sums;

use crate::statistics::{Discriminant, Statistics, StatisticsError};

pub use noised::{NoisySites, change};
pub use sums::SiteSums;

/// How many rows of independent features are added to the scatter: the rho of W.
///
/// Chosen on 20 random splits of four hospitals' tables; 50 to 200 make no difference there.
pub const RIDGE_ROWS: f64 = 100.0;

/// A node's statistics, and how many samples they stand for.
#[derive(Debug, Clone, Copy)]
pub struct Site<'a> {
    /// Counts, sums and scatter, times any factor.
    pub statistics: &'a Statistics,
    /// The number of samples, times the node's weight.
    pub weight: f64,
}

/// Solves for the classifier of a node, whose site is the last one.
///
/// # Errors
/// Fails without any sample, and if a covariance is not finite and positive.
pub fn solve(sites: &[Site<'_>]) -> Result<Discriminant, StatisticsError> {
    let own = sites.last().ok_or(StatisticsError::Empty)?.statistics;
    let mut sums = SiteSums::new(own.counts.len(), own.width());
    sites.iter().for_each(|site| sums.add(site));
    sums.solve(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Statistics of rows `(features, class)`.
    fn statistics(rows: &[([f32; 2], usize)]) -> Statistics {
        let mut statistics = Statistics::new(2, 2);
        rows.iter()
            .for_each(|(row, class)| statistics.add(row, *class));
        statistics
    }

    /// Three sites far from each other, of different mixes of two classes.
    fn sites() -> [Statistics; 3] {
        [
            statistics(&[([0.0, 1.0], 0), ([0.5, 0.5], 0), ([2.0, 1.5], 1)]),
            statistics(&[
                ([7.0, 5.0], 0),
                ([9.0, 5.0], 1),
                ([9.5, 6.0], 1),
                ([8.5, 5.5], 1),
            ]),
            statistics(&[([-4.0, 3.0], 0), ([-2.5, 2.0], 1)]),
        ]
    }

    fn solved(sites: &[Statistics]) -> Discriminant {
        let sites: Vec<Site<'_>> = sites
            .iter()
            .map(|statistics| Site {
                statistics,
                weight: statistics.total(),
            })
            .collect();
        solve(&sites).unwrap()
    }

    /// The recipe for two classes by numpy: `w = ((sum S + 100 I) / (N + 100))^-1 delta`, where `delta` is the mean of the sites' own
    /// differences weighted by `n_0 n_1 / n`.
    #[test]
    fn two_classes_have_the_slope_of_the_weighted_differences() {
        let found = solved(&sites());
        let slope: Vec<f64> = (0..2)
            .map(|at| found.weights[2 + at] - found.weights[at])
            .collect();
        let expected = [1.9307145897441267, 0.20953786467382585];
        for (slope, expected) in slope.iter().zip(expected) {
            assert!((slope - expected).abs() < 1e-9, "{slope}, not {expected}");
        }
    }

    #[test]
    fn a_site_that_measures_everything_higher_changes_nothing_for_others() {
        let mut moved = sites();
        let rows = [
            ([107.0, 5.0], 0),
            ([109.0, 5.0], 1),
            ([109.5, 6.0], 1),
            ([108.5, 5.5], 1),
        ];
        moved[1] = statistics(&rows);
        let (before, after) = (solved(&sites()), solved(&moved));
        for (a, b) in before.weights.iter().zip(&after.weights) {
            assert!((a - b).abs() < 1e-6, "{a}, not {b}");
        }
    }

    #[test]
    fn a_node_without_a_class_has_its_place_all_the_same() {
        let mut sites = sites().to_vec();
        sites.push(statistics(&[([20.0, 1.0], 0), ([20.5, 0.5], 0)]));
        let found = solved(&sites);
        let logits = |row: [f32; 2]| found.logits(&row);
        let (healthy, sick) = (logits([20.25, 0.75]), logits([24.0, 2.0]));
        assert!(
            healthy[0] > healthy[1] && sick[1] > sick[0],
            "{healthy:?} {sick:?}"
        );
    }

    #[test]
    fn nothing_gives_no_classifier() {
        assert!(solve(&[]).is_err());
        let empty = Statistics::new(2, 2);
        let site = Site {
            statistics: &empty,
            weight: 0.0,
        };
        assert!(solve(&[site]).is_err());
    }
}
