//! FedKD: Wu et al., "Communication-Efficient Federated Learning via Knowledge Distillation", Nature Communications 2022.
//!
//! ```text
//! t: the mentor, the node's own model    s: the mentee, a small model that is averaged
//! F_t, F_s: their features               W: the node's own matrix, from the width of F_s to that of F_t
//! L = CE(t, y) + CE(s, y) + (KL(s -> t) + KL(t -> s) + 2 * MSE(F_t, W F_s)) / (CE(t, y) + CE(s, y))
//! ```
//!
//! `KL(a -> b)` is `sum_c a_c (log a_c - log b_c)`, a mean over the samples. The losses of mentor and mentee are added up
//! and every gradient flows, through the other side and through the divisor too, as in the authors' code and HtFLlib's;
//! that is one step on L. The mentee's means are uniform, as in the authors' code. The features are those before the
//! head, as in HtFLlib, where the authors compare all layers of two transformers. The mentor predicts.
//!
//! Not here: the truncation of the mentee's update to its largest singular values, on the way there and back. It saves
//! bytes and loses a little of the update both times; here a round costs the whole mentee, and the mean is exact.

use burn::tensor::Tensor;
use fednode_core::{Averaging, Exchange, Weighting};
use fednode_onnx::{Graph, Value};

use super::companion::{self, SMALL_MODEL};
use super::distances::{divergence, mean_square};
use super::hyper::AGGREGATION;
use super::part::{Part, Role};
use super::whole::{self, BASE};
use super::{Algorithm, Extractor, Optimizers, Output, Row, Setup, Stage, Step, StepContext};
use crate::batch::Batch;
use crate::error::LearnError;
use crate::model::{Activation, Linear, Net, leaf};
use crate::train::cross_entropy;

pub(super) const ROW: Row = Row {
    name: "fedkd",
    summary: "a large mentor of one's own and a shared small mentee that teach each other the better, the surer they are",
    reference: "without its compression: Wu et al., Nature Communications 2022, arXiv 2108.13323",
    averages: "a small model, the mentee",
    peer_to_peer: "nothing",
    keeps_private: "the node's own model, the mentor, and the matrix between their features",
    trains_ahead: false,
    optimizers: Optimizers::Any,
    hyper: &[SMALL_MODEL, AGGREGATION],
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
    build: |setup| FedKd::new(setup).map(|algorithm| Box::new(algorithm) as Box<dyn Algorithm>),
};

/// Where the shared model begins.
const SMALL: usize = 2;
/// W.
const BETWEEN: usize = 4;

/// Keeps the divisor from zero.
const EPSILON: f64 = 1e-6;

struct FedKd {
    parts: [Part; 5],
}

impl FedKd {
    fn new(setup: &Setup<'_>) -> Result<Self, LearnError> {
        let [base, head] = whole::halves(setup, Role::Private)?;
        let [small_base, small_head] = companion::halves(setup)?;
        let (inputs, outputs) = (small_base.net.n_outputs(), base.net.n_outputs());
        let between = Linear {
            name: "between",
            inputs,
            outputs,
            activation: Activation::Identity,
            bias: false,
        };
        let between = Net::new(vec![leaf(between)]);
        let between = Part::new(Role::Private, between, setup.seed, 0, setup.device);
        let parts = [base, head, small_base, small_head, between];
        Ok(Self { parts })
    }
}

/// Logits and features of one side.
struct Side {
    logits: Tensor<2>,
    features: Tensor<2>,
}

/// Returns L; the mentee's features are those that W has mapped.
fn loss(mentor: Side, mentee: Side, targets: Tensor<2>) -> Tensor<1> {
    let labels = cross_entropy(mentor.logits.clone(), targets.clone())
        + cross_entropy(mentee.logits.clone(), targets);
    let opinions = divergence(mentor.logits.clone(), mentee.logits.clone())
        + divergence(mentee.logits, mentor.logits);
    let hidden = mean_square(mentor.features - mentee.features).mul_scalar(2.0);
    labels.clone() + (opinions + hidden) / labels.add_scalar(EPSILON)
}

impl Algorithm for FedKd {
    fn parts(&self) -> &[Part] {
        &self.parts
    }

    fn parts_mut(&mut self) -> &mut [Part] {
        &mut self.parts
    }

    fn step(&mut self, _stage: Stage, batch: Batch, ctx: &mut StepContext<'_>) -> Step {
        let tape = ctx.record(&self.parts);
        let (features, logits) = whole::run(&self.parts, &tape, batch.inputs.clone());
        let mentor = Side { logits, features };
        let (features, logits) = whole::run(&self.parts[SMALL..], &tape[SMALL..], batch.inputs);
        let mentee = Side {
            logits,
            features: self.parts[BETWEEN].net.forward(&tape[BETWEEN], features),
        };
        let loss = loss(mentor, mentee, batch.targets);
        Step {
            loss: ctx.step(&mut self.parts, tape, loss),
            routed: Vec::new(),
        }
    }

    fn extractor(&self) -> Option<Extractor<'_>> {
        Some(Extractor::of(&self.parts[SMALL + BASE]))
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

    /// Mentor (0, 0), mentee (ln 3, 0), label 0: CE ln 2 = 0.693 147 and ln(4/3) = 0.287 682, sum 0.980 829. KL from the
    /// mentee 0.130 812, see `distances`, the other way 1/2 ln(2/3) + 1/2 ln 2 = 0.143 841. Features (1, 2) and (1, 0):
    /// MSE 2, twice 4. L = 0.980 829 + 4.274 653 / 0.980 830 = 5.339 028. Gradients by central differences.
    #[test]
    fn the_loss_agrees_with_a_worked_example() {
        let at = |logits: [f32; 4], recorded: bool| {
            let (mentor, mentee) = (
                matrix([[logits[0], logits[1]]]),
                matrix([[logits[2], logits[3]]]),
            );
            let leaf = |tensor: Tensor<2>| {
                if recorded {
                    tensor.autodiff().require_grad()
                } else {
                    tensor
                }
            };
            let (mentor, mentee) = (leaf(mentor), leaf(mentee));
            let side = |logits: &Tensor<2>, features| Side {
                logits: logits.clone(),
                features,
            };
            let sides = [
                side(&mentor, matrix([[1.0, 2.0]])),
                side(&mentee, matrix([[1.0, 0.0]])),
            ];
            let [first, second] = sides;
            (loss(first, second, matrix([[1.0, 0.0]])), mentor, mentee)
        };
        let logits = [0.0, 0.0, 3f32.ln(), 0.0];
        let (value, mentor, mentee) = at(logits, true);
        assert_close(&values(&value), &[5.339_028], 1e-4);
        let gradients = value.backward();
        let gradients = [mentor, mentee]
            .map(|side| values(&side.grad(&gradients).unwrap()))
            .concat();
        for (number, gradient) in gradients.into_iter().enumerate() {
            let moved = |by: f32| {
                let mut logits = logits;
                logits[number] += by;
                values(&at(logits, false).0)[0]
            };
            let difference = (moved(1e-2) - moved(-1e-2)) / 2e-2;
            assert!(
                (gradient - difference).abs() < 1e-2,
                "{number}: {gradient} is not {difference}"
            );
        }
    }

    #[test]
    fn one_step_trains_mentor_mentee_and_the_matrix_between() {
        let mut kd = build("fedkd", &[]);
        let names = ["fc1", "small.fc1", "small.fc.", "between"];
        let before = names.map(|name| numbers(kd.as_ref(), name));
        let losses: Vec<f64> = (0..20).map(|_| kd.train(0, batch()).loss).collect();
        assert!(losses[19] < losses[0], "{losses:?}");
        for (name, before) in names.iter().zip(before) {
            assert_ne!(numbers(kd.as_ref(), name), before, "{name}");
        }
    }
}
