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
        ["0ff55408275a42b5", "36b4a51b70086a88", "d426e3a6ea44d07d"],
    ),
    (
        "nobody aggregates",
        nobody_aggregates,
        ["29329d5e0636fd34", "bd19d01d06b8c7ff", "c0d1a0f0c4d7c74b"],
    ),
    (
        "the aggregator comes and goes",
        the_aggregator_comes_and_goes,
        ["d2022ad8623e4220", "28853e3feed0513f", "83926b80c03ea072"],
    ),
    (
        "members come and go",
        members_come_and_go,
        ["c08da7e4571260bf", "fab48435f70d2fad", "a2db81943e6f3f1a"],
    ),
    (
        "cut in two",
        cut_in_two,
        ["39910eb1e963fd53", "787c8843088a93ab", "9ea7480861cbcc1d"],
    ),
    (
        "liars everywhere",
        liars_everywhere,
        ["ef156c56727f84df", "e8ba299ae4738e35", "059204b44183d92b"],
    ),
    (
        "liars act as aggregators",
        liars_act_as_aggregators,
        ["9881c1377b5530dc", "3d9ff6c0e2000ea2", "970e16ddeae8a839"],
    ),
    (
        "some rest",
        some_rest,
        ["a8342e589f94c010", "fd89acef8a00af25", "35c920181656102f"],
    ),
    (
        "some rest without aggregator",
        some_rest_without_aggregator,
        ["6799d00dcb40aace", "49696d4540240977", "642d6a6498015be2"],
    ),
    (
        "nothing is averaged",
        nothing_is_averaged,
        ["7217a7b3fce63909", "29b368471e376928", "13667d1ce3bd44f4"],
    ),
    (
        "experts weigh by use and modules are pooled",
        experts_weigh_by_use_and_modules_are_pooled,
        ["64fa93d7f9ed665a", "64cbf1b54f6f959b", "e5899a487f892e92"],
    ),
    (
        "sketches and few speakers",
        sketches_and_few_speakers,
        ["03be4eb14058a9ae", "380cc6f6634efdea", "2d9375a9acae6e9a"],
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
