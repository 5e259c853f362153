//! What the tests of several modules need: a small model, a batch, plain numbers; trained algorithms.

use std::collections::BTreeMap;

use burn::tensor::{Device, Tensor, TensorData};
use fednode_core::spec::{ModelSpec, TrainingSpec};
use fednode_core::{FederationSpec, HyperValue};

use super::{Algorithm, Row, Setup, Stage, TABLE, find, take_step};
use crate::batch::Batch;
use crate::gate::one_hot;
use crate::random::{Draws, Purpose, stream, uniform};

/// Hands a setup of a small `mlp` for two classes to whoever builds of it.
pub(super) fn setup<T>(name: &str, hyper: &[(&str, f64)], build: impl Fn(&Setup<'_>) -> T) -> T {
    let value = |value: f64| match value.fract() == 0.0 {
        true => HyperValue::Integer(value as i64),
        false => HyperValue::Real(value),
    };
    let given: BTreeMap<_, _> = hyper
        .iter()
        .map(|(name, real)| ((*name).to_owned(), value(*real)))
        .collect();
    let row = find(name).expect("tests name rows of the table");
    let hyper = row
        .values(&given)
        .expect("tests give hyper-parameters in range");
    let model = ModelSpec {
        name: "mlp".into(),
        input: [1, 2, 2],
        classes: 2,
        experts: 1,
        ..ModelSpec::default()
    };
    let (training, device) = (TrainingSpec::default(), Device::flex());
    build(&Setup {
        model: &model,
        training: &training,
        hyper: &hyper,
        participation: 1.0,
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
pub(super) fn assert_close(got: &[f32], expected: &[f32], tolerance: f32) {
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
    spec.model = ModelSpec {
        name: "cnn".into(),
        input: [1, 8, 8],
        classes: 3,
        experts: 2,
        ..ModelSpec::default()
    };
    spec.training.learning_rate = 0.05;
    let build = |row: &'static Row| {
        let spec = FederationSpec {
            algorithm: row.name.into(),
            ..spec.clone()
        };
        let mut algorithm =
            super::build(&spec, &device).expect("every row builds on a small `cnn`");
        algorithm.meet(&[2, 1, 1]);
        for round in 1..=3 {
            algorithm.begin_round(Draws::new(1, 0, round));
            let targets = one_hot(&[0, 1, 2, 0], 3, &device);
            take_step(
                algorithm.as_mut(),
                Stage::Pass(0),
                Batch {
                    inputs: random(4, round),
                    targets,
                },
            );
            algorithm.end_round();
        }
        (row.name, algorithm)
    };
    TABLE
        .iter()
        .map(build)
        .filter(|(_, algorithm)| algorithm.modular().is_some())
        .collect()
}
