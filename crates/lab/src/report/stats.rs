//! The statistics of a report: quartiles, spread over seeds, tests on paired differences. Pure functions.
//!
//! ```text
//! paired t-test    t = mean(d) / (s / sqrt n),  n - 1 degrees of freedom;  p = I_{df / (df + t^2)}(df / 2, 1 / 2)
//! Wilcoxon         d = 0 is dropped, |d| is ranked, equal |d| share their mean rank; W = min(sum of ranks of d > 0, of d < 0)
//!                  z = (W - n (n + 1) / 4) / sqrt(n (n + 1) (2 n + 1) / 24 - sum over ties (t^3 - t) / 48),  p = erfc(|z| / sqrt 2)
//! sign test        d = 0 is dropped; p = 2 P[Binomial(n, 1/2) <= min(better, worse)], at most 1
//! ```
//!
//! All tests are two-sided. They correct for ties only, not for the number of tests. They are checked against SciPy 1.x
//! (`ttest_rel`, `wilcoxon(method="approx", correction=False)`, `binomtest`) and Student's own example.

use serde::Serialize;

/// Differences that are no further from 0, or from each other, are equal.
///
/// Accuracies are quotients of small whole numbers. They differ by at least one millionth, or by rounding alone.
const EQUAL: f64 = 1e-12;
/// From this many non-zero differences on Wilcoxon's test is used with its normal approximation; below, an exact test.
pub(crate) const FEWEST_FOR_WILCOXON: usize = 10;
/// Largest number of steps of a continued fraction. Some dozens are needed at most.
const STEPS: usize = 500;
/// Relative change at which a continued fraction or series has converged.
const PRECISION: f64 = 1e-15;

/// Least, quartiles and greatest of some values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Spread {
    /// The least.
    pub(crate) min: f64,
    /// A quarter lies below.
    pub(crate) lower: f64,
    /// A half lies below.
    pub(crate) median: f64,
    /// Three quarters lie below.
    pub(crate) upper: f64,
    /// The greatest.
    pub(crate) max: f64,
}

/// Mean and standard deviation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Moments {
    /// How many values.
    pub(crate) n: usize,
    /// Their mean.
    pub(crate) mean: f64,
    /// Their standard deviation with n - 1; `None` of one value.
    pub(crate) deviation: Option<f64>,
}

/// The tests of paired differences.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Paired {
    /// Pairs.
    pub(crate) pairs: usize,
    /// Mean difference.
    pub(crate) mean: f64,
    /// Standard deviation of the differences; `None` of one pair.
    pub(crate) deviation: Option<f64>,
    /// Differences above 0.
    pub(crate) better: usize,
    /// Differences below 0.
    pub(crate) worse: usize,
    /// Differences of 0.
    pub(crate) equal: usize,
    /// The t-test; `None` if all differences are the same or there is only one.
    pub(crate) t_test: Option<TTest>,
    /// The test by ranks or signs; `None` if all differences are 0.
    pub(crate) rank_test: Option<RankTest>,
}

/// The two-sided paired t-test.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct TTest {
    /// Mean difference by its standard error.
    pub(crate) t: f64,
    /// Pairs less one.
    pub(crate) degrees_of_freedom: usize,
    /// Probability of a t as far from 0 if there is no difference.
    pub(crate) p: f64,
}

/// A two-sided test that assumes no normal distribution.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(tag = "test", rename_all = "kebab-case")]
pub(crate) enum RankTest {
    /// Wilcoxon's signed ranks, by the normal approximation with a correction for ties.
    Wilcoxon {
        /// Non-zero differences.
        n: usize,
        /// The smaller of the two sums of ranks.
        w: f64,
        /// Its standardised value.
        z: f64,
        /// Probability of a z as far from 0.
        p: f64,
    },
    /// The exact sign test.
    Sign {
        /// Non-zero differences.
        n: usize,
        /// Probability of a split as uneven.
        p: f64,
    },
}

impl RankTest {
    /// Returns its probability.
    pub(crate) const fn p(self) -> f64 {
        match self {
            Self::Wilcoxon { p, .. } | Self::Sign { p, .. } => p,
        }
    }
}

/// Returns the spread of the finite values; `None` if there is none.
pub(crate) fn spread(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
    let mut sorted: Vec<f64> = values
        .into_iter()
        .filter(|value| value.is_finite())
        .collect();
    sorted.sort_by(f64::total_cmp);
    let at = |share| quantile(&sorted, share);
    Some(Spread {
        min: at(0.0)?,
        lower: at(0.25)?,
        median: at(0.5)?,
        upper: at(0.75)?,
        max: at(1.0)?,
    })
}

/// Returns a quantile of sorted values, linear between neighbours (type 7 of Hyndman and Fan, the default of NumPy and R).
fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let position = share * sorted.len().checked_sub(1)? as f64;
    let below = sorted.get(position.floor() as usize)?;
    let above = sorted.get(position.ceil() as usize)?;
    Some(below + (above - below) * position.fract())
}

/// Returns mean and standard deviation of the finite values; `None` if there is none.
pub(crate) fn moments(values: impl IntoIterator<Item = f64>) -> Option<Moments> {
    let values: Vec<f64> = values
        .into_iter()
        .filter(|value| value.is_finite())
        .collect();
    let n = values.len();
    let mean = (n > 0).then(|| values.iter().sum::<f64>() / n as f64)?;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    Some(Moments {
        n,
        mean,
        deviation: (n > 1).then(|| (squares / (n - 1) as f64).sqrt()),
    })
}

/// Tests the differences of pairs, each the first value less the second. Returns `None` without a finite difference.
pub(crate) fn paired(differences: &[f64]) -> Option<Paired> {
    let finite: Vec<f64> = differences
        .iter()
        .copied()
        .filter(|difference| difference.is_finite())
        .collect();
    let Moments { n, mean, deviation } = moments(finite.iter().copied())?;
    let (better, worse) = (
        count(&finite, |d| d > EQUAL),
        count(&finite, |d| d < -EQUAL),
    );
    let t_test = deviation
        .filter(|deviation| *deviation > EQUAL)
        .map(|deviation| t_test(n, mean, deviation));
    let rank_test = rank_test(&finite, better, worse);
    Some(Paired {
        pairs: n,
        mean,
        deviation,
        better,
        worse,
        equal: n - better - worse,
        t_test,
        rank_test,
    })
}

fn count(values: &[f64], is: fn(f64) -> bool) -> usize {
    values.iter().filter(|value| is(**value)).count()
}

fn t_test(n: usize, mean: f64, deviation: f64) -> TTest {
    let t = mean / (deviation / (n as f64).sqrt());
    let df = (n - 1) as f64;
    let p = incomplete_beta(df / 2.0, 0.5, df / (df + t * t));
    TTest {
        t,
        degrees_of_freedom: n - 1,
        p,
    }
}

fn rank_test(differences: &[f64], better: usize, worse: usize) -> Option<RankTest> {
    match better + worse {
        0 => None,
        n if n < FEWEST_FOR_WILCOXON => Some(RankTest::Sign {
            n,
            p: sign_test(better, worse),
        }),
        _ => wilcoxon(differences),
    }
}

fn wilcoxon(differences: &[f64]) -> Option<RankTest> {
    let mut sorted: Vec<f64> = differences
        .iter()
        .copied()
        .filter(|difference| difference.abs() > EQUAL)
        .collect();
    sorted.sort_by(|a, b| a.abs().total_cmp(&b.abs()));
    let (mut positive, mut negative, mut ties) = (0.0, 0.0, 0.0);
    let mut rest = sorted.as_slice();
    let mut ranked = 0;
    while let Some(first) = rest.first() {
        let alike = rest
            .iter()
            .take_while(|d| d.abs() - first.abs() <= EQUAL)
            .count();
        // The ranks ranked + 1 ..= ranked + alike are shared.
        let rank = ranked as f64 + (alike + 1) as f64 / 2.0;
        for difference in &rest[..alike] {
            if *difference > 0.0 {
                positive += rank
            } else {
                negative += rank
            }
        }
        ties += (alike as f64).powi(3) - alike as f64;
        ranked += alike;
        rest = &rest[alike..];
    }
    let n = ranked as f64;
    let variance = n * (n + 1.0) * (2.0 * n + 1.0) / 24.0 - ties / 48.0;
    let w = f64::min(positive, negative);
    let z = (w - n * (n + 1.0) / 4.0) / variance.sqrt();
    (variance > 0.0).then(|| RankTest::Wilcoxon {
        n: ranked,
        w,
        z,
        p: normal_two_sided(z),
    })
}

/// Returns the exact two-sided probability of so uneven a split of fair coins.
fn sign_test(better: usize, worse: usize) -> f64 {
    let n = better + worse;
    let (mut term, mut tail) = (0.5_f64.powi(n as i32), 0.0);
    for k in 0..=better.min(worse) {
        tail += term;
        term *= (n - k) as f64 / (k + 1) as f64;
    }
    f64::min(1.0, 2.0 * tail)
}

/// Returns the probability that a standard normal variable is at least as far from 0 as z: Q(1/2, z²/2).
fn normal_two_sided(z: f64) -> f64 {
    let x = z * z / 2.0;
    if x < 1.5 {
        1.0 - gamma_series(x)
    } else {
        gamma_fraction(x)
    }
}

/// Returns P(1/2, x) by its series (Abramowitz and Stegun 6.5.29).
fn gamma_series(x: f64) -> f64 {
    let (mut term, mut sum) = (2.0, 2.0);
    for n in 1..STEPS {
        term *= x / (0.5 + n as f64);
        sum += term;
        if term < sum * PRECISION {
            break;
        }
    }
    sum * (x / std::f64::consts::PI).sqrt() * (-x).exp()
}

/// Returns Q(1/2, x) by its continued fraction (Abramowitz and Stegun 6.5.31), in Lentz's way.
fn gamma_fraction(x: f64) -> f64 {
    let term = |n: usize| (-(n as f64) * (n as f64 - 0.5), x + 0.5 + 2.0 * n as f64);
    (x / std::f64::consts::PI).sqrt() * (-x).exp() / lentz(x + 0.5, term)
}

/// Returns I_x(a, b), the regularised incomplete beta function, for positive a and b and x from 0 to 1.
fn incomplete_beta(a: f64, b: f64, x: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return if x > 0.5 { 1.0 } else { 0.0 };
    }
    // The fraction converges fast on this side of the mean only; the other side is 1 minus the mirror image.
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - incomplete_beta(b, a, 1.0 - x);
    }
    let front = ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b) + a * x.ln() + b * (1.0 - x).ln();
    // Abramowitz and Stegun 26.5.8.
    let term = |step: usize| {
        let m = (step / 2) as f64;
        let odd = -(a + m) * (a + b + m) / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        let even = m * (b - m) / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        (x * if step % 2 == 1 { odd } else { even }, 1.0)
    };
    front.exp() / a / lentz(1.0, term)
}

/// Evaluates `b0 + a1 / (b1 + a2 / (b2 + …))`, given the pairs (a, b) from 1 on.
fn lentz(first: f64, term: impl Fn(usize) -> (f64, f64)) -> f64 {
    const TINY: f64 = 1e-300;
    let off_zero = |value: f64| if value.abs() < TINY { TINY } else { value };
    let mut value = off_zero(first);
    let (mut c, mut d) = (value, 0.0);
    for step in 1..STEPS {
        let (numerator, denominator) = term(step);
        d = 1.0 / off_zero(denominator + numerator * d);
        c = off_zero(denominator + numerator / c);
        value *= c * d;
        if (c * d - 1.0).abs() < PRECISION {
            break;
        }
    }
    value
}

/// Returns ln Γ(x) for x above 0 by Stirling's series, from where ten terms of the recurrence have made it exact.
fn ln_gamma(x: f64) -> f64 {
    let (mut shift, mut x) = (0.0, x);
    while x < 10.0 {
        shift -= x.ln();
        x += 1.0;
    }
    let inverse = 1.0 / (x * x);
    // B_2k / (2k (2k - 1)), from the highest power down.
    let series = [
        -691.0 / 360_360.0,
        1.0 / 1188.0,
        -1.0 / 1680.0,
        1.0 / 1260.0,
        -1.0 / 360.0,
        1.0 / 12.0,
    ];
    let tail = series
        .iter()
        .fold(0.0, |sum, coefficient| sum * inverse + coefficient)
        / x;
    shift + (x - 0.5) * x.ln() - x + 0.5 * (2.0 * std::f64::consts::PI).ln() + tail
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hours of sleep won by two drugs (Student 1908): the paired differences of his ten patients.
    const SLEEP: [f64; 10] = [1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4];
    /// Made up, with a zero, ties and both signs.
    const MIXED: [f64; 12] = [
        0.1, 0.2, -0.05, 0.3, 0.12, 0.4, -0.1, 0.0, 0.22, 0.07, 0.15, 0.3,
    ];

    #[track_caller]
    fn close(got: f64, want: f64) {
        assert!(
            (got - want).abs() <= 1e-9 * want.abs().max(1e-6),
            "got {got}, want {want}"
        );
    }

    #[test]
    fn quartiles_are_those_of_numpy() {
        let got = spread([0.1, 0.4, 0.2, 0.9, f64::NAN, 0.7, 0.35]).unwrap();
        let want = [0.1, 0.2375, 0.375, 0.625, 0.9];
        for (got, want) in [got.min, got.lower, got.median, got.upper, got.max]
            .into_iter()
            .zip(want)
        {
            close(got, want);
        }
        let one = spread([0.5]).unwrap();
        assert_eq!((one.min, one.median, one.max), (0.5, 0.5, 0.5));
        assert_eq!(spread([]), None);
        assert_eq!(spread([f64::INFINITY]), None);
    }

    #[test]
    fn moments_by_hand() {
        let got = moments([0.5, 0.7, f64::NAN]).unwrap();
        assert_eq!(got.n, 2);
        close(got.mean, 0.6);
        close(got.deviation.unwrap(), 0.02_f64.sqrt());
        assert_eq!(moments([0.5]).unwrap().deviation, None);
        assert_eq!(moments([]), None);
    }

    #[test]
    fn the_distributions_are_those_of_scipy() {
        let t = |t: f64, df: f64| incomplete_beta(df / 2.0, 0.5, df / (df + t * t));
        close(t(2.0, 4.0), 0.116_116_523_516_815_56);
        close(t(1.0, 1.0), 0.5);
        close(t(3.5, 19.0), 0.002_395_346_689_682_809);
        close(t(0.1, 100.0), 0.920_544_531_095_851_2);
        close(t(12.0, 9.0), 7.699_886_222_985_653e-7);
        close(t(0.0, 9.0), 1.0);
        close(incomplete_beta(2.0, 5.0, 0.3), 0.579_825);
        for (z, p) in [
            (0.0, 1.0),
            (0.5, 0.617_075_077_451_973_8),
            (-1.0, 0.317_310_507_862_914_15),
        ] {
            close(normal_two_sided(z), p);
        }
        for (z, p) in [
            (1.96, 0.049_995_790_296_440_87),
            (3.0, 0.002_699_796_063_260_186_6),
        ] {
            close(normal_two_sided(z), p);
        }
        close(normal_two_sided(6.0), 1.973_175_290_075_389e-9);
    }

    #[test]
    fn students_own_example() {
        let got = paired(&SLEEP).unwrap();
        assert_eq!((got.pairs, got.better, got.worse, got.equal), (10, 9, 0, 1));
        let t = got.t_test.unwrap();
        close(t.t, 4.062_127_683_382_037);
        close(t.p, 0.002_832_890_197_384_273);
        assert_eq!(t.degrees_of_freedom, 9);
        // Nine differences are few: the exact sign test.
        assert_eq!(
            got.rank_test,
            Some(RankTest::Sign {
                n: 9,
                p: 0.003_906_25
            })
        );
        let Some(RankTest::Wilcoxon { n, w, z, p }) = wilcoxon(&SLEEP) else {
            panic!("no ranks")
        };
        assert_eq!((n, w), (9, 0.0));
        close(z, -2.667_911_250_279_385_4);
        close(p, 0.007_632_441_648_205_508);
    }

    #[test]
    fn ties_and_zeros_as_scipy_has_them() {
        let got = paired(&MIXED).unwrap();
        assert_eq!((got.better, got.worse, got.equal), (9, 2, 1));
        let t = got.t_test.unwrap();
        close(t.t, 3.280_804_527_177_387);
        close(t.p, 0.007_323_306_132_724_926_4);
        close(got.deviation.unwrap(), 0.150_461_411_543_413_22);
        let Some(RankTest::Wilcoxon { n, w, z, p }) = got.rank_test else {
            panic!("{got:?}")
        };
        assert_eq!((n, w), (11, 4.5));
        close(z, -2.536_466_709_092_913_6);
        close(p, 0.011_197_738_894_413_023);
    }

    #[test]
    fn differences_by_rounding_are_ties() {
        let rounded: Vec<f64> = (0..10)
            .map(|k| if k % 2 == 0 { 0.9 - 0.8 } else { 0.1 })
            .collect();
        let Some(RankTest::Wilcoxon { w, p, .. }) = paired(&rounded).unwrap().rank_test else {
            panic!("no ranks")
        };
        assert_eq!(w, 0.0);
        close(p, 0.001_565_402_258_002_55);
        assert_eq!(paired(&[0.3 - 0.1 - 0.2]).unwrap().equal, 1);
    }

    #[test]
    fn sign_test_is_exact() {
        for ((better, worse), p) in [
            ((8, 1), 0.039_062_5),
            ((5, 0), 0.0625),
            ((3, 3), 1.0),
            ((1, 6), 0.125),
            ((0, 9), 0.003_906_25),
        ] {
            close(sign_test(better, worse), p);
        }
    }

    #[test]
    fn nothing_is_tested_that_cannot_be() {
        assert_eq!(paired(&[]), None);
        assert_eq!(paired(&[f64::NAN]), None);
        let one = paired(&[0.25]).unwrap();
        assert_eq!((one.t_test, one.deviation), (None, None));
        let same = paired(&[0.0, 0.0]).unwrap();
        assert_eq!((same.t_test, same.rank_test, same.equal), (None, None, 2));
    }
}
