//! What the strongest attack on whole training runs reaches.
//!
//! Whoever is (ε, δ)-private for some ε is so for every ε, each with a δ of its own. Each pair bounds the hits of an attack by
//! two lines over its false alarms α (Wasserman and Zhou 2010; Dong, Roth and Su 2022, Proposition 2.5):
//!
//! ```text
//! hits <= e^epsilon α + delta(epsilon)        hits <= 1 - e^-epsilon (1 - delta(epsilon) - α)
//! ```
//!
//! The least of all lines is the bound. A few lines bound a little more loosely than all, never too low.

use crate::gaussian::Strongest;
use crate::pld;
use crate::rdp::Sampled;
use crate::units::Epsilon;

/// The ε of the lines: closer together where they matter.
const EPSILONS: [f64; 18] = [
    0.0, 0.05, 0.1, 0.2, 0.3, 0.45, 0.6, 0.8, 1.0, 1.3, 1.6, 2.0, 2.5, 3.0, 4.0, 5.5, 8.0, 12.0,
];
/// Steps of the sum that is the area.
const STEPS: u32 = 2000;

/// Returns what somebody who knows all samples but one reaches at most. `false_alarms` is a share above 0 and below 1.
pub fn strongest_attack(runs: &[Sampled], false_alarms: f64) -> Strongest {
    let line = |epsilon: f64| {
        let checked = Epsilon::new(epsilon).expect("the table holds bounds");
        (epsilon.exp(), pld::delta(runs, checked))
    };
    let lines = EPSILONS.map(line);
    let hits = |alarms: f64| {
        let bound = |(odds, delta): &(f64, f64)| {
            let first = odds * alarms + delta;
            first.min(1.0 - (1.0 - delta - alarms).max(0.0) / odds)
        };
        lines.iter().map(bound).fold(1.0, f64::min)
    };
    // The bound rises with the false alarms, so its values at the right ends of the steps make no sum that is too low.
    let step = 1.0 / f64::from(STEPS);
    let area = (1..=STEPS)
        .map(|at| hits(f64::from(at) * step) * step)
        .sum();
    Strongest {
        auc: area,
        hits: hits(false_alarms),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gaussian;
    use crate::rdp::run;
    use crate::units::Noise;

    /// One step with everybody is one Gaussian release, of which the strongest attack is known exactly.
    #[test]
    fn one_step_is_bounded_as_one_release_and_a_little_looser() {
        for noise in [0.7, 1.1, 3.7] {
            let exact = gaussian::strongest_attack(Noise::new(noise).unwrap(), 0.01);
            let found = strongest_attack(&[run(1.0, noise, 1)], 0.01);
            for (found, exact) in [(found.auc, exact.auc), (found.hits, exact.hits)] {
                assert!(found >= exact - 1e-9, "{noise}: {found} {exact}");
                assert!(found <= 1.06 * exact + 0.002, "{noise}: {found} {exact}");
            }
        }
    }

    #[test]
    fn training_without_noise_to_speak_of_is_bounded_by_nothing() {
        let found = strongest_attack(&[run(0.5, 0.05, 10)], 0.01);
        assert!(found.auc > 0.95 && found.auc <= 1.0, "{found:?}");
    }
}
