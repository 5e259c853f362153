//! A number instead of classes: what nodes learn of each other's rows, what they serve, and what they keep.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::federation as fed;
use fednode_core::spec::Target;
use fednode_core::work::{Order, Splits, Worker};
use fednode_core::{FederationSpec, HyperValue};
use fednode_data::{Pixels, Samples, Split};
use fednode_learn::{ComputeDevice, LearnError, Learner, Subset, algorithm};
use fednode_mix::ridge::{Joint, Problem};

/// Doses of 10 to 90.
fn spec(algorithm: &str, model: &str) -> FederationSpec {
    let mut spec = FederationSpec {
        algorithm: algorithm.into(),
        rounds: 3,
        nodes: 3,
        ..FederationSpec::default()
    };
    if algorithm == "fedmoe-da" {
        let profile = HyperValue::Text("agreement".into());
        spec.hyper.insert("profile".into(), profile);
    }
    spec.model.name = model.into();
    (spec.fingerprints.input, spec.fingerprints.classes) = ([1, 1, 3], 1);
    spec.data.target = Some(Target {
        name: "dose".into(),
        range: [10.0, 90.0],
    });
    (spec.training.local_epochs, spec.training.batch_size) = (20, 10);
    spec.training.learning_rate = 0.1;
    algorithm::fill_exchange(&mut spec).unwrap();
    spec.validate().unwrap();
    spec
}

/// Rows whose dose is a line of three numbers, with an error of a few units; `turned` is what the line is multiplied by.
fn rows(from: usize, n: usize, turned: f32) -> Samples {
    let numbers = |row: usize| {
        let at = row as f32;
        [(at * 1.7).sin(), (at * 0.9 + 1.0).cos(), (at * 2.3).sin()]
    };
    let dose = |row: usize| {
        let [a, b, c] = numbers(row);
        50.0 + turned * (15.0 * a - 10.0 * b + 4.0 * c) + 6.0 * (row as f32 * 5.1).sin()
    };
    let values = (from..from + n).flat_map(numbers).collect();
    let doses = (from..from + n).map(dose).collect();
    Samples::of_numbers([1, 1, 3], Pixels::Floats(values), doses, "dose").unwrap()
}

fn split(from: usize, n: usize, turned: f32) -> Arc<Split> {
    Arc::new(Split {
        train: rows(from, n, turned),
        validation: rows(from + 1000, 12, turned),
        test: rows(from + 2000, 60, turned),
    })
}

fn learner(spec: &FederationSpec, node: u64, split: &Arc<Split>) -> Learner {
    let device = ComputeDevice::cpu(1).unwrap();
    Learner::new(spec, node, Arc::clone(split), &device).unwrap()
}

fn doses(learner: &Learner) -> Vec<f32> {
    let predictions = learner.predict(&rows(5000, 20, 1.0)).unwrap();
    predictions
        .into_iter()
        .map(|one| one.number.unwrap())
        .collect()
}

/// Three nodes after a round; the last one's line goes the other way.
fn three(spec: &FederationSpec) -> (Vec<Learner>, [Arc<Split>; 3]) {
    let splits = [split(0, 12, 1.0), split(100, 60, 1.0), split(200, 40, -1.0)];
    let pairs = (0..).zip(&splits);
    let mut nodes: Vec<Learner> = pairs
        .map(|(node, split)| learner(spec, node, split))
        .collect();
    fed::rounds(spec, &mut nodes, 1..=1);
    (nodes, splits)
}

#[test]
fn a_node_serves_the_line_of_its_rows_and_those_of_peers_that_agree() {
    let spec = spec("fedmoe-da", "linear");
    let target = spec.data.target.clone().unwrap();
    let (nodes, splits) = three(&spec);
    let places = |samples: &Samples| -> Vec<f32> {
        let numbers = samples.targets.iter().flatten();
        numbers.map(|number| target.place(*number)).collect()
    };
    let features = |samples: &Samples| {
        let mut values = Vec::new();
        samples.write_batch(&(0..samples.len() as u32).collect::<Vec<_>>(), &mut values);
        values
    };
    let [own, peer, _] = splits
        .each_ref()
        .map(|split| (features(&split.train), places(&split.train)));
    let peer = Joint::of(&peer.0, &peer.1);
    let problem = Problem::new(&own.0, &own.1, &[(60.0, &peer)]).unwrap();
    let found = problem.with_peers().unwrap();
    assert_eq!(found.setting.trust, 1.0);
    let asked = features(&rows(5000, 20, 1.0));
    let expected = asked
        .chunks(3)
        .map(|row| target.number(found.line.at(row) as f32));
    for (got, expected) in doses(&nodes[0]).into_iter().zip(expected) {
        assert!((got - expected).abs() < 0.01, "{got} beside {expected}");
    }
    let alone = learner(&spec, 0, &splits[0]);
    let [with_peers, before] = [&nodes[0], &alone].map(|node| node.evaluate(Subset::Test).score);
    assert!(with_peers.accuracy > 0.7, "{with_peers:?}");
    assert!(before.accuracy < with_peers.accuracy, "{before:?}");
}

#[test]
fn r2_and_loss_are_those_of_what_is_predicted() {
    let (nodes, splits) = three(&spec("fedmoe-da", "linear"));
    let score = nodes[1].evaluate(Subset::Test).score;
    let truth = splits[1].test.targets.clone().unwrap();
    let predictions = nodes[1].predict(&splits[1].test).unwrap();
    let squares = predictions.iter().zip(&truth);
    let squares = squares.map(|(one, truth)| f64::from(one.number.unwrap() - truth).powi(2));
    let squares: f64 = squares.sum();
    let mean = truth.iter().copied().map(f64::from).sum::<f64>() / 60.0;
    let variation: f64 = truth
        .iter()
        .map(|dose| (f64::from(*dose) - mean).powi(2))
        .sum();
    assert!(
        (score.accuracy - (1.0 - squares / variation)).abs() < 1e-4,
        "{score:?}"
    );
    // Half of the range is 40.
    assert!(
        (score.loss - 0.5 * squares / 60.0 / 1600.0).abs() < 1e-6,
        "{score:?}"
    );
}

#[test]
fn a_node_goes_on_from_its_state_and_becomes_another() {
    let spec = spec("fedmoe-da", "mlp");
    let (mut nodes, splits) = three(&spec);
    let mut again = learner(&spec, 1, &splits[1]);
    again.restore(&nodes[1].state()).unwrap();
    assert_eq!(doses(&again), doses(&nodes[1]));
    let other = &nodes[0];
    let (private, experts) = (other.private_state(), other.experts());
    let experts: Vec<_> = experts.into_iter().map(Arc::new).collect();
    let expected = doses(other);
    again
        .become_node(0, Arc::clone(&splits[0]), &private, None, &experts)
        .unwrap();
    assert_eq!(doses(&again), expected);
    let updates = [&mut again, &mut nodes[0]].map(|node| fed::update(node, 2));
    assert_eq!(updates[0].train_loss, updates[1].train_loss);
}

#[test]
fn a_model_of_a_number_is_trained_by_its_distance() {
    for (algorithm, model) in [("fedavg", "linear"), ("fedper", "mlp"), ("ditto", "mlp")] {
        let spec = spec(algorithm, model);
        let splits = [split(0, 60, 1.0), split(100, 60, 1.0)];
        let pairs = (0..).zip(&splits);
        let mut nodes: Vec<Learner> = pairs
            .map(|(node, split)| learner(&spec, node, split))
            .collect();
        fed::rounds(&spec, &mut nodes, 1..=3);
        let score = nodes[0].evaluate(Subset::Test).score;
        assert!(score.accuracy > 0.7, "{algorithm}: {score:?}");
    }
}

#[test]
fn classes_and_numbers_are_told_apart() {
    let device = ComputeDevice::cpu(1).unwrap();
    let spec = spec("fedavg", "linear");
    let names: Arc<[String]> = ["dose".to_owned()].into();
    let classes = |n: usize| {
        let pixels = Pixels::Floats(vec![0.5; 3 * n]);
        Samples::new([1, 1, 3], pixels, vec![0; n], Arc::clone(&names)).unwrap()
    };
    let of_classes = Split {
        train: classes(10),
        validation: classes(2),
        test: classes(2),
    };
    let refused = Learner::new(&spec, 0, Arc::new(of_classes), &device).unwrap_err();
    assert!(matches!(refused, LearnError::NoNumbers(_)), "{refused}");
    assert!(
        refused.to_string().contains("csv:FILE,target=dose"),
        "{refused}"
    );
    let mut of_classes = FederationSpec {
        algorithm: "fedavg".into(),
        ..FederationSpec::default()
    };
    of_classes.model.name = "linear".into();
    (
        of_classes.fingerprints.input,
        of_classes.fingerprints.classes,
    ) = ([1, 1, 3], 2);
    algorithm::fill_exchange(&mut of_classes).unwrap();
    let refused = Learner::new(&of_classes, 0, split(0, 10, 1.0), &device).unwrap_err();
    assert!(
        refused.to_string().contains("csv:FILE,label=COLUMN"),
        "{refused}"
    );
}

/// The validation rows are those of the own line exactly, so peers' sums can only make it worse. Without a measure they count as much
/// as the training rows say. With `metric` the validation samples have the last word.
#[test]
fn peers_that_make_the_named_measure_worse_are_left_out() {
    let mut spec = spec("fedmoe-da", "linear");
    let mut alone = learner(&spec, 0, &split(0, 12, 1.0));
    fed::update(&mut alone, 1);
    let asked = rows(1000, 30, 1.0);
    let mut values = Vec::new();
    asked.write_batch(&(0..30).collect::<Vec<u32>>(), &mut values);
    let predictions = alone.predict(&asked).unwrap();
    let line = predictions.iter().map(|one| one.number.unwrap()).collect();
    let validation = Samples::of_numbers([1, 1, 3], Pixels::Floats(values), line, "dose").unwrap();
    let own = Arc::new(Split {
        validation,
        ..(*split(0, 12, 1.0)).clone()
    });
    let after_a_round = |spec: &FederationSpec| {
        let mut nodes = vec![
            learner(spec, 0, &own),
            learner(spec, 1, &split(100, 60, 1.0)),
        ];
        fed::rounds(spec, &mut nodes, 1..=1);
        nodes.swap_remove(0)
    };
    let close = |one: &[f32], two: &[f32]| one.iter().zip(two).all(|(a, b)| (a - b).abs() < 1e-3);
    assert!(!close(&doses(&after_a_round(&spec)), &doses(&alone)));
    spec.metric = Some("mae".into());
    let guarded = after_a_round(&spec);
    assert!(close(&doses(&guarded), &doses(&alone)));
    assert!(
        guarded
            .lacks()
            .unwrap()
            .contains("federation's measure worse")
    );
    let mut restored = learner(&spec, 0, &own);
    restored.restore(&guarded.state()).unwrap();
    assert_eq!(doses(&restored), doses(&guarded));
}

/// Rounds report the measure that the spec names, in the unit of the data, as `evaluate` does.
#[test]
fn rounds_are_judged_in_the_unit_of_the_data() {
    let mut spec = spec("fedavg", "linear");
    let stays = &mut |_| std::ops::ControlFlow::Continue(());
    let mut judged = |metric: Option<&str>| {
        spec.metric = metric.map(str::to_owned);
        let mut node = learner(&spec, 0, &split(0, 60, 1.0));
        fed::update(&mut node, 1);
        let order = Order::Evaluate(Splits::Test);
        let evaluations = node
            .perform(order, stays)
            .unwrap()
            .into_evaluations()
            .unwrap();
        let test = split(0, 60, 1.0).test.clone();
        let predicted = node.predict(&test).unwrap();
        let errors = predicted.iter().zip(test.targets.as_ref().unwrap());
        let errors = errors.map(|(one, truth)| f64::from((one.number.unwrap() - truth).abs()));
        (evaluations, errors.sum::<f64>() / test.len() as f64)
    };
    let (evaluations, mae) = judged(Some("mae"));
    let said = evaluations.judged.unwrap();
    assert_eq!(said.measure, "mae");
    assert!(
        mae > 0.0 && (said.value.unwrap() / mae - 1.0).abs() < 1e-4,
        "{said:?} {mae}"
    );
    let (evaluations, _) = judged(Some("r2"));
    let (r2, said) = (
        evaluations.test.unwrap().accuracy,
        evaluations.judged.unwrap(),
    );
    assert!((said.value.unwrap() - r2).abs() < 1e-4, "{said:?} {r2}");
    assert_eq!(judged(None).0.judged, None);
}
