//! FedRoD: Chen and Chao, "On Bridging Generic and Personalized Federated Learning for Image Classification", ICLR 2022.
//!
//! ```text
//! r = base(x)    g = head(r)          generic, averaged, weighted by the number of training samples
//! L_generic  = CE(g + log c, y)       balanced softmax; c = the node's training samples of each class
//! L_personal = CE(g + h(r), y)        the personal head h alone learns from it; g and r are constants here
//! ```
//!
//! Predictions are g + h(r). Both losses read the weights from before the step and share no trained parameter, so one
//! step on their sum is the reference's two steps (but for `training.clip_norm`, which then bounds both together). Here
//! h is linear and starts as a copy of the head. A class that the node has no sample of is left out of the
//! balanced softmax; PFLlib counts classes in incomplete epochs and so gets infinite losses.

use burn::tensor::{Device, Tensor, TensorData};
use fednode_onnx::{Graph, Value};

use super::hyper::AGGREGATION;
use super::module::emit_alone;
use super::part::{Part, Role, plain};
use super::{
    Algorithm, Extractor, Modular, Module, ModuleKind, Opened, Optimizers, Output, RoundContext,
    Row, Setup, Stage, Step, StepContext, averaged,
};
use crate::batch::Batch;
use crate::error::LearnError;
use crate::model::{self, Cut};
use crate::train::cross_entropy;
use crate::weights::Weights;

pub(super) const ROW: Row = Row {
    name: "fedrod",
    summary: "an averaged model that is fair to rare classes, and a head of one's own added to it",
    reference: "Chen and Chao, ICLR 2022, arXiv 2107.00778",
    averages: "the whole model",
    peer_to_peer: "nothing",
    keeps_private: "a second head",
    trains_ahead: true,
    optimizers: Optimizers::Any,
    hyper: &[AGGREGATION],
    profiles: &[],
    exchange: averaged,
    build: |setup| FedRod::new(setup).map(|algorithm| Box::new(algorithm) as Box<dyn Algorithm>),
};

const BASE: usize = 0;
const HEAD: usize = 1;
const PERSONAL: usize = 2;

/// Stands for the logarithm of zero: low enough for a probability of zero, and finite, for 0 times it is not a number
/// otherwise.
const LOG_OF_NOTHING: f32 = -1e9;

struct FedRod {
    parts: [Part; 3],
    /// `[1, classes]`.
    log_counts: Tensor<2>,
}

impl FedRod {
    fn new(setup: &Setup<'_>) -> Result<Self, LearnError> {
        let (base, head) = model::halves(setup.model, Cut::Head)?;
        let part = |role, net| Part::new(role, net, setup.seed, 0, setup.device);
        let mut personal = part(Role::Private, head.renamed("personal"));
        let (base, head) = (part(Role::Shared, base), part(Role::Shared, head));
        personal.weights = head.weights.clone();
        let log_counts = log_counts(&vec![1; setup.model.classes], setup.device);
        Ok(Self {
            parts: [base, head, personal],
            log_counts,
        })
    }

    /// Returns features and generic logits.
    fn generic(&self, weights: &[Weights], inputs: Tensor<2>) -> (Tensor<2>, Tensor<2>) {
        let features = self.parts[BASE].net.forward(&weights[BASE], inputs);
        let logits = self.parts[HEAD]
            .net
            .forward(&weights[HEAD], features.clone());
        (features, logits)
    }
}

/// Returns log c as a row.
fn log_counts(class_counts: &[u32], device: &Device) -> Tensor<2> {
    let log = |count: &u32| {
        if *count == 0 {
            LOG_OF_NOTHING
        } else {
            f64::from(*count).ln() as f32
        }
    };
    let values: Vec<f32> = class_counts.iter().map(log).collect();
    Tensor::from_data(TensorData::new(values, [1, class_counts.len()]), device)
}

impl Algorithm for FedRod {
    fn parts(&self) -> &[Part] {
        &self.parts
    }

    fn parts_mut(&mut self) -> &mut [Part] {
        &mut self.parts
    }

    fn copies(&self) -> &'static [[usize; 2]] {
        &[[PERSONAL, HEAD]]
    }

    fn begin_round(&mut self, ctx: &RoundContext<'_>) {
        self.log_counts = log_counts(ctx.class_counts, &self.log_counts.device());
    }

    fn step(&mut self, _stage: Stage, batch: Batch, ctx: &mut StepContext<'_>) -> Step {
        let tape = ctx.record(&self.parts);
        let (features, generic) = self.generic(&tape, batch.inputs);
        let balanced = cross_entropy(
            generic.clone() + self.log_counts.clone(),
            batch.targets.clone(),
        );
        let (features, generic) = (features.without_autodiff(), generic.without_autodiff());
        let logits = generic + self.parts[PERSONAL].net.forward(&tape[PERSONAL], features);
        let loss = balanced + cross_entropy(logits, batch.targets);
        Step {
            loss: ctx.step(&mut self.parts, tape, loss),
            routed: Vec::new(),
        }
    }

    fn extractor(&self) -> Option<Extractor<'_>> {
        Some(Extractor::of(&self.parts[BASE]))
    }

    fn modular(&self) -> Option<&dyn Modular> {
        Some(self)
    }

    fn forward(&self, inputs: Tensor<2>) -> Output {
        let weights = plain(&self.parts);
        let (features, generic) = self.generic(&weights, inputs);
        let logits = generic
            + self.parts[PERSONAL]
                .net
                .forward(&weights[PERSONAL], features);
        Output {
            logits,
            chosen: None,
            n_experts: 0,
        }
    }

    fn emit(&self, graph: &mut Graph, inputs: Value) -> Value {
        emit_alone(self, graph, inputs)
    }
}

/// The personal head is the module; the generic logits are what it is added to.
impl Modular for FedRod {
    fn module(&self) -> Module {
        Module {
            kind: ModuleKind::Head,
            parts: PERSONAL..PERSONAL + 1,
            is_additive: true,
        }
    }

    fn open(&self, inputs: Tensor<2>) -> Opened {
        let (features, generic) = self.generic(&plain(&self.parts), inputs);
        Opened {
            side: Some(generic),
            ..Opened::at(features)
        }
    }

    fn run_module(&self, weights: &[Weights], input: Tensor<2>) -> Tensor<2> {
        self.parts[PERSONAL].net.forward(&weights[0], input)
    }

    fn close(&self, side: Option<Tensor<2>>, mixed: Tensor<2>) -> Tensor<2> {
        side.expect("what `open` put there") + mixed
    }

    fn emit_open(&self, graph: &mut Graph, inputs: Value) -> Opened<Value> {
        let features = self.parts[BASE].emit(graph, inputs);
        Opened {
            side: Some(self.parts[HEAD].emit(graph, features)),
            ..Opened::at(features)
        }
    }

    fn emit_module(&self, weights: &[Weights], graph: &mut Graph, input: Value) -> Value {
        self.parts[PERSONAL].net.emit(&weights[0], graph, input)
    }

    fn emit_close(&self, graph: &mut Graph, side: Option<Value>, mixed: Value) -> Value {
        let generic = side.expect("what `emit_open` put there");
        graph.add(generic, mixed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::values;

    /// Logits (1, 2, 3), counts (4, 0, 2), label 2: the odds are 4e, 0 and 2e^3, so the loss is
    /// ln(1 + 4e / 2e^3) = ln(1 + 2 exp(-2)) = 0.239 544 766. The gradient is (4e, 0, 2e^3) / (4e + 2e^3) - (0, 0, 1).
    #[test]
    fn balanced_softmax_agrees_with_a_worked_example() {
        let device = Device::flex();
        let logits = Tensor::<2>::from_floats([[1.0, 2.0, 3.0]], &device)
            .autodiff()
            .require_grad();
        let targets = Tensor::<2>::from_floats([[0.0, 0.0, 1.0]], &device);
        let loss = cross_entropy(logits.clone() + log_counts(&[4, 0, 2], &device), targets);
        assert!((values(&loss)[0] - 0.239_544_77).abs() < 1e-6, "{loss}");
        let gradient = values(&logits.grad(&loss.backward()).unwrap());
        let expected = [0.213_013_96, 0.0, -0.213_013_96];
        assert!(
            gradient
                .iter()
                .zip(expected)
                .all(|(got, expected)| (got - expected).abs() < 1e-6),
            "{gradient:?}"
        );
    }
}
