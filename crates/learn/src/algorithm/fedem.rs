//! FedEM: Marfoq, Neglia, Bellet, Kameni and Vidal, "Federated Multi-Task Learning under a Mixture of Distributions",
//! NeurIPS 2021, Algorithm 1 with SGD as the local solver, and the authors' code.
//!
//! ```text
//! E-step      q_i(m) = pi_m exp(-l_m(x_i, y_i)) / sum over n of pi_n exp(-l_n(x_i, y_i))    l: cross-entropy, Eq. 9
//! M-step      pi_m = mean over i of q_i(m)                                                  Eq. 10
//!             theta_m: SGD on mean over i of q_i(m) l_m(x_i, y_i)                            Eq. 11
//! exchange    theta_m = sum_t n_t theta_tm / sum_t n_t                                       Eq. 12
//! predict     p(y | x) = sum_m pi_m p_m(y | x)                                               Eq. 8
//! ```
//!
//! theta_m: component m, a whole model that all nodes share. pi: the node's own weights of the components, equal in the
//! beginning. q: `[samples, M]`, the share of each component in each sample. The E-step is made once in a round, with the
//! components and the weights pi that the round began with. One pass over the samples finds the new pi; the training asks
//! for the same q again. Augmented images have shares of their own there.
//!
//! The paper has a form with a server and one without, in which a node averages with its neighbours. Here any member
//! closes a round, and nobody is the server: what is averaged is everybody's, so this is the first form's result on the
//! second form's terms. The two differ in topology alone. Three components are the paper's number. They start apart, each
//! from a draw of its own that all nodes have in common. One step on the sum of the components' losses is the reference's
//! step in each of them, but for `training.clip_norm`. The loss that is reported is that sum.

use burn::tensor::activation::{log_softmax, softmax};
use burn::tensor::{Tensor, TensorData};
use fednode_onnx::{Graph, Value};

use super::common_experts::{Tally, array};
use super::hyper::{AGGREGATION, Hyper, Kind};
use super::part::{Part, Role, plain};
use super::{
    Algorithm, Loss, Optimizers, Output, RoundContext, Row, Setup, Stage, Step, StepContext,
    averaged, whole,
};
use crate::batch::Batch;
use crate::error::LearnError;
use crate::gate::{argmax, emit_mix};
use crate::model::{self, Initial, Net};
use crate::weights::{self, Weights};

pub(super) const ROW: Row = Row {
    name: "fedem",
    summary: "a few models for all, which each node mixes by weights of its own and trains by expectation maximisation",
    reference: "Marfoq et al., NeurIPS 2021, arXiv 2108.10252",
    averages: "the components, whole models",
    peer_to_peer: "nothing",
    keeps_private: "the weights of the components",
    trains_ahead: false,
    optimizers: Optimizers::Any,
    hyper: &[
        Hyper {
            name: COMPONENTS,
            kind: Kind::Integer { min: 1, max: 64 },
            default: "3",
            doc: "M: how many components there are",
        },
        AGGREGATION,
    ],
    profiles: &[],
    exchange: averaged,
    build: |setup| FedEm::new(setup).map(|algorithm| Box::new(algorithm) as Box<dyn Algorithm>),
};

const COMPONENTS: &str = "components";

/// The passes: over all samples without training, which finds pi, then the training.
const LOOKING: usize = 0;

/// Keeps a probability of 0 from becoming a logarithm of minus infinity.
const SMALLEST: f32 = 1e-12;

struct FedEm {
    /// The components, then pi.
    parts: Vec<Part>,
    /// The components as this round found them.
    received: Vec<Weights>,
    /// Pi as this round found it.
    prior: Vec<f32>,
    /// The sums of q over the samples that were looked at.
    tally: Tally,
}

impl FedEm {
    fn new(setup: &Setup<'_>) -> Result<Self, LearnError> {
        let n_components = setup.hyper.count(COMPONENTS) as usize;
        let net = model::build(setup.model)?;
        let component = |slot: usize| {
            let (role, seed, slot_seed) = (Role::Shared, setup.seed, slot as u64);
            let part = Part::new(role, net.clone(), seed, slot_seed, setup.device);
            Part {
                net: net.clone().prefixed(&format!("components.{slot}.")),
                ..part
            }
        };
        let equal = vec![1.0 / n_components as f32; n_components];
        let pi = Net::arrays(&[("component_weights", &[n_components], Initial::Ones)]);
        let pi = Part {
            weights: array(&equal, setup.device),
            ..Part::new(Role::Private, pi, setup.seed, 0, setup.device)
        };
        let parts: Vec<Part> = (0..n_components).map(component).chain([pi]).collect();
        let received = parts[..n_components]
            .iter()
            .map(|part| part.weights.clone())
            .collect();
        Ok(Self {
            parts,
            received,
            prior: equal,
            tally: Tally::new(n_components),
        })
    }

    fn n_components(&self) -> usize {
        self.parts.len() - 1
    }

    /// Returns the node's weights of the components, `[M]`.
    fn pi(&self) -> Vec<f32> {
        weights::values(&self.parts[self.n_components()].weights.tensor(0))
    }

    /// Returns the logits of all components with the given weights, plain or recorded, each `[batch, classes]`.
    fn run(&self, weights: &[Weights], inputs: &Tensor<2>) -> Vec<Tensor<2>> {
        let components = &self.parts[..self.n_components()];
        components
            .iter()
            .zip(weights)
            .map(|(part, weights)| part.net.forward(weights, inputs.clone()))
            .collect()
    }

    /// Looks at a batch with the components as they came; returns the mean of `-log sum_m pi_m p_m(y | x)`.
    fn look(&mut self, batch: Batch) -> Loss {
        let joint = joint(
            &self.prior,
            self.run(&self.received, &batch.inputs),
            &batch.targets,
        );
        let everyone: Vec<usize> = (0..self.n_components()).collect();
        let shares = weights::values(&softmax(joint.clone(), 1));
        self.tally.add(&shares, &everyone);
        // Each column less its log-softmax is the logarithm of the sum.
        let loss = (log_softmax(joint.clone(), 1) - joint)
            .narrow(1, 0, 1)
            .mean();
        Loss::of(&loss)
    }

    /// Trains all components on a batch whose inputs are followed by the logits of the received ones.
    fn learn(&mut self, batch: Batch, ctx: &mut StepContext<'_>) -> Step {
        let n_components = self.n_components();
        let (inputs, received) = divided(batch.inputs, n_components, batch.targets.dims()[1]);
        let shares = softmax(joint(&self.prior, received, &batch.targets), 1);
        let mut routed = vec![0; n_components];
        for best in argmax(&weights::values(&shares), n_components) {
            routed[best] += 1;
        }
        let everyone: Vec<usize> = (0..n_components).collect();
        let tape = ctx.record_only(&self.parts, &everyone);
        let logits = self.run(&tape, &inputs);
        let loss = weighted_loss(logits, &shares, &batch.targets);
        Step {
            loss: ctx.step(&mut self.parts, tape, loss),
            routed,
        }
    }
}

/// Divides what a step of the training takes into the inputs and the logits of each received component.
fn divided(taken: Tensor<2>, n_components: usize, classes: usize) -> (Tensor<2>, Vec<Tensor<2>>) {
    let width = taken.dims()[1] - n_components * classes;
    let of = |component: usize| {
        taken
            .clone()
            .narrow(1, width + component * classes, classes)
    };
    let received = (0..n_components).map(of).collect();
    (taken.narrow(1, 0, width), received)
}

/// Returns `log p(y | x)` under each component, `[batch, M]`.
fn log_likelihoods(logits: Vec<Tensor<2>>, targets: &Tensor<2>) -> Tensor<2> {
    let fit = |logits: Tensor<2>| (log_softmax(logits, 1) * targets.clone()).sum_dim(1);
    Tensor::cat(logits.into_iter().map(fit).collect(), 1)
}

/// Returns `log (pi_m p_m(y | x))`, `[batch, M]`; its softmax is q.
fn joint(pi: &[f32], logits: Vec<Tensor<2>>, targets: &Tensor<2>) -> Tensor<2> {
    let logs: Vec<f32> = pi.iter().map(|share| share.max(SMALLEST).ln()).collect();
    let logs = TensorData::new(logs, [1, pi.len()]);
    Tensor::<2>::from_data(logs, &targets.device()) + log_likelihoods(logits, targets)
}

/// Returns the mean over the samples of `sum_m q(m) l_m`.
fn weighted_loss(logits: Vec<Tensor<2>>, shares: &Tensor<2>, targets: &Tensor<2>) -> Tensor<1> {
    let n_samples = targets.dims()[0] as f64;
    (log_likelihoods(logits, targets) * shares.clone())
        .sum()
        .mul_scalar(-1.0 / n_samples)
}

impl Algorithm for FedEm {
    fn parts(&self) -> &[Part] {
        &self.parts
    }

    fn parts_mut(&mut self) -> &mut [Part] {
        &mut self.parts
    }

    fn passes(&self, ctx: &RoundContext<'_>) -> Vec<u32> {
        vec![1, ctx.training.local_epochs]
    }

    fn begin_round(&mut self, _ctx: &RoundContext<'_>) {
        let components = &self.parts[..self.n_components()];
        self.received = components.iter().map(|part| part.weights.clone()).collect();
        self.prior = self.pi();
        self.tally = Tally::new(self.n_components());
    }

    fn looks_only(&self, stage: Stage) -> bool {
        stage == Stage::Pass(LOOKING)
    }

    /// The received components stay as they are, so that q is the same in every epoch: what they say of a sample follows
    /// the sample itself.
    fn frozen(&self, stage: Stage, inputs: Tensor<2>) -> Option<Tensor<2>> {
        if stage == Stage::Pass(LOOKING) {
            return None;
        }
        let said = self.run(&self.received, &inputs);
        Some(Tensor::cat([vec![inputs], said].concat(), 1))
    }

    fn step(&mut self, stage: Stage, batch: Batch, ctx: &mut StepContext<'_>) -> Step {
        if stage == Stage::Pass(LOOKING) {
            return Step {
                loss: self.look(batch),
                routed: vec![0; self.n_components()],
            };
        }
        self.learn(batch, ctx)
    }

    fn end_round(&mut self, _ctx: &RoundContext<'_>) {
        if let Some(pi) = self.parts.last_mut() {
            pi.weights = self.tally.shares(&pi.weights.tensor(0).device());
        }
    }

    fn forward(&self, inputs: Tensor<2>) -> Output {
        let components = plain(&self.parts[..self.n_components()]);
        let logits = self.run(&components, &inputs).into_iter();
        let weighted = logits
            .zip(self.pi())
            .map(|(logits, share)| softmax(logits, 1).mul_scalar(share));
        let mixed = weighted
            .reduce(|sum, more| sum + more)
            .expect("there is at least one component");
        whole::output(mixed.add_scalar(SMALLEST).log())
    }

    fn emit(&self, graph: &mut Graph, inputs: Value) -> Value {
        let pi = self.pi();
        let pi = graph.floats("component_weights", pi.clone(), &[1, pi.len()]);
        let components = &self.parts[..self.n_components()];
        let emit = |part: &Part| {
            let logits = part.emit(graph, inputs);
            graph.softmax(logits)
        };
        let probabilities: Vec<Value> = components.iter().map(emit).collect();
        let mixed = emit_mix(graph, pi, &probabilities);
        let safe = graph.add_number(mixed, SMALLEST.into());
        graph.log(safe)
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;
    use crate::algorithm::testing::{Driven, assert_close, batch, build, matrix, numbers, setup};
    use crate::weights::values;

    /// A node with two components.
    fn node() -> FedEm {
        setup("fedem", &[(COMPONENTS, 2.0)], |setup| {
            FedEm::new(setup).unwrap()
        })
    }

    fn set_pi(node: &mut FedEm, pi: [f32; 2]) {
        node.parts[2].weights = array(&pi, &Device::flex());
    }

    /// Logits of two classes whose probabilities are these.
    fn logits(rows: [[f32; 2]; 2]) -> Tensor<2> {
        matrix(rows.map(|row| row.map(f32::ln)))
    }

    const TARGETS: [[f32; 2]; 2] = [[1.0, 0.0], [0.0, 1.0]];

    /// pi = (1/4, 3/4). Sample 1 of class 0: p = (0.8, 0.4), so pi p = (0.2, 0.3) and q = (0.4, 0.6). Sample 2 of class 1:
    /// p = (0.3, 0.9), pi p = (0.075, 0.675), q = (0.1, 0.9). The new pi is the mean of q, (0.25, 0.75) by chance.
    #[test]
    fn shares_agree_with_a_worked_example() {
        let components = vec![
            logits([[0.8, 0.2], [0.7, 0.3]]),
            logits([[0.4, 0.6], [0.1, 0.9]]),
        ];
        let shares = softmax(joint(&[0.25, 0.75], components, &matrix(TARGETS)), 1);
        assert_close(&values(&shares), &[0.4, 0.6, 0.1, 0.9], 1e-6);
        let mut tally = Tally::new(2);
        tally.add(&values(&shares), &[0, 1]);
        let pi = tally.shares(&Device::flex());
        assert_close(&values(&pi.tensor(0)), &[0.25, 0.75], 1e-6);
    }

    /// With q = (0.4, 0.6) and (0.1, 0.9) and the probabilities above: the mean over both samples of
    /// 0.4 ln(1/0.8) + 0.6 ln(1/0.4) = 0.639 032 and 0.1 ln(1/0.3) + 0.9 ln(1/0.9) = 0.215 222. The gradient in the logits of
    /// component 0 for sample 1 is q/2 (p - y) = 0.2 (0.8 - 1, 0.2).
    #[test]
    fn training_weights_every_sample_by_its_share() {
        let own = logits([[0.8, 0.2], [0.7, 0.3]]).autodiff().require_grad();
        let other = logits([[0.4, 0.6], [0.1, 0.9]]).autodiff();
        let shares = matrix([[0.4, 0.6], [0.1, 0.9]]);
        let loss = weighted_loss(vec![own.clone(), other], &shares, &matrix(TARGETS));
        assert_close(&values(&loss), &[(0.639_032 + 0.215_222) / 2.0], 1e-5);
        let gradient = values(&own.grad(&loss.backward()).unwrap());
        assert_close(&gradient, &[-0.04, 0.04, 0.035, -0.035], 1e-6);
    }

    /// A node that believes in the first component alone trains it as it would a model of its own, and moves no other.
    #[test]
    fn a_component_without_a_share_does_not_move() {
        let (mut node, mut alone) = (node(), build("local", &[]));
        set_pi(&mut node, [1.0, 0.0]);
        node.parts[0].weights = alone.parts()[0].weights.clone();
        node.begin(1);
        node.train(LOOKING, batch());
        let other = numbers(&node, "components.1.");
        for _ in 0..2 {
            let step = node.train_in(Stage::Pass(1), batch());
            assert_eq!(step.routed, [2, 0]);
            assert!((step.loss - alone.train(0, batch()).loss).abs() < 1e-6);
        }
        node.end();
        let trained = numbers(&node, "components.0.");
        assert_close(&trained, &numbers(alone.as_ref(), ""), 1e-6);
        assert_close(&numbers(&node, "components.1."), &other, 1e-9);
        assert_close(&numbers(&node, "component_weights"), &[1.0, 0.0], 1e-6);
    }

    /// The shares of the training are those of the components that came in, and not those that it makes of them.
    #[test]
    fn shares_stay_the_same_throughout_a_round() {
        let mut node = node();
        node.begin(1);
        let taken = node.frozen(Stage::Pass(1), batch().inputs).unwrap();
        node.train(LOOKING, batch());
        for _ in 0..5 {
            node.train_in(Stage::Pass(1), batch());
        }
        let again = node.frozen(Stage::Pass(1), batch().inputs).unwrap();
        assert_eq!(values(&again), values(&taken));
        let (inputs, received) = divided(taken, 2, 2);
        assert_eq!(values(&inputs), values(&batch().inputs));
        let shares = values(&softmax(joint(&[0.5, 0.5], received, &batch().targets), 1));
        node.end();
        let mean = [(shares[0] + shares[2]) / 2.0, (shares[1] + shares[3]) / 2.0];
        assert_close(&numbers(&node, "component_weights"), &mean, 1e-6);
    }

    /// p = p_0 / 4 + 3 p_1 / 4.
    #[test]
    fn predicts_the_mixture_of_the_components() {
        let mut node = node();
        set_pi(&mut node, [0.25, 0.75]);
        let each = node.run(&plain(&node.parts[..2]), &batch().inputs);
        let probabilities: Vec<Vec<f32>> = each
            .into_iter()
            .map(|logits| values(&softmax(logits, 1)))
            .collect();
        let expected: Vec<f32> = probabilities[0]
            .iter()
            .zip(&probabilities[1])
            .map(|(first, second)| 0.25 * first + 0.75 * second)
            .collect();
        assert_ne!(probabilities[0], probabilities[1], "components start apart");
        let predicted = values(&softmax(node.forward(batch().inputs).logits, 1));
        assert_close(&predicted, &expected, 1e-6);
    }
}
