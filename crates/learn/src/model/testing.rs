//! What the tests of two ways to run a layer have in common: the same operands for both, and outputs and gradients held
//! against each other.

use burn::tensor::{Device, Tensor, TensorData};

use crate::random::{Purpose, stream, uniform};
use crate::weights::values;

/// Draws numbers for a tensor of this shape.
pub(super) fn random(shape: &[usize], seed: u64) -> TensorData {
    let mut rng = stream(Purpose::Initial, [seed, 0, 0]);
    let numbers = uniform(&mut rng, 1.0, shape.iter().product());
    TensorData::new(numbers, shape.to_vec())
}

/// Makes a tensor on the CPU, off every tape.
pub(super) fn plain<const D: usize>(data: TensorData) -> Tensor<D> {
    Tensor::from_data(data, &Device::flex())
}

/// Makes a tensor on the CPU whose gradient is wanted.
pub(super) fn leaf<const D: usize>(data: TensorData) -> Tensor<D> {
    plain(data).autodiff().require_grad()
}

/// Sizes of a layer's input of a sample, weights and bias.
pub(super) type Sizes = [usize; 3];

/// Runs a layer in two ways on so many samples, and compares outputs and all gradients.
#[track_caller]
pub(super) fn assert_agree(
    sizes: Sizes,
    n_samples: usize,
    one: impl Fn(Tensor<2>, Tensor<1>, Tensor<1>) -> Tensor<2>,
    other: impl Fn(Tensor<2>, Tensor<1>, Tensor<1>) -> Tensor<2>,
) {
    let got = run(sizes, n_samples, one);
    let expected = run(sizes, n_samples, other);
    for (got, expected) in got.iter().zip(&expected) {
        assert_close(got, expected);
    }
}

/// Output and gradients of a layer, with a loss in which every output has its own weight.
fn run(
    [inputs, weights, biases]: Sizes,
    n_samples: usize,
    layer: impl Fn(Tensor<2>, Tensor<1>, Tensor<1>) -> Tensor<2>,
) -> [Vec<f32>; 4] {
    let input = leaf::<2>(random(&[n_samples, inputs], 1));
    let weight = leaf::<1>(random(&[weights], 2));
    let bias = leaf::<1>(random(&[biases], 3));
    let output = layer(input.clone(), weight.clone(), bias.clone());
    let factors = plain::<2>(random(&output.dims(), 4));
    let gradients = (output.clone() * factors).sum().backward();
    let counts = "every operand of the layer is a leaf, and the loss depends on it";
    [
        values(&output),
        values(&input.grad(&gradients).expect(counts)),
        values(&weight.grad(&gradients).expect(counts)),
        values(&bias.grad(&gradients).expect(counts)),
    ]
}

#[track_caller]
fn assert_close(got: &[f32], expected: &[f32]) {
    assert_eq!(got.len(), expected.len());
    let largest = |values: &mut dyn Iterator<Item = f32>| values.fold(0f32, f32::max);
    let scale = largest(&mut expected.iter().map(|value| value.abs()));
    let error = largest(&mut got.iter().zip(expected).map(|(a, b)| (a - b).abs()));
    let is_number = got.iter().all(|value| value.is_finite());
    assert!(is_number && error <= 1e-4 * scale, "{error} of {scale}");
}
