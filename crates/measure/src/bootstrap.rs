//! Bootstrap intervals: how far a measure may be off because the test is small (Efron and Tibshirani 1993, chapter 13).
//!
//! A resample draws as many rows as there are, with replacement. The middle 95 % of the measure's values over 1,000
//! resamples are its percentile interval, and their standard deviation is its standard error. Quantiles are interpolated
//! linearly, as numpy's are by default.
//!
//! - **Paired.** Two classifiers on the same rows are resampled together, so that what is hard for both cancels out
//!   ([`Bootstrap::gain`]).
//! - **Undefined resamples.** A resample may lack a rare class, and AUROC then has no value. Such resamples are left out
//!   and [`Interval::resamples`] says how many remain. If fewer than half remain there is no interval.
//! - **One row.** Every resample of a single row is that row, which says nothing: there is no interval.
//! - **Small samples.** A percentile interval of a few dozen rows is somewhat too narrow.
//!
//! The draws depend on the seed and the number of rows alone, so every machine gets the same intervals, and all measures of
//! the same rows use the same resamples.

use serde::{Deserialize, Serialize};

use crate::split_mix::SplitMix;
use crate::{Measure, Predictions};

/// The number of resamples by default.
const RESAMPLES: u32 = 1_000;
/// Most resamples: the values of all of them are held at once, 8 bytes each.
const MAX_RESAMPLES: u32 = 1_000_000;
/// The share of resamples within an interval by default.
const LEVEL: f64 = 0.95;

/// How to resample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bootstrap {
    seed: u64,
    resamples: u32,
    level: f64,
}

/// A value with its interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// The value on all rows, each once. It may lie outside the interval, because resampling has a bias.
    pub value: f64,
    /// The lower bound.
    pub low: f64,
    /// The upper bound.
    pub high: f64,
    /// The standard deviation of the resamples' values.
    pub standard_error: f64,
    /// How many resamples had a value.
    pub resamples: u32,
}

/// Tells why there is no bootstrap.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BootstrapError {
    /// The number of resamples is out of range.
    #[error("{0} resamples are out of range: choose 2 to {MAX_RESAMPLES}")]
    Resamples(u32),
    /// The level is out of range.
    #[error("a level of {0} is out of range: choose one between 0 and 1, such as 0.95")]
    Level(f64),
    /// Two classifiers were measured on different rows.
    #[error("the two predict different rows: give both the same rows in the same order")]
    Unpaired,
}

impl Bootstrap {
    /// Returns 1,000 resamples drawn from this seed, and the middle 95 % of them.
    pub fn seeded(seed: u64) -> Self {
        Self {
            seed,
            resamples: RESAMPLES,
            level: LEVEL,
        }
    }

    /// Returns the bootstrap with another number of resamples, 2 to 1,000,000.
    ///
    /// # Errors
    /// Refuses a number out of range.
    pub fn with_resamples(self, resamples: u32) -> Result<Self, BootstrapError> {
        if !(2..=MAX_RESAMPLES).contains(&resamples) {
            return Err(BootstrapError::Resamples(resamples));
        }
        Ok(Self { resamples, ..self })
    }

    /// Returns the bootstrap with another share of resamples within the interval, between 0 and 1.
    ///
    /// # Errors
    /// Refuses a share out of range.
    pub fn with_level(self, level: f64) -> Result<Self, BootstrapError> {
        if !(level > 0.0 && level < 1.0) {
            return Err(BootstrapError::Level(level));
        }
        Ok(Self { level, ..self })
    }

    /// Returns a measure with its interval; `None` if it has no value, for a single row, and if fewer than half of the
    /// resamples have a value.
    pub fn interval(&self, measure: Measure, predictions: &Predictions) -> Option<Interval> {
        let weighed = measure.prepare(predictions)?;
        self.resample(predictions.rows(), &*weighed)
    }

    /// Returns by how much `first` is better than `second` on the same rows, with the interval of that difference.
    ///
    /// A gain is positive where `first` is better, whichever way the measure is better. `None` as for
    /// [`Bootstrap::interval`], with a value meaning one of both.
    ///
    /// # Errors
    /// Refuses predictions of different rows.
    pub fn gain(
        &self,
        measure: Measure,
        first: &Predictions,
        second: &Predictions,
    ) -> Result<Option<Interval>, BootstrapError> {
        if !first.predict_the_same(second) {
            return Err(BootstrapError::Unpaired);
        }
        let (Some(one), Some(two)) = (measure.prepare(first), measure.prepare(second)) else {
            return Ok(None);
        };
        let gain = |counts: &[u32]| Some(measure.gain(one(counts)?, two(counts)?));
        Ok(self.resample(first.rows(), &gain))
    }

    /// Returns by how much the first of each pair is better than the second, in the mean over pairs weighted by their rows, with
    /// the interval of that difference.
    ///
    /// Rows of all pairs are drawn together, so a pair weighs as many rows as were drawn of it. A pair on which the measure has no
    /// value for one of both is left out. `None` as for [`Bootstrap::gain`].
    ///
    /// # Errors
    /// Refuses a pair of different rows.
    pub fn mean_gain(
        &self,
        measure: Measure,
        pairs: &[[Predictions; 2]],
    ) -> Result<Option<Interval>, BootstrapError> {
        if !pairs.iter().all(|[one, two]| one.predict_the_same(two)) {
            return Err(BootstrapError::Unpaired);
        }
        let mut rows = 0;
        let mut prepared = Vec::with_capacity(pairs.len());
        for [first, second] in pairs {
            if let (Some(one), Some(two)) = (measure.prepare(first), measure.prepare(second)) {
                let until = rows + first.rows();
                prepared.push((rows..until, one, two));
                rows = until;
            }
        }
        let gain = |counts: &[u32]| {
            let (mut sum, mut drawn) = (0.0, 0.0);
            for (range, one, two) in &prepared {
                let counts = &counts[range.clone()];
                let n: u32 = counts.iter().sum();
                if let (Some(one), Some(two)) = (one(counts), two(counts)) {
                    sum += f64::from(n) * measure.gain(one, two);
                    drawn += f64::from(n);
                }
            }
            (drawn > 0.0).then(|| sum / drawn)
        };
        Ok(self.resample(rows, &gain))
    }

    fn resample(&self, rows: usize, weighed: &dyn Fn(&[u32]) -> Option<f64>) -> Option<Interval> {
        let mut counts = vec![1; rows];
        let value = weighed(&counts)?;
        if rows < 2 {
            return None;
        }
        let mut draws = SplitMix::seeded(self.seed);
        let mut values = Vec::with_capacity(self.resamples as usize);
        for _ in 0..self.resamples {
            counts.fill(0);
            (0..rows).for_each(|_| counts[draws.below(rows)] += 1);
            values.extend(weighed(&counts));
        }
        if values.len() < 2 || values.len() * 2 < self.resamples as usize {
            return None;
        }
        values.sort_unstable_by(f64::total_cmp);
        let outside = (1.0 - self.level) / 2.0;
        Some(Interval {
            value,
            low: quantile(&values, outside),
            high: quantile(&values, 1.0 - outside),
            standard_error: deviation(&values),
            resamples: values.len() as u32,
        })
    }
}

impl Interval {
    /// Tells whether the interval lies to one side of a number: of 0, a gain beyond noise.
    pub fn excludes(&self, number: f64) -> bool {
        number < self.low || number > self.high
    }
}

/// Returns a quantile of sorted values, which are not empty, interpolated linearly.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let position = share * (sorted.len() - 1) as f64;
    let (below, above) = (position.floor() as usize, position.ceil() as usize);
    let (low, high) = (sorted[below], sorted[above]);
    low + (high - low) * (position - below as f64)
}

/// Returns the standard deviation of at least two values, by one less than their number.
fn deviation(values: &[f64]) -> f64 {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (squares / (values.len() - 1) as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_rows(labels: [u16; 2]) -> Predictions {
        Predictions::of_classes(2, &[0.8, 0.2, 0.3, 0.7], &labels).unwrap()
    }

    #[test]
    fn settings_out_of_range_are_refused_in_one_line() {
        let bootstrap = Bootstrap::seeded(1);
        let refused = |error: BootstrapError| error.to_string();
        let few = refused(bootstrap.with_resamples(1).unwrap_err());
        assert_eq!(few, "1 resamples are out of range: choose 2 to 1000000");
        assert!(bootstrap.with_resamples(MAX_RESAMPLES + 1).is_err());
        for level in [0.0, 1.0, 95.0, f64::NAN] {
            let line = refused(bootstrap.with_level(level).unwrap_err());
            assert!(
                line.ends_with("choose one between 0 and 1, such as 0.95"),
                "{line}"
            );
        }
    }

    #[test]
    fn different_rows_are_not_paired() {
        let bootstrap = Bootstrap::seeded(1);
        let numbers = Predictions::of_numbers(&[1.0, 2.0], &[1.0, 2.0]).unwrap();
        for other in [two_rows([1, 0]), numbers] {
            let refused = bootstrap.gain(Measure::Accuracy, &two_rows([0, 1]), &other);
            assert_eq!(refused, Err(BootstrapError::Unpaired));
        }
    }

    #[test]
    fn a_single_row_has_no_interval() {
        let one = Predictions::of_classes(2, &[0.8, 0.2], &[0]).unwrap();
        assert_eq!(Measure::Accuracy.of(&one), Some(1.0));
        assert_eq!(Bootstrap::seeded(1).interval(Measure::Accuracy, &one), None);
    }

    /// A measure of shares is the same whether rows are taken together or in parts; a rank among rows of two models says nothing.
    #[test]
    fn a_mean_over_parts_does_not_rank_their_rows_among_each_other() {
        let of = |rows: &[f64], labels: &[u16]| {
            let rows: Vec<f64> = rows.iter().flat_map(|one| [1.0 - one, *one]).collect();
            Predictions::of_classes(2, &rows, labels).unwrap()
        };
        let (bootstrap, chance) = (Bootstrap::seeded(1), |n| vec![0.5; n]);
        // Each part is ranked right, and all of one part's scores are above those of the other.
        let [one, two] = [[0.1, 0.2, 0.3, 0.4], [0.6, 0.7, 0.8, 0.9]];
        let labels = [0, 0, 1, 1];
        let parts = [one, two].map(|rows| [of(&rows, &labels), of(&chance(4), &labels)]);
        let all = [
            of(&[one, two].concat(), &labels.repeat(2)),
            of(&chance(8), &labels.repeat(2)),
        ];
        let mean = |measure| bootstrap.mean_gain(measure, &parts).unwrap().unwrap();
        let whole = |measure| bootstrap.gain(measure, &all[0], &all[1]).unwrap().unwrap();
        assert_eq!(mean(Measure::Auroc).value, 0.5);
        assert_eq!(whole(Measure::Auroc).value, 0.25);
        let (mean, whole) = (mean(Measure::Brier), whole(Measure::Brier));
        for (a, b) in [
            (mean.value, whole.value),
            (mean.low, whole.low),
            (mean.high, whole.high),
        ] {
            assert!((a - b).abs() < 1e-12, "{mean:?} {whole:?}");
        }
    }

    /// Of the resamples of three rows, two in nine hold all of them.
    #[test]
    fn too_few_resamples_with_a_value_give_no_interval() {
        let row = [1.0 / 3.0; 3];
        let three = Predictions::of_classes(3, &[row; 3].concat(), &[0, 1, 2]).unwrap();
        assert_eq!(Measure::Auroc.of(&three), Some(0.5));
        assert_eq!(Bootstrap::seeded(1).interval(Measure::Auroc, &three), None);
        assert!(
            Bootstrap::seeded(1)
                .interval(Measure::Accuracy, &three)
                .is_some()
        );
    }

    #[test]
    fn quantiles_are_interpolated() {
        let sorted = [1.0, 2.0, 4.0];
        assert_eq!(quantile(&sorted, 0.0), 1.0);
        assert_eq!(quantile(&sorted, 0.25), 1.5);
        assert_eq!(quantile(&sorted, 0.75), 3.0);
        assert_eq!(quantile(&sorted, 1.0), 4.0);
    }
}
