//! Draws of a learner: one stream per purpose, so that nothing depends on what was drawn before.
//!
//! All of them come from ChaCha8 keyed with the purpose and its indices. They use integer arithmetic and exact scaling
//! only: the same seed gives the same numbers on every device and with any number of threads. The one exception is
//! [`Draws::logistic`], which takes a logarithm. A tensor library's own generator is never used.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::{below, fnv1a};

/// What a stream is for. Two purposes never share numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Initial parameters.
    Initial = 1,
    /// The order of samples in an epoch.
    Order = 2,
    /// The order of samples in an epoch after the last round.
    FinishingOrder = 3,
    /// Noise of an algorithm's own in a round.
    Noise = 4,
    /// How a node's samples are divided between the stages of an algorithm.
    Division = 5,
    /// How images are cropped and flipped in an epoch.
    Augmentation = 6,
    /// The same in an epoch after the last round.
    FinishingAugmentation = 7,
    /// Where the features are projected to before their statistics are added up.
    Projection = 8,
    /// The filters of features that nobody trains.
    RandomMaps = 9,
    /// What dropout drops in an epoch.
    Dropout = 10,
    /// The same in an epoch after the last round.
    FineTuningDropout = 11,
    /// Where the search for the directions of a variance starts.
    Directions = 12,
    /// Images that nobody took, of which public directions come.
    Silhouettes = 13,
    /// Where the search for public directions starts.
    Whitening = 14,
    /// Noise that an attack at home is tried against.
    Redrawing = 15,
    /// The initial parameters of a pool's gate.
    PoolGate = 16,
    /// The order of samples in an epoch of the pool stage.
    PoolOrder = 17,
    /// What dropout drops in the pool stage.
    PoolDropout = 18,
    /// Which samples the pool stage looks at, if there are too many.
    PoolSamples = 19,
}

/// Numbers that an algorithm draws in one round; the same again if the round is repeated.
#[derive(Debug, Clone)]
pub struct Draws(ChaCha8Rng);

impl Draws {
    /// Starts the draws of one node in one round.
    pub fn new(seed: u64, node_seed: u64, round: u64) -> Self {
        Self(stream(Purpose::Noise, [seed, node_seed, round]))
    }

    /// Draws from the standard logistic distribution, that of the difference of two Gumbel variables: ln(u / (1 - u)).
    pub fn logistic(&mut self, count: usize) -> Vec<f32> {
        // Half a step off both ends, so that neither logarithm is of zero.
        let unit = |bits: u32| (f64::from(bits >> 8) + 0.5) / f64::from(1u32 << 24);
        let one = |rng: &mut ChaCha8Rng| {
            let u = unit(rng.next_u32());
            (u / (1.0 - u)).ln() as f32
        };
        (0..count).map(|_| one(&mut self.0)).collect()
    }

    /// Draws from the uniform distribution over `[0, 1)`.
    pub fn unit(&mut self, count: usize) -> Vec<f32> {
        uniform(&mut self.0, 0.5, count)
            .into_iter()
            .map(|value| value + 0.5)
            .collect()
    }

    /// Draws whole numbers below a bound.
    pub fn below(&mut self, bound: usize, count: usize) -> Vec<usize> {
        (0..count).map(|_| below(&mut self.0, bound)).collect()
    }
}

/// Returns the stream of a purpose and three indices of its choice.
pub fn stream(purpose: Purpose, indices: [u64; 3]) -> ChaCha8Rng {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&(purpose as u64).to_le_bytes());
    for (slot, index) in indices.iter().enumerate() {
        key[8 * (slot + 1)..8 * (slot + 2)].copy_from_slice(&index.to_le_bytes());
    }
    ChaCha8Rng::from_seed(key)
}

/// Draws from the uniform distribution over `[-bound, bound)`.
pub fn uniform(rng: &mut ChaCha8Rng, bound: f32, count: usize) -> Vec<f32> {
    // 24 bits fill a float's mantissa, so the conversion and the scaling by a power of two are exact.
    let unit = |bits: u32| (bits >> 8) as f32 / (1u32 << 24) as f32;
    (0..count)
        .map(|_| (2.0 * unit(rng.next_u32()) - 1.0) * bound)
        .collect()
}

/// Draws from nearly the standard normal distribution (Irwin and Hall: the sum of twelve uniform numbers), without
/// functions that differ from machine to machine.
pub fn nearly_normal(rng: &mut ChaCha8Rng, count: usize) -> Vec<f64> {
    let uniform =
        |rng: &mut ChaCha8Rng| f64::from(rng.next_u32() >> 8) / f64::from(1u32 << 24) - 0.5;
    (0..count)
        .map(|_| (0..12).map(|_| uniform(rng)).sum())
        .collect()
}

/// Draws factors of dropout: 0 with the probability `share`, else `1 / (1 - share)`, so that the mean is 1.
pub fn dropout(rng: &mut ChaCha8Rng, share: f64, count: usize) -> Vec<f32> {
    let stays = |bits: u32| f64::from(bits >> 8) >= share * f64::from(1u32 << 24);
    let scale = (1.0 / (1.0 - share)) as f32;
    (0..count)
        .map(|_| if stays(rng.next_u32()) { scale } else { 0.0 })
        .collect()
}

/// Returns a number for a name, so that a name can index a stream.
pub fn name_index(name: &str) -> u64 {
    fnv1a(name.bytes().map(u64::from))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::permutation;

    /// Pinned: other numbers would give every federation another initial model.
    #[test]
    fn draws_never_change() {
        let mut rng = stream(Purpose::Initial, [1, name_index("conv1.0.weight"), 0]);
        assert_eq!(
            uniform(&mut rng, 0.2, 3),
            [0.004423547, -0.011835671, -0.13798498]
        );
        assert_eq!(
            nearly_normal(&mut rng, 2),
            [-0.5261562466621399, 2.9848376512527466]
        );
        const T: f32 = 4.0 / 3.0;
        assert_eq!(dropout(&mut rng, 0.25, 8), [0.0, T, T, 0.0, T, T, T, T]);
        // The order by another ChaCha8.
        let order = permutation(&mut stream(Purpose::Order, [1, 2, 3]), 8);
        assert_eq!(order, [1, 3, 4, 2, 5, 6, 7, 0]);
        let mut draws = Draws::new(1, 2, 3);
        assert_eq!(draws.below(1000, 6), [407, 814, 576, 466, 610, 865]);
        assert_eq!(draws.unit(2), [0.24650365, 0.7827009]);
    }

    #[test]
    fn uniform_fills_its_range() {
        let drawn = uniform(&mut stream(Purpose::Initial, [0, 0, 0]), 1.0, 10_000);
        let mean = drawn.iter().sum::<f32>() / 10_000.0;
        let square = drawn.iter().map(|x| x * x).sum::<f32>() / 10_000.0;
        assert!(
            mean.abs() < 0.02 && (square - 1.0 / 3.0).abs() < 0.01,
            "mean {mean}, square {square}"
        );
    }

    #[test]
    fn nearly_normal_draws_have_their_mean_and_variance() {
        let drawn = nearly_normal(&mut stream(Purpose::PoolGate, [0, 0, 0]), 20_000);
        let mean = drawn.iter().sum::<f64>() / 20_000.0;
        let variance = drawn.iter().map(|x| x * x).sum::<f64>() / 20_000.0;
        assert!(
            mean.abs() < 0.03 && (variance - 1.0).abs() < 0.04,
            "mean {mean}, variance {variance}"
        );
    }

    #[test]
    fn dropout_keeps_the_mean() {
        let drawn = dropout(&mut stream(Purpose::PoolDropout, [0, 0, 0]), 0.25, 20_000);
        let zeros = drawn.iter().filter(|factor| **factor == 0.0).count() as f64 / 20_000.0;
        let mean = drawn.iter().sum::<f32>() / 20_000.0;
        assert!(
            (zeros - 0.25).abs() < 0.02 && (mean - 1.0).abs() < 0.02,
            "zeros {zeros}, mean {mean}"
        );
    }

    #[test]
    fn draws_stay_within_their_bounds() {
        let mut draws = Draws::new(1, 2, 3);
        let (unit, whole) = (draws.unit(10_000), draws.below(3, 9_000));
        assert!(unit.iter().all(|value| (0.0..1.0).contains(value)));
        assert!((unit.iter().sum::<f32>() / 10_000.0 - 0.5).abs() < 0.02);
        let count = |number: usize| whole.iter().filter(|drawn| **drawn == number).count();
        assert!((0..3).all(|number| (2_800..3_200).contains(&count(number))) && count(3) == 0);
    }

    #[test]
    fn logistic_draws_have_their_mean_and_variance() {
        let drawn = Draws::new(1, 2, 3).logistic(20_000);
        let mean = drawn.iter().sum::<f32>() / 20_000.0;
        let variance = drawn.iter().map(|x| x * x).sum::<f32>() / 20_000.0;
        // The variance is pi^2 / 3 = 3.29.
        assert!(
            mean.abs() < 0.05 && (variance - 3.29).abs() < 0.15,
            "mean {mean}, variance {variance}"
        );
        assert_eq!(drawn, Draws::new(1, 2, 3).logistic(20_000));
    }
}
