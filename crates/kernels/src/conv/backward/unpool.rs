//! The way back through pooling and ReLU: from the gradient of a sample's output to that of its convolved maps.

// Loops over lanes and rows index several arrays at once.
#![allow(clippy::needless_range_loop)]

use pulp::{Simd, WithSimd};

use super::Scratch;
use crate::conv::{Block, CUT, LANES, lanes_at, window};
use crate::layout::transpose;
use crate::tile::{self, padded};

impl Block {
    /// Writes the gradient of a sample's convolved maps, and adds its bias gradient.
    #[inline]
    pub(super) fn unpool(
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
