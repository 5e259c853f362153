//! Fully connected layers.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::Tensor;
use burn::tensor::ops::ConvOptions;

use super::tape::{Known, optional, parents, record, register, reshape, transpose};
use crate::model::layer::Linear;

pub(super) fn multiply<B: Known>(
    linear: &Linear,
    input: &Tensor<2>,
    weight: &Tensor<1>,
    bias: Option<&Tensor<1>>,
) -> Option<Tensor<2>> {
    let (input, weight, bias) = (
        B::operand(input)?,
        B::operand(weight)?,
        optional::<B>(bias)?,
    );
    let matrix = reshape::<B>(weight.values.clone(), &[linear.inputs, linear.outputs]);
    let state = LinearState {
        input: input.values.clone(),
        weight: matrix.clone(),
    };
    let bias_values = bias.as_ref().map(|bias| bias.values.clone());
    let output = product::<B>(input.values.clone(), matrix, bias_values);
    let made = match bias {
        Some(bias) => record([input, weight, bias], LinearStep, state, output),
        None => record([input, weight], LinearStep, state, output),
    };
    Some(B::tensor(made))
}

/// Multiplies `[batch, n]` by `[n, m]` and adds `[m]`, as a convolution of 1×1 images: the library's product of matrices
/// took twice as long on an H200 where the batch was the short side.
fn product<B: Backend>(
    input: FloatTensor<B>,
    weight: FloatTensor<B>,
    bias: Option<FloatTensor<B>>,
) -> FloatTensor<B> {
    let (n_samples, shape) = (input.shape()[0], weight.shape());
    let (inputs, outputs) = (shape[0], shape[1]);
    let images = reshape::<B>(input, &[n_samples, inputs, 1, 1]);
    let kernels = reshape::<B>(transpose::<B>(weight), &[outputs, inputs, 1, 1]);
    let options = ConvOptions::new([1, 1], [0, 0], [1, 1], 1);
    reshape::<B>(
        B::conv2d(images, kernels, bias, options),
        &[n_samples, outputs],
    )
}

#[derive(Debug)]
struct LinearStep;

#[derive(Debug, Clone)]
struct LinearState<B: Backend> {
    /// `[batch, inputs]`.
    input: FloatTensor<B>,
    /// `[inputs, outputs]`.
    weight: FloatTensor<B>,
}

impl<B: Backend, const N: usize> Backward<B, N> for LinearStep {
    type State = LinearState<B>;

    fn backward(
        self,
        ops: Ops<LinearState<B>, N>,
        gradients: &mut Gradients,
        _: &mut Checkpointer,
    ) {
        let LinearState { input, weight } = ops.state;
        let gradient = gradients.consume::<B>(&ops.node);
        let shape = weight.shape();
        let (inputs, outputs) = (shape[0], shape[1]);
        let [to_input, to_weight, to_bias] =
            parents(ops.parents.map(|parent| parent.map(|node| node.id)));
        register::<B>(gradients, to_bias, || {
            reshape::<B>(B::float_sum_dim(gradient.clone(), 0), &[outputs])
        });
        register::<B>(gradients, to_weight, || {
            let product = B::float_matmul(transpose::<B>(input), gradient.clone());
            reshape::<B>(product, &[inputs * outputs])
        });
        register::<B>(gradients, to_input, || {
            B::float_matmul(gradient, transpose::<B>(weight))
        });
    }
}
