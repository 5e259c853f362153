//! One step of a sampled Gaussian mechanism as probabilities of privacy losses on a grid.
//!
//! For a sample removed P = (1-q) N(0, σ²) + q N(1, σ²) and Q = N(0, σ²); for one added the two are exchanged. Write δ_G
//! for δ of the plain mechanism. Then δ of one step is
//!
//! ```text
//! removed:  δ(ε) = q δ_G(s),                  s = ln(1 + (e^ε - 1)/q)
//! added:    δ(ε) = q e^(ε + t) δ_G(-t),       t = ln(1 + (e^-ε - 1)/q)
//! ```
//!
//! Where the logarithm's argument is not positive, no loss lies beyond ε: δ is max(0, 1 - e^ε).
//!
//! **Connecting the dots** (Doroshenko et al. 2022, arXiv 2207.04380, Algorithm 1). With losses i·h only, δ is piecewise
//! linear in e^ε. The probabilities for which it meets the true δ at all grid points are its changes of slope:
//!
//! ```text
//! p_i = (δ_(i+1) - δ_i) / (e^h - 1)  -  (δ_i - δ_(i-1)) / (1 - e^-h)
//! ```
//!
//! The true δ is convex in e^ε, so between grid points the chord lies above it. What lies above the last grid point
//! counts as an infinite loss, and what lies below the first one as the first.
//!
//! **No cancellation.** Below ε = 0, δ is nearly 1 - e^ε, which is linear in e^ε and has no change of slope. There the
//! differences are taken of δ - (1 - e^ε) = e^ε δ'(-ε) ≥ 0, where δ' is δ of the other direction. At ε = 0, where the
//! two meet, the missing change of slope is added: it is 1.

use crate::gaussian::hockey_stick;
use crate::rdp::Sampled;

/// Most grid points of one step. A wider range gets a wider grid.
pub(super) const MOST_POINTS: f64 = 1_048_576.0;

/// Which of two neighbouring data sets was used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    /// The one with the sample.
    Remove,
    /// The one without.
    Add,
}

/// Probabilities of the losses `first * h, (first + 1) * h, …` of one step.
#[derive(Debug)]
pub(super) struct Grid {
    pub(super) first: i64,
    pub(super) probabilities: Vec<f64>,
    /// The probability that counts as an infinite loss.
    pub(super) infinite: f64,
}

/// One step: sampling rate, noise, direction.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    rate: f64,
    sigma: f64,
    direction: Direction,
}

impl Step {
    pub(super) fn of(run: &Sampled, direction: Direction) -> Self {
        Self {
            rate: run.rate.get(),
            sigma: run.noise.get(),
            direction,
        }
    }

    /// Returns δ at ε, less 1 - e^ε if ε is negative.
    fn excess(&self, epsilon: f64) -> f64 {
        let Some(plain) = self.unsampled(epsilon) else {
            return 0.0;
        };
        let towards = || hockey_stick(self.sigma, plain);
        let away = || hockey_stick(self.sigma, -plain);
        let scaled = match (self.direction, epsilon >= 0.0) {
            (Direction::Remove, true) => towards(),
            (Direction::Remove, false) => plain.exp() * away(),
            (Direction::Add, true) => (epsilon + plain).exp() * away(),
            (Direction::Add, false) => epsilon.exp() * towards(),
        };
        self.rate * scaled
    }

    /// Returns the loss of the plain mechanism at which the sampled one loses |ε|, with the sign of this direction.
    fn unsampled(&self, epsilon: f64) -> Option<f64> {
        let signed = match self.direction {
            Direction::Remove => epsilon,
            Direction::Add => -epsilon,
        };
        if self.rate == 1.0 {
            return Some(signed);
        }
        if signed > 30.0 {
            // Neither e^ε nor the difference from 1 fits well into a float.
            return Some(signed - self.rate.ln() + (-(1.0 - self.rate) * (-signed).exp()).ln_1p());
        }
        let argument = signed.exp_m1() / self.rate;
        (argument > -1.0).then(|| argument.ln_1p())
    }

    /// Returns the loss at an outcome.
    fn loss(&self, outcome: f64) -> f64 {
        let exponent = (outcome - 0.5) / (self.sigma * self.sigma);
        // ln(1 - q + q e^x), written so that nothing overflows, and that nothing vanishes for q near 0 or 1.
        let rest = 1.0 - self.rate;
        let removed = if rest == 0.0 {
            exponent
        } else if exponent > 0.0 {
            exponent + (self.rate + rest * (-exponent).exp()).ln()
        } else if rest > 0.5 {
            (self.rate * exponent.exp_m1()).ln_1p()
        } else {
            (rest + self.rate * exponent.exp()).ln()
        };
        match self.direction {
            Direction::Remove => removed,
            Direction::Add => -removed,
        }
    }

    /// Returns the losses outside which outcomes are rarer than `rare` on either side.
    pub(super) fn range(&self, rare: f64) -> (f64, f64) {
        // A normal draw is beyond z with probability at most exp(-z²/2).
        let far = self.sigma * (-2.0 * rare.ln()).sqrt();
        match self.direction {
            Direction::Remove => (self.loss(-far), self.loss(1.0 + far)),
            Direction::Add => (self.loss(far), self.loss(-far)),
        }
    }

    /// Returns the probabilities of losses on a grid of this width.
    pub(super) fn grid(&self, width: f64, rare: f64) -> Grid {
        let (low, high) = self.range(rare);
        let first = ((low / width).floor() as i64).min(-1);
        let last = ((high / width).ceil() as i64).max(1);
        let at = |index: i64| self.excess(index as f64 * width);
        let (up, down) = (1.0 / width.exp_m1(), 1.0 / -(-width).exp_m1());
        let mut probabilities = Vec::with_capacity((last - first + 1) as usize);
        let mut here = at(first);
        let mut slope_below = here;
        for index in first..last {
            let after = at(index + 1);
            // Below 0 the curve is taken less 1 - e^ε, whose slope in e^ε is -1.
            let bend = if index == 0 { 1.0 } else { 0.0 };
            let change = (after - here) * up - slope_below + bend;
            probabilities.push(change.max(0.0));
            slope_below = (after - here) * down;
            here = after;
        }
        probabilities.push((-slope_below).max(0.0));
        Grid {
            first,
            probabilities,
            infinite: here,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rdp::run;

    fn step(rate: f64, noise: f64, direction: Direction) -> Step {
        Step::of(&run(rate, noise, 1), direction)
    }

    fn delta(grid: &Grid, width: f64, epsilon: f64) -> f64 {
        let part = |(index, p): (usize, &f64)| {
            let loss = (grid.first + index as i64) as f64 * width;
            p * f64::max(0.0, -f64::exp_m1(epsilon - loss))
        };
        grid.infinite + grid.probabilities.iter().enumerate().map(part).sum::<f64>()
    }

    #[test]
    fn delta_is_exact_on_the_grid_and_above_between() {
        let width = 0.01;
        for direction in [Direction::Remove, Direction::Add] {
            for (rate, noise) in [(0.01, 0.8), (0.3, 1.5), (1.0, 2.0)] {
                let step = step(rate, noise, direction);
                let grid = step.grid(width, 1e-20);
                let mass: f64 = grid.probabilities.iter().sum();
                assert!((mass + grid.infinite - 1.0).abs() < 1e-10, "{mass}");
                for index in [0, 1, 7, 40] {
                    let epsilon = f64::from(index) * width;
                    let (found, truth) = (delta(&grid, width, epsilon), step.excess(epsilon));
                    assert!(
                        (found - truth).abs() < 1e-12,
                        "{rate} {epsilon}: {found} {truth}"
                    );
                    let between = epsilon + 0.4 * width;
                    let (found, truth) = (delta(&grid, width, between), step.excess(between));
                    assert!(found >= truth - 1e-13, "{rate} {between}: {found} {truth}");
                }
            }
        }
    }

    /// Without the sample, Q is at least 1 - q of P, so no loss exceeds -ln(1 - q).
    #[test]
    fn adding_a_sample_loses_a_bounded_amount() {
        let step = step(0.1, 1.0, Direction::Add);
        assert!(step.excess(0.105) > 0.0);
        assert_eq!(step.excess(0.1054), 0.0);
    }

    /// Both by numerical integration with mpmath.
    #[test]
    fn delta_of_one_step_is_that_by_integration() {
        let removed = step(0.2, 1.3, Direction::Remove);
        let added = step(0.2, 1.3, Direction::Add);
        for (found, expected) in [
            (removed.excess(0.1), 0.033_461_282_134_074_47),
            (added.excess(0.1), 0.013_194_580_195_312_3),
            (removed.excess(-0.1), 0.011_938_949_875_994_79),
            (added.excess(-0.1), 0.030_277_020_130_368_73),
        ] {
            assert!((found / expected - 1.0).abs() < 1e-12, "{found} {expected}");
        }
    }
}
