//! The backward pass of a fully connected layer.
//!
//! It goes from the output back to the sums. Bias, weights and inputs each have their gradient from those of the sums.

// Loops over rows and vectors index several arrays at once.
#![allow(clippy::needless_range_loop)]

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::{Activation, Layer, Operand, pack, share, share_out, store_present};
use crate::Wants;
use crate::layout::transpose;
use crate::tile::{self, Lines, MAX_ROWS, Registers, Span, Tile, padded};

/// The gradients of a layer.
#[derive(Debug, Clone)]
pub struct Gradients {
    /// `[batch, inputs]`, if wanted.
    pub input: Option<Vec<f32>>,
    /// `[inputs, outputs]`.
    pub weight: Vec<f32>,
    /// `[outputs]`.
    pub bias: Vec<f32>,
}

impl Layer {
    /// Returns the gradients, from the input and output of a forward pass and the gradient of that output.
    pub fn backward(
        &self,
        input: &[f32],
        output: &[f32],
        weight: &[f32],
        gradient: &[f32],
        wants_input: Wants,
    ) -> Gradients {
        let passed = self.undo_activation(output, gradient);
        let input_gradient =
            (wants_input == Wants::InputGradient).then(|| self.input_gradient(weight, &passed));
        Gradients {
            input: input_gradient,
            weight: self.weight_gradient(input, &passed),
            bias: self.bias_gradient(&passed),
        }
    }

    /// Returns the gradient of the sums, from that of the output.
    fn undo_activation(&self, output: &[f32], gradient: &[f32]) -> Vec<f32> {
        match self.activation {
            // ReLU is undone by the output alone: what it cut is not positive there.
            Activation::Relu => {
                let pass =
                    |(gradient, output): (&f32, &f32)| if *output <= 0.0 { 0.0 } else { *gradient };
                gradient.iter().zip(output).map(pass).collect()
            }
            Activation::Identity => gradient.to_vec(),
        }
    }

    fn bias_gradient(&self, gradient: &[f32]) -> Vec<f32> {
        let mut bias = vec![0.0; self.outputs];
        for line in gradient.chunks_exact(self.outputs) {
            bias.iter_mut()
                .zip(line)
                .for_each(|(sum, value)| *sum += value);
        }
        bias
    }

    fn weight_gradient(&self, input: &[f32], gradient: &[f32]) -> Vec<f32> {
        let mut weight = vec![0.0; self.inputs * self.outputs];
        // Every thread has rows of its own, so no sum is shared and the order of every sum is fixed.
        let rows = share(self.inputs);
        let shares = weight.par_chunks_mut(rows * self.outputs).enumerate();
        shares.for_each(|(number, weight)| {
            let task = WeightGradient {
                layer: self,
                input,
                gradient,
                first: number * rows,
                weight,
            };
            tile::dispatch(padded(self.outputs), task);
        });
        weight
    }

    fn input_gradient(&self, weight: &[f32], gradient: &[f32]) -> Vec<f32> {
        let n_samples = gradient.len() / self.outputs;
        let mut target = vec![0.0; n_samples * self.inputs];
        let compute = |gradient: &[f32], columns: Span, target: &mut [f32]| {
            let task = InputGradient {
                layer: self,
                weight,
                gradient,
                columns,
                target,
            };
            tile::dispatch(padded(gradient.len() / self.outputs), task);
        };
        share_out(
            Operand {
                values: gradient,
                width: self.outputs,
            },
            self.inputs,
            &mut target,
            compute,
        );
        target
    }
}

/// Computes the weight gradients of some inputs, beginning with the input `first`.
struct WeightGradient<'a> {
    layer: &'a Layer,
    input: &'a [f32],
    gradient: &'a [f32],
    first: usize,
    weight: &'a mut [f32],
}

impl WithSimd for WeightGradient<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Layer {
            inputs, outputs, ..
        } = *self.layer;
        let (n_samples, width) = (self.input.len() / inputs, padded(outputs));
        let n_rows = self.weight.len() / outputs;
        // Both operands are packed once and read many times: the gradient by every span of inputs, a span's inputs by
        // every panel.
        let mut panels = vec![0.0; n_samples * width];
        for panel in tile::panel_spans::<S>(width).filter(|panel| panel.start < outputs) {
            let lines = &mut panels[n_samples * panel.start..][..n_samples * panel.count];
            pack(self.gradient, outputs, panel.start, panel.count, lines);
        }
        let mut columns = vec![0.0; n_samples * MAX_ROWS];
        for span in tile::row_spans::<S>(n_rows, width.div_ceil(S::F32_LANES).min(2)) {
            let columns = &mut columns[..n_samples * span.count];
            pack(
                self.input,
                inputs,
                self.first + span.start,
                span.count,
                columns,
            );
            for panel in tile::panel_spans::<S>(width).filter(|panel| panel.start < outputs) {
                let left = Lines {
                    values: columns,
                    stride: span.count,
                };
                let right = Lines {
                    values: &panels[n_samples * panel.start..],
                    stride: panel.count,
                };
                let weight = &mut self.weight[span.start * outputs + panel.start..];
                let present = panel.count.min(outputs - panel.start);
                let tile = WeightTile {
                    left,
                    right,
                    n_samples,
                    weight,
                    outputs,
                    present,
                };
                tile::run(simd, span.count, panel.count / S::F32_LANES, tile);
            }
        }
    }
}

struct WeightTile<'a> {
    left: Lines<'a>,
    right: Lines<'a>,
    n_samples: usize,
    weight: &'a mut [f32],
    outputs: usize,
    present: usize,
}

impl Tile for WeightTile<'_> {
    #[inline(always)]
    fn run<S: Simd, const M: usize, const V: usize>(self, simd: S) {
        let tile: Registers<S, M, V> = tile::filled(simd, None);
        let tile = tile::outer(simd, tile, self.left, self.right, self.n_samples);
        for row in 0..M {
            store_present(
                &mut self.weight[row * self.outputs..],
                self.present,
                tile[row],
                simd,
            );
        }
    }
}

/// Computes the gradients of a span of inputs.
struct InputGradient<'a> {
    layer: &'a Layer,
    weight: &'a [f32],
    gradient: &'a [f32],
    columns: Span,
    /// `[batch, columns]`.
    target: &'a mut [f32],
}

impl WithSimd for InputGradient<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (
            Layer { outputs, .. },
            Span {
                start,
                count: inputs,
            },
        ) = (*self.layer, self.columns);
        let n_samples = self.gradient.len() / outputs;
        let width = padded(n_samples);
        // Transposed, a line holds one output of all samples: the samples become the vectors.
        let mut gradient = vec![0.0; outputs * width];
        transpose(self.gradient, [n_samples, outputs], &mut gradient, width);
        let mut panels = vec![0.0; outputs * width];
        for panel in tile::panel_spans::<S>(width).filter(|panel| panel.start < n_samples) {
            pack(
                &gradient,
                width,
                panel.start,
                panel.count,
                &mut panels[panel.start * outputs..][..panel.count * outputs],
            );
        }
        for span in tile::row_spans::<S>(inputs, width.div_ceil(S::F32_LANES).min(2)) {
            let weight = &self.weight[(start + span.start) * outputs..];
            for panel in tile::panel_spans::<S>(width).filter(|panel| panel.start < n_samples) {
                let lines = Lines {
                    values: &panels[panel.start * outputs..],
                    stride: panel.count,
                };
                let present = panel.count.min(n_samples - panel.start);
                let target = &mut self.target[panel.start * inputs + span.start..];
                let tile = InputTile {
                    weight,
                    outputs,
                    gradient: lines,
                    target,
                    inputs,
                    present,
                };
                tile::run(simd, span.count, panel.count / S::F32_LANES, tile);
            }
        }
    }
}

struct InputTile<'a> {
    weight: &'a [f32],
    outputs: usize,
    gradient: Lines<'a>,
    target: &'a mut [f32],
    inputs: usize,
    present: usize,
}

/// Width of the widest tile in numbers: two of the longest vectors.
const WIDEST: usize = 32;

impl Tile for InputTile<'_> {
    #[inline(always)]
    fn run<S: Simd, const M: usize, const V: usize>(self, simd: S) {
        let rows = std::array::from_fn(|row| &self.weight[row * self.outputs..][..self.outputs]);
        let tile: Registers<S, M, V> = tile::filled(simd, None);
        let tile = tile::rows(simd, tile, rows, self.gradient.values, self.gradient.stride);
        // The tile is `[input][sample]` and the target `[sample][input]`: transposed by way of the stack.
        let mut columns = [[0.0; WIDEST]; M];
        for row in 0..M {
            tile::store::<S, V>(&mut columns[row], tile[row]);
        }
        for sample in 0..self.present.min(WIDEST) {
            let line = &mut self.target[sample * self.inputs..][..M];
            for row in 0..M {
                line[row] = columns[row][sample];
            }
        }
    }
}
