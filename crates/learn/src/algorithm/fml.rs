//! FML: Shen et al., "Federated Mutual Learning", arXiv 2006.16765.
//!
//! ```text
//! p: the node's own model    q: the small "meme" model, averaged over all nodes, all counting the same
//! L_p = alpha * CE(p, y) + (1 - alpha) * KL(q -> p)        q is a constant here
//! L_q = beta  * CE(q, y) + (1 - beta)  * KL(p -> q)        and p here
//! ```
//!
//! `KL(t -> s)` is `sum_c t_c (log t_c - log s_c)`, a mean over the samples. Both losses read the weights from before the
//! step and share no trained parameter, so one step on their sum is the reference's two (but for `training.clip_norm`). Alpha and beta are one half, as
//! in the authors' code; HtFLlib's defaults of 1 leave no mutual term. That code's momentum of 0.9 is `training.momentum`, 0
//! by default. The own model predicts; it may be another on every node.

use burn::tensor::Tensor;
use fednode_core::{Averaging, Exchange, Weighting};
use fednode_onnx::{Graph, Value};

use super::companion::{self, SMALL_MODEL};
use super::distances::divergence;
use super::hyper::{AGGREGATION, Hyper, Kind};
use super::part::{Part, Role};
use super::whole::{self, BASE};
use super::{Algorithm, Extractor, Optimizers, Output, Row, Setup, Stage, Step, StepContext};
use crate::batch::Batch;
use crate::error::LearnError;
use crate::train::cross_entropy;

pub(super) const ROW: Row = Row {
    name: "fml",
    summary: "a model of one's own and a shared small one that teach each other",
    reference: "Shen et al., 2020, arXiv 2006.16765",
    averages: "a small model",
    peer_to_peer: "nothing",
    keeps_private: "the node's own model",
    trains_ahead: false,
    optimizers: Optimizers::Any,
    hyper: &[
        SMALL_MODEL,
        Hyper {
            name: "alpha",
            kind: Kind::Real { min: 0.0, max: 1.0 },
            default: "0.5",
            doc: "share of the labels in what the own model learns from; the small model has the rest",
        },
        Hyper {
            name: "beta",
            kind: Kind::Real { min: 0.0, max: 1.0 },
            default: "0.5",
            doc: "share of the labels in what the small model learns from; the own model has the rest",
        },
        AGGREGATION,
    ],
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
    build: |setup| Fml::new(setup).map(|algorithm| Box::new(algorithm) as Box<dyn Algorithm>),
};

/// Where the shared model begins.
const SMALL: usize = 2;

struct Fml {
    parts: [Part; 4],
    alpha: f64,
    beta: f64,
}

impl Fml {
    fn new(setup: &Setup<'_>) -> Result<Self, LearnError> {
        let [base, head] = whole::halves(setup, Role::Private)?;
        let [small_base, small_head] = companion::halves(setup)?;
        let (alpha, beta) = (setup.hyper.real("alpha"), setup.hyper.real("beta"));
        Ok(Self {
            parts: [base, head, small_base, small_head],
            alpha,
            beta,
        })
    }
}

/// Returns what one side learns: `share` of the labels, the rest of the other side.
fn taught(own: &Tensor<2>, other: &Tensor<2>, targets: &Tensor<2>, share: f64) -> Tensor<1> {
    let labels = cross_entropy(own.clone(), targets.clone()).mul_scalar(share);
    labels + divergence(own.clone(), other.clone().without_autodiff()).mul_scalar(1.0 - share)
}

impl Algorithm for Fml {
    fn parts(&self) -> &[Part] {
        &self.parts
    }

    fn parts_mut(&mut self) -> &mut [Part] {
        &mut self.parts
    }

    fn step(&mut self, _stage: Stage, batch: Batch, ctx: &mut StepContext<'_>) -> Step {
        let tape = ctx.record(&self.parts);
        let (_, own) = whole::run(&self.parts, &tape, batch.inputs.clone());
        let (_, small) = whole::run(&self.parts[SMALL..], &tape[SMALL..], batch.inputs);
        let loss = taught(&own, &small, &batch.targets, self.alpha)
            + taught(&small, &own, &batch.targets, self.beta);
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

    /// Own logits (0, 0), label 0: ln 2. Other side (3/4, 1/4): 0.130 812 by `distances`. With a share of 1/4:
    /// 0.173 287 + 0.098 109. The gradient in the own logits is 1/4 (-1/2, 1/2) + 3/4 (-1/4, 1/4); the other side has none.
    #[test]
    fn mutual_step_agrees_with_a_worked_example() {
        let own = matrix([[0.0, 0.0]]).autodiff().require_grad();
        let other = matrix([[3f32.ln(), 0.0]]).autodiff().require_grad();
        let loss = taught(&own, &other, &matrix([[1.0, 0.0]]), 0.25);
        assert_close(&values(&loss), &[0.271_396], 1e-5);
        let gradients = loss.backward();
        assert_close(
            &values(&own.grad(&gradients).unwrap()),
            &[-0.3125, 0.3125],
            1e-6,
        );
        assert!(other.grad(&gradients).is_none());
    }

    #[test]
    fn without_mutual_terms_the_own_model_trains_alone() {
        let (mut fml, mut alone) = (
            build("fml", &[("alpha", 1.0), ("beta", 1.0)]),
            build("local", &[]),
        );
        fml.train(0, batch());
        alone.train(0, batch());
        assert_close(
            &numbers(fml.as_ref(), "fc"),
            &numbers(alone.as_ref(), ""),
            1e-7,
        );
        let (mut taught, small) = (build("fml", &[]), numbers(fml.as_ref(), "small."));
        taught.train(0, batch());
        assert_ne!(numbers(taught.as_ref(), "fc"), numbers(alone.as_ref(), ""));
        assert_ne!(numbers(taught.as_ref(), "small."), small);
    }
}
