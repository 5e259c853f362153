//! Ridge regression of several sites, held to scikit-learn (`tests/data/ridge.json`, written by the script beside it).

use fednode_core::ParamSet;
use fednode_mix::ridge::{self, Intercept, Joint, Line, Problem, Setting};
use proptest::collection::vec;
use proptest::prelude::*;
use serde::Deserialize;

#[derive(Deserialize)]
struct Golden {
    ridge: f64,
    sites: Vec<Site>,
    common: Expected,
    left_out: f64,
    own: Expected,
}

#[derive(Deserialize)]
struct Site {
    features: Vec<f32>,
    numbers: Vec<f32>,
}

#[derive(Deserialize)]
struct Expected {
    weights: Vec<f64>,
    offset: f64,
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("data/ridge.json")).expect("a golden file")
}

/// The first site's rows, and the sums of the others.
fn problem(sites: &[Site], change: impl Fn(f32) -> f32) -> Problem {
    let (first, others) = sites.split_first().expect("three sites");
    let changed = |site: &Site| -> Vec<f32> { site.numbers.iter().copied().map(&change).collect() };
    let joints: Vec<(f64, Joint)> = others
        .iter()
        .map(|site| {
            (
                site.numbers.len() as f64,
                Joint::of(&site.features, &changed(site)),
            )
        })
        .collect();
    let peers: Vec<(f64, &Joint)> = joints
        .iter()
        .map(|(weight, joint)| (*weight, joint))
        .collect();
    Problem::new(&first.features, &first.numbers, &peers).expect("finite rows")
}

fn assert_same(found: &Line, expected: &Expected) {
    let pairs = found.weights.iter().zip(&expected.weights);
    for (got, expected) in pairs.chain([(&found.offset, &expected.offset)]) {
        assert!(
            (got - expected).abs() < 1e-6 * expected.abs().max(1.0),
            "{got} beside {expected}"
        );
    }
}

#[test]
fn sums_of_sites_give_the_line_of_all_rows_together() {
    let golden = golden();
    let problem = problem(&golden.sites, |number| number);
    let setting = Setting {
        trust: 1.0,
        ridge: golden.ridge,
        intercept: Intercept::Common,
    };
    let found = problem.find(setting).expect("a line");
    assert_same(&found.line, &golden.common);
    assert!(
        (found.square() - golden.left_out).abs() < 1e-6 * golden.left_out,
        "{}",
        found.square()
    );
    let by_site = Setting {
        intercept: Intercept::Own,
        ..setting
    };
    assert_same(&problem.find(by_site).expect("a line").line, &golden.own);
}

#[test]
fn peers_are_trusted_as_far_as_they_help() {
    let golden = golden();
    let trust = |change: fn(f32) -> f32| {
        let problem = problem(&golden.sites, change);
        let [all, alone] =
            [problem.with_peers(), problem.alone()].map(|found| found.expect("a line"));
        (all.setting.trust, alone.setting.trust)
    };
    assert_eq!(
        trust(|number| number),
        (1.0, 0.0),
        "twelve rows of their own say little"
    );
    assert_eq!(
        trust(|number| -5.0 * number),
        (0.0, 0.0),
        "peers of the opposite opinion"
    );
}

/// A peer whose features lie a million deviations off makes all own ones alike on a common scale.
#[test]
fn a_peer_that_spoils_the_scale_does_no_harm() {
    let golden = golden();
    let own = &golden.sites[1];
    let alone = ridge::solve(&own.features, &own.numbers, &[]).expect("a line");
    let far: Vec<f32> = own.features.iter().map(|x| x * 1e6 + 1e8).collect();
    let liar = Joint::of(&far, &own.numbers);
    let found = ridge::solve(&own.features, &own.numbers, &[(300.0, &liar)]).expect("a line");
    assert!(
        found.square() < 1.01 * alone.square(),
        "{} beside {}",
        found.square(),
        alone.square()
    );
}

#[test]
fn rows_that_give_no_line_are_refused() {
    assert!(Problem::new(&[], &[], &[]).is_err(), "no rows");
    assert!(Problem::new(&[1.0, f32::NAN], &[1.0, 2.0], &[]).is_err());
    let constant = Problem::new(&[3.0, 3.0, 3.0], &[1.0, 2.0, 3.0], &[]).expect("finite rows");
    let line = constant.alone().expect("the mean").line;
    assert!((line.at(&[3.0]) - 2.0).abs() < 1e-9, "{line:?}");
}

/// Means and covariances of a peer that says whatever it likes, as far as they are read.
fn anything() -> impl Strategy<Value = Joint> {
    let mean = || prop_oneof![-3.0..3.0f32, -1e3..1e3f32, Just(1e30f32)];
    let deviation = || prop_oneof![0.1..3.0f32, 0.0..1e-6f32, 1.0..1e15f32];
    let joint = (vec(mean(), 5), vec(deviation(), 5), vec(-0.2..0.2f32, 15));
    joint.prop_map(|(means, deviations, correlations)| {
        let places = (0..5).flat_map(|row| (row..5).map(move |at| (row, at)));
        let covariance = |((row, at), r): ((usize, usize), &f32)| {
            let r = if row == at { 1.0 } else { *r };
            r * deviations[row] * deviations[at]
        };
        let covariances = places.zip(&correlations).map(covariance).collect();
        let mut params = ParamSet::new();
        params.insert("ridge.means", &[5], means).expect("five");
        params
            .insert("ridge.covariances", &[15], covariances)
            .expect("fifteen");
        Joint::read(&params).expect("rows might have them")
    })
}

/// A peer that says what rows might have said, times a factor.
fn plausible() -> impl Strategy<Value = Joint> {
    let row = vec(-2.0..2.0f32, 5);
    (vec(row, 1..9), -6..7i32).prop_map(|(rows, power)| {
        let factor = 10f32.powi(power);
        let features: Vec<f32> = rows
            .iter()
            .flat_map(|row| row[..4].iter().map(|x| x * factor))
            .collect();
        let numbers: Vec<f32> = rows.iter().map(|row| row[4] * factor).collect();
        Joint::of(&features, &numbers)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    /// No peer makes the line of a node worse, on rows left out, than noise lets it see; nor does any stop the node.
    #[test]
    fn whatever_peers_say_the_own_line_stays(
        peers in vec((prop_oneof![0.0..1e4f64, Just(1e12)], prop_oneof![anything(), plausible()]), 1..4),
    ) {
        let golden = golden();
        let own = &golden.sites[1];
        let alone = ridge::solve(&own.features, &own.numbers, &[]).expect("a line");
        let peers: Vec<(f64, &Joint)> = peers.iter().map(|(rows, joint)| (*rows, joint)).collect();
        if let Ok(found) = ridge::solve(&own.features, &own.numbers, &peers) {
            prop_assert!(found.line.weights.iter().chain([&found.line.offset]).all(|number| number.is_finite()));
            prop_assert!(found.square() < 2.1 * alone.square(), "{} beside {}", found.square(), alone.square());
        }
    }
}
