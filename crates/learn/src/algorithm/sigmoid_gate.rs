//! A gate between two classifiers: the sigmoid of one linear score is the share of the common one, the rest is the node's
//! own (PFL-MoE, stage 3; FedSyn-MoE).

use burn::tensor::Tensor;
use burn::tensor::activation::sigmoid;
use fednode_onnx::{Graph, Value};

use crate::model::{Activation, Linear, Net, leaf};

/// A linear gate with one score, whose sigmoid is what the common classifier counts.
pub(super) fn gate(inputs: usize) -> Net {
    Net::new(vec![leaf(Linear {
        name: "gate",
        inputs,
        outputs: 1,
        activation: Activation::Identity,
        bias: true,
    })])
}

/// Mixes logits by the gate's score, `[batch, 1]`: the common classifier's share is its sigmoid.
pub(super) fn mixed(score: Tensor<2>, common: Tensor<2>, personal: Tensor<2>) -> Tensor<2> {
    personal.clone() + sigmoid(score) * (common - personal)
}

/// Writes into a graph what [`mixed`] returns.
pub(super) fn emit_mixed(graph: &mut Graph, score: Value, common: Value, personal: Value) -> Value {
    let share = graph.sigmoid(score);
    let difference = graph.sub(common, personal);
    let step = graph.mul(difference, share);
    graph.add(personal, step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::testing::{assert_close, matrix};
    use crate::train::cross_entropy;
    use crate::weights::values;

    /// The spec's gradient: `(p - onehot) . (z_g - z_l) * g (1 - g) * v`. Score ln 3, so g = 3/4; common logits (2, 0),
    /// own (0, 4): mixed (1.5, 1), label 1. So p = (0.622 459, 0.377 541), less the label (0.622 459, -0.622 459);
    /// times (2, -4) is 3.734 756; times 3/16 is 0.700 267.
    #[test]
    fn the_gate_agrees_with_a_worked_example() {
        let score = matrix([[3f32.ln()]]).autodiff().require_grad();
        let logits = mixed(score.clone(), matrix([[2.0, 0.0]]), matrix([[0.0, 4.0]]));
        assert_close(&values(&logits), &[1.5, 1.0], 1e-6);
        let loss = cross_entropy(logits, matrix([[0.0, 1.0]]));
        assert_close(
            &values(&score.grad(&loss.backward()).unwrap()),
            &[0.700_267],
            1e-5,
        );
    }
}
