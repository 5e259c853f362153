//! One slope for all nodes, an intercept for each: the closed form for tables of a few hundred rows.
//!
//! What a site measures differs from what another does by more than its patients do, so class means of different sites are
//! not compared as they are. A class mean is that of the site, plus what the class adds everywhere:
//!
//! ```text
//! m_ic = s_i + mu_c            least squares over all nodes i and classes c, weighted by samples n_ic; the mu_c sum to 0
//! W    = sum_i S_i / N + rho / N I                  S_i: scatter within node i's own classes, around its own means
//! log p(c | r) = (W^-1 mu_c) . (r - s) - mu_c . W^-1 mu_c / 2 + log prior_c        s: the node's own site
//! ```
//!
//! That is a linear discriminant with fixed effects of sites. For two classes the difference of the `mu_c` is the mean of the
//! nodes' own differences, weighted by `n_i0 n_i1 / n_i`. Features are standardised, so the ridge is one number: it says as
//! much as [`RIDGE_ROWS`] rows.

use crate::statistics::{
    Discriminant, IMPOSSIBLE, Statistics, StatisticsError, back_substitute, cholesky,
};

/// How many rows the ridge is worth.
///
/// Chosen on 20 random splits of four hospitals' tables; 50 to 200 make no difference there.
pub const RIDGE_ROWS: f64 = 100.0;
/// Keeps classes apart that no node has both of.
const LEAST: f64 = 1e-9;

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
    let own = sites.last().ok_or(StatisticsError::Empty)?;
    let (width, classes) = (own.statistics.width(), own.statistics.counts.len());
    let total: f64 = sites.iter().map(|site| site.weight).sum();
    if !(total.is_finite() && total > 0.0) {
        return Err(StatisticsError::Empty);
    }
    let effects = effects(sites)?;
    let mut covariance = within(sites, total)?;
    (0..width).for_each(|at| covariance[at * width + at] += RIDGE_ROWS / total);
    let factor = cholesky(covariance, width)?;
    let place = own_place(own.statistics, &effects);
    let mut weights = Vec::with_capacity(classes * width);
    let mut offsets = Vec::with_capacity(classes);
    for (class, effect) in effects.chunks_exact(width).enumerate() {
        let row = back_substitute(&factor, width, effect);
        let is_known = sites.iter().any(|site| site.statistics.counts[class] > 0.0);
        let offset = -0.5 * dot(&row, effect) - dot(&row, &place);
        offsets.push(if is_known { offset } else { IMPOSSIBLE });
        weights.extend(row);
    }
    Ok(Discriminant::new(weights, offsets))
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Returns how many samples of each class a site stands for.
fn counts(site: &Site<'_>) -> Vec<f64> {
    let total = site.statistics.total();
    let factor = if total > 0.0 {
        site.weight / total
    } else {
        0.0
    };
    site.statistics
        .counts
        .iter()
        .map(|count| count * factor)
        .collect()
}

/// Returns what each class adds to the site, `[classes, D]`.
fn effects(sites: &[Site<'_>]) -> Result<Vec<f64>, StatisticsError> {
    let width = sites[0].statistics.width();
    let classes = sites[0].statistics.counts.len();
    let mut matrix = vec![0.0; classes * classes];
    let mut right = vec![0.0; classes * width];
    for site in sites {
        let (n, means) = (counts(site), site.statistics.means());
        let total: f64 = n.iter().sum();
        if total <= 0.0 {
            continue;
        }
        let mean: Vec<f64> = (0..width)
            .map(|at| {
                n.iter()
                    .zip(&means)
                    .map(|(n, mean)| n * mean[at])
                    .sum::<f64>()
                    / total
            })
            .collect();
        for row in 0..classes {
            matrix[row * classes + row] += n[row];
            for column in 0..classes {
                matrix[row * classes + column] -= n[row] * n[column] / total;
            }
            for at in 0..width {
                right[row * width + at] += n[row] * (means[row][at] - mean[at]);
            }
        }
    }
    // The sum of the effects is zero, and classes that nobody can compare have none.
    let scale = (0..classes)
        .map(|at| matrix[at * classes + at])
        .sum::<f64>()
        / classes as f64;
    if scale.is_nan() || scale <= 0.0 {
        return Err(StatisticsError::Degenerate);
    }
    matrix
        .iter_mut()
        .for_each(|value| *value += scale / classes as f64);
    (0..classes).for_each(|at| matrix[at * classes + at] += LEAST * scale);
    let factor = cholesky(matrix, classes)?;
    let mut effects = vec![0.0; classes * width];
    for at in 0..width {
        let column: Vec<f64> = (0..classes)
            .map(|class| right[class * width + at])
            .collect();
        for (class, effect) in back_substitute(&factor, classes, &column)
            .into_iter()
            .enumerate()
        {
            effects[class * width + at] = effect;
        }
    }
    Ok(effects)
}

/// Returns the covariance within the nodes' own classes, as the lower triangle in a square.
fn within(sites: &[Site<'_>], total: f64) -> Result<Vec<f64>, StatisticsError> {
    let width = sites[0].statistics.width();
    let mut sum = vec![0.0; width * width];
    for site in sites.iter().filter(|site| site.weight > 0.0) {
        let own = site.statistics.covariance(0.0)?;
        sum.iter_mut()
            .zip(own)
            .for_each(|(sum, value)| *sum += site.weight / total * value);
    }
    Ok(sum)
}

/// Returns where the node's site lies: the mean of its samples, less what their classes add.
fn own_place(own: &Statistics, effects: &[f64]) -> Vec<f64> {
    let (width, total) = (own.width(), own.total().max(f64::MIN_POSITIVE));
    let of_class = |(count, (mean, effect)): (&f64, (Vec<f64>, &[f64]))| {
        let share = count / total;
        let differences = mean.into_iter().zip(effect.to_vec());
        differences
            .map(|(mean, effect)| share * (mean - effect))
            .collect::<Vec<_>>()
    };
    let classes = own.means().into_iter().zip(effects.chunks_exact(width));
    let mut place = vec![0.0; width];
    for part in own.counts.iter().zip(classes).map(of_class) {
        place
            .iter_mut()
            .zip(part)
            .for_each(|(sum, value)| *sum += value);
    }
    place
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

    /// The recipe for two classes by numpy: `w = (sum S / N + 100 / N I)^-1 delta`, where `delta` is the mean of the sites' own
    /// differences weighted by `n_0 n_1 / n`.
    #[test]
    fn two_classes_have_the_slope_of_the_weighted_differences() {
        let found = solved(&sites());
        let slope: Vec<f64> = (0..2)
            .map(|at| found.weights[2 + at] - found.weights[at])
            .collect();
        let expected = [0.15941680098804717, 0.017301291578572776];
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
