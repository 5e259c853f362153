//! DBE: Zhang et al., "Eliminating Domain Bias for Federated Learning in Representation Space", NeurIPS 2023.
//!
//! ```text
//! r = base(x)    logits = head(r + m)          base and head are averaged; m is the node's personal bias, never shared
//! rm = (1 - mo) * rm + mo * mean_batch(r)      zero when a round begins; the gradient is that of the running batch only
//! L  = CE(logits, y) + klw * mean_d (rm_d - gm_d)^2 / 2
//! ```
//!
//! gm is the mean of all nodes' features, found once. The reference takes an epoch of everyone before the first round
//! for it, and throws the trained weights away. Here it comes with round 1, which trains as FedAvg (m stays zero, no
//! regulariser). Each node puts the mean feature of its samples into the shared part, and their average is gm. Nothing
//! changes it from then on, so every later average is gm again, and a node that joins late gets it with the rest. As
//! the paper has it, a node's mean is over all its samples of that round; the reference's running mean is with mo = 1
//! that of the last batch alone.

use burn::tensor::Tensor;

use fednode_core::Exchange;
use fednode_onnx::{Graph, Value};

use super::hyper::{AGGREGATION, Hyper, Kind, Profile};
use super::module::emit_alone;
use super::part::{Part, Role, plain};
use super::{
    Algorithm, Extractor, Modular, Module, ModuleKind, Opened, Optimizers, Output, RoundContext,
    Row, Setup, Stage, Step, StepContext, averaged,
};
use crate::batch::Batch;
use crate::error::LearnError;
use crate::model::{self, Cut, Initial, Net};
use crate::train::cross_entropy;
use crate::weights::{self, Weights};

pub(super) const ROW: Row = Row {
    name: "dbe",
    summary: "an averaged model whose features are held to a common mean, and a bias of one's own added to them",
    reference: "Zhang et al., NeurIPS 2023, arXiv 2311.14975",
    averages: "the whole model and the mean feature",
    peer_to_peer: "nothing",
    keeps_private: "a vector that is added to the features",
    trains_ahead: false,
    optimizers: Optimizers::Any,
    hyper: &[
        Hyper {
            name: "momentum",
            kind: Kind::Real { min: 0.0, max: 1.0 },
            default: "1",
            doc: "mo: how much of the running mean of features is the latest batch's; 1 takes that alone",
        },
        Hyper {
            name: "regularization",
            kind: Kind::Real { min: 0.0, max: 1e6 },
            default: "50",
            doc: "klw: weight of the squared distance of the running mean from the global one; the authors' for CNNs; profile `text` has theirs for fastText, 0.1",
        },
        AGGREGATION,
    ],
    profiles: &[
        Profile {
            name: "images",
            sets: &[],
        },
        Profile {
            name: "text",
            sets: &[("regularization", "0.1")],
        },
    ],
    exchange: |values| Exchange {
        everybody_first: true,
        prepares: false,
        total: None,
        ..averaged(values)
    },
    build: |setup| Dbe::new(setup).map(|algorithm| Box::new(algorithm) as Box<dyn Algorithm>),
};

const BASE: usize = 0;
const HEAD: usize = 1;
const MEAN: usize = 2;
const BIAS: usize = 3;

struct Dbe {
    parts: [Part; 4],
    momentum: f64,
    regularization: f64,
    running: Running,
}

/// What is gathered in a round; all are `[1, features]`.
enum Running {
    /// The global mean is not known yet: the sum of features and their number.
    Gathering(Option<Tensor<2>>, usize),
    /// It is: the running mean, if there was a batch.
    Regularizing(Option<Tensor<2>>),
}

impl Dbe {
    fn new(setup: &Setup<'_>) -> Result<Self, LearnError> {
        let (base, head) = model::halves(setup.model, Cut::Head)?;
        let width = [base.n_outputs()];
        let vector = |name| Net::arrays(&[(name, &width, Initial::Zeros)]);
        let part = |role, net| Part::new(role, net, setup.seed, 0, setup.device);
        let parts = [
            part(Role::Shared, base),
            part(Role::Shared, head),
            part(Role::Shared, vector("mean_feature")),
            part(Role::Private, vector("personal_bias")),
        ];
        let (momentum, regularization) = (
            setup.hyper.real("momentum"),
            setup.hyper.real("regularization"),
        );
        Ok(Self {
            parts,
            momentum,
            regularization,
            running: Running::Gathering(None, 0),
        })
    }

    /// Returns features and logits.
    fn run(&self, weights: &[Weights], inputs: Tensor<2>) -> (Tensor<2>, Tensor<2>) {
        let features = self.parts[BASE].net.forward(&weights[BASE], inputs);
        let bias = weights[BIAS].tensor(0).unsqueeze();
        let logits = self.parts[HEAD]
            .net
            .forward(&weights[HEAD], features.clone() + bias);
        (features, logits)
    }

    /// Takes a batch's features into the running mean; returns the regulariser, if it counts.
    fn observe(&mut self, features: Tensor<2>) -> Option<Tensor<1>> {
        match &mut self.running {
            Running::Gathering(sum, count) => {
                *count += features.dims()[0];
                *sum = Some(add(sum.take(), features.without_autodiff().sum_dim(0)));
                None
            }
            Running::Regularizing(running) if self.regularization > 0.0 => {
                let before = running
                    .take()
                    .map(|mean| mean.mul_scalar(1.0 - self.momentum));
                let mean = add(before, features.mean_dim(0).mul_scalar(self.momentum));
                *running = Some(mean.clone().without_autodiff());
                let global = self.parts[MEAN].weights.tensor(0).unsqueeze();
                Some(distance(mean, global).mul_scalar(self.regularization))
            }
            Running::Regularizing(_) => None,
        }
    }
}

fn add(sum: Option<Tensor<2>>, more: Tensor<2>) -> Tensor<2> {
    match sum {
        Some(sum) => sum + more,
        None => more,
    }
}

/// Returns `mean_d (rm_d - gm_d)^2 / 2`.
fn distance(mean: Tensor<2>, global: Tensor<2>) -> Tensor<1> {
    let difference = mean - global;
    (difference.clone() * difference).mean().mul_scalar(0.5)
}

impl Algorithm for Dbe {
    fn parts(&self) -> &[Part] {
        &self.parts
    }

    fn parts_mut(&mut self) -> &mut [Part] {
        &mut self.parts
    }

    fn begin_round(&mut self, _ctx: &RoundContext<'_>) {
        let is_known = weights::values(&self.parts[MEAN].weights.tensor(0))
            .iter()
            .any(|value| *value != 0.0);
        self.running = if is_known {
            Running::Regularizing(None)
        } else {
            Running::Gathering(None, 0)
        };
    }

    fn step(&mut self, _stage: Stage, batch: Batch, ctx: &mut StepContext<'_>) -> Step {
        let trained: &[usize] = match self.running {
            Running::Gathering(..) => &[BASE, HEAD],
            Running::Regularizing(_) => &[BASE, HEAD, BIAS],
        };
        let tape = ctx.record_only(&self.parts, trained);
        let (features, logits) = self.run(&tape, batch.inputs);
        let fit = cross_entropy(logits, batch.targets);
        let loss = match self.observe(features) {
            Some(regularizer) => fit + regularizer,
            None => fit,
        };
        Step {
            loss: ctx.step(&mut self.parts, tape, loss),
            routed: Vec::new(),
        }
    }

    fn end_round(&mut self, _ctx: &RoundContext<'_>) {
        if let Running::Gathering(Some(sum), count) = &self.running {
            let mean = sum.clone().div_scalar(*count as f64).flatten(0, 1);
            self.parts[MEAN].weights = Weights::new(vec![mean]);
        }
    }

    fn extractor(&self) -> Option<Extractor<'_>> {
        Some(Extractor::of(&self.parts[BASE]))
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

/// The personal bias is the module; it says the same to every sample.
impl Modular for Dbe {
    fn module(&self) -> Module {
        Module {
            kind: ModuleKind::Vector,
            parts: BIAS..BIAS + 1,
            is_additive: true,
        }
    }

    fn open(&self, inputs: Tensor<2>) -> Opened {
        let features = self.parts[BASE]
            .net
            .forward(&self.parts[BASE].weights, inputs);
        Opened {
            side: Some(features.clone()),
            ..Opened::at(features)
        }
    }

    fn run_module(&self, weights: &[Weights], input: Tensor<2>) -> Tensor<2> {
        let bias: Tensor<2> = weights[0].tensor(0).unsqueeze();
        let width = bias.dims()[1];
        bias.expand([input.dims()[0], width])
    }

    fn close(&self, side: Option<Tensor<2>>, mixed: Tensor<2>) -> Tensor<2> {
        let features = side.expect("what `open` put there");
        self.parts[HEAD]
            .net
            .forward(&self.parts[HEAD].weights, features + mixed)
    }

    fn emit_open(&self, graph: &mut Graph, inputs: Value) -> Opened<Value> {
        let features = self.parts[BASE].emit(graph, inputs);
        Opened {
            side: Some(features),
            ..Opened::at(features)
        }
    }

    fn emit_module(&self, weights: &[Weights], graph: &mut Graph, _input: Value) -> Value {
        let bias = weights::values(&weights[0].tensor(0));
        let width = bias.len();
        graph.floats("personal_bias", bias, &[1, width])
    }

    fn emit_close(&self, graph: &mut Graph, side: Option<Value>, mixed: Value) -> Value {
        let features = side.expect("what `emit_open` put there");
        let moved = graph.add(features, mixed);
        self.parts[HEAD].emit(graph, moved)
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;
    use crate::algorithm::testing::{Driven, batch, build, setup};
    use crate::weights::values;

    const WIDTH: usize = 200;

    fn dbe(hyper: &[(&str, f64)]) -> Dbe {
        let mut dbe = setup("dbe", hyper, |setup| Dbe::new(setup).unwrap());
        dbe.parts[MEAN].weights = Weights::new(vec![Tensor::ones([WIDTH], &Device::flex())]);
        dbe.begin(2);
        dbe
    }

    #[test]
    fn without_regulariser_and_with_a_zero_bias_a_step_is_fedavgs() {
        let mut dbe = dbe(&[("regularization", 0.0)]);
        let mut fedavg = build("fedavg", &[]);
        assert_eq!(dbe.train(0, batch()), fedavg.train(0, batch()));
        let whole = fedavg.parts()[0].params();
        for part in [BASE, HEAD] {
            for (name, tensor) in dbe.parts[part].params().iter() {
                assert_eq!(tensor, whole.get(name).unwrap(), "{name}");
            }
        }
        assert!(
            values(&dbe.parts[BIAS].weights.tensor(0))
                .iter()
                .any(|value| *value != 0.0)
        );
        assert_eq!(values(&dbe.parts[MEAN].weights.tensor(0)), [1.0; WIDTH]);
    }

    /// mo = 0.25, klw = 8, gm = 1. Batch means 2, then 4: rm = 0.25 * 2 = 0.5, then 0.75 * 0.5 + 0.25 * 4 = 1.375.
    /// Regularisers 8 * (0.5 - 1)^2 / 2 = 1 and 8 * 0.375^2 / 2 = 0.5625. The second one's gradient for each of the 2 * 200
    /// features is 8 * 0.375 / 200 * 0.25 / 2 = 0.001875: only the running batch counts.
    #[test]
    fn the_regulariser_agrees_with_a_worked_example() {
        let mut dbe = dbe(&[("momentum", 0.25), ("regularization", 8.0)]);
        let device = Device::flex();
        let first = dbe.observe(Tensor::full([2, WIDTH], 2.0, &device)).unwrap();
        assert!((values(&first)[0] - 1.0).abs() < 1e-6);
        let features = Tensor::full([2, WIDTH], 4.0, &device)
            .autodiff()
            .require_grad();
        let second = dbe.observe(features.clone()).unwrap();
        assert!((values(&second)[0] - 0.5625).abs() < 1e-6);
        let gradients = values(&features.grad(&second.backward()).unwrap());
        assert!(
            gradients
                .iter()
                .all(|gradient| (gradient - 0.001_875).abs() < 1e-8),
            "{:?}",
            &gradients[..2]
        );
    }
}
