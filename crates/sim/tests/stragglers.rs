//! Whoever has more samples or a slower machine is counted, too. Who hangs, or is far too slow, holds others up once.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use common::seed;
use fednode_core::{Round, Timestamp};
use fednode_engine::{Input, Note};
use fednode_sim::{self as sim, Observer, Outcome, Scenario, Toys};

const ROUNDS: u32 = 6;
/// How long a round of training takes the quick members.
const TOOK: Duration = Duration::from_secs(20);
/// The member that is not quick.
const SLOW: usize = 2;

/// Five nodes, of which one takes so many times as long as the others.
fn one_is_slow(times: u32, aggregator: bool) -> Scenario {
    let mut scenario = Scenario::new(seed(), 5, ROUNDS);
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
    let (mut toys, mut quick) = (Toys::new(scenario.seed, 6), Quick::default());
    let outcome: Outcome = sim::run_observed(scenario, &mut toys, &mut quick);
    assert_eq!(outcome.unfinished(), [] as [usize; 0]);
    let closed = outcome.notes.iter().filter_map(|(_, note)| match note {
        Note::RoundClosed { round, members, .. } => Some((*round, *members)),
        _ => None,
    });
    (closed.collect(), quick.done)
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
fn who_takes_ten_times_as_long_holds_others_up_once() {
    for aggregator in [true, false] {
        let scenario = one_is_slow(10, aggregator);
        let (members, took) = play(&scenario);
        let others = every_round_counts(4);
        assert_eq!(members, others, "with an aggregator: {aggregator}");
        // The first round takes three times as long. Each one has a grace time, and little else.
        let grace = scenario.spec.round.grace();
        let most = TOOK * (ROUNDS + 2) + (grace + Duration::from_secs(2)) * ROUNDS;
        assert!(took < most, "{took:?}, with an aggregator: {aggregator}");
    }
}
