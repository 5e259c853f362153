//! Tails of the normal distribution as logarithms, precise where the tails themselves are too small for a float.
//!
//! `libm` has erfc. Its logarithm is needed beyond x = 26, where erfc vanishes in 64 bits, and no maintained crate of the
//! workspace has it. There the asymptotic series does (Abramowitz and Stegun 1964, 7.1.23):
//!
//! ```text
//! erfc(x) = exp(-x²) / (x sqrt(pi)) (1 - 1/(2x²) + 1·3/(2x²)² - 1·3·5/(2x²)³ + …)
//! ```
//!
//! Terms alternate, so the error is below the first one left out.

use std::f64::consts::{FRAC_1_SQRT_2, LN_2, PI};

/// From here on the series is used: eight terms are then exact to 1e-17, and `libm` has 40 digits of exponent left.
const SERIES_FROM: f64 = 20.0;
/// Terms of the series.
const TERMS: u32 = 8;

/// Returns ln erfc(x).
pub(crate) fn log_erfc(x: f64) -> f64 {
    if x < 0.5 {
        return libm::log1p(-libm::erf(x));
    }
    if x < SERIES_FROM {
        return libm::erfc(x).ln();
    }
    let step = 0.5 / (x * x);
    let (mut term, mut sum) = (1.0, 1.0);
    for index in 1..TERMS {
        term *= -f64::from(2 * index - 1) * step;
        sum += term;
    }
    -x * x - (x * PI.sqrt()).ln() + f64::ln(sum)
}

/// Returns ln Φ(x), the logarithm of the probability that a standard normal draw is at most x.
pub(crate) fn log_below(x: f64) -> f64 {
    log_erfc(-x * FRAC_1_SQRT_2) - LN_2
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By mpmath at 50 digits: `log(erfc(x))`.
    #[test]
    fn logarithms_of_tails_are_those_of_mpmath() {
        let known = [
            (-5.0, 0.693_147_180_559_176_6),
            (0.0, 0.0),
            (0.1, -0.119_304_973_737_395_6),
            (1.0, -1.849_605_509_933_248_2),
            (5.0, -27.200_889_545_537_434),
            (19.999, -403.529_294_457_089_3),
            (20.0, -403.569_343_334_104_23),
            (100.0, -10_005.177_585_122_664),
            (1e6, -1_000_000_000_014.388),
        ];
        for (x, expected) in known {
            let error = (log_erfc(x) - expected).abs();
            assert!(
                error <= 1e-14 * f64::max(expected.abs(), 1.0),
                "{x}: {error}"
            );
        }
    }

    #[test]
    fn the_two_ways_meet() {
        let below = log_erfc(SERIES_FROM - 1e-13);
        let above = log_erfc(SERIES_FROM);
        assert!((below - above).abs() < 1e-11, "{below} {above}");
    }
}
