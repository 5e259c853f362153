//! Whoever has more samples or a slower machine is counted, too. Who hangs, or is far too slow, holds others up once.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use common::seed;
use fednode_core::spec::Sums;
use fednode_core::{Round, Timestamp};
use fednode_engine::{Input, Note};
use fednode_sim::{self as sim, Incident, Observer, Outcome, Scenario, Toys};

const ROUNDS: u32 = 6;
/// How long a round of training takes the quick members.
const TOOK: Duration = Duration::from_secs(20);
/// The member that is not quick.
const SLOW: usize = 2;

/// Five nodes, of which one takes so many times as long as the others.
fn one_is_slow(times: u32, aggregator: bool) -> Scenario {
    one_of(5, times, aggregator)
}

/// So many nodes, of which one takes so many times as long as the others.
fn one_of(nodes: usize, times: u32, aggregator: bool) -> Scenario {
    let mut scenario = Scenario::new(seed(), nodes, ROUNDS);
    scenario.aggregator = aggregator;
    scenario.training = (TOOK, TOOK);
    scenario.slow.insert(SLOW, times);
    scenario
}

/// When the quick members were done.
#[derive(Default)]
struct Quick {
    done: Duration,
}

impl Observer for Quick {
    fn input(&mut self, now: Timestamp, member: usize, input: &Input) {
        if member != SLOW && matches!(input, Input::Merged(_)) {
            self.done = now.since(Timestamp::default());
        }
    }
}

/// Plays it, and returns how many members each closed round counts, and when the quick ones were done.
fn play(scenario: &Scenario) -> (BTreeMap<Round, u32>, Duration) {
    play_with(&mut Toys::new(scenario.seed, scenario.nodes + 1), scenario)
}

/// As [`play`], with models of one's own.
fn play_with(toys: &mut Toys, scenario: &Scenario) -> (BTreeMap<Round, u32>, Duration) {
    let mut quick = Quick::default();
    let outcome: Outcome = sim::run_observed(scenario, toys, &mut quick);
    assert_eq!(outcome.unfinished(), [] as [usize; 0]);
    let closed = outcome.notes.iter().filter_map(|(_, note)| match note {
        Note::RoundClosed { round, members, .. } => Some((*round, *members)),
        _ => None,
    });
    (closed.collect(), quick.done)
}

/// Plays it, and asserts that the last three rounds count all five members.
fn all_are_counted_in_the_end(scenario: &Scenario) {
    let (members, _) = play(scenario);
    let rounds = scenario.spec.rounds;
    for round in rounds - 2..=rounds {
        let counted = members.get(&Round(round));
        assert_eq!(counted, Some(&5), "round {round} of {members:?}");
    }
}

fn every_round_counts(members: u32) -> BTreeMap<Round, u32> {
    (1..=ROUNDS).map(|round| (Round(round), members)).collect()
}

#[test]
fn who_takes_twice_as_long_is_counted_in_every_round() {
    for aggregator in [true, false] {
        let (members, _) = play(&one_is_slow(2, aggregator));
        let all = every_round_counts(5);
        assert_eq!(members, all, "with an aggregator: {aggregator}");
    }
}

#[test]
fn so_it_is_where_sums_are_masked() {
    for aggregator in [true, false] {
        let mut scenario = one_is_slow(2, aggregator);
        scenario.spec.privacy.sums = Sums::Masked;
        scenario.spec.validate().unwrap();
        let (members, _) = play(&scenario);
        let all = every_round_counts(5);
        assert_eq!(members, all, "with an aggregator: {aggregator}");
    }
}

#[test]
fn so_it_is_where_slices_are_averaged() {
    // Parts of two and a third MiB have three slices.
    const FLOATS: usize = 611_669;
    for aggregator in [true, false] {
        let mut scenario = one_is_slow(2, aggregator);
        scenario.spec.round.slices = 3;
        scenario.spec.exchange.experts = None;
        scenario.spec.validate().unwrap();
        let mut toys = Toys::of_floats(scenario.seed, scenario.nodes + 1, FLOATS);
        let (members, _) = play_with(&mut toys, &scenario);
        let all = every_round_counts(5);
        assert_eq!(members, all, "with an aggregator: {aggregator}");
    }
}

#[test]
fn no_wait_for_who_is_slow_is_longer_than_the_deadline() {
    for aggregator in [true, false] {
        let mut scenario = one_is_slow(10, aggregator);
        // Less than the three times that it would have.
        let deadline = TOOK * 2;
        scenario.spec.round.deadline_seconds = deadline.as_secs_f64();
        let (members, took) = play(&scenario);
        assert_eq!(
            members,
            every_round_counts(4),
            "with an aggregator: {aggregator}"
        );
        let grace = scenario.spec.round.grace();
        let most = TOOK * ROUNDS + deadline + (grace + Duration::from_secs(2)) * ROUNDS;
        assert!(took < most, "{took:?}, with an aggregator: {aggregator}");
    }
}

#[test]
fn who_takes_ten_times_as_long_holds_others_up_once() {
    for (nodes, aggregator) in [(5, true), (5, false), (4, true), (4, false)] {
        let scenario = one_of(nodes, 10, aggregator);
        let (members, took) = play(&scenario);
        let others = every_round_counts(nodes as u32 - 1);
        let case = format!("{nodes} nodes, with an aggregator: {aggregator}");
        assert_eq!(members, others, "{case}");
        // The first round takes three times as long. Each one has a grace time, and little else.
        let grace = scenario.spec.round.grace();
        let most = TOOK * (ROUNDS + 2) + (grace + Duration::from_secs(2)) * ROUNDS;
        assert!(took < most, "{took:?}, {case}");
    }
}

#[test]
fn where_nobody_aggregates_the_quickest_does_not_decide_how_long_others_have() {
    let mut scenario = one_is_slow(8, false);
    scenario.training = (TOOK / 4, TOOK / 4);
    scenario.slow.extend([(1, 4), (3, 4), (4, 4)]);
    let (members, _) = play(&scenario);
    assert_eq!(members, every_round_counts(5));
}

#[test]
fn who_was_away_is_counted_again() {
    for aggregator in [true, false] {
        let mut scenario = one_is_slow(2, aggregator)
            .at(50.0, Incident::Kill(SLOW))
            .at(75.0, Incident::Restart(SLOW));
        scenario.spec.rounds = 10;
        all_are_counted_in_the_end(&scenario);
    }
}

#[test]
fn an_aggregator_that_comes_back_learns_who_is_slow() {
    let mut scenario = one_is_slow(2, true)
        .at(50.0, Incident::Kill(5))
        .at(53.0, Incident::Restart(5));
    scenario.spec.rounds = 10;
    all_are_counted_in_the_end(&scenario);
}

#[test]
fn where_some_rest_who_is_far_too_slow_holds_nobody_up_for_long() {
    for aggregator in [true, false] {
        let mut scenario = Scenario::new(seed(), 10, 10);
        scenario.aggregator = aggregator;
        scenario.training = (TOOK, TOOK);
        scenario.slow.insert(SLOW, 20);
        scenario.spec.round.participation = 0.8;
        let (_, took) = play(&scenario);
        let grace = scenario.spec.round.grace();
        let most = TOOK * (10 + 4) + (grace + Duration::from_secs(2)) * 10;
        assert!(took < most, "{took:?}, with an aggregator: {aggregator}");
    }
}
