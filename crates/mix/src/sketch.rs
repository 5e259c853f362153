//! Making sketches of gating proxies, and choosing by them whose proxies are worth fetching.
//!
//! ```text
//! bit b of a proxy p = [ sum over i of s_bi p_i > 0 ],  s_bi = ±1 drawn alike by the whole federation
//! ```
//!
//! With N nodes of K experts the exact proxies of all are `N K n` floats, 737 MB for ten thousand nodes of the reference
//! model; their sketches are 5 MB. A node shortlists by sketches, several times as many as it will mix, and computes
//! Eq. 8 to 10 on the exact proxies of the shortlist only.

use std::collections::BTreeSet;

use fednode_core::draw::DrawSeed;
use fednode_core::sketch::{SKETCH_BYTES, differing_bits};
use fednode_core::{NodeId, ProxySet, Sketches};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// How many candidates a row of `sources` shortlists: four times as many, and at least 16. Sketches err by a few
/// hundredths, and where many are nearly as like as the best, a short list would miss it.
pub const fn shortlisted(sources: usize) -> usize {
    let four_times = sources.saturating_mul(4);
    match sources {
        0 => 0,
        _ if four_times < 16 => 16,
        _ => four_times,
    }
}

const BITS: usize = 8 * SKETCH_BYTES;

/// Returns the sketches of a node's proxies.
pub fn sketches(proxies: &ProxySet, seed: DrawSeed) -> Sketches {
    let mut rng = ChaCha8Rng::from_seed(seed.bytes(b"fednode sketches 1"));
    let mut sums = vec![[0.0_f32; BITS]; proxies.len()];
    let mut drawn = [0_u8; SKETCH_BYTES];
    for coordinate in 0..proxies.dimension() {
        rng.fill_bytes(&mut drawn);
        let signs: [f32; BITS] = std::array::from_fn(|bit| {
            if drawn[bit / 8] >> (bit % 8) & 1 == 1 {
                1.0
            } else {
                -1.0
            }
        });
        for (proxy, sums) in proxies.iter().zip(&mut sums) {
            let value = proxy[coordinate];
            sums.iter_mut()
                .zip(&signs)
                .for_each(|(sum, sign)| *sum += sign * value);
        }
    }
    let byte = |sums: &[f32; BITS], at: usize| {
        (0..8)
            .map(|bit| u8::from(sums[8 * at + bit] > 0.0) << bit)
            .sum()
    };
    let sketches: Vec<_> = sums
        .iter()
        .map(|sums| std::array::from_fn(|at| byte(sums, at)))
        .collect();
    Sketches::new(&sketches)
}

/// Returns the owners of the experts that resemble the own ones most: of each own expert, the best `per_row` others.
pub fn shortlist<'a>(
    own: &Sketches,
    others: impl Iterator<Item = (NodeId, &'a Sketches)>,
    per_row: usize,
) -> BTreeSet<NodeId> {
    let others: Vec<(NodeId, &Sketches)> = others.collect();
    let mut owners = BTreeSet::new();
    for sketch in own.iter() {
        let candidates = others
            .iter()
            .flat_map(|(node, sketches)| sketches.iter().map(move |other| (node, other)));
        let mut ranked: Vec<(u32, NodeId)> = candidates
            .map(|(node, other)| (differing_bits(sketch, other), *node))
            .collect();
        if per_row < ranked.len() {
            ranked.select_nth_unstable(per_row);
            ranked.truncate(per_row);
        }
        owners.extend(ranked.into_iter().map(|(_, node)| node));
    }
    owners
}

#[cfg(test)]
mod tests {
    use super::*;
    use fednode_core::sketch::Sketch;

    const SEED: DrawSeed = DrawSeed::of(7);

    /// Estimates the cosine of the angle between two proxies from their sketches.
    fn estimated_cosine(a: &Sketch, b: &Sketch) -> f64 {
        let angle = std::f64::consts::PI * f64::from(differing_bits(a, b)) / BITS as f64;
        angle.cos()
    }

    fn node(byte: u8) -> NodeId {
        NodeId::from_bytes([byte; 32])
    }

    /// A proxy at an angle from the first axis, in a space of `dimension`.
    fn at(degrees: f32, dimension: usize) -> Vec<f32> {
        let mut proxy = vec![0.0; dimension];
        (proxy[0], proxy[1]) = (
            3.0 * degrees.to_radians().cos(),
            3.0 * degrees.to_radians().sin(),
        );
        proxy
    }

    /// SimHash (Charikar 2002): a bit differs with probability θ/π, so the estimate of 1024 bits stays within three
    /// standard deviations, 3 sin θ π sqrt(p (1 - p) / 1024). Gaussian planes give that exactly; ±1 need vectors
    /// whose weight is spread over many coordinates, as that of proxies is.
    #[test]
    fn sketches_tell_the_cosine() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut random = |n: usize| -> Vec<f32> {
            (0..n)
                .map(|_| rng.next_u32() as f32 / u32::MAX as f32 - 0.5)
                .collect()
        };
        let (a, noise) = (random(500), random(500));
        for mixed in [0.0_f32, 0.2, 0.5, 1.0, 3.0] {
            let b: Vec<f32> = a
                .iter()
                .zip(&noise)
                .map(|(a, noise)| a + mixed * noise)
                .collect();
            let exact = crate::similarity::cosine(&a, &b);
            let both = sketches(&ProxySet::new(500, [a.clone(), b].concat()).unwrap(), SEED);
            let pair: Vec<_> = both.iter().collect();
            let share = exact.acos() / std::f64::consts::PI;
            let deviation =
                exact.acos().sin() * std::f64::consts::PI * (share * (1.0 - share) / 1024.0).sqrt();
            let estimate = estimated_cosine(pair[0], pair[1]);
            assert!(
                (estimate - exact).abs() <= 3.0 * deviation + 1e-9,
                "{estimate} for {exact}"
            );
        }
    }

    #[test]
    fn everybody_draws_the_same_planes_and_another_federation_others() {
        let set = ProxySet::new(16, at(30.0, 16)).unwrap();
        assert_eq!(sketches(&set, SEED), sketches(&set, SEED));
        assert_ne!(sketches(&set, SEED), sketches(&set, DrawSeed::of(8)));
    }

    #[test]
    fn the_shortlist_holds_the_nearest_of_each_row() {
        let sketch = |proxies: &[f32]| {
            let values = proxies
                .iter()
                .flat_map(|degrees| at(*degrees, 64))
                .collect();
            sketches(&ProxySet::new(64, values).unwrap(), SEED)
        };
        let own = sketch(&[0.0, 90.0]);
        let others = [
            (node(1), sketch(&[180.0, 45.0])),
            (node(2), sketch(&[10.0])),
            (node(3), sketch(&[-90.0, 85.0])),
        ];
        let listed = |per_row| {
            shortlist(
                &own,
                others.iter().map(|(node, sketches)| (*node, sketches)),
                per_row,
            )
        };
        assert_eq!(listed(1), BTreeSet::from([node(2), node(3)]));
        assert_eq!(listed(100), BTreeSet::from([node(1), node(2), node(3)]));
        assert_eq!(listed(0), BTreeSet::new());
    }
}
