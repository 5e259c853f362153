//! Every output of every machine, held to what it was: a change of structure must not change one of them.
//!
//! A transcript is the hash of all outputs of a run, in order, with their times and members. The numbers are those of
//! toys, so they are the same on every machine. A transcript that moves means that the protocol moved: say so in the
//! changelog, then write what the failing test prints.
#![allow(clippy::unwrap_used)]

mod kept;

use fednode_core::{BlobId, Timestamp};
use fednode_engine::Output;
use fednode_sim::{self as sim, Observer, Scenario, Toys};
use kept::*;

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
