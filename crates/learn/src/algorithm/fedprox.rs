//! FedProx: Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, Algorithm 2.
//!
//! ```text
//! h(w) = CE(w) + mu/2 * |w - w_t|^2        Eq. 2; w_t: the model that came in
//! step: w -= lr * (grad CE(w) + mu * (w - w_t))
//! ```
//!
//! With mu = 0 it is FedAvg, and that is the default of PFLlib, so that many a table's "FedProx" is FedAvg under another
//! name. Here it is 0.01, of the range that the paper searches. Averaging is weighted by the number of training samples, as
//! FedAvg's; the paper leaves the weights to the sampling of devices. The loss that is reported is the cross-entropy
//! alone. w_t is the model that the node begins the round with: the average, or its own if none came in.

use burn::tensor::Tensor;
use fednode_onnx::{Graph, Value};

use super::hyper::{AGGREGATION, Hyper, Kind};
use super::part::{Part, Role};
use super::{
    Algorithm, Extractor, Optimizers, Output, RoundContext, Row, Setup, Stage, Step, StepContext,
    averaged, whole,
};
use crate::batch::Batch;
use crate::error::LearnError;
use crate::train::misfit;
use crate::weights::Weights;

pub(super) const ROW: Row = Row {
    name: "fedprox",
    summary: "FedAvg whose nodes are held to the model that came in",
    reference: "Li et al., MLSys 2020, arXiv 1812.06127",
    averages: "the whole model",
    peer_to_peer: "nothing",
    keeps_private: "nothing",
    trains_ahead: false,
    optimizers: Optimizers::Any,
    hyper: &[
        Hyper {
            name: "mu",
            kind: Kind::Real { min: 0.0, max: 1e3 },
            default: "0.01",
            doc: "weight of half the squared distance from the model that came in; 0 is FedAvg",
        },
        AGGREGATION,
    ],
    profiles: &[],
    exchange: averaged,
    build: |setup| FedProx::new(setup).map(|algorithm| Box::new(algorithm) as Box<dyn Algorithm>),
};

struct FedProx {
    parts: [Part; 2],
    /// Base and head as this round found them.
    received: [Weights; 2],
    mu: f64,
}

impl FedProx {
    fn new(setup: &Setup<'_>) -> Result<Self, LearnError> {
        let parts = whole::halves(setup, Role::Shared)?;
        let received = parts.each_ref().map(|part| part.weights.clone());
        let mu = setup.hyper.real("mu");
        Ok(Self {
            parts,
            received,
            mu,
        })
    }
}

impl Algorithm for FedProx {
    fn parts(&self) -> &[Part] {
        &self.parts
    }

    fn parts_mut(&mut self) -> &mut [Part] {
        &mut self.parts
    }

    fn begin_round(&mut self, _ctx: &RoundContext<'_>) {
        self.received = self.parts.each_ref().map(|part| part.weights.clone());
    }

    fn step(&mut self, _stage: Stage, batch: Batch, ctx: &mut StepContext<'_>) -> Step {
        let tape = ctx.record(&self.parts);
        let (_, logits) = whole::run(&self.parts, &tape, batch.inputs);
        let mut found = ctx.differentiate(tape, misfit(logits, batch.targets));
        whole::pull_towards(&self.received, self.mu, &mut found.gradients, &self.parts);
        let loss = ctx.apply(&mut self.parts, found);
        Step {
            loss,
            routed: Vec::new(),
        }
    }

    fn extractor(&self) -> Option<Extractor<'_>> {
        Some(Extractor::of(&self.parts[whole::BASE]))
    }

    fn forward(&self, inputs: Tensor<2>) -> Output {
        whole::forward(&self.parts, inputs)
    }

    fn emit(&self, graph: &mut Graph, inputs: Value) -> Value {
        whole::emit(&self.parts, graph, inputs)
    }
}

#[cfg(test)]
mod tests {
    use crate::algorithm::testing::{Driven, assert_close, batch, build, numbers};

    /// At the model that came in the pull is nothing, so the first step is FedAvg's. The second differs from FedAvg's
    /// by `lr * mu * (w_1 - w_0)`, with lr 0.01 and mu 2 by a fiftieth of the first step.
    #[test]
    fn the_second_step_is_pulled_back_towards_the_model_that_came_in() {
        let (mut prox, mut average) = (build("fedprox", &[("mu", 2.0)]), build("fedavg", &[]));
        let before = numbers(average.as_ref(), "");
        prox.begin(1);
        assert_eq!(prox.train(0, batch()), average.train(0, batch()));
        let after = numbers(average.as_ref(), "");
        assert_eq!(numbers(prox.as_ref(), ""), after);
        assert_eq!(prox.train(0, batch()).loss, average.train(0, batch()).loss);
        let pulls: Vec<f32> = before
            .iter()
            .zip(&after)
            .map(|(before, after)| (before - after) * 0.02)
            .collect();
        assert!(pulls.iter().any(|pull| pull.abs() > 1e-6));
        let (pulled, free) = (numbers(prox.as_ref(), ""), numbers(average.as_ref(), ""));
        let differences: Vec<f32> = pulled
            .iter()
            .zip(&free)
            .map(|(pulled, free)| pulled - free)
            .collect();
        assert_close(&differences, &pulls, 1e-7);
    }
}
