//! The input gradient: every pixel of the maps adds its weights to each input under its kernel.

// Loops over lanes and rows index several arrays at once.
#![allow(clippy::needless_range_loop)]

use pulp::{Simd, WithSimd};

use super::Scratch;
use crate::conv::Block;
use crate::layout::transpose;
use crate::tile::{self, Registers, Tile, padded};

impl Block {
    /// Writes a sample's input gradient.
    #[inline]
    pub(super) fn input_gradient(
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
    pub(super) fn pack_backward(&self, weight: &[f32], lines: &mut [f32]) {
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
