//! Statistics of a federation in which some lie: what is in the mean, who is named, and whether an audit agrees.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::Arc;

use fednode_core::{
    AdvertId, Averaging, BlobId, BlobRef, Exchange, FederationSpec, Member, NodeId, ParamSet,
    Round, Rule, Weighting,
};
use fednode_engine::{AverageOrder, AverageReport, MergeOrder, Purpose, execute};
use fednode_mix::Statistics;

const CLASSES: usize = 3;
const WIDTH: usize = 4;

fn node(byte: u8) -> NodeId {
    NodeId::from_bytes([byte; 32])
}

/// Sums of 60 samples, about the place of each class.
fn honest(byte: u8) -> Statistics {
    let mut sums = Statistics::new(CLASSES, WIDTH);
    for sample in 0..60_u32 {
        let class = (sample % 3) as usize;
        let noise = |at: usize| {
            let draw = (sample * 37 + at as u32 * 101 + u32::from(byte) * 53) % 17;
            draw as f32 / 17.0 - 0.5
        };
        let place = |at: usize| if at == class { 2.0 } else { 0.0 };
        let features: Vec<f32> = (0..WIDTH).map(|at| place(at) + noise(at)).collect();
        sums.add(&features, class);
    }
    sums.scale(1.0 / 60.0);
    sums
}

fn label_swap(byte: u8) -> Statistics {
    let mut sums = honest(byte);
    sums.sums.rotate_left(WIDTH);
    sums
}

fn hundredfold(byte: u8) -> Statistics {
    let mut sums = honest(byte);
    sums.counts.iter_mut().for_each(|count| *count *= 8.0);
    sums
}

fn part(sums: &Statistics) -> ParamSet {
    let mut part = ParamSet::new();
    let mut insert = |name: &str, shape: &[usize], values: &[f64]| {
        let values = values.iter().map(|value| *value as f32).collect();
        part.insert(name, shape, values).unwrap();
    };
    insert("statistics.counts", &[CLASSES], &sums.counts);
    insert("statistics.sums", &[CLASSES, WIDTH], &sums.sums);
    insert("statistics.scatter", &[sums.scatter.len()], &sums.scatter);
    part
}

/// Closes the round of statistics of these parts, then audits it. Returns the mean and what is said of it.
fn close_and_audit(parts: Vec<ParamSet>, rule: &str) -> (ParamSet, AverageReport) {
    let (mean, report) = close(&parts, rule);
    (mean.unwrap(), report)
}

/// As [`close_and_audit`], where there may be no mean.
fn close(parts: &[ParamSet], rule: &str) -> (Option<ParamSet>, AverageReport) {
    let held: BTreeMap<BlobId, Arc<ParamSet>> = parts
        .iter()
        .map(|params| (params.to_blob().0.id, Arc::new(params.clone())))
        .collect();
    let member = |(byte, params): (u8, &ParamSet)| Member {
        node: node(byte),
        shared: BlobRef::of(&params.to_blob().1),
        advert: AdvertId::of(&[byte]),
        weight: 60.0,
    };
    let mut order = AverageOrder {
        round: Round(1),
        purpose: Purpose::Close,
        members: (1..).zip(parts).map(member).collect(),
        masked: None,
    };
    let mut spec = FederationSpec {
        rounds: 1,
        exchange: Exchange {
            averaging: Some(Averaging {
                weighting: Weighting::Uniform,
                rule: Rule::named(rule),
            }),
            ..Exchange::default()
        },
        ..FederationSpec::default()
    };
    spec.statistics.enabled = true;
    let mut load = |id: &BlobId| held.get(id).cloned();
    let (mean, report) = execute::average(&order, &spec, &mut load);
    order.purpose = Purpose::Verify(0);
    order.members = report.members.clone();
    let (audited, again) = execute::average(&order, &spec, &mut load);
    assert_eq!(audited, mean, "an audit gets the same bits");
    assert_eq!(again.disbelieved, report.disbelieved);
    (mean, report)
}

#[test]
fn a_liar_is_named_and_not_in_the_mean() {
    for lie in [label_swap, hundredfold] {
        let sums = |byte| if byte == 3 { lie(byte) } else { honest(byte) };
        let (mean, report) = close_and_audit((1..=7).map(|n| part(&sums(n))).collect(), "mean");
        let named: Vec<NodeId> = report.disbelieved.iter().map(|(node, _)| *node).collect();
        assert_eq!(named, [node(3)]);
        assert_eq!(report.members.len(), 7, "it is counted all the same");
        assert_eq!(report.rejected, [], "and nobody is struck for it");
        let others = (1..=7).filter(|n| *n != 3).map(|n| part(&honest(n)));
        assert_eq!(mean, close_and_audit(others.collect(), "mean").0);
    }
}

/// Without a reason nobody could tell why the round stands, and the same parts would be averaged for ever.
#[test]
fn sums_of_which_none_are_believed_have_no_mean_and_a_reason() {
    let parts: Vec<ParamSet> = (1..=3).map(|n| part(&hundredfold(n))).collect();
    let (mean, report) = close(&parts, "mean");
    assert_eq!(mean, None);
    assert_eq!((report.lost, report.rejected), (vec![], vec![]));
    let reason = report.impossible.unwrap();
    assert!(
        reason.contains("nobody's statistics are believed"),
        "{reason}"
    );
}

/// Each node judges the others' statistics by its own, so it gets them one by one where they are here.
#[test]
fn a_node_gets_the_statistics_of_the_others_where_all_are_here() {
    let parts: Vec<ParamSet> = (1..=4).map(|n| part(&honest(n))).collect();
    let (mean, report) = close_and_audit(parts.clone(), "mean");
    let mut held: BTreeMap<BlobId, Arc<ParamSet>> = BTreeMap::new();
    for params in parts.iter().chain([&mean]) {
        held.insert(params.to_blob().0.id, Arc::new(params.clone()));
    }
    let order = MergeOrder {
        round: Round(1),
        adopt: Some(BlobRef::of(&mean.to_blob().1)),
        members: report.members,
        rows: vec![],
        own: vec![],
        sources: BTreeMap::new(),
    };
    let spec = FederationSpec::default();
    let merge = |held: &BTreeMap<BlobId, Arc<ParamSet>>| {
        let mut load = |id: &BlobId| held.get(id).cloned();
        let adoption = execute::merge(&order, &spec, node(2), Some(&parts[1]), &mut load).0;
        assert!(adoption.shared.is_some());
        let of = adoption.statistics.iter().map(|member| member.node);
        of.collect::<Vec<_>>()
    };
    assert_eq!(merge(&held), [node(1), node(3), node(4)]);
    held.remove(&parts[3].to_blob().0.id);
    assert_eq!(merge(&held), [], "the mean alone, where one is lacking");
}

/// An unscaled table makes an honest member's parameters large: they are left out, and nobody is to blame.
#[test]
fn a_part_that_is_only_large_is_no_crime() {
    let with = |value: f32| {
        let mut large = ParamSet::new();
        large.insert("w", &[1], vec![value]).unwrap();
        let mut parts: Vec<ParamSet> = Vec::new();
        for n in 1..=5 {
            let mut part = ParamSet::new();
            part.insert("w", &[1], vec![1.0 + n as f32 / 100.0])
                .unwrap();
            parts.push(part);
        }
        parts.push(large);
        close_and_audit(parts, "mean").1
    };
    let report = with(50.0);
    assert_eq!((report.rejected.len(), report.excused.len()), (1, 1));
    let report = with(f32::NAN);
    assert_eq!((report.rejected.len(), report.excused.len()), (1, 0));
}

/// The rule of training says nothing of statistics: their sums stay exact.
#[test]
fn robust_rules_of_training_leave_sums_as_they_are() {
    let parts = || (1..=5).map(|n| part(&honest(n))).collect::<Vec<_>>();
    let (mean, report) = close_and_audit(parts(), "mean");
    assert_eq!(report.disbelieved, []);
    for rule in ["median", "krum", "geometric-median"] {
        assert_eq!(close_and_audit(parts(), rule).0, mean, "{rule}");
    }
}
