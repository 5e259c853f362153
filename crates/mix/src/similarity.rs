//! Cosine similarity of gating proxies (FedMoE-DA Eq. 8): `r_ij = <p_i, p_j> / (|p_i| |p_j|)`.
//!
//! The norms of all known proxies are computed once; the proxies themselves are borrowed, not copied, because the
//! proxies of a thousand nodes are a hundred megabytes. A proxy that is zero or not finite resembles nothing: its
//! similarity with everything is 0, so a peer's broken gate cannot spread.

use std::collections::BTreeMap;
use std::sync::Arc;

use fednode_core::{ExpertId, NodeId, ProxySet, Slot};

/// Independent partial sums of a dot product: enough for the compiler to use vector registers, and a fixed order of
/// summation on every machine.
const LANES: usize = 8;

/// Returns the cosine of two vectors, between -1 and 1; 0 where one has no direction (zero, not finite) and where the
/// lengths differ.
pub fn cosine(a: &[f32], b: &[f32]) -> f64 {
    if a.len() != b.len() {
        return 0.0;
    }
    scaled(dot(a, b), inverse_norm(a), inverse_norm(b))
}

/// All proxies that compare with one node's, their norms computed once.
#[derive(Debug, Clone)]
pub struct Proxies<'a> {
    experts: Vec<ExpertId>,
    vectors: Vec<&'a [f32]>,
    inverse_norms: Vec<f64>,
}

impl<'a> Proxies<'a> {
    /// Collects the proxies of all nodes whose dimension is `dimension`, ordered by owner and slot. A set of another
    /// dimension lives in another feature space and is left out.
    pub fn collect(known: &'a BTreeMap<NodeId, Arc<ProxySet>>, dimension: usize) -> Self {
        let mut proxies = Self {
            experts: Vec::new(),
            vectors: Vec::new(),
            inverse_norms: Vec::new(),
        };
        for (owner, set) in known.iter().filter(|(_, set)| set.dimension() == dimension) {
            for (slot, vector) in (0..).zip(set.iter()) {
                proxies.experts.push(ExpertId {
                    owner: *owner,
                    slot: Slot(slot),
                });
                proxies.vectors.push(vector);
                proxies.inverse_norms.push(inverse_norm(vector));
            }
        }
        proxies
    }

    /// Returns the experts, in the order of the similarities of a row.
    pub fn experts(&self) -> &[ExpertId] {
        &self.experts
    }

    /// Returns where an expert stands in the order.
    pub fn position(&self, expert: ExpertId) -> Option<usize> {
        self.experts.binary_search(&expert).ok()
    }

    /// Returns the similarity of the proxy at `own` with every proxy; with itself it is exactly 1.
    ///
    /// # Panics
    /// Panics if `own` is not a position of this collection.
    pub fn row(&self, own: usize) -> Vec<f64> {
        let (vector, inverse) = (self.vectors[own], self.inverse_norms[own]);
        let others = self.vectors.iter().zip(&self.inverse_norms);
        let mut row: Vec<f64> = others
            .map(|(other, other_inverse)| scaled(dot(vector, other), inverse, *other_inverse))
            .collect();
        row[own] = 1.0;
        row
    }
}

/// Returns `1 / |v|`, or 0 where the vector has no direction.
fn inverse_norm(vector: &[f32]) -> f64 {
    let inverse = 1.0 / dot(vector, vector).sqrt();
    if inverse.is_finite() { inverse } else { 0.0 }
}

fn scaled(dot: f64, inverse_a: f64, inverse_b: f64) -> f64 {
    if inverse_a == 0.0 || inverse_b == 0.0 {
        return 0.0; // not a product: the dot of a proxy that is not finite is NaN
    }
    (dot * inverse_a * inverse_b).clamp(-1.0, 1.0)
}

/// Products of `f32` are exact in `f64` and cannot overflow there, so the sum is as good as the input.
fn dot(a: &[f32], b: &[f32]) -> f64 {
    debug_assert_eq!(
        a.len(),
        b.len(),
        "only vectors of one feature space are compared"
    );
    let mut lanes = [0.0f64; LANES];
    let (a_blocks, a_rest) = a.as_chunks::<LANES>();
    let (b_blocks, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a_blocks.iter().zip(b_blocks) {
        for lane in 0..LANES {
            lanes[lane] += f64::from(a[lane]) * f64::from(b[lane]);
        }
    }
    let rest: f64 = a_rest
        .iter()
        .zip(b_rest)
        .map(|(x, y)| f64::from(*x) * f64::from(*y))
        .sum();
    lanes.iter().sum::<f64>() + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_hand_computed_angles() {
        assert!((cosine(&[1.0, 0.0], &[3.0, 4.0]) - 0.6).abs() < 1e-15);
        assert!((cosine(&[0.1, 0.2, 0.3], &[0.1, 0.2, 0.3]) - 1.0).abs() < 1e-15);
        assert!((cosine(&[1.0; 4609], &[-2.0; 4609]) + 1.0).abs() < 1e-12);
    }

    #[test]
    fn without_a_direction_there_is_no_similarity() {
        for broken in [[0.0, 0.0], [f32::NAN, 1.0], [f32::INFINITY, 1.0]] {
            assert_eq!(cosine(&broken, &[1.0, 1.0]), 0.0);
            assert_eq!(cosine(&[1.0, 1.0], &broken), 0.0);
        }
        assert_eq!(cosine(&[1.0], &[1.0, 1.0]), 0.0);
    }

    #[test]
    fn survives_the_largest_and_smallest_numbers() {
        assert!((cosine(&[f32::MAX; 9], &[f32::MAX; 9]) - 1.0).abs() < 1e-12);
        assert!((cosine(&[f32::MIN_POSITIVE; 9], &[f32::MAX; 9]) - 1.0).abs() < 1e-12);
    }
}
