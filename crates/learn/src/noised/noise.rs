//! Where noise comes from: a secret that the node's own key or the operating system gives, and what it is added to.
//!
//! Noise is a function of the secret and of the exact sums. So the same sums have the same noise, however often a node
//! restarts or is restored from a backup: who sees both releases sees one. Other sums have noise that is independent of it,
//! also those of the same samples on a device that rounds otherwise: that is another release. Without the secret noise cannot
//! be told from fresh one (BLAKE3 as a keyed function, ChaCha20 as the generator). With it, noise can be taken off again.
//!
//! Shares of a total are drawn anew for each total ([`NoiseKey::once`]): the same share in two of them would cancel.

use fednode_mix::statistics::noised::GRID;
use fednode_privacy::discrete::{DiscreteGaussian, Variance};
use fednode_privacy::units::Noise;
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::SeedableRng;

/// Separates noise from every other use of a node's key.
const DOMAIN: &str = "fednode 2026-11-25 noise of released statistics";

/// What noise is drawn from.
#[derive(Clone)]
pub enum NoiseKey {
    /// A secret of the node.
    Secret([u8; 32]),
    /// The spec's seed and the node's. Everybody can repeat the noise and take it off again: for simulations alone.
    Seeded,
}

impl std::fmt::Debug for NoiseKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Secret(_) => "Secret(..)",
            Self::Seeded => "Seeded",
        })
    }
}

impl NoiseKey {
    /// Takes a secret from the operating system.
    pub(crate) fn of_system() -> Self {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).expect("the operating system has randomness");
        Self::Secret(secret)
    }

    /// Derives the secret from that of a node, which is not weakened by it.
    pub fn of_secret(secret: &[u8]) -> Self {
        Self::Secret(blake3::derive_key(DOMAIN, secret))
    }

    /// Returns a key for noise that is used once, and that nobody can draw again; but for simulations.
    pub(crate) fn once(&self) -> Self {
        match self {
            Self::Secret(_) => Self::of_system(),
            Self::Seeded => Self::Seeded,
        }
    }

    /// Returns the secret of a node with these seeds.
    pub(crate) fn secret(&self, seeds: [u64; 2]) -> [u8; 32] {
        match self {
            Self::Secret(secret) => *secret,
            Self::Seeded => {
                let seeds = seeds.map(u64::to_le_bytes).concat();
                blake3::derive_key(DOMAIN, &seeds)
            }
        }
    }

    /// Adds noise of so many lengths of a sample to each number.
    pub(crate) fn add_noise<'a>(
        &self,
        numbers: impl Iterator<Item = &'a mut i64>,
        noise: Noise,
        seeds: [u64; 2],
    ) {
        let numbers: Vec<&mut i64> = numbers.collect();
        let mut hasher = blake3::Hasher::new_keyed(&self.secret(seeds));
        hasher.update(&noise.get().to_le_bytes());
        for number in &numbers {
            hasher.update(&number.to_le_bytes());
        }
        let mut random = ChaCha20Rng::from_seed(*hasher.finalize().as_bytes());
        let variance = (noise.get() * GRID).powi(2);
        let variance = Variance::at_least(variance).expect("the noise of a spec is in range");
        let gaussian = DiscreteGaussian::new(variance);
        for number in numbers {
            *number = number.saturating_add(gaussian.sample(&mut random));
        }
    }
}

#[cfg(test)]
mod tests {
    use fednode_mix::statistics::noised::WholeSums;

    use super::*;

    fn noised(key: &NoiseKey, sample: [f32; 2], noise: f64) -> Vec<i64> {
        let mut sums = WholeSums::new(2, 2);
        sums.add(&sample, 1);
        key.add_noise(sums.numbers_mut(), Noise::new(noise).unwrap(), [1, 2]);
        sums.numbers_mut().map(|number| *number).collect()
    }

    #[test]
    fn the_same_samples_have_the_same_noise_and_others_have_another() {
        let key = NoiseKey::of_secret(b"node");
        let first = noised(&key, [0.6, 0.8], 2.0);
        assert_eq!(first, noised(&key, [0.6, 0.8], 2.0));
        for other in [
            noised(&key, [0.8, 0.6], 2.0),
            noised(&key, [0.6, 0.8], 2.5),
            noised(&NoiseKey::of_secret(b"other"), [0.6, 0.8], 2.0),
            noised(&NoiseKey::of_system(), [0.6, 0.8], 2.0),
        ] {
            // Even a number that both samples share says nothing of their difference.
            assert!(first.iter().zip(&other).all(|(a, b)| a != b));
        }
    }

    /// The mean square of 9,005 numbers, each with noise of 3, lies within 6 standard errors.
    #[test]
    fn noise_is_as_large_as_promised() {
        let width = 128;
        let mut sums = WholeSums::new(5, width);
        NoiseKey::Seeded.add_noise(sums.numbers_mut(), Noise::new(3.0).unwrap(), [7, 8]);
        let squares = sums
            .numbers_mut()
            .map(|number| (*number as f64 / GRID).powi(2));
        let squares: Vec<f64> = squares.collect();
        let mean = squares.iter().sum::<f64>() / squares.len() as f64;
        let error = 9.0 * (2.0 / squares.len() as f64).sqrt();
        assert!(
            (mean - 9.0).abs() < 6.0 * error,
            "{mean} of {}",
            squares.len()
        );
    }
}
