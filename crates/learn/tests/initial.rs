//! Starting from parameters that were trained elsewhere, and FedMoE-DA with a frozen embedding.
#![allow(clippy::unwrap_used)]

mod common;

use common::federation::{learner, rounds, spec, update, values};
use fednode_core::{HyperValue, ParamSet};

const EMBEDDING: [&str; 2] = ["fc1.weight", "fc1.bias"];

fn pretrained() -> ParamSet {
    let spec = spec("fedavg", &[]);
    let mut learners = [learner(&spec, 0), learner(&spec, 1)];
    rounds(&spec, &mut learners, 1..=2);
    learners[0].state()
}

#[test]
fn arrays_of_the_same_name_are_taken_over_and_others_drawn() {
    let pretrained = pretrained();
    let mut node = learner(&spec("fedmoe-da", &[]), 0);
    let (drawn, lineage) = (node.state(), node.initial_shared());
    assert_eq!(
        node.start_from(&pretrained).unwrap(),
        2,
        "weight and bias of the embedding"
    );
    assert_eq!(
        values(&node.state(), &EMBEDDING),
        values(&pretrained, &EMBEDDING)
    );
    let experts = ["experts.0.fc2.weight", "experts.3.fc.bias", "gate.weight"];
    assert_eq!(values(&node.state(), &experts), values(&drawn, &experts));
    assert_ne!(
        node.initial_shared(),
        lineage,
        "it is the lineage of the first round"
    );
    assert_eq!(node.initial_shared(), node.shared());

    let mut whole = learner(&spec("fedavg", &[]), 0);
    whole.start_from(&pretrained).unwrap();
    assert_eq!(whole.state(), pretrained);
}

#[test]
fn copies_start_from_the_given_parameters() {
    let pretrained = pretrained();
    let pairs = [
        ("moon", ["previous.fc1.weight", "fc1.weight"]),
        ("fedrod", ["personal.weight", "fc.weight"]),
        ("fedcp", ["personal.weight", "fc.weight"]),
        ("fed-syn-moe", ["personal.weight", "fc.weight"]),
    ];
    for (algorithm, [copy, original]) in pairs {
        let mut node = learner(&spec(algorithm, &[]), 0);
        node.start_from(&pretrained).unwrap();
        assert_eq!(
            values(&node.state(), &[copy]),
            values(&pretrained, &[original]),
            "{algorithm}"
        );
    }
}

#[test]
fn a_frozen_embedding_is_neither_trained_nor_averaged() {
    let pretrained = pretrained();
    let embedding = |frozen: bool| {
        let word = HyperValue::Text(if frozen { "frozen" } else { "averaged" }.into());
        let spec = spec("fedmoe-da", &[("embedding", word)]);
        assert_eq!(spec.exchange.averaging.is_none(), frozen);
        let mut node = learner(&spec, 0);
        node.start_from(&pretrained).unwrap();
        let before = values(
            &node.state(),
            &["experts.0.fc.weight", "experts.1.fc.weight"],
        );
        let update = update(&mut node, 1);
        assert_eq!(update.shared.is_none(), frozen);
        assert_ne!(
            values(
                &node.state(),
                &["experts.0.fc.weight", "experts.1.fc.weight"]
            ),
            before,
            "experts learn"
        );
        values(&node.state(), &EMBEDDING)
    };
    assert_eq!(embedding(true), values(&pretrained, &EMBEDDING));
    assert_ne!(embedding(false), values(&pretrained, &EMBEDDING));
}

#[test]
fn parameters_of_another_model_are_refused() {
    let mut node = learner(&spec("fedavg", &[]), 0);
    let before = node.state();
    let mut other = ParamSet::new();
    other.insert("conv1.weight", &[1], vec![0.0]).unwrap();
    other.insert("fc1.bias", &[1], vec![0.0]).unwrap();
    let error = node.start_from(&other).unwrap_err().to_string();
    assert!(error.contains("belong to another model"), "{error}");
    let mut broken = before.clone();
    broken
        .iter_mut()
        .for_each(|(_, tensor)| tensor.values_mut()[0] = f32::NAN);
    assert!(node.start_from(&broken).is_err());
    assert_eq!(node.state(), before);
}
