//! The coordinate-wise median: the middle value, or the mean of the two middle ones. It survives liars that are fewer
//! than half (Yin et al., "Byzantine-Robust Distributed Learning", ICML 2018).

use super::coordinates::{coordinate_wise, plain_mean};
use super::{RuleRow, Takes};

/// Returns the lower median of some numbers; 0 of none. Of two, the smaller one sets the measure.
pub(crate) fn lower_median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let at = sorted.len().saturating_sub(1) / 2;
    sorted.get(at).copied().unwrap_or_default()
}

pub(super) const ROW: RuleRow = RuleRow {
    name: "median",
    summary: "the coordinate-wise median; resists liars that are fewer than half",
    reference: "Yin et al., ICML 2018, arXiv 1803.01498",
    takes: Takes::AnyParts,
    streams: false,
    uses_weights: false,
    params: &[],
    combine: |_, parts| coordinate_wise(parts, median),
};

fn median(sorted: &[f32]) -> f32 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        sorted[middle]
    } else {
        plain_mean(&sorted[middle - 1..=middle])
    }
}
