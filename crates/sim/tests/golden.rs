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
        let mut line = format!("{}\n{} {member} {output:?}", self.0, now.0);
        // Fields of masked sums, which open ones leave empty. They came after these transcripts.
        for empty in [
            ", offer: None",
            ", unmasked: []",
            ", slices: []",
            ", slice: None",
            ", masks: None",
            ", masked: None",
        ] {
            line = line.replace(empty, "");
        }
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
        ["8fb5d62c90ae9d9d", "5c1a692596d55460", "cfa800d53848f118"],
    ),
    (
        "nobody aggregates",
        nobody_aggregates,
        ["593d41bf3ad180f0", "10c5c44dbfe6f88d", "62a2ec5e1b0c8cbf"],
    ),
    (
        "the aggregator comes and goes",
        the_aggregator_comes_and_goes,
        ["abd4f1faba6462ea", "41d86b9b4532b931", "076b29a2d73d0eb5"],
    ),
    (
        "members come and go",
        members_come_and_go,
        ["612db3327a1dac46", "1cd7fb444511a357", "d2920f9c734fc5cc"],
    ),
    (
        "cut in two",
        cut_in_two,
        ["ce8faba0a8a298a8", "ffdc46e8d20da1ed", "fe51e7bd3f82424a"],
    ),
    (
        "liars everywhere",
        liars_everywhere,
        ["2df0d805df9942f3", "5c2442a44ecbcffb", "4906cb061ecde81f"],
    ),
    (
        "liars act as aggregators",
        liars_act_as_aggregators,
        ["ba5afcbe2a8708d3", "0442929cfc64e78a", "768390a7368fa6fb"],
    ),
    (
        "some rest",
        some_rest,
        ["81e0faa4ffe74d02", "0f9085d091e31cb0", "9959da4124b8a421"],
    ),
    (
        "some rest without aggregator",
        some_rest_without_aggregator,
        ["ba80a06f2d8d0ac2", "18c3cbced4041c75", "bed4e66d727333ba"],
    ),
    (
        "nothing is averaged",
        nothing_is_averaged,
        ["7217a7b3fce63909", "29b368471e376928", "13667d1ce3bd44f4"],
    ),
    (
        "experts weigh by use and modules are pooled",
        experts_weigh_by_use_and_modules_are_pooled,
        ["02047c22009ce278", "17ece944ffb06991", "3007a41b204864e6"],
    ),
    (
        "sketches and few speakers",
        sketches_and_few_speakers,
        ["65661bc7ffab1ca9", "38cd3df795cf1dfe", "8630440410b86df2"],
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
