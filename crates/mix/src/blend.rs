//! How much of the statistics expert: a gate per sample between it and a node's own prediction.
//!
//! ```text
//! h = entropy of a prediction / log classes, between 0 (certain) and 1
//! lambda(x) = sigmoid(c_0 + c_1 h_own(x) + c_2 h_statistics(x))
//! loss      = mean over samples of -log(lambda p_statistics(y) + (1 - lambda) p_own(y)) + ridge (c_1² + c_2²)
//! ```
//!
//! Three numbers, since a node has few samples that it did not learn from. They are taken only if, over five folds of those
//! samples, their loss on what they were not fitted to is lower, by a hundredth at least, than that of one weight for all. All in double precision.

/// Folds of the comparison.
const FOLDS: usize = 5;
/// Fewest samples that a gate is fitted to: ten for each number.
const FEWEST: usize = 30;
/// Keeps the coefficients of the entropies small where they gain nothing.
const RIDGE: f64 = 1e-3;
/// What the gate's loss must be below, as a part of that of one weight: less is chance.
const GAIN: f64 = 0.99;
/// Steps of the descent, and their size; the loss has bounded curvature in three numbers between 0 and 1.
const STEPS: usize = 500;
const STEP: f64 = 1.0;
/// Keeps a probability of 0 from becoming a logarithm of minus infinity.
const SMALLEST: f64 = 1e-12;

/// What the two say of a sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Seen {
    /// The own probability of the sample's class.
    pub own: f64,
    /// The statistics expert's.
    pub statistics: f64,
    /// The entropies of the own prediction and the statistics expert's, divided by the logarithm of the number of classes.
    pub entropies: [f64; 2],
}

/// The gate: `c_0, c_1, c_2`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gate(pub [f64; 3]);

impl Gate {
    /// Returns lambda, the weight of the statistics expert.
    pub fn weight(&self, entropies: [f64; 2]) -> f64 {
        let Self([bias, own, statistics]) = self;
        1.0 / (1.0 + (-(bias + own * entropies[0] + statistics * entropies[1])).exp())
    }

    /// Fits a gate to samples; `None` if there are too few, or one weight for all of them is as good.
    pub fn fit(seen: &[Seen]) -> Option<Self> {
        if seen.len() < FEWEST {
            return None;
        }
        let unseen_loss = |free: usize| -> f64 {
            let fold = |fold: usize| {
                let is_held_out = |at: usize| at % FOLDS == fold;
                let part = |held_out: bool| -> Vec<Seen> {
                    let samples = seen
                        .iter()
                        .enumerate()
                        .filter(|(at, _)| is_held_out(*at) == held_out);
                    samples.map(|(_, sample)| *sample).collect()
                };
                let gate = descend(&part(false), free);
                part(true)
                    .iter()
                    .map(|sample| gate.loss(sample))
                    .sum::<f64>()
            };
            (0..FOLDS).map(fold).sum()
        };
        (unseen_loss(3) < unseen_loss(1) * GAIN).then(|| descend(seen, 3))
    }

    fn loss(&self, sample: &Seen) -> f64 {
        let weight = self.weight(sample.entropies);
        -(weight * sample.statistics + (1.0 - weight) * sample.own)
            .max(SMALLEST)
            .ln()
    }

    /// Returns the slopes of a sample's loss.
    fn slopes(&self, sample: &Seen) -> [f64; 3] {
        let weight = self.weight(sample.entropies);
        let mixed = (weight * sample.statistics + (1.0 - weight) * sample.own).max(SMALLEST);
        let slope = -(sample.statistics - sample.own) / mixed * weight * (1.0 - weight);
        [
            slope,
            slope * sample.entropies[0],
            slope * sample.entropies[1],
        ]
    }
}

/// Descends from even weights, with so many of the coefficients free.
fn descend(seen: &[Seen], free: usize) -> Gate {
    let mut gate = Gate([0.0; 3]);
    for _ in 0..STEPS {
        let mut total = [0.0, 2.0 * RIDGE * gate.0[1], 2.0 * RIDGE * gate.0[2]];
        for sample in seen {
            let slopes = gate.slopes(sample);
            (0..3).for_each(|at| total[at] += slopes[at] / seen.len() as f64);
        }
        (0..free).for_each(|at| gate.0[at] -= STEP * total[at]);
    }
    gate
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Seen = Seen {
        own: 0.6,
        statistics: 0.3,
        entropies: [0.2, 0.5],
    };

    #[test]
    fn slopes_agree_with_finite_differences() {
        let gate = Gate([0.3, -1.2, 0.7]);
        for at in 0..3 {
            let moved = |by: f64| {
                let mut gate = gate;
                gate.0[at] += by;
                gate.loss(&PLAIN)
            };
            let difference = (moved(1e-6) - moved(-1e-6)) / 2e-6;
            assert!((gate.slopes(&PLAIN)[at] - difference).abs() < 1e-8, "{at}");
        }
    }

    /// Own predictions are right where they are certain, and the statistics expert is right where they are not.
    #[test]
    fn a_gate_is_fitted_where_certainty_tells_who_is_right() {
        let sample = |at: usize| {
            if at.is_multiple_of(2) {
                Seen {
                    own: 0.95,
                    statistics: 0.3,
                    entropies: [0.1, 0.6],
                }
            } else {
                Seen {
                    own: 0.05,
                    statistics: 0.8,
                    entropies: [0.9, 0.4],
                }
            }
        };
        let seen: Vec<Seen> = (0..60).map(sample).collect();
        let gate = Gate::fit(&seen).unwrap();
        assert!(
            gate.weight(seen[0].entropies) < 0.2 && gate.weight(seen[1].entropies) > 0.8,
            "{gate:?}"
        );
    }

    #[test]
    fn one_weight_is_enough_where_certainty_tells_nothing() {
        // Who is right does not depend on who is certain: the four combinations are equally many.
        let sample = |at: usize| {
            let entropies = if (at / 5).is_multiple_of(2) {
                [0.2, 0.6]
            } else {
                [0.6, 0.2]
            };
            let (own, statistics) = if (at / 10).is_multiple_of(2) {
                (0.8, 0.4)
            } else {
                (0.4, 0.8)
            };
            Seen {
                own,
                statistics,
                entropies,
            }
        };
        assert_eq!(Gate::fit(&(0..200).map(sample).collect::<Vec<_>>()), None);
        assert_eq!(Gate::fit(&[PLAIN; FEWEST - 1]), None, "too few");
    }
}
