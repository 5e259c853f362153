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
        ["48688d954152b6f1", "4caf85564a518e0c", "ab770fe08f7c0d10"],
    ),
    (
        "nobody aggregates",
        nobody_aggregates,
        ["d402c470b3cbd536", "0fde381d57dbb8f8", "8cc4cdfa383cd9e9"],
    ),
    (
        "the aggregator comes and goes",
        the_aggregator_comes_and_goes,
        ["61a5fc8a469d5020", "46fb2c3b9863aaff", "64b1b4ac26815e16"],
    ),
    (
        "members come and go",
        members_come_and_go,
        ["9abbacc44513425f", "b49ef5facdca3ae0", "4444bf5cd53cdc31"],
    ),
    (
        "cut in two",
        cut_in_two,
        ["b3c24f445079ddf7", "563bd3833ee02a9f", "a89964b443e5c8ef"],
    ),
    (
        "liars everywhere",
        liars_everywhere,
        ["ecd7d99c3125a174", "c6507b075c3b2299", "b2ca2df3383f8652"],
    ),
    (
        "liars act as aggregators",
        liars_act_as_aggregators,
        ["1ec45a014963204b", "abf39840f594445c", "a9513a11e72f368f"],
    ),
    (
        "some rest",
        some_rest,
        ["49cdfda2904fdb65", "a1bc4d674083e7bf", "8ba21552b64001c6"],
    ),
    (
        "some rest without aggregator",
        some_rest_without_aggregator,
        ["1d8a27ba67e42184", "4d51cf090db21150", "f23270202ad4048d"],
    ),
    (
        "nothing is averaged",
        nothing_is_averaged,
        ["5f5d8884b353d4de", "cb494b2fc649d1ec", "e477a8fb99b6bb44"],
    ),
    (
        "experts weigh by use and modules are pooled",
        experts_weigh_by_use_and_modules_are_pooled,
        ["38803516b3ccb091", "e8057b6be6cc356c", "a1d3de0a4b765c3e"],
    ),
    (
        "sketches and few speakers",
        sketches_and_few_speakers,
        ["959208bec2f5c5f4", "84a30e007fa2e093", "6a22084c57f7a388"],
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
