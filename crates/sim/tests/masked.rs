//! Federations whose sums are masked, played by the seeded simulator.
//!
//! An observer who sees every model compares each mean with that of the parts as they were before the masks.
#![allow(clippy::unwrap_used)]

mod common;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use fednode_core::masked::Bytes32;
use fednode_core::spec::Sums;
use fednode_core::work::{self, WorkError};
use fednode_core::{BlobId, Body, Member, NodeId, ParamSet, Round, Timestamp, Total, stack};
use fednode_engine::execute::Adoption;
use fednode_engine::{Input, Output};
use fednode_masked::groups::{self, Grouping};
use fednode_sim::{self as sim, Behaviour, Incident, Observer, Outcome, Scenario, Toys, Trainers};

use common::seed;

fn masked(nodes: usize, rounds: u32) -> Scenario {
    let mut scenario = Scenario::new(seed(), nodes, rounds);
    scenario.spec.privacy.sums = Sums::Masked;
    scenario.spec.validate().unwrap();
    scenario
}

/// A federation that adds up its parts in the last round alone.
fn once(nodes: usize, rounds: u32) -> Scenario {
    let mut scenario = masked(nodes, rounds);
    scenario.spec.exchange.total = Some(Total::of(nodes as u32));
    scenario.spec.validate().unwrap();
    scenario
}

/// A federation that adds up its parts in the last round, in groups of four.
fn grouped(nodes: usize, rounds: u32) -> Scenario {
    let mut scenario = masked(nodes, rounds);
    scenario.spec.privacy.group = Some(4);
    scenario.spec.exchange.total = Some(Total::of_groups(nodes as u32, 4));
    scenario.spec.validate().unwrap();
    scenario
}

/// What each member trained last, before any masks.
type Trained = Rc<RefCell<BTreeMap<usize, Arc<ParamSet>>>>;

/// Toys of which every part and every mean is seen.
struct Seen {
    toys: Toys,
    trained: Trained,
    parts: Vec<BlobId>,
    means: Vec<Arc<ParamSet>>,
}

impl sim::Wrapped for Seen {
    fn inner(&mut self) -> &mut dyn Trainers {
        &mut self.toys
    }

    fn end(&mut self, member: usize) -> Result<work::Outcome, WorkError> {
        let outcome = Trainers::end(&mut self.toys, member)?;
        if let work::Outcome::Trained(update) = &outcome {
            let part = update.shared.clone().unwrap();
            self.parts.push(part.to_blob().0.id);
            self.trained.borrow_mut().insert(member, part);
        }
        Ok(outcome)
    }

    fn adopt(&mut self, member: usize, round: Round, adoption: Adoption) {
        self.means.extend(adoption.shared.clone());
        Trainers::adopt(&mut self.toys, member, round, adoption);
    }
}

/// What all members said.
#[derive(Default)]
struct Heard {
    trained: Trained,
    said: BTreeMap<&'static str, usize>,
    /// Who was banned, and why.
    bans: Vec<(NodeId, String)>,
    /// Shared parts that were published, each with what it was before the masks.
    parts: BTreeMap<BlobId, Arc<ParamSet>>,
    /// Who was counted in closed rounds in which nothing was added up.
    counted: BTreeMap<Round, Vec<NodeId>>,
    /// Closed rounds by their means.
    closed: BTreeMap<BlobId, (Round, Vec<Member>)>,
    /// In which rounds masks were taken off, and for which survivors.
    unmasked: BTreeSet<(Round, Bytes32)>,
}

impl Observer for Heard {
    fn input(&mut self, _at: Timestamp, _member: usize, _input: &Input) {}

    fn output(&mut self, _at: Timestamp, member: usize, output: &Output) {
        if let Output::Ban { node, reason } = output {
            self.bans.push((*node, reason.clone()));
        }
        let Output::Publish { round, body } = output else {
            return;
        };
        *self.said.entry(body.kind()).or_default() += 1;
        match body {
            Body::Local(local) => {
                let trained = Arc::clone(&self.trained.borrow()[&member]);
                let part = local.shared.unwrap().id;
                // After a restart it is said again.
                self.parts.entry(part).or_insert(trained);
            }
            Body::Global(global) => {
                let members = global.members.iter().copied();
                let nodes = members.clone().map(|member| member.node);
                self.counted.insert(*round, nodes.collect());
                let summed = members.filter(|member| member.shared.id != global.parent);
                let summed: Vec<Member> = summed.collect();
                assert_eq!(summed.is_empty(), global.mean.id == global.parent);
                if !summed.is_empty() {
                    self.closed.insert(global.mean.id, (*round, summed));
                }
            }
            Body::Unmask(word) => {
                self.unmasked.insert((*round, word.survivors));
            }
            _ => {}
        }
    }
}

struct Played {
    scenario: Scenario,
    outcome: Outcome,
    seen: Seen,
    heard: Heard,
}

fn play(scenario: &Scenario) -> Played {
    play_with_toys(scenario, Toys::new(scenario.seed, scenario.nodes + 1))
}

fn play_with_toys(scenario: &Scenario, toys: Toys) -> Played {
    let trained = Trained::default();
    let mut seen = Seen {
        toys,
        trained: Rc::clone(&trained),
        parts: Vec::new(),
        means: Vec::new(),
    };
    let mut heard = Heard {
        trained,
        ..Heard::default()
    };
    let outcome = sim::run_observed(scenario, &mut seen, &mut heard);
    assert_eq!(
        outcome.unfinished(),
        [] as [usize; 0],
        "unfinished after {:?}, seed {}",
        outcome.elapsed,
        outcome.seed
    );
    Played {
        scenario: scenario.clone(),
        outcome,
        seen,
        heard,
    }
}

impl Played {
    /// Compares every mean that was adopted with that of the parts that its closing added up; returns how many there were of
    /// each round.
    fn check_means(&self) -> BTreeMap<Round, usize> {
        let mut checked: BTreeMap<Round, usize> = BTreeMap::new();
        for mean in &self.seen.means {
            let id = mean.to_blob().0.id;
            let Some((round, summed)) = self.heard.closed.get(&id) else {
                continue;
            };
            // A liar's false mean is looked at by a draw, and put right in a later round.
            if self.outcome.observed.false_means.contains(&id) {
                continue;
            }
            let part = |member: &Member| self.heard.parts[&member.shared.id].values().collect();
            let parts: Vec<Vec<f32>> = summed.iter().map(part).collect();
            for (at, value) in mean.values().enumerate() {
                let sum: f64 = parts.iter().map(|part| f64::from(part[at])).sum();
                let is_total = self.scenario.spec.exchange.total.is_some();
                let due = if is_total {
                    sum
                } else {
                    sum / parts.len() as f64
                };
                let error = (f64::from(value) - due).abs();
                let seed = self.outcome.seed;
                assert!(
                    error < 1e-6 * due.abs().max(1.0),
                    "round {round}: {value} for {due}, seed {seed}"
                );
            }
            *checked.entry(*round).or_default() += 1;
        }
        checked
    }

    /// Compares the sums of groups that were adopted with those of their members' parts, of as many groups as there are. Groups are
    /// dealt among those whom the round before counted. Returns how many groups have a sum in each of what was adopted.
    fn check_groups(&self) -> Vec<usize> {
        let last = Round(self.scenario.spec.rounds);
        let context = fednode_engine::masks::context(self.scenario.spec.id(), last);
        let roster = &self.heard.counted[&Round(last.0 - 1)];
        let grouping = Grouping { size: 4, fewest: 3 };
        let groups = groups::deal(grouping, roster, &context);
        let mut adopted = Vec::new();
        for mean in &self.seen.means {
            let Some((_, summed)) = self.heard.closed.get(&mean.to_blob().0.id) else {
                continue;
            };
            let one = self.heard.parts.values().next().unwrap().layout();
            let sums = stack::unstacked(mean, &one, groups.len()).unwrap();
            assert_eq!(sums.len(), groups.len());
            let mut opened = 0;
            for (sum, group) in sums.iter().zip(&groups) {
                let here = summed.iter().filter(|member| group.contains(&member.node));
                let parts =
                    here.map(|member| self.heard.parts[&member.shared.id].values().collect());
                let parts: Vec<Vec<f32>> = parts.collect();
                if sum.values().all(|value| value == 0.0) {
                    continue;
                }
                assert!(parts.len() >= 3);
                opened += 1;
                for (at, value) in sum.values().enumerate() {
                    let due: f64 = parts.iter().map(|part| f64::from(part[at])).sum();
                    let error = (f64::from(value) - due).abs();
                    assert!(error < 1e-6 * due.abs().max(1.0), "{value} for {due}");
                }
            }
            adopted.push(opened);
        }
        adopted
    }

    /// Returns who was added up in a round.
    fn summed(&self, round: Round) -> BTreeSet<NodeId> {
        let mut closed = self.heard.closed.values();
        let closed = closed.find(|(closed, _)| *closed == round).unwrap();
        closed.1.iter().map(|member| member.node).collect()
    }

    /// Asserts that no second sum was opened, where there is to be one: two would show what they differ in.
    fn check_is_once(&self) {
        if self.scenario.spec.exchange.total.is_some() {
            let last = Round(self.scenario.spec.rounds);
            let (sums, seed) = (&self.heard.unmasked, self.outcome.seed);
            assert!(sums.len() <= 1, "{sums:?}, seed {seed}");
            assert!(sums.iter().all(|(round, _)| *round == last), "{sums:?}");
            // No later round puts a false one right.
            let seen = &self.outcome.observed;
            for (member, _, mean) in &seen.adopted {
                let is_false = seen.false_means.contains(mean);
                let is_liar = self.scenario.behaviours.contains_key(member);
                assert!(is_liar || !is_false, "node {member}, seed {seed}");
            }
        }
    }

    /// Asserts what is promised of every run with one sum.
    fn check_promises(&self) {
        self.check_secrecy();
        self.check_is_once();
        self.check_blame();
    }

    /// Asserts that no honest node was blamed by another.
    fn check_blame(&self) {
        let Outcome {
            ids,
            bans,
            strikes,
            seed,
            ..
        } = &self.outcome;
        let is_liar = |member: &usize| self.scenario.behaviours.contains_key(member);
        let lies = |node: &NodeId| {
            ids.iter()
                .position(|id| id == node)
                .is_some_and(|at| is_liar(&at))
        };
        let is_unfair = |by: &usize, whom: &NodeId| !is_liar(by) && !lies(whom);
        let mut bans = bans.clone();
        bans.retain(|(by, whom)| is_unfair(by, whom));
        let mut strikes = strikes.clone();
        strikes.retain(|(by, whom, _)| is_unfair(by, whom));
        let why = &self.heard.bans;
        assert!(
            bans.is_empty() && strikes.is_empty(),
            "{bans:?}, {strikes:?}, {why:?}, seed {seed}"
        );
    }

    /// Asserts that no node's own part was published.
    fn check_secrecy(&self) {
        for part in &self.seen.parts {
            assert!(!self.heard.parts.contains_key(part), "a part without masks");
        }
    }
}

#[test]
fn every_mean_is_that_of_the_parts_and_nobody_publishes_its_own() {
    for has_aggregator in [true, false] {
        let mut scenario = masked(5, 6);
        scenario.aggregator = has_aggregator;
        let played = play(&scenario);
        played.check_secrecy();
        let rounds: BTreeMap<Round, usize> = (2..=6).map(|round| (Round(round), 5)).collect();
        assert_eq!(
            played.check_means(),
            rounds,
            "aggregator: {has_aggregator}, {:?}",
            played.heard.said
        );
        assert_eq!(played.outcome.lineages().len(), 1);
        let outcome = &played.outcome;
        assert!(
            outcome.strikes.is_empty() && outcome.bans.is_empty(),
            "{:?} {:?}",
            outcome.strikes,
            outcome.bans
        );
        // Everybody agrees and takes its masks off once a round.
        assert_eq!(played.heard.said["agree"], 5 * 5);
        assert_eq!(played.heard.said["unmask"], 5 * 5);
        assert!(
            outcome.elapsed < Duration::from_secs(6 * 8),
            "{:?}",
            outcome.elapsed
        );
    }
}

/// Who has not met the others before the first round has no part in the sum of the second one.
#[test]
fn the_first_round_waits_the_grace_time_for_who_comes_later() {
    for nodes in [4, 5] {
        let late = nodes - 1;
        let mut scenario = masked(nodes, 3);
        scenario.absent = vec![late];
        let grace = scenario.spec.round.grace_seconds;
        let met = |at: f64| {
            let played = play(&scenario.clone().at(at, Incident::Join(late)));
            played.check_secrecy();
            played.check_means();
            assert_eq!(played.outcome.unfinished(), [] as [usize; 0]);
            (played.summed(Round(2)).len(), played.outcome.elapsed)
        };
        assert_eq!(met(grace * 0.8).0, nodes, "of {nodes} one comes in time");
        let (_, elapsed) = met(grace * 1.5);
        let (most, n) = (Duration::from_secs_f64(grace * 9.0), nodes);
        assert!(elapsed < most, "of {n} one comes too late: {elapsed:?}");
    }
}

/// Rounds may be short, and there is no second sum for who has missed the only one.
#[test]
fn who_comes_within_the_grace_time_is_in_the_only_sum() {
    for nodes in [4, 5] {
        let late = nodes - 1;
        let mut scenario = once(nodes, 2);
        scenario.training = (Duration::from_millis(50), Duration::from_millis(100));
        scenario.absent = vec![late];
        let at = scenario.spec.round.grace_seconds * 0.8;
        let played = play(&scenario.at(at, Incident::Join(late)));
        played.check_promises();
        played.check_means();
        assert_eq!(played.summed(Round(2)).len(), nodes);
    }
}

#[test]
fn members_that_are_lost_at_any_moment_spoil_no_mean() {
    let mut summed = 0;
    for moment in 0..24 {
        let mut scenario = masked(7, 6);
        scenario.aggregator = moment % 2 == 0;
        let at = 7.0 + f64::from(moment) * 0.35;
        let (one, other) = (moment as usize % 7, (moment as usize + 3) % 7);
        let scenario = scenario
            .at(at, Incident::Kill(one))
            .at(at + 0.05, Incident::Kill(other))
            .at(at + 8.0, Incident::Restart(one))
            .at(at + 9.0, Incident::Restart(other));
        let played = play(&scenario);
        played.check_secrecy();
        summed += played.check_means().len();
        played.check_blame();
    }
    assert!(summed >= 24 * 4, "{summed} of {} rounds have a sum", 24 * 5);
}

#[test]
fn a_lost_aggregator_is_replaced_at_any_moment() {
    let mut summed = 0;
    for moment in 0..16 {
        let at = 7.0 + f64::from(moment) * 0.35;
        let scenario = masked(5, 5).at(at, Incident::Kill(5));
        let played = play(&scenario);
        summed += played.check_means().len();
        assert_eq!(played.outcome.lineages().len(), 1);
    }
    assert!(summed >= 16 * 3, "{summed} of {} rounds have a sum", 16 * 4);
}

#[test]
fn a_newcomer_takes_part_from_the_next_round_on() {
    let mut scenario = masked(6, 6).at(9.0, Incident::Join(5));
    scenario.absent = vec![5];
    let played = play(&scenario);
    let newcomer = played.outcome.ids[5];
    played.check_secrecy();
    played.check_means();
    let last = played.summed(Round(6));
    assert!(last.contains(&newcomer), "{last:?}");
    assert_eq!(last.len(), 6);
}

/// Plays with one liar among seven; returns the rounds that have a sum without it.
fn play_with(liar: Behaviour, has_aggregator: bool) -> usize {
    let mut scenario = masked(7, 7).with(2, liar);
    scenario.aggregator = has_aggregator;
    let played = play(&scenario);
    played.check_secrecy();
    let node = played.outcome.ids[2];
    let banned: BTreeSet<usize> = played.outcome.bans.iter().map(|(by, _)| *by).collect();
    let others = (0..7 + usize::from(has_aggregator)).filter(|number| *number != 2);
    assert_eq!(
        banned,
        others.collect(),
        "{liar:?}: {:?}",
        played.heard.bans
    );
    assert!(played.outcome.bans.iter().all(|(_, who)| *who == node));
    let rounds = played.check_means().into_keys();
    rounds
        .filter(|round| !played.summed(*round).contains(&node))
        .count()
}

#[test]
fn who_lies_about_its_masks_is_dropped_by_all_and_costs_few_rounds() {
    for has_aggregator in [true, false] {
        for liar in [
            Behaviour::FalseSeed,
            Behaviour::FalseShares,
            Behaviour::AgreesTwice,
        ] {
            let summed = play_with(liar, has_aggregator);
            assert!(summed >= 3, "{liar:?}: {summed} rounds");
        }
    }
}

#[test]
fn parts_are_added_up_once_in_the_last_round_if_that_is_wanted() {
    // The sum of twenty parts is far larger than the own one, and is adopted all the same.
    for (nodes, has_aggregator) in [(6, true), (6, false), (20, true)] {
        let mut scenario = once(nodes, 4);
        scenario.aggregator = has_aggregator;
        let played = play(&scenario);
        played.check_promises();
        assert_eq!(played.check_means(), BTreeMap::from([(Round(4), nodes)]));
        assert_eq!(played.heard.said["unmask"], nodes);
        assert_eq!(played.outcome.lineages().len(), 1);
    }
}

/// A later round would put a false mean right. There is none after the only sum, so all look, however seldom they do otherwise.
#[test]
fn nobody_takes_a_false_sum_where_it_is_the_only_one() {
    let mut lies = 0;
    for more in 0..6 {
        let mut scenario = once(6, 4).with(6, Behaviour::FalseMean);
        scenario.seed += more;
        scenario.spec.round.audit = 0.0;
        let played = play(&scenario);
        lies += played.outcome.observed.false_means.len();
        played.check_is_once();
    }
    assert!(lies > 0);
}

#[test]
fn groups_have_sums_of_their_own_that_everybody_adopts() {
    for (nodes, has_aggregator) in [(8, true), (13, false), (20, true)] {
        let mut scenario = grouped(nodes, 4);
        scenario.aggregator = has_aggregator;
        let played = play(&scenario);
        played.check_promises();
        let adopted = played.check_groups();
        assert_eq!(adopted, vec![nodes / 4; nodes]);
        assert_eq!(played.heard.said["unmask"], nodes);
    }
}

/// A mean may be four times as large as the one before, and one of ten groups' sums is ten times as large.
#[test]
fn the_sums_of_many_groups_are_no_fault_for_their_size() {
    let scenario = grouped(40, 3);
    let toys = Toys::of_floats(scenario.seed, 41, 5_000);
    let played = play_with_toys(&scenario, toys);
    played.check_blame();
    assert_eq!(played.check_groups(), [10; 40]);
}

/// It would be nobody's sum without groups. In groups it is one of them that has none.
#[test]
fn one_part_that_counts_twenty_times_spoils_the_sum_of_its_group_alone() {
    for has_aggregator in [true, false] {
        let mut scenario = grouped(12, 4).with(2, Behaviour::HeavyPart);
        scenario.aggregator = has_aggregator;
        let played = play(&scenario);
        played.check_promises();
        assert_eq!(played.check_groups(), [2; 12]);
    }
}

/// Its masks stay on, since nobody can put its secret together. Those of the other groups come off, and all drop the liar.
#[test]
fn false_shares_spoil_the_sum_of_their_authors_group_alone() {
    for has_aggregator in [true, false] {
        let mut scenario = grouped(12, 4)
            .with(2, Behaviour::FalseShares)
            .at(200.0, Incident::Heal);
        scenario.aggregator = has_aggregator;
        let played = play(&scenario);
        played.check_promises();
        let adopted = played.check_groups();
        assert!(adopted.len() >= 11, "{adopted:?}");
        assert!(adopted.iter().all(|opened| *opened == 2), "{adopted:?}");
        let liar = played.outcome.ids[2];
        let bans = played.outcome.bans.iter().filter(|(_, node)| *node == liar);
        assert!(
            bans.count() >= 11,
            "all others drop it once masks should be off"
        );
    }
}

/// Of twelve two or three are lost at any moment of the last round. Groups of which one is missing have a sum, and others have none.
#[test]
fn groups_that_lose_a_member_have_a_sum_and_those_that_lose_two_have_none() {
    let mut opened: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    for moment in 0..16 {
        let lost = 2 + moment % 2;
        let at = 14.0 + 0.35 * moment as f64;
        let mut scenario = grouped(12, 4);
        scenario.seed += moment as u64;
        scenario.spec.round.deadline_seconds = 20.0;
        scenario.spec.round.quorum = 0.6;
        for member in 0..lost {
            scenario = scenario.at(at, Incident::Kill(member));
            scenario = scenario.at(200.0, Incident::Restart(member));
        }
        let played = play(&scenario);
        played.check_promises();
        opened
            .entry(lost)
            .or_default()
            .extend(played.check_groups());
    }
    assert!(opened[&2].contains(&3), "{opened:?}");
    let fewer = opened.values().flatten().any(|groups| *groups < 3);
    assert!(fewer, "{opened:?}");
}

/// Nobody sees whose part it is, so the sum is nobody's. The federation ends all the same.
#[test]
fn a_total_to_which_one_part_counts_twenty_times_is_not_taken() {
    for has_aggregator in [true, false] {
        let mut scenario = once(6, 4).with(2, Behaviour::HeavyPart);
        scenario.aggregator = has_aggregator;
        let played = play(&scenario);
        assert_eq!(played.check_means(), BTreeMap::new());
        assert!(!played.heard.unmasked.is_empty(), "it was opened");
        played.check_is_once();
        played.check_blame();
    }
}

/// Of eight two may be missing. With three missing masks stay on, since the noise of five is less than was promised.
#[test]
fn a_sum_that_is_made_once_has_three_quarters_of_all_or_does_not_open() {
    let mut sizes: BTreeMap<usize, BTreeSet<Option<usize>>> = BTreeMap::new();
    for moment in 0..16 {
        let lost = 2 + moment % 2;
        let at = 14.0 + 0.35 * moment as f64;
        let mut scenario = once(8, 4);
        scenario.spec.round.deadline_seconds = 20.0;
        // Five would be enough to close a round.
        scenario.spec.round.quorum = 0.6;
        for member in 0..lost {
            scenario = scenario.at(at, Incident::Kill(member));
            scenario = scenario.at(200.0, Incident::Restart(member));
        }
        let played = play(&scenario);
        played.check_promises();
        let is_opened = !played.check_means().is_empty();
        let size = is_opened.then(|| played.summed(Round(4)).len());
        assert!(size.is_none_or(|size| size >= 6), "{size:?} members");
        sizes.entry(lost).or_default().insert(size);
    }
    assert!(sizes[&2].contains(&Some(6)), "{sizes:?}");
    assert!(!sizes[&2].contains(&None), "{sizes:?}");
    assert!(sizes[&3].contains(&None), "{sizes:?}");
}

/// A federation with random losses, comebacks and partitions, and in a third of the cases a liar.
fn stormy(case: u64) -> Scenario {
    let name = [seed().to_le_bytes(), case.to_le_bytes()].concat();
    let mut draws = BlobId::of(&name).as_bytes().to_vec().into_iter().cycle();
    let mut draw = move |below: usize| usize::from(draws.next().unwrap()) % below;
    let nodes = 4 + draw(5);
    let kind = match draw(4) {
        0 => once,
        1 => grouped,
        _ => masked,
    };
    let mut scenario = kind(nodes, 5);
    scenario.seed = case;
    scenario.spec.seed = case;
    scenario.aggregator = draw(2) == 0;
    scenario.link.loss = 0.1 * draw(2) as f64;
    if draw(3) == 0 {
        scenario.slow.insert(draw(nodes), 2 + draw(4) as u32);
    }
    for _ in 0..1 + draw(4) {
        let at = 1.0 + draw(250) as f64 / 8.0;
        let (member, away) = (draw(nodes), 0.5 + draw(40) as f64 / 2.0);
        let (incident, end) = match draw(3) {
            0 => {
                let cut_off = (0..=draw(nodes / 2)).collect();
                (Incident::Partition(cut_off), Incident::Heal)
            }
            _ => (Incident::Kill(member), Incident::Restart(member)),
        };
        scenario = scenario.at(at, incident).at(at + away, end);
    }
    if draw(3) == 0 {
        let liar = LIARS[draw(LIARS.len())];
        scenario = scenario.with(draw(nodes), liar);
    }
    scenario
}

/// Who lies in a storm.
const LIARS: [Behaviour; 6] = [
    Behaviour::FalseSeed,
    Behaviour::FalseShares,
    Behaviour::AgreesTwice,
    Behaviour::FalseMean,
    Behaviour::Withholder,
    Behaviour::FalseAccuser,
];

#[test]
fn no_storm_brings_a_wrong_sum_or_an_end_of_the_federation() {
    let cases = std::env::var("MASKED_CASES").ok();
    let cases = cases.and_then(|text| text.parse().ok()).unwrap_or(40);
    let mut summed = 0;
    for case in 0..cases {
        let played = play(&stormy(case));
        played.check_secrecy();
        played.check_is_once();
        let is_grouped = played.scenario.spec.privacy.group.is_some();
        if !is_grouped {
            summed += played.check_means().values().sum::<usize>();
        }
        played.check_blame();
    }
    assert!(summed as u64 >= 6 * cases, "{summed} means of {cases} runs");
}
