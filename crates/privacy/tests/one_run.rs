//! Lower bounds of ε from guesses of coins, held to SciPy's binomial distribution (`one_run.py`).
#![allow(clippy::unwrap_used)]

use fednode_privacy::one_run::Guesses;
use fednode_privacy::units::Delta;
use serde::Deserialize;

#[derive(Deserialize)]
struct File {
    error: f64,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    canaries: u32,
    made: u32,
    right: u32,
    delta: f64,
    epsilon: f64,
}

#[test]
fn bounds_are_those_of_scipy() {
    let file: File = serde_json::from_str(include_str!("one_run.json")).unwrap();
    assert_eq!(file.cases.len(), 21);
    for case in &file.cases {
        let guesses = Guesses {
            canaries: case.canaries,
            made: case.made,
            right: case.right,
        };
        let found = guesses.epsilon_above(Delta::new(case.delta).unwrap(), file.error);
        let Case { epsilon, delta, .. } = case;
        assert!(
            (found - epsilon).abs() < 1e-6,
            "{guesses:?} at {delta}: {found}, SciPy says {epsilon}"
        );
    }
}
