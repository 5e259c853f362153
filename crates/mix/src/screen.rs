//! What a received part must fulfil before it is mixed: the last of the four gates of hostile input.
//!
//! The size, the form and the hash were checked before; here the values are judged against the node's own part of the
//! same kind. A part passes if it has the same layout, only finite values, and a norm that is not a large multiple of
//! the own one. A second, optional screen compares the sources of one row with each other and names those that lie far
//! beyond the others.

use std::sync::Arc;

use fednode_core::{ExpertId, LayoutMismatch, ParamSet, Tensor};

use crate::rule::lower_median;

/// Tells why a received part is not used. Its sender is to blame, but for a large norm.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ScreenFault {
    /// It belongs to another model.
    #[error("{0}")]
    Layout(#[from] LayoutMismatch),
    /// It holds a value that is infinite or not a number.
    #[error("tensor `{0}` holds a value that is not finite")]
    NotFinite(String),
    /// It is too large.
    #[error("norm {norm:.3e} is more than {ratio} times the own norm {own:.3e}")]
    Norm {
        /// Its norm.
        norm: f64,
        /// The norm of the own part.
        own: f64,
        /// The accepted ratio.
        ratio: f64,
    },
}

impl ScreenFault {
    /// Tells whether an honest member can have this fault: an unscaled table makes parameters large.
    pub fn is_mistake(&self) -> bool {
        matches!(self, Self::Norm { .. })
    }
}

/// Judges a received part against the own part of the same kind.
///
/// Where the own part is zero it says nothing about sizes (prototypes before the first training, for example). Both
/// norms are those of the tensors in which the own one is not zero. Without any such tensor every finite candidate
/// passes.
///
/// Each tensor has a bound of its own besides, so that the whole allowance is in no single one. A small tensor
/// is judged as if all were alike. One that is zero here may have the ratio once more, times the norm of all.
///
/// # Errors
/// Names the first fault: layout, then finiteness, then norm.
pub fn screen(
    candidate: &ParamSet,
    own: &ParamSet,
    max_norm_ratio: f64,
) -> Result<(), ScreenFault> {
    candidate.check_layout(&own.layout())?;
    if let Some((name, _)) = candidate
        .iter()
        .find(|(_, tensor)| !tensor.values().iter().all(|v| v.is_finite()))
    {
        return Err(ScreenFault::NotFinite(name.to_owned()));
    }
    // The layouts are equal, so the tensors come in pairs.
    let pairs = candidate
        .iter()
        .zip(own.iter())
        .map(|((_, candidate), (_, own))| [candidate, own].map(square));
    let pairs: Vec<[f64; 2]> = pairs.collect();
    let [norm, own] = pairs
        .iter()
        .copied()
        .filter(|[_, own]| *own > 0.0)
        .fold([0.0, 0.0], |[a, b], [c, d]| [a + c, b + d]);
    let (norm, own) = (norm.sqrt(), own.sqrt());
    if own > 0.0 && norm > max_norm_ratio * own {
        return Err(ScreenFault::Norm {
            norm,
            own,
            ratio: max_norm_ratio,
        });
    }
    let alike = own / (pairs.len() as f64).sqrt();
    for [norm, of_tensor] in pairs.into_iter().map(|pair| pair.map(f64::sqrt)) {
        let usual = if of_tensor > 0.0 {
            of_tensor.max(alike)
        } else {
            own * max_norm_ratio
        };
        if own > 0.0 && norm > max_norm_ratio * usual {
            return Err(ScreenFault::Norm {
                norm,
                own: usual,
                ratio: max_norm_ratio,
            });
        }
    }
    Ok(())
}

/// Returns the square of a tensor's norm.
fn square(tensor: &Tensor) -> f64 {
    tensor
        .values()
        .iter()
        .fold(0.0, |sum, value| sum + f64::from(*value).powi(2))
}

/// Returns the Euclidean norm of all values.
pub fn norm(params: &ParamSet) -> f64 {
    params
        .values()
        .fold(0.0, |sum, value| sum + f64::from(value).powi(2))
        .sqrt()
}

/// Returns the Euclidean distance of two parameter sets; infinite if their layouts differ.
pub fn distance(a: &ParamSet, b: &ParamSet) -> f64 {
    if a.len() != b.len() {
        return f64::INFINITY;
    }
    let mut sum = 0.0;
    for ((a_name, a), (b_name, b)) in a.iter().zip(b.iter()) {
        if a_name != b_name || a.shape() != b.shape() {
            return f64::INFINITY;
        }
        let pairs = a.values().iter().zip(b.values());
        sum += pairs.fold(0.0, |sum, (x, y)| {
            sum + (f64::from(*x) - f64::from(*y)).powi(2)
        });
    }
    sum.sqrt()
}

/// Names the candidates whose distance from the own part exceeds a multiple of the candidates' median distance, in the
/// order given.
///
/// The median is the lower one, so that of two candidates the nearer sets the measure. Exact copies of the own part do
/// not count for it. Otherwise a few copies would make every honest expert look far.
pub fn far_sources(
    own: &ParamSet,
    candidates: &[(ExpertId, Arc<ParamSet>)],
    max_multiple_of_median: f64,
) -> Vec<ExpertId> {
    let distances: Vec<f64> = candidates
        .iter()
        .map(|(_, params)| distance(own, params))
        .collect();
    let measured: Vec<f64> = distances
        .iter()
        .copied()
        .filter(|d| d.is_finite() && *d > 0.0)
        .collect();
    let limit = max_multiple_of_median * lower_median(&measured);
    let far = candidates
        .iter()
        .zip(distances)
        .filter(|(_, distance)| !(distance.is_finite() && *distance <= limit));
    far.map(|((expert, _), _)| *expert).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use fednode_core::{NodeId, Slot};

    fn params(values: &[f32]) -> ParamSet {
        let mut params = ParamSet::new();
        params
            .insert("w", &[values.len()], values.to_vec())
            .unwrap();
        params
    }

    fn expert(byte: u8) -> ExpertId {
        ExpertId {
            owner: NodeId::from_bytes([byte; 32]),
            slot: Slot(0),
        }
    }

    fn far(values: &[f32], multiple: f64) -> Vec<u8> {
        let candidates: Vec<_> = (0..)
            .zip(values)
            .map(|(i, v)| (expert(i), Arc::new(params(&[*v]))))
            .collect();
        far_sources(&params(&[0.0]), &candidates, multiple)
            .iter()
            .map(|id| id.owner.as_bytes()[0])
            .collect()
    }

    #[test]
    fn lets_an_ordinary_part_through() {
        assert_eq!(
            screen(&params(&[3.0, 4.0]), &params(&[1.0, 0.0]), 5.0),
            Ok(())
        );
        assert_eq!(screen(&params(&[3.0]), &params(&[0.0]), 10.0), Ok(()));
        // A drawn head with prototypes that are zeros still, and what others have learned (FedGH).
        let both = |head: f32, prototype: f32| {
            let mut both = params(&[head]);
            both.insert("prototypes", &[1], vec![prototype]).unwrap();
            both
        };
        assert_eq!(screen(&both(2.0, 50.0), &both(1.8, 0.0), 10.0), Ok(()));
        assert!(screen(&both(20.0, 50.0), &both(1.8, 0.0), 10.0).is_err());
    }

    /// The allowance of a large layer is not that of a small one, and what is zero at home is bounded, too.
    #[test]
    fn every_tensor_has_its_bound() {
        let part = |base: f32, head: f32, prototype: f32| {
            let mut part = params(&[base]);
            for (name, value) in [("x.head", head), ("x.prototypes", prototype)] {
                part.insert(name, &[1], vec![value]).unwrap();
            }
            part
        };
        let own = part(10.0, 1.0, 0.0);
        assert_eq!(screen(&part(12.0, 5.0, 30.0), &own, 10.0), Ok(()));
        let all_in_one = part(10.0, 90.0, 0.0);
        assert!(
            screen(&all_in_one, &own, 10.0).is_err(),
            "in the head alone"
        );
        let unbounded = part(10.0, 1.0, 1e6);
        assert!(
            screen(&unbounded, &own, 10.0).is_err(),
            "where nothing is at home"
        );
    }

    #[test]
    fn refuses_another_layout_broken_values_and_large_norms() {
        let own = params(&[1.0, 0.0]);
        assert!(matches!(
            screen(&params(&[1.0]), &own, 10.0),
            Err(ScreenFault::Layout(_))
        ));
        for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(
                screen(&params(&[1.0, broken]), &own, 10.0),
                Err(ScreenFault::NotFinite("w".into()))
            );
        }
        let fault = screen(&params(&[30.0, 40.0]), &own, 10.0).unwrap_err();
        assert_eq!(
            fault.to_string(),
            "norm 5.000e1 is more than 10 times the own norm 1.000e0"
        );
        assert!(screen(&params(&[f32::MAX, f32::MAX]), &own, 10.0).is_err());
    }

    #[test]
    fn distance_is_euclidean() {
        assert_eq!(distance(&params(&[0.0, 3.0]), &params(&[4.0, 0.0])), 5.0);
        assert_eq!(
            distance(&params(&[0.0]), &params(&[0.0, 0.0])),
            f64::INFINITY
        );
    }

    #[test]
    fn names_sources_far_beyond_the_others() {
        assert_eq!(far(&[1.0, -1.2, 0.8, 9.0], 3.0), [3]);
        assert_eq!(far(&[1.0, -1.2, 0.8], 3.0), [0u8; 0]);
        assert_eq!(far(&[1.0, 9.0], 3.0), [1]);
        assert_eq!(far(&[9.0], 3.0), [0u8; 0]);
        assert_eq!(far(&[1.0, f32::NAN], 3.0), [1]);
    }

    #[test]
    fn copies_of_the_own_part_do_not_discredit_honest_ones() {
        assert_eq!(far(&[0.0, 0.0, 0.0, 1.0, 1.1], 3.0), [0u8; 0]);
        assert_eq!(far(&[0.0, 0.0], 3.0), [0u8; 0]);
    }
}
