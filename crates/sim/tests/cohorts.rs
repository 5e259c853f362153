//! Federations of which only a share trains in a round, played by the seeded simulator.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fednode_core::Round;
use fednode_engine::Note;
use fednode_sim::{self as sim, Incident, Outcome, Scenario};

use common::seed;

/// A federation that averages one shared part, of which `share` trains in a round.
fn averaging(nodes: usize, rounds: u32, share: f64) -> Scenario {
    let mut scenario = Scenario::new(seed(), nodes, rounds);
    scenario.spec.exchange.experts = None;
    scenario.spec.round.participation = share;
    scenario
}

fn play(scenario: &Scenario) -> Outcome {
    let outcome = sim::run(scenario);
    assert_eq!(
        outcome.unfinished(),
        [] as [usize; 0],
        "unfinished after {:?}, seed {}",
        outcome.elapsed,
        outcome.seed
    );
    assert_eq!(
        outcome.lineages().len(),
        1,
        "all end with one mean, seed {}",
        outcome.seed
    );
    outcome
}

/// Members of each round as it was closed, as the nodes say.
fn members(outcome: &Outcome) -> BTreeMap<Round, Vec<u32>> {
    let mut members: BTreeMap<Round, Vec<u32>> = BTreeMap::new();
    for (_, note) in &outcome.notes {
        if let Note::RoundClosed {
            round,
            members: counted,
            by: Some(_),
        } = note
        {
            members.entry(*round).or_default().push(*counted);
        }
    }
    members
}

fn rested(outcome: &Outcome) -> usize {
    outcome.count(|note| matches!(note, Note::SitsOut(_)))
}

#[test]
fn a_third_trains_in_every_round_and_the_others_only_follow() {
    let outcome = play(&averaging(9, 8, 1.0 / 3.0));
    let members = members(&outcome);
    assert_eq!(members.len(), 8);
    // While nodes still meet, one may be drawn too many.
    assert!(
        members[&Round(1)]
            .iter()
            .all(|counted| (3..=5).contains(counted)),
        "{members:?}"
    );
    for (round, counted) in members.iter().skip(1) {
        assert!(
            counted.iter().all(|counted| *counted == 3),
            "{round}: {counted:?}"
        );
    }
    assert!(
        (8 * 6 - 2..=8 * 6).contains(&rested(&outcome)),
        "{} rests",
        rested(&outcome)
    );
    // Nobody waits for those who rest: no round takes longer than its training and a grace time.
    assert!(
        outcome.elapsed < Duration::from_secs(8 * 6),
        "{:?}",
        outcome.elapsed
    );
    // Who rests fetches no mean unless it trains next or is done: at most 3 + 3 of 9 in a round, and all in the last.
    let adopted = outcome.observed.adopted.len();
    assert!(adopted <= 8 + 7 * 6 + 9, "{adopted} means were adopted");
}

#[test]
fn the_last_mean_is_everybodys() {
    let outcome = play(&averaging(20, 3, 0.1));
    let last = outcome
        .observed
        .adopted
        .iter()
        .filter(|(_, round, _)| *round == Round(3))
        .count();
    assert_eq!(last, 20);
}

#[test]
fn without_an_aggregator_a_drawn_node_closes() {
    let mut scenario = averaging(8, 6, 0.5);
    scenario.aggregator = false;
    let outcome = play(&scenario);
    assert!(
        members(&outcome)
            .values()
            .flatten()
            .all(|counted| (3..=5).contains(counted))
    );
    assert_eq!(outcome.count(|note| matches!(note, Note::Isolated(_))), 0);
}

#[test]
fn nodes_die_join_and_come_back_between_their_rounds() {
    let mut scenario = averaging(10, 10, 0.4);
    scenario.absent = vec![9];
    let scenario = scenario
        .at(6.0, Incident::Kill(2))
        .at(9.0, Incident::Join(9))
        .at(14.0, Incident::Kill(3))
        .at(22.0, Incident::Restart(3))
        .at(12.0, Incident::Kill(10))
        .at(30.0, Incident::Restart(10));
    let outcome = play(&scenario);
    assert!(!outcome.up[2]);
    assert!(
        members(&outcome)
            .values()
            .flatten()
            .all(|counted| (2..=6).contains(counted)),
        "{:?}",
        members(&outcome)
    );
}

#[test]
fn experts_of_those_who_rest_stand_in() {
    let mut scenario = Scenario::new(seed(), 9, 12);
    scenario.spec.round.participation = 0.5;
    let outcome = play(&scenario);
    assert!(
        outcome.observed.used.len() > 20,
        "{} foreign experts were mixed in",
        outcome.observed.used.len()
    );
}

#[test]
fn so_small_a_share_still_makes_rounds() {
    let outcome = play(&averaging(5, 4, 0.01));
    let later = members(&outcome).into_iter().skip(1);
    assert!(
        later
            .flat_map(|(_, counted)| counted)
            .all(|counted| counted == 2),
        "as many as a round needs"
    );
}

/// Of more than 64 nodes chance draws who trains; here so few that in some rounds it is nobody, or one.
#[test]
fn round_with_too_few_members_costs_the_next_none() {
    for seed in 1..=3 {
        let outcome = sim::run(&Scenario {
            seed,
            ..averaging(80, 24, 0.03)
        });
        assert_eq!(
            outcome.unfinished(),
            [] as [usize; 0],
            "unfinished after {:?}, seed {seed}",
            outcome.elapsed
        );
        let rests = |(node, note): &(usize, Note)| match note {
            Note::SitsOut(round) => Some((*round, *node)),
            _ => None,
        };
        let rested: BTreeSet<(Round, usize)> = outcome.notes.iter().filter_map(rests).collect();
        let trained =
            |round: Round| 80 - rested.range((round, 0)..(round.next(), 0)).count() as u32;
        let members = members(&outcome);
        let is_closed =
            |round: &Round| members.get(round).is_some_and(|counted| counted.len() > 40);
        let (closed, missed): (Vec<Round>, Vec<Round>) = (1..=24).map(Round).partition(is_closed);
        assert!(
            !missed.is_empty() && missed.iter().all(|round| trained(*round) < 2),
            "seed {seed}: {missed:?}"
        );
        for round in closed {
            // Who was alone in its round follows the next one's mean at once, and neither rests nor trains in that.
            let skips = u32::from(missed.contains(&Round(round.0 - 1)));
            let fewest = trained(round) - skips;
            assert!(
                members[&round].iter().all(|counted| *counted >= fewest),
                "seed {seed}, {round}: of {fewest}"
            );
        }
    }
}

#[test]
fn after_the_last_round_the_modules_of_all_are_pooled() {
    let mut scenario = averaging(6, 3, 0.4);
    scenario.spec.pool.preset = Some(fednode_core::spec::Preset::Fixed);
    let outcome = play(&scenario);
    let missing =
        |note: &Note| matches!(note, Note::PoolGathered { missing, .. } if !missing.is_empty());
    assert_eq!(outcome.count(missing), 0);
    assert_eq!(
        outcome
            .observed
            .pools
            .iter()
            .map(|(_, members)| members.len())
            .collect::<Vec<_>>(),
        [5; 6]
    );
}
