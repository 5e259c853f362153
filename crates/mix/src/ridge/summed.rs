//! The rows of all sites in one sum, where nobody may see a site's own: what nodes add up, and what one makes of the sum.
//!
//! ```text
//! n = sum_i n_i                                               rows
//! S = sum_i sum_rows (z - z_i) (z - z_i)ᵀ      z = (features, number), z_i: their mean at site i
//! ```
//!
//! None of them says where a site lies. A node takes the slope of the sum, and not its offset: sites may measure from another zero. How much
//! the sum counts beside the own rows is found out on these. They may be in it, so a row that is left out is left out twice.
//!
//! Sums travel as whole numbers.

use super::{Found, Joint, JointError, Problem, joined};
use crate::statistics::StatisticsError;

/// Whole numbers in a unit: that of a row, or of a square.
const GRID: f64 = (1_u64 << 16) as f64;
/// Fewest rows that have a slope. Digits that rounding took do not matter.
const FEWEST: f64 = 1.99;

/// Tells why a sum of all sites makes no line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoSum {
    /// The sum has hardly any rows.
    #[error("the sum of all nodes has no rows")]
    Nobody,
    /// No rows have it.
    #[error("the sum of all nodes is none of rows: {0}")]
    Impossible(#[from] JointError),
}

/// Returns how many numbers [`whole`] has.
pub const fn n_whole(width: usize) -> usize {
    1 + (width + 1) * (width + 2) / 2
}

/// Returns what a site of so many rows adds up.
pub fn whole(joint: &Joint, rows: f64) -> Vec<i64> {
    let scatter = joint.covariances.iter().map(|value| value * rows);
    let numbers = std::iter::once(rows).chain(scatter);
    numbers
        .map(|number| (number * GRID).round() as i64)
        .collect()
}

/// Reads what all have added up: how many rows, and what these are like. Their means are taken for the own ones.
///
/// # Errors
/// Refuses what is no sum of rows.
pub fn read(all: &[i64], own: &Joint) -> Result<(f64, Joint), NoSum> {
    let mut numbers = all.iter().map(|number| *number as f64 / GRID);
    let rows = numbers.next().unwrap_or_default();
    if rows < FEWEST {
        return Err(NoSum::Nobody);
    }
    let joint = Joint {
        means: own.means.clone(),
        covariances: numbers.map(|number| number / rows).collect(),
    };
    Ok((rows, joint.checked()?))
}

/// Returns the line of a node's own rows and of so many rows of all sites.
///
/// It is that of the own rows alone if that is clearly better, or far better on average.
///
/// # Errors
/// As [`super::solve`].
///
/// # Panics
/// As [`super::solve`].
pub fn solve(
    features: &[f32],
    numbers: &[f32],
    (rows, all): (f64, &Joint),
) -> Result<Found, StatisticsError> {
    let alone = Problem::new(features, numbers, &[])?.alone();
    let mut problem = Problem::new(features, numbers, &[(rows, all)])?;
    problem.own_again = 1.0;
    Ok(joined(alone, problem.with_sum()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of two features and a number at a site with an offset of its own.
    fn site(offset: f32, n: usize) -> (Vec<f32>, Vec<f32>) {
        let feature = |row: usize, at: usize| ((row * 7 + at * 3) % 11) as f32 / 11.0 + offset;
        let rows = (0..n).map(|row| [feature(row, 0), feature(row, 1)]);
        let numbers = (0..n).map(|row| feature(row, 0) * 0.5 - feature(row, 1) * 0.25 + offset);
        (rows.flatten().collect(), numbers.collect())
    }

    /// The sum of two sites is what their rows are like, but for their places.
    #[test]
    fn a_sum_is_read_as_rows_around_the_means_of_their_sites() {
        let [here, there] = [site(0.0, 30), site(5.0, 50)];
        let joint = |(features, numbers): &(Vec<f32>, Vec<f32>)| Joint::of(features, numbers);
        let (own, theirs) = (joint(&here), joint(&there));
        let [mine, other] = [whole(&own, 30.0), whole(&theirs, 50.0)];
        assert_eq!(mine.len(), n_whole(2));
        let all: Vec<i64> = mine.iter().zip(&other).map(|(a, b)| a + b).collect();
        let (rows, found) = read(&all, &own).unwrap();
        assert_eq!((rows, &found.means), (80.0, &own.means));
        for (at, value) in found.covariances.iter().enumerate() {
            let mean = (30.0 * own.covariances[at] + 50.0 * theirs.covariances[at]) / 80.0;
            assert!((value - mean).abs() < 1e-6, "{value} {mean}");
        }
        // Both sites have the same slope and another offset: each keeps its own.
        for ((features, numbers), offset) in [(&here, 0.0), (&there, 5.0)] {
            let own = Joint::of(features, numbers);
            let (rows, all) = read(&all, &own).unwrap();
            let line = solve(features, numbers, (rows, &all)).unwrap().line;
            assert!((line.weights[0] - 0.5).abs() < 0.01, "{line:?}");
            assert!((line.offset - offset).abs() < 0.1, "{line:?}");
        }
    }

    /// Rows of others whose number has nothing to do with their features count little, whether or not the own ones are in the sum.
    #[test]
    fn rows_that_say_nothing_get_no_trust() {
        let (features, numbers) = site(0.0, 22);
        let own = Joint::of(&features, &numbers);
        let (strange, _) = site(0.0, 400);
        let noise = (0..400)
            .map(|row| ((row * 7919) % 401) as f32 / 401.0)
            .collect::<Vec<_>>();
        let others = whole(&Joint::of(&strange, &noise), 400.0);
        let mine = whole(&own, 22.0);
        let both: Vec<i64> = others.iter().zip(&mine).map(|(a, b)| a + b).collect();
        for sum in [others, both] {
            let (rows, all) = read(&sum, &own).unwrap();
            let found = solve(&features, &numbers, (rows, &all)).unwrap();
            assert!(found.setting.trust <= 0.01, "{:?}", found.setting);
        }
    }

    #[test]
    fn what_no_rows_have_is_refused() {
        let (features, numbers) = site(0.0, 30);
        let own = Joint::of(&features, &numbers);
        let mut all = whole(&own, 30.0);
        assert_eq!(read(&vec![0; all.len()], &own), Err(NoSum::Nobody));
        all[1] = -1;
        let refused = read(&all, &own);
        assert_eq!(refused, Err(NoSum::Impossible(JointError::Impossible)));
        assert!(matches!(read(&all[..3], &own), Err(NoSum::Impossible(_))));
    }
}
