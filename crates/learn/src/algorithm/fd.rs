//! FD, federated distillation: Jeong et al., "Communication-Efficient On-Device Machine Learning: Federated Distillation
//! and Augmentation under Non-IID Private Data", NeurIPS workshop 2018, arXiv 1811.11479.
//!
//! ```text
//! z = model(x)    Z_c: mean over the nodes that have class c of their means of z over class c
//! L = CE(z, y) + lambda * mean_{batch, c} (z_c - Z_y,c)^2             a class without Z_c adds nothing
//! ```
//!
//! Nothing but the mean logits of each class is shared: C x C numbers. The paper's details are unverified here, so
//! these are choices. The distance is the mean square, as HtFLlib's FedDistill has it. The mean includes the node's own
//! logits. The paper leaves them out, which needs the number of nodes that no node is told. A node's means come from
//! one more pass over its samples when training is done, not from under way. That pass trains nothing, counts among the
//! update's steps and reports the loss of the trained model.

use burn::tensor::Tensor;
use fednode_core::{Averaging, Exchange, Rule, Weighting};
use fednode_onnx::{Graph, Value};

use super::class_means::{self, Gathered, Known};
use super::hyper::{Hyper, Kind};
use super::part::{Part, Role, plain};
use super::whole::{self, BASE, HEAD};
use super::{
    Algorithm, Loss, Optimizers, Output, RoundContext, Row, Setup, Stage, Step, StepContext,
};
use crate::batch::Batch;
use crate::error::LearnError;
use crate::train::cross_entropy;

pub(super) const ROW: Row = Row {
    name: "fd",
    summary: "a model of one's own whose logits are drawn to everyone's mean logits of each class",
    reference: "Jeong et al., 2018, arXiv 1811.11479",
    averages: "the mean logits of each class, over the nodes that have the class",
    peer_to_peer: "nothing",
    keeps_private: "the whole model",
    trains_ahead: false,
    optimizers: Optimizers::Any,
    hyper: &[Hyper {
        name: "lambda",
        kind: Kind::Real { min: 0.0, max: 1e6 },
        default: "1",
        doc: "weight of the mean squared distance between logits and the mean logits of their classes",
    }],
    profiles: &[],
    exchange: |_| Exchange {
        averaging: Some(Averaging {
            weighting: Weighting::Uniform,
            rule: Rule::default(),
        }),
        experts: None,
        everybody_first: false,
        prepares: false,
        total: None,
    },
    build: |setup| Fd::new(setup).map(|algorithm| Box::new(algorithm) as Box<dyn Algorithm>),
};

const LOGITS: usize = 2;

/// The pass that gathers logits after those that train.
const GATHERING: usize = 1;

struct Fd {
    parts: [Part; 3],
    /// Everyone's mean logits as this round found them.
    known: Option<Known>,
    gathered: Gathered,
    lambda: f64,
}

impl Fd {
    fn new(setup: &Setup<'_>) -> Result<Self, LearnError> {
        let [base, head] = whole::halves(setup, Role::Private)?;
        let logits = class_means::part(
            setup,
            ["mean_logits", "mean_logits_present"],
            setup.model.classes,
        );
        let lambda = setup.hyper.real("lambda");
        Ok(Self {
            parts: [base, head, logits],
            known: None,
            gathered: Gathered::default(),
            lambda,
        })
    }
}

impl Algorithm for Fd {
    fn parts(&self) -> &[Part] {
        &self.parts
    }

    fn parts_mut(&mut self) -> &mut [Part] {
        &mut self.parts
    }

    fn passes(&self, ctx: &RoundContext<'_>) -> Vec<u32> {
        vec![ctx.training.local_epochs, 1]
    }

    fn begin_round(&mut self, _ctx: &RoundContext<'_>) {
        self.known = Known::of(&self.parts[LOGITS].weights);
        self.gathered = Gathered::default();
    }

    fn looks_only(&self, stage: Stage) -> bool {
        stage == Stage::Pass(GATHERING)
    }

    fn step(&mut self, stage: Stage, batch: Batch, ctx: &mut StepContext<'_>) -> Step {
        let loss = if stage == Stage::Pass(GATHERING) {
            let (_, logits) = whole::run(&self.parts, &plain(&self.parts), batch.inputs);
            self.gathered.add(logits.clone(), batch.targets.clone());
            Loss::of(&cross_entropy(logits, batch.targets))
        } else {
            let tape = ctx.record_only(&self.parts, &[BASE, HEAD]);
            let (_, logits) = whole::run(&self.parts, &tape, batch.inputs);
            let fit = cross_entropy(logits.clone(), batch.targets.clone());
            let loss = match &self.known {
                Some(known) => {
                    fit + known
                        .distance(logits, batch.targets)
                        .mul_scalar(self.lambda)
                }
                None => fit,
            };
            ctx.step(&mut self.parts, tape, loss)
        };
        Step {
            loss,
            routed: Vec::new(),
        }
    }

    fn end_round(&mut self, _ctx: &RoundContext<'_>) {
        if let Some(logits) = self.gathered.take() {
            self.parts[LOGITS].weights = logits;
        }
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
    use crate::algorithm::testing::{Driven, batch, build};
    use crate::weights::{Weights, values};

    /// Half of the nodes have class 0, with mean logits (2, -1), so the plain mean is (1, -1/2); nobody has class 1. Of
    /// the batch's two samples the first alone counts: ((z_0 - 2)^2 + (z_1 + 1)^2) / 4.
    #[test]
    fn the_loss_is_drawn_to_the_mean_logits_that_came_in() {
        let (mut fd, mut alone) = (build("fd", &[("lambda", 0.5)]), build("local", &[]));
        let device = Device::flex();
        let means = Tensor::from_floats([1.0, -0.5, 0.0, 0.0], &device);
        fd.parts_mut()[LOGITS].weights =
            Weights::new(vec![means, Tensor::from_floats([0.5, 0.0], &device)]);
        let logits = values(&fd.forward(batch().inputs).logits);
        fd.begin(2);
        let pull = fd.train(0, batch()).loss - alone.train(0, batch()).loss;
        let expected = 0.5 * f64::from((logits[0] - 2.0).powi(2) + (logits[1] + 1.0).powi(2)) / 4.0;
        assert!((pull - expected).abs() < 1e-6, "{pull} is not {expected}");
        fd.train(GATHERING, batch());
        let expected = values(&fd.forward(batch().inputs).logits);
        fd.end();
        assert_eq!(values(&fd.parts()[LOGITS].weights.tensor(0)), expected);
        assert_eq!(values(&fd.parts()[LOGITS].weights.tensor(1)), [1.0, 1.0]);
    }
}
