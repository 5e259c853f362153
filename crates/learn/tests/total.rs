//! FedMoE-DA, profile `agreement`, under masks: statistics are added up once, in the last round, and noise is shared.

#![allow(clippy::unwrap_used)]

mod common;

use std::ops::ControlFlow;
use std::sync::Arc;

use common::federation::{self as fed, data, learner, update};
use fednode_core::spec::{Preset, Sums};
use fednode_core::work::{Order, Update, Worker};
use fednode_core::{Exchange, FederationSpec, HyperValue, ParamSet, stack};
use fednode_data::Split;
use fednode_learn::{ComputeDevice, Learner, NoiseKey, Subset, algorithm};

/// Rounds of these federations.
const LAST: u32 = 3;
/// Members of the sum.
const NODES: usize = 4;

fn masked(epsilon: Option<f64>) -> FederationSpec {
    let text = |text: &str| HyperValue::Text(text.into());
    let mut spec = fed::spec("fedmoe-da", &[("profile", text("agreement"))]);
    (spec.rounds, spec.nodes) = (LAST, NODES as u32);
    (spec.privacy.sums, spec.privacy.epsilon) = (Sums::Masked, epsilon);
    algorithm::fill_exchange(&mut spec).unwrap();
    spec.validate().unwrap();
    spec
}

/// A federation that adds up statistics in groups of four.
fn grouped(epsilon: Option<f64>) -> FederationSpec {
    let mut spec = masked(epsilon);
    (spec.nodes, spec.privacy.group) = (2 * NODES as u32, Some(4));
    spec.exchange = Exchange::default();
    algorithm::fill_exchange(&mut spec).unwrap();
    spec.validate().unwrap();
    spec
}

fn node(spec: &FederationSpec, index: usize) -> Learner {
    let mut learner = learner(spec, index % 2);
    learner.draw_noise_from(NoiseKey::of_secret(&[index as u8; 32]));
    learner
}

/// Adds up what nodes publish.
fn total(updates: &[Update]) -> ParamSet {
    let parts = updates
        .iter()
        .map(|update| update.shared.as_deref().unwrap());
    fed::total(&parts.collect::<Vec<_>>())
}

/// Trains all rounds of all nodes; returns the nodes and what they publish in the last one.
fn play(spec: &FederationSpec, n: usize) -> (Vec<Learner>, Vec<Update>) {
    let mut nodes: Vec<Learner> = (0..n).map(|index| node(spec, index)).collect();
    let zeros = nodes[0].initial_shared().unwrap();
    let mut last = Vec::new();
    for node in &mut nodes {
        for round in 1..LAST {
            let update = update(node, round);
            assert!(
                update.shared.is_none(),
                "nothing is published in round {round}"
            );
            assert!(update.experts.is_empty() && update.proxies.is_none());
            node.adopt(Some(&zeros), vec![]).unwrap();
        }
        last.push(update(node, LAST));
    }
    (nodes, last)
}

/// Returns the class counts of a total: whole numbers of 2^-20, times the root of their share, 2 %.
fn counts(total: &ParamSet) -> Vec<f64> {
    let numbers = total.get("noised.numbers").unwrap().values();
    let (high, low) = numbers.split_at(numbers.len() / 2);
    let count = |class: usize| {
        let whole = f64::from(high[class]) * 2f64.powi(34) + f64::from(low[class]) * 2f64.powi(24);
        whole / 2f64.powi(20) / 0.02f64.sqrt()
    };
    (0..10).map(count).collect()
}

/// Returns how many training samples of each class all members have.
fn exact() -> Vec<f64> {
    let mut exact = vec![0.0; 10];
    for index in 0..NODES {
        for label in &data(index % 2).train.labels {
            exact[usize::from(*label)] += 1.0;
        }
    }
    exact
}

#[test]
fn without_noise_the_total_is_that_of_all_samples() {
    let spec = masked(None);
    let (mut nodes, last) = play(&spec, NODES);
    let lacks = nodes[0].lacks().unwrap();
    assert!(lacks.contains("not added up"), "{lacks}");
    let total = total(&last);
    assert_eq!(
        total.get("noised.members").unwrap().values(),
        [NODES as f32]
    );
    for (count, exact) in counts(&total).into_iter().zip(exact()) {
        // Each sample is cut by one whole number at most.
        assert!((count - exact).abs() < 0.01, "{count} for {exact}");
    }
    let alone = nodes[1].predict(&data(1).test).unwrap();
    nodes[1].adopt(Some(&total), vec![]).unwrap();
    assert_eq!(nodes[1].lacks(), None);
    let served = nodes[1].predict(&data(1).test).unwrap();
    assert!(served != alone, "the total counts for nothing");
    assert!(nodes[1].evaluate(Subset::Test).score.accuracy > 0.8);
    // A state holds all of it.
    let mut restored = learner(&spec, 1);
    restored.restore(&nodes[1].state()).unwrap();
    assert!(restored.predict(&data(1).test).unwrap() == served);
    // Who comes after the last round takes the total over, and its own samples say how much that counts.
    let mut newcomer = learner(&spec, 1);
    newcomer.adopt(Some(&total), vec![]).unwrap();
    assert!(newcomer.evaluate(Subset::Test).score.accuracy > 0.8);
    let mut restored = learner(&spec, 1);
    restored.restore(&newcomer.state()).unwrap();
    let predictions = [&newcomer, &restored].map(|node| node.predict(&data(1).test).unwrap());
    assert!(predictions[0] == predictions[1]);
}

/// Of four members one may be missing, so each adds sigma / √3. The total of four has sigma · √(4/3), in samples over the
/// root of 2 %: at epsilon 4 sigma is 1.081 (the study's table).
#[test]
fn members_share_the_noise() {
    let spec = masked(Some(4.0));
    let part = spec.exchange.total.unwrap();
    assert_eq!(part.fewest, 3);
    // Of a class sum, whose share of a sample's length is 48 %.
    let promised = part.least_noise(spec.nodes).unwrap() * 0.48f64.sqrt();
    assert!((promised - 1.081).abs() < 1e-3, "{promised}");
    let (_, last) = play(&spec, NODES);
    let apart = counts(&total(&last)).into_iter().zip(exact());
    let squares: f64 = apart.map(|(count, exact)| (count - exact).powi(2)).sum();
    let deviation = (squares / 10.0).sqrt();
    let due = 1.081 * (4.0f64 / 3.0).sqrt() / 0.02f64.sqrt();
    // Ten numbers: within four standard errors of their deviation.
    assert!(
        (deviation / due - 1.0).abs() < 4.0 / 20f64.sqrt(),
        "{deviation} for {due}"
    );
}

/// Two totals of some of the same nodes would show what they differ in if their noise were the same.
#[test]
fn a_release_is_the_same_after_a_restart_and_has_other_noise_in_another_total() {
    let spec = masked(Some(4.0));
    let (nodes, last) = play(&spec, 1);
    let mut restored = node(&spec, 0);
    restored.restore(&nodes[0].state()).unwrap();
    assert_eq!(update(&mut restored, LAST).shared, last[0].shared);
    let again = update(&mut node(&spec, 0), LAST).shared;
    assert!(
        again != last[0].shared,
        "the same key, the same samples, and a new state"
    );
}

/// The weights of the classifier that a node has made of the total.
fn classifier(node: &Learner) -> Vec<f32> {
    let state = node.state();
    let of_total = state
        .iter()
        .filter(|(name, _)| name.ends_with("noised.weights"));
    of_total
        .flat_map(|(_, weights)| weights.values().to_vec())
        .collect()
}

/// A second total would show what has changed in between, so there is none in rounds that are added. Own samples that have come count
/// beside the one that there is.
fn total_stays(spec: &FederationSpec, shared: &ParamSet, mut node: Learner) {
    node.adopt(Some(shared), vec![]).unwrap();
    let more = fed::extended(spec, 2);
    let device = ComputeDevice::cpu(1).unwrap();
    let go_on = |split: Arc<Split>| {
        let mut later = Learner::new(&more, 1, split, &device).unwrap();
        later.restore(&node.state()).unwrap();
        let watch = &mut |_| ControlFlow::Continue(());
        later.perform(Order::GoOn, watch).unwrap();
        later.adopt(Some(shared), vec![]).unwrap();
        later
    };
    let mut same = go_on(data(1));
    let test = &data(1).test;
    let served = node.predict(test).unwrap();
    assert!(same.predict(test).unwrap() == served, "nothing has changed");
    let grown = go_on(Arc::new(Split {
        train: fed::data_of(1, 300).train.clone(),
        ..Split::clone(&data(1))
    }));
    let [before, after] = [&node, &grown].map(classifier);
    assert!(!before.is_empty() && before != after, "100 more samples");
    assert!(grown.evaluate(Subset::Test).score.accuracy > 0.8);
    let published = update(&mut same, LAST + 1).shared;
    assert!(
        published.as_deref() == node.shared().as_ref(),
        "no new noise"
    );
}

#[test]
fn in_added_rounds_the_total_stays_and_new_own_samples_count_beside_it() {
    let spec = masked(Some(40.0));
    let (mut nodes, last) = play(&spec, NODES);
    total_stays(&spec, &total(&last), nodes.swap_remove(1));
}

#[test]
fn in_added_rounds_the_sums_of_groups_stay_and_new_own_samples_count_beside_them() {
    let spec = grouped(Some(40.0));
    let (mut nodes, last) = play(&spec, 2 * NODES);
    let groups = [total(&last[..NODES]), total(&last[NODES..])];
    let sums = stack::stacked(&groups).unwrap();
    total_stays(&spec, &sums, nodes.swap_remove(1));
}

#[test]
fn a_total_of_too_few_or_of_no_samples_is_not_served() {
    let spec = masked(Some(60.0));
    let (mut nodes, last) = play(&spec, NODES);
    let alone = nodes[0].predict(&data(0).test).unwrap();
    let mut check = |given: &ParamSet, reason: &str| {
        nodes[0].adopt(Some(given), vec![]).unwrap();
        let lacks = nodes[0].lacks().unwrap();
        assert!(lacks.contains(reason), "{lacks}");
        assert!(nodes[0].predict(&data(0).test).unwrap() == alone);
    };
    check(&total(&last[..2]), "how many nodes");
    let changed = |name: &str, at: usize, by: f32| {
        let mut changed = ParamSet::new();
        for (known, tensor) in total(&last).iter() {
            let mut values = tensor.values().to_vec();
            if known == name {
                values[at] += by;
            }
            changed.insert(known, tensor.shape(), values).unwrap();
        }
        changed
    };
    check(&changed("noised.members", 0, 300.0), "how many nodes");
    // A member takes sixteen thousand samples away from a class.
    check(&changed("noised.numbers", 3, -1.0), "none of samples");
}

#[test]
fn an_attacker_who_knows_all_others_sees_no_more_than_the_promise() {
    let most = |spec: &FederationSpec| {
        let mut node = node(spec, 0);
        node.prepare_release();
        node.exposed_statistics()
    };
    let bare = most(&masked(None));
    assert!(bare.iter().any(|one| one.auc > 0.95), "{bare:?}");
    assert_eq!(bare[0].most, None);
    let promised = most(&masked(Some(1.0)));
    // The study's section 5b, as where each node adds the whole noise.
    let [area, hits] = promised[0].most.unwrap();
    assert!((area - 0.575).abs() < 1e-3 && (hits - 0.020).abs() < 1e-3);
    assert!(
        promised.iter().all(|one| one.auc < area + 0.1),
        "{promised:?}"
    );
}

/// Returns how many features so many numbers are of: a triangle of w features has w (w + 1) / 2.
fn width_of(numbers: usize, classes: usize) -> usize {
    let numbers_of = |w: usize| classes + classes * w + w * (w + 1) / 2;
    (1..numbers).find(|w| numbers_of(*w) == numbers).unwrap()
}

/// Calls every class of a part by the name of the next one.
fn turned(update: &Update, spec: &FederationSpec) -> Update {
    let classes = spec.architecture().classes;
    let part = update.shared.as_ref().unwrap();
    let mut lie = ParamSet::new();
    for (name, tensor) in part.iter() {
        let mut values = tensor.values().to_vec();
        if name == "noised.numbers" {
            let length = values.len() / 2;
            // Counts, class sums and products, of which the first two go by class.
            let width = width_of(length, classes);
            for half in values.chunks_exact_mut(length) {
                half[..classes].rotate_left(1);
                half[classes..classes * (1 + width)].rotate_left(width);
            }
        }
        lie.insert(name, tensor.shape(), values).unwrap();
    }
    Update {
        shared: Some(Arc::new(lie)),
        ..update.clone()
    }
}

/// What eight nodes publish in two groups, of the second of which two members lie. By its 180 samples a node would not see one.
fn two_groups(spec: &FederationSpec) -> (Vec<Learner>, [ParamSet; 2]) {
    let (nodes, mut last) = play(spec, 2 * NODES);
    for liar in [5, 6] {
        last[liar] = turned(&last[liar], spec);
    }
    let groups = [total(&last[..NODES]), total(&last[NODES..])];
    (nodes, groups)
}

#[test]
fn the_sum_of_a_liars_group_is_left_out_and_the_other_ones_counts() {
    for epsilon in [None, Some(40.0)] {
        let spec = grouped(epsilon);
        let (mut nodes, [honest, spoilt]) = two_groups(&spec);
        let mut nothing = ParamSet::new();
        for (name, tensor) in honest.iter() {
            let zeros = vec![0.0; tensor.values().len()];
            nothing.insert(name, tensor.shape(), zeros).unwrap();
        }
        let alone = nodes[1].predict(&data(1).test).unwrap();
        let mut served = |node: usize, second: &ParamSet| {
            let sums = stack::stacked(&[honest.clone(), second.clone()]).unwrap();
            nodes[node].adopt(Some(&sums), vec![]).unwrap();
            let lacks = nodes[node].lacks().unwrap();
            assert!(lacks.contains("1 of 2 groups"), "{lacks}");
            nodes[node].predict(&data(1).test).unwrap()
        };
        let [with_lie, without] = [served(1, &spoilt), served(1, &nothing)];
        assert!(with_lie == without, "{epsilon:?}: the lie counts");
        assert!(
            with_lie != alone,
            "{epsilon:?}: the honest group counts for nothing"
        );
        // A state holds what is believed, and a newcomer judges the sums by its own samples.
        let mut restored = learner(&spec, 1);
        restored.restore(&nodes[1].state()).unwrap();
        assert!(restored.predict(&data(1).test).unwrap() == with_lie);
        let mut newcomer = learner(&spec, 1);
        let sums = stack::stacked(&[honest, spoilt]).unwrap();
        newcomer.adopt(Some(&sums), vec![]).unwrap();
        let lacks = newcomer.lacks().unwrap();
        assert!(lacks.contains("1 of 2 groups"), "{lacks}");
    }
}

/// However much it helps to take all sums: one that no samples have is not among them.
#[test]
fn a_sum_of_products_that_no_samples_have_is_never_added_up() {
    let spec = grouped(None);
    let (mut nodes, last) = play(&spec, 2 * NODES);
    let honest = [total(&last[..NODES]), total(&last[NODES..])];
    let classes = spec.architecture().classes;
    let mut lie = ParamSet::new();
    for (name, tensor) in honest[1].iter() {
        let mut values = tensor.values().to_vec();
        if name == "noised.numbers" {
            let width = width_of(values.len() / 2, classes);
            // The product of the first two features: sixteen thousand.
            values[classes * (1 + width) + 1] += 1.0;
        }
        lie.insert(name, tensor.shape(), values).unwrap();
    }
    let sums = stack::stacked(&[honest[0].clone(), lie]).unwrap();
    nodes[0].adopt(Some(&sums), vec![]).unwrap();
    let lacks = nodes[0].lacks().unwrap();
    assert!(lacks.contains("1 of 2 groups"), "{lacks}");
}

#[test]
fn a_node_that_believes_no_group_serves_what_it_does_alone() {
    let spec = grouped(None);
    let (mut nodes, [_, spoilt]) = two_groups(&spec);
    let alone = nodes[0].predict(&data(0).test).unwrap();
    let sums = stack::stacked(&[spoilt.clone(), spoilt]).unwrap();
    nodes[0].adopt(Some(&sums), vec![]).unwrap();
    let lacks = nodes[0].lacks().unwrap();
    assert!(lacks.contains("none of 2 groups"), "{lacks}");
    assert!(nodes[0].predict(&data(0).test).unwrap() == alone);
}

/// Of a group of four one may be missing, whatever the number of nodes: so much noise hides the sum of the other three.
#[test]
fn members_of_a_group_share_the_noise_of_its_sum() {
    let spec = grouped(Some(4.0));
    let total = spec.exchange.total.unwrap();
    assert_eq!((total.fewest, total.fewest_of_one()), (5, 3));
    let promised = total.least_noise(spec.nodes).unwrap() * 0.48f64.sqrt();
    assert!((promised - 1.081).abs() < 1e-3, "{promised}");
}

/// Of three each looks at the noise of the other two, since it knows its own.
#[test]
fn noise_of_three_hides_a_sample_from_each_of_them() {
    let mut spec = masked(Some(4.0));
    spec.nodes = 3;
    spec.exchange = Exchange::default();
    algorithm::fill_exchange(&mut spec).unwrap();
    let share = spec.exchange.total.unwrap().noise.unwrap() * 0.48f64.sqrt();
    assert!((share * 2f64.sqrt() - 1.081).abs() < 1e-3, "{share}");
}

#[test]
fn what_a_total_does_not_cover_is_refused() {
    let refused = |change: fn(&mut FederationSpec)| {
        let mut spec = masked(None);
        change(&mut spec);
        algorithm::fill_exchange(&mut spec).unwrap_err().0
    };
    let based = refused(|spec| {
        let fedper = HyperValue::Text("fedper".into());
        spec.hyper.insert("base".into(), fedper);
    });
    assert!(based.contains("hyper.base"), "{based}");
    let pooled = refused(|spec| spec.pool.preset = Some(Preset::Fixed));
    assert!(pooled.contains("pool"), "{pooled}");
    let averaged = refused(|spec| {
        (spec.algorithm, spec.privacy.group) = ("fedavg".into(), Some(4));
        spec.hyper.clear();
    });
    assert!(averaged.contains("privacy.group"), "{averaged}");
    let paper = refused(|spec| {
        let paper = HyperValue::Text("paper".into());
        spec.hyper.insert("profile".into(), paper);
    });
    assert!(paper.contains("`privacy.sums` must be `open`"), "{paper}");
}
