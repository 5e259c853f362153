//! Krum and Multi-Krum: the member that lies nearest to most others, or the mean of several such members (Blanchard et
//! al., "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent", NeurIPS 2017).
//!
//! ```text
//! s_i   = sum of |w_i - w_j|^2 over the n - f - 2 members j that are nearest to i
//! krum  = the w_i of least s_i          multi-krum = mean of the m members of least s_i
//! ```
//!
//! The proof wants n > 2f + 2. With fewer members one neighbour counts. Of equal scores the earlier member comes first.

use std::sync::Arc;

use fednode_core::ParamSet;

use super::{Accumulator, AverageError, Kind, Param, Params, Part, RuleRow, Takes, together};
use crate::screen::distance;

pub(super) const ROW: RuleRow = RuleRow {
    name: "krum",
    summary: "the member that lies nearest to most others; resists `faulty` liars",
    reference: "Blanchard et al., NeurIPS 2017, arXiv 1703.02757",
    takes: Takes::AnyParts,
    streams: false,
    uses_weights: false,
    params: &[FAULTY],
    combine: |params, parts| {
        let mut best = best(together(parts)?, params, 1);
        Ok(Arc::unwrap_or_clone(best.remove(0).params))
    },
};

pub(super) const MULTI_ROW: RuleRow = RuleRow {
    name: "multi-krum",
    summary: "the mean of the members that lie nearest to most others; resists `faulty` liars",
    params: &[
        FAULTY,
        Param {
            name: "kept",
            doc: "members that are averaged (m); 0 for all but `faulty`",
            kind: Kind::Count { min: 0, max: 1000 },
            default: "0",
        },
    ],
    combine: multi_krum,
    ..ROW
};

const FAULTY: Param = Param {
    name: "faulty",
    doc: "liars that are expected (f)",
    kind: Kind::Count { min: 0, max: 1000 },
    default: "1",
};

fn multi_krum(
    params: &Params,
    parts: &mut dyn Iterator<Item = Part>,
) -> Result<ParamSet, AverageError> {
    let parts = together(parts)?;
    let kept = match params.count("kept") {
        0 => parts.len().saturating_sub(params.count("faulty")),
        kept => kept,
    };
    let mut mean = Accumulator::new(parts[0].params.layout());
    for part in best(parts, params, kept.max(1)) {
        mean.add(1.0, &part.params)?;
    }
    mean.finish()
}

/// Returns the members of least score, best first.
fn best(parts: Vec<Part>, params: &Params, kept: usize) -> Vec<Part> {
    let n = parts.len();
    let nearest = n.saturating_sub(params.count("faulty") + 2).max(1);
    let mut squares = vec![Vec::with_capacity(n); n];
    for i in 0..n {
        for j in 0..i {
            let square = distance(&parts[i].params, &parts[j].params).powi(2);
            // A member that is not a number is as far away as can be.
            let square = if square.is_nan() {
                f64::INFINITY
            } else {
                square
            };
            squares[i].push(square);
            squares[j].push(square);
        }
    }
    let score = |mut squares: Vec<f64>| {
        squares.sort_unstable_by(f64::total_cmp);
        squares.iter().take(nearest).sum::<f64>()
    };
    let mut scored: Vec<(f64, Part)> = squares.into_iter().map(score).zip(parts).collect();
    scored.sort_by(|a, b| a.0.total_cmp(&b.0));
    scored
        .into_iter()
        .take(kept)
        .map(|(_, part)| part)
        .collect()
}
