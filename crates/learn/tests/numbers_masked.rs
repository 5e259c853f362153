//! A number of raw tables under masks: nodes add up their rows once, with and without a promise.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::federation::{chance, parts_of_total, total};
use fednode_core::spec::{Scaling, Sums, TableColumn, Target, width_of};
use fednode_core::{Component, FederationSpec, HyperValue, ParamSet};
use fednode_data::{Pixels, Samples, Split};
use fednode_learn::{ComputeDevice, Learner, NoiseKey, Subset, algorithm};

const LAST: u32 = 2;
const NODES: usize = 4;

/// What nodes know of two numbers and a truth value.
fn columns() -> Vec<TableColumn> {
    let column = |json: &str| serde_json::from_str(json).unwrap();
    vec![
        column(r#"{"name": "dose", "range": [-2.0, 2.0]}"#),
        column(r#"{"name": "age", "range": [-2.0, 2.0]}"#),
        column(r#"{"name": "smokes", "kind": "boolean"}"#),
    ]
}

fn described(epsilon: Option<f64>, columns: Vec<TableColumn>) -> FederationSpec {
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
    spec.fingerprints.classes = 1;
    spec.data.target = Some(Target {
        name: "stay".into(),
        range: [0.0, 20.0],
    });
    spec.data.columns = columns;
    (spec.training.local_epochs, spec.training.learning_rate) = (5, 0.1);
    (spec.privacy.sums, spec.privacy.epsilon) = (Sums::Masked, epsilon);
    spec
}

fn masked(epsilon: Option<f64>) -> FederationSpec {
    let mut spec = described(epsilon, columns());
    algorithm::fill_exchange(&mut spec).unwrap();
    spec.validate().unwrap();
    spec
}

/// Rows at a site with an offset of its own. Stays follow the two numbers, `sense` times.
fn rows(n: usize, offset: f32, seed: u32, sense: f32) -> Samples {
    let numbers = |row: usize| {
        let [dose, age, smokes, rest] = [1, 2, 3, 4].map(|of| chance(row as u32 + seed, of));
        let smokes = f32::from(u8::from(smokes > 0.0));
        let stay = 10.0 + offset + sense * (2.5 * dose - 2.0 * age + smokes) + 4.0 * rest;
        ([2.0 * dose, 2.0 * age, smokes], stay)
    };
    let values = (0..n).flat_map(|row| numbers(row).0).collect();
    let stays = (0..n).map(|row| numbers(row).1).collect();
    Samples::of_numbers([1, 1, 3], Pixels::Floats(values), stays, "stay").unwrap()
}

fn split(index: usize, sense: f32) -> Split {
    let (offset, seed) = (index as f32 - 1.5, 1000 * index as u32);
    Split {
        train: rows(25, offset, seed, sense),
        validation: rows(10, offset, seed + 100, sense),
        test: rows(300, offset, seed + 200, sense),
    }
}

fn learner(spec: &FederationSpec, index: usize, sense: f32) -> Learner {
    let device = ComputeDevice::cpu(1).unwrap();
    let split = Arc::new(split(index, sense));
    let mut learner = Learner::new(spec, index as u64, split, &device).unwrap();
    learner.draw_noise_from(NoiseKey::of_secret(&[index as u8; 32]));
    learner
}

/// Plays all rounds; returns the nodes, and the sum of what they publish in the last round. At the last node stays follow `sense` times.
fn play(spec: &FederationSpec, sense: f32) -> (Vec<Learner>, ParamSet) {
    let of = |index| learner(spec, index, if index == NODES - 1 { sense } else { 1.0 });
    let mut nodes: Vec<Learner> = (0..NODES).map(of).collect();
    let parts = parts_of_total(spec, &mut nodes);
    (nodes, total(&parts))
}

fn loss(node: &Learner) -> f64 {
    node.evaluate(Subset::Test).score.loss
}

fn serves(node: &Learner, component: Component) -> bool {
    let composition = node.composition().unwrap();
    let mut shares = composition.shares.iter();
    shares.any(|share| share.component == component)
}

#[test]
fn sites_with_offsets_of_their_own_are_better_together() {
    for (epsilon, component) in [
        (None, Component::CommonStatistics),
        (Some(100.0), Component::NoisedStatistics),
    ] {
        let spec = masked(epsilon);
        let (mut nodes, total) = play(&spec, 1.0);
        assert!(nodes[0].lacks().unwrap().contains("not added up"));
        let mut gain = 0.0;
        for node in &mut nodes {
            let alone = loss(node);
            node.adopt(Some(&total), vec![]).unwrap();
            assert_eq!(node.lacks(), None, "{epsilon:?}");
            assert!(serves(node, component), "{epsilon:?}");
            gain += (alone - loss(node)) / alone / NODES as f64;
        }
        assert!(gain > 0.03, "{epsilon:?}: {gain}");
        // A state holds it, and who comes after the last round takes the sum over.
        let asked = rows(20, 0.0, 7, 1.0);
        let served = nodes[1].predict(&asked).unwrap();
        let mut restored = learner(&spec, 1, 1.0);
        restored.restore(&nodes[1].state()).unwrap();
        assert!(restored.predict(&asked).unwrap() == served);
        let mut newcomer = learner(&spec, 2, 1.0);
        newcomer.adopt(Some(&total), vec![]).unwrap();
        assert_eq!(newcomer.lacks(), None);
        assert!(serves(&newcomer, component));
    }
}

/// At one site stays go the other way: it is better off with what it does alone, and the others lose little.
#[test]
fn a_site_whose_number_goes_the_other_way_serves_its_own_line() {
    for epsilon in [None, Some(100.0)] {
        let spec = masked(epsilon);
        let (mut nodes, total) = play(&spec, -1.0);
        for (index, node) in nodes.iter_mut().enumerate() {
            let alone = loss(node);
            node.adopt(Some(&total), vec![]).unwrap();
            assert!(loss(node) < 1.1 * alone, "{epsilon:?}, node {index}");
        }
        // Noise hides which way the others go, too.
        if epsilon.is_none() {
            let lacks = nodes[NODES - 1].lacks().unwrap();
            assert!(lacks.contains("the other way"), "{lacks}");
        }
    }
}

#[test]
fn noise_hides_a_row_as_well_as_is_promised() {
    let spec = masked(Some(1.0));
    let mut node = learner(&spec, 0, 1.0);
    assert_eq!(node.surely_exposed(), None);
    assert_eq!(node.published_width(), None);
    node.prepare_release();
    let [found] = &node.exposed_statistics()[..] else {
        panic!("one attack");
    };
    let [area, _] = found.most.unwrap();
    // At epsilon 1 (delta 1e-5) the strongest attack reaches 0.575.
    assert!((area - 0.575).abs() < 1e-3, "{area}");
    let canaried = node.canaried(&spec.privacy).unwrap();
    assert!(canaried.most > 4.0, "{canaried:?}");
    // One above what is promised is chance once in twenty times, and so far above it never.
    assert!(canaried.above < 1.5, "{canaried:?}");
    // Noise for 8 does not keep a promise of 1.
    let canaried = learner(&masked(Some(8.0)), 0, 1.0).canaried(&spec.privacy);
    assert!(canaried.unwrap().above > 1.5);
    let mut node = learner(&masked(None), 0, 1.0);
    node.prepare_release();
    let exposed = node.exposed_statistics();
    assert!(exposed[0].published.contains("its part of a total"));
    assert_eq!(exposed[0].most, None);
}

#[test]
fn what_cannot_be_hidden_is_refused_with_what_to_change() {
    let refused = |change: &dyn Fn(&mut FederationSpec)| {
        let mut spec = described(Some(4.0), columns());
        change(&mut spec);
        algorithm::fill_exchange(&mut spec).unwrap_err().0
    };
    let open = refused(&|spec| spec.privacy.sums = Sums::Open);
    assert!(open.contains("masked+dp:4"), "{open}");
    let grouped = refused(&|spec| spec.privacy.group = Some(4));
    assert!(grouped.contains("`privacy.group`"), "{grouped}");
    let plain = refused(&|spec| spec.data.columns[0].scaling = Scaling::Plain);
    assert!(plain.contains("plain"), "{plain}");
    let unknown = refused(&|spec| spec.data.columns.clear());
    assert!(unknown.contains("raw tables"), "{unknown}");
    let averaged = refused(&|spec| {
        spec.algorithm = "fedavg".into();
        spec.hyper.clear();
    });
    assert!(averaged.contains("by default"), "{averaged}");
}
