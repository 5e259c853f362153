//! Layers on the CPU: the kernels of `fednode-kernels` as operations on the tensor library's tape.
//!
//! Each layer is one operation with one backward step, so that the tape costs next to nothing and no intermediate
//! result (patches, maps before the pooling, sums before the bias) becomes a tensor. The functions return nothing when a
//! layer's tensors are not 32-bit floats on the CPU; the layer is then composed of general operations. The
//! tests hold the two ways against each other.

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, NodeGuard, Ops, OpsKind};
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, BackendTensor, DispatchTensorKind, Flex};
use burn::tensor::{DType, Tensor, TensorData};
use fednode_kernels::Wants;
use fednode_kernels::conv::{Block, Trace};
use fednode_kernels::linear::{self, Layer};
use rayon::prelude::*;

use super::layer::{Activation, Conv, Linear};

/// Runs a convolution with pooling and ReLU, `[batch, C·H·W]` to `[batch, F·H'·W']`.
pub(super) fn conv(
    conv: &Conv,
    input: &Tensor<2>,
    weight: &Tensor<1>,
    bias: &Tensor<1>,
) -> Option<Tensor<2>> {
    let Conv {
        input: shape,
        filters,
        kernel,
        padding,
        pool,
        ..
    } = *conv;
    let block = Block {
        input: shape,
        filters,
        kernel,
        padding,
        pool,
    };
    if !block.is_supported() {
        return None;
    }
    let operands = [
        Operand::of(input)?,
        Operand::of(weight)?,
        Operand::of(bias)?,
    ];
    let [input, weight, bias] = operands.each_ref().map(|operand| &operand.values);
    let (output, trace) = block.forward(slice(input), slice(weight), slice(bias));
    let state = ConvState {
        block,
        trace,
        weight: weight.clone(),
    };
    let output = tensor(output, &[input.layout().shape()[0], block.n_outputs()]);
    Some(record(operands, ConvStep, state, output))
}

/// Runs a fully connected layer, `[batch, inputs]` to `[batch, outputs]`.
pub(super) fn linear(
    linear: &Linear,
    input: &Tensor<2>,
    weight: &Tensor<1>,
    bias: Option<&Tensor<1>>,
) -> Option<Tensor<2>> {
    let activation = match linear.activation {
        Activation::Relu => linear::Activation::Relu,
        // The kernels know no others: they follow as operations of their own.
        Activation::LeakyRelu | Activation::LogSoftmax | Activation::Identity => {
            linear::Activation::Identity
        }
    };
    let layer = Layer {
        inputs: linear.inputs,
        outputs: linear.outputs,
        activation,
    };
    let (input, weight) = (Operand::of(input)?, Operand::of(weight)?);
    let bias = match bias {
        Some(bias) => Some(Operand::of(bias)?),
        None => None,
    };
    let bias_values = bias.as_ref().map(|bias| slice(&bias.values));
    let output = layer.forward(slice(&input.values), slice(&weight.values), bias_values);
    let output = tensor(output, &[input.values.layout().shape()[0], layer.outputs]);
    let (input_values, weight_values) = (input.values.clone(), weight.values.clone());
    let state = LinearState {
        layer,
        input: input_values,
        weight: weight_values,
        output: output.clone(),
    };
    let output = match bias {
        Some(bias) => record([input, weight, bias], LinearStep, state, output),
        None => record([input, weight], LinearStep, state, output),
    };
    Some(if linear.activation == Activation::Relu {
        output
    } else {
        linear.activation.apply(output)
    })
}

/// Numbers of a parameter that one thread changes at a time.
const PIECE: usize = 1 << 16;

/// Makes a step of gradient descent, `values - learning_rate · gradient`.
///
/// On the CPU that is one pass, in place unless somebody else holds the values; the numbers are those of the two
/// general operations.
pub(crate) fn sgd_step(values: Tensor<1>, gradient: Tensor<1>, learning_rate: f64) -> Tensor<1> {
    let step = Operand::of(&gradient).filter(|step| step.node.is_none());
    let is_plain = Operand::of(&values).is_some_and(|values| values.node.is_none());
    let (Some(step), true) = (step, is_plain) else {
        return values - gradient.mul_scalar(learning_rate);
    };
    let mut values = values
        .try_into_primitive::<Flex>()
        .expect("it was found to be on the CPU");
    if !(values.is_contiguous() && values.layout().start_offset() == 0) {
        values = values.to_contiguous();
    }
    let pieces = values
        .storage_mut::<f32>()
        .par_chunks_mut(PIECE)
        .zip(slice(&step.values).par_chunks(PIECE));
    pieces.for_each(|(values, gradients)| {
        for (value, gradient) in values.iter_mut().zip(gradients) {
            *value -= learning_rate as f32 * gradient;
        }
    });
    Tensor::from_primitive::<Flex>(values)
}

/// A tensor that an operation takes.
pub(super) struct Operand {
    /// Its numbers, in order.
    pub(super) values: FlexTensor,
    /// Its place on a tape, if it is on one.
    node: Option<NodeGuard>,
}

impl Operand {
    /// Returns nothing unless the tensor is made of 32-bit floats on the CPU.
    pub(super) fn of<const D: usize>(tensor: &Tensor<D>) -> Option<Self> {
        let (values, node) = match tensor.clone().into_dispatch().kind {
            DispatchTensorKind::Flex(BackendTensor::Float(values)) => (values, None),
            DispatchTensorKind::Autodiff(recorded) => {
                let DispatchTensorKind::Flex(BackendTensor::Autodiff(recorded)) = *recorded else {
                    return None;
                };
                let (values, node) = recorded.into_parts();
                (values, Some(node))
            }
            _ => return None,
        };
        (values.dtype() == DType::F32).then(|| Self {
            values: values.to_contiguous(),
            node,
        })
    }
}

/// Returns the numbers of an operand.
pub(super) fn slice(values: &FlexTensor) -> &[f32] {
    values
        .as_slice()
        .expect("operands are contiguous and hold 32-bit floats")
}

/// Makes a tensor of numbers.
pub(super) fn tensor(values: Vec<f32>, shape: &[usize]) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(values, shape))
}

/// Puts an operation on the tape that its operands are on, if any is.
pub(super) fn record<const N: usize, O: Backward<Flex, N>>(
    operands: [Operand; N],
    step: O,
    state: O::State,
    output: FlexTensor,
) -> Tensor<2> {
    if operands.iter().all(|operand| operand.node.is_none()) {
        return Tensor::from_primitive::<Flex>(output);
    }
    // An operand that is on no tape is a constant.
    let constant = |values| FloatTensor::<Autodiff<Flex>>::new(values).node();
    let nodes = operands.map(|operand| operand.node.unwrap_or_else(|| constant(operand.values)));
    let recorded = match step
        .prepare::<NoCheckpointing>(nodes)
        .compute_bound()
        .stateful()
    {
        OpsKind::Tracked(prep) => prep.finish(state, output),
        OpsKind::UnTracked(prep) => prep.finish(output),
    };
    Tensor::from_primitive::<Autodiff<Flex>>(recorded)
}

/// Hands a gradient on to an operand that wants it.
pub(super) fn register(
    gradients: &mut Gradients,
    operand: Option<NodeId>,
    values: Option<Vec<f32>>,
    shape: &[usize],
) {
    if let (Some(operand), Some(values)) = (operand, values) {
        gradients.register::<Flex>(operand, tensor(values, shape));
    }
}

fn wants(input: Option<NodeId>) -> Wants {
    if input.is_some() {
        Wants::InputGradient
    } else {
        Wants::ParametersOnly
    }
}

#[derive(Debug)]
struct ConvStep;

#[derive(Debug, Clone)]
struct ConvState {
    block: Block,
    trace: Trace,
    weight: FlexTensor,
}

impl Backward<Flex, 3> for ConvStep {
    type State = ConvState;

    fn backward(self, ops: Ops<ConvState, 3>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let gradient = gradients.consume::<Flex>(&ops.node).to_contiguous();
        let [input, weight, bias] = ops.parents.map(|parent| parent.map(|node| node.id));
        let ConvState {
            block,
            trace,
            weight: values,
        } = ops.state;
        let n_samples = gradient.layout().shape()[0];
        let found = block.backward(&trace, slice(&values), slice(&gradient), wants(input));
        let n_weights = found.weight.len();
        register(
            gradients,
            input,
            found.input,
            &[n_samples, block.input.iter().product()],
        );
        register(gradients, weight, Some(found.weight), &[n_weights]);
        register(gradients, bias, Some(found.bias), &[block.filters]);
    }
}

#[derive(Debug)]
struct LinearStep;

#[derive(Debug, Clone)]
struct LinearState {
    layer: Layer,
    input: FlexTensor,
    weight: FlexTensor,
    output: FlexTensor,
}

impl<const N: usize> Backward<Flex, N> for LinearStep {
    type State = LinearState;

    fn backward(self, ops: Ops<LinearState, N>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let gradient = gradients.consume::<Flex>(&ops.node).to_contiguous();
        let LinearState {
            layer,
            input,
            weight,
            output,
        } = ops.state;
        let mut operands = ops
            .parents
            .into_iter()
            .map(|parent| parent.map(|node| node.id));
        let mut next = || operands.next().flatten();
        let (to_input, to_weight, to_bias) = (next(), next(), next());
        let slices = [&input, &output, &weight, &gradient].map(slice);
        let found = layer.backward(slices[0], slices[1], slices[2], slices[3], wants(to_input));
        let n_samples = gradient.layout().shape()[0];
        register(gradients, to_input, found.input, &[n_samples, layer.inputs]);
        register(
            gradients,
            to_weight,
            Some(found.weight),
            &[layer.inputs * layer.outputs],
        );
        register(gradients, to_bias, Some(found.bias), &[layer.outputs]);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_agree, leaf, plain, random};
    use super::*;

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
            (shape([32, 12, 12], 64, 5, [0, 0]), 40),
            (shape([1, 28, 28], 6, 5, [2, 2]), 10),
            (shape([6, 14, 14], 16, 5, [0, 0]), 64),
            (shape([3, 9, 11], 5, 3, [1, 1]), 7),
        ];
        for (layer, n_samples) in shapes {
            let [channels, height, width] = layer.input;
            let sizes = [
                channels * height * width,
                layer.filters * channels * layer.kernel * layer.kernel,
                layer.filters,
            ];
            assert_agree(
                sizes,
                n_samples,
                |input, weight, bias| conv(&layer, &input, &weight, &bias).unwrap(),
                |input, weight, bias| layer.compose(input, weight, bias),
            );
        }
    }

    #[test]
    fn fully_connected_layers_agree_with_the_tensor_library() {
        for (inputs, outputs, n_samples) in
            [(1024, 512, 10), (512, 10, 64), (400, 120, 33), (84, 10, 1)]
        {
            for activation in [
                Activation::Relu,
                Activation::LeakyRelu,
                Activation::LogSoftmax,
                Activation::Identity,
            ] {
                let layer = Linear {
                    name: "fc",
                    inputs,
                    outputs,
                    activation,
                    bias: true,
                };
                assert_agree(
                    [inputs, inputs * outputs, outputs],
                    n_samples,
                    |input, weight, bias| linear(&layer, &input, &weight, Some(&bias)).unwrap(),
                    |input, weight, bias| layer.compose(input, weight, Some(bias)),
                );
            }
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
        let (input, weight) = (leaf::<2>(random(&[4, 3], 1)), plain(random(&[6], 2)));
        let gradients = linear(&layer, &input, &weight, None)
            .unwrap()
            .sum()
            .backward();
        assert_eq!(input.grad(&gradients).unwrap().dims(), [4, 3]);
        let output = linear(&layer, &input.without_autodiff(), &weight, None).unwrap();
        assert!(!output.is_require_grad());
    }

    #[test]
    fn other_numbers_are_left_to_the_tensor_library() {
        let layer = Linear {
            name: "fc",
            inputs: 3,
            outputs: 2,
            activation: Activation::Identity,
            bias: false,
        };
        let input = plain::<2>(random(&[4, 3], 1)).cast(DType::F64);
        let weight = plain::<1>(random(&[6], 2)).cast(DType::F64);
        assert!(linear(&layer, &input, &weight, None).is_none());
    }

    #[test]
    fn a_step_is_that_of_the_tensor_library_bit_for_bit() {
        let [values, gradient] = [1, 2].map(|seed| plain::<1>(random(&[100], seed)));
        let expected = values.clone() - gradient.clone().mul_scalar(0.05);
        assert_eq!(
            crate::weights::values(&sgd_step(values, gradient, 0.05)),
            crate::weights::values(&expected)
        );
    }
}
