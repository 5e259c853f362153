//! The backward pass of a convolution block.
//!
//! It goes from the output back to the sums of the convolution. Then it adds the weight gradients of a few samples at a
//! time, while those sums are in a near cache.

mod input;
mod unpool;
mod weight;

use rayon::prelude::*;

use self::weight::WeightGradient;
use super::Block;
use super::forward::Trace;
use crate::Wants;
use crate::tile::{self, padded};

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
