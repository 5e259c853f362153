//! Batch normalisation in federations: where its running statistics go, and that nothing but batches changes them.
#![allow(clippy::unwrap_used)]

mod common;

use std::ops::ControlFlow;

use common::{small_fashion, split};
use fednode_core::work::Update;
use fednode_core::{FederationSpec, ParamSet, Round};
use fednode_learn::{ComputeDevice, Learner, Subset, algorithm};

fn spec(algorithm: &str) -> FederationSpec {
    let mut spec = common::spec(algorithm, "resnet-8", &small_fashion());
    spec.model.experts = 2;
    (spec.training.batch_size, spec.training.local_epochs) = (16, 1);
    algorithm::fill_exchange(&mut spec).unwrap();
    spec
}

fn learner(spec: &FederationSpec, n_train: u32) -> Learner {
    let device = ComputeDevice::cpu(1).unwrap();
    Learner::new(spec, 3, split(&small_fashion(), n_train), &device).unwrap()
}

fn update(learner: &mut Learner, round: u32) -> Update {
    let watch = &mut |_| ControlFlow::Continue(());
    learner.local_update(Round(round), watch).unwrap()
}

fn is_of_norm(name: &str) -> bool {
    name.contains("bn") || name.contains("downsample.1")
}

fn named(params: &ParamSet, holds: impl Fn(&str) -> bool) -> Vec<(String, Vec<f32>)> {
    let chosen = params.iter().filter(|(name, _)| holds(name));
    chosen
        .map(|(name, tensor)| (name.to_owned(), tensor.values().to_vec()))
        .collect()
}

fn running(params: &ParamSet) -> Vec<(String, Vec<f32>)> {
    named(params, |name| name.contains("running"))
}

#[test]
fn every_algorithm_trains_a_residual_network() {
    for row in algorithm::TABLE {
        let spec = spec(row.name);
        let mut learner = learner(&spec, 40);
        let before = running(&learner.state());
        let loss = update(&mut learner, 1).train_loss;
        learner
            .finish(Round(1), &mut |_| ControlFlow::Continue(()))
            .unwrap();
        let state = learner.state();
        assert!(
            loss.is_finite() && state.values().all(f32::is_finite),
            "{}",
            row.name
        );
        assert_ne!(
            running(&state),
            before,
            "{}: batches renew the statistics",
            row.name
        );
        assert!(
            learner.evaluate(Subset::Test).score.loss.is_finite(),
            "{}",
            row.name
        );
    }
}

/// FedAvg averages running statistics with the rest, FedBN keeps all of a normalisation, others share or keep the
/// statistics with the part that they are in.
#[test]
fn statistics_go_where_their_part_goes() {
    let shared = |name: &str| update(&mut learner(&spec(name), 30), 1).shared.unwrap();
    for name in ["fedavg", "fedprox", "fedper", "fedrep", "moon"] {
        assert_eq!(running(&shared(name)).len(), 18, "{name}");
    }
    assert!(
        running(&shared("lg-fedavg")).is_empty(),
        "the base stays at home"
    );
    let moe = update(&mut learner(&spec("fedmoe-da"), 30), 1);
    assert_eq!(
        running(&moe.shared.unwrap()).len(),
        2,
        "those of the embedding"
    );
    assert_eq!(
        running(&moe.experts[0].0).len(),
        16,
        "the others travel with their expert"
    );

    let mut node = learner(&spec("fedbn"), 30);
    let own = update(&mut node, 1).shared.unwrap();
    assert!(named(&own, is_of_norm).is_empty());
    assert_eq!(named(&node.private_state(), is_of_norm).len(), 36);
    let kept = named(&node.state(), is_of_norm);
    node.adopt(Some(own), Vec::new()).unwrap();
    assert_eq!(named(&node.state(), is_of_norm), kept);
}

/// One step each: the statistics follow from the batch and the initial weights alone.
#[test]
fn neither_gradient_nor_decay_touches_statistics() {
    let after = |weight_decay: f64, rate: f64| {
        let mut spec = spec("fedavg");
        spec.training.batch_size = 64;
        (spec.training.weight_decay, spec.training.learning_rate) = (weight_decay, rate);
        let mut node = learner(&spec, 30);
        update(&mut node, 1);
        node.state()
    };
    let (plain, decayed) = (after(0.0, 0.1), after(0.5, 0.3));
    assert_eq!(running(&plain), running(&decayed));
    assert_ne!(
        named(&plain, |name| name == "fc.weight"),
        named(&decayed, |name| name == "fc.weight")
    );
    let scaffold = learner(&spec("scaffold"), 30).state();
    assert!(
        running(&scaffold)
            .iter()
            .all(|(name, _)| !name.contains("control"))
    );
}

#[test]
fn a_frozen_base_keeps_its_statistics() {
    let mut spec = spec("fedbabu");
    let head = fednode_core::HyperValue::Text("head".into());
    spec.hyper.insert("fine_tuning".into(), head);
    algorithm::fill_exchange(&mut spec).unwrap();
    let mut node = learner(&spec, 30);
    let before = running(&node.state());
    let steps = node
        .finish(Round(1), &mut |_| ControlFlow::Continue(()))
        .unwrap();
    assert_eq!((steps > 0, running(&node.state())), (true, before));
}

/// A variance below zero cannot be a mean of variances; whoever sends one must not make predictions vanish.
#[test]
fn predictions_survive_an_impossible_variance() {
    let mut node = learner(&spec("fedavg"), 30);
    let mut shared = ParamSet::clone(&update(&mut node, 1).shared.unwrap());
    for (name, tensor) in shared.iter_mut() {
        if name.ends_with("running_var") {
            tensor.values_mut().fill(-1.0);
        }
    }
    node.adopt(Some(shared), Vec::new()).unwrap();
    assert!(node.evaluate(Subset::Test).score.loss.is_finite());
}
