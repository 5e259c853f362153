//! SCAFFOLD: Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020,
//! Algorithm 1 with option II.
//!
//! ```text
//! step:       w -= lr * (grad CE(w) + c - c_j)
//! afterwards: c_j' = c_j - c + (w_t - w) / (K * lr)       K: the steps of this round, w_t: the model that came in
//! aggregator: w = mean_j w_j    c = mean_j c_j            both uniform; server step size 1
//! ```
//!
//! The paper's aggregator keeps c and adds `1/N sum (c_j' - c_j)` to it. All c_j start at zero, so if every node takes
//! part in every round c is the mean of all c_j at any time. Here each node shares its c_j beside its model, and their
//! mean is c. No aggregator has to remember anything. A node that missed a round counts with what it shared last if it
//! is back, and not at all as long as it is away; a node that joins late begins with c_j = 0. Twice the bytes of
//! FedAvg, as in the paper.
//!
//! Where only a share C of the nodes trains in a round (`round.participation`), each shares `c + C * (c_j' - c_j)` instead:
//! the mean over those CN is the paper's c. Beyond 64 nodes chance decides how many train, |S|, and the step of c is CN / |S|
//! times the paper's; of a node whose update is not counted, c never learns what its c_j did.
//!
//! Running statistics of batch normalisation have no gradient, so they have no control; they are averaged with the model.
//!
//! The means are uniform as in PFLlib. The robust rules may take the mean's place; then c is no longer exactly the mean of
//! the c_j, and the corrections no longer add up to zero.

use burn::tensor::Tensor;
use fednode_core::{Averaging, Exchange, Weighting};
use fednode_onnx::{Graph, Value};

use super::hyper::AGGREGATION;
use super::part::{Part, Role};
use super::whole::{self, BASE, HEAD};
use super::{
    Algorithm, Extractor, Optimizers, Output, RoundContext, Row, Setup, Stage, Step, StepContext,
};
use crate::batch::Batch;
use crate::error::LearnError;
use crate::model::Net;
use crate::train::misfit;
use crate::weights::Weights;

pub(super) const ROW: Row = Row {
    name: "scaffold",
    summary: "FedAvg whose nodes correct their drift by control variates",
    reference: "Karimireddy et al., ICML 2020, arXiv 1910.06378",
    averages: "the whole model and the control variates, as many numbers again",
    peer_to_peer: "nothing",
    keeps_private: "a copy of the node's own control variate",
    trains_ahead: false,
    optimizers: Optimizers::PlainSteps("reckons its controls from plain steps"),
    hyper: &[AGGREGATION],
    profiles: &[],
    exchange: |values| Exchange {
        averaging: Some(Averaging {
            weighting: Weighting::Uniform,
            rule: values.rule(),
        }),
        experts: None,
        everybody_first: false,
        prepares: false,
        total: None,
    },
    build: |setup| Scaffold::new(setup).map(|algorithm| Box::new(algorithm) as Box<dyn Algorithm>),
};

/// What came in is c; what is shared is the node's own.
const CONTROL: usize = 2;
/// c_j.
const OWN: usize = 3;

struct Scaffold {
    parts: [Part; 4],
    /// Base and head as this round found them.
    received: [Weights; 2],
    /// Steps of this round.
    steps: u32,
    participation: f64,
}

impl Scaffold {
    fn new(setup: &Setup<'_>) -> Result<Self, LearnError> {
        let [base, head] = whole::halves(setup, Role::Shared)?;
        let received = [base.weights.clone(), head.weights.clone()];
        let zeros = |role, prefix| {
            Part::new(
                role,
                Net::zeros_like(prefix, &[&base.net, &head.net]),
                setup.seed,
                0,
                setup.device,
            )
        };
        let (control, own) = (
            zeros(Role::Shared, "control."),
            zeros(Role::Private, "own_control."),
        );
        let parts = [base, head, control, own];
        let participation = setup.participation;
        Ok(Self {
            parts,
            received,
            steps: 0,
            participation,
        })
    }

    /// Returns `c - c_j`, in the order of base and head.
    fn corrections(&self) -> impl Iterator<Item = Tensor<1>> {
        let both = self.parts[CONTROL]
            .weights
            .tensors()
            .zip(self.parts[OWN].weights.tensors());
        both.map(|(control, own)| control.clone() - own.clone())
    }
}

impl Algorithm for Scaffold {
    fn parts(&self) -> &[Part] {
        &self.parts
    }

    fn parts_mut(&mut self) -> &mut [Part] {
        &mut self.parts
    }

    fn begin_round(&mut self, _ctx: &RoundContext<'_>) {
        self.received = [BASE, HEAD].map(|half| self.parts[half].weights.clone());
        self.steps = 0;
    }

    fn step(&mut self, _stage: Stage, batch: Batch, ctx: &mut StepContext<'_>) -> Step {
        let tape = ctx.record_only(&self.parts, &[BASE, HEAD]);
        let (_, logits) = whole::run(&self.parts, &tape, batch.inputs);
        let mut found = ctx.differentiate(tape, misfit(logits, batch.targets));
        let halves = found.gradients[..CONTROL].iter_mut().zip(&self.parts);
        let trained = halves.flat_map(|(gradients, part)| part.net.learned(gradients.iter_mut()));
        for (gradient, correction) in trained.zip(self.corrections()) {
            *gradient = gradient.take().map(|gradient| gradient + correction);
        }
        let loss = ctx.apply(&mut self.parts, found);
        self.steps += 1;
        Step {
            loss,
            routed: Vec::new(),
        }
    }

    fn end_round(&mut self, ctx: &RoundContext<'_>) {
        let moved = [BASE, HEAD].into_iter().flat_map(|half| {
            let (then, now) = (
                self.received[half].tensors(),
                self.parts[half].weights.tensors(),
            );
            let moved = then.zip(now).map(|(then, now)| then.clone() - now.clone());
            self.parts[half].net.learned(moved)
        });
        let scale = 1.0 / (f64::from(self.steps.max(1)) * ctx.learning_rate());
        // The first two terms of c_j' are the correction turned round.
        let renewed = self
            .corrections()
            .zip(moved)
            .map(|(correction, moved)| moved.mul_scalar(scale) - correction);
        let renewed = Weights::new(renewed.collect());
        let own = std::mem::replace(&mut self.parts[OWN].weights, renewed.clone());
        let control = &mut self.parts[CONTROL].weights;
        *control = if self.participation < 1.0 {
            let change = renewed
                .tensors()
                .zip(own.tensors())
                .map(|(new, old)| new.clone() - old.clone());
            let shared = control
                .tensors()
                .zip(change)
                .map(|(c, change)| c.clone() + change.mul_scalar(self.participation));
            Weights::new(shared.collect())
        } else {
            renewed
        };
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
    use burn::tensor::Device;

    use super::*;
    use crate::algorithm::testing::{Driven, assert_close, batch, build, numbers, setup};

    /// Of one step from w_t, `(w_t - w) / lr` is the gradient there. With c = c_j = 0 the step is FedAvg's and that
    /// gradient becomes c_j. The next step, from a c of 0.5 everywhere, differs from FedAvg's by `lr * (c_j - 0.5)` with
    /// lr 0.01; and c_j' is c_j - c + (g + c - c_j), the gradient g alone again.
    #[test]
    fn corrections_agree_with_a_worked_example() {
        let (mut scaffold, mut average) = (build("scaffold", &[]), build("fedavg", &[]));
        let before = numbers(average.as_ref(), "");
        scaffold.begin(1);
        assert_eq!(scaffold.train(0, batch()), average.train(0, batch()));
        scaffold.end();
        let after = numbers(average.as_ref(), "");
        let gradient: Vec<f32> = before
            .iter()
            .zip(&after)
            .map(|(before, after)| (before - after) / 0.01)
            .collect();
        assert!(gradient.iter().any(|gradient| gradient.abs() > 1e-3));
        assert_close(&numbers(scaffold.as_ref(), "own_control."), &gradient, 1e-6);
        assert_eq!(
            numbers(scaffold.as_ref(), "own_control."),
            numbers(scaffold.as_ref(), "control.")
        );
        assert_eq!(numbers(scaffold.as_ref(), "fc"), after);

        let control = &mut scaffold.parts_mut()[CONTROL].weights;
        let halves = control
            .tensors()
            .map(|tensor| Tensor::full(tensor.dims(), 0.5, &Device::flex()));
        *control = Weights::new(halves.collect());
        let own = numbers(scaffold.as_ref(), "own_control.");
        scaffold.begin(2);
        scaffold.train(0, batch());
        average.train(0, batch());
        let (corrected, plain) = (
            numbers(scaffold.as_ref(), "fc"),
            numbers(average.as_ref(), "fc"),
        );
        let differences: Vec<f32> = corrected
            .iter()
            .zip(&plain)
            .map(|(corrected, plain)| corrected - plain)
            .collect();
        let expected: Vec<f32> = own.iter().map(|own| 0.01 * (own - 0.5)).collect();
        assert_close(&differences, &expected, 1e-6);
        scaffold.end();
        let gradient: Vec<f32> = after
            .iter()
            .zip(&plain)
            .map(|(before, after)| (before - after) / 0.01)
            .collect();
        assert_close(&numbers(scaffold.as_ref(), "own_control."), &gradient, 2e-5);
    }

    /// Half of the nodes train: a node with c = 0.5 and c_j = 0 shares `c + 0.5 * (c_j' - c_j)`, so that the mean over
    /// them moves by `1/N sum (c_j' - c_j)`.
    #[test]
    fn with_partial_participation_changes_count_by_the_share_of_nodes() {
        let mut scaffold = setup("scaffold", &[], |setup| {
            Scaffold::new(&Setup {
                participation: 0.5,
                ..*setup
            })
            .unwrap()
        });
        let control = &mut scaffold.parts_mut()[CONTROL].weights;
        *control = Weights::new(
            control
                .tensors()
                .map(|c| Tensor::full(c.dims(), 0.5, &Device::flex()))
                .collect(),
        );
        scaffold.begin(1);
        scaffold.train(0, batch());
        scaffold.end();
        let expected: Vec<f32> = numbers(&scaffold, "own_control.")
            .iter()
            .map(|own| 0.5 + 0.5 * own)
            .collect();
        assert_close(&numbers(&scaffold, "control."), &expected, 1e-6);
    }
}
