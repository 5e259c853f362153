//! What a node adds up of a column: means over its training rows, so that their mean weighted by rows is that of everybody.
//!
//! | kind | numbers |
//! |---|---|
//! | number | share of rows with a value; mean of u and of u² over all rows, 0 where there is none; shares of 32 bins |
//! | boolean | share of rows with a value; share of rows with yes |
//! | category | share of rows at each level, and at any other word |
//!
//! `u` is the number moved and scaled so that the column's range is from -1 to 1, and cut at ±8: no row can say more.

use fednode_core::spec::{ColumnKind, Scaling, TableColumn};

/// Bins of a number's range, from which medians and quartiles are read.
pub const BINS: usize = 32;
/// How far outside its range a value counts, in halves of the range.
pub(super) const FARTHEST: f64 = 8.0;

/// Returns how many numbers are added up of these columns.
pub fn n_moments(columns: &[TableColumn]) -> usize {
    columns.iter().map(of_column).sum()
}

/// Returns how many numbers are added up of a column.
pub(super) fn of_column(column: &TableColumn) -> usize {
    match column.kind {
        ColumnKind::Number => 3 + BINS,
        ColumnKind::Boolean => 2,
        ColumnKind::Category => column.levels.len() + 1,
    }
}

/// Where a number's range lies, and how its values are moved there.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Unit {
    middle: f64,
    half: f64,
    is_log: bool,
}

impl Unit {
    pub(super) fn of(column: &TableColumn) -> Self {
        let is_log = column.scaling == Scaling::Log;
        let [low, high] = column.range.map(|end| if is_log { log(end) } else { end });
        Self {
            middle: (low + high) / 2.0,
            half: ((high - low) / 2.0).max(f64::MIN_POSITIVE),
            is_log,
        }
    }

    /// Tells whether places are those of logarithms.
    pub(super) const fn is_logarithmic(&self) -> bool {
        self.is_log
    }

    /// Returns where a value lies in the range, from -1 to 1.
    pub(super) fn place(&self, value: f32) -> f64 {
        let value = f64::from(value);
        let value = if self.is_log { log(value) } else { value };
        ((value - self.middle) / self.half).clamp(-FARTHEST, FARTHEST)
    }

    /// Returns the value at a place, which of a logarithm is the logarithm.
    pub(super) fn value(&self, place: f64) -> f64 {
        self.middle + self.half * place
    }
}

/// The logarithm of one plus the amount, with the sign of the number.
fn log(value: f64) -> f64 {
    value.signum() * libm::log1p(value.abs())
}

/// Returns the moments of rows, column after column: `rows` holds as many values a row as there are columns, a gap is NaN.
pub fn moments(columns: &[TableColumn], rows: &[f32]) -> Vec<f64> {
    let n_rows = (rows.len() / columns.len().max(1)).max(1) as f64;
    let mut all = Vec::with_capacity(n_moments(columns));
    for (at, column) in columns.iter().enumerate() {
        let values = rows.iter().skip(at).step_by(columns.len()).copied();
        let mut sums = add_up(column, values.filter(|value| !value.is_nan()));
        sums.iter_mut().for_each(|sum| *sum /= n_rows);
        all.extend(sums);
    }
    all
}

/// Standard deviation of numbers of which only the range is known, in halves of the range: the ends are three deviations from the middle,
/// where rare rows are. If a range were filled evenly, most measured columns would become small features, which are learned slowly.
const PUBLIC_DEVIATION: f64 = 1.0 / 3.0;

/// Returns moments that no row had a part in: numbers lie around the middle of their range, both truth values and all levels are alike
/// often, and nothing is missing.
pub fn public_moments(columns: &[TableColumn]) -> Vec<f64> {
    let of = |column: &TableColumn| match column.kind {
        ColumnKind::Number => public_numbers(),
        ColumnKind::Boolean => vec![1.0, 0.5],
        ColumnKind::Category => {
            let levels = column.levels.len();
            [vec![1.0 / levels.max(1) as f64; levels], vec![0.0]].concat()
        }
    };
    columns.iter().flat_map(of).collect()
}

/// Returns the moments of numbers of which only the range is known: those of a normal distribution around its middle. As of rows, what
/// is outside the range is in the first or the last bin.
fn public_numbers() -> Vec<f64> {
    let mut bins = vec![0.0; BINS];
    let width = 2.0 / BINS as f64;
    // Places from -3 to 3, which is nine deviations each way.
    for step in 0..3 * BINS {
        let place = (step as f64 + 0.5) * width - 3.0;
        bins[bin(place)] += (-0.5 * (place / PUBLIC_DEVIATION).powi(2)).exp();
    }
    let all: f64 = bins.iter().sum();
    bins.iter_mut().for_each(|share| *share /= all);
    [vec![1.0, 0.0, PUBLIC_DEVIATION.powi(2)], bins].concat()
}

/// Returns mean and variance that each feature may be expected to have, in the order in which a treatment writes them. No row had a part
/// in them: numbers are standardised, and truth values, marks of gaps and places of a category are alike often.
pub fn public_spread(columns: &[TableColumn]) -> Vec<[f64; 2]> {
    let of = |share: f64| [share, share * (1.0 - share)];
    let features = |column: &TableColumn| {
        let mut features = match column.kind {
            ColumnKind::Number => vec![[0.0, 1.0]],
            ColumnKind::Boolean => vec![of(0.5)],
            ColumnKind::Category => {
                let places = column.levels.len() + 1;
                vec![of(1.0 / places as f64); places]
            }
        };
        features.extend(column.gaps.then(|| of(0.5)));
        features
    };
    columns.iter().flat_map(features).collect()
}

fn add_up(column: &TableColumn, values: impl Iterator<Item = f32>) -> Vec<f64> {
    let mut sums = vec![0.0; of_column(column)];
    let unit = Unit::of(column);
    for value in values {
        match column.kind {
            ColumnKind::Number => {
                let place = unit.place(value);
                sums[0] += 1.0;
                sums[1] += place;
                sums[2] += place * place;
                sums[3 + bin(place)] += 1.0;
            }
            ColumnKind::Boolean => {
                sums[0] += 1.0;
                sums[1] += f64::from(value);
            }
            ColumnKind::Category => sums[(value as usize).min(column.levels.len())] += 1.0,
        }
    }
    sums
}

/// Returns the bin of a place; what is outside the range is in the first or the last.
fn bin(place: f64) -> usize {
    (((place + 1.0) / 2.0 * BINS as f64).max(0.0) as usize).min(BINS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows that lie normally around the middle of every range have about these moments; a logarithm's lie so in logarithms.
    #[test]
    fn public_moments_are_those_of_rows_around_the_middle_of_the_ranges() {
        let number = |scaling| TableColumn {
            name: "number".into(),
            range: [0.0, 1000.0],
            scaling,
            ..TableColumn::default()
        };
        let category = TableColumn {
            name: "category".into(),
            kind: ColumnKind::Category,
            levels: ["a", "b", "c"].map(str::to_owned).to_vec(),
            ..TableColumn::default()
        };
        let columns = [number(Scaling::default()), number(Scaling::Log), category];
        // Normal numbers by Box and Muller (1958), of even ones on a grid.
        let side = 1200;
        let n_rows = side * side;
        let row = |at: usize| {
            let [one, other] =
                [at / side, at % side].map(|place| (place as f32 + 0.5) / side as f32);
            let normal = (-2.0 * one.ln()).sqrt() * (std::f32::consts::TAU * other).cos();
            let share = 0.5 + normal / 6.0;
            [1000.0 * share, 1001f32.powf(share) - 1.0, (at % 3) as f32]
        };
        let rows: Vec<f32> = (0..n_rows).flat_map(row).collect();
        let (found, expected) = (public_moments(&columns), moments(&columns, &rows));
        assert_eq!(found.len(), n_moments(&columns));
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-3, "{found} {expected}");
        }
    }

    #[test]
    fn every_feature_has_a_spread() {
        let column = |kind, levels: &[&str], gaps| TableColumn {
            name: "column".into(),
            kind,
            levels: levels.iter().copied().map(str::to_owned).collect(),
            gaps,
            ..TableColumn::default()
        };
        let columns = [
            column(ColumnKind::Number, &[], true),
            column(ColumnKind::Boolean, &[], false),
            column(ColumnKind::Category, &["a", "b", "c"], false),
        ];
        let spread = public_spread(&columns);
        assert_eq!(spread.len(), fednode_core::spec::width_of(&columns));
        assert_eq!(spread[..3], [[0.0, 1.0], [0.5, 0.25], [0.5, 0.25]]);
        assert_eq!(spread[3..], [[0.25, 0.1875]; 4]);
    }
}
