//! Draws that divide data: shuffles, and shares from the Dirichlet distribution.
//!
//! All nodes compute the same partition and compare its hash, so these draws are pinned by tests.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// A seeded source of draws for one purpose.
#[derive(Debug, Clone)]
pub struct Dice(ChaCha8Rng);

impl Dice {
    /// Seeds draws for a purpose; different purposes and numbers under one seed are independent.
    pub fn new(purpose: &str, seed: u64, number: u64) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("fednode data draws 1");
        hasher
            .update(&seed.to_le_bytes())
            .update(&number.to_le_bytes())
            .update(purpose.as_bytes());
        Self(ChaCha8Rng::from_seed(*hasher.finalize().as_bytes()))
    }

    /// Draws a number above 0 and below 1.
    pub fn unit(&mut self) -> f64 {
        ((self.0.next_u64() >> 11) as f64 + 0.5) * (1.0 / (1u64 << 53) as f64)
    }

    /// Draws a whole number below `n`, which must not be 0.
    pub fn below(&mut self, n: usize) -> usize {
        super::below(&mut self.0, n)
    }

    /// Puts items into random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        super::shuffle(&mut self.0, items);
    }

    /// Draws from the Dirichlet distribution. A concentration of 0 gives a share of 0.
    ///
    /// Works on logarithms: at a concentration of 0.01 most gamma draws are below the smallest `f64`.
    pub fn dirichlet(&mut self, concentrations: &[f64]) -> Vec<f64> {
        let logs: Vec<f64> = concentrations
            .iter()
            .map(|shape| self.log_gamma(*shape))
            .collect();
        let largest = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let shares: Vec<f64> = logs.iter().map(|log| libm::exp(log - largest)).collect();
        let total: f64 = shares.iter().sum();
        shares.into_iter().map(|share| share / total).collect()
    }

    /// Draws an index with the given weights, of which at least one is above 0.
    pub fn weighted(&mut self, weights: &[f64]) -> usize {
        let mut rest = self.unit() * weights.iter().sum::<f64>();
        for (index, weight) in weights.iter().enumerate() {
            rest -= weight;
            if rest < 0.0 {
                return index;
            }
        }
        // Rounding can leave a crumb: it belongs to the last index that has a weight at all.
        weights
            .iter()
            .rposition(|weight| *weight > 0.0)
            .unwrap_or(0)
    }

    /// The logarithm of a gamma draw of scale 1 (Marsaglia and Tsang 2000, with their boost for shapes below 1).
    fn log_gamma(&mut self, shape: f64) -> f64 {
        if shape <= 0.0 {
            return f64::NEG_INFINITY;
        }
        if shape < 1.0 {
            return self.log_gamma(shape + 1.0) + libm::log(self.unit()) / shape;
        }
        let d = shape - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let x = self.normal();
            let v = 1.0 + c * x;
            if v <= 0.0 {
                continue;
            }
            let v = v * v * v;
            if libm::log(self.unit()) < 0.5 * x * x + d - d * v + d * libm::log(v) {
                return libm::log(d * v);
            }
        }
    }

    /// A standard normal draw (polar method).
    fn normal(&mut self) -> f64 {
        loop {
            let (x, y) = (2.0 * self.unit() - 1.0, 2.0 * self.unit() - 1.0);
            let square = x * x + y * y;
            if square < 1.0 && square > 0.0 {
                return x * (-2.0 * libm::log(square) / square).sqrt();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pinned: other draws would give every running federation another partition.
    #[test]
    fn draws_never_change() {
        let mut dice = Dice::new("pinned", 1, 0);
        let mut items: Vec<u8> = (0..8).collect();
        dice.shuffle(&mut items);
        assert_eq!(items, [2, 5, 3, 0, 6, 4, 7, 1]);
        assert_eq!(
            dice.dirichlet(&[0.1, 1.0, 10.0]),
            [0.1415070059379783, 0.018286319506088927, 0.8402066745559328]
        );
        let mut dice = Dice::new("pinned", 2, 3);
        let whole: Vec<usize> = (0..6).map(|_| dice.below(1000)).collect();
        assert_eq!(whole, PINNED_WHOLE);
        assert_eq!([dice.unit(), dice.unit()], PINNED_UNIT);
        let indices: Vec<usize> = (0..6).map(|_| dice.weighted(&[1.0, 3.0, 0.5])).collect();
        assert_eq!(indices, PINNED_WEIGHTED);
    }

    const PINNED_WHOLE: [usize; 6] = [708, 430, 821, 663, 776, 277];
    const PINNED_UNIT: [f64; 2] = [0.1513249479799293, 0.9667480721506612];
    const PINNED_WEIGHTED: [usize; 6] = [2, 1, 1, 0, 1, 2];

    #[test]
    fn dirichlet_has_its_mean_and_variance() {
        let (mut dice, concentrations, n) = (Dice::new("moments", 3, 0), [0.2, 0.5, 1.3], 40_000);
        let total: f64 = concentrations.iter().sum();
        let draws: Vec<Vec<f64>> = (0..n).map(|_| dice.dirichlet(&concentrations)).collect();
        for (i, a) in concentrations.iter().enumerate() {
            let mean = draws.iter().map(|draw| draw[i]).sum::<f64>() / f64::from(n);
            let variance = draws
                .iter()
                .map(|draw| (draw[i] - mean).powi(2))
                .sum::<f64>()
                / f64::from(n);
            let expected = a / total;
            assert!(
                (mean - expected).abs() < 0.01,
                "mean {mean} against {expected}"
            );
            let expected = expected * (1.0 - expected) / (total + 1.0);
            assert!(
                (variance - expected).abs() < 0.005,
                "variance {variance} against {expected}"
            );
        }
    }

    #[test]
    fn dirichlet_survives_tiny_concentrations() {
        let shares = Dice::new("tiny", 1, 0).dirichlet(&[1e-4; 10]);
        assert!(
            (shares.iter().sum::<f64>() - 1.0).abs() < 1e-12,
            "{shares:?}"
        );
        assert_eq!(Dice::new("zero", 1, 0).dirichlet(&[0.0, 2.0]), [0.0, 1.0]);
    }

    #[test]
    fn weights_are_kept() {
        let mut dice = Dice::new("weights", 5, 0);
        let ones = (0..10_000)
            .filter(|_| dice.weighted(&[1.0, 3.0, 0.0]) == 1)
            .count();
        assert!((7_200..7_800).contains(&ones), "{ones}");
    }
}
