//! What the tests of several modules need: a small model, a batch, plain numbers; trained algorithms.

use std::collections::BTreeMap;

use burn::tensor::{Device, Tensor, TensorData};
use fednode_core::spec::{Architecture, TrainingSpec};
use fednode_core::{FederationSpec, HyperValue, Round};

use super::{Algorithm, RoundContext, Row, Setup, Stage, StepContext, TABLE, find};
use crate::batch::Batch;
use crate::gate::one_hot;
use crate::optimizer::Stepper;
use crate::random::{Purpose, stream, uniform};

/// Samples of each class, where a test does not care.
const COUNTS: [u32; 2] = [1, 1];

/// What one step did, with its loss read.
#[derive(Debug, PartialEq)]
pub(crate) struct Stepped {
    pub(crate) loss: f64,
    pub(crate) routed: Vec<u32>,
}

/// Runs hooks and single steps by the default `training`, without a training loop.
pub(crate) trait Driven: Algorithm {
    /// Hands over the context of a round.
    fn in_round<R>(
        &mut self,
        round: u32,
        class_counts: &[u32],
        work: impl FnOnce(&mut Self, &RoundContext<'_>) -> R,
    ) -> R {
        let training = TrainingSpec::default();
        let ctx = RoundContext {
            round: Round(round),
            rounds: 9,
            training: &training,
            class_counts,
            seed: 1,
            node_seed: 0,
        };
        work(self, &ctx)
    }

    /// Begins a round.
    fn begin(&mut self, round: u32) {
        self.begin_with(round, &COUNTS);
    }

    /// Begins a round with so many samples of each class.
    fn begin_with(&mut self, round: u32, class_counts: &[u32]) {
        self.in_round(round, class_counts, |node, ctx| node.begin_round(ctx));
    }

    /// Returns the passes of a round.
    fn round_passes(&mut self, round: u32) -> Vec<u32> {
        self.in_round(round, &COUNTS, |node, ctx| node.passes(ctx))
    }

    /// Ends a round.
    fn end(&mut self) {
        self.end_with(1, &COUNTS);
    }

    /// Ends a round with so many samples of each class.
    fn end_with(&mut self, round: u32, class_counts: &[u32]) {
        self.in_round(round, class_counts, |node, ctx| node.end_round(ctx));
    }

    /// Begins a pass after the last round.
    fn begin_tuning(&mut self, pass: usize) {
        self.in_round(9, &COUNTS, |node, ctx| node.begin_fine_tuning(pass, ctx));
    }

    /// Takes one step of a pass on what that pass takes, given as it is.
    fn train(&mut self, pass: usize, batch: Batch) -> Stepped {
        self.step_at(Stage::Pass(pass), batch, 0.01)
    }

    /// Takes one step of a stage on samples as they are.
    fn train_in(&mut self, stage: Stage, batch: Batch) -> Stepped {
        self.sample_step(stage, batch, 0.01)
    }

    /// Takes one step of a stage on samples as they are, at a learning rate.
    fn sample_step(&mut self, stage: Stage, batch: Batch, rate: f64) -> Stepped {
        let inputs = self
            .frozen(stage, batch.inputs.clone())
            .unwrap_or(batch.inputs);
        self.step_at(stage, Batch { inputs, ..batch }, rate)
    }

    /// Takes one step of a stage at a learning rate; nothing is remembered from step to step.
    fn step_at(&mut self, stage: Stage, batch: Batch, rate: f64) -> Stepped {
        let training = TrainingSpec {
            learning_rate: rate,
            ..TrainingSpec::default()
        };
        let mut stepper = Stepper::new(&training, 1.0);
        stepper.begin_stage(self.step_rule(stage));
        self.in_round(1, &COUNTS, |node, ctx| {
            let step = node.step(stage, batch, &mut StepContext::new(ctx, &mut stepper));
            Stepped {
                loss: step.loss.value(),
                routed: step.routed,
            }
        })
    }
}

impl<T: Algorithm + ?Sized> Driven for T {}

/// Hands a setup of a small `mlp` for two classes to whoever builds of it.
pub(super) fn setup<T>(name: &str, hyper: &[(&str, f64)], build: impl Fn(&Setup<'_>) -> T) -> T {
    let value = |value: f64| {
        if value.fract() == 0.0 {
            HyperValue::Integer(value as i64)
        } else {
            HyperValue::Real(value)
        }
    };
    let given: BTreeMap<_, _> = hyper
        .iter()
        .map(|(name, real)| ((*name).to_owned(), value(*real)))
        .collect();
    let row = find(name).expect("tests name rows of the table");
    let hyper = row
        .values(&given)
        .expect("tests give hyper-parameters in range");
    let model = Architecture {
        name: "mlp".into(),
        input: [1, 2, 2],
        classes: 2,
        experts: 1,
        ..Architecture::default()
    };
    let (training, device) = (TrainingSpec::default(), Device::flex());
    build(&Setup {
        model: &model,
        training: &training,
        hyper: &hyper,
        participation: 1.0,
        nodes: 3,
        rounds: 9,
        seed: 1,
        device: &device,
    })
}

/// Builds a row's algorithm.
pub(crate) fn build(name: &str, hyper: &[(&str, f64)]) -> Box<dyn Algorithm> {
    let row = find(name).expect("tests name rows of the table");
    setup(name, hyper, |setup| {
        (row.build)(setup).expect("every row builds on a small `mlp`")
    })
}

/// Returns two samples, one of each class.
pub(super) fn batch() -> Batch {
    let inputs = matrix([[1.0, 0.5, 0.0, 0.2], [0.0, 0.3, 1.0, 0.7]]);
    Batch {
        inputs,
        targets: matrix([[1.0, 0.0], [0.0, 1.0]]),
    }
}

/// Returns the numbers of all parameters whose names begin so, in alphabetical order; a whole model's are the same
/// however it is cut.
pub(crate) fn numbers(algorithm: &dyn Algorithm, prefix: &str) -> Vec<f32> {
    let mut named: Vec<(String, Vec<f32>)> = Vec::new();
    for part in algorithm.parts() {
        named.extend(
            part.params()
                .iter()
                .map(|(name, tensor)| (name.to_owned(), tensor.values().to_vec())),
        );
    }
    named.sort_by(|a, b| a.0.cmp(&b.0));
    named
        .into_iter()
        .filter(|(name, _)| name.starts_with(prefix))
        .flat_map(|(_, values)| values)
        .collect()
}

pub(super) fn matrix<const R: usize, const C: usize>(rows: [[f32; C]; R]) -> Tensor<2> {
    Tensor::from_data(TensorData::from(rows), &Device::flex())
}

#[track_caller]
pub(crate) fn assert_close(got: &[f32], expected: &[f32], tolerance: f32) {
    let close = got.len() == expected.len()
        && got
            .iter()
            .zip(expected)
            .all(|(a, b)| (a - b).abs() <= tolerance);
    assert!(close, "{got:?} is not {expected:?}");
}

/// Draws inputs `[rows, 64]`.
pub(crate) fn random(rows: usize, seed: u64) -> Tensor<2> {
    let numbers = uniform(&mut stream(Purpose::Noise, [seed, 0, 0]), 1.0, rows * 64);
    Tensor::from_data(TensorData::new(numbers, [rows, 64]), &Device::flex())
}

/// Builds every algorithm that has a module, and moves its parts away from where they start.
pub(crate) fn trained() -> Vec<(&'static str, Box<dyn Algorithm>)> {
    let device = Device::flex();
    let mut spec = FederationSpec {
        rounds: 9,
        seed: 1,
        ..FederationSpec::default()
    };
    (spec.model.name, spec.model.experts) = ("cnn".into(), 2);
    (spec.fingerprints.input, spec.fingerprints.classes) = ([1, 8, 8], 3);
    spec.training.learning_rate = 0.05;
    let build = |row: &'static Row| {
        let spec = FederationSpec {
            algorithm: row.name.into(),
            ..spec.clone()
        };
        let mut algorithm =
            super::build(&spec, &device).expect("every row builds on a small `cnn`");
        for round in 1..=3u32 {
            algorithm.begin_with(round, &[2, 1, 1]);
            let targets = one_hot(&[0, 1, 2, 0], 3, &device);
            let inputs = random(4, u64::from(round));
            algorithm.sample_step(Stage::Pass(0), Batch { inputs, targets }, 0.05);
            algorithm.end_with(round, &[2, 1, 1]);
        }
        (row.name, algorithm)
    };
    TABLE
        .iter()
        .map(build)
        .filter(|(_, algorithm)| algorithm.modular().is_some())
        .collect()
}
