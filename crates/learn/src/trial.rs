//! Whether a GPU is worth using for a node's own model and data: the same small local update there and on the CPU.
//!
//! ```text
//! the first batches ─► one epoch on the GPU ─► loss, parameters ─┐
//!                   └► one epoch on the CPU ─► loss, parameters ─┴─► the same?
//! all samples       ─► a moment of training on each              ─► samples per second
//! ```
//!
//! A device that learns something else is not used. Of two that agree the faster one is: small models with small batches
//! can be quicker on the CPU. Nothing of the trial stays.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fednode_core::guarded::{self, guarded};
use fednode_core::work::Progress;
use fednode_core::{FederationSpec, ParamSet, Round};
use fednode_data::Split;

use crate::device::ComputeDevice;
use crate::error::LearnError;
use crate::learner::Learner;

/// Batches that both devices learn from.
const BATCHES: usize = 2;
/// How long a device is timed at once.
const TIME: Duration = Duration::from_millis(500);
/// How often it is timed at most, as long as it becomes faster: a GPU's kernels are made when they are first needed.
const MOST_TIMES: u32 = 10;
/// By how much it must become faster to be timed again.
const GAIN: f64 = 1.1;
/// No special round comes in this time: neither the first nor the last one.
const ROUNDS: u32 = 1 << 20;
const ROUND: Round = Round(2);
/// Largest accepted difference of a loss or a parameter, as a share of it where it is above 1.
const TOLERANCE: f64 = 1e-2;

/// Samples per second of training.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    /// On the GPU.
    pub gpu: f64,
    /// On the CPU.
    pub cpu: f64,
}

impl std::fmt::Display for Rates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { gpu, cpu } = self;
        write!(
            f,
            "this model trains on {gpu:.0} samples/s on the GPU, on {cpu:.0} on the CPU"
        )
    }
}

impl Rates {
    /// Returns what a node has if it shares both with others: `nodes` of them the GPU, of `threads` each the `cores`.
    #[must_use]
    pub fn shared(&self, nodes: usize, threads: usize, cores: usize) -> Self {
        let per_core = (nodes * threads) as f64 / cores.max(1) as f64;
        Self {
            gpu: self.gpu / nodes as f64,
            cpu: self.cpu / per_core.max(1.0),
        }
    }

    /// Tells whether the GPU is the faster one.
    pub fn prefers_gpu(&self) -> bool {
        self.gpu > self.cpu
    }
}

/// Why a GPU is not used for a model.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    /// It fails.
    #[error("it fails at this model: {0}")]
    Fails(String),
    /// It learns something else than the CPU.
    #[error(
        "it learns this model otherwise than the CPU: loss {gpu} instead of {cpu}, parameters up to {farthest} away"
    )]
    Differs {
        /// The loss on the GPU.
        gpu: f64,
        /// The loss on the CPU.
        cpu: f64,
        /// The largest difference of two parameters.
        farthest: f64,
    },
    /// The CPU cannot train the model either.
    #[error(transparent)]
    Learn(#[from] LearnError),
}

/// What a device made of the first batches.
struct Made {
    loss: f64,
    state: ParamSet,
}

/// Trains on the first batches on both devices.
///
/// # Errors
/// Says why the GPU is of no use for this model. Where the CPU fails too, with what it fails.
pub fn check(
    spec: &FederationSpec,
    split: &Split,
    gpu: &ComputeDevice,
    cpu: &ComputeDevice,
) -> Result<(), TrialError> {
    let spec = of_trial(spec);
    let first = first_batches(split, spec.training.batch_size);
    let on_cpu = learn(cpu, &spec, &first)?;
    let on_gpu = tried(|| learn(gpu, &spec, &first))?;
    compare(&on_gpu, &on_cpu)
}

/// Trains on both devices for a moment each.
///
/// # Errors
/// As [`check`].
pub fn race(
    spec: &FederationSpec,
    split: &Arc<Split>,
    gpu: &ComputeDevice,
    cpu: &ComputeDevice,
) -> Result<Rates, TrialError> {
    let spec = of_trial(spec);
    Ok(Rates {
        cpu: time(cpu, &spec, split)?,
        gpu: tried(|| time(gpu, &spec, split))?,
    })
}

fn of_trial(spec: &FederationSpec) -> FederationSpec {
    let mut spec = spec.clone();
    (spec.rounds, spec.training.local_epochs) = (ROUNDS, 1);
    spec
}

/// Does what a GPU may fail at.
fn tried<T>(work: impl FnOnce() -> Result<T, LearnError>) -> Result<T, TrialError> {
    guarded(work)
        .inspect_err(|_| guarded::give_helpers_up())
        .map_err(TrialError::Fails)?
        .map_err(|error| TrialError::Fails(error.to_string()))
}

fn first_batches(split: &Split, batch_size: usize) -> Arc<Split> {
    let count = split.train.len().min(BATCHES * batch_size);
    let train = split.train.subset(&(0..count as u32).collect::<Vec<_>>());
    Arc::new(Split {
        validation: train.clone(),
        test: train.clone(),
        train,
    })
}

fn learn(
    device: &ComputeDevice,
    spec: &FederationSpec,
    split: &Arc<Split>,
) -> Result<Made, LearnError> {
    let mut learner = Learner::new(spec, 0, Arc::clone(split), device)?;
    let update = learner.local_update(ROUND, &mut |_| ControlFlow::Continue(()))?;
    Ok(Made {
        loss: update.train_loss,
        state: learner.state(),
    })
}

fn compare(gpu: &Made, cpu: &Made) -> Result<(), TrialError> {
    let differences = gpu
        .state
        .values()
        .zip(cpu.state.values())
        .map(|(gpu, cpu)| f64::from((gpu - cpu).abs() / cpu.abs().max(1.0)));
    // What is no number is the farthest of all.
    let farthest = differences.fold(0.0, |far, next| {
        if next > far || next.is_nan() {
            next
        } else {
            far
        }
    });
    let loss = (gpu.loss - cpu.loss).abs() / cpu.loss.abs().max(1.0);
    if loss <= TOLERANCE && farthest <= TOLERANCE {
        return Ok(());
    }
    Err(TrialError::Differs {
        gpu: gpu.loss,
        cpu: cpu.loss,
        farthest,
    })
}

/// Returns how many samples a device trains on in a second.
fn time(
    device: &ComputeDevice,
    spec: &FederationSpec,
    split: &Arc<Split>,
) -> Result<f64, LearnError> {
    let mut learner = Learner::new(spec, 0, Arc::clone(split), device)?;
    let mut fastest = 0.0;
    for _ in 0..MOST_TIMES {
        let rate = train_for(TIME, &mut learner, split.train.len())?;
        if rate < GAIN * fastest {
            return Ok(rate.max(fastest));
        }
        fastest = rate;
    }
    Ok(fastest)
}

/// Trains until the time is over, and breaks off then; returns the samples per second.
fn train_for(time: Duration, learner: &mut Learner, count: usize) -> Result<f64, LearnError> {
    let (started, mut n_samples) = (Instant::now(), 0.0);
    while started.elapsed() < time {
        let mut watch = |now: Progress| {
            n_samples += count as f64 / f64::from(now.batches.max(1));
            if started.elapsed() < time {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        };
        match learner.local_update(ROUND, &mut watch) {
            Ok(_) | Err(LearnError::Abandoned) => {}
            Err(error) => return Err(error),
        }
    }
    // A GPU works behind the host; when its numbers can be read, it is done.
    let _ = learner.state();
    Ok(n_samples / started.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(loss: f64, value: f32) -> Made {
        let mut state = ParamSet::new();
        state.insert("w", &[2], vec![1.0, value]).unwrap();
        Made { loss, state }
    }

    #[test]
    fn nodes_that_share_a_gpu_have_less_of_it() {
        let alone = Rates {
            gpu: 1000.0,
            cpu: 200.0,
        };
        // Four nodes on eight cores keep their cores, sixteen have half of one each.
        let four = alone.shared(4, 2, 8);
        assert_eq!((four.gpu, four.cpu), (250.0, 200.0));
        let sixteen = alone.shared(16, 1, 8);
        assert_eq!((sixteen.gpu, sixteen.cpu), (62.5, 100.0));
        assert!(four.prefers_gpu() && !sixteen.prefers_gpu());
        assert_eq!(alone.shared(1, 8, 8), alone);
    }

    #[test]
    fn a_device_that_learns_something_else_is_refused() {
        let cpu = made(2.0, 0.5);
        compare(&made(2.001, 0.501), &cpu).unwrap();
        for other in [
            made(2.1, 0.5),
            made(f64::NAN, 0.5),
            made(2.0, 0.6),
            made(2.0, f32::NAN),
            made(2.0, f32::INFINITY),
        ] {
            let error = compare(&other, &cpu).unwrap_err();
            assert!(matches!(error, TrialError::Differs { .. }), "{error}");
        }
    }
}
