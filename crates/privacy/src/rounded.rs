//! Gaussian noise on whole numbers for training, where a step draws as many numbers as a model has parameters.
//!
//! A draw is Gaussian and then rounded. Added to a whole number it gives what rounding the number with plain Gaussian noise
//! would give. Rounding looks at no data, so ε is that of plain Gaussian noise, sampled steps included. Noise of
//! [`discrete`](crate::discrete) is exact without any float, and takes longer.
//!
//! A float has gaps, which have told secrets of noise before (Mironov, CCS 2012). Here only whole numbers leave. A draw
//! is a function of random bits (Box and Muller 1958), right but for a few units of its last place. There are 53 of them, and 53
//! more where the first say that the draw is far out. So the tail ends at 12 standard deviations. Beyond lies a share of 10⁻³².

use rand_core::RngCore;

use crate::units::Noise;

/// 2⁻⁵³: what the last random bit of a draw stands for.
const UNIT: f64 = 1.0 / (1_u64 << 53) as f64;

/// Below this the first bits of a draw are too few to tell how far out it is.
const FEW: u64 = 1 << 20;

/// Draws of Gaussian noise, rounded to whole numbers.
#[derive(Debug)]
pub struct Rounded<R> {
    deviation: f64,
    random: R,
    /// The other of two draws that are made at once.
    kept: Option<f64>,
}

impl<R: RngCore> Rounded<R> {
    /// Draws noise of so many lengths, where a length is so many units.
    pub fn new(noise: Noise, units: f64, random: R) -> Self {
        Self {
            deviation: noise.get() * units,
            random,
            kept: None,
        }
    }

    /// Draws once.
    pub fn sample(&mut self) -> i64 {
        let normal = self.kept.take().unwrap_or_else(|| self.pair());
        (normal * self.deviation).round() as i64
    }

    /// Draws twice from a standard normal distribution, and keeps one of the two.
    fn pair(&mut self) -> f64 {
        let first = self.above_zero();
        let second = self.bits() as f64 * UNIT;
        let radius = (-2.0 * libm::log(first)).sqrt();
        let (sine, cosine) = libm::sincos(std::f64::consts::TAU * second);
        self.kept = Some(radius * sine);
        radius * cosine
    }

    /// Draws evenly from above 0, so that there is a logarithm, to 1.
    fn above_zero(&mut self) -> f64 {
        let first = self.bits();
        if first >= FEW {
            return (first + 1) as f64 * UNIT;
        }
        let more = (self.bits() + 1) as f64 * UNIT;
        (first as f64 + more) * UNIT
    }

    fn bits(&mut self) -> u64 {
        self.random.next_u64() >> 11
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::normal::log_below;
    use rand_chacha::ChaCha20Rng;
    use rand_chacha::rand_core::SeedableRng;

    const DRAWS: usize = 200_000;

    fn draws(deviation: f64) -> Vec<i64> {
        let random = ChaCha20Rng::from_seed([3; 32]);
        let mut noise = Rounded::new(Noise::new(2.0).unwrap(), deviation / 2.0, random);
        (0..DRAWS).map(|_| noise.sample()).collect()
    }

    /// The share of draws up to each of several numbers is that of the normal distribution, within five standard errors.
    #[test]
    fn draws_are_distributed_as_a_rounded_normal_variable() {
        for deviation in [0.8, 3.0, 1e6] {
            let found = draws(deviation);
            for quantile in [-4.0, -2.5, -1.0, -0.25, 0.0, 0.5, 1.5, 3.0] {
                let most = (quantile * deviation).floor();
                let below = found.iter().filter(|draw| **draw as f64 <= most).count();
                let share = below as f64 / DRAWS as f64;
                let expected = log_below((most + 0.5) / deviation).exp();
                let error = (expected * (1.0 - expected) / DRAWS as f64).sqrt();
                assert!(
                    (share - expected).abs() <= 5.0 * error + 1e-5,
                    "{deviation} {quantile}: {share} {expected}"
                );
            }
        }
    }

    /// -2 ln 2⁻¹⁰⁶ is 12.12², and the cosine of 0 is 1.
    #[test]
    fn the_tail_ends_at_twelve_deviations() {
        struct Zeros;
        impl RngCore for Zeros {
            fn next_u32(&mut self) -> u32 {
                0
            }
            fn next_u64(&mut self) -> u64 {
                0
            }
            fn fill_bytes(&mut self, bytes: &mut [u8]) {
                bytes.fill(0);
            }
        }
        let mut noise = Rounded::new(Noise::new(1.0).unwrap(), 1000.0, Zeros);
        assert_eq!(noise.sample(), 12_122);
        assert_eq!(noise.sample(), 0, "the sine of 0");
    }

    #[test]
    fn draws_that_follow_each_other_are_not_alike() {
        let found = draws(1e6);
        let product = |pair: &[i64]| pair[0] as f64 * pair[1] as f64 / 1e12;
        let correlation = found.windows(2).map(product).sum::<f64>() / DRAWS as f64;
        assert!(
            correlation.abs() < 5.0 / (DRAWS as f64).sqrt(),
            "{correlation}"
        );
    }
}
