//! What the tests of several algorithms need: a small model, a batch, plain numbers.

use std::collections::BTreeMap;

use burn::tensor::{Device, Tensor, TensorData};
use fednode_core::HyperValue;
use fednode_core::spec::{ModelSpec, TrainingSpec};

use super::{Algorithm, Setup, find};
use crate::batch::Batch;

/// Hands a setup of a small `mlp` for two classes to whoever builds of it.
pub(super) fn setup<T>(name: &str, hyper: &[(&str, f64)], build: impl Fn(&Setup<'_>) -> T) -> T {
    let value = |value: f64| match value.fract() == 0.0 {
        true => HyperValue::Integer(value as i64),
        false => HyperValue::Real(value),
    };
    let given: BTreeMap<_, _> = hyper.iter().map(|(name, real)| ((*name).to_owned(), value(*real))).collect();
    let hyper = find(name).unwrap().values(&given).unwrap();
    let model = ModelSpec { name: "mlp".into(), input: [1, 2, 2], classes: 2, experts: 1 };
    let (training, device) = (TrainingSpec::default(), Device::flex());
    build(&Setup { model: &model, training: &training, hyper: &hyper, seed: 1, device: &device })
}

/// Builds a row's algorithm.
pub(super) fn build(name: &str, hyper: &[(&str, f64)]) -> Box<dyn Algorithm> {
    setup(name, hyper, |setup| (find(name).unwrap().build)(setup).unwrap())
}

/// Returns two samples, one of each class.
pub(super) fn batch() -> Batch {
    let inputs = matrix([[1.0, 0.5, 0.0, 0.2], [0.0, 0.3, 1.0, 0.7]]);
    Batch { inputs, targets: matrix([[1.0, 0.0], [0.0, 1.0]]) }
}

/// Returns the numbers of all parameters whose names begin so, in alphabetical order; a whole model's are the same
/// however it is cut.
pub(super) fn numbers(algorithm: &dyn Algorithm, prefix: &str) -> Vec<f32> {
    let mut named: Vec<(String, Vec<f32>)> = Vec::new();
    for part in algorithm.parts() {
        named.extend(part.params().iter().map(|(name, tensor)| (name.to_owned(), tensor.values().to_vec())));
    }
    named.sort_by(|a, b| a.0.cmp(&b.0));
    named.into_iter().filter(|(name, _)| name.starts_with(prefix)).flat_map(|(_, values)| values).collect()
}

pub(super) fn matrix<const R: usize, const C: usize>(rows: [[f32; C]; R]) -> Tensor<2> {
    Tensor::from_data(TensorData::from(rows), &Device::flex())
}

#[track_caller]
pub(super) fn assert_close(got: &[f32], expected: &[f32], tolerance: f32) {
    let close = got.len() == expected.len() && got.iter().zip(expected).all(|(a, b)| (a - b).abs() <= tolerance);
    assert!(close, "{got:?} is not {expected:?}");
}
