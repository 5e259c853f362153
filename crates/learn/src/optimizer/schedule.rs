//! Learning-rate schedules: what a round makes of every learning rate.
//!
//! ```text
//! t = round - 1                              all local epochs of a round have one rate
//! warm-up     t < W:  (t + 1) / (W + 1)      then u = t - W of T = rounds - W rounds
//! constant    1
//! step        factor ^ floor(u / every)
//! cosine      (1 + cos(pi * u / T)) / 2
//! ```
//!
//! The position is the round and not the step, because nodes have different numbers of samples and must agree on the
//! rate. A node that joins late has the rate of the round that runs. `step` and `cosine` are PyTorch's `StepLR` and
//! `CosineAnnealingLR` with one step of the scheduler per round. What a node trains after the last round has no schedule.

use fednode_core::spec::{Schedule, TrainingSpec};

/// Returns what the learning rate is multiplied by in a round, counting from 1, of so many.
pub(crate) fn factor(training: &TrainingSpec, round: u32, rounds: u32) -> f64 {
    let (at, warmup) = (round.max(1) - 1, training.warmup_rounds);
    if at < warmup {
        return f64::from(at + 1) / f64::from(warmup + 1);
    }
    let position = at - warmup;
    match training.schedule {
        Schedule::Constant => 1.0,
        Schedule::Step { every, factor } => {
            let drops = position / every.max(1);
            factor.powi(drops.min(i32::MAX as u32) as i32)
        }
        Schedule::Cosine => {
            let length = f64::from(rounds.saturating_sub(warmup).max(1));
            let share = (f64::from(position) / length).min(1.0);
            (1.0 + (std::f64::consts::PI * share).cos()) / 2.0
        }
    }
}
