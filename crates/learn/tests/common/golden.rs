//! The reference run: PyTorch weights of the CNN in, 64 steps of gradient descent, losses and logits out.

use fednode_core::{ParamSet, Round};
use fednode_learn::algorithm::{self, Algorithm, RoundContext, Stage, StepContext};
use fednode_learn::optimizer::Stepper;
use fednode_learn::{Batch, ComputeDevice};

#[derive(serde::Deserialize)]
struct Golden {
    logits_before: Vec<Vec<f32>>,
    losses: Vec<f64>,
    logits_after: Vec<Vec<f32>>,
}

/// How a run compares.
#[derive(Debug)]
pub struct Comparison {
    /// Largest difference of the logits before training.
    pub logits_before: f32,
    /// Ours and the reference's loss of every step.
    pub losses: Vec<(f64, f64)>,
    /// Largest difference of the logits after training.
    pub logits_after: f32,
}

/// Repeats the reference run.
pub fn run() -> Comparison {
    let read = |name: &str| std::fs::read(super::path(name)).unwrap();
    let golden: Golden = serde_json::from_slice(&read("cnn_training.json")).unwrap();
    let params = ParamSet::import(&read("cnn_before.safetensors")).unwrap();
    let device = ComputeDevice::cpu(2).unwrap();
    let samples = super::fashion();
    let mut spec = super::spec("fedavg", "cnn", &samples);
    spec.training.learning_rate = 0.05;
    let tensors = device.tensors();
    let mut algorithm = algorithm::build(&spec, tensors).unwrap();
    algorithm.parts_mut()[0].load(&params, tensors).unwrap();
    assert_eq!(
        algorithm.parts()[0].params(),
        params,
        "weights go in and out unchanged"
    );

    let logits_before = furthest(algorithm.as_ref(), &golden.logits_before, &device);
    let ctx = RoundContext {
        round: Round(1),
        rounds: 1,
        training: &spec.training,
        class_counts: &[64; 10],
        seed: 1,
        node_seed: 1,
    };
    let mut stepper = Stepper::new(&spec.training, 1.0);
    let losses = (0u32..).zip(&golden.losses).map(|(step, expected)| {
        let positions: Vec<u32> = (10 * step..10 * step + 10).collect();
        let batch = Batch::gather(&samples, &positions, 10, tensors);
        let step = &mut StepContext::new(&ctx, &mut stepper);
        let loss = algorithm.step(Stage::Pass(0), batch, step).loss;
        (loss.value(), *expected)
    });
    let losses = losses.collect();
    let logits_after = furthest(algorithm.as_ref(), &golden.logits_after, &device);
    Comparison {
        logits_before,
        losses,
        logits_after,
    }
}

fn furthest(algorithm: &dyn Algorithm, expected: &[Vec<f32>], device: &ComputeDevice) -> f32 {
    let first: Vec<u32> = (0..expected.len() as u32).collect();
    let batch = Batch::gather(&super::fashion(), &first, 10, device.tensors());
    let logits: Vec<f32> = algorithm
        .forward(batch.inputs)
        .logits
        .try_into_vec_as()
        .unwrap();
    let expected: Vec<f32> = expected.concat();
    assert_eq!(logits.len(), expected.len());
    logits
        .iter()
        .zip(expected)
        .map(|(got, expected)| (got - expected).abs())
        .fold(0.0, f32::max)
}
