//! How raw values become features, given the moments of everybody.

use fednode_core::spec::{ColumnKind, Filling, Scaling, TableColumn};

use super::moments::{BINS, Unit, of_column};

/// Features are cut at so many deviations: a slip of the decimal point moves no model.
const FARTHEST: f64 = 10.0;
/// A level that a smaller share of all rows has counts as any other word: there is too little to learn of it.
const RAREST: f64 = 0.005;
/// Distance of the quartiles of a normal distribution, in standard deviations.
const QUARTILES: f64 = 1.348_979_500_392_163_5;
/// A column whose deviation is smaller, in halves of its range, has one value.
const LEAST_DEVIATION: f64 = 1e-6;

/// What is known of a column after all nodes have added up.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// The share of rows with a value, 0 to 1.
    pub present: f64,
    /// What else, by the column's kind.
    pub of: Of,
}

/// What is known of a column of one kind.
#[derive(Debug, Clone, PartialEq)]
pub enum Of {
    /// Of numbers, as they are or as their logarithms.
    Numbers {
        /// The mean.
        mean: f64,
        /// The standard deviation.
        deviation: f64,
        /// Lower quartile, median, upper quartile, as exact as a bin is wide.
        quartiles: [f64; 3],
    },
    /// Of truth values: the share of yes among the values.
    Truths(f64),
    /// Of categories: the share of each level among the values, and of all other words.
    Levels(Vec<f64>),
}

/// What is done to one column.
#[derive(Debug, Clone, PartialEq)]
enum Step {
    /// `(place - centre) · factor`, where `place` is that of the value, or of what fills a gap.
    Number {
        unit: Unit,
        centre: f64,
        factor: f64,
        filled: f32,
        is_plain: bool,
    },
    /// The value, or what fills a gap.
    Truth { filled: f32 },
    /// One for the level; rare ones go with the other words.
    Level { places: Vec<usize>, filled: usize },
}

/// What is done to a column, for whoever does it elsewhere: the same as [`Treatment::apply`], step by step.
#[derive(Debug, Clone, PartialEq)]
pub struct Described {
    /// How the column's features are made.
    pub made: Made,
    /// Whether another feature follows, which is 1 where there is a gap.
    pub marks_gaps: bool,
}

/// How features are made of a column's value.
#[derive(Debug, Clone, PartialEq)]
pub enum Made {
    /// `(x - centre) · factor`, cut at the bounds; one feature.
    Scaled {
        /// Whether x is not the value but `sign(value) · ln(1 + |value|)`.
        of_logarithm: bool,
        /// What becomes 0.
        centre: f64,
        /// How much a step of one is.
        factor: f64,
        /// The least and the largest feature.
        bounds: [f64; 2],
        /// The feature of a gap.
        filled: f32,
    },
    /// The value; one feature.
    AsItIs {
        /// The feature of a gap.
        filled: f32,
    },
    /// 1 at the place of the value's level and 0 elsewhere; as many features as places.
    Levels {
        /// The place of every level; values beyond the last count as the last.
        places: Vec<usize>,
        /// The place of a gap.
        filled: usize,
    },
}

/// How rows become features: the same on all nodes that have the same moments.
#[derive(Debug, Clone, PartialEq)]
pub struct Treatment {
    steps: Vec<(Step, bool)>,
    width: usize,
}

impl Treatment {
    /// Fits the treatment to moments, as [`super::moments`] returns them.
    ///
    /// # Panics
    /// Panics if there are more or fewer moments than the columns have.
    pub fn of(columns: &[TableColumn], moments: &[f64]) -> Self {
        let summaries = Summary::all(columns, moments);
        let steps = columns
            .iter()
            .zip(&summaries)
            .map(|(column, summary)| (Step::of(column, summary), column.gaps))
            .collect();
        Self {
            steps,
            width: fednode_core::spec::width_of(columns),
        }
    }

    /// Returns how many features a row has.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Describes what is done to every column.
    pub fn describe(&self) -> Vec<Described> {
        let one = |(step, marks_gaps): &(Step, bool)| Described {
            made: step.describe(),
            marks_gaps: *marks_gaps,
        };
        self.steps.iter().map(one).collect()
    }

    /// Makes features of rows, row after row.
    pub fn apply(&self, rows: &[f32]) -> Vec<f32> {
        let n_columns = self.steps.len().max(1);
        let mut features = Vec::with_capacity(rows.len() / n_columns * self.width);
        for row in rows.chunks_exact(n_columns) {
            for ((step, has_gaps), value) in self.steps.iter().zip(row) {
                step.write(*value, &mut features);
                if *has_gaps {
                    features.push(f32::from(u8::from(value.is_nan())));
                }
            }
        }
        features
    }
}

impl Step {
    fn of(column: &TableColumn, summary: &Summary) -> Self {
        match &summary.of {
            Of::Numbers {
                mean,
                deviation,
                quartiles,
            } => Self::of_numbers(column, *mean, *deviation, *quartiles),
            Of::Truths(share) => Self::Truth {
                filled: match column.filling {
                    Filling::Mean => *share as f32,
                    Filling::Median => share.round() as f32,
                },
            },
            Of::Levels(shares) => Self::of_levels(shares, summary.present),
        }
    }

    fn of_numbers(column: &TableColumn, mean: f64, deviation: f64, quartiles: [f64; 3]) -> Self {
        let unit = Unit::of(column);
        let [lower, median, upper] = quartiles;
        let (centre, spread) = match column.scaling {
            Scaling::Robust => (median, (upper - lower) / QUARTILES),
            Scaling::Standard | Scaling::Log | Scaling::Plain => (mean, deviation),
        };
        let fill = match column.filling {
            Filling::Mean => mean,
            Filling::Median => median,
        };
        // Both are values, and what is measured are places in the range.
        let half = unit.value(1.0) - unit.value(0.0);
        let place = |value: f64| (value - unit.value(0.0)) / half;
        let (centre, spread) = (place(centre), spread / half);
        let is_constant = spread < LEAST_DEVIATION;
        let factor = if is_constant { 0.0 } else { 1.0 / spread };
        let is_plain = column.scaling == Scaling::Plain;
        let filled = if is_plain {
            fill
        } else {
            ((place(fill) - centre) * factor).clamp(-FARTHEST, FARTHEST)
        };
        Self::Number {
            unit,
            centre,
            factor,
            filled: filled as f32,
            is_plain,
        }
    }

    /// Takes the share of each level among the values, that of all other words last.
    fn of_levels(shares: &[f64], present: f64) -> Self {
        let others = shares.len() - 1;
        let kept = |level: usize| {
            if shares[level] * present < RAREST {
                others
            } else {
                level
            }
        };
        let by_share = |a: &usize, b: &usize| shares[*a].total_cmp(&shares[*b]);
        let commonest = (0..=others).rev().max_by(by_share);
        Self::Level {
            places: (0..others).map(kept).chain([others]).collect(),
            filled: kept(commonest.unwrap_or(others)),
        }
    }

    fn describe(&self) -> Made {
        match self {
            Self::Number {
                unit,
                centre,
                factor,
                filled,
                is_plain: false,
            } => {
                let bound = |place: f64| (place - centre) * factor;
                let places = [-1.0, 1.0].map(|side| side * super::moments::FARTHEST);
                Made::Scaled {
                    of_logarithm: unit.is_logarithmic(),
                    centre: unit.value(*centre),
                    // A constant column has no factor, and perhaps no range.
                    factor: if *factor > 0.0 {
                        factor / (unit.value(1.0) - unit.value(0.0))
                    } else {
                        0.0
                    },
                    bounds: places.map(|place| bound(place).clamp(-FARTHEST, FARTHEST)),
                    filled: *filled,
                }
            }
            Self::Number { filled, .. } | Self::Truth { filled } => {
                Made::AsItIs { filled: *filled }
            }
            Self::Level { places, filled } => Made::Levels {
                places: places.clone(),
                filled: *filled,
            },
        }
    }

    fn write(&self, value: f32, features: &mut Vec<f32>) {
        match self {
            Self::Number { filled, .. } | Self::Truth { filled } if value.is_nan() => {
                features.push(*filled);
            }
            Self::Number { is_plain: true, .. } | Self::Truth { .. } => features.push(value),
            Self::Number {
                unit,
                centre,
                factor,
                ..
            } => {
                let feature = (unit.place(value) - centre) * factor;
                features.push(feature.clamp(-FARTHEST, FARTHEST) as f32);
            }
            Self::Level { places, filled } => {
                let level = if value.is_nan() {
                    *filled
                } else {
                    places[(value as usize).min(places.len() - 1)]
                };
                let one = |place| f32::from(u8::from(place == level));
                features.extend((0..places.len()).map(one));
            }
        }
    }
}

impl Summary {
    /// Reads the moments of all columns.
    ///
    /// # Panics
    /// As [`Treatment::of`].
    pub fn all(columns: &[TableColumn], moments: &[f64]) -> Vec<Self> {
        let mut rest = moments;
        let summaries = columns.iter().map(|column| {
            let (own, others) = rest.split_at(of_column(column));
            rest = others;
            Self::read(column, own)
        });
        let summaries = summaries.collect();
        assert!(rest.is_empty(), "the columns have fewer moments");
        summaries
    }

    fn read(column: &TableColumn, moments: &[f64]) -> Self {
        // Moments come from others: shares are shares, whatever they say.
        let share = |value: f64| {
            if value.is_finite() {
                value.clamp(0.0, 1.0)
            } else {
                0.0
            }
        };
        let of_present = |value: f64, present: f64| {
            if present > 0.0 && value.is_finite() {
                value / present
            } else {
                0.0
            }
        };
        match column.kind {
            ColumnKind::Number => {
                let unit = Unit::of(column);
                let present = share(moments[0]);
                // No row is farther away, so no mean is.
                let mean = of_present(moments[1], present)
                    .clamp(-super::moments::FARTHEST, super::moments::FARTHEST);
                let variance = of_present(moments[2], present) - mean * mean;
                let half = unit.value(1.0) - unit.value(0.0);
                Self {
                    present,
                    of: Of::Numbers {
                        mean: unit.value(mean),
                        deviation: variance.max(0.0).sqrt() * half,
                        quartiles: [0.25, 0.5, 0.75]
                            .map(|share| unit.value(quantile(&moments[3..], share))),
                    },
                }
            }
            ColumnKind::Boolean => {
                let present = share(moments[0]);
                Self {
                    present,
                    of: Of::Truths(share(of_present(moments[1], present))),
                }
            }
            ColumnKind::Category => {
                let present = share(moments.iter().sum());
                Self {
                    present,
                    of: Of::Levels(
                        moments
                            .iter()
                            .map(|level| share(of_present(*level, present)))
                            .collect(),
                    ),
                }
            }
        }
    }
}

/// Returns the place in the range below which such a share of the values lies, as if they were even within a bin.
fn quantile(bins: &[f64], wanted: f64) -> f64 {
    let total: f64 = bins.iter().filter(|share| share.is_finite()).sum();
    let mut below = 0.0;
    for (at, share) in bins.iter().enumerate() {
        if total > 0.0 && below + share >= wanted * total && *share > 0.0 {
            let within = (wanted * total - below) / share;
            return (at as f64 + within) / BINS as f64 * 2.0 - 1.0;
        }
        below += share;
    }
    0.0
}
