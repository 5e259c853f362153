//! FedPAC: Xu, Tong and Huang, "Personalized Federated Learning with Feature Alignment and Classifier Collaboration",
//! ICLR 2023, and the authors' code.
//!
//! ```text
//! before      h_c = p_c mean(base(x) | c), v = (mean |base(x)|^2 - |h|^2) / n        the node's statistics
//! head        CE(head(base(x)), y), the head alone, one epoch of its own step size
//! base        CE(head(base(x)), y) + lambda * mean_{batch, d} (base(x)_d - C_y,d)^2, the base alone
//! after       C_c = sum_j n_jc mean_j(base(x) | c) / sum_j n_jc                       everyone's centroids
//! exchange    base: mean by samples; head of node i: sum_j a_ij head_j
//! ```
//!
//! The weights `a_ij` are each node's own optimum of a quadratic programme over everybody's statistics
//! (matching `statistics` of `fednode_mix::matching`). In the code a server solves it for all; here statistics are gossiped as proxies,
//! every node solves its own programme, and fetches from their owners just the heads that it weights. So a plan is one
//! round old: the heads of a round are mixed by the statistics of the round before, and in round 1 none are. Both sets
//! were measured under one base, the one that the round began with, as there. Where only some nodes train in a round
//! (`round.participation`), a node that did not train in the round before has no statistics of it, and keeps its head.
//! So does one that `peers_per_expert` leaves nobody. In a federation of more than 200 nodes (`limits::FULL_PROXIES`) and with
//! a number of `peers_per_expert`, those take part whose statistics have the sketches most like the node's own.
//!
//! The paper was not at hand; the authors' code is followed. There is no alignment in the first round, and the head's
//! step size is 0.1, ten times the base's there. A class without a centroid adds nothing to the loss, where the code
//! takes the node's own mean; this happens only to a node that was not counted. The code trains all its methods with
//! momentum 0.5 and weight decay: that is `training.momentum` and `training.weight_decay`, 0 by default. The two passes that gather train
//! nothing, count among the update's steps and report the loss of the model.

use burn::tensor::Tensor;
use fednode_core::{Averaging, Exchange, ExpertExchange, Matching, Rule, Slot, Weighting};
use fednode_onnx::{Graph, Value};

use super::class_means::{self, Gathered, Known};
use super::hyper::{Hyper, Kind};
use super::module::emit_alone;
use super::part::{Part, Role, plain};
use super::whole::{self, BASE, HEAD};
use super::{
    Algorithm, Extractor, Loss, Modular, Module, ModuleKind, Opened, Optimizers, Output,
    RoundContext, Row, Setup, Stage, Step, StepContext,
};
use crate::batch::Batch;
use crate::error::LearnError;
use crate::model::{Initial, Net};
use crate::optimizer::StepRule;
use crate::train::cross_entropy;
use crate::weights::{self, Weights};

pub(super) const ROW: Row = Row {
    name: "fedpac",
    summary: "features drawn to everyone's class centroids, under a head combined of those that suit the node best",
    reference: "Xu et al., ICLR 2023",
    averages: "the base (all layers but the last) and the centroid of each class",
    peer_to_peer: "heads, and statistics of the features of each class",
    keeps_private: "how the heads are combined",
    trains_ahead: false,
    optimizers: Optimizers::Any,
    hyper: &[
        Hyper {
            name: "lambda",
            kind: Kind::Real { min: 0.0, max: 1e6 },
            default: "1",
            doc: "weight of the mean squared distance between features and the centroids of their classes",
        },
        Hyper {
            name: "head_epochs",
            kind: Kind::Integer { min: 0, max: 1000 },
            default: "1",
            doc: "epochs of the head alone before those of the base",
        },
        Hyper {
            name: "head_learning_rate",
            kind: Kind::Real {
                min: 1e-9,
                max: 1e3,
            },
            default: "0.1",
            doc: "step size of the head",
        },
        Hyper {
            name: "peers_per_expert",
            kind: Kind::CountOrAll { max: 100_000 },
            default: "all",
            doc: "how many other heads take part in a node's programme, those of the most similar statistics",
        },
        Hyper {
            name: "own_head",
            kind: Kind::Choice(&[AT_LEAST_HALF, FREE]),
            default: AT_LEAST_HALF,
            doc: "what the own head is of the combined one: `at-least-half`, with bounds on others' variances and weights; `free`: \
                  what the programme says, as in the paper",
        },
    ],
    profiles: &[],
    exchange: |values| Exchange {
        averaging: Some(Averaging {
            weighting: Weighting::Samples,
            rule: Rule::default(),
        }),
        experts: Some(ExpertExchange::by(
            Matching::named(match values.text("own_head") {
                FREE => "statistics",
                _ => "bounded-statistics",
            }),
            values.peers("peers_per_expert"),
        )),
        everybody_first: false,
        prepares: false,
        total: None,
    },
    build: |setup| FedPac::new(setup).map(|algorithm| Box::new(algorithm) as Box<dyn Algorithm>),
};

const AT_LEAST_HALF: &str = "at-least-half";
const FREE: &str = "free";

const STATISTICS: usize = 2;
const CENTROIDS: usize = 3;

/// The passes: statistics under the base that came in, head, base, centroids under the trained base.
const MEASURING: usize = 0;
const HEAD_ALONE: usize = 1;
const BASE_ALONE: usize = 2;
const GATHERING: usize = 3;

struct FedPac {
    parts: [Part; 4],
    /// Everyone's centroids as this round found them.
    known: Option<Known>,
    gathered: Gathered,
    /// Sum of the squared features' norms, and number of samples.
    squares: (f64, usize),
    lambda: f64,
    head_epochs: u32,
    head_learning_rate: f64,
}

impl FedPac {
    fn new(setup: &Setup<'_>) -> Result<Self, LearnError> {
        let [base, mut head] = whole::halves(setup, Role::Shared)?;
        head.role = Role::Expert(Slot(0));
        let (classes, width) = (setup.model.classes, base.net.n_outputs());
        let statistics = Net::arrays(&[("statistics", &[1, classes * width + 1], Initial::Zeros)]);
        let statistics = Part::new(Role::Gate, statistics, setup.seed, 0, setup.device);
        let centroids = class_means::part(setup, ["centroids", "class_shares"], width);
        Ok(Self {
            parts: [base, head, statistics, centroids],
            known: None,
            gathered: Gathered::default(),
            squares: (0.0, 0),
            lambda: setup.hyper.real("lambda"),
            head_epochs: setup.hyper.count("head_epochs"),
            head_learning_rate: setup.hyper.real("head_learning_rate"),
        })
    }

    /// Adds up what statistics and centroids are made of; returns the loss.
    fn gather(&mut self, batch: Batch) -> Loss {
        let n_samples = batch.inputs.dims()[0];
        let (features, logits) = whole::run(&self.parts, &plain(&self.parts), batch.inputs);
        let squares = (features.clone() * features.clone()).sum();
        self.squares.0 += f64::from(weights::values(&squares)[0]);
        self.squares.1 += n_samples;
        self.gathered.add(features, batch.targets.clone());
        Loss::of(&cross_entropy(logits, batch.targets))
    }

    /// Makes the statistics of what was gathered under the base that came in, if that is not done yet.
    fn measure(&mut self) {
        let (squares, n_samples) = std::mem::take(&mut self.squares);
        let Some(shares) = self.gathered.take_shares() else {
            return;
        };
        let h = shares.tensor(0);
        let h_squared = f64::from(weights::values(&(h.clone() * h.clone()).sum())[0]);
        let n = n_samples as f64;
        let v = ((squares / n - h_squared) / n).max(0.0);
        let v = Tensor::full([1], v, &h.device());
        self.parts[STATISTICS].weights = Weights::new(vec![Tensor::cat(vec![h, v], 0)]);
    }

    fn learn(&mut self, pass: usize, batch: Batch, ctx: &mut StepContext<'_>) -> Loss {
        let half = if pass == HEAD_ALONE { HEAD } else { BASE };
        let tape = ctx.record_only(&self.parts, &[half]);
        let loss = if pass == BASE_ALONE {
            let (features, logits) = whole::run(&self.parts, &tape, batch.inputs);
            let fit = cross_entropy(logits, batch.targets.clone());
            match &self.known {
                Some(known) => {
                    fit + known
                        .distance(features, batch.targets)
                        .mul_scalar(self.lambda)
                }
                None => fit,
            }
        } else {
            cross_entropy(
                self.parts[HEAD].net.forward(&tape[HEAD], batch.inputs),
                batch.targets,
            )
        };
        ctx.step(&mut self.parts, tape, loss)
    }
}

impl Algorithm for FedPac {
    fn parts(&self) -> &[Part] {
        &self.parts
    }

    fn parts_mut(&mut self) -> &mut [Part] {
        &mut self.parts
    }

    fn passes(&self, ctx: &RoundContext<'_>) -> Vec<u32> {
        vec![1, self.head_epochs, ctx.training.local_epochs, 1]
    }

    fn begin_round(&mut self, _ctx: &RoundContext<'_>) {
        self.known = Known::of(&self.parts[CENTROIDS].weights);
        self.gathered = Gathered::default();
        self.squares = (0.0, 0);
    }

    fn frozen(&self, stage: Stage, inputs: Tensor<2>) -> Option<Tensor<2>> {
        (stage == Stage::Pass(HEAD_ALONE)).then(|| whole::features(&self.parts, inputs))
    }

    fn step_rule(&self, stage: Stage) -> StepRule {
        match stage {
            Stage::Pass(HEAD_ALONE) => StepRule::At(self.head_learning_rate),
            _ => StepRule::Federation,
        }
    }

    fn looks_only(&self, stage: Stage) -> bool {
        matches!(stage, Stage::Pass(MEASURING | GATHERING))
    }

    fn step(&mut self, stage: Stage, batch: Batch, ctx: &mut StepContext<'_>) -> Step {
        let n_samples = batch.inputs.dims()[0] as u32;
        match stage {
            Stage::Pass(pass @ (HEAD_ALONE | BASE_ALONE)) => {
                self.measure();
                Step {
                    loss: self.learn(pass, batch, ctx),
                    routed: vec![n_samples],
                }
            }
            _ => Step {
                loss: self.gather(batch),
                routed: vec![0],
            },
        }
    }

    fn end_round(&mut self, _ctx: &RoundContext<'_>) {
        if let Some(centroids) = self.gathered.take_shares() {
            self.parts[CENTROIDS].weights = centroids;
        }
    }

    fn extractor(&self) -> Option<Extractor<'_>> {
        Some(Extractor::of(&self.parts[BASE]))
    }

    fn modular(&self) -> Option<&dyn Modular> {
        Some(self)
    }

    fn forward(&self, inputs: Tensor<2>) -> Output {
        whole::forward(&self.parts, inputs)
    }

    fn emit(&self, graph: &mut Graph, inputs: Value) -> Value {
        emit_alone(self, graph, inputs)
    }
}

/// The head is the module.
impl Modular for FedPac {
    fn module(&self) -> Module {
        Module {
            kind: ModuleKind::Head,
            parts: HEAD..HEAD + 1,
            is_additive: false,
        }
    }

    fn open(&self, inputs: Tensor<2>) -> Opened {
        Opened::at(whole::features(&self.parts, inputs))
    }

    fn run_module(&self, weights: &[Weights], input: Tensor<2>) -> Tensor<2> {
        self.parts[HEAD].net.forward(&weights[0], input)
    }

    fn close(&self, _side: Option<Tensor<2>>, mixed: Tensor<2>) -> Tensor<2> {
        mixed
    }

    fn emit_open(&self, graph: &mut Graph, inputs: Value) -> Opened<Value> {
        Opened::at(self.parts[BASE].emit(graph, inputs))
    }

    fn emit_module(&self, weights: &[Weights], graph: &mut Graph, input: Value) -> Value {
        self.parts[HEAD].net.emit(&weights[0], graph, input)
    }

    fn emit_close(&self, _graph: &mut Graph, _side: Option<Value>, mixed: Value) -> Value {
        mixed
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;
    use crate::algorithm::testing::{Driven, assert_close, batch, build, matrix, numbers, setup};
    use crate::weights::values;

    const WIDTH: usize = 200;

    fn node(hyper: &[(&str, f64)]) -> FedPac {
        setup("fedpac", hyper, |setup| FedPac::new(setup).unwrap())
    }

    fn features(node: &FedPac) -> Vec<f32> {
        values(&whole::features(&node.parts, batch().inputs))
    }

    /// Two samples, one of each class: h is half of both features, v = ((|a|^2 + |b|^2)/2 - (|a|^2 + |b|^2)/4) / 2,
    /// which is an eighth of the sum of all squares.
    #[test]
    fn statistics_are_those_of_the_base_that_came_in() {
        let mut node = node(&[]);
        node.begin(1);
        let before = features(&node);
        node.train(MEASURING, batch());
        node.train_in(Stage::Pass(HEAD_ALONE), batch());
        node.train(BASE_ALONE, batch());
        node.train(GATHERING, batch());
        node.end();
        let halves: Vec<f32> = before.iter().map(|value| value / 2.0).collect();
        let statistics = numbers(&node, "statistics");
        assert_close(&statistics[..2 * WIDTH], &halves, 1e-6);
        let squares: f32 = before.iter().map(|value| value * value).sum();
        assert_close(&statistics[2 * WIDTH..], &[squares / 8.0], 1e-6);
        let after: Vec<f32> = features(&node).iter().map(|value| value / 2.0).collect();
        assert_close(&numbers(&node, "centroids"), &after, 1e-6);
        assert_ne!(before, features(&node));
        assert_close(&numbers(&node, "class_shares"), &[0.5, 0.5], 0.0);
    }

    /// Three samples of features (1, 0), (3, 0) and (0, 2), the first two of class 0. h = (2/3)(2, 0), (1/3)(0, 2), so
    /// |h|^2 = 16/9 + 4/9 = 20/9; mean square norm (1 + 9 + 4)/3 = 14/3; v = (14/3 - 20/9) / 3 = 22/27.
    #[test]
    fn the_variance_agrees_with_a_worked_example() {
        let mut node = node(&[]);
        let (zero, one) = ([1.0, 0.0], [0.0, 1.0]);
        node.gathered.add(
            matrix([[1.0, 0.0], [3.0, 0.0], [0.0, 2.0]]),
            matrix([zero, zero, one]),
        );
        node.squares = (14.0, 3);
        node.measure();
        let expected = [4.0 / 3.0, 0.0, 0.0, 2.0 / 3.0, 22.0 / 27.0];
        assert_close(
            &values(&node.parts[STATISTICS].weights.tensor(0)),
            &expected,
            1e-6,
        );
    }

    /// Everybody's centroids are zeros: the base's loss grows by lambda times the mean square of the features.
    #[test]
    fn halves_learn_apart_and_only_the_base_is_aligned() {
        let mut node = node(&[("lambda", 3.0), ("head_learning_rate", 0.02)]);
        let mut alone = build("local", &[]);
        let device = Device::flex();
        node.parts[CENTROIDS].weights = Weights::new(vec![
            Tensor::zeros([2 * WIDTH], &device),
            Tensor::full([2], 0.5, &device),
        ]);
        let mean_square = features(&node)
            .iter()
            .map(|value| f64::from(value * value))
            .sum::<f64>()
            / 400.0;
        node.begin(2);
        let (base, head) = (numbers(&node, "fc1"), numbers(&node, "fc."));
        let plain = alone.train(0, batch()).loss;
        let mut other = self::node(&[("lambda", 3.0), ("head_learning_rate", 0.02)]);
        other.known.clone_from(&node.known);
        assert_eq!(node.train_in(Stage::Pass(HEAD_ALONE), batch()).loss, plain);
        assert_eq!(numbers(&node, "fc1"), base);
        // The step of a head alone is that of a head with its base, at twice the step size.
        let moved = |now: Vec<f32>, factor: f32| -> Vec<f32> {
            head.iter()
                .zip(now)
                .map(|(then, now)| (now - then) * factor)
                .collect()
        };
        assert_close(
            &moved(numbers(&node, "fc."), 1.0),
            &moved(numbers(alone.as_ref(), "fc."), 2.0),
            1e-6,
        );
        let pull = other.train(BASE_ALONE, batch()).loss - plain;
        assert!(
            (pull - 3.0 * mean_square).abs() < 1e-6,
            "{pull} is not 3 times {mean_square}"
        );
        assert_eq!(numbers(&other, "fc."), head);
        assert_ne!(numbers(&other, "fc1"), base);
    }
}
