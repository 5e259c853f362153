//! What every division must fulfil, and the shapes that PFLlib's and FedMoE-DA's have.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use fednode_data::partition::{Labelling, Request, Rule};
use fednode_data::{NodeIndices, Partition};
use proptest::prelude::*;

/// Labels of a pool like Fashion-MNIST's: equal classes, mixed.
fn labels(n: usize, classes: usize) -> Vec<u16> {
    (0..n).map(|i| (i * 7 % classes) as u16).collect()
}

fn divide(
    rule: &str,
    labels: &[u16],
    classes: usize,
    nodes: usize,
    per_node: usize,
    seed: u64,
) -> Partition {
    let request = Request {
        labels,
        classes,
        nodes,
        samples_per_node: per_node,
        known: fednode_data::partition::Known::default(),
    };
    rule.parse::<Rule>()
        .unwrap()
        .divide(&request, seed)
        .unwrap()
}

fn counts(indices: &[u32], labels: &[u16], classes: usize) -> Vec<usize> {
    let mut counts = vec![0; classes];
    indices
        .iter()
        .for_each(|index| counts[usize::from(labels[*index as usize])] += 1);
    counts
}

fn held(node: &NodeIndices, labels: &[u16]) -> usize {
    node.all()
        .map(|index| labels[index as usize])
        .collect::<BTreeSet<_>>()
        .len()
}

fn rule() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "iid",
        "dirichlet:0.01",
        "dirichlet:0.1",
        "dirichlet:10",
        "dirichlet-uncapped:0.1",
        "dirichlet-shared:0.1,20",
        "pathological:2",
        "pathological:2,balanced",
        "fixed-dirichlet:0.1",
        "fixed-dirichlet:1",
        "fixed-pathological:2,unbalanced",
    ])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn every_sample_at_most_once_and_nobody_empty(
        rule in rule(), nodes in 1usize..24, per_node in prop::sample::select(vec![0usize, 8, 50]), seed in any::<u64>(),
    ) {
        let labels = labels(1_500, 10);
        let partition = divide(rule, &labels, 10, nodes, per_node, seed);
        let all: Vec<u32> = partition.nodes().iter().flat_map(NodeIndices::all).collect();
        prop_assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
        prop_assert!(all.iter().all(|index| (*index as usize) < labels.len()));
        prop_assert_eq!(partition.nodes().len(), nodes);
        // So few samples that a class has less than its holders cannot give every node its classes.
        if per_node != 8 || !rule.starts_with("pathological") {
            prop_assert!(partition.nodes().iter().all(|node| !node.train.is_empty() && !node.test.is_empty()));
        }
        if !rule.contains("pathological") && !rule.contains("fixed") {
            prop_assert_eq!(all.len(), if per_node == 0 { labels.len() } else { nodes * per_node });
        }
    }

    #[test]
    fn the_seed_decides_everything(rule in rule(), seed in any::<u64>()) {
        let labels = labels(1_500, 10);
        let once = divide(rule, &labels, 10, 7, 50, seed);
        let again = divide(rule, &labels, 10, 7, 50, seed);
        prop_assert_eq!(once.hash(), again.hash());
        prop_assert_eq!(&once, &again);
        let other = divide(rule, &labels, 10, 7, 50, seed.wrapping_add(1));
        prop_assert_ne!(once.hash(), other.hash());
    }

    #[test]
    fn dirichlet_keeps_the_minimum_of_pfllib(alpha in prop::sample::select(vec!["0.01", "0.1", "1"]), seed in any::<u64>()) {
        let labels = labels(4_000, 10);
        let partition = divide(&format!("dirichlet:{alpha}"), &labels, 10, 20, 0, seed);
        prop_assert!(partition.nodes().iter().all(|node| node.len() >= 40));
    }
}

/// 70,000 samples, 20 nodes, alpha 0.1: PFLlib's Fashion-MNIST has nodes of 82 to 8,551 samples around a mean of 3,500 and
/// 52,493 training samples; its other seeds and data sets look alike.
#[test]
fn dirichlet_has_the_shape_of_pfllib() {
    let labels = labels(70_000, 10);
    let mut smallest_to_largest = Vec::new();
    for seed in 0..10 {
        let partition = divide("dirichlet:0.1", &labels, 10, 20, 0, seed);
        let sizes: Vec<usize> = partition.nodes().iter().map(NodeIndices::len).collect();
        assert_eq!(sizes.iter().sum::<usize>(), 70_000);
        let train: usize = partition.nodes().iter().map(|node| node.train.len()).sum();
        assert!((52_485..=52_500).contains(&train), "{train}");
        assert!(
            sizes.iter().all(|size| (40..17_500).contains(size)),
            "{sizes:?}"
        );
        smallest_to_largest
            .push(*sizes.iter().min().unwrap() as f64 / *sizes.iter().max().unwrap() as f64);
        // At alpha 0.1 most of a class goes to a few nodes: the largest share of a class is far above a twentieth.
        let per_node: Vec<Vec<usize>> = partition
            .nodes()
            .iter()
            .map(|node| counts(&node.all().collect::<Vec<_>>(), &labels, 10))
            .collect();
        let largest: f64 = (0..10)
            .map(|class| {
                per_node.iter().map(|counts| counts[class]).max().unwrap() as f64 / 7_000.0
            })
            .sum();
        assert!((0.25..0.75).contains(&(largest / 10.0)), "{largest}");
    }
    let mean = smallest_to_largest.iter().sum::<f64>() / 10.0;
    assert!(mean < 0.2, "sizes differ as widely as PFLlib's: {mean}");
}

/// A share of Dir(alpha, …, alpha) over M nodes has mean 1/M and variance (M - 1) / (M² (M alpha + 1)). Each node holds
/// a share of each of C equal classes. So their sizes deviate by sqrt((M - 1) / (M alpha + 1) / C) of their mean: 0.44
/// here.
#[test]
fn without_a_cap_sizes_vary_as_dirichlet_shares_do() {
    let labels = labels(70_000, 10);
    let deviation = |rule: &str| {
        let squares = (0..10).flat_map(|seed| {
            let partition = divide(rule, &labels, 10, 100, 0, seed);
            partition
                .nodes()
                .iter()
                .map(|node| (node.len() as f64 / 700.0 - 1.0).powi(2))
                .collect::<Vec<_>>()
        });
        (squares.sum::<f64>() / 1000.0).sqrt()
    };
    let (uncapped, capped) = (
        deviation("dirichlet-uncapped:0.5"),
        deviation("dirichlet:0.5"),
    );
    assert!(
        (uncapped - 0.44).abs() < 0.03 && capped < 0.9 * uncapped,
        "{uncapped} without a cap, {capped} with it"
    );
}

#[test]
fn a_shared_part_reaches_every_node_in_every_class() {
    let labels = labels(70_000, 10);
    let partition = divide("dirichlet-shared:0.1,20", &labels, 10, 20, 0, 1);
    for node in partition.nodes() {
        // 20 % of 7,000 over 20 nodes.
        assert!(
            counts(&node.all().collect::<Vec<_>>(), &labels, 10)
                .iter()
                .all(|count| *count >= 70)
        );
    }
    let all = divide("dirichlet-shared:0.1,100", &labels, 10, 20, 0, 1);
    assert!(all.nodes().iter().all(|node| node.len() == 3_500));
}

#[test]
fn large_alpha_is_nearly_even() {
    let labels = labels(20_000, 10);
    let partition = divide("dirichlet:1000", &labels, 10, 10, 0, 3);
    for node in partition.nodes() {
        let counts = counts(&node.all().collect::<Vec<_>>(), &labels, 10);
        assert!(
            counts.iter().all(|count| (100..300).contains(count)),
            "{counts:?}"
        );
    }
}

#[test]
fn iid_gives_every_node_the_same_mix() {
    let labels = labels(10_003, 10);
    let partition = divide("iid", &labels, 10, 10, 0, 3);
    for node in partition.nodes() {
        assert!((1_000..=1_001).contains(&node.len()));
        let counts = counts(&node.all().collect::<Vec<_>>(), &labels, 10);
        assert!(
            counts.iter().all(|count| (99..=101).contains(count)),
            "{counts:?}"
        );
        assert_eq!(node.train.len(), node.len() * 3 / 4);
    }
    let some = divide("iid", &labels, 10, 10, 500, 3);
    assert!(
        some.nodes()
            .iter()
            .all(|node| (node.train.len(), node.test.len()) == (375, 125))
    );
}

#[test]
fn pathological_gives_classes_to_nodes_in_the_order_of_pfllib() {
    let labels = labels(10_000, 10);
    for (rule, balanced) in [("pathological:2", false), ("pathological:2,balanced", true)] {
        let partition = divide(rule, &labels, 10, 20, 0, 3);
        for (number, node) in partition.nodes().iter().enumerate() {
            // Four nodes per class: nodes 0 to 3 hold classes 0 and 1, and so on.
            let expected: BTreeSet<u16> = [number / 4 * 2, number / 4 * 2 + 1]
                .map(|class| class as u16)
                .into();
            assert_eq!(
                node.all()
                    .map(|index| labels[index as usize])
                    .collect::<BTreeSet<_>>(),
                expected
            );
        }
        let sizes: BTreeSet<usize> = partition.nodes().iter().map(NodeIndices::len).collect();
        assert_eq!(sizes.len() == 1, balanced, "{sizes:?}");
        assert_eq!(
            partition
                .nodes()
                .iter()
                .map(NodeIndices::len)
                .sum::<usize>(),
            10_000
        );
    }
}

#[test]
fn pathological_works_for_any_number_of_nodes() {
    let labels = labels(10_000, 10);
    for nodes in 1..30 {
        let partition = divide("pathological:2", &labels, 10, nodes, 0, 1);
        assert!(
            partition
                .nodes()
                .iter()
                .all(|node| held(node, &labels) <= 2 && !node.train.is_empty()),
            "{nodes}"
        );
    }
}

#[test]
fn fixed_nodes_have_equal_sizes_and_test_on_their_own_label_shares() {
    let labels = labels(70_000, 10);
    let partition = divide("fixed-dirichlet:1", &labels, 10, 50, 667, 1);
    for node in partition.nodes() {
        assert_eq!((node.train.len(), node.test.len()), (500, 167));
        let (train, test) = (
            counts(&node.train, &labels, 10),
            counts(&node.test, &labels, 10),
        );
        for (train, test) in train.iter().zip(test) {
            assert!(
                (*train as f64 / 3.0 - test as f64).abs() <= 2.0,
                "{train} and {test}"
            );
        }
    }
    let mean_classes = partition
        .nodes()
        .iter()
        .map(|node| held(node, &labels))
        .sum::<usize>() as f64
        / 50.0;
    assert!(
        (2.0..8.0).contains(&mean_classes),
        "skewed, not collapsed: {mean_classes}"
    );
}

#[test]
fn fixed_pathological_nodes_hold_two_classes_three_to_one() {
    let labels = labels(70_000, 10);
    for (rule, share) in [
        ("fixed-pathological:2", 0.5),
        ("fixed-pathological:2,unbalanced", 0.75),
    ] {
        let partition = divide(rule, &labels, 10, 50, 667, 1);
        let mut largest = 0.0;
        for node in partition.nodes() {
            assert_eq!((held(node, &labels), node.train.len()), (2, 500));
            largest +=
                *counts(&node.train, &labels, 10).iter().max().unwrap() as f64 / 500.0 / 50.0;
        }
        assert!((largest - share).abs() < 0.03, "{rule}: {largest}");
    }
}

#[test]
fn a_class_that_is_used_up_does_not_stop_the_division() {
    let labels = labels(200, 10);
    let partition = divide("fixed-pathological:1", &labels, 10, 10, 20, 1);
    assert_eq!(
        partition
            .nodes()
            .iter()
            .map(NodeIndices::len)
            .sum::<usize>(),
        200
    );
}

#[test]
fn reads_the_reference_lists() {
    let text = include_str!("data/fm20-dir01-12k.json");
    let (partition, labelling) = Partition::from_json(text).unwrap();
    assert_eq!(
        labelling,
        Labelling {
            dataset: "fashion-mnist".into(),
            partition: "dir".into(),
            seed: 1
        }
    );
    let sizes: Vec<usize> = partition.nodes().iter().map(NodeIndices::len).collect();
    assert_eq!(
        (sizes.len(), sizes.iter().sum::<usize>(), sizes[3]),
        (20, 12_000, 88)
    );

    let path = concat!(
        "file:",
        env!("CARGO_MANIFEST_DIR"),
        "/tests/data/fm20-dir01-12k.json"
    );
    let labels = labels(70_000, 10);
    assert_eq!(divide(path, &labels, 10, 20, 0, 9), partition);
    let refuse = |labels: &[u16], nodes| {
        let request = Request {
            labels,
            classes: 10,
            nodes,
            samples_per_node: 0,
            known: fednode_data::partition::Known::default(),
        };
        path.parse::<Rule>()
            .unwrap()
            .divide(&request, 1)
            .unwrap_err()
            .to_string()
    };
    assert!(refuse(&labels, 5).ends_with("fm20-dir01-12k.json` divides among 20 nodes, not 5"));
    assert!(refuse(&labels[..60_000], 20).contains("but the data set has 60000"));
}
