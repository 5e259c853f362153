//! The stage after the last round, played by the seeded simulator: who is in whose pool, and who is not waited for.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::time::Duration;

use fednode_core::NodeId;
use fednode_engine::{Note, Phase};
use fednode_sim::{self as sim, Behaviour, Incident, Outcome, Scenario};

/// One round of at most 5 s, then 5 s for the private module and 5 s for the gate.
fn one_round(nodes: usize) -> Scenario {
    let mut scenario = Scenario::new(1, nodes, 1);
    scenario.spec.pool.preset = Some(fednode_core::spec::Preset::Fixed);
    scenario
}

/// Plays it; returns for every member whom it took into its pool.
fn play(scenario: &Scenario) -> (Outcome, Vec<Option<BTreeSet<NodeId>>>) {
    let outcome = sim::run(scenario);
    assert_eq!(
        outcome.unfinished(),
        [] as [usize; 0],
        "unfinished after {:?}",
        outcome.elapsed
    );
    assert_eq!(outcome.invalid_used(), []);
    let pool = |member| {
        let mut pools = outcome
            .observed
            .pools
            .iter()
            .filter(|(owner, _)| *owner == member);
        pools
            .next_back()
            .map(|(_, members)| members.iter().map(|(node, _)| *node).collect())
    };
    let pools = (0..scenario.nodes).map(pool).collect();
    (outcome, pools)
}

#[test]
fn everybody_pools_everybody() {
    let (outcome, pools) = play(&one_round(5));
    for (member, pool) in pools.iter().enumerate() {
        let others = outcome.ids[..5]
            .iter()
            .copied()
            .filter(|id| *id != outcome.ids[member])
            .collect();
        assert_eq!(*pool, Some(others), "member {member}");
    }
    let notes = outcome
        .notes
        .iter()
        .filter(|(_, note)| matches!(note, Note::PoolGathered { .. }));
    assert!(
        notes.clone().count() == 5 && outcome.strikes.is_empty(),
        "{:?}",
        outcome.strikes
    );
    for (_, note) in notes {
        assert_eq!(
            *note,
            Note::PoolGathered {
                missing: Vec::new(),
                strangers: Vec::new()
            }
        );
    }
    assert!(
        outcome.elapsed < Duration::from_secs(17),
        "nobody waits for a deadline: {:?}",
        outcome.elapsed
    );
}

/// The toys of one cluster are alike: member 0 is with 3, 6 and 9.
#[test]
fn a_bounded_pool_takes_in_the_most_similar() {
    let mut scenario = one_round(12);
    scenario.spec.pool.max_members = 4;
    let (outcome, pools) = play(&scenario);
    for (member, pool) in pools.into_iter().enumerate() {
        let alike = (0..12).filter(|other| *other != member && other % 3 == member % 3);
        assert_eq!(
            pool,
            Some(alike.map(|other| outcome.ids[other]).collect()),
            "member {member}"
        );
    }
}

#[test]
fn bounded_pool_without_proxies_draws_its_candidates() {
    let mut scenario = one_round(12);
    scenario.spec.pool.max_members = 4;
    scenario.spec.exchange.experts = None;
    let (_, pools) = play(&scenario);
    let pools: Vec<_> = pools.into_iter().map(Option::unwrap).collect();
    assert!(
        pools.iter().all(|pool| pool.len() == 6),
        "two for each of the three that a trainer takes in"
    );
    assert_eq!(
        pools.iter().flatten().collect::<BTreeSet<_>>().len(),
        12,
        "not the same few for everybody"
    );
}

#[test]
fn node_that_dies_between_the_stages_is_not_waited_for() {
    let (outcome, pools) = play(&one_round(5).at(7.5, Incident::Kill(2)));
    let dead = outcome.ids[2];
    for (member, pool) in pools.iter().enumerate().filter(|(member, _)| *member != 2) {
        let pool = pool.as_ref().unwrap();
        assert!(
            pool.len() == 3 && !pool.contains(&dead),
            "member {member}: {pool:?}"
        );
    }
    assert!(
        outcome.elapsed < Duration::from_secs(20),
        "{:?}",
        outcome.elapsed
    );
}

#[test]
fn dead_owner_of_a_module_is_given_up_after_the_grace_time() {
    // A module takes so long to arrive that nobody holds it yet when its owner dies.
    let mut scenario = one_round(5).at(27.0, Incident::Kill(2));
    scenario.link.bandwidth = 20.0;
    scenario.spec.round.deadline_seconds = 600.0;
    let (outcome, pools) = play(&scenario);
    let dead = outcome.ids[2];
    assert!(pools.iter().flatten().all(|pool| !pool.contains(&dead)));
    assert!(
        outcome.elapsed < Duration::from_secs(100),
        "{:?}",
        outcome.elapsed
    );
}

#[test]
fn lone_node_has_a_pool_of_one() {
    let (outcome, pools) = play(
        &one_round(2)
            .at(7.5, Incident::Kill(1))
            .at(7.6, Incident::Kill(2)),
    );
    assert_eq!(pools[0], Some(BTreeSet::new()));
    assert!(
        outcome.elapsed < Duration::from_secs(20),
        "{:?}",
        outcome.elapsed
    );
}

#[test]
fn node_restarted_between_the_stages_makes_its_module_again() {
    let (outcome, pools) = play(
        &one_round(4)
            .at(7.5, Incident::Kill(1))
            .at(9.0, Incident::Restart(1)),
    );
    assert_eq!(outcome.members[1].0, Phase::Serving);
    assert_eq!(pools[1].as_ref().map(BTreeSet::len), Some(3));
}

#[test]
fn node_that_keeps_its_module_pools_those_of_others() {
    let (outcome, pools) = play(&one_round(4).with(3, Behaviour::KeptModule));
    let keeper = outcome.ids[3];
    for pool in pools[..3].iter().flatten() {
        assert!(pool.len() == 2 && !pool.contains(&keeper), "{pool:?}");
    }
    assert_eq!(pools[3].as_ref().map(BTreeSet::len), Some(3));
    let gathered = Note::PoolGathered {
        missing: Vec::new(),
        strangers: Vec::new(),
    };
    assert_eq!(
        outcome
            .notes
            .iter()
            .filter(|(_, note)| *note == gathered)
            .count(),
        4,
        "{:?}",
        outcome.notes
    );
    assert!(
        outcome.strikes.is_empty() && outcome.elapsed < Duration::from_secs(17),
        "{:?}",
        outcome.elapsed
    );
}

#[test]
fn a_module_that_is_not_finite_is_refused_and_costs_its_owner() {
    let (outcome, pools) = play(&one_round(4).with(3, Behaviour::NanExperts));
    let liar = outcome.ids[3];
    for pool in pools[..3].iter().flatten() {
        assert!(pool.len() == 2 && !pool.contains(&liar), "{pool:?}");
    }
    let refusals = outcome
        .strikes
        .iter()
        .filter(|(_, node, reason)| *node == liar && reason.starts_with("module"));
    assert_eq!(refusals.count(), 3);
}
