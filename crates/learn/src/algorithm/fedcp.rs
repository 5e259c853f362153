//! FedCP: Zhang et al., "FedCP: Separating Feature Information for Personalized Federated Learning via Conditional
//! Policy", KDD 2023.
//!
//! ```text
//! r = base(x)                          averaged
//! a = policy(r * v/|v|)                averaged: linear D -> 2D, layer normalisation, ReLU; v: the node's context
//! p = sigmoid(a_1 - a_2 + noise), q = 1 - p     Gumbel-softmax over the halves of a, temperature 1, soft
//! logits = h(r * p) + s(r * q)         h: the personal head; s: the global head, which no step changes
//! L = CE(logits, y) + lambda * MMD(r, base of the round's beginning (x))
//! ```
//!
//! When a round ends, v becomes the sum over classes of h's weights, and s becomes `(h + s) / 2`, which is averaged. So
//! half of the personal head leaves the node. The vector v starts as one U(0, 1) vector for all, h as a copy of s.
//!
//! The noise, a difference of two Gumbel variables, is for training only: evaluation takes p without it, where PFLlib
//! samples there too and so gets another accuracy each time. Lambda is 5 as in the authors' own runs; profile `pm-moe`
//! has the 1 of PM-MoE's. The round's old base is the one that the node begins the round with: the average.

use burn::tensor::activation::sigmoid;
use burn::tensor::{Tensor, TensorData};
use fednode_onnx::{Graph, Value};

use super::hyper::{AGGREGATION, Hyper, Kind, PLAIN_MEAN, Profile};
use super::module::emit_alone;
use super::part::{Part, Role, plain};
use super::{
    Algorithm, Extractor, Modular, Module, ModuleKind, Opened, Optimizers, Output, RoundContext,
    Row, Setup, Stage, Step, StepContext, averaged,
};
use crate::batch::Batch;
use crate::error::LearnError;
use crate::model::{self, Activation, Cut, Initial, LayerNorm, Linear, Net, affine, leaf};
use crate::random::Draws;
use crate::train::cross_entropy;
use crate::weights::{self, Weights};

pub(super) const ROW: Row = Row {
    name: "fedcp",
    summary: "a policy divides each sample's features between a head of one's own and the global one",
    reference: "Zhang et al., KDD 2023, arXiv 2307.01217",
    averages: "the base, the policy and the mean of both heads",
    peer_to_peer: "nothing",
    keeps_private: "the personal head (but for its share in the mean) and its context",
    trains_ahead: false,
    optimizers: Optimizers::Any,
    hyper: &[
        Hyper {
            name: "lambda",
            kind: Kind::Real { min: 0.0, max: 1e3 },
            default: "5",
            doc: "weight of the discrepancy (MMD) between the features and those of the base that came in",
        },
        AGGREGATION,
    ],
    profiles: &[
        Profile {
            name: "paper",
            sets: &[PLAIN_MEAN],
        },
        Profile {
            name: "pm-moe",
            sets: &[("lambda", "1")],
        },
    ],
    exchange: averaged,
    build: |setup| FedCp::new(setup).map(|algorithm| Box::new(algorithm) as Box<dyn Algorithm>),
};

const BASE: usize = 0;
const GLOBAL: usize = 1;
const PERSONAL: usize = 2;
const POLICY: usize = 3;
const CONTEXT: usize = 4;
const TRAINED: [usize; 3] = [BASE, PERSONAL, POLICY];

/// Bandwidths `a` of the kernels `exp(-d^2 / 2a)`.
const BANDWIDTHS: [f64; 4] = [10.0, 15.0, 20.0, 50.0];
/// Shortest context that is still made a unit vector.
const EPSILON: f64 = 1e-12;

struct FedCp {
    parts: [Part; 5],
    /// The base as this round found it.
    old_base: Weights,
    draws: Draws,
    lambda: f64,
}

/// What a batch becomes; all are of one row per sample.
struct Divided {
    features: Tensor<2>,
    logits: Tensor<2>,
}

impl FedCp {
    fn new(setup: &Setup<'_>) -> Result<Self, LearnError> {
        let (base, head) = model::halves(setup.model, Cut::Head)?;
        let width = base.n_outputs();
        let part = |role, net| Part::new(role, net, setup.seed, 0, setup.device);
        let mut personal = part(Role::Private, head.renamed("personal"));
        let (base, global) = (part(Role::Shared, base), part(Role::Shared, head));
        personal.weights = global.weights.clone();
        let context = part(
            Role::Private,
            Net::arrays(&[("context", &[width], Initial::UnitInterval)]),
        );
        let old_base = base.weights.clone();
        let parts = [
            base,
            global,
            personal,
            part(Role::Shared, policy(width)),
            context,
        ];
        let lambda = setup.hyper.real("lambda");
        Ok(Self {
            parts,
            old_base,
            draws: Draws::new(setup.seed, 0, 0),
            lambda,
        })
    }

    /// Returns the features and the personal head's share of them, with the given weights and noise of the policy,
    /// `[batch, D]` or nothing.
    fn divide(
        &self,
        weights: &[Weights],
        inputs: Tensor<2>,
        noise: Option<Tensor<2>>,
    ) -> (Tensor<2>, Tensor<2>) {
        let net = |part: usize, features| self.parts[part].net.forward(&weights[part], features);
        let features = net(BASE, inputs);
        let context = unit(weights[CONTEXT].tensor(0)).unsqueeze();
        let personal = personal_share(net(POLICY, features.clone() * context), noise);
        let own = features.clone() * personal;
        (features, own)
    }

    /// Runs the model.
    fn run(&self, weights: &[Weights], inputs: Tensor<2>, noise: Option<Tensor<2>>) -> Divided {
        let net = |part: usize, features| self.parts[part].net.forward(&weights[part], features);
        let (features, own) = self.divide(weights, inputs, noise);
        let logits = net(PERSONAL, own.clone()) + net(GLOBAL, features.clone() - own);
        Divided { features, logits }
    }

    fn noise(&mut self, inputs: &Tensor<2>) -> Tensor<2> {
        let shape = [inputs.dims()[0], self.parts[BASE].net.n_outputs()];
        let values = self.draws.logistic(shape[0] * shape[1]);
        Tensor::from_data(
            TensorData::new(values, shape),
            &inputs.device().without_autodiff(),
        )
    }
}

fn policy(width: usize) -> Net {
    let (name, activation) = ("policy.0", Activation::Identity);
    let linear = Linear {
        name,
        inputs: width,
        outputs: 2 * width,
        activation,
        bias: true,
    };
    let norm = LayerNorm {
        name: "policy.1",
        width: 2 * width,
        activation: Activation::Relu,
    };
    Net::new(vec![leaf(linear), leaf(norm)])
}

/// Returns a vector of the same direction and length one.
fn unit(vector: Tensor<1>) -> Tensor<1> {
    let length = (vector.clone() * vector.clone())
        .sum()
        .add_scalar(EPSILON * EPSILON)
        .sqrt();
    vector / length
}

/// Returns p: the softmax over the two halves of the policy's scores `[batch, 2 * D]`, with the difference of the two
/// halves' Gumbel noise added.
fn personal_share(scores: Tensor<2>, noise: Option<Tensor<2>>) -> Tensor<2> {
    let width = scores.dims()[1] / 2;
    let difference = scores.clone().narrow(1, 0, width) - scores.narrow(1, width, width);
    sigmoid(match noise {
        Some(noise) => difference + noise,
        None => difference,
    })
}

/// Returns the maximum mean discrepancy of two batches of the same size, summed over [`BANDWIDTHS`].
fn discrepancy(x: Tensor<2>, y: Tensor<2>) -> Tensor<1> {
    let kernels = |a: &Tensor<2>, b: &Tensor<2>| {
        let squares = squared_distances(a, b);
        let kernel = |bandwidth: &f64| squares.clone().mul_scalar(-0.5 / bandwidth).exp().mean();
        BANDWIDTHS[1..]
            .iter()
            .map(kernel)
            .fold(kernel(&BANDWIDTHS[0]), |sum, kernel| sum + kernel)
    };
    kernels(&x, &x) + kernels(&y, &y) - kernels(&x, &y).mul_scalar(2.0)
}

/// Returns `|a_i - b_j|^2`.
fn squared_distances(a: &Tensor<2>, b: &Tensor<2>) -> Tensor<2> {
    let squares = |rows: &Tensor<2>| (rows.clone() * rows.clone()).sum_dim(1);
    let products = affine(a.clone(), b.clone().transpose(), None);
    squares(a) + squares(b).transpose() - products.mul_scalar(2.0)
}

impl Algorithm for FedCp {
    fn parts(&self) -> &[Part] {
        &self.parts
    }

    fn parts_mut(&mut self) -> &mut [Part] {
        &mut self.parts
    }

    fn copies(&self) -> &'static [[usize; 2]] {
        &[[PERSONAL, GLOBAL]]
    }

    fn begin_round(&mut self, ctx: &RoundContext<'_>) {
        self.draws = ctx.draws();
        self.old_base = self.parts[BASE].weights.clone();
    }

    fn step(&mut self, _stage: Stage, batch: Batch, ctx: &mut StepContext<'_>) -> Step {
        let tape = ctx.record_only(&self.parts, &TRAINED);
        let noise = self.noise(&batch.inputs);
        let old_features = self.parts[BASE]
            .net
            .forward(&self.old_base, batch.inputs.clone());
        let Divided { features, logits } = self.run(&tape, batch.inputs, Some(noise));
        let fit = cross_entropy(logits, batch.targets);
        let loss = fit + discrepancy(features, old_features).mul_scalar(self.lambda);
        Step {
            loss: ctx.step(&mut self.parts, tape, loss),
            routed: Vec::new(),
        }
    }

    fn end_round(&mut self, _ctx: &RoundContext<'_>) {
        let personal = &self.parts[PERSONAL];
        let (width, classes) = (personal.net.n_inputs(), personal.net.n_outputs());
        // A head's weights are `[D, classes]` in memory.
        let context = personal
            .weights
            .tensor(0)
            .reshape([width, classes])
            .sum_dim(1)
            .flatten(0, 1);
        let both = personal
            .weights
            .tensors()
            .zip(self.parts[GLOBAL].weights.tensors());
        let blend = both
            .map(|(own, global)| (own.clone() + global.clone()).mul_scalar(0.5))
            .collect();
        self.parts[CONTEXT].weights = Weights::new(vec![context]);
        self.parts[GLOBAL].weights = Weights::new(blend);
    }

    fn extractor(&self) -> Option<Extractor<'_>> {
        Some(Extractor::of(&self.parts[BASE]))
    }

    fn modular(&self) -> Option<&dyn Modular> {
        Some(self)
    }

    fn forward(&self, inputs: Tensor<2>) -> Output {
        let Divided { logits, .. } = self.run(&plain(&self.parts), inputs, None);
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

/// The personal head is the module; the policy, without noise, says what it gets and what the global head keeps.
impl Modular for FedCp {
    fn module(&self) -> Module {
        Module {
            kind: ModuleKind::Head,
            parts: PERSONAL..PERSONAL + 1,
            is_additive: true,
        }
    }

    fn open(&self, inputs: Tensor<2>) -> Opened {
        let weights = plain(&self.parts);
        let (features, own) = self.divide(&weights, inputs, None);
        let global = self.parts[GLOBAL]
            .net
            .forward(&weights[GLOBAL], features - own.clone());
        Opened {
            side: Some(global),
            ..Opened::at(own)
        }
    }

    fn run_module(&self, weights: &[Weights], input: Tensor<2>) -> Tensor<2> {
        self.parts[PERSONAL].net.forward(&weights[0], input)
    }

    fn close(&self, side: Option<Tensor<2>>, mixed: Tensor<2>) -> Tensor<2> {
        mixed + side.expect("what `open` put there")
    }

    fn emit_open(&self, graph: &mut Graph, inputs: Value) -> Opened<Value> {
        let features = self.parts[BASE].emit(graph, inputs);
        let context = unit(self.parts[CONTEXT].weights.tensor(0));
        let width = context.dims()[0];
        let context = graph.floats("context", weights::values(&context), &[width]);
        let conditioned = graph.mul(features, context);
        let scores = self.parts[POLICY].emit(graph, conditioned);
        let halves = [0, width].map(|start| graph.narrow(scores, 1, start, width));
        let difference = graph.sub(halves[0], halves[1]);
        let personal = graph.sigmoid(difference);
        let own = graph.mul(features, personal);
        let rest = graph.sub(features, own);
        Opened {
            side: Some(self.parts[GLOBAL].emit(graph, rest)),
            ..Opened::at(own)
        }
    }

    fn emit_module(&self, weights: &[Weights], graph: &mut Graph, input: Value) -> Value {
        self.parts[PERSONAL].net.emit(&weights[0], graph, input)
    }

    fn emit_close(&self, graph: &mut Graph, side: Option<Value>, mixed: Value) -> Value {
        let global = side.expect("what `emit_open` put there");
        graph.add(mixed, global)
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

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

    /// Numbers from the formulas, evaluated in double precision with Python's `math`; the gradient by central
    /// differences.
    #[test]
    fn discrepancy_agrees_with_a_worked_example() {
        let x = matrix([[1.0, 2.0, 0.0], [0.5, 0.0, 3.0]])
            .autodiff()
            .require_grad();
        let y = matrix([[0.0, 1.0, 1.0], [4.0, 0.0, -1.0]]);
        assert_close(
            &values(&squared_distances(&x, &y)),
            &[3.0, 14.0, 5.25, 28.25],
        );
        let loss = discrepancy(x.clone(), y.clone());
        assert_close(&values(&loss), &[0.662_163]);
        let gradient = values(&x.grad(&loss.backward()).unwrap());
        assert_close(&gradient[..3], &[-0.146_994, 0.102_341, 0.187_708]);
        assert_close(&values(&discrepancy(y.clone(), y)), &[0.0]);
    }

    #[test]
    fn the_share_is_a_softmax_over_the_halves() {
        let scores = || matrix([[1.0, 0.0, 2.0, 1.0, 1.0, -1.0]]);
        assert_close(
            &values(&personal_share(scores(), None)),
            &[0.5, 0.268_941, 0.952_574],
        );
        let noise = matrix([[0.5, -2.0, 0.0]]);
        assert_close(
            &values(&personal_share(scores(), Some(noise))),
            &[0.622_459, 0.047_426, 0.952_574],
        );
    }
}
