//! Raw tables: nodes agree on means and deviations in the first round, and then make the same features of the same rows.
#![allow(clippy::unwrap_used)]

use std::ops::ControlFlow;
use std::sync::Arc;

use fednode_core::spec::{TableColumn, width_of};
use fednode_core::work::Update;
use fednode_core::{FederationSpec, ParamSet, Round, Schedule};
use fednode_data::{Pixels, Samples, Split};
use fednode_learn::{ComputeDevice, Learner, algorithm};
use fednode_mix::{Part, average};

fn columns() -> Vec<TableColumn> {
    let column = |json: &str| serde_json::from_str(json).unwrap();
    vec![
        column(r#"{"name": "age", "range": [0.0, 100.0], "gaps": true}"#),
        column(r#"{"name": "kind", "kind": "category", "levels": ["a", "b"]}"#),
    ]
}

fn spec(algorithm: &str) -> FederationSpec {
    let mut spec = FederationSpec {
        algorithm: algorithm.into(),
        rounds: 3,
        nodes: 2,
        ..FederationSpec::default()
    };
    spec.model.name = "linear".into();
    spec.data.columns = columns();
    spec.fingerprints.input = [1, 1, width_of(&spec.data.columns)];
    spec.fingerprints.classes = 2;
    algorithm::fill_exchange(&mut spec).unwrap();
    spec.validate().unwrap();
    spec
}

/// Rows of two classes around an age; every seventh age is missing.
fn rows(n: usize, age: f32) -> Samples {
    let value = |row: usize| {
        let around = age + (row % 10) as f32 + if row.is_multiple_of(2) { 6.0 } else { 0.0 };
        let age = if row.is_multiple_of(7) {
            f32::NAN
        } else {
            around
        };
        [age, (row % 3) as f32]
    };
    let values = (0..n).flat_map(value).collect();
    let labels = (0..n).map(|row| (row % 2) as u16).collect();
    let names: Arc<[String]> = ["no", "yes"].map(str::to_owned).into();
    Samples::new([1, 1, 2], Pixels::Floats(values), labels, names).unwrap()
}

fn learner(spec: &FederationSpec, n: usize, age: f32) -> Learner {
    let split = Split {
        train: rows(n, age),
        validation: rows(4, age),
        test: rows(6, age),
    };
    let device = ComputeDevice::cpu(1).unwrap();
    Learner::new(spec, 0, Arc::new(split), &device).unwrap()
}

fn update(learner: &mut Learner, round: u32) -> Update {
    learner
        .local_update(Round(round), &mut |_| ControlFlow::Continue(()))
        .unwrap()
}

fn mean(spec: &FederationSpec, round: u32, updates: &[&Update]) -> ParamSet {
    let weighting = Schedule::of(spec).weighting(Round(round), &spec.exchange);
    let parts = updates.iter().map(|update| Part {
        weight: match weighting {
            fednode_core::Weighting::Samples => f64::from(update.n_samples),
            fednode_core::Weighting::Uniform => 1.0,
        },
        params: Arc::clone(update.shared.as_ref().unwrap()),
    });
    let rule = &spec.exchange.averaging.as_ref().unwrap().rule;
    average(rule, &parts.collect::<Vec<_>>()).unwrap()
}

fn predictions(learner: &Learner) -> Vec<f32> {
    let predictions = learner.predict(&rows(20, 33.0)).unwrap();
    predictions
        .into_iter()
        .flat_map(|prediction| prediction.probabilities)
        .collect()
}

#[test]
fn nodes_make_the_same_features_once_they_agreed() {
    let spec = spec("fedavg");
    let (mut young, mut old) = (learner(&spec, 30, 20.0), learner(&spec, 90, 60.0));
    assert_eq!(young.shared(), old.shared(), "all nodes start alike");
    assert_ne!(
        predictions(&young),
        predictions(&old),
        "each by its own mean"
    );
    let updates = [update(&mut young, 1), update(&mut old, 1)];
    assert!(
        updates.iter().all(|update| update.steps == 0),
        "nothing is trained in the first round"
    );
    let mean = mean(&spec, 1, &[&updates[0], &updates[1]]);
    for node in [&mut young, &mut old] {
        node.adopt(Some(&mean), Vec::new()).unwrap();
    }
    assert_eq!(
        predictions(&young),
        predictions(&old),
        "both by the mean of all"
    );
    // What was agreed on is published again, and a latecomer gets it with the mean.
    let trained = update(&mut young, 2);
    assert!(trained.steps > 0);
    let moments = |params: &ParamSet| params.get("preparation.moments").unwrap().values().to_vec();
    assert_eq!(moments(trained.shared.as_deref().unwrap()), moments(&mean));
    let mut late = learner(&spec, 40, 90.0);
    late.adopt(trained.shared.as_deref(), Vec::new()).unwrap();
    assert_eq!(predictions(&late), predictions(&young));
}

#[test]
fn what_was_agreed_on_is_never_changed() {
    let spec = spec("fedavg");
    let (mut one, mut other) = (learner(&spec, 30, 20.0), learner(&spec, 90, 60.0));
    let updates = [update(&mut one, 1), update(&mut other, 1)];
    let agreed = mean(&spec, 1, &[&updates[0], &updates[1]]);
    one.adopt(Some(&agreed), Vec::new()).unwrap();
    let before = predictions(&one);
    // A member says later that everybody is a hundred years old.
    let mut lie = ParamSet::new();
    for (name, tensor) in agreed.iter() {
        let shift = if name == "preparation.moments" {
            0.3
        } else {
            0.0
        };
        let values = tensor.values().iter().map(|value| value + shift).collect();
        lie.insert(name, tensor.shape(), values).unwrap();
    }
    one.adopt(Some(&lie), Vec::new()).unwrap();
    assert_eq!(predictions(&one), before);
}

#[test]
fn a_state_has_what_features_are_made_with() {
    for algorithm in ["fedavg", "local"] {
        let spec = spec(algorithm);
        let mut node = learner(&spec, 30, 20.0);
        update(&mut node, 1);
        update(&mut node, 2);
        let mut copy = learner(&spec, 50, 70.0);
        copy.restore(&node.state()).unwrap();
        assert_eq!(predictions(&copy), predictions(&node), "{algorithm}");
    }
}

#[test]
fn who_exchanges_nothing_trains_in_the_first_round() {
    let mut alone = learner(&spec("local"), 30, 20.0);
    assert!(update(&mut alone, 1).steps > 0);
}

#[test]
fn an_algorithm_whose_first_round_is_its_own_is_refused() {
    let mut spec = spec("fedavg");
    let named = algorithm::TABLE
        .iter()
        .find(|row| row.name.contains("dbe"))
        .map(|row| row.name);
    named.unwrap().clone_into(&mut spec.algorithm);
    let error = algorithm::fill_exchange(&mut spec).unwrap_err().to_string();
    assert!(
        error.contains("raw tables") && error.contains("first round"),
        "{error}"
    );
}
