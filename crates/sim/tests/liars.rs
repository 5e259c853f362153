//! Members that lie, by name and at random, against the real machines of everybody else.
//!
//! Whatever liars say, the honest members must keep four promises, which [`check`] looks at after every run:
//!
//! 1. No honest member bans an honest one.
//! 2. Every closed round that an honest node follows counts a majority of the honest nodes that are there, with what they
//!    signed.
//! 3. No round takes longer than the training, the deadline and six grace times.
//! 4. All honest nodes end on one chain. Of the last round alone there may be two true closings. Whoever's turn it is can
//!    count one member less for some than for others, and no later round shows which of them most nodes follow. Where one of
//!    the two is of no use, whoever chose it ends with the round before.
//!
//! Random liars are played with as many seeds as it takes to say `FEDNODE_FUZZ_ADVERTS` adverts, the others with
//! `FEDNODE_FUZZ_SEEDS` seeds. A failure prints the seed; `FEDNODE_SIM_SEED` plays it again. `scripts/fuzz` is for a night.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use fednode_core::{BlobId, Body, ClosingId, Global, NodeId, Round, Timestamp};
use fednode_engine::{Input, Note, Output};
use fednode_sim::{self as sim, Behaviour, Observer, Outcome, Scenario, Toys};

/// Random adverts in a run of all tests; `scripts/fuzz` says more.
const ADVERTS: u64 = 1_000_000;

/// Seeds of each named behaviour, with an aggregator and without.
const SEEDS: u64 = 6;

fn number(name: &str, default: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Sees the closed rounds that were announced, and how long each member took for a round.
#[derive(Default)]
struct Watch {
    closings: BTreeMap<ClosingId, (Round, Arc<Global>)>,
    parts: BTreeSet<(NodeId, BlobId)>,
    begun: BTreeMap<usize, Timestamp>,
    longest: Duration,
}

impl Observer for Watch {
    fn input(&mut self, _: Timestamp, _: usize, input: &Input) {
        let Input::Advert(advert) = input else {
            return;
        };
        match &advert.body {
            Body::Global(global) => {
                let closed = || (advert.round, global.clone());
                let id = global.id(advert.round);
                self.closings.entry(id).or_insert_with(closed);
            }
            Body::Local(local) => {
                let part = local.shared.map(|shared| (advert.author, shared.id));
                self.parts.extend(part);
            }
            _ => {}
        }
    }

    fn output(&mut self, now: Timestamp, member: usize, output: &Output) {
        if let Output::Note(Note::RoundStarted(_) | Note::Finished) = output
            && let Some(begun) = self.begun.insert(member, now)
        {
            self.longest = self.longest.max(now.since(begun));
        }
    }
}

fn play(scenario: &Scenario) -> (Outcome, Watch) {
    let mut watch = Watch::default();
    let mut toys = Toys::new(scenario.seed, scenario.nodes + 1);
    let outcome = sim::run_observed(scenario, &mut toys, &mut watch);
    (outcome, watch)
}

/// Plays a scenario and looks at the four promises.
fn check(scenario: &Scenario) -> Outcome {
    let (outcome, watch) = play(scenario);
    let seed = scenario.seed;
    let is_honest = |member: &usize| !scenario.behaviours.contains_key(member);
    let honest: Vec<usize> = (0..scenario.nodes).filter(is_honest).collect();
    let number_of = |node| outcome.ids.iter().position(|id| *id == node);

    let unfinished = outcome.unfinished();
    let waiting: Vec<&usize> = unfinished
        .iter()
        .filter(|member| is_honest(member))
        .collect();
    assert!(
        waiting.is_empty(),
        "seed {seed}: {waiting:?} after {:?}",
        outcome.elapsed
    );

    let is_wrong = |(by, whom): &&(usize, NodeId)| {
        is_honest(by) && number_of(*whom).is_some_and(|whom| is_honest(&whom))
    };
    let wrong = outcome.bans.iter().find(is_wrong);
    assert_eq!(wrong, None, "seed {seed}: an honest member was banned");

    let times = &scenario.spec.round;
    let most = scenario.training.1 + times.deadline() + 6 * times.grace();
    assert!(
        watch.longest <= most,
        "seed {seed}: a round took {:?}",
        watch.longest
    );

    check_chain(scenario, &outcome, &watch, &honest);
    outcome
}

/// Looks at the chain that the honest nodes end on: that it is one, and whom its closings count.
fn check_chain(scenario: &Scenario, outcome: &Outcome, watch: &Watch, honest: &[usize]) {
    let seed = scenario.seed;
    let number_of = |node| outcome.ids.iter().position(|id| *id == node);
    let ends: BTreeSet<_> = honest.iter().map(|node| outcome.closings[*node]).collect();
    let before = |end: &Option<ClosingId>| watch.closings[&end.unwrap()].1.previous;
    let may_be_useless = scenario
        .behaviours
        .values()
        .any(|behaviour| *behaviour == Behaviour::Unscreened);
    let is_last_but_one =
        |end: &Option<ClosingId>| may_be_useless && ends.iter().any(|other| before(other) == *end);
    let common = |end: &Option<ClosingId>| {
        if is_last_but_one(end) {
            *end
        } else {
            before(end)
        }
    };
    let chains: BTreeSet<_> = ends.iter().map(common).collect();
    assert_eq!(chains.len(), 1, "seed {seed}: {ends:?}");
    let mut queue: Vec<ClosingId> = ends.into_iter().flatten().collect();
    while let Some(id) = queue.pop() {
        let (round, global) = &watch.closings[&id];
        let counted = global.members.iter().filter(|member| {
            let is_part = watch.parts.contains(&(member.node, member.shared.id));
            is_part && number_of(member.node).is_some_and(|number| honest.contains(&number))
        });
        let counted = counted.count();
        assert!(
            2 * counted > honest.len(),
            "seed {seed}: round {round} counts {counted} of {} honest nodes",
            honest.len()
        );
        let n_known = global
            .members
            .iter()
            .filter(|member| number_of(member.node).is_some());
        assert_eq!(
            n_known.count(),
            global.members.len(),
            "seed {seed}: a ghost in round {round}"
        );
        queue.extend(global.previous);
    }
}

/// Seven nodes of which some lie, with an aggregator and without.
fn lied_to_by(liars: &[Behaviour]) {
    for aggregator in [true, false] {
        for seed in 0..number("FEDNODE_FUZZ_SEEDS", SEEDS) {
            let mut scenario = Scenario::new(number("FEDNODE_SIM_SEED", 1) + seed, 7, 6);
            scenario.aggregator = aggregator;
            for (liar, behaviour) in liars.iter().enumerate() {
                scenario = scenario.with(2 * liar, *behaviour);
            }
            let outcome = check(&scenario);
            assert!(outcome.failed.is_none());
        }
    }
}

#[test]
fn who_closes_a_round_early_closes_none() {
    lied_to_by(&[Behaviour::EarlyCloser]);
    lied_to_by(&[Behaviour::EarlyCloser, Behaviour::EarlyCloser]);
}

#[test]
fn who_is_not_there_is_not_counted() {
    lied_to_by(&[Behaviour::Ghost]);
    lied_to_by(&[Behaviour::Ghost, Behaviour::Ghost]);
}

#[test]
fn nobody_goes_back_behind_a_closed_round() {
    lied_to_by(&[Behaviour::Rollback]);
    lied_to_by(&[Behaviour::Rollback, Behaviour::Rollback]);
}

#[test]
fn who_tells_some_one_thing_and_others_another_harms_nobody_else() {
    lied_to_by(&[Behaviour::Equivocator]);
    lied_to_by(&[Behaviour::Equivocator, Behaviour::Equivocator]);
}

#[test]
fn who_says_its_update_again_and_again_keeps_no_round_open() {
    lied_to_by(&[Behaviour::Restless]);
    lied_to_by(&[Behaviour::Restless, Behaviour::Restless]);
}

#[test]
fn who_serves_nothing_and_who_says_it_has_all_samples_hold_nobody_up() {
    lied_to_by(&[Behaviour::Withholder]);
    lied_to_by(&[Behaviour::Inflated, Behaviour::Withholder]);
}

/// Two of seven are fewer than a third, and a quorum takes one of them.
#[test]
fn whose_updates_nobody_can_count_holds_up_two_rounds_at_most() {
    for aggregator in [true, false] {
        let mut scenario = Scenario::new(number("FEDNODE_SIM_SEED", 1), 7, 12);
        scenario.aggregator = aggregator;
        let scenario = scenario
            .with(5, Behaviour::Uncountable)
            .with(6, Behaviour::Uncountable);
        let outcome = check(&scenario);
        let deadline = scenario.spec.round.deadline();
        assert!(
            outcome.elapsed < 4 * deadline,
            "{:?} of deadlines of {deadline:?}",
            outcome.elapsed
        );
        assert_eq!(outcome.bans, []);
    }
}

/// Nobody is struck for an unscaled table, so its owner stays, and its part is refused in every round.
#[test]
fn one_part_of_no_use_stops_no_federation_of_three() {
    for seed in 0..number("FEDNODE_FUZZ_SEEDS", SEEDS) {
        let mut scenario = Scenario::new(number("FEDNODE_SIM_SEED", 1) + seed, 3, 6);
        scenario.aggregator = false;
        let outcome = check(&scenario.with(2, Behaviour::HugePart));
        let alone =
            |(member, note): &&(usize, Note)| *member != 2 && matches!(note, Note::Isolated(_));
        let alone = outcome.notes.iter().find(alone);
        assert_eq!(alone, None, "seed {}", outcome.seed);
        assert_eq!(outcome.bans, [], "seed {}", outcome.seed);
        // It is found out once, and not expected in the rounds after that.
        assert!(
            outcome.elapsed < Duration::from_secs(120),
            "seed {}: {:?}",
            outcome.seed,
            outcome.elapsed
        );
    }
}

/// The mean is true, so its author is no cheat; nobody can use it, so no round may wait for it twice.
#[test]
fn a_useless_mean_costs_the_rounds_of_its_author_only() {
    lied_to_by(&[Behaviour::Unscreened]);
    for seed in 0..number("FEDNODE_FUZZ_SEEDS", SEEDS) {
        let mut scenario = Scenario::new(number("FEDNODE_SIM_SEED", 1) + seed, 5, 12);
        scenario.aggregator = false;
        let outcome = check(&scenario.with(4, Behaviour::Unscreened));
        let closes = |note: &Note| match note {
            Note::RoundClosed { by: Some(by), .. } => *by != outcome.ids[4],
            _ => false,
        };
        let closed = outcome.notes.iter();
        let closed = closed.filter(|(member, note)| *member == 0 && closes(note));
        assert!(closed.count() >= 6, "seed {}", outcome.seed);
        assert_eq!(outcome.bans, [], "seed {}", outcome.seed);
    }
}

#[test]
fn liars_of_all_kinds_together_bend_nothing() {
    lied_to_by(&[
        Behaviour::EarlyCloser,
        Behaviour::Ghost,
        Behaviour::Rollback,
    ]);
    lied_to_by(&[
        Behaviour::FalseAccuser,
        Behaviour::FalseMean,
        Behaviour::Equivocator,
    ]);
}

#[test]
fn one_of_four_that_says_random_things_does_not_hinder_the_others() {
    for seed in 0..2 * number("FEDNODE_FUZZ_SEEDS", SEEDS) {
        let mut scenario = Scenario::new(number("FEDNODE_SIM_SEED", 1) + seed, 4, 5);
        scenario.aggregator = seed % 2 == 0;
        check(&scenario.with((seed % 4) as usize, Behaviour::Random));
    }
}

#[test]
fn random_adverts_bend_nothing() {
    let (first, adverts) = (
        number("FEDNODE_SIM_SEED", 1),
        number("FEDNODE_FUZZ_ADVERTS", ADVERTS),
    );
    // One lane plays a seed again as it was; two use both cores of a small machine.
    let lanes: u64 = if adverts < ADVERTS { 1 } else { 2 };
    let lane = |lane: u64| {
        move || random_adverts((first + lane..).step_by(lanes as usize), adverts / lanes)
    };
    let said = thread::scope(|scope| {
        let lanes: Vec<_> = (0..lanes).map(|number| scope.spawn(lane(number))).collect();
        let said = lanes
            .into_iter()
            .map(|lane| lane.join().unwrap_or_else(|panic| resume_unwind(panic)));
        said.sum::<u64>()
    });
    eprintln!("{said} random adverts");
}

/// Plays these seeds until liars have said so many adverts. Returns how many they said.
fn random_adverts(seeds: impl Iterator<Item = u64>, adverts: u64) -> u64 {
    let mut said = 0;
    for seed in seeds {
        let n_liars = 1 + (seed % 4) as usize;
        // Fewer than a third lie: more could outvote the others in any protocol.
        let mut scenario = Scenario::new(seed, 3 * n_liars + 2, 5);
        scenario.aggregator = seed % 3 != 0;
        scenario.spec.round.audit = if seed % 2 == 0 { 0.05 } else { 1.0 };
        for liar in 0..n_liars {
            scenario = scenario.with(2 * liar, Behaviour::Random);
        }
        let lies = check(&scenario).lies;
        assert!(lies > 0, "seed {seed}: the liars said nothing");
        said += lies;
        if said >= adverts {
            break;
        }
    }
    said
}
