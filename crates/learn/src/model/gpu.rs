//! Layers on a GPU: products of matrices as operations on the tensor library's tape, each with a backward step of its own.
//!
//! ```text
//! convolution   patches [B·P, C·k·k] gathered from the input       P places of the output
//!               output  = patches · weightᵀ + bias                 [B·P, F]
//!               weight  ◄ sum over B of gradientᵀ · patches        one product per sample, then one sum
//!               input   ◄ transposed convolution of the gradient
//! linear        output  = input · weight + bias
//!               weight  ◄ inputᵀ · gradient        input ◄ gradient · weightᵀ
//! bias          ◄ sums in two steps: within samples, then over them
//! ```
//!
//! The tensor library's own backward pass of a convolution, without its search for the best kernel at run time, reduces
//! long rows one number after the other. A step of `cnn` with a batch of 256 took 22 ms on an H200 with it, 14 of them for
//! the first convolution. With the search, the first epoch was not over after 100 s.
//!
//! Nothing here knows the backend, so the tests hold it against the CPU's layers on the CPU. Software drivers are left to
//! the general operations, see [`affine`](super::affine). A node holds the real device against the CPU before it uses it,
//! see [`probe`](crate::probe) and [`trial`](crate::trial).

// Without the GPU path only the tests call what is here.
#![cfg_attr(not(feature = "vulkan"), allow(dead_code))]

use std::sync::{Mutex, PoisonError};

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, NodeGuard, Ops, OpsKind};
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Autodiff, Backend, BackendTensor, DispatchTensorKind, TensorMetadata};
use burn::tensor::ops::{ConvOptions, ConvTransposeOptions};
use burn::tensor::{DType, Device, FloatDType, Int, Shape, Tensor, TensorData};

use super::layer::Linear;

/// A backend that tensors can be taken from and given back to.
trait Known: Backend {
    /// Returns nothing unless the tensor is made of 32-bit floats on this backend.
    fn operand<const D: usize>(tensor: &Tensor<D>) -> Option<Operand<Self>>;
    /// Returns nothing unless the tensor is on this backend.
    fn indices(tensor: Tensor<1, Int>) -> Option<IntTensor<Self>>;
    fn tensor<const D: usize>(made: Made<Self>) -> Tensor<D>;
}

/// A tensor that an operation takes.
struct Operand<B: Backend> {
    values: FloatTensor<B>,
    /// Its place on a tape, if it is on one.
    node: Option<NodeGuard>,
}

/// What an operation makes.
enum Made<B: Backend> {
    Plain(FloatTensor<B>),
    Recorded(FloatTensor<Autodiff<B>>),
}

macro_rules! known {
    ($backend:ident) => {
        impl Known for burn::backend::$backend {
            fn operand<const D: usize>(tensor: &Tensor<D>) -> Option<Operand<Self>> {
                let (values, node) = match tensor.clone().into_dispatch().kind {
                    DispatchTensorKind::$backend(BackendTensor::Float(values)) => (values, None),
                    DispatchTensorKind::Autodiff(recorded) => {
                        let DispatchTensorKind::$backend(BackendTensor::Autodiff(recorded)) =
                            *recorded
                        else {
                            return None;
                        };
                        let (values, node) = recorded.into_parts();
                        (values, Some(node))
                    }
                    _ => return None,
                };
                (values.dtype() == DType::F32).then_some(Operand { values, node })
            }

            fn indices(tensor: Tensor<1, Int>) -> Option<IntTensor<Self>> {
                tensor.try_into_primitive::<Self>().ok()
            }

            fn tensor<const D: usize>(made: Made<Self>) -> Tensor<D> {
                match made {
                    Made::Plain(values) => Tensor::from_primitive::<Self>(values),
                    Made::Recorded(values) => Tensor::from_primitive::<Autodiff<Self>>(values),
                }
            }
        }
    };
}

#[cfg(feature = "vulkan")]
known!(Cube);
#[cfg(test)]
known!(Flex);

/// Most bytes of the patches of a batch: what every Vulkan driver offers as one buffer.
const MOST_BYTES: usize = 128 << 20;

/// What a convolution is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Geometry {
    /// Channels, height and width.
    pub(super) input: [usize; 3],
    /// Maps, height and width.
    pub(super) output: [usize; 3],
    pub(super) kernel: usize,
    pub(super) stride: usize,
    pub(super) padding: [usize; 2],
}

/// Runs a convolution, `[batch, C·H·W]` to `[batch, F, H', W']`; nothing where it is none of a GPU, or too large.
#[cfg(feature = "vulkan")]
pub(super) fn conv(
    geometry: Geometry,
    input: &Tensor<2>,
    weight: &Tensor<1>,
    bias: Option<&Tensor<1>>,
) -> Option<Tensor<4>> {
    let numbers = input.dims()[0] * geometry.places() * geometry.patch();
    let is_small = numbers * size_of::<f32>() <= MOST_BYTES;
    if !is_small || !crate::vulkan::is_hardware(&input.device()) {
        return None;
    }
    convolve::<burn::backend::Cube>(geometry, input, weight, bias)
}

/// Runs a fully connected layer without its activation; nothing where it is none of a GPU.
#[cfg(feature = "vulkan")]
pub(super) fn linear(
    linear: &Linear,
    input: &Tensor<2>,
    weight: &Tensor<1>,
    bias: Option<&Tensor<1>>,
) -> Option<Tensor<2>> {
    if !crate::vulkan::is_hardware(&input.device()) {
        return None;
    }
    multiply::<burn::backend::Cube>(linear, input, weight, bias)
}

#[cfg(not(feature = "vulkan"))]
pub(super) fn conv(
    _: Geometry,
    _: &Tensor<2>,
    _: &Tensor<1>,
    _: Option<&Tensor<1>>,
) -> Option<Tensor<4>> {
    None
}

#[cfg(not(feature = "vulkan"))]
pub(super) fn linear(
    _: &Linear,
    _: &Tensor<2>,
    _: &Tensor<1>,
    _: Option<&Tensor<1>>,
) -> Option<Tensor<2>> {
    None
}

/// Puts an operation on the tape that its operands are on, if any is.
fn record<B: Backend, const N: usize, O: Backward<B, N>>(
    operands: [Operand<B>; N],
    step: O,
    state: O::State,
    output: FloatTensor<B>,
) -> Made<B> {
    if operands.iter().all(|operand| operand.node.is_none()) {
        return Made::Plain(output);
    }
    // An operand that is on no tape is a constant.
    let constant = |values| FloatTensor::<Autodiff<B>>::new(values).node();
    let nodes = operands.map(|operand| operand.node.unwrap_or_else(|| constant(operand.values)));
    Made::Recorded(
        match step
            .prepare::<NoCheckpointing>(nodes)
            .compute_bound()
            .stateful()
        {
            OpsKind::Tracked(prep) => prep.finish(state, output),
            OpsKind::UnTracked(prep) => prep.finish(output),
        },
    )
}

fn reshape<B: Backend>(tensor: FloatTensor<B>, shape: &[usize]) -> FloatTensor<B> {
    B::float_reshape(tensor, Shape::from(shape.to_vec()))
}

fn transpose<B: Backend>(matrix: FloatTensor<B>) -> FloatTensor<B> {
    let rank = matrix.shape().num_dims();
    B::float_swap_dims(matrix, rank - 2, rank - 1)
}

/// Adds up the rows of `[groups·n, width]`, first within the groups.
fn sum_rows<B: Backend>(rows: FloatTensor<B>, groups: usize) -> FloatTensor<B> {
    let shape = rows.shape();
    let (n_rows, width) = (shape[0], shape[1]);
    let grouped = reshape::<B>(rows, &[groups, n_rows / groups, width]);
    let sums = reshape::<B>(B::float_sum_dim(grouped, 1), &[groups, width]);
    reshape::<B>(B::float_sum_dim(sums, 0), &[width])
}

/// Hands a gradient on to an operand that wants it.
fn register<B: Backend>(
    gradients: &mut Gradients,
    operand: Option<NodeId>,
    make: impl FnOnce() -> FloatTensor<B>,
) {
    if let Some(operand) = operand {
        gradients.register::<B>(operand, make());
    }
}

/// Takes the bias, if there is one; nothing if it is of another kind than the rest.
fn optional<B: Known>(bias: Option<&Tensor<1>>) -> Option<Option<Operand<B>>> {
    bias.map_or(Some(None), |bias| B::operand(bias).map(Some))
}

fn convolve<B: Known>(
    geometry: Geometry,
    input: &Tensor<2>,
    weight: &Tensor<1>,
    bias: Option<&Tensor<1>>,
) -> Option<Tensor<4>> {
    let device = input.device().without_autodiff();
    let [n_samples, _] = input.dims();
    let [filters, height, width] = geometry.output;
    let table = B::indices(table(geometry, &device))?;
    let (input, weight, bias) = (
        B::operand(input)?,
        B::operand(weight)?,
        optional::<B>(bias)?,
    );
    let matrix = reshape::<B>(weight.values.clone(), &[filters, geometry.patch()]);
    let samples = padded::<B>(geometry, input.values.clone());
    let patches = reshape::<B>(
        B::float_select(samples, 1, table),
        &[n_samples * geometry.places(), geometry.patch()],
    );
    let mut maps = B::float_matmul(patches.clone(), transpose::<B>(matrix.clone()));
    if let Some(bias) = &bias {
        maps = B::float_add(maps, reshape::<B>(bias.values.clone(), &[1, filters]));
    }
    let output = reshape::<B>(maps, &[n_samples, height, width, filters]);
    let state = ConvState {
        geometry,
        patches,
        weight: matrix,
    };
    let made = match bias {
        Some(bias) => record([input, weight, bias], ConvStep, state, output),
        None => record([input, weight], ConvStep, state, output),
    };
    let output: Tensor<4> = B::tensor(made);
    Some(output.permute([0, 3, 1, 2]))
}

/// Appends a zero to every sample of a convolution with padding: what lies outside of its input.
fn padded<B: Backend>(geometry: Geometry, input: FloatTensor<B>) -> FloatTensor<B> {
    if geometry.padding == [0, 0] {
        return input;
    }
    let shape = Shape::from(vec![input.shape()[0], 1]);
    let zeros = B::float_zeros(shape, &input.device(), FloatDType::F32);
    B::float_cat(vec![input, zeros], 1)
}

impl Geometry {
    /// Returns how many places the output has.
    const fn places(&self) -> usize {
        self.output[1] * self.output[2]
    }

    /// Returns how many numbers a place is made from.
    const fn patch(&self) -> usize {
        self.input[0] * self.kernel * self.kernel
    }

    /// Returns where in a sample each number of each patch is; what is outside is the number after the last one.
    fn positions(&self) -> Vec<i32> {
        let ([channels, height, width], kernel) = (self.input, self.kernel);
        let (area, columns) = (kernel * kernel, self.output[2]);
        let at = |place: usize, part: usize| {
            let (channel, offset) = (part / area, part % area);
            let y = (place / columns * self.stride + offset / kernel).checked_sub(self.padding[0]);
            let x = (place % columns * self.stride + offset % kernel).checked_sub(self.padding[1]);
            let inside = y.zip(x).filter(|(y, x)| *y < height && *x < width);
            inside.map_or(channels * height * width, |(y, x)| {
                (channel * height + y) * width + x
            })
        };
        let places = 0..self.places();
        places
            .flat_map(|place| (0..self.patch()).map(move |part| at(place, part) as i32))
            .collect()
    }

    /// Returns the rows and columns of the input that no place of the output reaches.
    fn unreached(&self) -> [usize; 2] {
        [0, 1].map(|side| {
            let reached = (self.output[1 + side] - 1) * self.stride + self.kernel;
            (self.input[1 + side] + 2 * self.padding[side]).saturating_sub(reached)
        })
    }
}

/// The tables of positions that are on a device already.
static TABLES: Mutex<Vec<(Geometry, Device, Tensor<1, Int>)>> = Mutex::new(Vec::new());

fn table(geometry: Geometry, device: &Device) -> Tensor<1, Int> {
    let mut tables = TABLES.lock().unwrap_or_else(PoisonError::into_inner);
    let known = tables
        .iter()
        .find(|(of, on, _)| (of, on) == (&geometry, device));
    if let Some((_, _, table)) = known {
        return table.clone();
    }
    let positions = geometry.positions();
    let count = positions.len();
    let table = Tensor::from_data(TensorData::new(positions, [count]), device);
    tables.push((geometry, device.clone(), table.clone()));
    table
}

#[derive(Debug)]
struct ConvStep;

#[derive(Debug, Clone)]
struct ConvState<B: Backend> {
    geometry: Geometry,
    /// `[batch·P, C·k·k]`.
    patches: FloatTensor<B>,
    /// `[F, C·k·k]`.
    weight: FloatTensor<B>,
}

impl<B: Backend, const N: usize> Backward<B, N> for ConvStep {
    type State = ConvState<B>;

    fn backward(self, ops: Ops<ConvState<B>, N>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let ConvState {
            geometry,
            patches,
            weight,
        } = ops.state;
        let (filters, places, patch) = (geometry.output[0], geometry.places(), geometry.patch());
        let gradient = gradients.consume::<B>(&ops.node);
        let n_samples = gradient.shape()[0];
        let [to_input, to_weight, to_bias] =
            parents(ops.parents.map(|parent| parent.map(|node| node.id)));
        let rows = reshape::<B>(gradient.clone(), &[n_samples * places, filters]);
        register::<B>(gradients, to_bias, || {
            sum_rows::<B>(rows.clone(), n_samples)
        });
        register::<B>(gradients, to_weight, || {
            // One long product would be one row of sums per thread; one per sample is many short ones.
            let rows = reshape::<B>(rows, &[n_samples, places, filters]);
            let patches = reshape::<B>(patches, &[n_samples, places, patch]);
            let each = B::float_matmul(transpose::<B>(rows), patches);
            let each = reshape::<B>(each, &[n_samples, filters * patch]);
            reshape::<B>(B::float_sum_dim(each, 0), &[filters * patch])
        });
        register::<B>(gradients, to_input, || {
            input_gradient::<B>(geometry, weight, gradient)
        });
    }
}

/// Names the operands that want a gradient: input, weight and, if there is one, bias.
fn parents<const N: usize>(of: [Option<NodeId>; N]) -> [Option<NodeId>; 3] {
    let mut of = of.into_iter();
    [(); 3].map(|()| of.next().flatten())
}

/// Returns the gradient of a convolution's input, `[batch, C·H·W]`.
fn input_gradient<B: Backend>(
    geometry: Geometry,
    weight: FloatTensor<B>,
    gradient: FloatTensor<B>,
) -> FloatTensor<B> {
    let (n_samples, [channels, height, width]) = (gradient.shape()[0], geometry.input);
    let kernel = geometry.kernel;
    let weight = reshape::<B>(weight, &[geometry.output[0], channels, kernel, kernel]);
    let options = ConvTransposeOptions::new(
        [geometry.stride; 2],
        geometry.padding,
        geometry.unreached(),
        [1, 1],
        1,
    );
    let gradient = B::float_permute(gradient, &[0, 3, 1, 2]);
    let found = B::conv_transpose2d(gradient, weight, None, options);
    reshape::<B>(found, &[n_samples, channels * height * width])
}

fn multiply<B: Known>(
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

#[cfg(test)]
mod tests {
    use burn::backend::Flex;

    use super::super::layer::{Activation, Conv, Convolution};
    use super::*;
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
                output.reshape([4, layer.output().iter().product()])
                    + bias.sum().reshape([1, 1]) * 0.0
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
}
