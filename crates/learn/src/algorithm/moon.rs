//! MOON: Li, He and Song, "Model-Contrastive Federated Learning", CVPR 2021, §3.3.
//!
//! ```text
//! z = base(x)    z_g = base that came in (x)    z_old = base that the node ended its last round with (x)
//! L = CE(head(z), y) + mu * mean( -log( e^{cos(z, z_g)/tau} / (e^{cos(z, z_g)/tau} + e^{cos(z, z_old)/tau}) ) )
//! ```
//!
//! Averaged as FedAvg, weighted by the number of training samples. z are the features before the head, as in PFLlib; the
//! paper puts a projection of two layers between base and head. Mu is 1 and tau 0.5, both from the paper's search (mu 0.1,
//! 1, 5, 10 depending on the data); PFLlib's mu of 0 is FedAvg. The old base is a private part: it starts as the common
//! initial one. A node of round 1 receives just that, so that both cosines are the same and the term has no gradient.
//! One that is drawn later for the first time (`round.participation`) compares what it receives with it.

use burn::tensor::Tensor;
use burn::tensor::activation::softplus;
use fednode_onnx::{Graph, Value};

use super::distances::cosines;
use super::hyper::{AGGREGATION, Hyper, Kind};
use super::part::{Part, Role};
use super::whole::{self, BASE, HEAD};
use super::{
    Algorithm, Extractor, Optimizers, Output, RoundContext, Row, Setup, Stage, Step, StepContext,
    averaged,
};
use crate::batch::Batch;
use crate::error::LearnError;
use crate::train::cross_entropy;
use crate::weights::Weights;

pub(super) const ROW: Row = Row {
    name: "moon",
    summary: "FedAvg whose features are drawn to the received model's and away from the node's last ones",
    reference: "Li, He and Song, CVPR 2021, arXiv 2103.16257",
    averages: "the whole model",
    peer_to_peer: "nothing",
    keeps_private: "the base that the node ended its last round with",
    trains_ahead: false,
    optimizers: Optimizers::Any,
    hyper: &[
        Hyper {
            name: "mu",
            kind: Kind::Real { min: 0.0, max: 1e3 },
            default: "1",
            doc: "weight of the contrastive loss; 0 is FedAvg",
        },
        Hyper {
            name: "tau",
            kind: Kind::Real {
                min: 1e-3,
                max: 1e3,
            },
            default: "0.5",
            doc: "temperature of the contrastive loss",
        },
        AGGREGATION,
    ],
    profiles: &[],
    exchange: averaged,
    build: |setup| Moon::new(setup).map(|algorithm| Box::new(algorithm) as Box<dyn Algorithm>),
};

const PREVIOUS: usize = 2;

struct Moon {
    parts: [Part; 3],
    /// The base as this round found it.
    received: Weights,
    mu: f64,
    tau: f64,
}

impl Moon {
    fn new(setup: &Setup<'_>) -> Result<Self, LearnError> {
        let [base, head] = whole::halves(setup, Role::Shared)?;
        let mut previous = Part::new(
            Role::Private,
            base.net.clone().prefixed("previous."),
            setup.seed,
            0,
            setup.device,
        );
        previous.weights = base.weights.clone();
        let received = base.weights.clone();
        let (mu, tau) = (setup.hyper.real("mu"), setup.hyper.real("tau"));
        Ok(Self {
            parts: [base, head, previous],
            received,
            mu,
            tau,
        })
    }

    /// Returns what the old and the received base make of a batch.
    fn anchors(&self, inputs: Tensor<2>) -> [Tensor<2>; 2] {
        let base = &self.parts[BASE].net;
        [&self.received, &self.parts[PREVIOUS].weights]
            .map(|weights| base.forward(weights, inputs.clone()))
    }
}

/// Returns the contrastive loss: `log(1 + e^{(cos(z, z_old) - cos(z, z_g)) / tau})`, which is the header's.
fn contrast(features: Tensor<2>, received: Tensor<2>, previous: Tensor<2>, tau: f64) -> Tensor<1> {
    let difference = cosines(features.clone(), previous) - cosines(features, received);
    softplus(difference.div_scalar(tau), 1.0).mean()
}

impl Algorithm for Moon {
    fn parts(&self) -> &[Part] {
        &self.parts
    }

    fn parts_mut(&mut self) -> &mut [Part] {
        &mut self.parts
    }

    fn copies(&self) -> &'static [[usize; 2]] {
        &[[PREVIOUS, BASE]]
    }

    fn begin_round(&mut self, _ctx: &RoundContext<'_>) {
        self.received = self.parts[BASE].weights.clone();
    }

    fn step(&mut self, _stage: Stage, batch: Batch, ctx: &mut StepContext<'_>) -> Step {
        let tape = ctx.record_only(&self.parts, &[BASE, HEAD]);
        let [received, previous] = self.anchors(batch.inputs.clone());
        let (features, logits) = whole::run(&self.parts, &tape, batch.inputs);
        let contrast = contrast(features, received, previous, self.tau).mul_scalar(self.mu);
        let loss = cross_entropy(logits, batch.targets) + contrast;
        Step {
            loss: ctx.step(&mut self.parts, tape, loss),
            routed: Vec::new(),
        }
    }

    fn end_round(&mut self, _ctx: &RoundContext<'_>) {
        self.parts[PREVIOUS].weights = self.parts[BASE].weights.clone();
    }

    fn extractor(&self) -> Option<Extractor<'_>> {
        Some(Extractor::of(&self.parts[BASE]))
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
    use super::*;
    use crate::algorithm::testing::{Driven, assert_close, batch, build, matrix, numbers};
    use crate::weights::values;

    /// Row 1: cosines 1 and 0, tau 1/2: ln(1 + e^-2) = 0.126 928. Row 2: cosines 0 and 0.6: ln(1 + e^1.2) = 1.463 282.
    /// The mean is 0.795 105. Gradients by central differences.
    #[test]
    fn contrast_agrees_with_a_worked_example() {
        let (received, previous) = (
            matrix([[2.0, 0.0], [0.0, 1.0]]),
            matrix([[0.0, 3.0], [3.0, 4.0]]),
        );
        let at = |z: [[f32; 2]; 2]| contrast(matrix(z), received.clone(), previous.clone(), 0.5);
        let z = [[1.0, 0.0], [1.0, 0.0]];
        assert_close(&values(&at(z)), &[0.795_105], 1e-5);
        let features = matrix(z).autodiff().require_grad();
        let gradients =
            contrast(features.clone(), received.clone(), previous.clone(), 0.5).backward();
        let gradients = values(&features.grad(&gradients).unwrap());
        let step = 1e-2;
        for (at_number, gradient) in gradients.into_iter().enumerate() {
            let moved = |by: f32| {
                let mut z = z;
                z[at_number / 2][at_number % 2] += by;
                values(&at(z))[0]
            };
            let difference = (moved(step) - moved(-step)) / (2.0 * step);
            assert!(
                (gradient - difference).abs() < 1e-3,
                "{at_number}: {gradient} is not {difference}"
            );
        }
    }

    #[test]
    fn the_first_round_trains_as_fedavg_and_later_ones_do_not() {
        let (mut moon, mut average) = (build("moon", &[]), build("fedavg", &[]));
        moon.begin(1);
        let contrast = moon.train(0, batch()).loss - average.train(0, batch()).loss;
        assert!(
            (contrast - 2f64.ln()).abs() < 1e-6,
            "two equal cosines: {contrast}"
        );
        assert_close(
            &numbers(moon.as_ref(), "fc"),
            &numbers(average.as_ref(), ""),
            1e-7,
        );
        moon.train(0, batch());
        moon.end();
        assert_eq!(
            numbers(moon.as_ref(), "previous.fc1"),
            numbers(moon.as_ref(), "fc1")
        );
        let initial = build("moon", &[]);
        moon.parts_mut()[BASE] = initial.parts()[BASE].clone();
        moon.begin(2);
        let first = moon.train(0, batch()).loss;
        let mut fresh = build("moon", &[]);
        fresh.begin(2);
        assert_ne!(first, fresh.train(0, batch()).loss);
    }
}
