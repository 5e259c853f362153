//! Federations whose means are averaged slice by slice, played by the seeded simulator.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use fednode_core::{Body, Global, NodeId, Round, Rule, SEGMENT_BYTES, Timestamp};
use fednode_engine::{Input, Output, Phase, Purpose};
use fednode_sim::{
    self as sim, Behaviour, Bytes, ClosedRound, Incident, Observer, Outcome, Scenario, Toys,
    Trainers,
};

use common::seed;

/// Floats of a shared part: two and a third MiB, so three segments.
const FLOATS: usize = 611_669;
const ROUNDS: u32 = 3;

fn sliced(nodes: usize, slices: u32) -> Scenario {
    let mut scenario = Scenario::new(seed(), nodes, ROUNDS);
    scenario.spec.round.slices = slices;
    scenario.spec.exchange.experts = None;
    let averaging = scenario.spec.exchange.averaging.as_mut().unwrap();
    averaging.rule = Rule::named("mean");
    scenario.spec.round.audit = 0.0;
    scenario.spec.validate().unwrap();
    scenario
}

/// What was announced, and who computed what.
#[derive(Default)]
struct Watch {
    closings: BTreeMap<Round, Arc<Global>>,
    /// All that were announced, liars' too, each once.
    announced: Vec<(NodeId, Arc<Global>)>,
    /// Slices that each member averaged to close a round.
    slices: BTreeMap<usize, usize>,
    whole: BTreeSet<usize>,
    reasons: Vec<String>,
}

impl Observer for Watch {
    fn input(&mut self, _: Timestamp, _: usize, input: &Input) {
        if let Input::Advert(advert) = input
            && let Body::Global(global) = &advert.body
        {
            self.closings.insert(advert.round, global.clone());
            let said = (advert.author, global.clone());
            if !self.announced.contains(&said) {
                self.announced.push(said);
            }
        }
    }

    fn output(&mut self, _: Timestamp, member: usize, output: &Output) {
        match output {
            Output::Slice(order) if order.purpose == Purpose::Close => {
                *self.slices.entry(member).or_default() += 1;
            }
            Output::Average(_) => _ = self.whole.insert(member),
            Output::Ban { reason, .. } => self.reasons.push(reason.clone()),
            _ => {}
        }
    }
}

fn play(scenario: &Scenario) -> (Outcome, Watch) {
    let mut watch = Watch::default();
    let mut toys = Toys::of_floats(scenario.seed, scenario.nodes + 1, FLOATS);
    let outcome = sim::run_observed(scenario, &mut toys, &mut watch);
    (outcome, watch)
}

fn finish(outcome: &Outcome, nodes: impl Iterator<Item = usize>) {
    for node in nodes {
        assert_eq!(outcome.members[node].0, Phase::Serving, "node {node}");
    }
}

/// A mean looks at each number by itself, so its slices are those of the whole.
#[test]
fn slices_together_are_the_mean_to_the_bit() {
    for aggregator in [true, false] {
        let means = |slices| {
            let mut scenario = sliced(5, slices);
            scenario.aggregator = aggregator;
            let (outcome, watch) = play(&scenario);
            finish(&outcome, 0..5);
            assert_eq!(watch.closings.len(), ROUNDS as usize);
            let words = if slices > 1 { 6 } else { 0 };
            assert!(watch.closings.values().all(|it| it.slices.len() == words));
            assert_eq!(watch.whole.is_empty(), slices > 1, "{:?}", watch.whole);
            let ids: BTreeSet<_> = outcome.members.iter().map(|member| member.2).collect();
            assert_eq!(ids.len(), 1);
            let means = watch.closings.values().map(|global| global.mean);
            means.collect::<Vec<_>>()
        };
        assert_eq!(means(4), means(1), "with an aggregator: {aggregator}");
    }
}

#[test]
fn every_member_averages_about_as_much() {
    let mut scenario = sliced(3, 64);
    scenario.spec.rounds = 6;
    scenario.link.loss = 0.0;
    let (outcome, watch) = play(&scenario);
    finish(&outcome, 0..3);
    // Three slices, each averaged by two of three members, in six rounds.
    assert_eq!(watch.slices, [(0, 12), (1, 12), (2, 12)].into());
}

/// A member that goes after its update was counted leaves its slice to the next in line, or all of it to whoever closes.
#[test]
fn who_is_gone_leaves_its_slice_to_others() {
    for at in [3.0, 4.0, 5.0, 5.1, 5.2, 5.3, 5.5] {
        let mut scenario = sliced(6, 4).at(at, Incident::Kill(2));
        scenario.training = (Duration::from_secs(5), Duration::from_secs(5));
        let (outcome, watch) = play(&scenario);
        finish(&outcome, [0, 1, 3, 4, 5].into_iter());
        assert_eq!(watch.closings.len(), ROUNDS as usize, "killed at {at}");
        assert!(outcome.bans.is_empty(), "{:?}", watch.reasons);
    }
}

fn adopts_nothing_false(outcome: &Outcome, honest: &[usize]) {
    let adopted = &outcome.observed.adopted;
    let is_false = |mean| outcome.observed.false_means.contains(mean);
    let by_honest = adopted.iter().filter(|(node, ..)| honest.contains(node));
    assert!(by_honest.clone().count() > 0);
    assert!(!by_honest.clone().any(|(_, _, mean)| is_false(mean)));
}

/// Whoever averages the same slice knows who lies. A third member settles it, and each round is closed in slices, without the lie.
#[test]
fn a_false_slice_is_in_no_mean() {
    for aggregator in [true, false] {
        let mut scenario = sliced(5, 5).with(2, Behaviour::FalseMean);
        scenario.spec.rounds = 8;
        scenario.aggregator = aggregator;
        let honest = [0, 1, 3, 4];
        let (outcome, watch) = play(&scenario);
        finish(&outcome, honest.into_iter());
        let liar = outcome.ids[2];
        let by_honest = watch.announced.iter().filter(|(by, _)| *by != liar);
        let words: Vec<usize> = by_honest.map(|(_, it)| it.slices.len()).collect();
        assert!(
            words.len() >= 8 && words.iter().all(|words| *words == 6),
            "{words:?}"
        );
        // Where it closes a round itself, its falsehood is found.
        let by_honest = outcome.bans.iter().filter(|(by, _)| *by != 2);
        let banned: BTreeSet<NodeId> = by_honest.map(|(_, whom)| *whom).collect();
        assert!(
            banned.iter().all(|node| *node == liar),
            "{:?}",
            watch.reasons
        );
        let struck = outcome.strikes.iter().filter(|(by, ..)| *by != 2);
        let struck: BTreeSet<NodeId> = struck.map(|(_, whom, _)| *whom).collect();
        assert_eq!(struck, [liar].into());
        let ends = honest.map(|node| outcome.members[node].2);
        assert!(ends.iter().all(|end| *end == ends[0]), "{ends:?}");
        adopts_nothing_false(&outcome, &honest);
    }
}

/// Two of five lie alike, so sooner or later both have the same slice. Whoever has averaged it too, or recomputes it, finds both.
#[test]
fn who_lies_alike_about_a_slice_is_found() {
    let mut found = 0;
    for more in 0..4 {
        let mut scenario = sliced(5, 3);
        scenario.seed += more;
        scenario.spec.seed = scenario.seed;
        scenario.spec.rounds = 6;
        scenario.spec.round.audit = 1.0;
        let scenario = scenario
            .with(1, Behaviour::FalseMean)
            .with(2, Behaviour::FalseMean);
        let (outcome, watch) = play(&scenario);
        finish(&outcome, [0, 3, 4].into_iter());
        let liars = [1, 2].map(|node| outcome.ids[node]);
        let by_honest = outcome.bans.iter().filter(|(by, _)| ![1, 2].contains(by));
        let banned: BTreeSet<NodeId> = by_honest.map(|(_, whom)| *whom).collect();
        assert!(
            banned.iter().all(|node| liars.contains(node)),
            "{:?}",
            watch.reasons
        );
        let struck = outcome
            .strikes
            .iter()
            .filter(|(by, ..)| ![1, 2].contains(by));
        let struck = struck.filter(|(_, whom, _)| !liars.contains(whom));
        let struck: Vec<_> = struck.collect();
        assert!(
            struck.is_empty(),
            "an honest accuser: {struck:?} {:?} {:?}",
            outcome.ids,
            outcome.notes
        );
        found += usize::from(banned.len() == 2);
    }
    assert!(found > 0);
}

/// Nobody gets a slice of the part of a member that serves nothing. Whoever closes the round finds out, and later rounds leave it out.
#[test]
fn who_serves_nothing_costs_a_round_its_slices_and_no_more() {
    for aggregator in [true, false] {
        let mut scenario = sliced(6, 4).with(3, Behaviour::Withholder);
        scenario.spec.rounds = 6;
        scenario.spec.round.audit = 0.5;
        scenario.aggregator = aggregator;
        let honest = [0, 1, 2, 4, 5];
        let (outcome, watch) = play(&scenario);
        finish(&outcome, honest.into_iter());
        assert_eq!(watch.closings.len(), 6);
        let in_slices = watch.closings.values().filter(|it| !it.slices.is_empty());
        let words: Vec<usize> = watch.closings.values().map(|it| it.slices.len()).collect();
        assert!(in_slices.count() >= 3, "{aggregator} {words:?}");
        let withholder = outcome.ids[3];
        let counts = |it: &&Arc<Global>| it.members.iter().any(|member| member.node == withholder);
        assert_eq!(watch.closings.values().filter(counts).count(), 0);
        assert!(outcome.bans.is_empty(), "{:?}", watch.reasons);
    }
}

#[test]
fn a_federation_of_one_closes_its_rounds() {
    let mut scenario = sliced(1, 8);
    scenario.aggregator = true;
    let (outcome, _) = play(&scenario);
    finish(&outcome, 0..1);
    assert!(
        outcome.elapsed < Duration::from_secs(60),
        "{:?}",
        outcome.elapsed
    );
}

/// Slices that are put together falsely are found by everybody who puts them together.
#[test]
fn a_mean_that_is_not_its_slices_convicts_whoever_closed_the_round() {
    let scenario = sliced(5, 5).with(5, Behaviour::FalseMean);
    let (outcome, watch) = play(&scenario);
    finish(&outcome, 0..5);
    let aggregator = outcome.ids[5];
    let banned: BTreeSet<NodeId> = outcome.bans.iter().map(|(_, whom)| *whom).collect();
    assert_eq!(banned, [aggregator].into(), "{:?}", watch.reasons);
    let adopted = &outcome.observed.adopted;
    let is_false = |mean| outcome.observed.false_means.contains(mean);
    assert!(!adopted.iter().any(|(_, _, mean)| is_false(mean)));
}

/// What each node had moved when it closed its last round.
struct Moved {
    toys: Toys,
    by: BTreeMap<usize, [Bytes; 2]>,
}

impl sim::Wrapped for Moved {
    fn inner(&mut self) -> &mut dyn Trainers {
        &mut self.toys
    }

    fn closed(&mut self, member: usize, closed: ClosedRound) {
        self.by.insert(member, [closed.sent, closed.received]);
    }
}

/// Each node sends its part twice, in slices, and of the slices of the mean what the others ask it for. The aggregator gets one mean.
#[test]
fn nobody_moves_more_than_four_parts_a_round() {
    const NODES: usize = 6;
    let part = 6 * SEGMENT_BYTES;
    let mut scenario = sliced(NODES, 64);
    scenario.link.loss = 0.0;
    let floats = (part / 4 - 64) as usize;
    let toys = Toys::of_floats(scenario.seed, NODES + 1, floats);
    let by = BTreeMap::new();
    let mut moved = Moved { toys, by };
    let outcome = sim::run_with(&scenario, &mut moved);
    finish(&outcome, 0..NODES);
    let rounds = u64::from(ROUNDS);
    assert_eq!(moved.by.len(), NODES);
    let all = |bytes: &Bytes| bytes.aggregator + bytes.peer_to_peer;
    for (node, [sent, received]) in &moved.by {
        assert!(all(sent) <= 4 * part * rounds, "node {node}: {sent:?}");
        assert!(
            all(received) <= 3 * part * rounds,
            "node {node}: {received:?}"
        );
    }
    let to_aggregator: u64 = moved.by.values().map(|[sent, _]| sent.aggregator).sum();
    let from_aggregator: u64 = moved.by.values().map(|[_, got]| got.aggregator).sum();
    assert!(to_aggregator <= part * rounds, "{to_aggregator}");
    assert_eq!(from_aggregator, 0);
}
