//! Trees of layers, with numbers worked out by hand.

use burn::tensor::Device;

use super::*;
use crate::model::Linear;
use crate::weights::{self, values};

#[test]
fn splits_where_algorithms_need_it() {
    let spec = fednode_core::spec::Architecture::default();
    let net = crate::model::build(&spec).unwrap();
    let sizes = |cut| {
        let (front, back) = net.split(cut);
        assert_eq!(front.n_outputs(), back.n_inputs());
        (front.n_learned(), back.n_learned())
    };
    assert_eq!(sizes(Cut::Embedding), (832, 581_194));
    assert_eq!(sizes(Cut::Head), (576_896, 5_130));
    assert_eq!(sizes(Cut::Classifier), (52_096, 529_930));
    assert_eq!(net.split(Cut::Embedding).0.n_outputs(), 4608);
}

/// A layer that multiplies by one number, so that trees can be reckoned in the head.
fn times(name: &'static str) -> Block {
    leaf(Linear {
        name,
        inputs: 1,
        outputs: 1,
        activation: Activation::Identity,
        bias: false,
    })
}

fn run(net: &Net, factors: &[f32], input: f32) -> Vec<f32> {
    let device = Device::flex();
    let tensors = factors
        .iter()
        .map(|one| Tensor::from_floats([*one], &device));
    let weights = Weights::new(tensors.collect());
    values(&net.forward(&weights, Tensor::from_floats([[input]], &device)))
}

/// relu(2 · 3 · x + 5 · x) and relu(2 · 3 · x + x), from x = 2 and x = -2.
#[test]
fn a_residual_block_adds_what_bypasses_it() {
    let with = |shortcut| {
        Net::new(vec![Block::Residual {
            body: vec![times("a"), times("b")],
            shortcut,
            activation: Activation::Relu,
        }])
    };
    let (projected, plain) = (with(vec![times("c")]), with(Vec::new()));
    assert_eq!(run(&projected, &[2.0, 3.0, 5.0], 2.0), [22.0]);
    assert_eq!(run(&projected, &[2.0, 3.0, 5.0], -2.0), [0.0]);
    assert_eq!(run(&plain, &[2.0, 3.0], 2.0), [14.0]);
    let names: Vec<_> = projected.parameters().iter().map(|one| &one.name).collect();
    assert_eq!(names, ["a.weight", "b.weight", "c.weight"]);
}

#[test]
fn branches_are_put_side_by_side() {
    let branches = vec![vec![times("a")], vec![times("b"), times("c")]];
    let net = Net::new(vec![Block::Parallel(branches)]);
    assert_eq!((net.n_inputs(), net.n_outputs()), (1, 2));
    assert_eq!(run(&net, &[2.0, 3.0, 4.0], 1.0), [2.0, 12.0]);
    assert_eq!(net.multiply_adds(), 3);
}

#[test]
fn gradients_flow_through_every_branch() {
    let residual = Block::Residual {
        body: vec![times("a")],
        shortcut: vec![times("b")],
        activation: Activation::Identity,
    };
    let branches = Block::Parallel(vec![vec![residual], vec![times("c")]]);
    let (net, device) = (Net::new(vec![branches]), Device::flex());
    let weights = Weights::load(&net, &weights::initial(&net, 1, 0), &device).unwrap();
    let tape = weights.recorded();
    let loss = net
        .forward(&tape, Tensor::from_floats([[3.0]], &device))
        .sum();
    let gradients = tape.take_gradients(&mut loss.backward());
    let gradients: Vec<f32> = gradients
        .into_iter()
        .map(|one| values(&one.unwrap())[0])
        .collect();
    assert_eq!(gradients, [3.0, 3.0, 3.0]);
}
