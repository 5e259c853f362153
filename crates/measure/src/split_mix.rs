//! Seeded draws of a bootstrap (SplitMix64): the same on every machine, in every release.
//!
//! `fednode-core` has draws too. This crate lies below it, so that a spec can name a measure, and has its own few lines.

/// A stream of draws.
#[derive(Debug, Clone)]
pub(crate) struct SplitMix(u64);

impl SplitMix {
    pub(crate) fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Draws a whole number below `bound`, which is not 0, without bias (Lemire's method with rejection).
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        debug_assert!(bound > 0, "there is no number below 0");
        let bound = bound as u64;
        loop {
            let product = u128::from(self.next()) * u128::from(bound);
            let low = product as u64;
            // The remainder is below the bound, and slow: it is asked for only where it can matter.
            if low >= bound || low >= bound.wrapping_neg() % bound {
                return (product >> 64) as usize;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first numbers of the reference implementation of SplitMix64 for the seed 1234567.
    #[test]
    fn draws_are_those_of_the_reference() {
        let mut draws = SplitMix::seeded(1_234_567);
        let drawn = [draws.next(), draws.next(), draws.next()];
        assert_eq!(
            drawn,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
    }

    #[test]
    fn whole_numbers_are_even() {
        let (mut draws, mut counts) = (SplitMix::seeded(5), [0; 7]);
        (0..70_000).for_each(|_| counts[draws.below(7)] += 1);
        let even = |count: &i32| (9_600..10_400).contains(count);
        assert!(counts.iter().all(even), "{counts:?}");
    }

    /// Of a bound of 3 · 2^62 a quarter of all products are rejected: else half of the draws were multiples of 3.
    #[test]
    fn whole_numbers_below_a_huge_bound_are_even_too() {
        let mut draws = SplitMix::seeded(5);
        let multiples = (0..30_000).filter(|_| draws.below(3 << 62).is_multiple_of(3));
        let multiples = multiples.count();
        assert!((9_600..10_400).contains(&multiples), "{multiples}");
    }
}
