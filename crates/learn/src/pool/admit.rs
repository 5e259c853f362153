//! Who may take part in a pool.
//!
//! Modules arrive with their hash verified and decoded in canonical kind. Here they must be modules of this model, with
//! finite numbers only, and not much larger than is usual. One module with huge outputs would undo the training of the
//! gate for everybody. What is usual is the median norm of all modules on offer or the own one's, whichever is larger;
//! the own one alone says little where modules start at zero (DBE's vectors). Zero vectors are fine. The pool is
//! bounded by the arrays that a saved state can name, and by the spec: `assemble` takes the best of what is let in
//! here.

use std::sync::Arc;

use fednode_core::limits::MAX_NORM_RATIO;
use fednode_core::{LayoutMismatch, MAX_TENSORS, NodeId, ParamSet};

use super::Node;
use super::mixture::{self, MAX_OTHER_TENSORS, Member};

/// Arrays of the statistics expert in a state.
const STATISTICS_TENSORS: usize = 6;

/// Why a module is not let into a pool.
#[derive(Debug, thiserror::Error)]
enum NotAdmitted {
    #[error("it is there twice")]
    Twice,
    #[error("it does not fit the model: {0}")]
    Misfit(#[from] LayoutMismatch),
    #[error("it has a value in `{0}` that is not a finite number")]
    NotFinite(String),
    #[error("its norm is {norm:.3e}, and {most:.3e} is the most")]
    TooLarge { norm: f64, most: f64 },
}

/// The members of a pool, the own one first.
pub(super) struct Members {
    /// Whose they are; nothing for the own one.
    pub(super) nodes: Vec<Option<NodeId>>,
    pub(super) weights: Vec<Member>,
    /// Who was not let in, and why.
    pub(super) refused: Vec<(NodeId, String)>,
    /// For whom there was no room, and their scores, if they were found out.
    pub(super) surplus: Vec<(NodeId, Option<f64>)>,
}

impl Members {
    /// Takes a foreign member out.
    pub(super) fn refuse(&mut self, at: usize, reason: &str) {
        self.weights.remove(at);
        if let Some(node) = self.nodes.remove(at) {
            self.refused.push((node, reason.to_owned()));
        }
    }

    /// Keeps so many members, the own one and the foreign ones of the highest scores; scores that are no numbers are the
    /// lowest.
    pub(super) fn keep_best(&mut self, most: usize, scores: &[f64]) {
        let value = |member: usize| {
            if scores[member].is_nan() {
                f64::NEG_INFINITY
            } else {
                scores[member]
            }
        };
        let mut foreign: Vec<usize> = (1..self.weights.len()).collect();
        foreign.sort_by(|a, b| value(*b).total_cmp(&value(*a)).then(a.cmp(b)));
        let mut surplus = foreign.split_off(foreign.len().min(most.max(1) - 1));
        surplus.sort_unstable_by(|a, b| b.cmp(a));
        for member in surplus {
            self.weights.remove(member);
            self.surplus.extend(
                self.nodes
                    .remove(member)
                    .map(|node| (node, Some(value(member)))),
            );
        }
    }
}

/// Lets in what fits, in the order of the nodes.
pub(super) fn admit(node: &Node<'_>, mut offered: Vec<(NodeId, Arc<ParamSet>)>) -> Members {
    offered.sort_by_key(|(node, _)| *node);
    let parts = mixture::parts(node.algorithm, node.modular);
    let own = mixture::own(node.algorithm, node.modular);
    let in_module = mixture::layout(parts).len();
    let in_state: usize = node
        .algorithm
        .parts()
        .iter()
        .map(|part| part.layout().len())
        .sum();
    let most = most_members(in_state, in_module);
    let mut members = Members {
        nodes: vec![None],
        weights: vec![own],
        refused: Vec::new(),
        surplus: Vec::new(),
    };
    let usual = usual_norm(node, &offered);
    for (owner, params) in offered {
        if members.nodes.len() >= most {
            // More could not be saved, which is not their fault.
            members.surplus.push((owner, None));
            continue;
        }
        let judged = if members.nodes.contains(&Some(owner)) {
            Err(NotAdmitted::Twice)
        } else {
            judge(node, &params, usual)
        };
        match judged {
            Ok(weights) => {
                members.nodes.push(Some(owner));
                members.weights.push(weights);
            }
            Err(reason) => members.refused.push((owner, reason.to_string())),
        }
    }
    members
}

/// Loads a module that fits, or tells why it does not.
fn judge(node: &Node<'_>, params: &ParamSet, usual: f64) -> Result<Member, NotAdmitted> {
    let parts = mixture::parts(node.algorithm, node.modular);
    let member = mixture::load(parts, params, node.device)?;
    if let Some((name, _)) = params
        .iter()
        .find(|(_, tensor)| !tensor.values().iter().all(|value| value.is_finite()))
    {
        return Err(NotAdmitted::NotFinite(name.to_owned()));
    }
    let (norm, most) = (norm(params), MAX_NORM_RATIO * usual);
    if usual > 0.0 && norm > most {
        return Err(NotAdmitted::TooLarge { norm, most });
    }
    Ok(member)
}

/// Returns the norm of the own module or the median of all, the lower one of two, whichever is larger.
fn usual_norm(node: &Node<'_>, offered: &[(NodeId, Arc<ParamSet>)]) -> f64 {
    let own = mixture::own(node.algorithm, node.modular);
    let own = norm(&mixture::save(
        mixture::parts(node.algorithm, node.modular),
        &own,
    ));
    let mut norms: Vec<f64> = offered
        .iter()
        .map(|(_, params)| norm(params))
        .chain([own])
        .collect();
    norms.retain(|norm| norm.is_finite());
    norms.sort_by(f64::total_cmp);
    own.max(
        norms
            .get(norms.len().saturating_sub(1) / 2)
            .copied()
            .unwrap_or(0.0),
    )
}

/// Returns the Euclidean norm of all numbers; infinite if one is no number.
fn norm(params: &ParamSet) -> f64 {
    let sum: f64 = params.values().map(|value| f64::from(value).powi(2)).sum();
    if sum.is_nan() {
        f64::INFINITY
    } else {
        sum.sqrt()
    }
}

/// Returns how many members can be saved, the own one among them, beside a state of so many arrays.
fn most_members(in_state: usize, in_module: usize) -> usize {
    let left = MAX_TENSORS.saturating_sub(in_state + STATISTICS_TENSORS + MAX_OTHER_TENSORS);
    1 + left / in_module.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_saved_array_has_a_name() {
        // FedPer's CNN: six arrays besides a head of two. FedMoE-DA's with 64 experts: 2 + 1 + 64 · 6.
        assert_eq!(most_members(8, 2), 1 + (4096 - 8 - 20) / 2);
        assert_eq!(most_members(387, 385), 1 + 9);
        assert_eq!(most_members(5000, 1), 1);
    }
}
