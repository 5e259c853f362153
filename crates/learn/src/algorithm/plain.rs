//! One whole model trained by cross-entropy: what `fedavg`, `fedavg-ft` and `local` have in common.

use burn::tensor::Tensor;
use fednode_onnx::{Graph, Value};

use super::part::{Part, Role};
use super::{Algorithm, Extractor, Output, Setup, Stage, Step, StepContext};
use crate::batch::Batch;
use crate::error::LearnError;
use crate::model::{self, Cut};
use crate::train::misfit;

/// A model that is one part.
struct Plain {
    part: [Part; 1],
    /// Epochs that a node trains for itself after the last round, if there is such a stage.
    fine_tuning: Option<u32>,
}

/// Builds it; the role says whether the model is averaged.
pub(super) fn build(setup: &Setup<'_>, role: Role) -> Result<Box<dyn Algorithm>, LearnError> {
    Ok(Box::new(plain(setup, role, None)?))
}

/// Builds it averaged, with so many epochs for the node alone after the last round.
pub(super) fn build_tuned(
    setup: &Setup<'_>,
    epochs: u32,
) -> Result<Box<dyn Algorithm>, LearnError> {
    Ok(Box::new(plain(setup, Role::Shared, Some(epochs))?))
}

fn plain(setup: &Setup<'_>, role: Role, fine_tuning: Option<u32>) -> Result<Plain, LearnError> {
    let net = model::build(setup.model)?;
    let part = Part::new(role, net, setup.seed, 0, setup.device);
    Ok(Plain {
        part: [part],
        fine_tuning,
    })
}

impl Algorithm for Plain {
    fn parts(&self) -> &[Part] {
        &self.part
    }

    fn parts_mut(&mut self) -> &mut [Part] {
        &mut self.part
    }

    fn step(&mut self, _stage: Stage, batch: Batch, ctx: &mut StepContext<'_>) -> Step {
        let tape = ctx.record(&self.part);
        let logits = self.part[0].net.forward(&tape[0], batch.inputs);
        let loss = ctx.step(&mut self.part, tape, misfit(logits, batch.targets));
        Step {
            loss,
            routed: Vec::new(),
        }
    }

    fn fine_tuning_passes(&self) -> Vec<u32> {
        self.fine_tuning.into_iter().collect()
    }

    fn extractor(&self) -> Option<Extractor<'_>> {
        let [part] = &self.part;
        let front = || Extractor::front(part.net.split(Cut::Head).0, &part.weights);
        (part.role == Role::Shared).then(front)
    }

    fn forward(&self, inputs: Tensor<2>) -> Output {
        let [part] = &self.part;
        Output {
            logits: part.net.forward(&part.weights, inputs),
            chosen: None,
            n_experts: 0,
        }
    }

    fn emit(&self, graph: &mut Graph, inputs: Value) -> Value {
        self.part[0].emit(graph, inputs)
    }
}
