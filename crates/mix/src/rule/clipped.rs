//! The clipped mean: everybody counts, and nobody counts for more than the usual member. A part that lies far from the
//! others is drawn towards them, and a large weight counts as the median weight. It survives liars that are fewer than
//! half (one step of centred clipping: Karimireddy, He and Jaggi, "Learning from History for Byzantine Robust
//! Optimization", ICML 2021).
//!
//! ```text
//! c    = the coordinate-wise median of all x_m         d_m = |x_m - c|
//! x'_m = c + min(1, reach * median(d) / d_m) (x_m - c)
//! mean = sum_m v_m x'_m / sum_m v_m                    v_m = min(w_m, median(w))
//! ```
//!
//! The medians of `d` and `w` are the lower ones.
//!
//! The paper takes the last mean for `c` and asks for the radius. Here nobody has to know how long an honest step is, since
//! the members' own spread says it. Honest members are seldom twice as far as usual, so their parts stay as they are.
//! Krum and the median drop what differs; under this rule a member with rare data still has its say.
//!
//! A member that is not finite is left out.

use std::sync::Arc;

use fednode_core::ParamSet;

use super::mean::check_weight;
use super::median::{self, lower_median};
use super::{Accumulator, AverageError, Kind, Param, Params, Part, RuleRow, Takes, together};
use crate::screen::{distance, norm};

pub(super) const ROW: RuleRow = RuleRow {
    name: "clipped",
    summary: "the weighted mean of parts drawn to their middle if they are far from it, with no weight above the median; \
              resists liars that are fewer than half",
    reference: "Karimireddy et al., ICML 2021, arXiv 2012.10333",
    takes: Takes::AnyParts,
    streams: false,
    uses_weights: true,
    params: &[Param {
        name: "reach",
        doc: "how far from the middle a part may be, in median distances",
        kind: Kind::Real {
            min: 0.1,
            max: 1000.0,
        },
        default: "2",
    }],
    combine: clipped,
};

fn clipped(
    params: &Params,
    parts: &mut dyn Iterator<Item = Part>,
) -> Result<ParamSet, AverageError> {
    let mut parts = together(parts)?;
    // Before they are compared: the smaller of a number and a not-a-number is the number.
    parts
        .iter()
        .try_for_each(|part| check_weight(part.weight))?;
    parts.retain(|part| part.weight > 0.0 && norm(&part.params).is_finite());
    let first = parts.first().ok_or(AverageError::NoMembers)?;
    let mut sum = Accumulator::new(first.params.layout());
    let centre = (median::ROW.combine)(params, &mut parts.iter().cloned())?;
    let distances: Vec<f64> = parts
        .iter()
        .map(|part| distance(&centre, &part.params))
        .collect();
    let radius = params.real("reach") * lower_median(&distances);
    let weights: Vec<f64> = parts.iter().map(|part| part.weight).collect();
    let most = lower_median(&weights);
    for (part, distance) in parts.iter().zip(distances) {
        let near = if distance > radius {
            Arc::new(drawn(&centre, &part.params, radius / distance))
        } else {
            part.params.clone()
        };
        sum.add(part.weight.min(most), &near)?;
    }
    sum.finish()
}

/// Returns the point on the way from the centre to a part of the same layout: all the way is a share of 1.
fn drawn(centre: &ParamSet, part: &ParamSet, share: f64) -> ParamSet {
    let mut drawn = ParamSet::new();
    for ((name, from), (_, to)) in centre.iter().zip(part.iter()) {
        let pairs = from.values().iter().zip(to.values());
        let between = |(from, to): (&f32, &f32)| {
            let (from, to) = (f64::from(*from), f64::from(*to));
            (from + share * (to - from)) as f32
        };
        drawn
            .insert(name, from.shape(), pairs.map(between).collect())
            .expect("the centre has the layout of every part");
    }
    drawn
}
