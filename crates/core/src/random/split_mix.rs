//! Draws of a mean that is learned: whoever audits the mean repeats them from the same parameters.

use rand_chacha::rand_core::{RngCore, impls};

use super::{below, fnv1a, shuffle};
use crate::ParamSet;

/// Seeded draws (SplitMix64).
#[derive(Debug, Clone)]
pub struct Stream(u64);

impl Stream {
    /// Starts a stream of its own for these parameters: it depends on every bit of them.
    pub fn of(params: &ParamSet) -> Self {
        Self(fnv1a(
            params.values().map(|value| u64::from(value.to_bits())),
        ))
    }

    /// Draws a number below `count`, which must not be 0.
    pub fn below(&mut self, count: usize) -> usize {
        below(self, count)
    }

    /// Draws from the uniform distribution over `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns the numbers below `count` in random order.
    pub fn shuffled(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        shuffle(self, &mut order);
        order
    }
}

impl RngCore for Stream {
    fn next_u32(&mut self) -> u32 {
        (self.next_u64() >> 32) as u32
    }

    fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn fill_bytes(&mut self, bytes: &mut [u8]) {
        impls::fill_bytes_via_next(self, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first numbers of the reference implementation of SplitMix64 for the seed 1234567.
    #[test]
    fn draws_are_those_of_the_reference() {
        let mut stream = Stream(1_234_567);
        let drawn = [stream.next_u64(), stream.next_u64(), stream.next_u64()];
        assert_eq!(
            drawn,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
    }

    /// Pinned: other draws would convict honest members of false means.
    #[test]
    fn draws_never_change() {
        let mut params = ParamSet::new();
        params
            .insert("fc.bias", &[3], vec![0.5, -0.25, 3.0])
            .unwrap();
        let mut stream = Stream::of(&params);
        assert_eq!(stream.0, 0x9a58_de2d_eacf_2fb7);
        assert_eq!(stream.shuffled(8), [6, 3, 0, 7, 5, 1, 2, 4]);
        let whole: Vec<usize> = (0..6).map(|_| stream.below(1000)).collect();
        assert_eq!(whole, [220, 928, 596, 907, 157, 756]);
        assert_eq!(stream.unit(), 0.6781629097813765);
    }

    #[test]
    fn order_holds_every_number_once() {
        let mut order = Stream(5).shuffled(1000);
        assert_ne!(order, Stream(6).shuffled(1000));
        order.sort_unstable();
        assert_eq!(order, (0..1000).collect::<Vec<_>>());
        let mut stream = Stream(7);
        let mean = (0..10_000).map(|_| stream.unit()).sum::<f64>() / 10_000.0;
        assert!((mean - 0.5).abs() < 0.01, "{mean}");
    }
}
