//! The forward pass of a fully connected layer.

// Loops over rows and vectors index several arrays at once.
#![allow(clippy::needless_range_loop)]

use super::{Activation, Layer, Operand, pack, share_out, store_present};
use crate::tile::{self, Lines, MAX_ROWS, Registers, Span, Tile, padded};
use pulp::{Simd, WithSimd};

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
        let compute = |input: &[f32], columns: Span, output: &mut [f32]| {
            let task = Forward {
                layer: self,
                input,
                weight,
                bias,
                columns,
                output,
            };
            tile::dispatch(width, task);
        };
        share_out(
            Operand {
                values: input,
                width: self.inputs,
            },
            self.outputs,
            &mut output,
            compute,
        );
        if self.activation == Activation::Relu {
            // Not `max`, which would turn a NaN into 0 and hide that a run diverges.
            output
                .iter_mut()
                .for_each(|value| *value = if *value <= 0.0 { 0.0 } else { *value });
        }
        output
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
            let panel_lines = if packs {
                let lines = &mut lines[..inputs * panel.count];
                pack(self.weight, outputs, panel.start, panel.count, lines);
                Lines {
                    values: lines,
                    stride: panel.count,
                }
            } else {
                Lines {
                    values: &self.weight[panel.start..],
                    stride: outputs,
                }
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
