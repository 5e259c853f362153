//! Experts exchanged where nothing is averaged: no closed round keeps the nodes together, and still nobody runs ahead.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use fednode_core::Round;
use fednode_sim::{self as sim, Incident, Scenario};

fn scenario(nodes: usize, rounds: u32) -> Scenario {
    let mut scenario = Scenario::new(3, nodes, rounds);
    scenario.spec.exchange.averaging = None;
    scenario
}

#[test]
fn plans_are_what_somebody_who_knows_everything_would_have_made() {
    let scenario = scenario(5, 6);
    let outcome = sim::run(&scenario);
    assert_eq!(outcome.unfinished(), [] as [usize; 0]);
    let exchange = scenario.spec.exchange.experts.as_ref().unwrap();
    assert_eq!(
        outcome.imperfect_plans(exchange, &[]).len(),
        0,
        "of {}",
        outcome.observed.plans.len()
    );
    assert_eq!(
        outcome.observed.plans.len(),
        5 * 3,
        "from rounds 1, 3 and 5"
    );
    for member in 0..5 {
        let from_others = outcome
            .observed
            .used
            .iter()
            .filter(|used| used.0 == member && used.2.owner != outcome.ids[member]);
        let rounds: std::collections::BTreeSet<Round> = from_others.map(|used| used.1).collect();
        assert_eq!(
            rounds.len(),
            5,
            "node {member} mixes from round 2 on: {rounds:?}"
        );
    }
    // Rounds of at most 5 s of training need not wait for a deadline.
    assert!(
        outcome.elapsed < Duration::from_secs(6 * 9),
        "{:?}",
        outcome.elapsed
    );
}

#[test]
fn a_dead_node_holds_nobody_up_for_longer_than_the_grace_time() {
    let mut scenario = scenario(5, 6);
    scenario
        .incidents
        .push((Duration::from_secs(12), Incident::Kill(4)));
    let outcome = sim::run(&scenario);
    assert_eq!(outcome.unfinished(), [] as [usize; 0], "of those that live");
    // The deadline is 60 s; the first round alone may wait for it.
    assert!(
        outcome.elapsed < Duration::from_secs(6 * 12),
        "{:?}",
        outcome.elapsed
    );
}
