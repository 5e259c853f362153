//! The weight gradients: every offset in the kernel multiplies the maps with the gradient of the sums.

// Loops over lanes and rows index several arrays at once.
#![allow(clippy::needless_range_loop)]

use pulp::{Simd, WithSimd};

use crate::conv::Block;
use crate::tile::{self, Lines, Registers, Span, Tile, padded};

impl Block {
    /// Turns a weight gradient `[ky][kx][channel][padded filter]` into `[filter][channel][ky][kx]`.
    pub(super) fn unpack(&self, sums: &[f32]) -> Vec<f32> {
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

/// Adds the weight gradients `[ky][kx][channel][padded filter]` of some samples.
pub(super) struct WeightGradient<'a> {
    pub(super) block: &'a Block,
    pub(super) maps: &'a [f32],
    pub(super) sums: &'a [f32],
    pub(super) n_samples: usize,
    pub(super) weight: &'a mut [f32],
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
