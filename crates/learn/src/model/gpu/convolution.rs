//! Convolutions: patches of the input, gathered by a table of positions, times the weights.

use std::sync::{Mutex, PoisonError};

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::ops::ConvTransposeOptions;
use burn::tensor::{Device, FloatDType, Int, Shape, Tensor, TensorData};

use super::Geometry;
use super::tape::{Known, optional, parents, record, register, reshape, transpose};

pub(super) fn convolve<B: Known>(
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
    pub(super) const fn places(&self) -> usize {
        self.output[1] * self.output[2]
    }

    /// Returns how many numbers a place is made from.
    pub(super) const fn patch(&self) -> usize {
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

/// Adds up the rows of `[groups·n, width]`, first within the groups.
fn sum_rows<B: Backend>(rows: FloatTensor<B>, groups: usize) -> FloatTensor<B> {
    let shape = rows.shape();
    let (n_rows, width) = (shape[0], shape[1]);
    let grouped = reshape::<B>(rows, &[groups, n_rows / groups, width]);
    let sums = reshape::<B>(B::float_sum_dim(grouped, 1), &[groups, width]);
    reshape::<B>(B::float_sum_dim(sums, 0), &[width])
}
