//! What every algorithm promises, on two nodes with the embedded digits and a real average between them.
#![allow(clippy::unwrap_used)]

mod common;

use std::ops::ControlFlow;
use std::sync::Arc;

use common::federation::{
    CLASSES, WIDTH, combine, combine_in, data, extended as added, finish, learner, rounds, spec,
    update, values,
};
use fednode_core::spec::{StatisticsFeatures, StatisticsGate};
use fednode_core::work::{MemberStatistics, Order, Received, Update, Worker};
use fednode_core::{FederationSpec, HyperValue, NodeId, ParamSet, Round, Score, Slot};
use fednode_learn::{ComputeDevice, Learner, Subset, algorithm, last_stage};
use fednode_mix::statistics::robust;

/// The rows whose nodes differ in more than their data, and those that train otherwise than FedAvg.
const PERSONAL: [&str; 32] = [
    "fedper",
    "lg-fedavg",
    "fedrep",
    "fedrod",
    "fedgh",
    "fedbabu",
    "gpfl",
    "fedcp",
    "dbe",
    "fedprox",
    "scaffold",
    "moon",
    "fedproto",
    "fd",
    "pfl-fb",
    "pfl-mf",
    "pfl-mfe",
    "fed-syn-moe",
    "pfedmoe",
    "fml",
    "fedkd",
    "fedapen",
    "fedgen",
    "fedpac",
    "fedmix",
    "fedjets",
    "fedavg-ft",
    "ditto",
    "ifca",
    "fedem",
    "fedfomo",
    "dflmoe",
];

const BASE: [&str; 4] = ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"];

#[test]
fn every_algorithm_beats_the_majority_class() {
    const LAST: u32 = 10;
    for algorithm in PERSONAL.into_iter().chain(["fedavg", "local"]) {
        let spec = spec(algorithm, &[]);
        let mut learners = [learner(&spec, 0), learner(&spec, 1)];
        rounds(&spec, &mut learners, 1..=LAST);
        for learner in &mut learners {
            finish(learner, LAST);
        }
        let (mut correct, mut majority, mut total) = (0, 0, 0);
        for learner in &learners {
            let evaluation = learner.evaluate(Subset::Test);
            assert!(evaluation.score.loss.is_finite(), "{algorithm}");
            assert!(learner.state().values().all(f32::is_finite), "{algorithm}");
            correct += evaluation
                .classes
                .iter()
                .map(|class| class.correct)
                .sum::<u32>();
            majority += evaluation
                .classes
                .iter()
                .map(|class| class.total)
                .max()
                .unwrap();
            total += evaluation.score.n_samples;
        }
        // At least halfway from the floor to perfection.
        assert!(
            2 * correct > majority + total,
            "{algorithm}: {correct} of {total}, majority {majority}"
        );
    }
}

#[test]
fn goes_on_from_a_checkpoint_and_admits_late_comers() {
    for row in algorithm::TABLE {
        let spec = spec(row.name, &[]);
        let mut learners = [learner(&spec, 0), learner(&spec, 1)];
        rounds(&spec, &mut learners, 1..=2);
        let [mut kept, other] = learners;
        let bytes = kept.state().to_bytes();
        let mut restored = learner(&spec, 0);
        restored
            .restore(&ParamSet::decode(&bytes).unwrap())
            .unwrap();
        assert_eq!(restored.state().to_bytes(), bytes, "{}", row.name);
        assert_eq!(
            restored.evaluate(Subset::Test),
            kept.evaluate(Subset::Test),
            "{}",
            row.name
        );
        assert_eq!(
            update(&mut restored, 3),
            update(&mut kept, 3),
            "{}",
            row.name
        );
        assert_eq!(restored.state(), kept.state(), "{}", row.name);

        let mut late = learner(&spec, 1);
        late.adopt(other.shared(), Vec::new()).unwrap();
        rounds(&spec, &mut [other, late], 3..=3);
    }
}

#[test]
fn a_broken_off_update_leaves_no_trace() {
    for algorithm in PERSONAL {
        let spec = spec(algorithm, &[]);
        let mut learners = [learner(&spec, 0), learner(&spec, 1)];
        rounds(&spec, &mut learners, 1..=1);
        let [mut tried, _] = learners;
        let before = tried.state();
        let mut batches = 0;
        let result = tried.local_update(Round(2), &mut |_| {
            batches += 1;
            if batches == 7 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        assert!(result.is_err(), "{algorithm}");
        assert_eq!(tried.state(), before, "{algorithm}");
        let mut fresh = learner(&spec, 0);
        fresh.restore(&before).unwrap();
        assert_eq!(update(&mut tried, 2), update(&mut fresh, 2), "{algorithm}");
        assert_eq!(tried.state(), fresh.state(), "{algorithm}");
    }
}

#[test]
fn fedbabu_moves_its_head_only_after_the_last_round() {
    for (fine_tuning, base_moves) in [("all", true), ("head", false)] {
        let hyper = [
            ("fine_tuning", HyperValue::Text(fine_tuning.into())),
            ("fine_tuning_epochs", HyperValue::Integer(2)),
        ];
        let spec = spec("fedbabu", &hyper);
        let mut learners = [learner(&spec, 0), learner(&spec, 1)];
        let first = learners[0].state();
        rounds(&spec, &mut learners, 1..=3);
        let [mut node, other] = learners;
        let (before, head) = (node.state(), ["fc.weight", "fc.bias"]);
        assert_eq!(values(&before, &head), values(&first, &head));
        assert_eq!(values(&before, &head), values(&other.state(), &head));
        assert_ne!(values(&before, &BASE), values(&first, &BASE));

        let loss = node.evaluate(Subset::Train).score.loss;
        let steps = 2 * node.evaluate(Subset::Train).score.n_samples.div_ceil(10);
        assert_eq!(finish(&mut node, 3), steps);
        assert_ne!(values(&node.state(), &head), values(&before, &head));
        assert_eq!(
            values(&node.state(), &BASE) != values(&before, &BASE),
            base_moves
        );
        assert!(node.evaluate(Subset::Train).score.loss < loss);
    }
    let mut node = learner(&spec("fedper", &[]), 0);
    let before = node.state();
    assert_eq!(finish(&mut node, 1), 0);
    assert_eq!(
        node.state(),
        before,
        "nothing follows the last round of other algorithms"
    );
}

#[test]
fn fedgh_sends_prototypes_and_the_head_it_received() {
    let spec = spec("fedgh", &[]);
    let (mut first, mut second) = (learner(&spec, 0), learner(&spec, 1));
    let head = ["fc.weight", "fc.bias"];
    let before = values(&first.state(), &head);
    let updates = [update(&mut first, 1), update(&mut second, 1)];
    let sent = updates[0].shared.as_ref().unwrap();
    assert_eq!(values(sent, &head), before);
    let (prototypes, present) = (
        values(sent, &["prototypes"]),
        values(sent, &["prototypes_present"]),
    );
    for (class, prototype) in prototypes.chunks(WIDTH).enumerate() {
        let has = data(0)
            .train
            .labels
            .iter()
            .any(|label| usize::from(*label) == class);
        assert_eq!(present[class], if has { 1.0 } else { 0.0 }, "class {class}");
        assert_eq!(
            prototype.iter().any(|value| *value != 0.0),
            has,
            "class {class}"
        );
    }
    let learned = combine(&spec, &updates).unwrap();
    assert_ne!(values(&learned, &head), before);
    first.adopt(Some(learned.clone()), Vec::new()).unwrap();
    assert_eq!(values(&first.state(), &head), values(&learned, &head));
}

#[test]
fn dbe_is_fedavg_in_round_1_and_regularised_later() {
    let (dbe, fedavg) = (spec("dbe", &[]), spec("fedavg", &[]));
    let mut learners = [learner(&dbe, 0), learner(&dbe, 1)];
    let model = [&BASE[..], &["fc.weight", "fc.bias"]].concat();
    let updates: Vec<_> = learners
        .iter_mut()
        .map(|learner| update(learner, 1))
        .collect();
    let mut plain = learner(&fedavg, 0);
    update(&mut plain, 1);
    assert_eq!(
        values(&learners[0].state(), &model),
        values(&plain.state(), &model)
    );
    assert!(
        values(&learners[0].state(), &["personal_bias"])
            .iter()
            .all(|value| *value == 0.0)
    );

    let mean = combine(&dbe, &updates);
    let common = values(mean.as_ref().unwrap(), &["mean_feature"]);
    assert!(common.iter().all(|value| *value >= 0.0) && common.iter().any(|value| *value > 0.0));
    learners
        .iter_mut()
        .for_each(|learner| learner.adopt(mean.clone(), Vec::new()).unwrap());
    rounds(&dbe, &mut learners, 2..=3);
    let states: Vec<_> = learners.iter().map(Learner::state).collect();
    for state in &states {
        assert_eq!(values(state, &["mean_feature"]), common);
        assert!(
            values(state, &["personal_bias"])
                .iter()
                .any(|value| *value != 0.0)
        );
    }
    assert_ne!(
        values(&states[0], &["personal_bias"]),
        values(&states[1], &["personal_bias"])
    );
}

#[test]
fn gpfl_conditions_come_from_the_embeddings_the_node_trained() {
    let spec = spec("gpfl", &[]);
    let mut learners = [learner(&spec, 0), learner(&spec, 1)];
    let conditions = ["generic_condition", "personal_condition"];
    assert!(
        values(&learners[0].state(), &conditions)
            .iter()
            .all(|value| *value == 0.0)
    );
    update(&mut learners[0], 1);
    let state = learners[0].state();
    let table = values(&state, &["class_embedding"]);
    let split = data(0);
    let share = |class: usize| {
        let count = split
            .train
            .labels
            .iter()
            .filter(|label| usize::from(**label) == class)
            .count();
        count as f64 / split.train.len() as f64
    };
    let expected = |weight: &dyn Fn(usize) -> f64| {
        let at = |feature: usize| {
            (0..CLASSES)
                .map(|c| weight(c) * f64::from(table[c * WIDTH + feature]))
                .sum()
        };
        (0..WIDTH).map(at).collect::<Vec<f64>>()
    };
    for (name, expected) in [
        (conditions[0], expected(&|_| 1.0 / CLASSES as f64)),
        (conditions[1], expected(&share)),
    ] {
        let got = values(&state, &[name]);
        assert!(
            got.iter()
                .zip(expected)
                .all(|(got, expected)| (f64::from(*got) - expected).abs() < 1e-5),
            "{name}"
        );
    }
    let other = learners[1].shared();
    learners[0].adopt(other, Vec::new()).unwrap();
    assert_eq!(
        values(&learners[0].state(), &conditions),
        values(&state, &conditions)
    );
}

#[test]
fn fedcp_blends_its_heads_and_renews_its_context_when_a_round_ends() {
    let spec = spec("fedcp", &[]);
    let (mut node, mut again, mut other) =
        (learner(&spec, 0), learner(&spec, 0), learner(&spec, 1));
    let before = node.state();
    assert_eq!(
        values(&before, &["personal.weight"]),
        values(&before, &["fc.weight"])
    );
    assert!(
        values(&before, &["context"])
            .iter()
            .all(|value| (0.0..1.0).contains(value))
    );
    assert_eq!(
        values(&before, &["context"]),
        values(&other.state(), &["context"])
    );
    assert_eq!(
        update(&mut node, 1),
        update(&mut again, 1),
        "the noise is seeded"
    );
    update(&mut other, 1);
    let after = node.state();
    for (personal, global) in [
        ("personal.weight", "fc.weight"),
        ("personal.bias", "fc.bias"),
    ] {
        let (own, old) = (values(&after, &[personal]), values(&before, &[global]));
        let blend: Vec<f32> = own
            .iter()
            .zip(old)
            .map(|(own, old)| (own + old) * 0.5)
            .collect();
        assert_eq!(values(&after, &[global]), blend);
    }
    let weight = values(&after, &["personal.weight"]);
    for (feature, got) in values(&after, &["context"]).into_iter().enumerate() {
        let expected: f32 = (0..CLASSES)
            .map(|class| weight[class * WIDTH + feature])
            .sum();
        assert!((got - expected).abs() < 1e-5);
    }
    assert_ne!(
        values(&after, &["context"]),
        values(&other.state(), &["context"])
    );
    assert_ne!(
        values(&after, &["policy.0.weight"]),
        values(&before, &["policy.0.weight"])
    );
    assert_eq!(
        node.evaluate(Subset::Test),
        node.evaluate(Subset::Test),
        "there is no noise in evaluation"
    );
}

fn with_statistics(algorithm: &str, rounds: u32) -> FederationSpec {
    let mut spec = FederationSpec {
        rounds,
        ..spec(algorithm, &[])
    };
    spec.statistics.enabled = true;
    spec
}

/// Two nodes that trained for three rounds and gathered their statistics in the fourth, with the mean of these.
fn gathered(spec: &FederationSpec) -> ([Learner; 2], ParamSet) {
    let mut learners = [learner(spec, 0), learner(spec, 1)];
    rounds(spec, &mut learners, 1..=3);
    let updates: Vec<_> = learners
        .iter_mut()
        .map(|learner| update(learner, 4))
        .collect();
    let mean = combine_in(Round(4), spec, &updates).unwrap();
    (learners, mean)
}

/// Gives everybody the mean statistics; returns each node's score before and after.
fn adopted(learners: &mut [Learner], mean: &ParamSet, subset: Subset) -> Vec<[Score; 2]> {
    let adopt = |learner: &mut Learner| {
        let own = learner.evaluate(subset).score;
        learner.adopt(Some(mean.clone()), Vec::new()).unwrap();
        [own, learner.evaluate(subset).score]
    };
    learners.iter_mut().map(adopt).collect()
}

/// Restarts node 0, which changes no prediction.
fn restarted(spec: &FederationSpec, node: &Learner) -> Learner {
    let mut again = learner(spec, 0);
    again.restore(&node.state()).unwrap();
    let restarted = again.evaluate(Subset::Test);
    assert_eq!(restarted, node.evaluate(Subset::Test), "{}", spec.algorithm);
    again
}

/// Where rounds were added, what the statistics of an end made of the model is forgotten. The model trains as if it had never been
/// asked for them, and gathers them again at the next end.
#[test]
fn a_node_that_goes_on_after_its_statistics_trains_as_if_there_had_been_none() {
    let agreed = with_statistics("fedavg", 4);
    let extended = added(&agreed, 2);
    let (mut learners, mean) = gathered(&agreed);
    adopted(&mut learners, &mean, Subset::Test);
    let mut on = learner(&extended, 0);
    on.restore(&learners[0].state()).unwrap();
    assert_eq!(
        on.shared().unwrap().layout(),
        mean.layout(),
        "statistics are what is shared"
    );
    on.perform(Order::GoOn, &mut |_| ControlFlow::Continue(()))
        .unwrap();

    let plain = FederationSpec {
        rounds: 6,
        ..spec("fedavg", &[])
    };
    let mut without = [learner(&plain, 0), learner(&plain, 1)];
    rounds(&plain, &mut without, 1..=3);
    assert_eq!(on.evaluate(Subset::Test), without[0].evaluate(Subset::Test));
    assert_eq!(update(&mut on, 5).shared, update(&mut without[0], 5).shared);
    assert_eq!(update(&mut on, 6).shared.unwrap().layout(), mean.layout());
}

/// Holds the mean counts against the share of each class among the samples of both nodes.
fn assert_class_shares(counts: &[f32], algorithm: &str) {
    let labels: Vec<u16> = [data(0), data(1)]
        .iter()
        .flat_map(|split| split.train.labels.clone())
        .collect();
    for (class, share) in counts.iter().enumerate() {
        let count = labels
            .iter()
            .filter(|label| usize::from(**label) == class)
            .count();
        assert!(
            (f64::from(*share) - count as f64 / labels.len() as f64).abs() < 1e-6,
            "{algorithm} class {class}"
        );
    }
}

/// The sums are exact, everybody's classifier the same, and the mixture no worse where it was chosen.
#[test]
fn statistics_join_what_all_nodes_have_seen() {
    // Which these are, `last_stage` tests.
    let suited = |name: &&str| last_stage::suits_statistics(&with_statistics(name, 4)).unwrap();
    let algorithms: Vec<&str> = algorithm::TABLE
        .iter()
        .map(|row| row.name)
        .filter(suited)
        .collect();
    assert!(!algorithms.is_empty());
    for algorithm in algorithms {
        let spec = with_statistics(algorithm, 4);
        let (mut learners, mean) = gathered(&spec);
        let names: Vec<&str> = mean.iter().map(|(name, _)| name).collect();
        assert_eq!(
            names,
            ["statistics.counts", "statistics.scatter", "statistics.sums"],
            "{algorithm}"
        );
        assert_class_shares(mean.get("statistics.counts").unwrap().values(), algorithm);
        for [own, mixed] in adopted(&mut learners, &mean, Subset::Validation) {
            let (own, mixed) = (own.loss, mixed.loss);
            assert!(
                mixed <= own + 1e-6,
                "{algorithm}: {own} alone, {mixed} mixed"
            );
        }
        let again = restarted(&spec, &learners[0]);
        assert_eq!(again.shared(), Some(mean), "{algorithm}");
    }
}

/// Nodes have no extractor in common, and gain all the same.
#[test]
fn statistics_of_random_features_need_no_common_extractor() {
    let mut spec = with_statistics("lg-fedavg", 4);
    spec.statistics.features = StatisticsFeatures::Random;
    let (mut learners, mean) = gathered(&spec);
    for [own, mixed] in adopted(&mut learners, &mean, Subset::Test) {
        let (own, mixed) = (own.accuracy, mixed.accuracy);
        assert!(mixed > own, "{own} alone, {mixed} mixed");
    }
    restarted(&spec, &learners[0]);
}

/// Ten dimensions instead of 32: 55 numbers of scatter, and the same classifier for everybody all the same.
#[test]
fn statistics_of_projected_features_take_fewer_numbers() {
    let mut spec = with_statistics("fedper", 4);
    (spec.statistics.dimensions, spec.statistics.gate) = (10, StatisticsGate::Sample);
    let (mut learners, mean) = gathered(&spec);
    assert_eq!(mean.get("statistics.sums").unwrap().shape(), [CLASSES, 10]);
    assert_eq!(mean.get("statistics.scatter").unwrap().shape(), [55]);
    for [own, mixed] in adopted(&mut learners, &mean, Subset::Test) {
        let (own, mixed) = (own.accuracy, mixed.accuracy);
        assert!(mixed > own, "{own} alone, {mixed} mixed");
    }
    restarted(&spec, &learners[0]);
}

#[test]
fn statistics_lift_nodes_that_have_seen_little() {
    let accuracy = |learners: &[Learner]| -> f64 {
        let scores = learners
            .iter()
            .map(|learner| learner.evaluate(Subset::Test).score);
        scores.map(|score| score.accuracy).sum::<f64>() / learners.len() as f64
    };
    let (with, without) = (with_statistics("fedper", 7), spec("fedper", &[]));
    let run = |spec: &FederationSpec, last| {
        let mut learners = [learner(spec, 0), learner(spec, 1)];
        rounds(spec, &mut learners, 1..=last);
        accuracy(&learners)
    };
    let (own, mixed) = (run(&without, 6), run(&with, 7));
    assert!(
        mixed > own,
        "{own} with the own head alone, {mixed} with the statistics of both"
    );
}

#[test]
fn statistics_need_a_common_extractor() {
    let refused = |spec: &FederationSpec| {
        let device = ComputeDevice::cpu(1).unwrap();
        Learner::new(spec, 0, data(0), &device)
            .unwrap_err()
            .to_string()
    };
    for algorithm in ["local", "lg-fedavg", "fedgh"] {
        assert!(
            refused(&with_statistics(algorithm, 2)).contains("no extractor in common"),
            "{algorithm}"
        );
    }
    assert!(refused(&with_statistics("fedbabu", 2)).contains("epochs after the last round to 0"));
}

/// Training has the median, and the sums stay exact: they have a rule of their own.
#[test]
fn robust_training_and_statistics_go_together() {
    let mut median = with_statistics("fedper", 4);
    median
        .hyper
        .insert("aggregation".into(), HyperValue::Text("median".into()));
    algorithm::fill_exchange(&mut median).unwrap();
    let (mut learners, mean) = gathered(&median);
    assert_class_shares(mean.get("statistics.counts").unwrap().values(), "fedper");
    adopted(&mut learners, &mean, Subset::Test);
    assert_eq!(learners[0].lacks(), None);
}

/// The mean that came has a liar in it. The node gets the statistics one by one, and makes the mean without the liar.
#[test]
fn a_node_judges_the_statistics_of_the_others_by_its_own() {
    let spec = with_statistics("fedper", 2);
    let mut learners = [learner(&spec, 0), learner(&spec, 1)];
    rounds(&spec, &mut learners, 1..=1);
    let updates: Vec<Update> = learners
        .iter_mut()
        .map(|learner| update(learner, 2))
        .collect();
    let mut lie = ParamSet::clone(updates[1].shared.as_ref().unwrap());
    for (name, tensor) in lie.iter_mut() {
        if name == "statistics.sums" {
            tensor.values_mut().rotate_left(WIDTH);
        }
    }
    let lying = Update {
        shared: Some(Arc::new(lie)),
        ..updates[1].clone()
    };
    let member = |number: u8, update: &Update| MemberStatistics {
        node: NodeId::from_bytes([number; 32]),
        weight: f64::from(update.n_samples),
        params: update.shared.clone().unwrap(),
    };
    let honest = combine_in(Round(2), &spec, &updates).unwrap();
    let false_mean = lying.shared.clone().unwrap();
    let received = |statistics| Received {
        shared: Some(false_mean.clone()),
        experts: vec![],
        peers: vec![],
        statistics,
    };
    let mut adopt = |received| {
        let order = Order::Adopt(received);
        let state = learners[0].state();
        let watch = &mut |_| ControlFlow::Continue(());
        learners[0].perform(order, watch).unwrap();
        let adopted = learners[0].shared().unwrap();
        learners[0].restore(&state).unwrap();
        adopted
    };
    let others = vec![member(1, &updates[1]), member(2, &lying)];
    let believed = adopt(received(others));
    assert!(robust::are_alike(&believed, &honest), "own and honest ones");
    assert_eq!(adopt(received(vec![])), *false_mean, "the mean as it came");
}

/// What comes has the form and the size of an expert, and turns every answer of it round.
#[test]
fn a_mixed_expert_that_does_harm_is_left_out() {
    let validation = |trial: &str| {
        let spec = spec("fedmoe-da", &[("trial", HyperValue::Text(trial.into()))]);
        let mut node = learner(&spec, 0);
        (1..=3).for_each(|round| drop(update(&mut node, round)));
        let own = node.evaluate(Subset::Validation).score.loss;
        let turned = |mut expert: ParamSet| {
            let tensors = expert
                .iter_mut()
                .filter(|(name, _)| name.starts_with("fc."));
            tensors.for_each(|(_, tensor)| tensor.values_mut().iter_mut().for_each(|v| *v = -*v));
            expert
        };
        let mixed: Vec<(Slot, ParamSet)> = (0..)
            .map(Slot)
            .zip(node.experts().into_iter().map(turned))
            .collect();
        node.adopt(None, mixed).unwrap();
        node.evaluate(Subset::Validation).score.loss - own
    };
    assert!(validation("off") > 1.0, "the attack is one");
    assert!(validation("on").abs() < 1e-9, "and nothing of it is taken");
}

/// Whatever keeps a node from its statistics expert is said, and the own head is served.
#[test]
fn a_missing_statistics_expert_is_said_with_its_reason() {
    let (mut learners, mean) = gathered(&with_statistics("fedper", 4));
    let said = |learner: &Learner| learner.lacks().unwrap();
    assert!(said(&learners[0]).ends_with("have not come together in the last round"));
    let changed = |tensor: &str, factor: f32| {
        let mut mean = mean.clone();
        let tensors = mean.iter_mut().filter(|(name, _)| *name == tensor);
        tensors.for_each(|(_, tensor)| {
            let values = tensor.values_mut().iter_mut();
            values.for_each(|value| *value *= factor);
        });
        mean
    };
    let adopt = |learner: &mut Learner, mean: ParamSet| {
        learner.adopt(Some(mean), Vec::new()).unwrap();
        learner.lacks()
    };
    let lying = adopt(&mut learners[0], changed("statistics.sums", 10.0)).unwrap();
    assert!(lying.contains("cannot be those of samples"), "{lying}");
    let nothing = ["statistics.sums", "statistics.scatter", "statistics.counts"];
    let mut empty = mean.clone();
    for (name, tensor) in empty.iter_mut() {
        assert!(nothing.contains(&name));
        tensor.values_mut().fill(0.0);
    }
    assert!(adopt(&mut learners[0], empty).is_some());
    let again = restarted(&with_statistics("fedper", 4), &learners[0]);
    assert_eq!(again.lacks(), learners[0].lacks(), "also after a restart");
    assert_eq!(adopt(&mut learners[0], mean.clone()), None);
}
