//! Ridge regression of several sites, held to scikit-learn (`tests/data/ridge.json`, written by the script beside it).

use fednode_mix::ridge::{self, Intercept, Joint, Line, Problem, Setting};
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
