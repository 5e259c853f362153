//! One step's samples: the gradient of each is shortened, and their sum is published with noise.
//!
//! Sums are whole numbers of a grid, so that noise can be rounded to it ([`fednode_privacy::rounded`]). Gradients are rounded
//! towards zero, which makes none of them longer: the length of a summand is at most 1 to the last bit, whatever its floats
//! were.

use burn::tensor::{Tensor, TensorData};
use fednode_privacy::rounded::Rounded;
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::SeedableRng;

use super::Draws;
use crate::algorithm::{Gradients, Part};
use crate::weights;

/// Units of the length to which gradients are shortened. A power of two, so that scaling by it rounds nothing.
const UNITS: f64 = (1_u64 << 24) as f64;
/// Keeps the rounding of the scaling itself, one part in 2²⁴, from making a gradient longer.
const A_LITTLE_LESS: f64 = 1.0 - 1e-6;
/// Numbers that are squared side by side.
const LANES: usize = 8;

/// The sum of a lot.
#[derive(Debug)]
pub(crate) struct Lot {
    clip: f64,
    /// Whether the samples that are handed in take part. A lot without samples is a step like any other: one sample shows
    /// what is trained, and is not added.
    counts: bool,
    /// One for each tensor of each part that is trained; nothing for parts that are not.
    sums: Vec<Vec<Vec<i64>>>,
}

impl Lot {
    /// Begins a lot.
    pub(crate) const fn new(clip: f64, counts: bool) -> Self {
        Self {
            clip,
            counts,
            sums: Vec::new(),
        }
    }

    /// Adds the gradients of one sample; `recorded` says which parts are trained. Those that are no numbers add nothing.
    pub(crate) fn add(&mut self, parts: &[Part], gradients: &Gradients, recorded: &[bool]) {
        if self.sums.is_empty() {
            let zeros = |(part, is_recorded): (&Part, &bool)| {
                let tensors = part.weights.tensors().filter(|_| *is_recorded);
                tensors.map(|tensor| vec![0; tensor.dims()[0]]).collect()
            };
            self.sums = parts.iter().zip(recorded).map(zeros).collect();
        }
        if !self.counts {
            return;
        }
        let found: Vec<Tensor<1>> = gradients.iter().flatten().flatten().cloned().collect();
        let values = weights::all_values(&found);
        let Some(scale) = scale(&values, self.clip) else {
            return;
        };
        let mut values = values.iter();
        for (sums, gradients) in self.sums.iter_mut().zip(gradients) {
            for (at, _) in gradients
                .iter()
                .enumerate()
                .filter(|(_, found)| found.is_some())
            {
                let (sum, values) = (&mut sums[at], values.next().into_iter().flatten());
                for (sum, value) in sum.iter_mut().zip(values) {
                    *sum += i64::from((*value * scale) as i32);
                }
            }
        }
    }

    /// Returns the square of the length of the sum, in units.
    #[cfg(test)]
    pub(super) fn square(&self) -> u128 {
        let numbers = self.sums.iter().flatten().flatten();
        numbers
            .map(|one| u128::from(one.unsigned_abs()).pow(2))
            .sum()
    }

    /// Returns the mean gradient with noise, of every number that is trained: whether any sample moved it is a secret.
    pub(crate) fn noised(self, parts: &[Part], draws: &Draws, epoch: u32, step: u32) -> Gradients {
        let mut hasher = blake3::Hasher::new_keyed(&draws.of_noise(epoch, step));
        for sum in self.sums.iter().flatten().flatten() {
            hasher.update(&sum.to_le_bytes());
        }
        let random = ChaCha20Rng::from_seed(*hasher.finalize().as_bytes());
        let mut noise = Rounded::new(draws.plan.noise, UNITS, random);
        let unit = self.clip / UNITS / draws.plan.expected;
        let mut mean = |sum: i64| (sum.saturating_add(noise.sample()) as f64 * unit) as f32;
        let mut gradients = Vec::with_capacity(parts.len());
        for (part, sums) in parts.iter().zip(self.sums) {
            let mut sums = sums.into_iter();
            let of_tensor = |tensor: &Tensor<1>| {
                let values: Vec<f32> = sums.next()?.into_iter().map(&mut mean).collect();
                let length = values.len();
                let data = TensorData::new(values, [length]);
                Some(Tensor::from_data(data, &tensor.device()))
            };
            gradients.push(part.weights.tensors().map(of_tensor).collect());
        }
        gradients
    }
}

/// Returns by what a gradient is multiplied to be at most so long, in units; nothing if it has no length.
fn scale(values: &[Vec<f32>], clip: f64) -> Option<f32> {
    let length = values.iter().map(|some| square(some)).sum::<f64>().sqrt();
    let scale = (UNITS / length.max(clip) * A_LITTLE_LESS) as f32;
    length.is_finite().then_some(scale)
}

/// Returns the sum of squares, so added up that several numbers are squared at once.
fn square(values: &[f32]) -> f64 {
    let mut sums = [0.0; LANES];
    let chunks = values.chunks_exact(LANES);
    let rest = chunks.remainder().iter();
    let rest: f64 = rest.map(|value| f64::from(*value).powi(2)).sum();
    for chunk in chunks {
        for (sum, value) in sums.iter_mut().zip(chunk) {
            *sum += f64::from(*value) * f64::from(*value);
        }
    }
    sums.iter().sum::<f64>() + rest
}
