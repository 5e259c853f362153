//! The coordinate-wise mean without the largest and the smallest tenth, rounded up from three members on. It survives
//! liars that are at most a tenth (Yin et al., "Byzantine-Robust Distributed Learning", ICML 2018).

use super::coordinates::{coordinate_wise, plain_mean};
use super::{RuleRow, Takes};

pub(super) const ROW: RuleRow = RuleRow {
    name: "trimmed-mean",
    summary: "the coordinate-wise mean without the largest and smallest tenth; resists liars up to a tenth",
    reference: "Yin et al., ICML 2018, arXiv 1803.01498",
    takes: Takes::AnyParts,
    streams: false,
    uses_weights: false,
    params: &[],
    combine: |_, parts| coordinate_wise(parts, trimmed_mean),
};

/// One in this many members is cut off at each end.
const TRIM_ONE_IN: usize = 10;

fn trimmed_mean(sorted: &[f32]) -> f32 {
    // Rounded up: with the usual rounding down, the nine members of a small federation would get the plain mean.
    let cut = if sorted.len() < 3 {
        0
    } else {
        sorted.len().div_ceil(TRIM_ONE_IN)
    };
    plain_mean(&sorted[cut..sorted.len() - cut])
}
