//! Layers on the CPU: the kernels of `fednode-kernels` as operations on the tensor library's tape.
//!
//! Each layer is one operation with one backward step, so that the tape costs next to nothing and no intermediate
//! result (patches, maps before the pooling, sums before the bias) becomes a tensor. The functions return nothing when a
//! layer's tensors are not 32-bit floats on the CPU; [`super::net`] then composes the layer of general operations. The
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
use fednode_kernels::conv::{Block, Trace, Wants};
use fednode_kernels::linear::{self, Layer};

use super::net::{Activation, Conv, Linear};

/// Runs a convolution with pooling and ReLU, `[batch, C·H·W]` to `[batch, F·H'·W']`.
pub(super) fn conv(conv: &Conv, input: &Tensor<2>, weight: &Tensor<1>, bias: &Tensor<1>) -> Option<Tensor<2>> {
    let Conv { input: shape, filters, kernel, padding, pool, .. } = *conv;
    let block = Block { input: shape, filters, kernel, padding, pool };
    if !block.is_supported() {
        return None;
    }
    let operands = [Operand::of(input)?, Operand::of(weight)?, Operand::of(bias)?];
    let [input, weight, bias] = operands.each_ref().map(|operand| &operand.values);
    let (output, trace) = block.forward(slice(input), slice(weight), slice(bias));
    let state = ConvState { block, trace, weight: weight.clone() };
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
        Activation::Identity => linear::Activation::Identity,
    };
    let layer = Layer { inputs: linear.inputs, outputs: linear.outputs, activation };
    let (input, weight) = (Operand::of(input)?, Operand::of(weight)?);
    let bias = match bias {
        Some(bias) => Some(Operand::of(bias)?),
        None => None,
    };
    let bias_values = bias.as_ref().map(|bias| slice(&bias.values));
    let output = layer.forward(slice(&input.values), slice(&weight.values), bias_values);
    let output = tensor(output, &[input.values.layout().shape()[0], layer.outputs]);
    let (input_values, weight_values) = (input.values.clone(), weight.values.clone());
    let state = LinearState { layer, input: input_values, weight: weight_values, output: output.clone() };
    Some(match bias {
        Some(bias) => record([input, weight, bias], LinearStep, state, output),
        None => record([input, weight], LinearStep, state, output),
    })
}

/// A tensor that an operation takes.
struct Operand {
    /// Its numbers, in order.
    values: FlexTensor,
    /// Its place on a tape, if it is on one.
    node: Option<NodeGuard>,
}

impl Operand {
    /// Returns nothing unless the tensor is made of 32-bit floats on the CPU.
    fn of<const D: usize>(tensor: &Tensor<D>) -> Option<Self> {
        let (values, node) = match tensor.clone().into_dispatch().kind {
            DispatchTensorKind::Flex(BackendTensor::Float(values)) => (values, None),
            DispatchTensorKind::Autodiff(recorded) => {
                let DispatchTensorKind::Flex(BackendTensor::Autodiff(recorded)) = *recorded else { return None };
                let (values, node) = recorded.into_parts();
                (values, Some(node))
            }
            _ => return None,
        };
        (values.dtype() == DType::F32).then(|| Self { values: values.to_contiguous(), node })
    }
}

/// Returns the numbers of an operand.
fn slice(values: &FlexTensor) -> &[f32] {
    values.as_slice().expect("operands are contiguous and hold 32-bit floats")
}

/// Makes a tensor of numbers.
fn tensor(values: Vec<f32>, shape: &[usize]) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(values, shape))
}

/// Puts an operation on the tape that its operands are on, if any is.
fn record<const N: usize, O: Backward<Flex, N>>(
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
    let recorded = match step.prepare::<NoCheckpointing>(nodes).compute_bound().stateful() {
        OpsKind::Tracked(prep) => prep.finish(state, output),
        OpsKind::UnTracked(prep) => prep.finish(output),
    };
    Tensor::from_primitive::<Autodiff<Flex>>(recorded)
}

/// Hands a gradient on to an operand that wants it.
fn register(gradients: &mut Gradients, operand: Option<NodeId>, values: Option<Vec<f32>>, shape: &[usize]) {
    if let (Some(operand), Some(values)) = (operand, values) {
        gradients.register::<Flex>(operand, tensor(values, shape));
    }
}

fn wants(input: Option<NodeId>) -> Wants {
    if input.is_some() { Wants::InputGradient } else { Wants::ParametersOnly }
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
        let ConvState { block, trace, weight: values } = ops.state;
        let n_samples = gradient.layout().shape()[0];
        let found = block.backward(&trace, slice(&values), slice(&gradient), wants(input));
        let n_weights = found.weight.len();
        register(gradients, input, found.input, &[n_samples, block.input.iter().product()]);
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
        let LinearState { layer, input, weight, output } = ops.state;
        let mut operands = ops.parents.into_iter().map(|parent| parent.map(|node| node.id));
        let mut next = || operands.next().flatten();
        let (to_input, to_weight, to_bias) = (next(), next(), next());
        let slices = [&input, &output, &weight, &gradient].map(slice);
        let found = layer.backward(slices[0], slices[1], slices[2], slices[3], wants(to_input));
        let n_samples = gradient.layout().shape()[0];
        register(gradients, to_input, found.input, &[n_samples, layer.inputs]);
        register(gradients, to_weight, Some(found.weight), &[layer.inputs * layer.outputs]);
        register(gradients, to_bias, Some(found.bias), &[layer.outputs]);
    }
}
