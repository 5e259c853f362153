//! The rows of all sites in one sum, where nobody may see a site's own: what nodes add up, and what one makes of the sum.
//!
//! ```text
//! n = sum_i n_i                                               rows
//! S = sum_i sum_rows (z - z_i) (z - z_i)ᵀ      z = (features, number), z_i: their mean at site i
//! ```
//!
//! None of them says where a site lies. A node takes its own rows off the sum. What is left is that of one peer, whose slope it takes and
//! whose offset it does not: sites may measure from another zero. How much that counts is found out on the own rows ([`Problem::with_sum`]).
//!
//! Sums travel as whole numbers: they are exact, and so is what is left.

use super::{Found, Joint, JointError, Problem};
use crate::statistics::StatisticsError;

/// Whole numbers in a unit: that of a row, or of a square.
const GRID: f64 = (1_u64 << 16) as f64;
/// Fewest rows of others that have a slope.
const FEWEST: f64 = 2.0;

/// Tells why a sum of all sites makes no line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoSum {
    /// The sum has nobody else's rows.
    #[error("the sum of all nodes has no rows of others")]
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

/// Takes a site's own numbers off those of all.
pub fn others(all: impl Iterator<Item = i64>, own: &[i64]) -> Vec<i64> {
    let pairs = all.zip(own);
    pairs.map(|(all, own)| all.saturating_sub(*own)).collect()
}

/// Reads what others have added up: how many rows, and what these are like. Their means are taken for the own ones.
///
/// # Errors
/// Refuses what is no sum of rows.
pub fn read(others: &[i64], own: &Joint) -> Result<(f64, Joint), NoSum> {
    let mut numbers = others.iter().map(|number| *number as f64 / GRID);
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

/// Returns the line of a node's own rows and of so many rows of others.
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
    (rows, others): (f64, &Joint),
) -> Result<Found, StatisticsError> {
    let alone = Problem::new(features, numbers, &[])?.alone();
    let together = Problem::new(features, numbers, &[(rows, others)])?.with_sum()?;
    Ok(match alone {
        Ok(alone) => alone.or_if_not_worse(together),
        Err(_) => together,
    })
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

    /// What is left of a sum is what the other site would say, but for its place.
    #[test]
    fn others_are_what_is_left_of_a_sum() {
        let [here, there] = [site(0.0, 30), site(5.0, 50)];
        let joint = |(features, numbers): &(Vec<f32>, Vec<f32>)| Joint::of(features, numbers);
        let (own, theirs) = (joint(&here), joint(&there));
        let [mine, other] = [whole(&own, 30.0), whole(&theirs, 50.0)];
        assert_eq!(mine.len(), n_whole(2));
        let all = mine.iter().zip(&other).map(|(a, b)| a + b);
        let left = others(all, &mine);
        assert_eq!(left, other);
        let (rows, found) = read(&left, &own).unwrap();
        assert_eq!((rows, &found.means), (50.0, &own.means));
        let pairs = found.covariances.iter().zip(&theirs.covariances);
        pairs.for_each(|(a, b)| assert!((a - b).abs() < 1e-6, "{a} {b}"));
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
