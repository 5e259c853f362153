//! A convolution block: convolution with bias, max-pooling, ReLU; forward, and gradients.
//!
//! ```text
//! forward    maps[y][x][c] ─rows─► sums[y][x][f] (one row of windows at a time) ─► largest ─► ReLU ─► output[f][y'][x']
//! backward   output gradient ─► sums' gradient[y][x][f] (zero but at the winners)
//!              ─outer with maps─► weight gradient        ─rows with weights, added at every offset─► input gradient
//! ```
//!
//! With `c` innermost, the numbers under one row of the kernel are `kernel · C` neighbours, and those of the next pixel
//! start `C` further on: the forward pass and the weight gradient read the image in place.
//!
//! Of equal values in a window the first wins; NaN wins over everything and passes ReLU, so that a run that diverges
//! is seen to do so.

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use crate::layout::transpose;
use crate::tile::{self, Lines, Registers, Span, Tile, padded};

/// Marks an output that ReLU has cut, where otherwise the winner's number in its window stands.
const CUT: u8 = u8::MAX;

/// Samples whose weight gradients are summed up by one thread; the sums of such groups are added in order.
const GROUP: usize = 32;

/// Least number of positions that a weight gradient is summed over at a time, so that its tiles are seldom stored.
const POSITIONS: usize = 256;

/// The shape of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Channels, height and width of its input.
    pub input: [usize; 3],
    /// Maps it makes.
    pub filters: usize,
    /// Side of its square kernel.
    pub kernel: usize,
    /// Zeros added at top and bottom, left and right.
    pub padding: [usize; 2],
    /// Side and stride of the pooling window, at most 15.
    pub pool: usize,
}

/// What the backward pass needs of a forward pass.
#[derive(Debug, Clone)]
pub struct Trace {
    /// The padded inputs, `[batch][height][width][channel]`.
    maps: Vec<f32>,
    /// For each output the number of its winner in the window, `[batch][position][padded filter]`.
    winners: Vec<u8>,
}

/// The gradients of a block.
#[derive(Debug, Clone)]
pub struct Gradients {
    /// `[batch, C·H·W]`, if it was asked for.
    pub input: Option<Vec<f32>>,
    /// `[F, C, kernel, kernel]`.
    pub weight: Vec<f32>,
    /// `[F]`.
    pub bias: Vec<f32>,
}

impl Block {
    /// Tells whether the block can be computed here: the kernel fits, and windows have numbers below 255.
    pub fn is_supported(&self) -> bool {
        let [channels, height, width] = self.padded_input();
        let fits = height >= self.kernel && width >= self.kernel && self.pool > 0 && self.pool < 16;
        fits && channels > 0 && self.filters > 0 && self.kernel > 0 && self.n_outputs() > 0
    }

    /// Returns the numbers of one output.
    pub fn n_outputs(&self) -> usize {
        self.filters * self.n_pooled()
    }

    /// Runs a batch: `[batch, C·H·W]` with weights `[F, C, kernel, kernel]` and bias `[F]` to `[batch, F·H'·W']`.
    pub fn forward(&self, input: &[f32], weight: &[f32], bias: &[f32]) -> (Vec<f32>, Trace) {
        let n_samples = input.len() / self.input.iter().product::<usize>();
        let width = padded(self.filters);
        let mut weights = vec![0.0; self.depth() * width];
        tile::dispatch(width, PackForward { block: self, weight, panels: &mut weights });
        let mut padded_bias = vec![0.0; width];
        padded_bias[..self.filters].copy_from_slice(bias);
        let mut output = vec![0.0; n_samples * self.n_outputs()];
        let mut trace =
            Trace { maps: vec![0.0; n_samples * self.n_maps()], winners: vec![0; n_samples * self.n_pooled() * width] };
        let samples = (output.par_chunks_mut(self.n_outputs()), input.par_chunks(self.input.iter().product()));
        let traces = (trace.maps.par_chunks_mut(self.n_maps()), trace.winners.par_chunks_mut(self.n_pooled() * width));
        let (weights, bias) = (&weights[..], &padded_bias[..]);
        samples.into_par_iter().zip(traces.into_par_iter()).with_min_len(4).for_each_init(
            || Scratch::new(self),
            |scratch, ((output, input), (maps, winners))| {
                self.spread(input, maps);
                tile::dispatch(width, Forward { block: self, maps, weights, bias, winners, output, scratch });
            },
        );
        (output, trace)
    }

    /// Returns the gradients, given that of the output, `[batch, F·H'·W']`.
    pub fn backward(&self, trace: &Trace, weight: &[f32], gradient: &[f32], wants_input: Wants) -> Gradients {
        let n_samples = gradient.len() / self.n_outputs();
        let (width, channel_width) = (padded(self.filters), padded(self.input[0]));
        let (n_winners, n_input) = (self.n_pooled() * width, self.input.iter().product::<usize>());
        let wants_input = wants_input == Wants::InputGradient;
        let mut weights =
            vec![0.0; if wants_input { self.kernel * self.kernel * self.filters * channel_width } else { 0 }];
        if wants_input {
            self.pack_backward(weight, &mut weights);
        }
        let mut input = vec![0.0; if wants_input { n_samples * n_input } else { 0 }];
        // Without an input gradient the pieces of `input` are empty, one for each group all the same.
        let pieces: Vec<&mut [f32]> = match wants_input {
            true => input.chunks_mut(GROUP * n_input).collect(),
            false => (0..n_samples.div_ceil(GROUP)).map(|_| &mut [][..]).collect(),
        };
        let groups = pieces.into_par_iter().enumerate().map(|(group, input)| {
            let (start, end) = (group * GROUP, n_samples.min((group + 1) * GROUP));
            let gradient = &gradient[start * self.n_outputs()..end * self.n_outputs()];
            let maps = &trace.maps[start * self.n_maps()..end * self.n_maps()];
            let winners = &trace.winners[start * n_winners..end * n_winners];
            self.backward_group(Group { gradient, maps, winners, weights: &weights, input })
        });
        let sums: Vec<(Vec<f32>, Vec<f32>)> = groups.collect();
        let (weight, bias) = add_up(sums, self.depth() * width, width);
        let weight = self.unpack(&weight);
        Gradients { input: wants_input.then_some(input), weight, bias: bias[..self.filters].to_vec() }
    }

    /// Returns the weight and bias gradients of a group of samples, `[depth][padded filter]` and `[padded filter]`, and
    /// writes the input gradients.
    fn backward_group(&self, group: Group<'_>) -> (Vec<f32>, Vec<f32>) {
        let (width, channel_width) = (padded(self.filters), padded(self.input[0]));
        let ([_, height, columns], [rows, row]) = (self.padded_input(), self.convolved());
        let n_sums = rows * row * width;
        let at_once = POSITIONS.div_ceil(rows * row).min(GROUP);
        let (mut weight, mut bias) = (vec![0.0; self.depth() * width], vec![0.0; width]);
        let mut sums = vec![0.0; at_once * n_sums];
        let mut pooled = vec![0.0; self.n_pooled() * width];
        let mut spread = vec![0.0; height * columns * channel_width];
        let mut inputs = group.input.chunks_mut(self.input.iter().product());
        let batches = group.gradient.chunks(at_once * self.n_outputs());
        let traces =
            group.maps.chunks(at_once * self.n_maps()).zip(group.winners.chunks(at_once * self.n_pooled() * width));
        for (gradient, (maps, winners)) in batches.zip(traces) {
            let n_samples = gradient.len() / self.n_outputs();
            for sample in 0..n_samples {
                let gradient = &gradient[sample * self.n_outputs()..][..self.n_outputs()];
                let winners = &winners[sample * self.n_pooled() * width..][..self.n_pooled() * width];
                let sums = &mut sums[sample * n_sums..][..n_sums];
                tile::dispatch(
                    width,
                    Unpool { block: self, gradient, winners, pooled: &mut pooled, sums, bias: &mut bias },
                );
                if let Some(target) = inputs.next() {
                    let weights = group.weights;
                    tile::dispatch(
                        channel_width,
                        InputGradient { block: self, sums, weights, spread: &mut spread, target },
                    );
                }
            }
            tile::dispatch(width, WeightGradient { block: self, maps, sums: &sums, n_samples, weight: &mut weight });
        }
        (weight, bias)
    }

    /// Returns channels, height and width of the padded input.
    fn padded_input(&self) -> [usize; 3] {
        let [channels, height, width] = self.input;
        [channels, height + 2 * self.padding[0], width + 2 * self.padding[1]]
    }

    fn n_maps(&self) -> usize {
        self.padded_input().iter().product()
    }

    /// Returns height and width of the convolved maps.
    fn convolved(&self) -> [usize; 2] {
        let [_, height, width] = self.padded_input();
        [(height + 1).saturating_sub(self.kernel), (width + 1).saturating_sub(self.kernel)]
    }

    /// Returns height and width of the pooled maps.
    fn pooled(&self) -> [usize; 2] {
        self.convolved().map(|side| side / self.pool)
    }

    fn n_pooled(&self) -> usize {
        self.pooled().iter().product()
    }

    /// Returns the numbers under a kernel.
    fn depth(&self) -> usize {
        self.input[0] * self.kernel * self.kernel
    }

    /// Turns an image into padded maps with the channels innermost; what is padding is zero already.
    fn spread(&self, input: &[f32], maps: &mut [f32]) {
        let [channels, height, width] = self.input;
        let [top, left] = self.padding;
        let columns = width + 2 * left;
        if left == 0 {
            transpose(input, [channels, height * width], &mut maps[top * columns * channels..], channels);
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

    /// Arranges weights as `[ky][kx][filter][padded channel]`, in panels.
    fn pack_backward(&self, weight: &[f32], lines: &mut [f32]) {
        let ([channels, ..], area) = (self.input, self.kernel * self.kernel);
        let stride = padded(channels);
        for filter in 0..self.filters {
            let kernels = &weight[filter * channels * area..][..channels * area];
            transpose(kernels, [channels, area], &mut lines[filter * stride..], self.filters * stride);
        }
    }

    /// Turns a weight gradient `[ky][kx][channel][padded filter]` into `[filter][channel][ky][kx]`.
    fn unpack(&self, sums: &[f32]) -> Vec<f32> {
        let (channels, area, stride) = (self.input[0], self.kernel * self.kernel, padded(self.filters));
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

/// Whether the gradient with respect to a layer's input is wanted; a network's first layer needs none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wants {
    /// The gradients of the parameters and that of the input.
    InputGradient,
    /// Only those of the parameters.
    ParametersOnly,
}

/// Adds the sums of groups in their order.
fn add_up(groups: Vec<(Vec<f32>, Vec<f32>)>, n_weights: usize, n_biases: usize) -> (Vec<f32>, Vec<f32>) {
    let mut groups = groups.into_iter();
    let (mut weight, mut bias) = groups.next().unwrap_or_else(|| (vec![0.0; n_weights], vec![0.0; n_biases]));
    for (more_weight, more_bias) in groups {
        weight.iter_mut().zip(more_weight).for_each(|(sum, more)| *sum += more);
        bias.iter_mut().zip(more_bias).for_each(|(sum, more)| *sum += more);
    }
    (weight, bias)
}

/// The samples that one thread computes the gradients of.
struct Group<'a> {
    gradient: &'a [f32],
    maps: &'a [f32],
    winners: &'a [u8],
    weights: &'a [f32],
    input: &'a mut [f32],
}

/// A thread's room for intermediate results of one sample.
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
        Self { sums: vec![0.0; block.pool * row * width], pooled: vec![0.0; block.n_pooled() * width] }
    }
}

/// Arranges weights in panels of `[ky][kx][channel][filters of the panel]`.
struct PackForward<'a> {
    block: &'a Block,
    weight: &'a [f32],
    panels: &'a mut [f32],
}

impl WithSimd for PackForward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        let Block { filters, kernel, input: [channels, ..], .. } = *self.block;
        let (depth, area) = (self.block.depth(), kernel * kernel);
        for panel in tile::panel_spans::<S>(padded(filters)) {
            let lines = &mut self.panels[panel.start * depth..][..panel.count * depth];
            let present = panel.start..filters.min(panel.start + panel.count);
            for channel in 0..channels {
                for offset in 0..area {
                    let line = &mut lines[(offset * channels + channel) * panel.count..][..panel.count];
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
        let Self { block, maps, weights, bias, winners, output, scratch } = self;
        let width = padded(block.filters);
        let [_, row] = block.convolved();
        let [pooled_rows, pooled_row] = block.pooled();
        for y in 0..pooled_rows {
            for in_window in 0..block.pool {
                let sums = &mut scratch.sums[in_window * row * width..][..row * width];
                convolve_row(simd, block, &maps, weights, bias, y * block.pool + in_window, sums);
            }
            for x in 0..pooled_row {
                let at = (y * pooled_row + x) * width;
                let (largest, winners) = (&mut scratch.pooled[at..][..width], &mut winners[at..][..width]);
                pool(block, &scratch.sums[x * block.pool * width..], largest, winners);
            }
        }
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
            let patch = Patch { maps, line, pixel: channels, run, n_lines: block.kernel };
            tile::run(simd, pixels.count, vectors, ConvolveTile { patch, weights, bias, sums, width });
        }
    }
}

/// Where the patches of neighbouring pixels lie.
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
        let Patch { maps, line, pixel, run, n_lines } = self.patch;
        let stride = V * S::F32_LANES;
        let mut tile: Registers<S, M, V> = tile::filled(simd, Some(self.bias));
        for y in 0..n_lines {
            let (maps, weights) = (&maps[y * line..], &self.weights[y * run * stride..][..run * stride]);
            if pixel == 1 {
                // Patches of a single channel overlap so far that the tile's numbers are neighbours for each weight.
                let (left, right) = (Lines { values: maps, stride: 1 }, Lines { values: weights, stride });
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

/// Pools one window, whose first pixel is the first of `sums`, and cuts at zero.
#[inline(always)]
fn pool(block: &Block, sums: &[f32], largest: &mut [f32], winners: &mut [u8]) {
    let width = largest.len();
    let [_, row] = block.convolved();
    let lanes = largest.chunks_exact_mut(LANES).zip(winners.chunks_exact_mut(LANES));
    for (start, (largest, winners)) in (0..width).step_by(LANES).zip(lanes) {
        let mut best = lanes_at(sums, start);
        let mut winner = [0u32; LANES];
        for (number, at) in window(block.pool, row * width, width).enumerate().skip(1) {
            let values = lanes_at(sums, at + start);
            for lane in 0..LANES {
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

/// Visits where the pixels of a pooling window begin, relative to the first one.
#[inline(always)]
fn window(side: usize, row: usize, pixel: usize) -> impl Iterator<Item = usize> {
    (0..side).flat_map(move |y| (0..side).map(move |x| y * row + x * pixel))
}

/// Numbers that pooling looks at together: what every padded width is a multiple of.
const LANES: usize = 8;

#[inline(always)]
fn lanes_at(values: &[f32], start: usize) -> [f32; LANES] {
    let values = &values[start..start + LANES];
    std::array::from_fn(|lane| values[lane])
}

/// Takes the gradient of a sample's output back to that of the convolved maps.
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
        let Self { block, gradient, winners, pooled, sums, bias } = self;
        let width = padded(block.filters);
        let [_, row] = block.convolved();
        let [_, pooled_row] = block.pooled();
        transpose(gradient, [block.filters, block.n_pooled()], pooled, width);
        let positions = pooled.chunks_exact(width).zip(winners.chunks_exact(width));
        let corners = (0..).flat_map(|y| (0..pooled_row).map(move |x| (y * row + x) * block.pool * width));
        for ((gradient, winners), corner) in positions.zip(corners) {
            for start in (0..width).step_by(LANES) {
                let gradient = lanes_at(gradient, start);
                let winners = &winners[start..start + LANES];
                let winners: [u32; LANES] = std::array::from_fn(|lane| u32::from(winners[lane]));
                for (number, at) in window(block.pool, row * width, width).enumerate() {
                    let sums = &mut sums[corner + at + start..][..LANES];
                    for lane in 0..LANES {
                        sums[lane] = if winners[lane] == number as u32 { gradient[lane] } else { 0.0 };
                    }
                }
                let bias = &mut bias[start..start + LANES];
                for lane in 0..LANES {
                    bias[lane] += if winners[lane] == u32::from(CUT) { 0.0 } else { gradient[lane] };
                }
            }
        }
    }
}

/// Adds the weight gradients of some samples, `[ky][kx][channel][padded filter]`.
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
                    let weight = &mut self.weight[(ky * run + numbers.start) * width + panel.start..];
                    let (maps, sums, n_samples) = (self.maps, self.sums, self.n_samples);
                    let tile = WeightTile { block, maps, sums, n_samples, ky, first: numbers.start, panel, weight };
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
                let (left, right) = (Lines { values: maps, stride: channels }, Lines { values: sums, stride: width });
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
        let Self { block, sums, weights, spread, target } = self;
        let [channels, _, columns] = block.padded_input();
        let [rows, row] = block.convolved();
        let (width, stride) = (padded(block.filters), padded(channels));
        spread.fill(0.0);
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
                        let tile = InputTile { sums, width, filters: block.filters, weights, target, stride };
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
        let tile: Registers<S, M, V> = std::array::from_fn(|row| tile::load::<S, V>(&self.target[row * self.stride..]));
        let tile = tile::rows(simd, tile, rows, self.weights, self.stride);
        for row in 0..M {
            tile::store::<S, V>(&mut self.target[row * self.stride..], tile[row]);
        }
    }
}
