//! What is served in the end: own model or pool, joined with statistics, under one guard.

#![allow(clippy::unwrap_used)]

mod common;

use std::ops::ControlFlow;
use std::sync::Arc;

use common::federation::{self as fed, learner, rounds};
use fednode_core::spec::Preset;
use fednode_core::work::Progress;
use fednode_core::{
    Component, Composition, FederationSpec, HyperValue, NodeId, ParamSet, PoolOutcome, Served,
    Share,
};
use fednode_learn::{Learner, PoolSettings, Subset};

/// Statistics by agreement beside a model of FedPer, whose heads can be pooled.
fn spec() -> FederationSpec {
    let text = |text: &str| HyperValue::Text(text.into());
    let hyper = [("profile", text("agreement")), ("base", text("fedper"))];
    let mut spec = fed::spec("fedmoe-da", &hyper);
    spec.rounds = 4;
    spec
}

fn go_on(_: Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// Two nodes after two rounds.
fn trained(spec: &FederationSpec) -> [Learner; 2] {
    let mut nodes = [0, 1].map(|index| learner(spec, index));
    rounds(spec, &mut nodes, 1..=2);
    nodes
}

fn settings(guard: bool) -> PoolSettings {
    PoolSettings {
        epochs: 6,
        batch_size: 16,
        learning_rates: vec![0.1],
        guard,
        ..PoolSettings::preset(Preset::Fixed)
    }
}

fn assemble(node: &mut Learner, settings: &PoolSettings, module: Arc<ParamSet>) -> PoolOutcome {
    let members = vec![(NodeId::from_bytes([9; 32]), module)];
    node.assemble_pool(settings, members, &mut go_on).unwrap()
}

fn weights(composition: &Composition) -> Vec<(Component, f64)> {
    let pair = |share: &Share| (share.component, share.weight.unwrap());
    composition.shares.iter().map(pair).collect()
}

#[test]
fn a_pool_takes_the_place_of_the_own_model_beside_the_statistics() {
    let spec = spec();
    let mut nodes = trained(&spec);
    let before = nodes[0].composition().unwrap();
    let usual = [
        (Component::PeersStatistics, 0.65),
        (Component::OwnModel, 0.35),
    ];
    assert_eq!(weights(&before), usual);
    let alone = nodes[0].evaluate(Subset::Test);
    let module = nodes[1].module().unwrap().params;
    let outcome = assemble(&mut nodes[0], &settings(false), module);
    assert_eq!(outcome.served, Served::Mixture);
    let served = nodes[0].composition().unwrap();
    let pooled = [(Component::PeersStatistics, 0.65), (Component::Pool, 0.35)];
    assert_eq!(weights(&served), pooled);
    assert_ne!(nodes[0].evaluate(Subset::Test), alone);
    // It comes back from a checkpoint.
    let mut restored = learner(&spec, 0);
    restored.restore(&nodes[0].state()).unwrap();
    assert_eq!(restored.composition(), Some(served));
    assert_eq!(
        restored.evaluate(Subset::Test),
        nodes[0].evaluate(Subset::Test)
    );
}

#[test]
fn a_model_without_statistics_or_pool_has_nothing_to_say() {
    let spec = fed::spec("fedper", &[]);
    assert_eq!(trained(&spec)[0].composition(), None);
}

/// A head whose classes are mistaken for their neighbours.
fn turned(module: &ParamSet) -> Arc<ParamSet> {
    let mut turned = ParamSet::clone(module);
    for (name, tensor) in turned.iter_mut() {
        let row = if name == "fc.bias" { 1 } else { fed::WIDTH };
        tensor.values_mut().rotate_right(row);
    }
    Arc::new(turned)
}

/// The gate stays as it starts, so all members count alike.
fn as_it_starts() -> PoolSettings {
    PoolSettings {
        epochs: 1,
        learning_rates: vec![1e-6],
        drop_share: 0.0,
        ..settings(true)
    }
}

/// Assembles five members of one head, beside the own one.
fn assemble_of(node: &mut Learner, settings: &PoolSettings, module: &Arc<ParamSet>) -> PoolOutcome {
    let member = |at: u8| (NodeId::from_bytes([at; 32]), Arc::clone(module));
    let members = (1..=5).map(member).collect();
    node.assemble_pool(settings, members, &mut go_on).unwrap()
}

fn refused(outcome: &PoolOutcome) -> &str {
    match &outcome.served {
        Served::Own { reason } => reason,
        Served::Mixture => panic!("the mixture is served: {:?}", outcome.validation),
    }
}

#[test]
fn a_mixture_that_is_bad_by_itself_is_left_out() {
    let mut nodes = trained(&spec());
    let (state, alone) = (nodes[0].state(), nodes[0].evaluate(Subset::Test));
    let module = turned(&nodes[0].module().unwrap().params);
    let outcome = assemble_of(&mut nodes[0], &as_it_starts(), &module);
    assert_eq!(
        refused(&outcome),
        "the mixture is worse than the own module on the validation samples"
    );
    assert_eq!(
        (nodes[0].state(), nodes[0].evaluate(Subset::Test)),
        (state, alone)
    );
}

/// A head over a hundred gives the same answers, and is sure of none. By itself the mixture recognises as many samples as the own
/// module, so nothing speaks against it. Joined with statistics it tells them less.
#[test]
fn a_mixture_that_tells_the_statistics_less_is_left_out() {
    let mut nodes = trained(&spec());
    let (state, served) = (nodes[0].state(), nodes[0].evaluate(Subset::Test));
    let mut unsure = ParamSet::clone(&nodes[0].module().unwrap().params);
    for (_, tensor) in unsure.iter_mut() {
        let values = tensor.values_mut().iter_mut();
        values.for_each(|value| *value /= 100.0);
    }
    let outcome = assemble_of(&mut nodes[0], &as_it_starts(), &Arc::new(unsure));
    let (own, mixture) = (outcome.validation.own, outcome.validation.mixture.unwrap());
    assert_eq!(mixture.accuracy, own.accuracy);
    assert_eq!(
        refused(&outcome),
        "joined with statistics, the mixture is worse than the own module on the validation samples"
    );
    assert_eq!(
        (nodes[0].state(), nodes[0].evaluate(Subset::Test)),
        (state, served)
    );
}

/// Node 1's own model is so much worse than the statistics that it counts for nothing. Beside a pool the choice is another one.
#[test]
fn statistics_are_chosen_anew_beside_a_pool() {
    let mut spec = spec();
    spec.training.learning_rate = 0.05;
    let mut nodes = [0, 1].map(|index| learner(&spec, index));
    rounds(&spec, &mut nodes, 1..=4);
    let node = &mut nodes[1];
    let before = node.composition().unwrap();
    assert_eq!(before.left_out.first(), Some(&Component::OwnModel));
    let mut loud = ParamSet::clone(&node.module().unwrap().params);
    for (_, tensor) in loud.iter_mut() {
        let values = tensor.values_mut().iter_mut();
        values.for_each(|value| *value *= 100.0);
    }
    let unguarded = PoolSettings {
        guard: false,
        ..as_it_starts()
    };
    let outcome = assemble_of(node, &unguarded, &Arc::new(loud));
    assert_eq!(outcome.served, Served::Mixture);
    let served = (node.composition().unwrap(), node.evaluate(Subset::Test));
    assert!(
        served
            .0
            .shares
            .iter()
            .any(|share| share.component == Component::Pool),
        "{}",
        served.0
    );
    // Nothing is adopted, so nothing is chosen that was not chosen already.
    node.adopt(None::<ParamSet>, Vec::new()).unwrap();
    assert_eq!(
        (node.composition().unwrap(), node.evaluate(Subset::Test)),
        served
    );
}
