//! Every output of every machine, held to what it was: a change of structure must not change one of them.
//!
//! A transcript is the hash of all outputs of a run, in order, with their times and members. The numbers are those of
//! toys, so they are the same on every machine. A transcript that moves means that the protocol moved: say so in the
//! changelog, then write what the failing test prints.
#![allow(clippy::unwrap_used)]

use fednode_core::{BlobId, Timestamp, Weighting};
use fednode_engine::Output;
use fednode_sim::{self as sim, Behaviour, Incident, Observer, Scenario, Toys};

/// Hashes all outputs, each after the one before it.
struct Transcript(BlobId);

impl Observer for Transcript {
    fn output(&mut self, now: Timestamp, member: usize, output: &Output) {
        let line = format!("{}\n{} {member} {output:?}", self.0, now.0);
        self.0 = BlobId::of(line.as_bytes());
    }
}

fn transcript(scenario: &Scenario) -> String {
    let mut transcript = Transcript(BlobId::of(b""));
    let mut toys = Toys::new(scenario.seed, scenario.nodes + 1);
    sim::run_observed(scenario, &mut toys, &mut transcript);
    transcript.0.to_string()[..16].to_owned()
}

fn good_weather(seed: u64) -> Scenario {
    Scenario::new(seed, 5, 6)
}

fn nobody_aggregates(seed: u64) -> Scenario {
    let mut scenario = Scenario::new(seed, 7, 5);
    scenario.aggregator = false;
    scenario.slow.insert(2, 3);
    scenario
}

fn the_aggregator_comes_and_goes(seed: u64) -> Scenario {
    Scenario::new(seed, 6, 8)
        .at(9.0, Incident::Kill(6))
        .at(26.0, Incident::Restart(6))
}

fn members_come_and_go(seed: u64) -> Scenario {
    let mut scenario = Scenario::new(seed, 9, 7)
        .at(7.0, Incident::Kill(4))
        .at(8.0, Incident::Kill(1))
        .at(14.0, Incident::Join(8))
        .at(15.0, Incident::Restart(4))
        .at(17.0, Incident::Leave(2))
        .at(24.0, Incident::Restart(1));
    scenario.absent = vec![8];
    scenario.link.loss = 0.2;
    scenario
}

fn cut_in_two(seed: u64) -> Scenario {
    let mut scenario = Scenario::new(seed, 9, 12)
        .at(10.0, Incident::Partition(vec![0, 1]))
        .at(40.0, Incident::Heal);
    scenario.spec.round.deadline_seconds = 10.0;
    scenario
}

fn liars_everywhere(seed: u64) -> Scenario {
    let mut scenario = Scenario::new(seed, 12, 6)
        .with(0, Behaviour::NanExperts)
        .with(1, Behaviour::HugeExperts)
        .with(2, Behaviour::ForeignShape)
        .with(3, Behaviour::CorruptServer)
        .with(4, Behaviour::FalseAccuser)
        .with(12, Behaviour::FalseMean);
    scenario.spec.round.audit = 0.5;
    scenario
}

fn liars_act_as_aggregators(seed: u64) -> Scenario {
    let mut scenario = Scenario::new(seed, 6, 6)
        .with(1, Behaviour::FalseMean)
        .with(4, Behaviour::FalseMean)
        .at(11.0, Incident::Kill(3));
    scenario.aggregator = false;
    scenario
}

fn some_rest(seed: u64) -> Scenario {
    let mut scenario = Scenario::new(seed, 10, 8)
        .at(12.0, Incident::Kill(5))
        .at(25.0, Incident::Restart(5));
    scenario.spec.round.participation = 0.4;
    scenario.spec.statistics.enabled = true;
    scenario
}

fn some_rest_without_aggregator(seed: u64) -> Scenario {
    let mut scenario = Scenario::new(seed, 80, 5);
    scenario.spec.round.participation = 0.3;
    scenario.spec.exchange.experts = None;
    scenario.aggregator = false;
    scenario
}

fn nothing_is_averaged(seed: u64) -> Scenario {
    let mut scenario = Scenario::new(seed, 5, 6).at(12.0, Incident::Kill(4));
    scenario.spec.exchange.averaging = None;
    scenario.inline_proxy_bytes = 1 << 20;
    scenario
}

fn experts_weigh_by_use_and_modules_are_pooled(seed: u64) -> Scenario {
    let mut scenario = Scenario::new(seed, 8, 3)
        .with(2, Behaviour::KeptModule)
        .with(3, Behaviour::NanExperts)
        .at(17.0, Incident::Kill(5));
    scenario.spec.pool.preset = Some(fednode_core::spec::Preset::Fixed);
    scenario.spec.pool.max_members = 4;
    if let Some(experts) = &mut scenario.spec.exchange.experts {
        experts.weighting = Weighting::Samples;
    }
    scenario
}

fn sketches_and_few_speakers(seed: u64) -> Scenario {
    let mut scenario = Scenario::new(seed, 120, 6).at(12.0, Incident::Kill(120));
    (scenario.spec.scale.speakers, scenario.spec.scale.follows) = (32, 24);
    scenario.spec.scale.full_proxies = 0;
    scenario.link.loss = 0.02;
    scenario
}

/// A kind of scenario, and its transcripts with seeds 1, 2 and 3.
type Kept = (&'static str, fn(u64) -> Scenario, [&'static str; 3]);

const KEPT: [Kept; 12] = [
    (
        "good weather",
        good_weather,
        ["9ede399d1db87d17", "b942a8873f72ce69", "1ed129824026e246"],
    ),
    (
        "nobody aggregates",
        nobody_aggregates,
        ["ba39b550af499a59", "0bfb0ea0f320eeb6", "577eefccb383055c"],
    ),
    (
        "the aggregator comes and goes",
        the_aggregator_comes_and_goes,
        ["455223ea7ca6b768", "e578d3332668487b", "170f199529386d86"],
    ),
    (
        "members come and go",
        members_come_and_go,
        ["301b62cc30ab07df", "25a02d092a378703", "6b6a0b67d01689b5"],
    ),
    (
        "cut in two",
        cut_in_two,
        ["6edd4c8e83d6f0b8", "bd651e86524d7a31", "72ed73a3c114ddc6"],
    ),
    (
        "liars everywhere",
        liars_everywhere,
        ["07979fd038d80ad3", "777e7da994e4a250", "9d0fd52537af5460"],
    ),
    (
        "liars act as aggregators",
        liars_act_as_aggregators,
        ["6796f22507d0667b", "11ddaa342e25ec4a", "9fdd4ad60f9810b5"],
    ),
    (
        "some rest",
        some_rest,
        ["fdee94450e842d33", "7eb07e5aaf21796a", "5127c0f9a63fadce"],
    ),
    (
        "some rest without aggregator",
        some_rest_without_aggregator,
        ["891cc95a55ec8eac", "1ee295cc3778c5a0", "389887aa5972a569"],
    ),
    (
        "nothing is averaged",
        nothing_is_averaged,
        ["5f5d8884b353d4de", "cb494b2fc649d1ec", "e477a8fb99b6bb44"],
    ),
    (
        "experts weigh by use and modules are pooled",
        experts_weigh_by_use_and_modules_are_pooled,
        ["38803516b3ccb091", "97282a03c71bc6dc", "a1d3de0a4b765c3e"],
    ),
    (
        "sketches and few speakers",
        sketches_and_few_speakers,
        ["37d5754868453fad", "d27f87720700ce92", "4d10e8da92d88f4c"],
    ),
];

/// `cargo test -p fednode-sim --test golden -- --ignored --nocapture` before and after a change, to compare by hand.
#[test]
#[ignore = "prints more transcripts than are kept"]
fn transcripts_of_many_seeds_are_printed() {
    for (name, scenario, _) in KEPT {
        for seed in 4..=25 {
            eprintln!("{name}, seed {seed}: {}", transcript(&scenario(seed)));
        }
    }
}

#[test]
fn all_machines_say_what_they_always_said() {
    let mut moved = Vec::new();
    for (name, scenario, kept) in KEPT {
        let now = [1, 2, 3].map(|seed| transcript(&scenario(seed)));
        if now != kept {
            moved.push(format!("{name}: {now:?}"));
        }
    }
    assert!(
        moved.is_empty(),
        "transcripts that moved:\n{}",
        moved.join("\n")
    );
}
