//! What nodes remember besides numbers: that it survives a restart, and that older states are read.
#![allow(clippy::unwrap_used)]

mod common;

use std::ops::ControlFlow;

use common::{small_fashion, split};
use fednode_core::{FederationSpec, HyperValue, ParamSet, Round};
use fednode_learn::{ComputeDevice, LearnError, Learner, Subset, algorithm};

fn spec(algorithm: &str, hyper: &[(&str, &str)]) -> FederationSpec {
    let mut spec = common::spec(algorithm, "mlp", &small_fashion());
    spec.model.experts = 3;
    spec.training.local_epochs = 1;
    let parsed = |(key, value): &(&str, &str)| {
        let value: HyperValue = value.parse().unwrap();
        ((*key).to_owned(), value)
    };
    spec.hyper.extend(hyper.iter().map(parsed));
    algorithm::fill_exchange(&mut spec).unwrap();
    spec
}

fn learner(spec: &FederationSpec) -> Learner {
    let device = ComputeDevice::cpu(1).unwrap();
    Learner::new(spec, 3, split(&small_fashion(), 70), &device).unwrap()
}

fn trained(spec: &FederationSpec, rounds: u32) -> Learner {
    let (mut node, watch) = (learner(spec), &mut |_| ControlFlow::Continue(()));
    for round in 1..=rounds {
        node.local_update(Round(round), watch).unwrap();
    }
    node.finish(Round(rounds), watch).unwrap();
    node
}

/// A node that is restored from a state.
fn restored(spec: &FederationSpec, state: &ParamSet) -> Learner {
    let mut node = learner(spec);
    node.restore(state).unwrap();
    node
}

#[track_caller]
fn assert_alike(one: &Learner, other: &Learner) {
    assert_eq!(one.evaluate(Subset::Test), other.evaluate(Subset::Test));
    assert_eq!(one.state(), other.state());
}

const STAGES: [(&str, &str); 2] = [("personal_epochs", "2"), ("gate_epochs", "2")];

#[test]
fn memories_survive_a_restart() {
    let jets = spec("fedjets", &[("common_rounds", "1")]);
    for (spec, note) in [
        (spec("pfl-mf", &STAGES), Some("{\"algorithm\":\"mixture\"}")),
        (
            spec("pfl-fb", &STAGES[..1]),
            Some("{\"algorithm\":\"personal\"}"),
        ),
        (jets, None),
        (spec("fedavg", &[]), None),
    ] {
        let node = trained(&spec, 2);
        let state = ParamSet::decode(&node.state().to_bytes()).unwrap();
        assert_eq!(state.note(), note, "{}", spec.algorithm);
        assert_alike(&restored(&spec, &state), &node);
    }
    let spec = spec("fedmix", &[]);
    let node = trained(&spec, 2);
    let state = node.state();
    assert!(state.note().unwrap().starts_with("{\"algorithm\":["));
    assert_alike(&restored(&spec, &state), &node);
}

#[test]
fn arrays_of_older_states_are_read() {
    let older = |node: &Learner, name: &str, values: Vec<f32>| {
        let mut state = node.state();
        state.set_note(None).unwrap();
        state.insert(name, &[values.len()], values).unwrap();
        state
    };
    let mf = spec("pfl-mf", &STAGES);
    let node = trained(&mf, 1);
    assert_alike(&restored(&mf, &older(&node, "progress", vec![2.0])), &node);
    let mix = spec("fedmix", &[]);
    let node = trained(&mix, 1);
    let flags = (0..3).map(|expert| {
        let is_selected = node.state().note().unwrap().contains(&expert.to_string());
        if is_selected { 1.0 } else { 0.0 }
    });
    let flags = flags.collect();
    assert_alike(&restored(&mix, &older(&node, "selection", flags)), &node);
    let jets = spec("fedjets", &[("common_rounds", "1")]);
    let node = trained(&jets, 2);
    assert_alike(&restored(&jets, &older(&node, "rounds", vec![2.0])), &node);
}

/// A newcomer tells by what it receives that the experts are trained, and predicts with them.
#[test]
fn a_newcomer_predicts_with_the_experts_that_it_receives() {
    let spec = spec("fedjets", &[("common_rounds", "1")]);
    let shared = trained(&spec, 2).shared();
    let mut newcomer = learner(&spec);
    newcomer.adopt(shared, Vec::new()).unwrap();
    assert_eq!(newcomer.evaluate(Subset::Test).expert_share.len(), 3);
    let early = trained(&spec, 1).shared();
    newcomer.adopt(early, Vec::new()).unwrap();
    assert!(newcomer.evaluate(Subset::Test).expert_share.is_empty());
}

#[test]
fn nonsense_is_refused_and_changes_nothing() {
    let spec = spec("fedmix", &[]);
    let mut node = trained(&spec, 1);
    let before = node.state();
    for note in ["nonsense", "{\"algorithm\":[7]}", "{\"other\":1}"] {
        let mut state = learner(&spec).state();
        state.set_note(Some(note.into())).unwrap();
        assert!(
            matches!(node.restore(&state), Err(LearnError::Memory(_))),
            "{note}"
        );
        assert_eq!(node.state(), before);
    }
}
