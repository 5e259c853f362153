//! GPFL: Zhang et al., "GPFL: Simultaneously Learning Global and Personalized Feature Information for Personalized
//! Federated Learning", ICCV 2023.
//!
//! ```text
//! r = base(x)      E: [classes, D], one embedding per class
//! cov(r, z) = relu(r * (gamma(z) + 1) + beta(z))    gamma, beta: linear, ReLU, layer normalisation
//! L = CE(head(cov(r, z_P)), y)                      personal
//!   + CE(cos(cov(r, z_G), E_c) over classes c, y)   generic; no temperature
//!   + lambda * |cov(r, z_G) - E_y|                  Frobenius norm of the whole batch; E as the round found it
//! z_G = mean of E's rows    z_P = sum_c (share of class c among the node's samples) * E_c
//! ```
//!
//! Base, E, gamma and beta are averaged, the head and both conditions z are private; E, gamma and beta lose `mu` of
//! themselves per step (times the learning rate). As in the reference, the conditions of a round come from the E that the
//! node itself trained when it last did, not from the average, and are zero in a node's first round. The defaults of
//! lambda and mu are the authors' for CNNs (PFLlib's 1 and 0 are not meant for this algorithm), those of profile `text`
//! theirs for fastText. E starts with the mean
//! and variance of the reference's N(0, 1).

use burn::tensor::{Device, Tensor, TensorData};
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
use crate::model::{self, Activation, Cut, Initial, LayerNorm, Linear, Net, affine, leaf};
use crate::train::cross_entropy;
use crate::weights::{self, Weights};

pub(super) const ROW: Row = Row {
    name: "gpfl",
    summary: "features conditioned once on all classes, once on those of the node, and a head of one's own",
    reference: "Zhang et al., ICCV 2023, arXiv 2308.10279",
    averages: "the base, the class embeddings and the conditioning",
    peer_to_peer: "nothing",
    keeps_private: "the head (the last layer) and the conditions",
    trains_ahead: false,
    optimizers: Optimizers::Any,
    hyper: &[
        Hyper {
            name: "lambda",
            kind: Kind::Real { min: 0.0, max: 1e3 },
            default: "0.01",
            doc: "weight of the distance between generic features and the embeddings of their classes",
        },
        Hyper {
            name: "mu",
            kind: Kind::Real { min: 0.0, max: 1e3 },
            default: "0.1",
            doc: "weight decay of class embeddings and conditioning",
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
            sets: &[("lambda", "0.0001"), ("mu", "0")],
        },
    ],
    exchange: averaged,
    build: |setup| Gpfl::new(setup).map(|algorithm| Box::new(algorithm) as Box<dyn Algorithm>),
};

const BASE: usize = 0;
const HEAD: usize = 1;
const EMBEDDINGS: usize = 2;
const GAMMA: usize = 3;
const BETA: usize = 4;
const CONDITIONS: usize = 5;
const TRAINED: [usize; 5] = [BASE, HEAD, EMBEDDINGS, GAMMA, BETA];

/// Where z_G and z_P are in their part.
const GENERIC: usize = 0;
const PERSONAL: usize = 1;

/// Keeps the gradient of a square root finite at zero.
const EPSILON: f64 = 1e-12;

struct Gpfl {
    parts: [Part; 6],
    /// E as this round found it, `[classes, D]`.
    frozen: Tensor<2>,
    /// Share of each class among the node's samples, `[classes, 1]`.
    shares: Tensor<2>,
    lambda: f64,
}

impl Gpfl {
    fn new(setup: &Setup<'_>) -> Result<Self, LearnError> {
        let (base, head) = model::halves(setup.model, Cut::Head)?;
        let (width, classes) = (base.n_outputs(), setup.model.classes);
        let part = |role, net| Part::new(role, net, setup.seed, 0, setup.device);
        let mu = setup.hyper.real("mu");
        let decayed = |net| Part {
            weight_decay: mu,
            ..part(Role::Shared, net)
        };
        let embeddings = decayed(Net::arrays(&[(
            "class_embedding",
            &[classes, width],
            Initial::UnitVariance,
        )]));
        let zero = Initial::Zeros;
        let conditions = Net::arrays(&[
            ("generic_condition", &[width], zero),
            ("personal_condition", &[width], zero),
        ]);
        let frozen = table(&embeddings.weights, classes);
        let parts = [
            part(Role::Shared, base),
            part(Role::Private, head),
            embeddings,
            decayed(conditioning("cov.gamma.0", "cov.gamma.2", width)),
            decayed(conditioning("cov.beta.0", "cov.beta.2", width)),
            part(Role::Private, conditions),
        ];
        let shares = shares(&vec![1; classes], setup.device);
        let lambda = setup.hyper.real("lambda");
        Ok(Self {
            parts,
            frozen,
            shares,
            lambda,
        })
    }

    /// Returns cov(r, z), with z by its place.
    fn condition(&self, weights: &[Weights], features: Tensor<2>, which: usize) -> Tensor<2> {
        let condition: Tensor<2> = weights[CONDITIONS].tensor(which).unsqueeze();
        let net = |part: usize| {
            self.parts[part]
                .net
                .forward(&weights[part], condition.clone())
        };
        modulate(features, net(GAMMA), net(BETA))
    }

    /// Returns r and the logits.
    fn run(&self, weights: &[Weights], inputs: Tensor<2>) -> (Tensor<2>, Tensor<2>) {
        let features = self.parts[BASE].net.forward(&weights[BASE], inputs);
        let personal = self.condition(weights, features.clone(), PERSONAL);
        (
            features,
            self.parts[HEAD].net.forward(&weights[HEAD], personal),
        )
    }
}

/// Makes gamma or beta.
fn conditioning(linear: &'static str, norm: &'static str, width: usize) -> Net {
    let (inputs, outputs) = (width, width);
    let linear = Linear {
        name: linear,
        inputs,
        outputs,
        activation: Activation::Relu,
        bias: true,
    };
    Net::new(vec![
        leaf(linear),
        leaf(LayerNorm {
            name: norm,
            width,
            activation: Activation::Identity,
        }),
    ])
}

/// Returns E as a matrix.
fn table(weights: &Weights, classes: usize) -> Tensor<2> {
    let flat = weights.tensor(0);
    let width = flat.dims()[0] / classes;
    flat.reshape([classes, width])
}

/// Returns the share of each class as a column.
fn shares(class_counts: &[u32], device: &Device) -> Tensor<2> {
    let total = f64::from(class_counts.iter().sum::<u32>().max(1));
    let values: Vec<f32> = class_counts
        .iter()
        .map(|count| (f64::from(*count) / total) as f32)
        .collect();
    Tensor::from_data(TensorData::new(values, [class_counts.len(), 1]), device)
}

/// Returns `relu(r * (gamma + 1) + beta)`.
fn modulate(features: Tensor<2>, gamma: Tensor<2>, beta: Tensor<2>) -> Tensor<2> {
    Activation::Relu.apply(features * gamma.add_scalar(1.0) + beta)
}

/// Returns the cosine between every feature vector and every embedding, `[batch, classes]`.
fn cosines(features: Tensor<2>, embeddings: Tensor<2>) -> Tensor<2> {
    affine(unit_rows(features), unit_rows(embeddings).transpose(), None)
}

fn unit_rows(rows: Tensor<2>) -> Tensor<2> {
    let lengths = (rows.clone() * rows.clone())
        .sum_dim(1)
        .add_scalar(EPSILON)
        .sqrt();
    rows / lengths
}

/// Returns the Frobenius norm of features less the embeddings of their classes.
fn distance(features: Tensor<2>, embeddings: Tensor<2>, targets: Tensor<2>) -> Tensor<1> {
    let difference = features - affine(targets, embeddings, None);
    (difference.clone() * difference)
        .sum()
        .add_scalar(EPSILON)
        .sqrt()
}

/// Returns z_G and z_P, both `[D]`.
fn conditions(embeddings: Tensor<2>, shares: Tensor<2>) -> [Tensor<1>; 2] {
    [
        embeddings.clone().mean_dim(0).flatten(0, 1),
        (embeddings * shares).sum_dim(0).flatten(0, 1),
    ]
}

impl Algorithm for Gpfl {
    fn parts(&self) -> &[Part] {
        &self.parts
    }

    fn parts_mut(&mut self) -> &mut [Part] {
        &mut self.parts
    }

    fn begin_round(&mut self, ctx: &RoundContext<'_>) {
        self.shares = shares(ctx.class_counts, &self.shares.device());
        self.frozen = table(&self.parts[EMBEDDINGS].weights, self.shares.dims()[0]);
    }

    fn step(&mut self, _stage: Stage, batch: Batch, ctx: &mut StepContext<'_>) -> Step {
        let tape = ctx.record_only(&self.parts, &TRAINED);
        let (features, logits) = self.run(&tape, batch.inputs);
        let generic = self.condition(&tape, features, GENERIC);
        let personal_fit = cross_entropy(logits, batch.targets.clone());
        let embeddings = table(&tape[EMBEDDINGS], self.shares.dims()[0]);
        let generic_fit =
            cross_entropy(cosines(generic.clone(), embeddings), batch.targets.clone());
        let pull = distance(generic, self.frozen.clone(), batch.targets).mul_scalar(self.lambda);
        let loss = personal_fit + generic_fit + pull;
        Step {
            loss: ctx.step(&mut self.parts, tape, loss),
            routed: Vec::new(),
        }
    }

    fn end_round(&mut self, _ctx: &RoundContext<'_>) {
        let embeddings = table(&self.parts[EMBEDDINGS].weights, self.shares.dims()[0]);
        self.parts[CONDITIONS].weights =
            Weights::new(conditions(embeddings, self.shares.clone()).into());
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

/// The head is the module; it reads the features as the node's own classes condition them.
impl Modular for Gpfl {
    fn module(&self) -> Module {
        Module {
            kind: ModuleKind::Head,
            parts: HEAD..HEAD + 1,
            is_additive: false,
        }
    }

    fn open(&self, inputs: Tensor<2>) -> Opened {
        let weights = plain(&self.parts);
        let features = self.parts[BASE].net.forward(&weights[BASE], inputs);
        Opened::at(self.condition(&weights, features, PERSONAL))
    }

    fn run_module(&self, weights: &[Weights], input: Tensor<2>) -> Tensor<2> {
        self.parts[HEAD].net.forward(&weights[0], input)
    }

    fn close(&self, _side: Option<Tensor<2>>, mixed: Tensor<2>) -> Tensor<2> {
        mixed
    }

    fn emit_open(&self, graph: &mut Graph, inputs: Value) -> Opened<Value> {
        let features = self.parts[BASE].emit(graph, inputs);
        let condition: Tensor<2> = self.parts[CONDITIONS].weights.tensor(PERSONAL).unsqueeze();
        // The same for every sample, so it is computed now.
        let row = |graph: &mut Graph, part: usize, more: f64| {
            let part = &self.parts[part];
            let row = part.net.forward(&part.weights, condition.clone());
            let row = row.add_scalar(more);
            graph.floats("condition", weights::values(&row), &row.dims())
        };
        let (gamma, beta) = (row(graph, GAMMA, 1.0), row(graph, BETA, 0.0));
        let scaled = graph.mul(features, gamma);
        let moved = graph.add(scaled, beta);
        Opened::at(graph.relu(moved))
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
    use super::*;
    use crate::weights::values;

    fn matrix<const R: usize, const C: usize>(rows: [[f32; C]; R]) -> Tensor<2> {
        Tensor::from_data(TensorData::from(rows), &Device::flex())
    }

    fn assert_close(got: &[f32], expected: &[f32]) {
        let close = got.len() == expected.len()
            && got.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5);
        assert!(close, "{got:?} is not {expected:?}");
    }

    /// Numbers from the formulas of the file's header, evaluated in double precision with Python's `math`.
    #[test]
    fn formulas_agree_with_a_worked_example() {
        let features = matrix([[1.0, 2.0, 0.0], [0.5, 0.0, 3.0]]);
        let embeddings = matrix([
            [1.0, 0.0, 1.0],
            [0.0, 2.0, 0.0],
            [-1.0, 0.0, 3.0],
            [2.0, 1.0, 0.0],
        ]);
        let targets = matrix([[0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]]);
        let generic = modulate(
            features,
            matrix([[0.5, -1.0, 0.0]]),
            matrix([[0.0, 0.25, -1.0]]),
        );
        assert_close(&values(&generic), &[1.5, 0.25, 0.0, 0.75, 0.25, 2.0]);
        let cosines = cosines(generic.clone(), embeddings.clone());
        let expected = [
            0.697_486, 0.164_399, -0.311_925, 0.955_779, 0.904_194, 0.116_248, 0.771_975, 0.363_913,
        ];
        assert_close(&values(&cosines), &expected);
        assert_close(
            &values(&cross_entropy(cosines, targets.clone())),
            &[1.456_035],
        );
        assert_close(
            &values(&distance(generic, embeddings.clone(), targets)),
            &[3.072_051],
        );
        let [generic, personal] = conditions(embeddings, shares(&[3, 0, 1, 4], &Device::flex()));
        assert_close(&values(&generic), &[0.5, 0.75, 1.0]);
        assert_close(&values(&personal), &[1.25, 0.5, 0.75]);
    }

    #[test]
    fn dead_features_have_finite_gradients() {
        let features = matrix([[0.0, 0.0], [0.0, 0.0]]).autodiff().require_grad();
        let (embeddings, targets) = (
            matrix([[0.0, 0.0], [1.0, 2.0]]),
            matrix([[1.0, 0.0], [1.0, 0.0]]),
        );
        let loss = cross_entropy(
            cosines(features.clone(), embeddings.clone()),
            targets.clone(),
        ) + distance(features.clone(), embeddings, targets);
        let gradient = values(&features.grad(&loss.backward()).unwrap());
        assert!(
            gradient.iter().all(|value| value.is_finite()),
            "{gradient:?}"
        );
    }
}
