//! The geometric median: the point with the least sum of distances to all members. It survives liars that are fewer than
//! half (Pillutla, Kakade and Harchaoui, "Robust Aggregation for Federated Learning", arXiv 1912.13445, Algorithm 2).
//!
//! ```text
//! z_0     = the coordinate-wise median
//! z_(r+1) = sum_i b_i w_i / sum_i b_i        b_i = 1 / max(nu, |z_r - w_i|)        r = 0 … R-1
//! ```
//!
//! The paper weighs members by their samples; a liar would lie about those, so all members count the same here. The
//! authors start from the mean, which is all that a secure sum can give them. A huge lie then needs many steps, so the
//! start here is robust already. A member that is not finite is left out.

use fednode_core::ParamSet;

use super::{
    Accumulator, AverageError, Kind, Param, Params, Part, RuleRow, Takes, median, together,
};
use crate::screen::{distance, norm};

pub(super) const ROW: RuleRow = RuleRow {
    name: "geometric-median",
    summary: "the point with the least sum of distances to all; resists liars that are fewer than half",
    reference: "Pillutla et al., arXiv 1912.13445",
    takes: Takes::AnyParts,
    streams: false,
    uses_weights: false,
    params: &[
        Param {
            name: "median_steps",
            doc: "steps of the smoothed Weiszfeld algorithm (R)",
            kind: Kind::Count { min: 1, max: 1000 },
            default: "8",
        },
        Param {
            name: "smoothing",
            doc: "smallest distance that a member's weight is divided by (nu)",
            kind: Kind::Real {
                min: 1e-12,
                max: 1.0,
            },
            default: "0.000001",
        },
    ],
    combine: geometric_median,
};

fn geometric_median(
    params: &Params,
    parts: &mut dyn Iterator<Item = Part>,
) -> Result<ParamSet, AverageError> {
    let mut parts = together(parts)?;
    parts.retain(|part| norm(&part.params).is_finite());
    let mut point = (median::ROW.combine)(params, &mut parts.iter().cloned())?;
    for _ in 0..params.count("median_steps") {
        let weight =
            |part: &Part| 1.0 / distance(&point, &part.params).max(params.real("smoothing"));
        point = weighted(&parts, weight)?;
    }
    Ok(point)
}

fn weighted(parts: &[Part], weight: impl Fn(&Part) -> f64) -> Result<ParamSet, AverageError> {
    let first = parts.first().ok_or(AverageError::NoMembers)?;
    let mut sum = Accumulator::new(first.params.layout());
    for part in parts {
        sum.add(weight(part), &part.params)?;
    }
    sum.finish()
}
