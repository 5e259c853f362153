//! A model in two halves, the *base* (everything before the last layer) and the *head* (the last layer), trained by
//! cross-entropy: what `fedper`, `lg-fedavg`, `fedrep` and `fedbabu` have in common.
//!
//! They differ in a [`Plan`] alone: which half is averaged, and which half learns in which pass.

use burn::tensor::Tensor;
use fednode_onnx::{Graph, Value};

use super::module::emit_alone;
use super::part::{Part, Role, plain};
use super::{
    Algorithm, Extractor, Modular, Module, ModuleKind, Opened, Output, RoundContext, Setup, Stage,
    Step, StepContext,
};
use crate::batch::Batch;
use crate::error::LearnError;
use crate::model::{self, Cut};
use crate::train::misfit;
use crate::weights::Weights;

/// Where the base is among the parts.
pub(super) const BASE: usize = 0;
/// Where the head is among the parts.
pub(super) const HEAD: usize = 1;

/// Some epochs in which some halves learn and the others stay as they are, bit for bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pass {
    /// The halves that learn.
    pub(super) trains: &'static [usize],
    /// How often it goes over the samples.
    pub(super) epochs: u32,
}

/// What an algorithm does with the halves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plan {
    /// What the base is to the federation.
    pub(super) base: Role,
    /// What the head is to the federation.
    pub(super) head: Role,
    /// The passes of a local update, in order.
    pub(super) passes: Vec<Pass>,
    /// What a node does for itself after the last round.
    pub(super) fine_tuning: Option<Pass>,
}

struct Halves {
    parts: [Part; 2],
    passes: Vec<Pass>,
    fine_tuning: Option<Pass>,
}

/// Builds it.
pub(super) fn build(setup: &Setup<'_>, plan: Plan) -> Result<Box<dyn Algorithm>, LearnError> {
    let (base, head) = model::halves(setup.model, Cut::Head)?;
    let part = |role, net| Part::new(role, net, setup.seed, 0, setup.device);
    let parts = [part(plan.base, base), part(plan.head, head)];
    let Plan {
        passes,
        fine_tuning,
        ..
    } = plan;
    Ok(Box::new(Halves {
        parts,
        passes,
        fine_tuning,
    }))
}

impl Halves {
    /// Runs the model with the given weights of both halves, plain or recorded.
    fn run(&self, weights: &[Weights], inputs: Tensor<2>) -> Tensor<2> {
        let features = self.parts[BASE].net.forward(&weights[BASE], inputs);
        self.parts[HEAD].net.forward(&weights[HEAD], features)
    }

    /// Trains some halves; the head alone on features.
    fn train(&mut self, trains: &[usize], batch: Batch, ctx: &mut StepContext<'_>) -> Step {
        let tape = ctx.record_only(&self.parts, trains);
        let logits = match trains {
            [HEAD] => self.parts[HEAD].net.forward(&tape[HEAD], batch.inputs),
            _ => self.run(&tape, batch.inputs),
        };
        let fit = misfit(logits, batch.targets);
        Step {
            loss: ctx.step(&mut self.parts, tape, fit),
            routed: Vec::new(),
        }
    }
}

impl Algorithm for Halves {
    fn parts(&self) -> &[Part] {
        &self.parts
    }

    fn parts_mut(&mut self) -> &mut [Part] {
        &mut self.parts
    }

    fn passes(&self, _ctx: &RoundContext<'_>) -> Vec<u32> {
        self.passes.iter().map(|pass| pass.epochs).collect()
    }

    fn frozen(&self, stage: Stage, inputs: Tensor<2>) -> Option<Tensor<2>> {
        let pass = match stage {
            Stage::Pass(pass) => self.passes.get(pass).copied(),
            Stage::FineTuning(_) => self.fine_tuning,
        };
        let is_head_alone = pass.is_some_and(|pass| pass.trains == [HEAD]);
        is_head_alone.then(|| {
            self.parts[BASE]
                .net
                .forward(&self.parts[BASE].weights, inputs)
        })
    }

    fn step(&mut self, stage: Stage, batch: Batch, ctx: &mut StepContext<'_>) -> Step {
        let trains = match stage {
            Stage::Pass(pass) => self.passes[pass].trains,
            Stage::FineTuning(_) => self.fine_tuning.map_or(&[][..], |pass| pass.trains),
        };
        self.train(trains, batch, ctx)
    }

    fn fine_tuning_passes(&self) -> Vec<u32> {
        self.fine_tuning.iter().map(|pass| pass.epochs).collect()
    }

    fn extractor(&self) -> Option<Extractor<'_>> {
        let base = &self.parts[BASE];
        (base.role == Role::Shared).then(|| Extractor::of(base))
    }

    fn modular(&self) -> Option<&dyn Modular> {
        Some(self)
    }

    fn forward(&self, inputs: Tensor<2>) -> Output {
        Output {
            logits: self.run(&plain(&self.parts), inputs),
            chosen: None,
            n_experts: 0,
        }
    }

    fn emit(&self, graph: &mut Graph, inputs: Value) -> Value {
        emit_alone(self, graph, inputs)
    }
}

/// The private half is the module.
impl Modular for Halves {
    fn module(&self) -> Module {
        match self.parts[HEAD].role {
            Role::Private => Module {
                kind: ModuleKind::Head,
                parts: HEAD..HEAD + 1,
                is_additive: false,
            },
            _ => Module {
                kind: ModuleKind::Extractor,
                parts: BASE..BASE + 1,
                is_additive: true,
            },
        }
    }

    fn open(&self, inputs: Tensor<2>) -> Opened {
        let base = &self.parts[BASE];
        match self.module().kind {
            ModuleKind::Head => Opened::at(base.net.forward(&base.weights, inputs)),
            _ => Opened {
                gate_input: base.net.gate_input(&base.weights, inputs.clone()),
                ..Opened::at(inputs)
            },
        }
    }

    fn run_module(&self, weights: &[Weights], input: Tensor<2>) -> Tensor<2> {
        self.parts[self.module().parts.start]
            .net
            .forward(&weights[0], input)
    }

    fn close(&self, _side: Option<Tensor<2>>, mixed: Tensor<2>) -> Tensor<2> {
        let head = &self.parts[HEAD];
        match self.module().kind {
            ModuleKind::Head => mixed,
            _ => head.net.forward(&head.weights, mixed),
        }
    }

    fn emit_open(&self, graph: &mut Graph, inputs: Value) -> Opened<Value> {
        let base = &self.parts[BASE];
        match self.module().kind {
            ModuleKind::Head => Opened::at(base.emit(graph, inputs)),
            _ => Opened {
                gate_input: base.net.emit_gate_input(&base.weights, graph, inputs),
                ..Opened::at(inputs)
            },
        }
    }

    fn emit_module(&self, weights: &[Weights], graph: &mut Graph, input: Value) -> Value {
        self.parts[self.module().parts.start]
            .net
            .emit(&weights[0], graph, input)
    }

    fn emit_close(&self, graph: &mut Graph, _side: Option<Value>, mixed: Value) -> Value {
        match self.module().kind {
            ModuleKind::Head => mixed,
            _ => self.parts[HEAD].emit(graph, mixed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::testing::{self, Driven};

    /// Trains `fedrep` on one batch in each of the given passes; tells which halves moved.
    fn moved(passes: &[usize]) -> [bool; 2] {
        let mut algorithm = testing::build("fedrep", &[]);
        let before: Vec<_> = algorithm.parts().iter().map(Part::params).collect();
        for pass in passes {
            algorithm.train_in(Stage::Pass(*pass), testing::batch());
        }
        let now = algorithm.parts();
        [BASE, HEAD].map(|half| now[half].params() != before[half])
    }

    #[test]
    fn a_half_that_does_not_learn_stays_bit_for_bit() {
        assert_eq!(moved(&[0, 0]), [false, true]);
        assert_eq!(moved(&[1, 1]), [true, false]);
        assert_eq!(moved(&[0, 1]), [true, true]);
    }
}
