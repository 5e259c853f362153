//! Fed-Syn-MoE: the comparator of Table 4 in Feng et al., "PM-MOE", WWW 2025 (arXiv 2502.00354, §4.3): a gate that balances
//! the common and the node's own head, learning at once with everything that it weighs.
//!
//! ```text
//! r = base(x)    p = sigmoid(w · r + b)
//! y = p · head(r) + (1 - p) · own(r)        CE(y, label); base, head, own, w and b all learn from it
//! ```
//!
//! The paper says no more than that, so the rest is PFL-MFE's, whose stages one after the other this is to be compared
//! with. The gate is linear and reads the features. Logits are mixed. The own head is a copy of the common one at
//! first. Base and head are averaged by samples, as in the algorithms around it; own head and gate stay.

use burn::tensor::Tensor;
use fednode_onnx::{Graph, Value};

use super::hyper::AGGREGATION;
use super::part::{Part, Role, plain};
use super::sigmoid_gate::{emit_mixed, gate, mixed};
use super::whole::output;
use super::{
    Algorithm, Extractor, Optimizers, Output, Row, Setup, Stage, Step, StepContext, averaged,
};
use crate::batch::Batch;
use crate::error::LearnError;
use crate::model::{self, Cut};
use crate::train::cross_entropy;
use crate::weights::Weights;

pub(super) const ROW: Row = Row {
    name: "fed-syn-moe",
    summary: "a gate between an averaged head and one's own, all of it learning at once",
    reference: "Feng et al., WWW 2025, arXiv 2502.00354, Table 4",
    averages: "the whole model",
    peer_to_peer: "nothing",
    keeps_private: "a second head and the gate",
    trains_ahead: true,
    optimizers: Optimizers::Any,
    hyper: &[AGGREGATION],
    profiles: &[],
    exchange: averaged,
    build: |setup| FedSynMoe::new(setup).map(|algorithm| Box::new(algorithm) as Box<dyn Algorithm>),
};

const BASE: usize = 0;
const HEAD: usize = 1;
const OWN: usize = 2;
const GATE: usize = 3;

struct FedSynMoe {
    parts: [Part; 4],
}

impl FedSynMoe {
    fn new(setup: &Setup<'_>) -> Result<Self, LearnError> {
        let (base, head) = model::halves(setup.model, Cut::Head)?;
        let part = |role, net| Part::new(role, net, setup.seed, 0, setup.device);
        let gate = part(Role::Private, gate(head.n_inputs()));
        let mut own = part(Role::Private, head.renamed("personal"));
        let (base, head) = (part(Role::Shared, base), part(Role::Shared, head));
        own.weights = head.weights.clone();
        Ok(Self {
            parts: [base, head, own, gate],
        })
    }

    fn run(&self, weights: &[Weights], inputs: Tensor<2>) -> Tensor<2> {
        let net = |part: usize, inputs| self.parts[part].net.forward(&weights[part], inputs);
        let features = net(BASE, inputs);
        mixed(
            net(GATE, features.clone()),
            net(HEAD, features.clone()),
            net(OWN, features),
        )
    }
}

impl Algorithm for FedSynMoe {
    fn parts(&self) -> &[Part] {
        &self.parts
    }

    fn parts_mut(&mut self) -> &mut [Part] {
        &mut self.parts
    }

    fn copies(&self) -> &'static [[usize; 2]] {
        &[[OWN, HEAD]]
    }

    fn step(&mut self, _stage: Stage, batch: Batch, ctx: &mut StepContext<'_>) -> Step {
        let tape = ctx.record(&self.parts);
        let loss = cross_entropy(self.run(&tape, batch.inputs), batch.targets);
        Step {
            loss: ctx.step(&mut self.parts, tape, loss),
            routed: Vec::new(),
        }
    }

    fn extractor(&self) -> Option<Extractor<'_>> {
        Some(Extractor::of(&self.parts[BASE]))
    }

    fn forward(&self, inputs: Tensor<2>) -> Output {
        output(self.run(&plain(&self.parts), inputs))
    }

    fn emit(&self, graph: &mut Graph, inputs: Value) -> Value {
        let features = self.parts[BASE].emit(graph, inputs);
        let [score, common, own] =
            [GATE, HEAD, OWN].map(|part| self.parts[part].emit(graph, features));
        emit_mixed(graph, score, common, own)
    }
}

#[cfg(test)]
mod tests {
    use crate::algorithm::testing::{Driven, batch, build, numbers};

    /// While both heads are alike the gate changes nothing, and the two share the gradient that FedAvg's only head has.
    #[test]
    fn the_first_step_is_fedavgs_shared_out_by_the_gate() {
        let (mut moe, mut average) = (build("fed-syn-moe", &[]), build("fedavg", &[]));
        let (start, gate) = (
            numbers(average.as_ref(), "fc."),
            numbers(moe.as_ref(), "gate."),
        );
        assert_eq!(numbers(moe.as_ref(), "personal."), start);
        let losses = [moe.train(0, batch()).loss, average.train(0, batch()).loss];
        assert!((losses[0] - losses[1]).abs() < 1e-6, "{losses:?}");
        let [common, own] = ["fc.", "personal."].map(|head| numbers(moe.as_ref(), head));
        let whole = numbers(average.as_ref(), "fc.");
        for at in 0..start.len() {
            let moved = [&common, &own, &whole].map(|now| now[at] - start[at]);
            assert!((moved[0] + moved[1] - moved[2]).abs() < 1e-6, "{moved:?}");
        }
        assert_ne!(common, start);
        assert_ne!(own, start);
        assert_eq!(
            numbers(moe.as_ref(), "gate."),
            gate,
            "both heads said the same"
        );
        moe.train(0, batch());
        assert_ne!(numbers(moe.as_ref(), "gate."), gate);
    }
}
