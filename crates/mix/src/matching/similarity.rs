//! The `P + 1` most similar experts of each own expert, softmax-weighted (FedMoE-DA Eq. 9 and 10).
//!
//! ```text
//! S_i  = the P + 1 best of { j : j known }, by (r_ij descending, self first, owner, slot)
//! a_ij = exp(r_ij / tau) / sum over k in S_i of exp(r_ik / tau)
//! ```
//!
//! The paper takes every `j` at or above the `(P+1)`-th largest similarity, which selects more than `P + 1` on ties.
//! The total order above makes the row the same on every machine. A node's own other experts are candidates like any
//! other.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use fednode_core::limits::MAX_NORM_RATIO;
use fednode_core::{ExpertExchange, ExpertId, NodeId, PlanRow, Source};

use super::{Gives, MatchingRow};
use crate::similarity::Proxies;

pub(super) const ROW: MatchingRow = MatchingRow {
    name: "similarity",
    summary: "the experts with the most similar proxies, softmax-weighted",
    reference: "FedMoE-DA, arXiv 2411.02115",
    gives: Gives::Mixture,
    most_norm_ratio: MAX_NORM_RATIO,
    rows: |own, known, exchange| {
        super::by_cosine(own, known, |proxies, own| row(proxies, own, exchange))
    },
    admits: None,
    renamings: None,
};

fn row(proxies: &Proxies<'_>, own: ExpertId, exchange: &ExpertExchange) -> PlanRow {
    let position = proxies
        .position(own)
        .expect("collect keeps the set whose dimension it was given");
    let similarities = proxies.row(position);
    let mut candidates: Vec<(ExpertId, f64)> = proxies
        .experts()
        .iter()
        .copied()
        .zip(similarities)
        .collect();
    candidates.sort_unstable_by(|a, b| order(own, a, b));

    let limit = exchange.peers_per_expert.limit().saturating_add(1);
    let mut cap = SlotCap::new(own.owner, exchange.slots_per_node);
    let selected = candidates
        .into_iter()
        .filter(|(expert, _)| cap.admits(expert.owner))
        .take(limit)
        .collect();
    PlanRow {
        slot: own.slot,
        sources: softmax(selected, exchange.temperature),
    }
}

/// Best first; never equal for two different experts.
fn order(own: ExpertId, a: &(ExpertId, f64), b: &(ExpertId, f64)) -> Ordering {
    let own_first = || (b.0 == own).cmp(&(a.0 == own));
    b.1.total_cmp(&a.1)
        .then_with(own_first)
        .then_with(|| a.0.cmp(&b.0))
}

/// Eq. 10. The own similarity, 1, is the largest: subtracting it keeps the exponentials in range at any temperature.
fn softmax(selected: Vec<(ExpertId, f64)>, temperature: f64) -> Vec<Source> {
    let exponentials: Vec<f64> = selected
        .iter()
        .map(|(_, r)| ((r - 1.0) / temperature).exp())
        .collect();
    let total: f64 = exponentials.iter().sum();
    let source = |((expert, similarity), exponential)| Source {
        expert,
        similarity,
        weight: exponential / total,
    };
    selected.into_iter().zip(exponentials).map(source).collect()
}

/// Lets in at most so many experts of each remote node: who copies a victim's proxy into all of its slots gets no more
/// than these into the victim's rows.
struct SlotCap {
    own: NodeId,
    most: Option<u32>,
    taken: BTreeMap<NodeId, u32>,
}

impl SlotCap {
    fn new(own: NodeId, most: Option<u32>) -> Self {
        Self {
            own,
            most,
            taken: BTreeMap::new(),
        }
    }

    fn admits(&mut self, owner: NodeId) -> bool {
        let Some(most) = self.most.filter(|_| owner != self.own) else {
            return true;
        };
        let taken = self.taken.entry(owner).or_default();
        *taken += 1;
        *taken <= most
    }
}
