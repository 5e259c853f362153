//! Who may take part in a pool.
//!
//! Modules arrive with their hash verified and decoded in canonical form; here they must be modules of this model, with
//! finite numbers only. Zero vectors are fine. How large a module may be is for screening before
//! (`fednode_mix::screen`). The pool is bounded by the spec, and by the arrays that a saved state can name.

use std::sync::Arc;

use fednode_core::spec::PoolSpec;
use fednode_core::{MAX_TENSORS, NodeId, ParamSet};

use super::Node;
use super::mixture::{self, MAX_OTHER_TENSORS, Member};

/// Arrays of the statistics expert in a state.
const STATISTICS_TENSORS: usize = 5;

/// The members of a pool, the own one first.
pub(super) struct Members {
    /// Whose they are; nothing for the own one.
    pub(super) nodes: Vec<Option<NodeId>>,
    pub(super) weights: Vec<Member>,
    /// Who was not let in, and why.
    pub(super) refused: Vec<(NodeId, String)>,
}

impl Members {
    /// Takes a foreign member out.
    pub(super) fn refuse(&mut self, at: usize, reason: &str) {
        self.weights.remove(at);
        if let Some(node) = self.nodes.remove(at) {
            self.refused.push((node, reason.to_owned()));
        }
    }
}

/// Lets in what fits, in the order of the nodes.
pub(super) fn admit(node: &Node<'_>, spec: &PoolSpec, mut offered: Vec<(NodeId, Arc<ParamSet>)>) -> Members {
    offered.sort_by_key(|(node, _)| *node);
    let parts = mixture::parts(node.algorithm, node.modular);
    let own = mixture::own(node.algorithm, node.modular);
    let in_module = mixture::layout(parts).len();
    let in_state: usize = node.algorithm.parts().iter().map(|part| part.layout().len()).sum();
    let most = most_members(in_state, in_module);
    let mut members = Members { nodes: vec![None], weights: vec![own], refused: Vec::new() };
    for (owner, params) in offered {
        let judged = if members.nodes.contains(&Some(owner)) {
            Err("it is there twice".to_owned())
        } else if members.nodes.len() >= spec.max_members {
            Err(format!("the pool is full with {} members (`pool.max_members`)", members.nodes.len()))
        } else if members.nodes.len() >= most {
            Err(format!("the pool is full with {} members: more could not be saved", members.nodes.len()))
        } else if let Some((name, _)) = params.iter().find(|(_, tensor)| !tensor.values().iter().all(|v| v.is_finite()))
        {
            Err(format!("it has a value in `{name}` that is not a finite number"))
        } else {
            mixture::load(parts, &params, node.device)
                .map_err(|mismatch| format!("it does not fit the model: {mismatch}"))
        };
        match judged {
            Ok(weights) => {
                members.nodes.push(Some(owner));
                members.weights.push(weights);
            }
            Err(reason) => members.refused.push((owner, reason)),
        }
    }
    members
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
    fn what_is_saved_can_be_named() {
        // FedPer's CNN: six arrays besides a head of two. FedMoE-DA's with 64 experts: 2 + 1 + 64 · 6.
        assert_eq!(most_members(8, 2), 1 + (4096 - 8 - 17) / 2);
        assert_eq!(most_members(387, 385), 1 + 9);
        assert_eq!(most_members(5000, 1), 1);
    }
}
