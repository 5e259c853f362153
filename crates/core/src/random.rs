//! Seeded draws that are the same on every machine, in every release.
//!
//! Every node repeats the same partition, the same initial model and the same learned mean, so a draw may depend on
//! nothing but its seed. The shuffles and distributions of the `rand` crates promise no such thing, and the C library's
//! `log` differs in the last bit between systems. This module holds what is needed instead, on top of two generators
//! that are fixed by their specification and of `libm`'s portable functions.
//!
//! | type | generator | seeded by | draws |
//! |---|---|---|---|
//! | [`Dice`] | ChaCha8 | a purpose in words, a seed, a number | partitions of data |
//! | [`stream`], [`Draws`] | ChaCha8 | a [`Purpose`] and three indices | what a learner needs |
//! | [`Stream`] | SplitMix64 | a set of parameters | what a mean is learned with |
//!
//! The operations that all of them share stand here once: [`below`], [`shuffle`], [`permutation`] and [`fnv1a`].

mod dice;
mod learning;
mod split_mix;

pub use dice::Dice;
pub use learning::{Draws, Purpose, dropout, name_index, nearly_normal, stream, uniform};
pub use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::RngCore;
pub use split_mix::Stream;

/// Draws a whole number below `bound` without bias (Lemire's method with rejection).
///
/// # Panics
/// If `bound` is 0: there is no number below it.
pub fn below(rng: &mut impl RngCore, bound: usize) -> usize {
    let bound = bound as u64;
    loop {
        let product = u128::from(rng.next_u64()) * u128::from(bound);
        if product as u64 >= bound.wrapping_neg() % bound {
            return (product >> 64) as usize;
        }
    }
}

/// Puts items into random order (Fisher and Yates).
pub fn shuffle<T>(rng: &mut impl RngCore, items: &mut [T]) {
    for last in (1..items.len()).rev() {
        items.swap(last, below(rng, last + 1));
    }
}

/// Returns the numbers below `count` in random order.
pub fn permutation(rng: &mut impl RngCore, count: u32) -> Vec<u32> {
    let mut order: Vec<u32> = (0..count).collect();
    shuffle(rng, &mut order);
    order
}

/// Returns a number that depends on every bit of these words (FNV-1a; with bytes as words it is the published function).
pub fn fnv1a(words: impl IntoIterator<Item = u64>) -> u64 {
    let fold = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3);
    words.into_iter().fold(0xcbf2_9ce4_8422_2325, fold)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_chacha::rand_core::SeedableRng;

    fn rng() -> ChaCha8Rng {
        ChaCha8Rng::from_seed([7; 32])
    }

    /// The test vectors of the function's authors (Fowler, Noll, Vo).
    #[test]
    fn fnv1a_is_the_published_function() {
        let of = |text: &str| fnv1a(text.bytes().map(u64::from));
        assert_eq!(of(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(of("a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(of("foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn whole_numbers_are_even() {
        let (mut rng, mut counts) = (rng(), [0; 7]);
        (0..70_000).for_each(|_| counts[below(&mut rng, 7)] += 1);
        assert!(
            counts.iter().all(|count| (9_600..10_400).contains(count)),
            "{counts:?}"
        );
    }

    /// A bound of 3 · 2^62 leaves a quarter of all products to be rejected: without it the draws have a bias.
    #[test]
    fn whole_numbers_below_a_huge_bound_are_even_too() {
        let (mut rng, bound) = (rng(), 3usize << 62);
        let low = (0..30_000)
            .filter(|_| below(&mut rng, bound) < 1 << 62)
            .count();
        assert!((9_600..10_400).contains(&low), "{low}");
    }

    #[test]
    fn permutations_hold_every_number_once() {
        for count in [0, 1, 2, 100] {
            let mut order = permutation(&mut rng(), count);
            order.sort_unstable();
            assert_eq!(order, (0..count).collect::<Vec<_>>());
        }
    }
}
