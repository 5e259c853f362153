//! A whole model in base and head, all of it shared or all of it the node's own: what `fedprox`, `ditto`, `scaffold`,
//! `moon`, `fedproto` and `fd` build on. They differ in what they add to the cross-entropy.

use burn::tensor::Tensor;
use fednode_onnx::{Graph, Value};

use super::part::{Part, Role};
use super::{Output, Setup};
use crate::error::LearnError;
use crate::model::{self, Cut};
use crate::weights::Weights;

/// Where the base is among the parts.
pub(super) const BASE: usize = 0;
/// Where the head is among the parts.
pub(super) const HEAD: usize = 1;

/// Makes base and head of the node's model.
pub(super) fn halves(setup: &Setup<'_>, role: Role) -> Result<[Part; 2], LearnError> {
    let (base, head) = model::halves(setup.model, Cut::Head)?;
    Ok([base, head].map(|net| Part::new(role, net, setup.seed, 0, setup.device)))
}

/// Runs the model with the given weights, plain or recorded; returns features and logits.
pub(super) fn run(
    parts: &[Part],
    weights: &[Weights],
    inputs: Tensor<2>,
) -> (Tensor<2>, Tensor<2>) {
    let features = parts[BASE].net.forward(&weights[BASE], inputs);
    let logits = parts[HEAD].net.forward(&weights[HEAD], features.clone());
    (features, logits)
}

/// Returns what the base makes of a batch.
pub(super) fn features(parts: &[Part], inputs: Tensor<2>) -> Tensor<2> {
    parts[BASE].net.forward(&parts[BASE].weights, inputs)
}

/// Adds to the gradient of every parameter `strength` times its distance from an anchor, `strength (w - anchor)`: the
/// gradient of `strength / 2 |w - anchor|^2`. Parameters without a gradient stay without one.
pub(super) fn pull_towards(
    anchors: &[Weights],
    strength: f64,
    gradients: &mut [Vec<Option<Tensor<1>>>],
    parts: &[Part],
) {
    for ((gradients, part), anchor) in gradients.iter_mut().zip(parts).zip(anchors) {
        let both = part.weights.tensors().zip(anchor.tensors());
        for (gradient, (now, then)) in gradients.iter_mut().zip(both) {
            let pull = (now.clone() - then.clone()).mul_scalar(strength);
            *gradient = gradient.take().map(|gradient| gradient + pull);
        }
    }
}

/// Predicts by base and head.
pub(super) fn forward(parts: &[Part], inputs: Tensor<2>) -> Output {
    let logits = parts[HEAD]
        .net
        .forward(&parts[HEAD].weights, features(parts, inputs));
    output(logits)
}

/// Writes into a graph the logits that [`forward`] computes.
pub(super) fn emit(parts: &[Part], graph: &mut Graph, inputs: Value) -> Value {
    let features = parts[BASE].emit(graph, inputs);
    parts[HEAD].emit(graph, features)
}

/// Makes the output of a model without experts.
pub(super) fn output(logits: Tensor<2>) -> Output {
    Output {
        logits,
        chosen: None,
        n_experts: 0,
    }
}
