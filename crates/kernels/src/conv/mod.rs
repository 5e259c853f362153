//! A convolution block: convolution with bias, max-pooling, ReLU. Forward pass and gradients.
//!
//! ```text
//! forward    maps[y][x][c] ─rows─► sums[y][x][f] (one row of windows at a time) ─► largest ─► ReLU ─► output[f][y'][x']
//! backward   output gradient ─► sums' gradient[y][x][f] (zero but at the winners)
//!              ─outer with maps─► weight gradient        ─rows with weights, added at every offset─► input gradient
//! ```
//!
//! With `c` innermost, the numbers under one row of the kernel are `kernel · C` neighbours. Those of the next pixel start
//! `C` further on. So the forward pass and the weight gradient read the image in place.
//!
//! Of equal values in a window the first wins. NaN wins over every number and passes ReLU, so that divergence shows.

mod backward;
mod forward;

pub use backward::Gradients;
pub use forward::Trace;

/// Stands in place of a winner's number where ReLU has cut the output.
const CUT: u8 = u8::MAX;

/// The shape of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Channels, height and width of the input.
    pub input: [usize; 3],
    /// Number of output maps.
    pub filters: usize,
    /// Side of the square kernel.
    pub kernel: usize,
    /// Zeros added at top and bottom, and at left and right.
    pub padding: [usize; 2],
    /// Side and stride of the pooling window, at most 15.
    pub pool: usize,
}

impl Block {
    /// Tells whether this crate can compute the block: the kernel fits, and the pixels of a window number below 255.
    pub fn is_supported(&self) -> bool {
        let [channels, height, width] = self.padded_input();
        let fits = height >= self.kernel && width >= self.kernel && self.pool > 0 && self.pool < 16;
        fits && channels > 0 && self.filters > 0 && self.kernel > 0 && self.n_outputs() > 0
    }

    /// Returns how many numbers the output of a sample has.
    pub fn n_outputs(&self) -> usize {
        self.filters * self.n_pooled()
    }

    /// Returns channels, height and width of the padded input.
    fn padded_input(&self) -> [usize; 3] {
        let [channels, height, width] = self.input;
        [
            channels,
            height + 2 * self.padding[0],
            width + 2 * self.padding[1],
        ]
    }

    fn n_maps(&self) -> usize {
        self.padded_input().iter().product()
    }

    /// Returns height and width of the convolved maps.
    fn convolved(&self) -> [usize; 2] {
        let [_, height, width] = self.padded_input();
        [
            (height + 1).saturating_sub(self.kernel),
            (width + 1).saturating_sub(self.kernel),
        ]
    }

    /// Returns height and width of the pooled maps.
    fn pooled(&self) -> [usize; 2] {
        self.convolved().map(|side| side / self.pool)
    }

    fn n_pooled(&self) -> usize {
        self.pooled().iter().product()
    }

    /// Returns how many numbers lie under the kernel.
    fn depth(&self) -> usize {
        self.input[0] * self.kernel * self.kernel
    }
}

/// Yields where the pixels of a pooling window begin, relative to the first one.
#[inline(always)]
fn window(side: usize, row: usize, pixel: usize) -> impl Iterator<Item = usize> {
    (0..side).flat_map(move |y| (0..side).map(move |x| y * row + x * pixel))
}

/// Numbers that pooling compares together. Every padded width is a multiple of it.
const LANES: usize = 8;

#[inline(always)]
fn lanes_at(values: &[f32], start: usize) -> [f32; LANES] {
    let values = &values[start..start + LANES];
    std::array::from_fn(|lane| values[lane])
}
