//! A lower bound of ε from one run with canaries (Steinke, Nasr and Jagielski, "Privacy auditing with one (1) training run",
//! NeurIPS 2023).
//!
//! Each of m canaries is put among the samples, or not, by a fair coin. Whoever sees the release guesses the coins of those
//! of which there is something to say. Under a promise of ε no guess is right more often than by
//!
//! ```text
//! q = e^ε / (1 + e^ε)          P[at least v of r guesses right] ≤ P[Binomial(r, q) ≥ v] + 2 m δ α
//! α = max over i of P[v > Binomial(r, q) ≥ v - i] / i
//! ```
//!
//! (their Theorem 5.2). So where more guesses are right than that allows, ε is larger, or chance was on the guesser's side. A
//! bound of this kind tells an ε that is too large from a promise that was kept. It proves no promise.

use crate::units::Delta;

/// Above this no canaries tell one ε from another.
const MOST_EPSILON: f64 = 64.0;
/// Halvings of an interval of ε: more than a float has digits.
const HALVINGS: u32 = 60;

/// What was guessed of coins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Guesses {
    /// Canaries, each with a coin.
    pub canaries: u32,
    /// Guesses that were made, at most one of each canary.
    pub made: u32,
    /// Guesses that were right.
    pub right: u32,
}

impl Guesses {
    /// Returns the largest ε that these guesses rule out, with a probability of at most `error` to do so wrongly; 0 if they
    /// rule out none.
    ///
    /// # Panics
    /// Panics if there are more right guesses than guesses, or more guesses than canaries.
    pub fn epsilon_above(self, delta: Delta, error: f64) -> f64 {
        assert!(
            self.right <= self.made && self.made <= self.canaries,
            "{self:?} are no guesses"
        );
        let is_ruled_out = |epsilon: f64| self.probability(epsilon, delta) <= error;
        if !is_ruled_out(0.0) {
            return 0.0;
        }
        let (mut low, mut high) = (0.0, MOST_EPSILON);
        for _ in 0..HALVINGS {
            let middle = 0.5 * (low + high);
            if is_ruled_out(middle) {
                low = middle;
            } else {
                high = middle;
            }
        }
        low
    }

    /// Returns the most by which so many guesses are right if ε and δ are kept.
    fn probability(self, epsilon: f64, delta: Delta) -> f64 {
        let binomial = Binomial::new(self.made, epsilon);
        let at_least: f64 = (self.right..=self.made).map(|k| binomial.is(k)).sum();
        let (mut below, mut steepest) = (0.0, 0.0_f64);
        for i in 1..=self.right {
            below += binomial.is(self.right - i);
            steepest = steepest.max(below / f64::from(i));
        }
        at_least + 2.0 * f64::from(self.canaries) * delta.get() * steepest
    }
}

/// How many of `trials` come out right, each by e^ε / (1 + e^ε).
struct Binomial {
    trials: u32,
    log_right: f64,
    log_wrong: f64,
}

impl Binomial {
    fn new(trials: u32, epsilon: f64) -> Self {
        let log_right = -libm::log1p(libm::exp(-epsilon));
        Self {
            trials,
            log_right,
            log_wrong: log_right - epsilon,
        }
    }

    /// Returns the probability of this many.
    fn is(&self, right: u32) -> f64 {
        let [all, right] = [self.trials, right].map(f64::from);
        let log_factorial = |n: f64| libm::lgamma(n + 1.0);
        let log_ways = log_factorial(all) - log_factorial(right) - log_factorial(all - right);
        libm::exp(log_ways + right * self.log_right + (all - right) * self.log_wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(canaries: u32, made: u32, right: u32, delta: f64) -> f64 {
        let guesses = Guesses {
            canaries,
            made,
            right,
        };
        guesses.epsilon_above(Delta::new(delta).unwrap(), 0.05)
    }

    /// By hand: with δ of nothing much, ten right guesses of ten have probability q^10, which is 0.05 at q = 0.7411.
    #[test]
    fn guesses_that_are_all_right_rule_out_what_makes_that_unlikely() {
        let q: f64 = 0.05_f64.powf(0.1);
        let by_hand = (q / (1.0 - q)).ln();
        assert!((found(10, 10, 10, 1e-12) - by_hand).abs() < 1e-6);
        assert_eq!(found(10, 10, 5, 1e-12), 0.0);
        assert_eq!(found(10, 0, 0, 1e-12), 0.0);
    }
}
