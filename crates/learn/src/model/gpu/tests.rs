//! The operations on the CPU, against the tensor library's own.

use burn::backend::Flex;
use burn::tensor::{Device, Tensor, TensorData};

use super::convolution::convolve;
use super::fully_connected::multiply;
use crate::model::layer::{Activation, Conv, Convolution, Linear};
use crate::random::{Purpose, stream, uniform};

fn random(count: usize, seed: u64) -> Tensor<1> {
    let numbers = uniform(&mut stream(Purpose::Noise, [seed, 0, 0]), 1.0, count);
    Tensor::from_data(TensorData::new(numbers, [count]), &Device::flex())
}

/// Output and gradients of a layer, with a loss in which every output has its own weight.
fn run(
    shapes: [usize; 3],
    n_samples: usize,
    layer: impl Fn(Tensor<2>, Tensor<1>, Tensor<1>) -> Tensor<2>,
) -> [Vec<f32>; 4] {
    let leaf = |at: usize| random(shapes[at], at as u64).autodiff().require_grad();
    let [input, weight, bias] = [leaf(0), leaf(1), leaf(2)];
    let matrix = input.clone().reshape([n_samples, shapes[0] / n_samples]);
    let output = layer(matrix, weight.clone(), bias.clone());
    let dims = output.dims();
    let factors = random(dims[0] * dims[1], 9).reshape(dims);
    let gradients = (output.clone() * factors).sum().backward();
    let of = |tensor: &Tensor<1>| crate::weights::values(&tensor.grad(&gradients).unwrap());
    [
        crate::weights::values(&output),
        of(&input),
        of(&weight),
        of(&bias),
    ]
}

#[track_caller]
fn assert_alike(got: &[Vec<f32>; 4], expected: &[Vec<f32>; 4]) {
    for (got, expected) in got.iter().zip(expected) {
        assert_eq!(got.len(), expected.len());
        let largest = expected
            .iter()
            .fold(0f32, |far, value| far.max(value.abs()));
        let pairs = got.iter().zip(expected);
        let error = pairs.fold(0f32, |far, (a, b)| far.max((a - b).abs()));
        assert!(error <= 1e-4 * largest, "{error} of {largest}");
    }
}

#[test]
fn convolutions_agree_with_the_tensor_library() {
    let shape = |input, filters, kernel, padding| Conv {
        name: "conv",
        input,
        filters,
        kernel,
        padding,
        pool: 2,
    };
    let shapes = [
        (shape([1, 28, 28], 32, 5, [0, 0]), 10),
        (shape([32, 12, 12], 64, 5, [0, 0]), 7),
        (shape([1, 28, 28], 6, 5, [2, 2]), 10),
        (shape([3, 9, 11], 5, 3, [1, 1]), 1),
        (shape([2, 8, 9], 5, 3, [1, 0]), 3),
    ];
    for (layer, n_samples) in shapes {
        let sizes = [
            n_samples * layer.input.iter().product::<usize>(),
            layer.filters * layer.input[0] * layer.kernel * layer.kernel,
            layer.filters,
        ];
        let got = run(sizes, n_samples, |input, weight, bias| {
            let maps = convolve::<Flex>(layer.geometry(), &input, &weight, Some(&bias));
            layer.pooled(maps.unwrap())
        });
        let expected = run(sizes, n_samples, |input, weight, bias| {
            layer.compose(input, weight, bias)
        });
        assert_alike(&got, &expected);
    }
}

#[test]
fn convolutions_with_steps_and_without_bias_agree_with_the_tensor_library() {
    for (side, stride, padding) in [(8, 1, 1), (8, 2, 1), (9, 2, 0), (7, 3, 1)] {
        let layer = Convolution {
            name: "conv",
            input: [3, side, side],
            filters: 5,
            kernel: 3,
            stride,
            padding,
            bias: false,
        };
        // The loss does not depend on the bias.
        let free = |output: Tensor<4>, bias: Tensor<1>| {
            output.reshape([4, layer.output().iter().product()]) + bias.sum().reshape([1, 1]) * 0.0
        };
        let sizes = [4 * 3 * side * side, 5 * 27, 1];
        let got = run(sizes, 4, |input, weight, bias| {
            let maps = convolve::<Flex>(layer.geometry(), &input, &weight, None);
            free(maps.unwrap(), bias)
        });
        let expected = run(sizes, 4, |input, weight, bias| {
            free(layer.compose(input, weight, None), bias)
        });
        assert_alike(&got, &expected);
    }
}

#[test]
fn fully_connected_layers_agree_with_the_tensor_library() {
    for (inputs, outputs, n_samples) in [(1024, 512, 10), (512, 10, 64), (84, 10, 1)] {
        let layer = Linear {
            name: "fc",
            inputs,
            outputs,
            activation: Activation::Identity,
            bias: true,
        };
        let sizes = [n_samples * inputs, inputs * outputs, outputs];
        let got = run(sizes, n_samples, |input, weight, bias| {
            multiply::<Flex>(&layer, &input, &weight, Some(&bias)).unwrap()
        });
        let expected = run(sizes, n_samples, |input, weight, bias| {
            layer.compose(input, weight, Some(bias))
        });
        assert_alike(&got, &expected);
    }
}

#[test]
fn only_what_is_recorded_gets_a_gradient() {
    let layer = Linear {
        name: "fc",
        inputs: 3,
        outputs: 2,
        activation: Activation::Identity,
        bias: false,
    };
    let (input, weight) = (random(12, 1).reshape([4, 3]), random(6, 2));
    let recorded = input.clone().autodiff().require_grad();
    let output = multiply::<Flex>(&layer, &recorded, &weight, None).unwrap();
    let gradients = output.sum().backward();
    assert_eq!(recorded.grad(&gradients).unwrap().dims(), [4, 3]);
    let output = multiply::<Flex>(&layer, &input, &weight, None).unwrap();
    assert!(!output.is_require_grad());
}
