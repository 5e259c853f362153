//! A fully connected layer: product with the weights, bias, optional ReLU. Forward pass and gradients.
//!
//! Weights are `[inputs][outputs]`, the transpose of PyTorch's. So the forward pass reads them in order, and the weight
//! gradient is an outer product. The input gradient is computed for many samples side by side, with the samples as
//! vectors. So it too reads the weights in order.

// Loops over rows and vectors index several arrays at once.
#![allow(clippy::needless_range_loop)]

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use crate::Wants;
use crate::layout::transpose;
use crate::tile::{self, Lines, MAX_ROWS, Registers, Span, Tile, padded};

/// The function that follows the product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `max(x, 0)`; NaN stays NaN.
    Relu,
    /// No function.
    Identity,
}

/// The shape of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layer {
    /// Number of input features.
    pub inputs: usize,
    /// Number of output features.
    pub outputs: usize,
    /// The function that follows the product.
    pub activation: Activation,
}

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
    /// Returns the outputs `[batch, outputs]` of a batch `[batch, inputs]`, with weights `[inputs, outputs]`.
    pub fn forward(&self, input: &[f32], weight: &[f32], bias: Option<&[f32]>) -> Vec<f32> {
        debug_assert_eq!(
            weight.len(),
            self.inputs * self.outputs,
            "weights have the layer's shape"
        );
        let n_samples = input.len() / self.inputs;
        let width = padded(self.outputs);
        let mut padded_bias = vec![0.0; width];
        if let Some(bias) = bias {
            padded_bias[..self.outputs].copy_from_slice(bias);
        }
        let (bias, mut output) = (&padded_bias[..], vec![0.0; n_samples * self.outputs]);
        // Threads share the samples of a narrow layer and the columns of a wide one: small batches have few samples.
        if self.outputs < 2 * LEAST_COLUMNS {
            let share = share(n_samples);
            let shares = output
                .par_chunks_mut(share * self.outputs)
                .zip(input.par_chunks(share * self.inputs));
            shares.for_each(|(output, input)| {
                let columns = Span {
                    start: 0,
                    count: self.outputs,
                };
                tile::dispatch(
                    width,
                    Forward {
                        layer: self,
                        input,
                        weight,
                        bias,
                        columns,
                        output,
                    },
                );
            });
        } else {
            by_columns(n_samples, self.outputs, &mut output, |columns, output| {
                tile::dispatch(
                    width,
                    Forward {
                        layer: self,
                        input,
                        weight,
                        bias,
                        columns,
                        output,
                    },
                );
            });
        }
        if self.activation == Activation::Relu {
            // Not `max`, which would turn a NaN into 0 and hide that a run diverges.
            output
                .iter_mut()
                .for_each(|value| *value = if *value <= 0.0 { 0.0 } else { *value });
        }
        output
    }

    /// Returns the gradients, from the input and output of a forward pass and the gradient of that output.
    pub fn backward(
        &self,
        input: &[f32],
        output: &[f32],
        weight: &[f32],
        gradient: &[f32],
        wants_input: Wants,
    ) -> Gradients {
        let n_samples = input.len() / self.inputs;
        // ReLU is undone by the output alone: what it cut is not positive there.
        let passed: Vec<f32> = match self.activation {
            Activation::Relu => {
                let pass =
                    |(gradient, output): (&f32, &f32)| if *output <= 0.0 { 0.0 } else { *gradient };
                gradient.iter().zip(output).map(pass).collect()
            }
            Activation::Identity => gradient.to_vec(),
        };
        let mut bias = vec![0.0; self.outputs];
        for line in passed.chunks_exact(self.outputs) {
            bias.iter_mut()
                .zip(line)
                .for_each(|(sum, value)| *sum += value);
        }
        let mut weight_gradient = vec![0.0; self.inputs * self.outputs];
        let gradient = &passed[..];
        // Every thread has rows of its own, so no sum is shared and the order of every sum is fixed.
        let rows = share(self.inputs);
        weight_gradient
            .par_chunks_mut(rows * self.outputs)
            .enumerate()
            .for_each(|(number, weight)| {
                let first = number * rows;
                tile::dispatch(
                    padded(self.outputs),
                    WeightGradient {
                        layer: self,
                        input,
                        gradient,
                        first,
                        weight,
                    },
                );
            });
        let input = (wants_input == Wants::InputGradient).then(|| {
            let mut target = vec![0.0; n_samples * self.inputs];
            if self.inputs < 2 * LEAST_COLUMNS {
                let share = share(n_samples);
                let shares = target
                    .par_chunks_mut(share * self.inputs)
                    .zip(gradient.par_chunks(share * self.outputs));
                shares.for_each(|(target, gradient)| {
                    let (width, columns) = (
                        padded(gradient.len() / self.outputs),
                        Span {
                            start: 0,
                            count: self.inputs,
                        },
                    );
                    tile::dispatch(
                        width,
                        InputGradient {
                            layer: self,
                            weight,
                            gradient,
                            columns,
                            target,
                        },
                    );
                });
            } else {
                by_columns(n_samples, self.inputs, &mut target, |columns, target| {
                    tile::dispatch(
                        padded(n_samples),
                        InputGradient {
                            layer: self,
                            weight,
                            gradient,
                            columns,
                            target,
                        },
                    );
                });
            }
            target
        });
        Gradients {
            input,
            weight: weight_gradient,
            bias,
        }
    }
}

/// Returns how many of `n_rows` rows each thread takes. The sums of a row do not depend on that.
fn share(n_rows: usize) -> usize {
    n_rows
        .div_ceil(rayon::current_num_threads())
        .max(LEAST_SHARE)
}

/// Fewest rows that are worth another thread, because each thread packs the other operand anew.
const LEAST_SHARE: usize = 32;

/// Computes a result whose many columns are shared out among threads.
///
/// Each thread computes `[rows, its columns]`, and a copy brings them into place. So each thread reads only its share of
/// the weights, which are most of what is read in small batches. The sums of a column do not depend on the threads.
fn by_columns(
    rows: usize,
    columns: usize,
    result: &mut [f32],
    compute: impl Fn(Span, &mut [f32]) + Sync,
) {
    let threads = rayon::current_num_threads();
    if threads == 1 {
        return compute(
            Span {
                start: 0,
                count: columns,
            },
            result,
        );
    }
    // Whole panels per thread: then panels begin at the same columns whatever the number of threads.
    let share = columns.div_ceil(threads).next_multiple_of(LEAST_COLUMNS);
    let shares = (0..columns.div_ceil(share)).into_par_iter().map(|number| {
        let start = number * share;
        let span = Span {
            start,
            count: share.min(columns - start),
        };
        let mut part = vec![0.0; rows * span.count];
        compute(span, &mut part);
        (span, part)
    });
    for (Span { start, count }, part) in shares.collect::<Vec<_>>() {
        for (line, part) in result
            .chunks_exact_mut(columns)
            .zip(part.chunks_exact(count))
        {
            line[start..start + count].copy_from_slice(part);
        }
    }
}

/// Fewest columns that are worth another thread. A multiple of the widest panel, so that panels begin at the same columns
/// with any number of threads.
const LEAST_COLUMNS: usize = 64;

/// Copies columns of a matrix into lines of `count` numbers, and fills up with zeros.
#[inline(always)]
fn pack(source: &[f32], columns: usize, start: usize, count: usize, lines: &mut [f32]) {
    let present = count.min(columns - start);
    for (line, source) in lines
        .chunks_exact_mut(count)
        .zip(source.chunks_exact(columns))
    {
        line[..present].copy_from_slice(&source[start..start + present]);
        line[present..].fill(0.0);
    }
}

/// Computes a span of columns of the output. The span begins where a panel begins.
struct Forward<'a> {
    layer: &'a Layer,
    input: &'a [f32],
    weight: &'a [f32],
    bias: &'a [f32],
    columns: Span,
    /// `[batch, columns]`.
    output: &'a mut [f32],
}

impl WithSimd for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Layer {
            inputs, outputs, ..
        } = *self.layer;
        let (n_samples, width, Span { start, count }) =
            (self.input.len() / inputs, padded(outputs), self.columns);
        // Packing costs a pass over the weights. It pays where many samples read them again, because lines far apart in
        // memory are slow. It is needed where a line is incomplete, because vectors would read beyond it.
        let packs = width != outputs || n_samples > 2 * MAX_ROWS;
        let mut lines = vec![
            0.0;
            if packs {
                inputs * width.min(2 * S::F32_LANES)
            } else {
                0
            }
        ];
        let is_wanted = |panel: &Span| (start..start + count).contains(&panel.start);
        for panel in tile::panel_spans::<S>(width).filter(is_wanted) {
            let vectors = panel.count / S::F32_LANES;
            let panel_lines = match packs {
                true => {
                    let lines = &mut lines[..inputs * panel.count];
                    pack(self.weight, outputs, panel.start, panel.count, lines);
                    Lines {
                        values: lines,
                        stride: panel.count,
                    }
                }
                false => Lines {
                    values: &self.weight[panel.start..],
                    stride: outputs,
                },
            };
            for samples in tile::row_spans::<S>(n_samples, vectors) {
                let input = &self.input[samples.start * inputs..];
                let output = &mut self.output[samples.start * count + panel.start - start..];
                let present = panel.count.min(outputs - panel.start);
                let bias = &self.bias[panel.start..];
                let tile = ForwardTile {
                    input,
                    inputs,
                    weight: panel_lines,
                    bias,
                    output,
                    outputs: count,
                    present,
                };
                tile::run(simd, samples.count, vectors, tile);
            }
        }
    }
}

struct ForwardTile<'a> {
    input: &'a [f32],
    inputs: usize,
    weight: Lines<'a>,
    bias: &'a [f32],
    output: &'a mut [f32],
    outputs: usize,
    present: usize,
}

impl Tile for ForwardTile<'_> {
    #[inline(always)]
    fn run<S: Simd, const M: usize, const V: usize>(self, simd: S) {
        let rows = std::array::from_fn(|row| &self.input[row * self.inputs..][..self.inputs]);
        let tile: Registers<S, M, V> = tile::filled(simd, Some(self.bias));
        let tile = tile::rows(simd, tile, rows, self.weight.values, self.weight.stride);
        for row in 0..M {
            store_present(
                &mut self.output[row * self.outputs..],
                self.present,
                tile[row],
                simd,
            );
        }
    }
}

/// Stores the first `present` numbers of a row; the rest are padding.
#[inline(always)]
fn store_present<S: Simd, const V: usize>(
    values: &mut [f32],
    present: usize,
    row: [S::f32s; V],
    simd: S,
) {
    for (vector, values) in row
        .into_iter()
        .zip(values[..present].chunks_mut(S::F32_LANES))
    {
        match values.len() == S::F32_LANES {
            true => tile::store::<S, 1>(values, [vector]),
            false => simd.partial_store_f32s(values, vector),
        }
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
