//! dFLMoE: Xie, Luan, Cai, Yan, Chen, Xi, Fang, Shen, Wu and Yuan, "dFLMoE: Decentralized Federated Learning via Mixture of
//! Experts for Medical Data Analysis", CVPR 2025.
//!
//! ```text
//! rounds        theta_i, h_i: SGD on the cross-entropy of h_i(f),  f = theta_i(x)      the node's own body and head
//! exchange      every h_j, from node to node
//! mixture       o_i = h_i(f),  o_j = h_j(f + f A_j + b_j)                              j: a node whose head has arrived
//!               a   = softmax over j of (f W) . o_j / sqrt(classes)                    the own head among them
//!               y   = sum_j a_j o_j                                                    logits
//!               A_j, b_j, W: SGD on the cross-entropy of y; the body and all heads stay as they are
//! ```
//!
//! A_j, `[features, features]`, and b_j are the transform from the node's features to those that head j was trained on. W,
//! `[features, classes]`, makes the query of an attention, whose keys and values are the outputs of the heads. All three
//! start at zero: every head is given the features as they are, and all of them count alike.
//!
//! The paper's full text was not at hand, and it has no published code. The abstract gives the exchange of heads and the
//! mixture of the own and the received heads. A re-implementation describes the rest: a linear transform for each received
//! head, and cross-attention of the form `Attn(W f, K, V)`. What it does not say is decided here. Nothing of the mixture
//! flows back into the body or a head. So the mixture of a round changes nothing in the next one, and it is trained
//! once, after the last round, on the heads that arrived last. The own head is given no transform. Nothing judges a head
//! before it is mixed, as in the paper: the attention may learn to leave a liar's head out, and nobody promises that it does.

use burn::tensor::Tensor;
use burn::tensor::activation::softmax;
use fednode_core::{ConfigError, Exchange, ExpertExchange, MAX_TENSORS, Matching, ParamSet, Slot};
use fednode_onnx::{Graph, Reduction, Value};
use serde::{Deserialize, Serialize};

use super::hyper::{Hyper, Kind};
use super::movement::Movement;
use super::part::{Part, Role};
use super::{
    Algorithm, HeldOut, Optimizers, Output, Peer, RoundContext, Row, Setup, Stage, Step,
    StepContext, whole,
};
use crate::batch::Batch;
use crate::error::LearnError;
use crate::gate::{argmax, emit_mix};
use crate::memory::Memory;
use crate::model::{self, Cut, Initial, Net};
use crate::train::cross_entropy;
use crate::weights::{self, Weights};

pub(super) const ROW: Row = Row {
    name: "dflmoe",
    summary: "a model per node, which in the end mixes its own head with those of others by attention",
    reference: "Xie et al., CVPR 2025, arXiv 2503.10412",
    averages: "nothing",
    peer_to_peer: "heads, and how they have moved since the start",
    keeps_private: "the body, the transforms of its features and the attention",
    trains_ahead: false,
    optimizers: Optimizers::Any,
    hyper: &[
        Hyper {
            name: PEERS,
            kind: Kind::CountOrAll { max: 100_000 },
            default: "all",
            doc: "how many heads of others a node mixes: those whose movement is most like its own",
        },
        Hyper {
            name: EPOCHS,
            kind: Kind::Integer {
                min: 0,
                max: 100_000,
            },
            default: "20",
            doc: "epochs in which the mixture learns, after the last round; 0 leaves every node its own model",
        },
    ],
    profiles: &[],
    exchange: |values| Exchange {
        averaging: None,
        experts: Some(ExpertExchange::by(
            Matching::named("each"),
            values.peers(PEERS),
        )),
        everybody_first: false,
        prepares: false,
        total: None,
    },
    build: |setup| DflMoe::new(setup).map(|algorithm| Box::new(algorithm) as Box<dyn Algorithm>),
};

const PEERS: &str = "peers_per_expert";
const EPOCHS: &str = "mixture_epochs";

const BODY: usize = 0;
const HEAD: usize = 1;
const MOVEMENT: usize = 2;
/// W.
const ATTENTION: usize = 3;
/// For each place of a received head 1 if there is one, and 0 if not.
const PRESENT: usize = 4;

/// Returns where the head and the transform of a place are among the parts.
const fn place(at: usize) -> [usize; 2] {
    [PRESENT + 1 + 2 * at, PRESENT + 2 + 2 * at]
}

/// Most numbers of all transforms together.
const MOST_NUMBERS: usize = 1 << 26;

/// What is added to the score of a place without a head: its weight is 0 then.
const ABSENT: f64 = 1e9;

/// What predicts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Predictor {
    /// The node's own head.
    #[default]
    Own,
    /// The mixture.
    Mixture,
}

struct DflMoe {
    parts: Vec<Part>,
    movement: Movement,
    epochs: u32,
    predictor: Predictor,
}

impl DflMoe {
    fn new(setup: &Setup<'_>) -> Result<Self, LearnError> {
        let (body, head) = model::halves(setup.model, Cut::Head)?;
        let (width, classes) = (head.n_inputs(), head.n_outputs());
        let others = setup.nodes.saturating_sub(1) as usize;
        // A federation of one has a place, too, that stays empty: an array has at least one number.
        let places = setup.hyper.peers(PEERS).limit().min(others).max(1);
        check_size(width, places, head.parameters().len())?;
        let part = |role, net| Part::new(role, net, setup.seed, 0, setup.device);
        let own = part(Role::Expert(Slot(0)), head.clone());
        let (movement, proxy) = Movement::from(own.weights.tensors().cloned().collect(), setup);
        let attention = Net::arrays(&[("attention.query", &[width, classes], Initial::Zeros)]);
        let present = Net::arrays(&[("received.present", &[1, places], Initial::Zeros)]);
        let mut parts = vec![
            part(Role::Private, body),
            own,
            proxy,
            part(Role::Private, attention),
            part(Role::Private, present),
        ];
        for at in 0..places {
            let transform = Net::arrays(&[
                ("weight", &[width, width], Initial::Zeros),
                ("bias", &[width], Initial::Zeros),
            ]);
            let received = head.clone().prefixed(&format!("received.{at}."));
            let transform = transform.prefixed(&format!("transforms.{at}."));
            parts.extend([received, transform].map(|net| part(Role::Private, net)));
        }
        Ok(Self {
            parts,
            movement,
            epochs: setup.hyper.count(EPOCHS),
            predictor: Predictor::Own,
        })
    }

    /// How many heads of others it has room for.
    fn places(&self) -> usize {
        (self.parts.len() - PRESENT - 1) / 2
    }

    /// Runs a part that is a net.
    fn run(&self, part: usize, weights: &[Weights], inputs: Tensor<2>) -> Tensor<2> {
        self.parts[part].net.forward(&weights[part], inputs)
    }

    /// Returns the logits of the own head, then of all received ones, each `[batch, classes]`.
    fn each(&self, weights: &[Weights], features: &Tensor<2>) -> Vec<Tensor<2>> {
        let own = self.run(HEAD, weights, features.clone());
        let received = (0..self.places()).map(place).map(|[head, transform]| {
            let features = moved(&weights[transform], features);
            self.run(head, weights, features)
        });
        std::iter::once(own).chain(received).collect()
    }

    /// Returns the logits of the mixture and the weight of each head, `[batch, heads]`.
    fn mix(&self, weights: &[Weights], features: &Tensor<2>) -> (Tensor<2>, Tensor<2>) {
        let outputs = self.each(weights, features);
        let (width, classes) = (features.dims()[1], outputs[0].dims()[1]);
        let query = weights[ATTENTION].tensor(0).reshape([width, classes]);
        let present = weights[PRESENT].tensor(0).reshape([1, self.places()]);
        attend(&features.clone().matmul(query), outputs, &present)
    }

    /// Writes into a graph rows times the first array of a part, plus the second one if there is any.
    fn emit_affine(&self, graph: &mut Graph, rows: Value, part: usize) -> Value {
        let part = &self.parts[part];
        let arrays: Vec<Value> = part
            .net
            .parameters()
            .iter()
            .zip(part.weights.tensors())
            .map(|(parameter, tensor)| {
                graph.floats(&parameter.name, weights::values(tensor), &parameter.shape)
            })
            .collect();
        graph.affine(rows, arrays[0], arrays.get(1).copied())
    }

    /// Returns the weights of all parts as they are.
    fn plain(&self) -> Vec<Weights> {
        super::part::plain(&self.parts)
    }

    fn features(&self, inputs: Tensor<2>) -> Tensor<2> {
        let body = &self.parts[BODY];
        body.net.forward(&body.weights, inputs)
    }
}

/// Refuses transforms that would be too many numbers, or too many arrays beside the heads.
fn check_size(width: usize, places: usize, arrays_of_a_head: usize) -> Result<(), LearnError> {
    let arrays = MAX_TENSORS / 2 / (arrays_of_a_head + 2);
    let room = arrays.min(MOST_NUMBERS / (width * (width + 1)).max(1));
    if places <= room {
        return Ok(());
    }
    let text = format!(
        "`dflmoe` keeps a transform of {width} × {width} numbers for each of {places} heads: set `{PEERS}` to at most {room}"
    );
    Err(LearnError::Config(ConfigError(text)))
}

/// Returns `f + f A + b` for each row f.
fn moved(transform: &Weights, features: &Tensor<2>) -> Tensor<2> {
    let width = features.dims()[1];
    let matrix = transform.tensor(0).reshape([width, width]);
    let bias = transform.tensor(1).reshape([1, width]);
    features.clone() + features.clone().matmul(matrix) + bias
}

/// Mixes outputs, each `[batch, classes]`, by attention: the first is always there, the others where `present` is 1. Returns
/// the mixture and the weights.
fn attend(
    query: &Tensor<2>,
    outputs: Vec<Tensor<2>>,
    present: &Tensor<2>,
) -> (Tensor<2>, Tensor<2>) {
    let scale = 1.0 / (query.dims()[1] as f64).sqrt();
    let score = |output: &Tensor<2>| (query.clone() * output.clone()).sum_dim(1);
    let scores = outputs.iter().map(score).collect();
    let scores = Tensor::cat(scores, 1).mul_scalar(scale);
    let always = Tensor::ones([1, 1], &present.device());
    let present = Tensor::cat(vec![always, present.clone()], 1);
    let shares = softmax(scores + present.sub_scalar(1.0).mul_scalar(ABSENT), 1);
    let weighted = outputs
        .into_iter()
        .enumerate()
        .map(|(at, output)| output * shares.clone().narrow(1, at, 1));
    let mixed = weighted
        .reduce(|sum, more| sum + more)
        .expect("the own head is there");
    (mixed, shares)
}

impl Algorithm for DflMoe {
    fn parts(&self) -> &[Part] {
        &self.parts
    }

    fn parts_mut(&mut self) -> &mut [Part] {
        &mut self.parts
    }

    fn begin_round(&mut self, _ctx: &RoundContext<'_>) {
        self.predictor = Predictor::Own;
    }

    fn frozen(&self, stage: Stage, inputs: Tensor<2>) -> Option<Tensor<2>> {
        matches!(stage, Stage::FineTuning(_)).then(|| self.features(inputs))
    }

    fn step(&mut self, stage: Stage, batch: Batch, ctx: &mut StepContext<'_>) -> Step {
        let (tape, logits) = if matches!(stage, Stage::FineTuning(_)) {
            let transforms = (0..self.places()).map(|at| place(at)[1]);
            let trained: Vec<usize> = std::iter::once(ATTENTION).chain(transforms).collect();
            let tape = ctx.record_only(&self.parts, &trained);
            let (logits, _) = self.mix(&tape, &batch.inputs);
            (tape, logits)
        } else {
            let tape = ctx.record_only(&self.parts, &[BODY, HEAD]);
            let features = self.run(BODY, &tape, batch.inputs);
            let logits = self.run(HEAD, &tape, features);
            (tape, logits)
        };
        let loss = cross_entropy(logits, batch.targets);
        Step {
            loss: ctx.step(&mut self.parts, tape, loss),
            routed: Vec::new(),
        }
    }

    fn end_round(&mut self, _ctx: &RoundContext<'_>) {
        let now = self.parts[HEAD].weights.tensors().cloned().collect();
        self.parts[MOVEMENT].weights = self.movement.to(now);
    }

    /// Keeps the heads that have arrived, by owner, for the mixture; those of the round before are given up. If none has
    /// arrived, this is not called, and those stay.
    fn judge(&mut self, peers: &[Peer], _held_out: &HeldOut<'_>) {
        let mut peers: Vec<&Peer> = peers.iter().take(self.places()).collect();
        peers.sort_unstable_by_key(|peer| peer.expert);
        let present: Vec<f32> = (0..self.places())
            .map(|at| if at < peers.len() { 1.0 } else { 0.0 })
            .collect();
        self.parts[PRESENT].weights.change(0, |before| {
            Tensor::from_data(present.as_slice(), &before.device())
        });
        for (at, peer) in peers.into_iter().enumerate() {
            self.parts[place(at)[0]].weights = peer.weights.clone();
        }
    }

    fn fine_tuning_passes(&self) -> Vec<u32> {
        match self.epochs {
            0 => Vec::new(),
            epochs => vec![epochs],
        }
    }

    fn begin_fine_tuning(&mut self, _pass: usize, _ctx: &RoundContext<'_>) {
        self.predictor = Predictor::Mixture;
        let zero = |weights: &mut Weights, at| weights.change(at, |before| before.zeros_like());
        zero(&mut self.parts[ATTENTION].weights, 0);
        for [_, transform] in (0..self.places()).map(place) {
            (0..2).for_each(|at| zero(&mut self.parts[transform].weights, at));
        }
    }

    fn memory(&self) -> Option<Memory> {
        (self.predictor != Predictor::Own).then(|| Memory::of(&self.predictor))
    }

    fn recall(&mut self, memory: Option<&Memory>, _retired: &ParamSet) -> Result<(), LearnError> {
        self.predictor = match memory {
            Some(memory) => memory.read()?,
            None => Predictor::Own,
        };
        Ok(())
    }

    fn forward(&self, inputs: Tensor<2>) -> Output {
        let (weights, features) = (self.plain(), self.features(inputs));
        if self.predictor == Predictor::Own {
            return whole::output(self.run(HEAD, &weights, features));
        }
        let (logits, shares) = self.mix(&weights, &features);
        let n_experts = self.places() + 1;
        Output {
            logits,
            chosen: Some(argmax(&weights::values(&shares), n_experts)),
            n_experts,
        }
    }

    fn emit(&self, graph: &mut Graph, inputs: Value) -> Value {
        let features = self.parts[BODY].emit(graph, inputs);
        let own = self.parts[HEAD].emit(graph, features);
        if self.predictor == Predictor::Own {
            return own;
        }
        let present = weights::values(&self.parts[PRESENT].weights.tensor(0));
        let arrived = (0..self.places()).filter(|at| present[*at] > 0.0);
        let mut outputs = vec![own];
        for [head, transform] in arrived.map(place) {
            let shift = self.emit_affine(graph, features, transform);
            let moved = graph.add(features, shift);
            outputs.push(self.parts[head].emit(graph, moved));
        }
        let query = self.emit_affine(graph, features, ATTENTION);
        let scale = 1.0 / (self.parts[HEAD].net.n_outputs() as f64).sqrt();
        let scores: Vec<Value> = outputs
            .iter()
            .map(|output| {
                let products = graph.mul(query, *output);
                let score = graph.reduce(Reduction::Sum, products, 1);
                graph.mul_number(score, scale)
            })
            .collect();
        let scores = graph.concat(&scores, 1);
        let shares = graph.softmax(scores);
        emit_mix(graph, shares, &outputs)
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, TensorData};
    use fednode_core::{ExpertId, NodeId};
    use fednode_data::{Pixels, Samples};

    use super::*;
    use crate::algorithm::testing::{Driven, assert_close, batch, build, matrix, numbers, setup};
    use crate::weights::values;

    const TUNING: Stage = Stage::FineTuning(0);

    /// A node of three, with room for the heads of both others.
    fn node() -> DflMoe {
        setup("dflmoe", &[], |setup| DflMoe::new(setup).unwrap())
    }

    /// The head of a node that has trained so many steps, as node `owner` would send it.
    fn peer(owner: u8, steps: u32) -> Peer {
        let mut node = node();
        for _ in 0..steps {
            node.train(0, batch());
        }
        let owner = NodeId::from_bytes([owner; 32]);
        let expert = ExpertId {
            owner,
            slot: Slot(0),
        };
        let weights = node.parts[HEAD].weights.clone();
        Peer { expert, weights }
    }

    fn receive(node: &mut DflMoe, peers: &[Peer]) {
        let names: std::sync::Arc<[String]> = ["a", "b"].map(String::from).into();
        let pixels = Pixels::Floats(values(&batch().inputs));
        let samples = Samples::new([1, 2, 2], pixels, vec![0, 1], names).unwrap();
        node.judge(peers, &HeldOut::new(&samples, 2, &Device::flex()));
    }

    fn logits(node: &DflMoe) -> Vec<f32> {
        values(&node.forward(batch().inputs).logits)
    }

    /// The query (sqrt 2 ln 3, 0) and the outputs (1, 0) and (0, 1) of two classes: scores ln 3 and 0, so 3/4 and 1/4. A head
    /// that is not there has the largest score and no weight.
    #[test]
    fn attention_agrees_with_a_worked_example() {
        let query = matrix([[2f32.sqrt() * 3f32.ln(), 0.0]]);
        let outputs = [[[1.0, 0.0]], [[0.0, 1.0]], [[9.0, 9.0]]].map(matrix);
        let (mixed, shares) = attend(&query, outputs.to_vec(), &matrix([[1.0, 0.0]]));
        assert_close(&values(&shares), &[0.75, 0.25, 0.0], 1e-6);
        assert_close(&values(&mixed), &[0.75, 0.25], 1e-6);
    }

    /// (1, 2) plus (1, 2) times ((0, 1), (3, 0)), which is (6, 1), plus (10, 20).
    #[test]
    fn a_transform_agrees_with_a_worked_example() {
        let array = |values: &[f32]| {
            let data = TensorData::new(values.to_vec(), [values.len()]);
            Tensor::from_data(data, &Device::flex())
        };
        let transform = Weights::new(vec![array(&[0.0, 1.0, 3.0, 0.0]), array(&[10.0, 20.0])]);
        let moved = moved(&transform, &matrix([[1.0, 2.0]]));
        assert_close(&values(&moved), &[17.0, 23.0], 1e-6);
    }

    #[test]
    fn rounds_are_those_of_a_node_alone() {
        let (mut node, mut alone) = (node(), build("local", &[]));
        for round in 1..=2 {
            node.begin(round);
            assert_eq!(node.train(0, batch()), alone.train(0, batch()));
            node.end();
            receive(&mut node, &[peer(1, 5), peer(2, 9)]);
        }
        assert_eq!(numbers(&node, "fc"), numbers(alone.as_ref(), ""));
        let alone = values(&alone.forward(batch().inputs).logits);
        assert_eq!(
            logits(&node),
            alone,
            "heads count after the last round alone"
        );
    }

    /// The mixture starts as the mean of the heads that are there, on the node's own features.
    #[test]
    fn every_head_counts_alike_before_the_mixture_learns() {
        for peers in [vec![peer(7, 5)], vec![peer(9, 5), peer(2, 9)]] {
            let mut node = node();
            node.train(0, batch());
            receive(&mut node, &peers);
            let features = node.features(batch().inputs);
            let head = &node.parts[HEAD];
            let own = std::iter::once(&head.weights);
            let heads: Vec<_> = own.chain(peers.iter().map(|peer| &peer.weights)).collect();
            let sum = heads
                .iter()
                .map(|weights| head.net.forward(weights, features.clone()))
                .reduce(|sum, more| sum + more);
            let mean = sum.unwrap().div_scalar(heads.len() as f64);
            node.begin_tuning(0);
            assert_close(&logits(&node), &values(&mean), 1e-6);
            let output = node.forward(batch().inputs);
            assert_eq!(output.n_experts, 3, "places that are empty count");
            assert!(output.chosen.unwrap().iter().all(|at| *at <= peers.len()));
        }
    }

    #[test]
    fn the_mixture_learns_and_body_and_heads_stay() {
        let mut node = node();
        node.train(0, batch());
        receive(&mut node, &[peer(1, 5)]);
        let fixed = |node: &DflMoe| {
            let parts = [BODY, HEAD, PRESENT, place(0)[0], place(1)[0]].map(|at| &node.parts[at]);
            parts.map(|part| part.params().values().collect::<Vec<f32>>())
        };
        let before = fixed(&node);
        node.begin_tuning(0);
        let first = node.sample_step(TUNING, batch(), 0.5).loss;
        for _ in 0..100 {
            node.sample_step(TUNING, batch(), 0.5);
        }
        let last = node.sample_step(TUNING, batch(), 0.5).loss;
        assert!(last < first / 2.0, "{first} to {last}");
        assert_eq!(fixed(&node), before);
        let learned = |prefix: &str| numbers(&node, prefix).iter().any(|value| *value != 0.0);
        assert!(learned("attention.query") && learned("transforms.0."));
        assert!(!learned("transforms.1."), "no head has arrived there");

        // Tuned again, it does not go on from where it was.
        node.begin_tuning(0);
        assert_eq!(node.sample_step(TUNING, batch(), 0.5).loss, first);
        node.begin(9);
        let own = node.run(HEAD, &node.plain(), node.features(batch().inputs));
        assert_eq!(
            logits(&node),
            values(&own),
            "a new round begins with the own head"
        );
    }

    #[test]
    fn heads_that_do_not_arrive_again_are_given_up() {
        let mut node = node();
        receive(&mut node, &[peer(2, 9), peer(1, 5)]);
        let first = |node: &DflMoe| {
            let tensors = node.parts[place(0)[0]].weights.tensors();
            tensors.map(values).collect::<Vec<_>>()
        };
        let of = |peer: Peer| peer.weights.tensors().map(values).collect::<Vec<_>>();
        assert_eq!(first(&node), of(peer(1, 5)), "places are by owner");
        receive(&mut node, &[peer(2, 9)]);
        assert_eq!(first(&node), of(peer(2, 9)));
        assert_eq!(numbers(&node, "received.present"), [1.0, 0.0]);
    }

    #[test]
    fn more_transforms_than_fit_are_refused_with_a_number_that_does() {
        assert!(check_size(512, 99, 2).is_ok());
        assert!(check_size(32, 600, 2).is_err(), "a state has 4,096 arrays");
        let error = check_size(512, 300, 2).unwrap_err().to_string();
        assert!(
            error.contains("300 heads: set `peers_per_expert` to at most 255"),
            "{error}"
        );
        assert_eq!(
            build("dflmoe", &[(EPOCHS, 0.0)]).fine_tuning_passes(),
            [0; 0]
        );
    }
}
