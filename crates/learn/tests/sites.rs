//! Raw tables under masks: nodes add up once what the slope of all sites is made of, with and without a promise.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::federation::{chance, parts_of_total, total};
use fednode_core::spec::{Scaling, Sums, TableColumn, width_of};
use fednode_core::{Component, FederationSpec, HyperValue, ParamSet};
use fednode_data::{Pixels, Samples, Split};
use fednode_learn::{ComputeDevice, Learner, NoiseKey, Subset, algorithm};

const LAST: u32 = 2;
const NODES: usize = 4;

fn columns() -> Vec<TableColumn> {
    let column = |json: &str| serde_json::from_str(json).unwrap();
    vec![
        column(r#"{"name": "dose", "range": [-4.0, 4.0]}"#),
        column(r#"{"name": "age", "range": [-4.0, 4.0], "gaps": true}"#),
        column(r#"{"name": "kind", "kind": "category", "levels": ["a", "b"]}"#),
    ]
}

fn masked(epsilon: Option<f64>, columns: Vec<TableColumn>) -> FederationSpec {
    let mut spec = FederationSpec {
        algorithm: "fedmoe-da".into(),
        rounds: LAST,
        nodes: NODES as u32,
        ..FederationSpec::default()
    };
    let profile = HyperValue::Text("agreement".into());
    spec.hyper.insert("profile".into(), profile);
    spec.model.name = "linear".into();
    spec.fingerprints.input = [1, 1, width_of(&columns)];
    spec.fingerprints.classes = 2;
    spec.data.columns = columns;
    (spec.training.local_epochs, spec.training.learning_rate) = (10, 0.3);
    (spec.privacy.sums, spec.privacy.epsilon) = (Sums::Masked, epsilon);
    algorithm::fill_exchange(&mut spec).unwrap();
    spec.validate().unwrap();
    spec
}

/// Rows of two classes around `place` that differ a little in both numbers, in opposite senses.
fn rows(n: usize, place: f32, seed: u32) -> Samples {
    let value = |row: usize| {
        let side = if row.is_multiple_of(2) { 1.0 } else { -1.0 };
        let [first, second] = [1, 2].map(|of| chance(row as u32 + seed, of));
        let dose = place + 0.7 * side + 3.0 * first;
        let age = place - 0.7 * side + 3.0 * second;
        let age = if row.is_multiple_of(11) {
            f32::NAN
        } else {
            age
        };
        [dose, age, (row % 3) as f32]
    };
    let values = (0..n).flat_map(value).collect();
    let labels = (0..n).map(|row| (row % 2) as u16).collect();
    let names: Arc<[String]> = ["more", "less"].map(str::to_owned).into();
    Samples::new([1, 1, 3], Pixels::Floats(values), labels, names).unwrap()
}

/// Few rows, somewhere else than those of others.
fn split(index: usize) -> Split {
    let place = index as f32 - 1.5;
    let seed = 1000 * index as u32;
    Split {
        train: rows(40, place, seed),
        validation: rows(10, place, seed + 100),
        test: rows(300, place, seed + 200),
    }
}

fn learner(spec: &FederationSpec, index: usize, split: Split) -> Learner {
    let device = ComputeDevice::cpu(1).unwrap();
    let mut learner = Learner::new(spec, index as u64, Arc::new(split), &device).unwrap();
    learner.draw_noise_from(NoiseKey::of_secret(&[index as u8; 32]));
    learner
}

fn node(spec: &FederationSpec, index: usize) -> Learner {
    learner(spec, index, split(index))
}

/// Plays all rounds; returns the nodes, and the sum of what they publish in the last round with `change` made to the parts.
fn play(
    spec: &FederationSpec,
    change: impl Fn(usize, &ParamSet) -> ParamSet,
) -> (Vec<Learner>, ParamSet) {
    play_with(spec, |index| node(spec, index), change)
}

fn play_with(
    spec: &FederationSpec,
    node: impl Fn(usize) -> Learner,
    change: impl Fn(usize, &ParamSet) -> ParamSet,
) -> (Vec<Learner>, ParamSet) {
    let mut nodes: Vec<Learner> = (0..NODES).map(node).collect();
    let parts = parts_of_total(spec, &mut nodes);
    let parts = parts.iter().enumerate();
    let parts = parts.map(|(index, part)| change(index, part));
    let total = total(&parts.collect::<Vec<_>>());
    (nodes, total)
}

fn as_it_is(_: usize, part: &ParamSet) -> ParamSet {
    part.clone()
}

/// Where R stands among the numbers of two classes and six features: after counts and M, or M alone.
fn places_of_r(epsilon: Option<f64>) -> std::ops::Range<usize> {
    let first = if epsilon.is_none() { 2 + 3 } else { 3 };
    first..first + 12
}

/// Multiplies some of the numbers that a node adds up.
fn times(part: &ParamSet, places: &std::ops::Range<usize>, factor: f32) -> ParamSet {
    let mut changed = ParamSet::new();
    for (name, tensor) in part.iter() {
        let half = tensor.values().len() / 2;
        let factor = |at: usize| {
            let is_changed = name == "noised.numbers" && places.contains(&(at % half));
            if is_changed { factor } else { 1.0 }
        };
        let values = tensor.values().iter().enumerate();
        let values = values.map(|(at, value)| value * factor(at));
        changed
            .insert(name, tensor.shape(), values.collect())
            .unwrap();
    }
    changed
}

fn loss(node: &Learner) -> f64 {
    node.evaluate(Subset::Test).score.loss
}

fn components(node: &Learner) -> Vec<Component> {
    let composition = node.composition().unwrap();
    composition
        .shares
        .iter()
        .map(|share| share.component)
        .collect()
}

#[test]
fn sites_that_lie_apart_are_better_together() {
    for (epsilon, component) in [
        (None, Component::CommonStatistics),
        (Some(60.0), Component::NoisedStatistics),
    ] {
        let spec = masked(epsilon, columns());
        let (mut nodes, total) = play(&spec, as_it_is);
        let lacks = nodes[0].lacks().unwrap();
        assert!(lacks.contains("not added up"), "{lacks}");
        let mut gain = 0.0;
        for node in &mut nodes {
            let alone = loss(node);
            node.adopt(Some(&total), vec![]).unwrap();
            assert_eq!(node.lacks(), None, "{epsilon:?}");
            assert!(components(node).contains(&component));
            gain += (alone - loss(node)) / NODES as f64;
        }
        assert!(gain > 0.001, "{epsilon:?}: {gain}");
        // A state holds it, and who comes after the last round takes the sum over.
        let served = nodes[1].predict(&rows(50, -0.5, 7)).unwrap();
        let mut restored = node(&spec, 1);
        restored.restore(&nodes[1].state()).unwrap();
        assert!(restored.predict(&rows(50, -0.5, 7)).unwrap() == served);
        let mut newcomer = node(&spec, 2);
        newcomer.adopt(Some(&total), vec![]).unwrap();
        assert_eq!(newcomer.lacks(), None);
        let accuracy = newcomer.evaluate(Subset::Test).score.accuracy;
        assert!(accuracy > 0.6, "{epsilon:?}: {accuracy}");
    }
}

/// A liar turns the differences of its classes round, twenty times as large.
#[test]
fn a_sum_whose_classes_differ_otherwise_is_not_served() {
    for epsilon in [None, Some(60.0)] {
        let spec = masked(epsilon, columns());
        let (mut nodes, total) = play(&spec, |index, part| {
            times(
                part,
                &places_of_r(epsilon),
                if index == 3 { -20.0 } else { 1.0 },
            )
        });
        let alone = nodes[0].predict(&rows(50, -1.5, 7)).unwrap();
        nodes[0].adopt(Some(&total), vec![]).unwrap();
        let lacks = nodes[0].lacks().unwrap();
        assert!(lacks.contains("differ otherwise"), "{epsilon:?}: {lacks}");
        assert!(nodes[0].predict(&rows(50, -1.5, 7)).unwrap() == alone);
        assert!(components(&nodes[0]).contains(&Component::OwnStatistics));
    }
}

/// Who claims a thousand times as many rows as it has makes all others too sure, or nobody would see it.
#[test]
fn rows_that_nobody_has_are_not_believed() {
    let spec = masked(None, columns());
    let (mut nodes, total) = play(&spec, |index, part| {
        times(part, &(0..2), if index == 3 { 1000.0 } else { 1.0 })
    });
    nodes[0].adopt(Some(&total), vec![]).unwrap();
    let lacks = nodes[0].lacks().unwrap();
    assert!(lacks.contains("spread otherwise"), "{lacks}");
}

/// Each node has rows of one class: nothing can be compared, and nobody fails.
#[test]
fn one_class_at_each_node_is_said() {
    for epsilon in [None, Some(20.0)] {
        let spec = masked(epsilon, columns());
        let one_class = |index: usize| {
            let mut split = split(index);
            for samples in [&mut split.train, &mut split.validation, &mut split.test] {
                samples.labels.fill((index % 2) as u16);
            }
            learner(&spec, index, split)
        };
        let (mut nodes, total) = play_with(&spec, one_class, as_it_is);
        nodes[0].adopt(Some(&total), vec![]).unwrap();
        let lacks = nodes[0].lacks().unwrap();
        let expected = ["no node has rows of two classes", "noise is too large"];
        assert!(
            lacks.contains(expected[usize::from(epsilon.is_some())]),
            "{lacks}"
        );
    }
}

#[test]
fn a_sum_of_too_few_nodes_or_of_too_much_noise_is_not_served() {
    let lacks = |epsilon, change: fn(usize, &ParamSet) -> ParamSet| {
        let (mut nodes, total) = play(&masked(epsilon, columns()), change);
        let alone = nodes[0].predict(&rows(50, -1.5, 7)).unwrap();
        nodes[0].adopt(Some(&total), vec![]).unwrap();
        assert!(nodes[0].predict(&rows(50, -1.5, 7)).unwrap() == alone);
        nodes[0].lacks().unwrap()
    };
    let few = lacks(None, |index, part| {
        if index < 2 {
            part.clone()
        } else {
            let mut nothing = ParamSet::new();
            for (name, tensor) in part.iter() {
                let zeros = vec![0.0; tensor.values().len()];
                nothing.insert(name, tensor.shape(), zeros).unwrap();
            }
            nothing
        }
    });
    assert!(few.contains("how many nodes"), "{few}");
    let noisy = lacks(Some(0.05), as_it_is);
    assert!(noisy.contains("noise is too large"), "{noisy}");
}

/// Whoever knows all rows but one sees no more than the promise says, and a thousand canaries do not refute it.
#[test]
fn rows_are_hidden_as_promised() {
    let spec = masked(Some(1.0), columns());
    // Of many rows, so that chance moves the area by little.
    let many = |spec: &FederationSpec| {
        let train = rows(400, -1.5, 0);
        learner(spec, 0, Split { train, ..split(0) })
    };
    let mut node = many(&spec);
    assert_eq!(node.surely_exposed(), None);
    node.prepare_release();
    let [found] = &node.exposed_statistics()[..] else {
        panic!("one attack");
    };
    let [area, _] = found.most.unwrap();
    // At epsilon 1 (delta 1e-5) the strongest attack reaches 0.575.
    assert!((area - 0.575).abs() < 1e-3, "{area}");
    assert!(found.auc < area + 0.1, "{found:?}");
    let canaried = node.canaried(&spec.privacy).unwrap();
    assert_eq!(canaried.canaries, 1000);
    assert!(canaried.most > 4.0, "{canaried:?}");
    // One above what is promised is chance once in twenty times, and so far above it never.
    assert!(canaried.above < 1.5, "{canaried:?}");
    // Noise for 8 does not keep a promise of 1.
    let loose = masked(Some(8.0), columns());
    let canaried = self::node(&loose, 0).canaried(&spec.privacy).unwrap();
    assert!(canaried.above > 1.5, "{canaried:?}");
    let bare = masked(None, columns());
    let mut node = self::node(&bare, 0);
    node.prepare_release();
    let exposed = node.exposed_statistics();
    assert!(exposed[0].published.contains("its part of a total"));
    assert_eq!(exposed[0].most, None);
}

/// Columns that are taken as they are may be of any size: their features are put on a sphere, as before.
#[test]
fn plain_columns_are_added_up_on_the_sphere() {
    let mut plain = columns();
    plain[0].scaling = Scaling::Plain;
    let numbers = |columns| {
        let node = node(&masked(None, columns), 0);
        let shared = node.initial_shared().unwrap();
        shared.get("noised.numbers").unwrap().values().len()
    };
    // Six features: 2 counts, 3 of M, 12 of R, 21 of S, in two halves. On the sphere there is a number more of each row.
    assert_eq!(numbers(columns()), 2 * (2 + 3 + 12 + 21));
    assert_eq!(numbers(plain), 2 * (2 + 14 + 28));
}
