//! FedMoE-DA, profile `agreement`: statistics of the peers that agree, multiplied with the node's own model.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::federation::{self as fed, data, learner, mix, update};
use fednode_core::{FederationSpec, HyperValue, ParamSet, Precision, Slot};
use fednode_learn::{ComputeDevice, Learner, Subset, algorithm};

fn spec(hyper: &[(&str, &str)]) -> FederationSpec {
    let text = |text: &str| HyperValue::Text(text.into());
    let mut all = vec![("profile", text("agreement"))];
    all.extend(hyper.iter().map(|(name, value)| (*name, text(value))));
    let mut spec = fed::spec("fedmoe-da", &all);
    spec.rounds = 4;
    spec
}

fn numbers<'a>(params: &'a ParamSet, name: &str) -> &'a [f32] {
    params.get(name).unwrap().values()
}

/// Two nodes of equal names and equal proxies weigh by their samples. The mix is exactly what one node with all samples
/// would have counted, divided by them.
#[test]
fn the_mix_of_two_that_agree_is_that_of_all_their_samples() {
    let spec = spec(&[]);
    let mut nodes = [0, 1].map(|index| learner(&spec, index));
    let updates = nodes.each_mut().map(|node| update(node, 1));
    let mixed = mix(&spec, &updates, 0);
    assert_eq!(mixed.len(), 1);
    let counts = |index: usize| -> Vec<f64> {
        let mut counts = vec![0.0; fed::CLASSES];
        let labels = &data(index).train.labels;
        labels
            .iter()
            .for_each(|label| counts[usize::from(*label)] += 1.0);
        counts
    };
    let (own, other) = (counts(0), counts(1));
    // How far they agree is the plan's affair; from one class that node 0 has, the weight of node 1 follows.
    let [n_own, n_other] = [&own, &other].map(|counts| counts.iter().sum::<f64>());
    let got = numbers(&mixed[0].1, "agreement.counts");
    let share = |class: usize, weight: f64| {
        (own[class] + weight * other[class]) / (n_own + weight * n_other)
    };
    // By hand on these divisions: seven of the seven classes of which both have five samples are nearest to themselves.
    for (class, got) in got.iter().enumerate() {
        let expected = share(class, 1.0);
        assert!(
            (f64::from(*got) - expected).abs() < 1e-6,
            "{class}: {got} is not {expected}"
        );
    }
}

#[test]
fn what_is_mixed_is_served_and_not_published() {
    let spec = spec(&[]);
    let mut nodes = [0, 1].map(|index| learner(&spec, index));
    let updates = nodes.each_mut().map(|node| update(node, 1));
    let before = nodes[0].evaluate(Subset::Test);
    let published = nodes[0].experts();
    let mixed = mix(&spec, &updates, 0);
    nodes[0].adopt(None, mixed.clone()).unwrap();
    assert_eq!(nodes[0].experts(), published);
    assert_eq!(nodes[0].proxies(), updates[0].proxies);
    let after = nodes[0].evaluate(Subset::Test);
    assert_ne!(after, before);
    // A node that does the same again, or comes back from a checkpoint, predicts the same.
    let (state, predicted) = (nodes[0].state(), nodes[0].evaluate(Subset::Test));
    nodes[0].adopt(None, mixed).unwrap();
    assert_eq!(nodes[0].evaluate(Subset::Test), predicted);
    let mut restored = learner(&spec, 0);
    restored.restore(&state).unwrap();
    assert_eq!(restored.evaluate(Subset::Test), predicted);
    assert_eq!(restored.state(), state);
    let second = update(&mut restored, 2);
    assert_eq!(
        *second.experts[0].0, published[0],
        "statistics stay as they are"
    );
}

/// The statistics of nobody's samples have no classifier: the node goes on with its own.
#[test]
fn statistics_without_a_classifier_change_nothing() {
    let spec = spec(&[]);
    let mut node = learner(&spec, 0);
    let own = update(&mut node, 1);
    let before = node.evaluate(Subset::Test);
    let mut empty = ParamSet::new();
    for (name, tensor) in own.experts[0].0.iter() {
        let zeros = vec![0.0; tensor.values().len()];
        empty.insert(name, tensor.shape(), zeros).unwrap();
    }
    node.adopt(None, vec![(Slot(0), empty)]).unwrap();
    assert_eq!(node.evaluate(Subset::Test), before);
    let error = node
        .adopt(None, vec![(Slot(1), ParamSet::new())])
        .unwrap_err();
    assert!(error.to_string().contains("expert 1"), "{error}");
    assert!(node.adopt(None, vec![(Slot(0), ParamSet::new())]).is_err());
}

/// Any base trains the own model: one that averages shares what it shares, beside the statistics.
#[test]
fn a_base_algorithm_goes_on_beside_it() {
    let spec = spec(&[("base", "fedper")]);
    let alone = fed::spec("fedper", &[]);
    assert_eq!(spec.exchange.averaging, alone.exchange.averaging);
    let (mut with, mut without) = (learner(&spec, 0), learner(&alone, 0));
    let [with, without] = [&mut with, &mut without].map(|node| update(node, 1));
    assert_eq!(with.shared, without.shared);
    assert_eq!(
        (with.train_loss, with.steps),
        (without.train_loss, without.steps)
    );
    assert_eq!((with.experts.len(), without.experts.len()), (1, 0));
}

#[test]
fn what_does_not_go_together_is_refused_in_one_line() {
    let refused = |spec: &FederationSpec| {
        let device = ComputeDevice::cpu(1).unwrap();
        let error = Learner::new(spec, 0, Arc::clone(&data(0)), &device).unwrap_err();
        error.to_string()
    };
    let mut twice = spec(&[("base", "fedavg")]);
    twice.statistics.enabled = true;
    assert!(refused(&twice).contains("has a statistics expert already"));
    let mut unknown = spec(&[]);
    unknown
        .hyper
        .insert("base".into(), HyperValue::Text("fedpac".into()));
    let error = algorithm::fill_exchange(&mut unknown)
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("`hyper.base` is `fedpac`, but must be local"),
        "{error}"
    );
}

/// What would be ignored is said, not ignored.
#[test]
fn settings_that_agreement_cannot_honour_are_refused() {
    let refused = |change: &dyn Fn(&mut FederationSpec)| {
        let mut spec = spec(&[]);
        change(&mut spec);
        algorithm::fill_exchange(&mut spec).unwrap_err().to_string()
    };
    let hyper = |name: &'static str, value: HyperValue| {
        move |spec: &mut FederationSpec| drop(spec.hyper.insert(name.into(), value.clone()))
    };
    let gate = refused(&hyper("load_balance", HyperValue::Real(0.1)));
    assert!(gate.starts_with("`hyper.load_balance` belongs to `matching=similarity`"));
    let paper = |spec: &mut FederationSpec| {
        let text = |text: &str| HyperValue::Text(text.into());
        spec.hyper.insert("profile".into(), text("paper"));
        spec.hyper.insert("base".into(), text("fedper"));
    };
    assert!(refused(&paper).starts_with("`hyper.base` belongs to `matching=agreement`"));
    let halved = |spec: &mut FederationSpec| spec.transfer.precision = Precision::F16;
    assert!(refused(&halved).contains("leave `transfer.precision` at `f32`"));
    let texts = |spec: &mut FederationSpec| spec.fingerprints.vocabulary_size = 100;
    assert!(refused(&texts).contains("these are texts"));
    let wide = |spec: &mut FederationSpec| spec.fingerprints.input = [1, 1, 1025];
    assert!(refused(&wide).contains("1024 at most, and a sample has 1025"));
    let ahead = |spec: &mut FederationSpec| {
        spec.training.ahead_epochs = 1;
        spec.hyper
            .insert("base".into(), HyperValue::Text("fedrep".into()));
    };
    assert!(refused(&ahead).contains("must be 0 with `hyper.base=fedrep`"));
}

/// Every base that may be named trains beside the statistics, and a rule against liars goes to its averages.
#[test]
fn every_base_can_be_had() {
    let row = algorithm::find("fedmoe-da").unwrap();
    let base = row.hyper.iter().find(|hyper| hyper.name == "base").unwrap();
    let algorithm::Kind::Choice(names) = base.kind else {
        panic!("a base is one of some names");
    };
    for name in names {
        let spec = spec(&[("base", name), ("aggregation", "median")]);
        let rule = spec.exchange.averaging.as_ref().map(|one| one.rule.name());
        assert_eq!(rule, (*name != "local").then_some("median"), "{name}");
        let mut node = learner(&spec, 0);
        assert_eq!(update(&mut node, 1).experts.len(), 1, "{name}");
    }
}
