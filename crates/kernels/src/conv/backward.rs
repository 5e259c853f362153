//! The backward pass of a convolution block.
//!
//! It goes from the output back to the sums of the convolution. Then it adds the weight gradients of a few samples at a
//! time, while those sums are in a near cache.
// Loops over lanes and rows index several arrays at once.
#![allow(clippy::needless_range_loop)]

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::forward::Trace;
use super::{Block, CUT, LANES, lanes_at, window};
use crate::Wants;
use crate::layout::transpose;
use crate::tile::{self, Lines, Registers, Span, Tile, padded};

/// Largest number of samples whose weight gradients one thread adds up. The sums of groups are added in order.
const GROUP: usize = 32;

/// Fewest samples of a batch that is divided into two groups.
const SHARED: usize = 8;

/// Fewest positions that a weight gradient is summed over at a time, so that its tiles are seldom stored.
const POSITIONS: usize = 256;

/// The gradients of a block.
#[derive(Debug, Clone)]
pub struct Gradients {
    /// `[batch, C·H·W]`, if wanted.
    pub input: Option<Vec<f32>>,
    /// `[F, C, kernel, kernel]`.
    pub weight: Vec<f32>,
    /// `[F]`.
    pub bias: Vec<f32>,
}

impl Block {
    /// Returns the gradients, from the gradient `[batch, F·H'·W']` of the output.
    pub fn backward(
        &self,
        trace: &Trace,
        weight: &[f32],
        gradient: &[f32],
        wants_input: Wants,
    ) -> Gradients {
        let n_samples = gradient.len() / self.n_outputs();
        let (width, channel_width) = (padded(self.filters), padded(self.input[0]));
        let (n_winners, n_input) = (
            self.n_pooled() * width,
            self.input.iter().product::<usize>(),
        );
        let wants_input = wants_input == Wants::InputGradient;
        let mut weights = vec![
            0.0;
            if wants_input {
                self.kernel * self.kernel * self.filters * channel_width
            } else {
                0
            }
        ];
        if wants_input {
            self.pack_backward(weight, &mut weights);
        }
        let mut input = vec![0.0; if wants_input { n_samples * n_input } else { 0 }];
        let size = group_size(n_samples);
        // Each group writes into a piece of its own. Without an input gradient the pieces are empty, and there is still one
        // for each group.
        let pieces: Vec<&mut [f32]> = if wants_input {
            input.chunks_mut(size * n_input).collect()
        } else {
            (0..n_samples.div_ceil(size)).map(|_| &mut [][..]).collect()
        };
        let groups = pieces.into_par_iter().enumerate().map(|(group, input)| {
            let (start, end) = (group * size, n_samples.min((group + 1) * size));
            let gradient = &gradient[start * self.n_outputs()..end * self.n_outputs()];
            let maps = &trace.maps[start * self.n_maps()..end * self.n_maps()];
            let winners = &trace.winners[start * n_winners..end * n_winners];
            self.backward_group(Group {
                gradient,
                maps,
                winners,
                weights: &weights,
                input,
            })
        });
        let sums: Vec<(Vec<f32>, Vec<f32>)> = groups.collect();
        let (weight, bias) = add_up(sums, self.depth() * width, width);
        let weight = self.unpack(&weight);
        Gradients {
            input: wants_input.then_some(input),
            weight,
            bias: bias[..self.filters].to_vec(),
        }
    }

    /// Returns the weight and bias gradients of a group of samples, `[depth][padded filter]` and `[padded filter]`.
    ///
    /// It also writes the input gradients.
    fn backward_group(&self, group: Group<'_>) -> (Vec<f32>, Vec<f32>) {
        let width = padded(self.filters);
        let [rows, row] = self.convolved();
        let n_sums = rows * row * width;
        // Small maps have few positions; then several samples are summed before a tile is stored.
        let at_once = POSITIONS.div_ceil(rows * row).min(GROUP);
        let (mut weight, mut bias) = (vec![0.0; self.depth() * width], vec![0.0; width]);
        let mut sums = vec![0.0; at_once * n_sums];
        let mut scratch = Scratch::new(self);
        let mut inputs = group.input.chunks_mut(self.input.iter().product());
        let n_winners = self.n_pooled() * width;
        let batches = group.gradient.chunks(at_once * self.n_outputs());
        let traces = group
            .maps
            .chunks(at_once * self.n_maps())
            .zip(group.winners.chunks(at_once * n_winners));
        for (gradient, (maps, winners)) in batches.zip(traces) {
            let n_samples = gradient.len() / self.n_outputs();
            for sample in 0..n_samples {
                let gradient = &gradient[sample * self.n_outputs()..][..self.n_outputs()];
                let winners = &winners[sample * n_winners..][..n_winners];
                let sums = &mut sums[sample * n_sums..][..n_sums];
                self.unpool(gradient, winners, sums, &mut bias, &mut scratch);
                if let Some(target) = inputs.next() {
                    self.input_gradient(sums, group.weights, target, &mut scratch);
                }
            }
            tile::dispatch(
                width,
                WeightGradient {
                    block: self,
                    maps,
                    sums: &sums,
                    n_samples,
                    weight: &mut weight,
                },
            );
        }
        (weight, bias)
    }

    /// Writes the gradient of a sample's convolved maps, and adds its bias gradient.
    #[inline]
    fn unpool(
        &self,
        gradient: &[f32],
        winners: &[u8],
        sums: &mut [f32],
        bias: &mut [f32],
        scratch: &mut Scratch,
    ) {
        let unpool = Unpool {
            block: self,
            gradient,
            winners,
            pooled: &mut scratch.pooled,
            sums,
            bias,
        };
        tile::dispatch(padded(self.filters), unpool);
    }

    /// Writes a sample's input gradient.
    #[inline]
    fn input_gradient(
        &self,
        sums: &[f32],
        weights: &[f32],
        target: &mut [f32],
        scratch: &mut Scratch,
    ) {
        let input_gradient = InputGradient {
            block: self,
            sums,
            weights,
            spread: &mut scratch.spread,
            target,
        };
        tile::dispatch(padded(self.input[0]), input_gradient);
    }

    /// Turns maps with the (padded) channels innermost into an image.
    #[inline(always)]
    fn gather(&self, spread: &[f32], stride: usize, target: &mut [f32]) {
        let [channels, height, width] = self.input;
        let [top, left] = self.padding;
        for channel in 0..channels {
            for y in 0..height {
                let start = ((y + top) * (width + 2 * left) + left) * stride + channel;
                let line = &mut target[(channel * height + y) * width..][..width];
                for (value, position) in line.iter_mut().zip(spread[start..].chunks(stride)) {
                    *value = position[0];
                }
            }
        }
    }

    /// Arranges weights as `[ky][kx][filter][padded channel]`.
    fn pack_backward(&self, weight: &[f32], lines: &mut [f32]) {
        let ([channels, ..], area) = (self.input, self.kernel * self.kernel);
        let stride = padded(channels);
        for filter in 0..self.filters {
            let kernels = &weight[filter * channels * area..][..channels * area];
            transpose(
                kernels,
                [channels, area],
                &mut lines[filter * stride..],
                self.filters * stride,
            );
        }
    }

    /// Turns a weight gradient `[ky][kx][channel][padded filter]` into `[filter][channel][ky][kx]`.
    fn unpack(&self, sums: &[f32]) -> Vec<f32> {
        let (channels, area, stride) = (
            self.input[0],
            self.kernel * self.kernel,
            padded(self.filters),
        );
        let mut weight = vec![0.0; self.filters * channels * area];
        for channel in 0..channels {
            for offset in 0..area {
                let line = &sums[(offset * channels + channel) * stride..][..self.filters];
                for (filter, value) in line.iter().enumerate() {
                    weight[(filter * channels + channel) * area + offset] = *value;
                }
            }
        }
        weight
    }
}

/// Adds the sums of all groups in their order, so that the result does not depend on the threads.
fn add_up(
    groups: Vec<(Vec<f32>, Vec<f32>)>,
    n_weights: usize,
    n_biases: usize,
) -> (Vec<f32>, Vec<f32>) {
    let mut groups = groups.into_iter();
    let (mut weight, mut bias) = groups
        .next()
        .unwrap_or_else(|| (vec![0.0; n_weights], vec![0.0; n_biases]));
    for (more_weight, more_bias) in groups {
        weight
            .iter_mut()
            .zip(more_weight)
            .for_each(|(sum, more)| *sum += more);
        bias.iter_mut()
            .zip(more_bias)
            .for_each(|(sum, more)| *sum += more);
    }
    (weight, bias)
}

/// Returns how many samples are in a group. That depends on the batch alone, and so do the sums.
fn group_size(n_samples: usize) -> usize {
    let fewest = if n_samples < SHARED { 1 } else { 2 };
    n_samples
        .div_ceil(n_samples.div_ceil(GROUP).max(fewest))
        .max(1)
}

/// The samples whose gradients one thread computes.
struct Group<'a> {
    gradient: &'a [f32],
    maps: &'a [f32],
    winners: &'a [u8],
    weights: &'a [f32],
    input: &'a mut [f32],
}

/// Where the numbers of one sample are on their way back; every sample overwrites them.
struct Scratch {
    /// The gradient of the pooled maps, with the (padded) filters innermost.
    pooled: Vec<f32>,
    /// The gradient of the padded input, with the (padded) channels innermost.
    spread: Vec<f32>,
}

impl Scratch {
    fn new(block: &Block) -> Self {
        let [channels, height, columns] = block.padded_input();
        Self {
            pooled: vec![0.0; block.n_pooled() * padded(block.filters)],
            spread: vec![0.0; height * columns * padded(channels)],
        }
    }
}

/// Turns the gradient of a sample's output into that of the convolved maps.
struct Unpool<'a> {
    block: &'a Block,
    gradient: &'a [f32],
    winners: &'a [u8],
    pooled: &'a mut [f32],
    sums: &'a mut [f32],
    bias: &'a mut [f32],
}

impl WithSimd for Unpool<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        let Self {
            block,
            gradient,
            winners,
            pooled,
            sums,
            bias,
        } = self;
        let width = padded(block.filters);
        let [_, row] = block.convolved();
        let [_, pooled_row] = block.pooled();
        transpose(gradient, [block.filters, block.n_pooled()], pooled, width);
        let positions = pooled.chunks_exact(width).zip(winners.chunks_exact(width));
        let corners =
            (0..).flat_map(|y| (0..pooled_row).map(move |x| (y * row + x) * block.pool * width));
        for ((gradient, winners), corner) in positions.zip(corners) {
            for start in (0..width).step_by(LANES) {
                let gradient = lanes_at(gradient, start);
                let winners = &winners[start..start + LANES];
                let winners: [u32; LANES] = std::array::from_fn(|lane| u32::from(winners[lane]));
                // Only the winner of a window has a gradient. The others are written as zeros, since `sums` is used again.
                for (number, at) in window(block.pool, row * width, width).enumerate() {
                    let sums = &mut sums[corner + at + start..][..LANES];
                    for lane in 0..LANES {
                        sums[lane] = if winners[lane] == number as u32 {
                            gradient[lane]
                        } else {
                            0.0
                        };
                    }
                }
                // A window that ReLU has cut has no winner, so nothing of it reaches the bias either.
                let bias = &mut bias[start..start + LANES];
                for lane in 0..LANES {
                    bias[lane] += if winners[lane] == u32::from(CUT) {
                        0.0
                    } else {
                        gradient[lane]
                    };
                }
            }
        }
    }
}

/// Adds the weight gradients `[ky][kx][channel][padded filter]` of some samples.
struct WeightGradient<'a> {
    block: &'a Block,
    maps: &'a [f32],
    sums: &'a [f32],
    n_samples: usize,
    weight: &'a mut [f32],
}

impl WithSimd for WeightGradient<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let block = self.block;
        let (channels, width) = (block.input[0], padded(block.filters));
        let run = block.kernel * channels;
        for panel in tile::panel_spans::<S>(width) {
            let vectors = panel.count / S::F32_LANES;
            for ky in 0..block.kernel {
                for numbers in tile::row_spans::<S>(run, vectors) {
                    let weight =
                        &mut self.weight[(ky * run + numbers.start) * width + panel.start..];
                    let (maps, sums, n_samples) = (self.maps, self.sums, self.n_samples);
                    let tile = WeightTile {
                        block,
                        maps,
                        sums,
                        n_samples,
                        ky,
                        first: numbers.start,
                        panel,
                        weight,
                    };
                    tile::run(simd, numbers.count, vectors, tile);
                }
            }
        }
    }
}

struct WeightTile<'a> {
    block: &'a Block,
    maps: &'a [f32],
    sums: &'a [f32],
    n_samples: usize,
    ky: usize,
    first: usize,
    panel: Span,
    weight: &'a mut [f32],
}

impl Tile for WeightTile<'_> {
    #[inline(always)]
    fn run<S: Simd, const M: usize, const V: usize>(self, simd: S) {
        let [channels, _, columns] = self.block.padded_input();
        let [rows, row] = self.block.convolved();
        let width = padded(self.block.filters);
        let mut tile: Registers<S, M, V> =
            std::array::from_fn(|number| tile::load::<S, V>(&self.weight[number * width..]));
        for sample in 0..self.n_samples {
            let maps = &self.maps[sample * self.block.n_maps()..][..self.block.n_maps()];
            let sums = &self.sums[sample * rows * row * width..][..rows * row * width];
            for y in 0..rows {
                let maps = &maps[(y + self.ky) * columns * channels + self.first..];
                let sums = &sums[y * row * width + self.panel.start..];
                let (left, right) = (
                    Lines {
                        values: maps,
                        stride: channels,
                    },
                    Lines {
                        values: sums,
                        stride: width,
                    },
                );
                tile = tile::outer(simd, tile, left, right, row);
            }
        }
        for number in 0..M {
            tile::store::<S, V>(&mut self.weight[number * width..], tile[number]);
        }
    }
}

/// Computes the input gradient of one sample.
struct InputGradient<'a> {
    block: &'a Block,
    sums: &'a [f32],
    weights: &'a [f32],
    spread: &'a mut [f32],
    target: &'a mut [f32],
}

impl WithSimd for InputGradient<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self {
            block,
            sums,
            weights,
            spread,
            target,
        } = self;
        let [channels, _, columns] = block.padded_input();
        let [rows, row] = block.convolved();
        let (width, stride) = (padded(block.filters), padded(channels));
        spread.fill(0.0);
        // Every pixel of the maps adds its weights to each input under its kernel: one product per offset in the kernel.
        for offset in 0..block.kernel * block.kernel {
            let weights = &weights[offset * block.filters * stride..][..block.filters * stride];
            let (ky, kx) = (offset / block.kernel, offset % block.kernel);
            for panel in tile::panel_spans::<S>(stride) {
                let vectors = panel.count / S::F32_LANES;
                for y in 0..rows {
                    for pixels in tile::row_spans::<S>(row, vectors) {
                        let sums = &sums[(y * row + pixels.start) * width..];
                        let at = ((y + ky) * columns + pixels.start + kx) * stride + panel.start;
                        let (weights, target) = (&weights[panel.start..], &mut spread[at..]);
                        let tile = InputTile {
                            sums,
                            width,
                            filters: block.filters,
                            weights,
                            target,
                            stride,
                        };
                        tile::run(simd, pixels.count, vectors, tile);
                    }
                }
            }
        }
        block.gather(spread, stride, target);
    }
}

struct InputTile<'a> {
    sums: &'a [f32],
    width: usize,
    filters: usize,
    weights: &'a [f32],
    target: &'a mut [f32],
    stride: usize,
}

impl Tile for InputTile<'_> {
    #[inline(always)]
    fn run<S: Simd, const M: usize, const V: usize>(self, simd: S) {
        let rows = std::array::from_fn(|row| &self.sums[row * self.width..][..self.filters]);
        let tile: Registers<S, M, V> =
            std::array::from_fn(|row| tile::load::<S, V>(&self.target[row * self.stride..]));
        let tile = tile::rows(simd, tile, rows, self.weights, self.stride);
        for row in 0..M {
            tile::store::<S, V>(&mut self.target[row * self.stride..], tile[row]);
        }
    }
}
