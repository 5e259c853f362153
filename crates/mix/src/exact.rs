//! Arithmetic that gives the same bits on every machine: what a mean is learned with, so that an auditor can repeat it.
//!
//! Additions, products, quotients and square roots are exact to the last bit everywhere; the exponential of the
//! standard library is not, and a random generator must be the same in every release. Both are here, of basic
//! operations alone.

use std::f64::consts::LN_2;

use fednode_core::ParamSet;

/// Returns `e^x` for `x <= 0`.
pub(crate) fn exp(x: f64) -> f64 {
    if x < -700.0 {
        return 0.0;
    }
    let halvings = (x / LN_2).round();
    let rest = x - halvings * LN_2;
    // |rest| is at most 0.35, so the first term that is left out is below 1e-18.
    let series = (1..=14)
        .rev()
        .fold(1.0, |sum, term| 1.0 + rest * sum / f64::from(term));
    series * f64::from_bits(((1023 + halvings as i64) as u64) << 52)
}

/// Returns the probabilities that logits stand for.
pub(crate) fn softmax(logits: &[f64]) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let powers: Vec<f64> = logits.iter().map(|logit| exp(logit - largest)).collect();
    let total: f64 = powers.iter().sum();
    powers.into_iter().map(|power| power / total).collect()
}

/// Seeded draws (SplitMix64).
#[derive(Debug, Clone)]
pub(crate) struct Stream(u64);

impl Stream {
    /// Starts a stream of its own for these parameters: it depends on every bit of them (FNV-1a).
    pub(crate) fn of(params: &ParamSet) -> Self {
        let fold = |hash: u64, value: f32| {
            (hash ^ u64::from(value.to_bits())).wrapping_mul(0x0000_0100_0000_01b3)
        };
        Self(params.values().fold(0xcbf2_9ce4_8422_2325, fold))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Draws a number below `count`.
    pub(crate) fn below(&mut self, count: usize) -> usize {
        ((u128::from(self.next()) * count as u128) >> 64) as usize
    }

    /// Draws from the uniform distribution over `[0, 1)`.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns the numbers below `count` in random order (Fisher and Yates).
    pub(crate) fn shuffled(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        for last in (1..count).rev() {
            order.swap(last, self.below(last + 1));
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponential_agrees_with_the_standard_library() {
        for x in [0.0, -1e-9, -0.3, -1.0, -7.5, -50.0, -699.9] {
            assert!((exp(x) / f64::exp(x) - 1.0).abs() < 1e-12, "{x}");
        }
        assert_eq!(
            (exp(0.0), exp(-701.0), exp(f64::NEG_INFINITY)),
            (1.0, 0.0, 0.0)
        );
    }

    #[test]
    fn probabilities_add_up_and_keep_their_ratios() {
        let got = softmax(&[1000.0, 1000.0 + 3f64.ln(), -1000.0]);
        assert!(
            (got[0] - 0.25).abs() < 1e-12 && (got[1] - 0.75).abs() < 1e-12 && got[2] == 0.0,
            "{got:?}"
        );
    }

    /// The first numbers of the reference implementation of SplitMix64 for the seed 1234567.
    #[test]
    fn draws_are_those_of_the_reference() {
        let mut stream = Stream(1_234_567);
        let drawn = [stream.next(), stream.next(), stream.next()];
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
    fn order_holds_every_number_once() {
        let mut order = Stream(5).shuffled(1000);
        assert_ne!(order, Stream(6).shuffled(1000));
        order.sort_unstable();
        assert_eq!(order, (0..1000).collect::<Vec<_>>());
        let mut stream = Stream(7);
        let mean = (0..10_000).map(|_| stream.unit()).sum::<f64>() / 10_000.0;
        assert!((mean - 0.5).abs() < 0.01, "{mean}");
        assert!((0..1000).all(|_| stream.below(3) < 3));
    }
}
