//! The Gaussian mechanism, exactly: what noise σ of sensitivity 1 promises (Balle and Wang, ICML 2018, Theorem 8).
//!
//! ```text
//! delta(sigma, epsilon) = Φ(1/(2 sigma) - epsilon sigma) - e^epsilon Φ(-1/(2 sigma) - epsilon sigma)
//! ```
//!
//! δ falls as σ grows and as ε grows, so σ and ε for a given δ are found by bisection. Both are rounded to the safe side:
//! [`delta`] of what [`noise_for`] or [`epsilon`] returns is at most the δ that was asked for.
//!
//! Both summands may be near each other, or far below what a float can hold. So the difference is taken between
//! logarithms: δ = Φ(a) (1 - e^(ε + ln Φ(b) - ln Φ(a))). Numbers hold for ε from 0.01 to 100 and δ from 1e-12 to 0.5 to
//! nine digits, and beyond that range they stay safe to use.

use crate::normal::log_below;
use crate::units::{Delta, Epsilon, Noise};

/// Steps of a bisection: more than the bits of a float.
const STEPS: u32 = 200;

/// Returns the smallest δ that noise gives at ε.
pub fn delta(noise: Noise, epsilon: Epsilon) -> f64 {
    hockey_stick(noise.get(), epsilon.get())
}

/// Returns the smallest ε that noise gives at δ.
pub fn epsilon(noise: Noise, delta: Delta) -> f64 {
    let passes = |epsilon: f64| hockey_stick(noise.get(), epsilon) <= delta.get();
    if passes(0.0) {
        return 0.0;
    }
    let mut above = 1.0;
    while !passes(above) {
        above *= 2.0;
    }
    let below = if above > 1.0 { above / 2.0 } else { 0.0 };
    least(below, above, passes)
}

/// Returns the least noise that gives (ε, δ).
///
/// `None` if that is out of a noise's range, as for ε below about 1e-12.
pub fn noise_for(epsilon: Epsilon, delta: Delta) -> Option<Noise> {
    let passes = |sigma: f64| hockey_stick(sigma, epsilon.get()) <= delta.get();
    let mut above = 1.0;
    while !passes(above) {
        above *= 2.0;
        Noise::new(above).ok()?;
    }
    while passes(above / 2.0) {
        above /= 2.0;
        Noise::new(above).ok()?;
    }
    Noise::new(least(above / 2.0, above, passes)).ok()
}

/// How well somebody who knows all samples but one tells whether that one was among them, at best.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Strongest {
    /// The area under the curve of hits over false alarms: 0.5 is guessing, 1 is certainty.
    pub auc: f64,
    /// The share of samples that were there and are found, at this share of false alarms.
    pub hits: f64,
}

/// Returns what the strongest attack on one release reaches: it has to tell N(0, σ²) from N(1, σ²).
///
/// `false_alarms` is a share above 0 and below 1.
pub fn strongest_attack(noise: Noise, false_alarms: f64) -> Strongest {
    let below = |x: f64| log_below(x).exp();
    // Φ(threshold) = 1 - false alarms, found from the other tail.
    let (mut low, mut high) = (-40.0, 40.0);
    for _ in 0..STEPS {
        let middle = 0.5 * (low + high);
        if below(middle) < false_alarms {
            low = middle;
        } else {
            high = middle;
        }
    }
    Strongest {
        auc: below(std::f64::consts::FRAC_1_SQRT_2 / noise.get()),
        hits: below(low + 1.0 / noise.get()),
    }
}

/// Returns δ at any ε, negative ones too: those occur within a sampled mechanism.
pub(crate) fn hockey_stick(sigma: f64, epsilon: f64) -> f64 {
    let (shift, centre) = (0.5 / sigma, epsilon * sigma);
    let (first, second) = (log_below(shift - centre), log_below(-shift - centre));
    let ratio = epsilon + second - first;
    // For a far tail, rounding may lift the ratio over 0, where the truth is a little below.
    first.exp() * -f64::exp_m1(ratio.min(0.0))
}

/// Returns the least number of `below..=above` that passes, to the last bits; `above` must pass.
fn least(mut below: f64, mut above: f64, passes: impl Fn(f64) -> bool) -> f64 {
    for _ in 0..STEPS {
        let middle = 0.5 * (below + above);
        if middle <= below || middle >= above {
            break;
        }
        if passes(middle) {
            above = middle;
        } else {
            below = middle;
        }
    }
    above
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(value: f64) -> Noise {
        Noise::new(value).unwrap()
    }

    fn noise_at(epsilon: f64, delta: f64) -> f64 {
        let (epsilon, delta) = (Epsilon::new(epsilon).unwrap(), Delta::new(delta).unwrap());
        noise_for(epsilon, delta).unwrap().get()
    }

    /// The table of the study on class statistics, rounded to three places there.
    /// The project's study, section 5b: hits at 1 % of false alarms, and the area, at ε = 1, 2, 4 and 8.
    #[test]
    fn the_strongest_attack_is_that_of_the_study() {
        let table = [
            (1.0, 0.020, 0.575),
            (2.0, 0.034, 0.639),
            (4.0, 0.081, 0.743),
            (8.0, 0.254, 0.881),
        ];
        for (wanted, hits, auc) in table {
            let noise = noise_for(Epsilon::new(wanted).unwrap(), Delta::new(1e-5).unwrap());
            let found = strongest_attack(noise.unwrap(), 0.01);
            assert!((found.hits - hits).abs() < 1e-3, "{wanted}: {found:?}");
            assert!((found.auc - auc).abs() < 1e-3, "{wanted}: {found:?}");
        }
    }

    #[test]
    fn noise_is_that_of_the_study() {
        let table = [
            (0.25, 13.286),
            (0.5, 7.032),
            (1.0, 3.731),
            (2.0, 1.994),
            (4.0, 1.081),
            (8.0, 0.600),
        ];
        for (epsilon, expected) in table {
            let found = noise_at(epsilon, 1e-5);
            assert!((found - expected).abs() <= 5.1e-4, "{epsilon}: {found}");
        }
    }

    /// The formula by mpmath at 60 digits.
    #[test]
    fn delta_is_precise_in_the_tails() {
        let known = [
            (1.0, 0.0, 0.382_924_922_548_026_2),
            (600.0, 0.01, 2.619_011_170_328_919_5e-13),
            (0.07, 100.0, 0.529_014_381_330_724_4),
            (20.0, 0.5, 4.797_291_362_662_317e-26),
            (0.5, 40.0, 8.082_866_373_294_299e-82),
        ];
        for (sigma, epsilon, expected) in known {
            let found = hockey_stick(sigma, epsilon);
            let error = (found / expected - 1.0).abs();
            assert!(error < 1e-9, "{sigma} {epsilon}: {found}, {error}");
        }
    }

    #[test]
    fn what_is_returned_keeps_the_promise() {
        for delta_asked in [1e-12, 1e-8, 1e-5, 0.01, 0.5] {
            let asked = Delta::new(delta_asked).unwrap();
            for value in [0.01, 0.3, 1.0, 10.0, 100.0] {
                let wanted = Epsilon::new(value).unwrap();
                let found = noise_for(wanted, asked).unwrap();
                let got = delta(found, wanted);
                assert!(got <= delta_asked, "{value} {delta_asked}");
                assert!(
                    got >= delta_asked * (1.0 - 1e-6),
                    "{value} {delta_asked}: {got}"
                );
                let back = epsilon(found, asked);
                assert!(
                    (back - value).abs() <= 1e-7 * value,
                    "{value} {delta_asked}: {back}"
                );
            }
        }
    }

    #[test]
    fn noise_that_hides_everything_costs_nothing() {
        assert_eq!(epsilon(noise(1e9), Delta::new(1e-5).unwrap()), 0.0);
        let little = Epsilon::new(1e-300).unwrap();
        assert_eq!(noise_for(little, Delta::new(1e-300).unwrap()), None);
    }

    #[test]
    fn extremes_stay_numbers() {
        for sigma in [1e-6, 1e-3, 1.0, 1e12] {
            for epsilon in [-1e6, -1.0, 0.0, 1e-9, 1e3, 1e12] {
                let found = hockey_stick(sigma, epsilon);
                assert!((0.0..=1.0).contains(&found), "{sigma} {epsilon}: {found}");
            }
        }
    }
}
