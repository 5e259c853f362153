//! Experts in closed form: slots against an independent double-precision run, and what they are for.
#![allow(clippy::unwrap_used)]

use fednode_mix::Statistics;
use fednode_mix::slots::{Directions, Grouped, SLOTS, Slots, classes_of, group};
use fednode_mix::statistics::EPSILON;

#[derive(serde::Deserialize)]
struct Golden {
    variances: Vec<f64>,
    nodes: Vec<Node>,
    temperature: f64,
    features: Vec<Vec<f32>>,
    scores: Vec<Vec<f64>>,
}

#[derive(serde::Deserialize)]
struct Node {
    counts: Vec<f64>,
    sums: Vec<f64>,
    scatter: Vec<f64>,
    weight: f64,
}

/// `tests/data/slots.json`: three nodes, two classes of two groups, four features; eigenvectors by LAPACK there.
#[test]
fn slots_agree_with_the_reference_run() {
    let golden: Golden = serde_json::from_str(include_str!("data/slots.json")).unwrap();
    let statistics = |node: &Node| {
        let mut statistics = Statistics::new(4, 4);
        statistics.counts.clone_from(&node.counts);
        statistics.sums.clone_from(&node.sums);
        statistics.scatter.clone_from(&node.scatter);
        statistics
    };
    let all: Vec<Statistics> = golden.nodes.iter().map(statistics).collect();
    let nodes: Vec<Grouped<'_>> = all
        .iter()
        .zip(&golden.nodes)
        .map(|(statistics, node)| Grouped {
            statistics,
            weight: node.weight,
        })
        .collect();
    let directions = Directions::within_classes(&classes_of(&nodes).unwrap(), 4).unwrap();
    for (got, expected) in directions.variances().iter().zip(&golden.variances) {
        assert!(
            (got / expected - 1.0).abs() < 1e-4,
            "{got} is not {expected}"
        );
    }
    let slots = Slots::fit(&nodes, &directions).unwrap();
    for (features, expected) in golden.features.iter().zip(&golden.scores) {
        let got = slots.scores(&slots.rows.logits(features), golden.temperature);
        for (got, expected) in got.iter().zip(expected) {
            assert!((got - expected).abs() < 1e-4, "{got} is not {expected}");
        }
    }
}

/// Two classes whose means are the same: class 0 lies east and west of the middle, class 1 north and south of it. A node
/// has either all of both, or one side of each.
const SIDES: [[[f32; 2]; 2]; 2] = [[[6.0, 0.0], [-6.0, 0.0]], [[0.0, 4.0], [0.0, -4.0]]];

/// A column that never changes has no direction, and spoils no slot.
#[test]
fn a_constant_column_changes_no_score() {
    let with_column = |sides: &[usize]| {
        let narrow = node(sides);
        let mut wide = Statistics::new(4, 3);
        wide.counts.clone_from(&narrow.counts);
        wide.sums = narrow
            .sums
            .chunks(2)
            .zip(&narrow.counts)
            .flat_map(|(sums, count)| [sums[0], sums[1], *count])
            .collect();
        let total = |feature: usize| narrow.sums.iter().skip(feature).step_by(2).sum::<f64>();
        let [xx, xy, yy] = [0, 1, 2].map(|at| narrow.scatter[at]);
        wide.scatter = vec![xx, xy, total(0), yy, total(1), 1.0];
        wide
    };
    let all = [with_column(&[0, 1]), with_column(&[0]), with_column(&[1])];
    let nodes = grouped(&all);
    let directions = Directions::within_classes(&classes_of(&nodes).unwrap(), 3).unwrap();
    assert_eq!(directions.variances().len(), 2);
    let slots = Slots::fit(&nodes, &directions).unwrap();
    let scores = slots.scores(&slots.rows.logits(&[6.0, 0.0, 1.0]), 1.0);
    assert!(scores[0] - scores[1] > 2.0, "{scores:?}");
}

fn grouped(all: &[Statistics]) -> Vec<Grouped<'_>> {
    let weight = 16.0;
    let grouped = all.iter().map(|statistics| Grouped { statistics, weight });
    grouped.collect()
}

/// The statistics of a node with eight samples around each of its sides, divided by their number.
fn node(sides: &[usize]) -> Statistics {
    let mut all = Statistics::new(4, 2);
    for (class, of_class) in SIDES.iter().enumerate() {
        for side in sides {
            for step in 0..8 {
                let [x, y] = of_class[*side];
                let angle = std::f32::consts::FRAC_PI_4 * step as f32;
                all.add(&[x + angle.cos(), y + angle.sin()], 2 * class + side);
            }
        }
    }
    all.scale(1.0 / all.total());
    all
}

#[test]
fn slots_tell_apart_what_class_means_cannot() {
    let all = [node(&[0, 1]), node(&[0]), node(&[1])];
    let nodes = grouped(&all);
    let classes = classes_of(&nodes).unwrap();
    let directions = Directions::within_classes(&classes, 2).unwrap();
    let slots = Slots::fit(&nodes, &directions).unwrap();
    let means: Slots = classes.solve(EPSILON).unwrap().into();
    let confidence = |slots: &Slots, class: usize, side: usize| {
        let logits = slots.rows.logits(&SIDES[class][side]);
        let scores = slots.scores(&logits, 1.0);
        scores[class] - scores[1 - class]
    };
    for (class, side) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let [with, without] = [&slots, &means].map(|slots| confidence(slots, class, side));
        assert!(with > 2.0, "class {class}, side {side}: {with}");
        assert!(
            without.abs() < 1e-6,
            "class {class}, side {side}: {without}"
        );
    }
    assert_eq!(slots.log_shares.len(), 2 * SLOTS);
}

#[test]
fn a_class_is_split_where_both_halves_have_five_samples() {
    let points = |sizes: [usize; 2]| -> Vec<Vec<f64>> {
        let clump = |at: f64, size: usize| (0..size).map(move |i| vec![at + 0.01 * i as f64, 0.0]);
        clump(-1.0, sizes[0]).chain(clump(2.0, sizes[1])).collect()
    };
    let split = |sizes: [usize; 2]| group(&points(sizes));
    assert_eq!(split([6, 5]), [[0; 6].as_slice(), &[1; 5]].concat());
    assert_eq!(split([7, 4]), [0; 11], "four are too few");
    assert_eq!(group(&[]), [0; 0]);
}
