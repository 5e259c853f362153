//! Ditto: Li, Hu, Beirami and Smith, "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021,
//! Algorithm 1.
//!
//! ```text
//! w: the common model, averaged        v: the node's own model        w_t: the common model that came in
//! pass 1    w <- w - lr grad CE(w)                          FedAvg's local update; w is sent
//! pass 2    v <- v - lr (grad CE(v) + lambda (v - w_t))     h(v) = CE(v) + lambda/2 |v - w_t|^2, Eq. (Ditto)
//! ```
//!
//! The two models share no step, so the order of the passes does not matter; both see the model that came in. v is what
//! predicts. With lambda = 0 it is trained alone; a large lambda holds it to the common model. Lambda is 1 by default, as the
//! paper has it for nodes that fear no strong attack. Nodes with enough validation samples choose there among 0.1, 1
//! and 2; here lambda is the same for all. The own model starts as the common initial one, and has as many epochs as the local
//! update if no other number is given. Averaging is FedAvg's, weighted by the number of training samples; the paper takes
//! any aggregation. A node that rests in a round leaves its own model as it is. The loss that is reported is the
//! cross-entropy of the own model alone.

use burn::tensor::Tensor;
use fednode_onnx::{Graph, Value};

use super::hyper::{AGGREGATION, Hyper, Kind};
use super::part::{Part, Role};
use super::whole::{self, BASE, HEAD};
use super::{
    Algorithm, Extractor, Loss, Optimizers, Output, RoundContext, Row, Setup, Stage, Step,
    StepContext, averaged,
};
use crate::batch::Batch;
use crate::error::LearnError;
use crate::train::misfit;
use crate::weights::Weights;

pub(super) const ROW: Row = Row {
    name: "ditto",
    summary: "a model of one's own beside FedAvg's, held near the common model that came in",
    reference: "Li et al., ICML 2021, arXiv 2012.04221",
    averages: "the common model",
    peer_to_peer: "nothing",
    keeps_private: "the node's own model",
    trains_ahead: false,
    optimizers: Optimizers::Any,
    hyper: &[
        Hyper {
            name: "lambda",
            kind: Kind::Real { min: 0.0, max: 1e3 },
            default: "1",
            doc: "weight of half the squared distance of the own model from the common one that came in",
        },
        Hyper {
            name: PERSONAL_EPOCHS,
            kind: Kind::Integer { min: 0, max: 1000 },
            default: "0",
            doc: "epochs of the own model in a round; 0: as many as `training.local_epochs`",
        },
        AGGREGATION,
    ],
    profiles: &[],
    exchange: averaged,
    build: |setup| Ditto::new(setup).map(|algorithm| Box::new(algorithm) as Box<dyn Algorithm>),
};

const PERSONAL_EPOCHS: &str = "personal_epochs";

/// Where the node's own model begins among the parts.
const OWN: usize = 2;

/// The pass of the common model; the own one follows.
const COMMON: usize = 0;

struct Ditto {
    /// Base and head of the common model, then of the own one.
    parts: [Part; 4],
    /// Base and head of the common model as this round found it.
    received: [Weights; 2],
    lambda: f64,
    personal_epochs: u32,
}

impl Ditto {
    fn new(setup: &Setup<'_>) -> Result<Self, LearnError> {
        let [base, head] = whole::halves(setup, Role::Shared)?;
        let own = |common: &Part| Part {
            role: Role::Private,
            net: common.net.clone().prefixed("personal."),
            ..common.clone()
        };
        let received = [base.weights.clone(), head.weights.clone()];
        let (own_base, own_head) = (own(&base), own(&head));
        Ok(Self {
            parts: [base, head, own_base, own_head],
            received,
            lambda: setup.hyper.real("lambda"),
            personal_epochs: setup.hyper.count(PERSONAL_EPOCHS),
        })
    }

    fn train_common(&mut self, batch: Batch, ctx: &mut StepContext<'_>) -> Loss {
        let tape = ctx.record_only(&self.parts, &[BASE, HEAD]);
        let (_, logits) = whole::run(&self.parts, &tape, batch.inputs);
        ctx.step(&mut self.parts, tape, misfit(logits, batch.targets))
    }

    fn train_own(&mut self, batch: Batch, ctx: &mut StepContext<'_>) -> Loss {
        let tape = ctx.record_only(&self.parts, &[OWN + BASE, OWN + HEAD]);
        let (_, logits) = whole::run(&self.parts[OWN..], &tape[OWN..], batch.inputs);
        let mut found = ctx.differentiate(tape, misfit(logits, batch.targets));
        let (gradients, own) = (&mut found.gradients[OWN..], &self.parts[OWN..]);
        whole::pull_towards(&self.received, self.lambda, gradients, own);
        ctx.apply(&mut self.parts, found)
    }
}

impl Algorithm for Ditto {
    fn parts(&self) -> &[Part] {
        &self.parts
    }

    fn parts_mut(&mut self) -> &mut [Part] {
        &mut self.parts
    }

    fn copies(&self) -> &'static [[usize; 2]] {
        &[[OWN + BASE, BASE], [OWN + HEAD, HEAD]]
    }

    fn passes(&self, ctx: &RoundContext<'_>) -> Vec<u32> {
        let common = ctx.training.local_epochs;
        let own = match self.personal_epochs {
            0 => common,
            own => own,
        };
        vec![common, own]
    }

    fn begin_round(&mut self, _ctx: &RoundContext<'_>) {
        self.received = [BASE, HEAD].map(|half| self.parts[half].weights.clone());
    }

    fn step(&mut self, stage: Stage, batch: Batch, ctx: &mut StepContext<'_>) -> Step {
        let loss = match stage {
            Stage::Pass(COMMON) => self.train_common(batch, ctx),
            _ => self.train_own(batch, ctx),
        };
        Step {
            loss,
            routed: Vec::new(),
        }
    }

    fn extractor(&self) -> Option<Extractor<'_>> {
        Some(Extractor::of(&self.parts[BASE]))
    }

    fn forward(&self, inputs: Tensor<2>) -> Output {
        whole::forward(&self.parts[OWN..], inputs)
    }

    fn emit(&self, graph: &mut Graph, inputs: Value) -> Value {
        whole::emit(&self.parts[OWN..], graph, inputs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::testing::{Driven, assert_close, batch, build, numbers};
    use crate::weights::values;

    const OWN_PASS: usize = 1;

    #[test]
    fn the_common_model_is_that_of_fedavg() {
        let (mut ditto, mut average) = (build("ditto", &[]), build("fedavg", &[]));
        let own = numbers(ditto.as_ref(), "personal.");
        ditto.begin(1);
        assert_eq!(ditto.train(COMMON, batch()), average.train(0, batch()));
        assert_eq!(numbers(ditto.as_ref(), "fc"), numbers(average.as_ref(), ""));
        assert_eq!(numbers(ditto.as_ref(), "personal."), own);
    }

    /// The own model is where the common one came in, so its first step is that of a node alone. Its second differs from a
    /// node's alone by `-lr * lambda * (v_1 - w_t)`, with lr 0.01 and lambda 3. That the common model has moved by then
    /// changes nothing.
    #[test]
    fn the_own_model_is_pulled_towards_the_common_one_that_came_in() {
        let (mut ditto, mut alone) = (build("ditto", &[("lambda", 3.0)]), build("local", &[]));
        let received = numbers(alone.as_ref(), "");
        ditto.begin(1);
        ditto.train(COMMON, batch());
        assert_eq!(ditto.train(OWN_PASS, batch()), alone.train(0, batch()));
        let first = numbers(alone.as_ref(), "");
        assert_eq!(numbers(ditto.as_ref(), "personal."), first);
        ditto.train(OWN_PASS, batch());
        alone.train(0, batch());
        let expected: Vec<f32> = numbers(alone.as_ref(), "")
            .iter()
            .zip(first.iter().zip(&received))
            .map(|(free, (first, received))| free - 0.03 * (first - received))
            .collect();
        assert_ne!(numbers(alone.as_ref(), ""), expected);
        assert_close(&numbers(ditto.as_ref(), "personal."), &expected, 1e-7);
    }

    #[test]
    fn the_own_model_predicts() {
        let (mut ditto, mut alone) = (build("ditto", &[("lambda", 0.0)]), build("local", &[]));
        ditto.begin(1);
        for _ in 0..3 {
            ditto.train(COMMON, batch());
            ditto.train(OWN_PASS, batch());
            ditto.train(OWN_PASS, batch());
            alone.train(0, batch());
            alone.train(0, batch());
        }
        let logits = |node: &dyn Algorithm| values(&node.forward(batch().inputs).logits);
        assert_eq!(logits(ditto.as_ref()), logits(alone.as_ref()));
    }

    #[test]
    fn the_own_model_has_the_epochs_of_the_local_update_unless_told() {
        let passes = |hyper: &[(&str, f64)]| build("ditto", hyper).round_passes(1);
        let usual = passes(&[]);
        assert_eq!(usual[0], usual[1]);
        assert_eq!(passes(&[("personal_epochs", 7.0)]), [usual[0], 7]);
    }
}
