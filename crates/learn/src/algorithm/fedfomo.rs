//! FedFomo: Zhang, Sapra, Fidler, Yeung and Alvarez, "Personalized Federated Learning with First Order Model
//! Optimization", ICLR 2021, §3.
//!
//! ```text
//! w_j     = max(0, (L_i(theta_i^{t-1}) - L_i(theta_j)) / |theta_j - theta_i^{t-1}|)      then divided by their sum
//! theta_i = theta_i^{t-1} + sum_j w_j (theta_j - theta_i^{t-1})
//! ```
//!
//! L_i: the mean cross-entropy on the node's validation samples. theta_i^{t-1}: its model as the round began. The candidates
//! j are the models that arrived and the one that the node has trained itself. So its own progress is weighed against the
//! models of others. The paper's full text was not at hand: whether its sum holds the own model too could not be checked.
//! If no candidate is better than the model from before, the node goes on with what it has trained. A node without
//! validation samples judges by its training samples. Nothing is averaged over all nodes, and there is no common model.
//!
//! The paper's server sends each client M models. It draws them by affinities, the sums of the weights so far, and with some
//! chance at random. Here nobody sees these weights but the node itself, and plans are made before the models arrive.
//! So a node fetches the models of `peers_per_expert` others: those whose heads have moved most as its own since the common
//! start, by the cosine. This movement travels as the proxy. Five is PFLlib's default of M. With `all`, every node's
//! model is judged, as in the paper's first variant.

use burn::tensor::Tensor;
use fednode_core::{Exchange, ExpertExchange, Matching, Slot};
use fednode_onnx::{Graph, Value};

use super::hyper::{Hyper, Kind};
use super::movement::Movement;
use super::part::{Part, Role};
use super::{
    Algorithm, HeldOut, Optimizers, Output, Peer, RoundContext, Row, Setup, Stage, Step,
    StepContext, whole,
};
use crate::batch::Batch;
use crate::error::LearnError;
use crate::model::{self, Cut};
use crate::train::cross_entropy;
use crate::weights::{self, Weights};

pub(super) const ROW: Row = Row {
    name: "fedfomo",
    summary: "a model per node, which takes steps towards others' models that do better on its validation samples",
    reference: "Zhang et al., ICLR 2021, arXiv 2012.08565",
    averages: "nothing",
    peer_to_peer: "whole models, and how their heads have moved since the start",
    keeps_private: "how much the model of each other node counts",
    trains_ahead: false,
    optimizers: Optimizers::Any,
    hyper: &[Hyper {
        name: "peers_per_expert",
        kind: Kind::CountOrAll { max: 100_000 },
        default: "5",
        doc: "M: how many models of others a node fetches and judges in a round, the nearest ones",
    }],
    profiles: &[],
    exchange: |values| Exchange {
        averaging: None,
        experts: Some(ExpertExchange::by(
            Matching::named("each"),
            values.peers("peers_per_expert"),
        )),
        everybody_first: false,
        prepares: false,
        total: None,
    },
    build: |setup| FedFomo::new(setup).map(|algorithm| Box::new(algorithm) as Box<dyn Algorithm>),
};

const MODEL: usize = 0;
const PREVIOUS: usize = 1;
const MOVEMENT: usize = 2;

struct FedFomo {
    /// The model, the model as the round began, and how the head has moved since the start.
    parts: [Part; 3],
    movement: Movement,
}

impl FedFomo {
    fn new(setup: &Setup<'_>) -> Result<Self, LearnError> {
        let net = model::build(setup.model)?;
        let part = |role, net| Part::new(role, net, setup.seed, 0, setup.device);
        let own = part(Role::Expert(Slot(0)), net.clone());
        let previous = Part {
            weights: own.weights.clone(),
            ..part(Role::Private, net.prefixed("previous."))
        };
        let (movement, proxy) = Movement::from(head(&own), setup);
        Ok(Self {
            parts: [own, previous, proxy],
            movement,
        })
    }

    /// Runs the node's net with any model's weights.
    fn run(&self, weights: &Weights, inputs: Tensor<2>) -> Output {
        whole::output(self.parts[MODEL].net.forward(weights, inputs))
    }

    /// Returns the validation loss of a model and its distance from the node's model as the round began.
    fn judged(&self, weights: &Weights, held_out: &HeldOut<'_>) -> Candidate {
        Candidate {
            loss: held_out.loss(&|inputs| self.run(weights, inputs)),
            distance: distance(weights, &self.parts[PREVIOUS].weights),
        }
    }
}

/// What the weight of a model depends on.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Candidate {
    loss: f64,
    distance: f64,
}

/// Returns the weights of the candidates, which add up to 1; nothing if none is better than the loss from before.
fn shares(before: f64, candidates: &[Candidate]) -> Option<Vec<f64>> {
    let weight = |candidate: &Candidate| {
        let slope = (before - candidate.loss) / candidate.distance;
        // A model at distance 0 is the one from before: it gains nothing. A loss that is no number is no gain either.
        if slope.is_finite() {
            slope.max(0.0)
        } else {
            0.0
        }
    };
    let weights: Vec<f64> = candidates.iter().map(weight).collect();
    let total: f64 = weights.iter().sum();
    (total > 0.0).then(|| weights.iter().map(|weight| weight / total).collect())
}

/// Returns the numbers of a whole model's last layer.
fn head(part: &Part) -> Vec<Tensor<1>> {
    let (base, _) = part.net.split(Cut::Head);
    let tensors = part.weights.tensors();
    tensors.skip(base.parameters().len()).cloned().collect()
}

/// Returns the Euclidean distance of two models.
fn distance(a: &Weights, b: &Weights) -> f64 {
    let squares = a.tensors().zip(b.tensors()).map(|(a, b)| {
        let difference = a.clone() - b.clone();
        let square = (difference.clone() * difference).sum();
        f64::from(weights::values(&square)[0])
    });
    squares.sum::<f64>().sqrt()
}

/// Returns `origin + sum_j w_j (theta_j - origin)`.
fn moved(origin: &Weights, models: &[&Weights], shares: &[f64]) -> Weights {
    let towards = |(at, origin): (usize, &Tensor<1>)| {
        let steps = models.iter().zip(shares).filter(|(_, share)| **share > 0.0);
        let steps =
            steps.map(|(model, share)| (model.tensor(at) - origin.clone()).mul_scalar(*share));
        steps.fold(origin.clone(), |sum, step| sum + step)
    };
    Weights::new(origin.tensors().enumerate().map(towards).collect())
}

impl Algorithm for FedFomo {
    fn parts(&self) -> &[Part] {
        &self.parts
    }

    fn parts_mut(&mut self) -> &mut [Part] {
        &mut self.parts
    }

    fn copies(&self) -> &'static [[usize; 2]] {
        &[[PREVIOUS, MODEL]]
    }

    fn begin_round(&mut self, _ctx: &RoundContext<'_>) {
        self.parts[PREVIOUS].weights = self.parts[MODEL].weights.clone();
    }

    fn step(&mut self, _stage: Stage, batch: Batch, ctx: &mut StepContext<'_>) -> Step {
        let n_samples = batch.inputs.dims()[0] as u32;
        let tape = ctx.record_only(&self.parts, &[MODEL]);
        let logits = self.parts[MODEL].net.forward(&tape[MODEL], batch.inputs);
        let loss = ctx.step(&mut self.parts, tape, cross_entropy(logits, batch.targets));
        Step {
            loss,
            routed: vec![n_samples],
        }
    }

    fn end_round(&mut self, _ctx: &RoundContext<'_>) {
        self.parts[MOVEMENT].weights = self.movement.to(head(&self.parts[MODEL]));
    }

    fn judge(&mut self, peers: &[Peer], held_out: &HeldOut<'_>) {
        let [own, previous, _] = &self.parts;
        let models: Vec<&Weights> = std::iter::once(&own.weights)
            .chain(peers.iter().map(|peer| &peer.weights))
            .collect();
        let before = held_out.loss(&|inputs| self.run(&previous.weights, inputs));
        let candidates: Vec<Candidate> = models
            .iter()
            .map(|weights| self.judged(weights, held_out))
            .collect();
        if let Some(shares) = shares(before, &candidates) {
            self.parts[MODEL].weights = moved(&previous.weights, &models, &shares);
        }
    }

    fn forward(&self, inputs: Tensor<2>) -> Output {
        self.run(&self.parts[MODEL].weights, inputs)
    }

    fn emit(&self, graph: &mut Graph, inputs: Value) -> Value {
        self.parts[MODEL].emit(graph, inputs)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use burn::tensor::{Device, TensorData};
    use fednode_core::{ExpertId, NodeId};
    use fednode_data::{Pixels, Samples};

    use super::*;
    use crate::algorithm::testing::{Driven, assert_close, batch, build, numbers, setup};
    use crate::weights::values;

    fn node() -> FedFomo {
        setup("fedfomo", &[], |setup| FedFomo::new(setup).unwrap())
    }

    fn array(values: &[f32]) -> Weights {
        let data = TensorData::new(values.to_vec(), [values.len()]);
        Weights::new(vec![Tensor::from_data(data, &Device::flex())])
    }

    fn candidate(loss: f64, distance: f64) -> Candidate {
        Candidate { loss, distance }
    }

    /// Loss 1 before. Gains 0.4 at distance 2 and 0.1 at distance 1: weights 0.2 and 0.1, so 2/3 and 1/3. What is worse, at
    /// distance 0 or not a number gets nothing.
    #[test]
    fn weights_are_gains_by_distance() {
        let candidates = [
            candidate(0.6, 2.0),
            candidate(0.9, 1.0),
            candidate(1.2, 1.0),
            candidate(1.0, 0.0),
            candidate(f64::NAN, 1.0),
        ];
        let shares = shares(1.0, &candidates).unwrap();
        let expected = [2.0 / 3.0, 1.0 / 3.0, 0.0, 0.0, 0.0];
        for (got, expected) in shares.iter().zip(expected) {
            assert!((got - expected).abs() < 1e-12, "{shares:?}");
        }
        assert_eq!(super::shares(0.5, &candidates[..3]), None);
    }

    /// From (1, 1): 1/2 of the way to (3, 1) and 1/4 to (1, 5), which is (2, 2).
    #[test]
    fn a_model_moves_by_the_weights() {
        let (origin, first, second) = (array(&[1.0, 1.0]), array(&[3.0, 1.0]), array(&[1.0, 5.0]));
        let moved = moved(&origin, &[&first, &second], &[0.5, 0.25]);
        assert_close(&values(&moved.tensor(0)), &[2.0, 2.0], 1e-6);
        assert!((distance(&first, &second) - 20f64.sqrt()).abs() < 1e-6);
    }

    /// The two samples of `batch`.
    fn samples() -> Samples {
        let names: Arc<[String]> = ["a", "b"].map(String::from).into();
        let pixels = values(&batch().inputs);
        Samples::new([1, 2, 2], Pixels::Floats(pixels), vec![0, 1], names).unwrap()
    }

    fn peer(weights: Weights) -> Peer {
        let owner = NodeId::from_bytes([7; 32]);
        Peer {
            expert: ExpertId {
                owner,
                slot: Slot(0),
            },
            weights,
        }
    }

    /// Returns the weights of a model after so many steps.
    fn after(steps: u32) -> Weights {
        let mut alone = build("local", &[]);
        for _ in 0..steps {
            alone.train(0, batch());
        }
        alone.parts()[0].weights.clone()
    }

    #[test]
    fn a_node_takes_over_what_is_better_and_nothing_else() {
        let (samples, device) = (samples(), Device::flex());
        let held_out = HeldOut::new(&samples, 2, &device);
        let mut node = node();
        node.begin(1);
        let begun = numbers(&node, "previous.");
        node.train(0, batch());
        let trained = node.parts[MODEL].weights.clone();
        // The candidates are the node's own step and a model that is twenty steps further.
        let far = after(20);
        let judged = [&trained, &far].map(|weights| node.judged(weights, &held_out));
        let before = held_out.loss(&|inputs| node.run(&node.parts[PREVIOUS].weights, inputs));
        let shares = shares(before, &judged).unwrap();
        assert!(shares.iter().all(|share| *share > 0.0), "{shares:?}");
        let expected = moved(&node.parts[PREVIOUS].weights, &[&trained, &far], &shares);
        node.judge(&[peer(far)], &held_out);
        assert_eq!(
            values(&node.parts[MODEL].weights.tensor(0)),
            values(&expected.tensor(0))
        );
        assert_eq!(numbers(&node, "previous."), begun);

        // A node that begins further than any candidate keeps what it has.
        let mut ahead = self::node();
        ahead.parts[MODEL].weights = after(20);
        ahead.begin(1);
        let kept = values(&ahead.parts[MODEL].weights.tensor(0));
        ahead.judge(&[peer(after(1))], &held_out);
        assert_eq!(values(&ahead.parts[MODEL].weights.tensor(0)), kept);
    }

    #[test]
    fn the_proxy_is_the_movement_of_the_head() {
        let mut node = node();
        let head_then = numbers(&node, "fc.");
        node.begin(1);
        node.train(0, batch());
        node.end();
        let moved: f32 = numbers(&node, "fc.")
            .iter()
            .zip(&head_then)
            .map(|(now, then)| (now - then).powi(2))
            .sum();
        let proxy = numbers(&node, "head_movement");
        assert_eq!(proxy.len(), head_then.len());
        let square: f32 = proxy.iter().map(|value| value * value).sum();
        assert!(square > 0.0 && (square - moved).abs() < 1e-6);
    }

    #[test]
    fn a_local_update_is_that_of_a_node_alone() {
        let (mut node, mut alone) = (node(), build("local", &[]));
        node.begin(1);
        assert_eq!(node.train(0, batch()).loss, alone.train(0, batch()).loss);
        let layout = |name: &str| numbers(&node, name);
        assert_eq!(layout("fc"), numbers(alone.as_ref(), ""));
    }
}
