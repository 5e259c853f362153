//! The forward pass of a convolution block.
//!
//! It goes by one row of pooling windows at a time. So the sums of a row are still in the fastest cache when they are
//! pooled.
// Loops over lanes and rows index several arrays at once.
#![allow(clippy::needless_range_loop)]

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::{Block, CUT, LANES, lanes_at, window};
use crate::layout::transpose;
use crate::tile::{self, Lines, Registers, Tile, padded};

/// Fewest samples that are worth another thread.
const PIECE: usize = 4;

/// What a forward pass keeps for the backward pass.
#[derive(Debug, Clone)]
pub struct Trace {
    /// The padded inputs, `[batch][height][width][channel]`.
    pub(super) maps: Vec<f32>,
    /// For each output the number of the winning pixel in its window, `[batch][position][padded filter]`.
    pub(super) winners: Vec<u8>,
}

impl Block {
    /// Returns the outputs `[batch, F·H'·W']` of a batch `[batch, C·H·W]`, with weights `[F, C, kernel, kernel]` and bias
    /// `[F]`.
    pub fn forward(&self, input: &[f32], weight: &[f32], bias: &[f32]) -> (Vec<f32>, Trace) {
        debug_assert_eq!(
            weight.len(),
            self.filters * self.depth(),
            "weights have the block's shape"
        );
        let n_samples = input.len() / self.input.iter().product::<usize>();
        let width = padded(self.filters);
        let mut weights = vec![0.0; self.depth() * width];
        tile::dispatch(
            width,
            PackForward {
                block: self,
                weight,
                panels: &mut weights,
            },
        );
        let mut padded_bias = vec![0.0; width];
        padded_bias[..self.filters].copy_from_slice(bias);
        let mut output = vec![0.0; n_samples * self.n_outputs()];
        let mut trace = Trace {
            maps: vec![0.0; n_samples * self.n_maps()],
            winners: vec![0; n_samples * self.n_pooled() * width],
        };
        let samples = (
            output.par_chunks_mut(self.n_outputs()),
            input.par_chunks(self.input.iter().product()),
        );
        let traces = (
            trace.maps.par_chunks_mut(self.n_maps()),
            trace.winners.par_chunks_mut(self.n_pooled() * width),
        );
        let (weights, bias) = (&weights[..], &padded_bias[..]);
        samples
            .into_par_iter()
            .zip(traces.into_par_iter())
            .with_min_len(PIECE)
            .for_each_init(
                || Scratch::new(self),
                |scratch, ((output, input), (maps, winners))| {
                    self.spread(input, maps);
                    tile::dispatch(
                        width,
                        Forward {
                            block: self,
                            maps,
                            weights,
                            bias,
                            winners,
                            output,
                            scratch,
                        },
                    );
                },
            );
        (output, trace)
    }

    /// Turns an image into padded maps with the channels innermost. The padding is zero already.
    fn spread(&self, input: &[f32], maps: &mut [f32]) {
        let [channels, height, width] = self.input;
        let [top, left] = self.padding;
        let columns = width + 2 * left;
        // Without padding at the sides all rows of a map are one matrix, which is transposed at once.
        if left == 0 {
            transpose(
                input,
                [channels, height * width],
                &mut maps[top * columns * channels..],
                channels,
            );
            return;
        }
        for y in 0..height {
            let line = &mut maps[((y + top) * columns + left) * channels..][..width * channels];
            for channel in 0..channels {
                let source = &input[(channel * height + y) * width..][..width];
                for (x, value) in source.iter().enumerate() {
                    line[x * channels + channel] = *value;
                }
            }
        }
    }
}

/// The intermediate results of one sample, which a thread uses again for the next.
struct Scratch {
    /// One row of windows, `[pool][width][padded filter]`.
    sums: Vec<f32>,
    /// The pooled maps, `[position][padded filter]`.
    pooled: Vec<f32>,
}

impl Scratch {
    fn new(block: &Block) -> Self {
        let width = padded(block.filters);
        let [_, row] = block.convolved();
        Self {
            sums: vec![0.0; block.pool * row * width],
            pooled: vec![0.0; block.n_pooled() * width],
        }
    }
}

/// Arranges the weights in panels `[ky][kx][channel][filters of the panel]`.
struct PackForward<'a> {
    block: &'a Block,
    weight: &'a [f32],
    panels: &'a mut [f32],
}

impl WithSimd for PackForward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        let Block {
            filters,
            kernel,
            input: [channels, ..],
            ..
        } = *self.block;
        let (depth, area) = (self.block.depth(), kernel * kernel);
        for panel in tile::panel_spans::<S>(padded(filters)) {
            let lines = &mut self.panels[panel.start * depth..][..panel.count * depth];
            let present = panel.start..filters.min(panel.start + panel.count);
            for channel in 0..channels {
                for offset in 0..area {
                    let line =
                        &mut lines[(offset * channels + channel) * panel.count..][..panel.count];
                    for (value, filter) in line.iter_mut().zip(present.clone()) {
                        *value = self.weight[(filter * channels + channel) * area + offset];
                    }
                }
            }
        }
    }
}

/// The forward pass of one sample.
struct Forward<'a> {
    block: &'a Block,
    maps: &'a [f32],
    weights: &'a [f32],
    bias: &'a [f32],
    winners: &'a mut [u8],
    output: &'a mut [f32],
    scratch: &'a mut Scratch,
}

impl WithSimd for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self {
            block,
            maps,
            weights,
            bias,
            winners,
            output,
            scratch,
        } = self;
        let width = padded(block.filters);
        let [_, row] = block.convolved();
        let [pooled_rows, pooled_row] = block.pooled();
        for y in 0..pooled_rows {
            for in_window in 0..block.pool {
                let sums = &mut scratch.sums[in_window * row * width..][..row * width];
                convolve_row(
                    simd,
                    block,
                    maps,
                    weights,
                    bias,
                    y * block.pool + in_window,
                    sums,
                );
            }
            for x in 0..pooled_row {
                let at = (y * pooled_row + x) * width;
                let (largest, winners) = (
                    &mut scratch.pooled[at..][..width],
                    &mut winners[at..][..width],
                );
                pool(
                    block,
                    &scratch.sums[x * block.pool * width..],
                    largest,
                    winners,
                );
            }
        }
        // Back to the layout between layers, filter by filter; the padded filters are left out here.
        let n_pooled = block.n_pooled();
        for filter in 0..block.filters {
            let line = &mut output[filter * n_pooled..][..n_pooled];
            for (value, position) in line.iter_mut().zip(scratch.pooled.chunks_exact(width)) {
                *value = position[filter];
            }
        }
    }
}

/// Computes one row of the convolved maps, `[x][padded filter]`.
#[inline(always)]
fn convolve_row<S: Simd>(
    simd: S,
    block: &Block,
    maps: &[f32],
    weights: &[f32],
    bias: &[f32],
    y: usize,
    sums: &mut [f32],
) {
    let [channels, _, columns] = block.padded_input();
    let [_, row] = block.convolved();
    let (run, line) = (block.kernel * channels, columns * channels);
    let width = padded(block.filters);
    for panel in tile::panel_spans::<S>(width) {
        let vectors = panel.count / S::F32_LANES;
        let weights = &weights[panel.start * block.depth()..][..panel.count * block.depth()];
        for pixels in tile::row_spans::<S>(row, vectors) {
            let maps = &maps[y * line + pixels.start * channels..];
            let sums = &mut sums[pixels.start * width + panel.start..];
            let bias = &bias[panel.start..];
            let patch = Patch {
                maps,
                line,
                pixel: channels,
                run,
                n_lines: block.kernel,
            };
            tile::run(
                simd,
                pixels.count,
                vectors,
                ConvolveTile {
                    patch,
                    weights,
                    bias,
                    sums,
                    width,
                },
            );
        }
    }
}

/// Where the patches of neighbouring pixels lie: `n_lines` runs of `run` numbers, `line` apart; pixels are `pixel` apart.
#[derive(Clone, Copy)]
struct Patch<'a> {
    maps: &'a [f32],
    line: usize,
    pixel: usize,
    run: usize,
    n_lines: usize,
}

struct ConvolveTile<'a> {
    patch: Patch<'a>,
    weights: &'a [f32],
    bias: &'a [f32],
    sums: &'a mut [f32],
    width: usize,
}

impl Tile for ConvolveTile<'_> {
    #[inline(always)]
    fn run<S: Simd, const M: usize, const V: usize>(self, simd: S) {
        let Patch {
            maps,
            line,
            pixel,
            run,
            n_lines,
        } = self.patch;
        let stride = V * S::F32_LANES;
        let mut tile: Registers<S, M, V> = tile::filled(simd, Some(self.bias));
        for y in 0..n_lines {
            let (maps, weights) = (
                &maps[y * line..],
                &self.weights[y * run * stride..][..run * stride],
            );
            if pixel == 1 {
                // With a single channel, the numbers that one weight meets in neighbouring pixels are neighbours too. So a
                // tile is an outer product, which reads its rows as one short line instead of `M` runs.
                let (left, right) = (
                    Lines {
                        values: maps,
                        stride: 1,
                    },
                    Lines {
                        values: weights,
                        stride,
                    },
                );
                tile = tile::outer(simd, tile, left, right, run);
            } else {
                let rows = std::array::from_fn(|row| &maps[row * pixel..][..run]);
                tile = tile::rows(simd, tile, rows, weights, stride);
            }
        }
        for row in 0..M {
            tile::store::<S, V>(&mut self.sums[row * self.width..], tile[row]);
        }
    }
}

/// Pools one window, which begins at the first of `sums`, and applies ReLU.
#[inline(always)]
fn pool(block: &Block, sums: &[f32], largest: &mut [f32], winners: &mut [u8]) {
    let width = largest.len();
    let [_, row] = block.convolved();
    let lanes = largest
        .chunks_exact_mut(LANES)
        .zip(winners.chunks_exact_mut(LANES));
    for (start, (largest, winners)) in (0..width).step_by(LANES).zip(lanes) {
        let mut best = lanes_at(sums, start);
        let mut winner = [0u32; LANES];
        for (number, at) in window(block.pool, row * width, width).enumerate().skip(1) {
            let values = lanes_at(sums, at + start);
            for lane in 0..LANES {
                // `|` and not `||`: without a branch the loop over lanes becomes vector instructions.
                let wins = (values[lane] > best[lane]) | values[lane].is_nan();
                best[lane] = if wins { values[lane] } else { best[lane] };
                winner[lane] = if wins { number as u32 } else { winner[lane] };
            }
        }
        for lane in 0..LANES {
            let is_cut = best[lane] <= 0.0;
            largest[lane] = if is_cut { 0.0 } else { best[lane] };
            winners[lane] = if is_cut { CUT } else { winner[lane] as u8 };
        }
    }
}
