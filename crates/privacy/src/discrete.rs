//! Exact draws from the discrete Gaussian on the integers (Canonne, Kamath and Steinke, NeurIPS 2020, arXiv 2004.00010).
//!
//! ```text
//! P(x) = exp(-x²/(2 σ²)) / sum over all integers y of exp(-y²/(2 σ²))
//! ```
//!
//! Noise in floats leaks: the gaps between floats tell the value that noise was added to (Mironov, CCS 2012). So data are
//! rounded to a grid first, and noise is a whole number of grid units. The paper's Algorithm 3 draws a discrete Laplace
//! number Y of scale t = floor(σ) + 1, and keeps it with probability exp(-(|Y| - σ²/t)²/(2σ²)). Every coin is thrown with
//! whole numbers (Algorithms 1 and 2), so the draw is exact: σ² is a fraction, and no float is involved.
//!
//! **Exact but for e⁻¹⁹⁰⁰.** Numbers are 128 bits wide. Y beyond 64 t is refused; it would be kept with a probability below
//! e⁻¹⁹⁰⁰.
//!
//! **What noise promises.** A release with this noise keeps the Rényi bound of Gaussian noise with the same σ (Theorem 4
//! there). The exact δ(ε) of [`crate::gaussian`] speaks of reals. On a grid with σ of s grid units, δ differs from it by a
//! share of about 2/s²: sums over grid points replace integrals. At a million units that is 1e-12. The sum of members'
//! draws is not quite one draw of the summed σ², either; from 4 grid units a member on, the difference is below 1e-60
//! (Kairouz, Liu and Steinke, ICML 2021).
//!
//! **The source of randomness is an argument**: the operating system's in production, a seed in tests. How long a draw
//! takes depends on what is drawn, so nobody may be able to measure it.
//!
//! **Why not a library.** Prio's (`prio::dp`, from OpenDP's) is exact, too. It works with fractions of unbounded integers:
//! 30 µs a draw, where this takes 0.22 µs on the same machine. It also takes the random source of another release of `rand`
//! than this workspace does, and brings a second `num-bigint`. OpenDP's own crate is 57 packages. The code here is short,
//! and a test holds its draws to the exact probabilities.

use rand_core::RngCore;

/// Most of a numerator and of a denominator: products of the algorithm then fit into 128 bits.
const MOST: u64 = 1 << 54;
/// A draw beyond so many scales is refused.
const MOST_SCALES: u64 = 63;

/// Tells why a variance cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum VarianceError {
    /// The numerator or the denominator is out of range.
    #[error("a variance of {0}/{1} grid units is out of range: both numbers must be 1 to {MOST}")]
    Fraction(u64, u64),
    /// The number is out of range.
    #[error(
        "a variance of {0} grid units is out of range: choose a finer or coarser grid, for 1e-16 to 1e16"
    )]
    Number(f64),
}

/// An exact σ², in squared grid units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Variance {
    numerator: u64,
    denominator: u64,
}

/// Discrete Gaussian noise of one variance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiscreteGaussian {
    /// t, the scale of the Laplace draws.
    scale: u64,
    /// σ² = numerator / denominator.
    numerator: u128,
    /// t times the denominator of σ².
    scaled: u128,
    /// 2 σ² t² (denominator)²: what a squared distance is divided by.
    divisor: u128,
}

impl Variance {
    /// Returns the variance numerator / denominator.
    ///
    /// # Errors
    /// Refuses numbers that are 0 or above 2⁵⁴.
    pub fn exact(numerator: u64, denominator: u64) -> Result<Self, VarianceError> {
        let fits = |number| (1..=MOST).contains(&number);
        if !fits(numerator) || !fits(denominator) {
            return Err(VarianceError::Fraction(numerator, denominator));
        }
        Ok(Self {
            numerator,
            denominator,
        })
    }

    /// Returns the least variance of at least a number that is a fraction of a power of two; equal to it from 1 on.
    ///
    /// # Errors
    /// Refuses a number that is not finite, below 1e-16 or above 1e16.
    pub fn at_least(value: f64) -> Result<Self, VarianceError> {
        if !(1e-16..=1e16).contains(&value) {
            return Err(VarianceError::Number(value));
        }
        let mut denominator = 1_u64;
        while denominator < MOST && (value * denominator as f64).fract() != 0.0 {
            denominator *= 2;
        }
        let numerator = (value * denominator as f64).ceil() as u64;
        Self::exact(numerator, denominator).map_err(|_| VarianceError::Number(value))
    }

    /// Returns the variance as a float.
    pub fn to_f64(self) -> f64 {
        self.numerator as f64 / self.denominator as f64
    }
}

impl DiscreteGaussian {
    /// Returns noise of this variance.
    pub fn new(variance: Variance) -> Self {
        let numerator = u128::from(variance.numerator);
        let denominator = u128::from(variance.denominator);
        let scale = (variance.numerator / variance.denominator).isqrt() + 1;
        let scaled = u128::from(scale) * denominator;
        Self {
            scale,
            numerator,
            scaled,
            divisor: 2 * numerator * scaled * u128::from(scale),
        }
    }

    /// Draws one number.
    pub fn sample(&self, random: &mut impl RngCore) -> i64 {
        loop {
            let Some(size) = laplace_size(self.scale, random) else {
                continue;
            };
            let negative = random.next_u32() & 1 == 1;
            if negative && size == 0 {
                continue;
            }
            // (|Y| - σ²/t)² / (2 σ²), as a fraction of whole numbers.
            let distance = (u128::from(size) * self.scaled).abs_diff(self.numerator);
            if exponential_coin(distance * distance, self.divisor, random) {
                let size = size as i64;
                return if negative { -size } else { size };
            }
        }
    }
}

/// Draws the size of a discrete Laplace number by the paper's Algorithm 2, without its sign; `None` if it is refused.
fn laplace_size(scale: u64, random: &mut impl RngCore) -> Option<u64> {
    let rest = below(u128::from(scale), random);
    if !small_exponential_coin(rest, u128::from(scale), random) {
        return None;
    }
    let mut scales = 0;
    while small_exponential_coin(1, 1, random) {
        scales += 1;
        if scales > MOST_SCALES {
            return None;
        }
    }
    Some(rest as u64 + scale * scales)
}

/// Throws a coin that is true with probability exp(-numerator/denominator).
fn exponential_coin(numerator: u128, denominator: u128, random: &mut impl RngCore) -> bool {
    // Numbers of 128 bits divide slowly, and few need it.
    let (whole, rest) = if numerator < denominator {
        (0, numerator)
    } else {
        (numerator / denominator, numerator % denominator)
    };
    (0..whole).all(|_| small_exponential_coin(1, 1, random))
        && small_exponential_coin(rest, denominator, random)
}

/// Throws a coin that is true with probability exp(-numerator/denominator), which is at most 1 below the exponential.
///
/// Algorithm 1: with k = 1, 2, … throw coins of probability γ/k until one is false; true if that k is odd. A coin of
/// probability γ/k is one of γ and one of 1/k, so that no product grows.
fn small_exponential_coin(numerator: u128, denominator: u128, random: &mut impl RngCore) -> bool {
    let mut k = 1;
    while below_small(k, random) == 0 && below(denominator, random) < numerator {
        k += 1;
    }
    k % 2 == 1
}

/// Draws a whole number from 0 to below `limit`, each equally likely.
fn below(limit: u128, random: &mut impl RngCore) -> u128 {
    if let Ok(small) = u64::try_from(limit) {
        return u128::from(below_small(small, random));
    }
    let unused = (limit - 1).leading_zeros();
    loop {
        let drawn = u128::from(random.next_u64()) << 64 | u128::from(random.next_u64());
        let number = drawn >> unused;
        if number < limit {
            return number;
        }
    }
}

/// Draws as [`below`] does, of one word.
fn below_small(limit: u64, random: &mut impl RngCore) -> u64 {
    if limit == 1 {
        return 0;
    }
    let unused = (limit - 1).leading_zeros();
    loop {
        let number = random.next_u64() >> unused;
        if number < limit {
            return number;
        }
    }
}

#[cfg(test)]
mod tests {
    use rand_chacha::ChaCha20Rng;
    use rand_chacha::rand_core::SeedableRng;

    use super::*;

    const DRAWS: u32 = 200_000;

    fn seeded(seed: u64) -> ChaCha20Rng {
        ChaCha20Rng::seed_from_u64(seed)
    }

    fn noise(numerator: u64, denominator: u64) -> DiscreteGaussian {
        DiscreteGaussian::new(Variance::exact(numerator, denominator).unwrap())
    }

    /// Pearson's statistic of draws against the exact probabilities; numbers expected fewer than 10 times are one cell.
    fn chi_square(numerator: u64, denominator: u64) -> (f64, usize) {
        let variance = numerator as f64 / denominator as f64;
        let weight = |x: i64| (-(x as f64).powi(2) / (2.0 * variance)).exp();
        let all: f64 = (-200..=200).map(weight).sum();
        let mut counts = std::collections::BTreeMap::new();
        let (noise, mut random) = (noise(numerator, denominator), seeded(numerator));
        for _ in 0..DRAWS {
            *counts.entry(noise.sample(&mut random)).or_insert(0_u32) += 1;
        }
        let draws = f64::from(DRAWS);
        let (mut sum, mut cells, mut rest) = (0.0, 0, (draws, DRAWS));
        for x in -200..=200 {
            let expected = draws * weight(x) / all;
            if expected < 10.0 {
                continue;
            }
            let seen = counts.get(&x).copied().unwrap_or(0);
            sum += (f64::from(seen) - expected).powi(2) / expected;
            rest = (rest.0 - expected, rest.1 - seen);
            cells += 1;
        }
        sum += (f64::from(rest.1) - rest.0).powi(2) / rest.0.max(1.0);
        (sum, cells)
    }

    /// A statistic of n degrees of freedom has mean n and variance 2n: five deviations are far beyond chance.
    #[test]
    fn draws_have_the_exact_probabilities() {
        for (numerator, denominator) in [(1, 3), (1, 1), (5, 2), (9, 1), (400, 7)] {
            let (statistic, cells) = chi_square(numerator, denominator);
            let freedom = cells as f64;
            let limit = freedom + 5.0 * (2.0 * freedom).sqrt();
            assert!(
                statistic < limit,
                "{numerator}/{denominator}: {statistic} of {cells} cells"
            );
            assert!(statistic > 0.0 && cells >= 3);
        }
    }

    #[test]
    fn large_noise_has_its_mean_and_variance() {
        let sigma = 1e6_f64;
        let noise = DiscreteGaussian::new(Variance::at_least(sigma * sigma).unwrap());
        let mut random = seeded(11);
        let draws: Vec<f64> = (0..DRAWS)
            .map(|_| noise.sample(&mut random) as f64 / sigma)
            .collect();
        let number = f64::from(DRAWS);
        let mean = draws.iter().sum::<f64>() / number;
        let variance = draws.iter().map(|draw| draw * draw).sum::<f64>() / number;
        let fourth = draws.iter().map(|draw| draw.powi(4)).sum::<f64>() / number;
        // Standard errors of a normal sample: 1, sqrt 2 and sqrt 96, over sqrt n.
        assert!(mean.abs() < 4.0 / number.sqrt(), "{mean}");
        assert!(
            (variance - 1.0).abs() < 4.0 * (2.0 / number).sqrt(),
            "{variance}"
        );
        assert!(
            (fourth - 3.0).abs() < 4.0 * (96.0 / number).sqrt(),
            "{fourth}"
        );
    }

    #[test]
    fn the_largest_and_least_variances_do_not_overflow() {
        let mut random = seeded(5);
        for (numerator, denominator) in [
            (MOST, 1),
            (MOST, MOST),
            (1, MOST),
            (MOST, MOST - 1),
            (MOST - 1, 3),
        ] {
            let noise = noise(numerator, denominator);
            let far = u128::from(noise.scale) * 64 * noise.scaled;
            assert!(far.checked_mul(far).is_some());
            for _ in 0..200 {
                noise.sample(&mut random);
            }
        }
    }

    #[test]
    fn a_seed_repeats_its_draws() {
        let draw = |seed| {
            let mut random = seeded(seed);
            [0; 8].map(|_| noise(1_000_000, 1).sample(&mut random))
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn a_float_becomes_a_fraction_that_is_not_less() {
        let exact = Variance::at_least(2.5).unwrap();
        assert_eq!(exact, Variance::exact(5, 2).unwrap());
        for value in [1e-16, 0.1, 1.0 / 3.0, 1.7e12 + 0.3, 1e16] {
            let found = Variance::at_least(value).unwrap().to_f64();
            assert!(found >= value && found <= value * 2.0, "{value}: {found}");
        }
        for value in [0.0, -1.0, 1e17, f64::NAN, f64::INFINITY] {
            assert!(Variance::at_least(value).is_err(), "{value}");
        }
    }

    #[test]
    fn fractions_out_of_range_are_refused_in_one_line() {
        assert_eq!(
            Variance::exact(0, 1).unwrap_err().to_string(),
            "a variance of 0/1 grid units is out of range: both numbers must be 1 to 18014398509481984"
        );
        assert!(Variance::exact(1, 0).is_err());
        assert!(Variance::exact(MOST + 1, 1).is_err());
    }
}
