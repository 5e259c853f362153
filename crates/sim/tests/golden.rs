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
        ["c9de74c98594ca11", "97bb6eefb636108a", "202d8dfcc2862d43"],
    ),
    (
        "nobody aggregates",
        nobody_aggregates,
        ["0e4d2813a87c42cc", "74c36b1d5c08d483", "e47fa1dc3e6765c0"],
    ),
    (
        "the aggregator comes and goes",
        the_aggregator_comes_and_goes,
        ["2b030084f353f69c", "c1afc8c6d519167b", "05c365fad88b2186"],
    ),
    (
        "members come and go",
        members_come_and_go,
        ["1e0fc490d33861b2", "cb9451a507a888a1", "f2a11c26636520ef"],
    ),
    (
        "cut in two",
        cut_in_two,
        ["e63255f0a042cfcc", "2bf1a8cbc7e21f0d", "e82c8cd8e7683ccf"],
    ),
    (
        "liars everywhere",
        liars_everywhere,
        ["7b263e473b112b7e", "451f3bfdd30edecc", "e067c609704cf597"],
    ),
    (
        "liars act as aggregators",
        liars_act_as_aggregators,
        ["914ca5cbc3f777ba", "f8bf4e07d999ea67", "324ac802132b12a5"],
    ),
    (
        "some rest",
        some_rest,
        ["b276f9c511f7ceb7", "dbd161af0e96752e", "33ba0c9677f89181"],
    ),
    (
        "some rest without aggregator",
        some_rest_without_aggregator,
        ["aeb4d2af090767ad", "be947933a7599034", "8fb7b5c2e80254bb"],
    ),
    (
        "nothing is averaged",
        nothing_is_averaged,
        ["010955f401a8ba1d", "b29bb93f7a162762", "a640e37298803ff5"],
    ),
    (
        "experts weigh by use and modules are pooled",
        experts_weigh_by_use_and_modules_are_pooled,
        ["b8773eab589a893b", "9679f9e3b200f460", "edbe342c9c023b91"],
    ),
    (
        "sketches and few speakers",
        sketches_and_few_speakers,
        ["c00fc948101a4782", "d8ed6fd2e031f4ea", "01e6a5df70f0f9b6"],
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
