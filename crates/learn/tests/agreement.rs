//! FedMoE-DA, profile `agreement`: statistics of the peers that agree, multiplied with the node's own model.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::federation::{self as fed, data, learner, peers, update};
use fednode_core::work::{Order, PeerExpert, Splits, Worker};
use fednode_core::{
    ExpertId, FederationSpec, HyperValue, NodeId, ParamSet, Precision, Round, Slot,
};
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

/// Two nodes of equal names and equal proxies weigh by their samples.
#[test]
fn two_that_agree_weigh_by_their_samples() {
    let spec = spec(&[]);
    let mut nodes = [0, 1].map(|index| learner(&spec, index));
    let updates = nodes.each_mut().map(|node| update(node, 1));
    let given = peers(&spec, &updates, 0);
    assert_eq!(given.len(), 1);
    // By hand on these divisions: seven of the seven classes of which both have five samples are nearest to themselves.
    let [own, other] = [0, 1].map(|index| data(index).train.len() as f64);
    assert!((given[0].weight - other / (own + other)).abs() < 1e-6);
    // What is published is each node's own: its counts are those of its labels, in whatever groups.
    let counts = numbers(&updates[1].experts[0].0, "agreement.counts");
    for (class, counts) in counts.chunks(2).enumerate() {
        let labels = data(1).train.labels.clone();
        let expected = labels.iter().filter(|label| usize::from(**label) == class);
        let got = f64::from(counts.iter().sum::<f32>()) * other;
        assert!(
            (got - expected.count() as f64).abs() < 1e-3,
            "class {class}"
        );
    }
}

#[test]
fn what_peers_say_is_served_and_not_published() {
    let spec = spec(&[]);
    let mut nodes = [0, 1].map(|index| learner(&spec, index));
    let updates = nodes.each_mut().map(|node| update(node, 1));
    let before = nodes[0].evaluate(Subset::Test);
    let published = nodes[0].experts();
    let given = peers(&spec, &updates, 0);
    nodes[0].adopt_peers(&given).unwrap();
    assert_eq!(nodes[0].experts(), published);
    assert_eq!(nodes[0].proxies(), updates[0].proxies);
    let after = nodes[0].evaluate(Subset::Test);
    assert_ne!(after, before);
    // A node that does the same again, or comes back from a checkpoint, predicts the same.
    let (state, predicted) = (nodes[0].state(), nodes[0].evaluate(Subset::Test));
    nodes[0].adopt_peers(&given).unwrap();
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

/// Peers that take their statistics back leave nothing behind: neither in what is served nor in what is kept.
#[test]
fn a_node_whose_peers_take_back_their_statistics_is_as_if_none_had_come() {
    let spec = spec(&[]);
    let mut nodes = [0, 1].map(|index| learner(&spec, index));
    let updates = nodes.each_mut().map(|node| update(node, 1));
    let alone = (nodes[0].state(), nodes[0].evaluate(Subset::Test));
    let given = peers(&spec, &updates, 0);
    nodes[0].adopt_peers(&given).unwrap();
    assert_ne!((nodes[0].state(), nodes[0].evaluate(Subset::Test)), alone);
    let stays = &mut |_| std::ops::ControlFlow::Continue(());
    nodes[0].perform(Order::ForgetPeers, stays).unwrap();
    assert_eq!((nodes[0].state(), nodes[0].evaluate(Subset::Test)), alone);
    // Others may come in the next round, or the same once more.
    nodes[0].adopt_peers(&given).unwrap();
    assert_ne!(nodes[0].evaluate(Subset::Test), alone.1);
}

/// Chance explains whatever difference there is on these validation samples, so the choice by log loss stays.
#[test]
fn a_measure_that_peers_do_not_harm_changes_nothing() {
    let served = |metric: Option<&str>| {
        let mut spec = spec(&[]);
        spec.metric = metric.map(str::to_owned);
        let mut nodes = [0, 1].map(|index| learner(&spec, index));
        let updates = nodes.each_mut().map(|node| update(node, 1));
        let alone = nodes[0].evaluate(Subset::Test);
        nodes[0].adopt_peers(&peers(&spec, &updates, 0)).unwrap();
        let joined = nodes[0].evaluate(Subset::Test);
        assert_ne!(joined, alone);
        joined
    };
    assert_eq!(served(Some("balanced-accuracy")), served(None));
}

/// The log loss is the loss of every evaluation. AUROC has no value here, since the test samples lack classes.
#[test]
fn rounds_are_judged_by_the_measure_of_the_spec() {
    let stays = &mut |_| std::ops::ControlFlow::Continue(());
    let mut judged = |metric: &str| {
        let mut spec = spec(&[]);
        spec.metric = Some(metric.to_owned());
        let mut node = learner(&spec, 0);
        update(&mut node, 1);
        let order = Order::Evaluate(Splits::Test);
        let evaluations = node.perform(order, stays).unwrap();
        let evaluations = evaluations.into_evaluations().unwrap();
        let said = evaluations.judged.unwrap();
        assert_eq!(said.measure, metric);
        assert_eq!(evaluations.test, Some(node.evaluate(Subset::Test).score));
        (said.value, evaluations.test.unwrap().loss)
    };
    let (value, loss) = judged("log-loss");
    assert!(
        (value.unwrap() / loss - 1.0).abs() < 1e-5,
        "{value:?} {loss}"
    );
    assert_eq!(judged("auroc").0, None);
}

/// Statistics that do not fit are refused, and nothing is changed.
#[test]
fn statistics_of_another_form_change_nothing() {
    let spec = spec(&[]);
    let mut node = learner(&spec, 0);
    update(&mut node, 1);
    let before = (node.state(), node.evaluate(Subset::Test));
    let mut refused = |slot: u16| {
        let peer = PeerExpert {
            expert: ExpertId {
                owner: NodeId::from_bytes([1; 32]),
                slot: Slot(slot),
            },
            weight: 0.5,
            params: ParamSet::new(),
        };
        let error = node.adopt_peers(&[peer]).unwrap_err().to_string();
        assert_eq!((node.state(), node.evaluate(Subset::Test)), before);
        error
    };
    assert!(refused(1).contains("expert 1"));
    assert!(refused(0).contains("agreement"), "{}", refused(0));
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
    let wide = |spec: &mut FederationSpec| spec.fingerprints.input = [1, 1, 2049];
    assert!(refused(&wide).contains("2048 at most, and a sample has 2049"));
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

/// Counts of what a node publishes, in samples.
fn published_samples(node: &mut Learner, round: u32) -> f64 {
    let published = update(node, round);
    let counts = numbers(&published.experts[0].0, "agreement.counts");
    let share: f64 = counts.iter().copied().map(f64::from).sum();
    assert!((share - 1.0).abs() < 1e-4, "shares of the samples");
    published.experts[0]
        .0
        .get("agreement.sums")
        .unwrap()
        .values()
        .iter()
        .map(|value| f64::from(*value))
        .sum()
}

/// A node that goes on after an end with more samples publishes the statistics of all of them, once it publishes proxies.
#[test]
fn rows_that_were_added_are_in_the_statistics_of_the_rounds_that_were_added() {
    let agreed = spec(&[]);
    let extended = fed::extended(&agreed, 2);
    let all_rows = || fed::data_of(0, 600);
    let device = ComputeDevice::cpu(1).unwrap();
    let node = |spec: &FederationSpec, data| Learner::new(spec, 0, data, &device).unwrap();
    let width = node(&agreed, all_rows()).published_width().unwrap();
    // Fewer new ones would be given away by the difference.
    let n_few = (all_rows().train.len() - width - 1) as u32;
    let few = Arc::new(fednode_data::Split {
        train: all_rows().train.subset(&(0..n_few).collect::<Vec<_>>()),
        ..fednode_data::Split::clone(&all_rows())
    });
    let mut before = node(&agreed, few);
    let of_few = published_samples(&mut before, 1);
    assert!(
        published_samples(&mut before, 4) == of_few,
        "the same samples"
    );
    let all = published_samples(&mut node(&agreed, all_rows()), 1);
    assert!((of_few - all).abs() > 1e-3, "others say something else");

    let mut after = node(&extended, all_rows());
    after.restore(&before.state()).unwrap();
    after
        .perform(Order::GoOn, &mut |_| std::ops::ControlFlow::Continue(()))
        .unwrap();
    // Proxies of before go with statistics of before.
    let schedule = fednode_core::Schedule::of(&extended);
    assert!(!schedule.refreshes_in(Round(5)) && schedule.refreshes_in(Round(6)));
    assert!(published_samples(&mut after, 5) == of_few);
    assert!((published_samples(&mut after, 6) - all).abs() < 1e-6);
}
