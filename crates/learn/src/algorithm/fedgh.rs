//! FedGH: Yi et al., "FedGH: Heterogeneous Federated Learning with Generalized Global Header", ACM MM 2023.
//!
//! Every node keeps its base. What it sends is, for each class that it has samples of, the mean feature of those; the
//! aggregator learns a head from all nodes' prototypes (rule `prototypes` of `fednode_mix::rule`), which all nodes receive. Locally base and
//! head learn together, then the node's head is given up for the one that came in: it goes back to the aggregator as the
//! point to start from. The prototypes come from one more pass over all samples, which trains nothing, counts among
//! the update's steps and reports the loss of the trained pair. Predictions are base and received head.
//!
//! PFLlib's server starts each round from the head that its first client has trained, through an alias; here, as the
//! paper has it, from its own last one.

use burn::tensor::Tensor;
use fednode_core::{Averaging, Exchange, Weighting};
use fednode_mix::names;
use fednode_onnx::{Graph, Value};

use super::hyper::{Hyper, Kind};
use super::module::emit_alone;
use super::part::{Part, Role, plain};
use super::{
    Algorithm, Loss, Modular, Module, ModuleKind, Opened, Optimizers, Output, RoundContext, Row,
    Setup, Stage, Step, StepContext,
};
use crate::batch::Batch;
use crate::error::LearnError;
use crate::model::{self, Cut, Initial, Net, affine};
use crate::train::cross_entropy;
use crate::weights::Weights;

pub(super) const ROW: Row = Row {
    name: "fedgh",
    summary: "a base of one's own under a head that is learned from everyone's class prototypes",
    reference: "Yi et al., ACM MM 2023, arXiv 2303.13137",
    averages: "the mean feature of each class, from which the aggregator learns the head",
    peer_to_peer: "nothing",
    keeps_private: "the base (all layers but the last)",
    trains_ahead: false,
    optimizers: Optimizers::Any,
    hyper: &[
        Hyper {
            name: "server_learning_rate",
            kind: Kind::Real {
                min: 1e-9,
                max: 1e3,
            },
            default: "1",
            doc: "step size of the aggregator's head",
        },
        Hyper {
            name: "server_batch_size",
            kind: Kind::Integer { min: 1, max: 4096 },
            default: "10",
            doc: "prototypes of a step of the aggregator",
        },
        Hyper {
            name: "server_epochs",
            kind: Kind::Integer { min: 1, max: 1000 },
            default: "1",
            doc: "passes of the aggregator over all prototypes in a round",
        },
    ],
    profiles: &[],
    exchange: |values| Exchange {
        averaging: Some(Averaging {
            weighting: Weighting::Uniform,
            rule: values.learning("prototypes", "server_epochs"),
        }),
        experts: None,
        everybody_first: false,
        prepares: false,
        total: None,
    },
    build: |setup| FedGh::new(setup).map(|algorithm| Box::new(algorithm) as Box<dyn Algorithm>),
};

const BASE: usize = 0;
const HEAD: usize = 1;
const PROTOTYPES: usize = 2;

/// The pass that gathers features after those that train.
const GATHERING: usize = 1;

struct FedGh {
    parts: [Part; 3],
    /// The head as this round found it.
    received: Weights,
    /// Sum of features, `[classes, D]`, and number of samples, `[classes, 1]`, of each class in this round.
    gathered: Option<(Tensor<2>, Tensor<2>)>,
}

impl FedGh {
    fn new(setup: &Setup<'_>) -> Result<Self, LearnError> {
        let (base, head) = model::halves(setup.model, Cut::Head)?;
        let (width, classes) = (base.n_outputs(), setup.model.classes);
        let (prototypes, present) = ([classes, width], [classes]);
        let zero = Initial::Zeros;
        let arrays = Net::arrays(&[
            (names::PROTOTYPES, &prototypes, zero),
            (names::PRESENT, &present, zero),
        ]);
        let part = |role, net| Part::new(role, net, setup.seed, 0, setup.device);
        let parts = [
            part(Role::Private, base),
            part(Role::Shared, head),
            part(Role::Shared, arrays),
        ];
        let received = parts[HEAD].weights.clone();
        Ok(Self {
            parts,
            received,
            gathered: None,
        })
    }

    /// Returns features and logits.
    fn run(&self, weights: &[Weights], inputs: Tensor<2>) -> (Tensor<2>, Tensor<2>) {
        let features = self.parts[BASE].net.forward(&weights[BASE], inputs);
        let logits = self.parts[HEAD]
            .net
            .forward(&weights[HEAD], features.clone());
        (features, logits)
    }

    /// Adds a batch's features to the sums of their classes.
    fn gather(&mut self, features: Tensor<2>, targets: Tensor<2>) {
        let by_class = targets.transpose();
        let (sums, counts) = (
            affine(by_class.clone(), features, None),
            by_class.sum_dim(1),
        );
        self.gathered = Some(match self.gathered.take() {
            Some((sum, count)) => (sum + sums, count + counts),
            None => (sums, counts),
        });
    }
}

impl Algorithm for FedGh {
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
        self.received = self.parts[HEAD].weights.clone();
        self.gathered = None;
    }

    fn looks_only(&self, stage: Stage) -> bool {
        stage == Stage::Pass(GATHERING)
    }

    fn step(&mut self, stage: Stage, batch: Batch, ctx: &mut StepContext<'_>) -> Step {
        let loss = if stage == Stage::Pass(GATHERING) {
            let (features, logits) = self.run(&plain(&self.parts), batch.inputs);
            self.gather(features, batch.targets.clone());
            Loss::of(&cross_entropy(logits, batch.targets))
        } else {
            let tape = ctx.record_only(&self.parts, &[BASE, HEAD]);
            let (_, logits) = self.run(&tape, batch.inputs);
            ctx.step(&mut self.parts, tape, cross_entropy(logits, batch.targets))
        };
        Step {
            loss,
            routed: Vec::new(),
        }
    }

    fn end_round(&mut self, _ctx: &RoundContext<'_>) {
        self.parts[HEAD].weights = self.received.clone();
        if let Some((sums, counts)) = self.gathered.take() {
            let present = counts.clone().clamp_max(1.0).flatten(0, 1);
            let means = sums / counts.clamp_min(1.0);
            self.parts[PROTOTYPES].weights = Weights::new(vec![means.flatten(0, 1), present]);
        }
    }

    fn modular(&self) -> Option<&dyn Modular> {
        Some(self)
    }

    fn forward(&self, inputs: Tensor<2>) -> Output {
        let (_, logits) = self.run(&plain(&self.parts), inputs);
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

/// The base is the module.
impl Modular for FedGh {
    fn module(&self) -> Module {
        Module {
            kind: ModuleKind::Extractor,
            parts: BASE..BASE + 1,
            is_additive: true,
        }
    }

    fn open(&self, inputs: Tensor<2>) -> Opened {
        let base = &self.parts[BASE];
        Opened {
            gate_input: base.net.gate_input(&base.weights, inputs.clone()),
            ..Opened::at(inputs)
        }
    }

    fn run_module(&self, weights: &[Weights], input: Tensor<2>) -> Tensor<2> {
        self.parts[BASE].net.forward(&weights[0], input)
    }

    fn close(&self, _side: Option<Tensor<2>>, mixed: Tensor<2>) -> Tensor<2> {
        self.parts[HEAD]
            .net
            .forward(&self.parts[HEAD].weights, mixed)
    }

    fn emit_open(&self, graph: &mut Graph, inputs: Value) -> Opened<Value> {
        let base = &self.parts[BASE];
        Opened {
            gate_input: base.net.emit_gate_input(&base.weights, graph, inputs),
            ..Opened::at(inputs)
        }
    }

    fn emit_module(&self, weights: &[Weights], graph: &mut Graph, input: Value) -> Value {
        self.parts[BASE].net.emit(&weights[0], graph, input)
    }

    fn emit_close(&self, graph: &mut Graph, _side: Option<Value>, mixed: Value) -> Value {
        self.parts[HEAD].emit(graph, mixed)
    }
}
