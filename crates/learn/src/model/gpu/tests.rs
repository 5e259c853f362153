//! The operations on the CPU, against the tensor library's own.

use burn::backend::Flex;
use burn::tensor::Tensor;

use super::convolution::convolve;
use super::fully_connected::multiply;
use crate::model::layer::{Activation, Conv, Convolution, Linear};
use crate::model::testing::{assert_agree, plain, random};

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
            layer.input.iter().product(),
            layer.filters * layer.input[0] * layer.kernel * layer.kernel,
            layer.filters,
        ];
        assert_agree(
            sizes,
            n_samples,
            |input, weight, bias| {
                let maps = convolve::<Flex>(layer.geometry(), &input, &weight, Some(&bias));
                layer.pooled(maps.unwrap())
            },
            |input, weight, bias| layer.compose(input, weight, bias),
        );
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
        assert_agree(
            [3 * side * side, 5 * 27, 1],
            4,
            |input, weight, bias| {
                let maps = convolve::<Flex>(layer.geometry(), &input, &weight, None);
                free(maps.unwrap(), bias)
            },
            |input, weight, bias| free(layer.compose(input, weight, None), bias),
        );
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
        assert_agree(
            [inputs, inputs * outputs, outputs],
            n_samples,
            |input, weight, bias| multiply::<Flex>(&layer, &input, &weight, Some(&bias)).unwrap(),
            |input, weight, bias| layer.compose(input, weight, Some(bias)),
        );
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
    let (input, weight) = (plain::<2>(random(&[4, 3], 1)), plain(random(&[6], 2)));
    let recorded = input.clone().autodiff().require_grad();
    let output = multiply::<Flex>(&layer, &recorded, &weight, None).unwrap();
    let gradients = output.sum().backward();
    assert_eq!(recorded.grad(&gradients).unwrap().dims(), [4, 3]);
    let output = multiply::<Flex>(&layer, &input, &weight, None).unwrap();
    assert!(!output.is_require_grad());
}
