//! `fednode replay`: what a member was told is played into the same machine, and the machine answers the same.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use fednode_core::BlobId;
use fednode_e2e::{Federation, Process, fednode, is_finished, round, run};
use serde_json::Value;

fn replay(state: &Path, arguments: &[&str]) -> Output {
    let mut command = fednode();
    command.arg("replay").arg(state).args(arguments);
    run(command)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Replays everything: the inputs, and the verdict after them.
fn all(state: &Path) -> (Vec<Value>, Value) {
    let output = replay(state, &["--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let lines = text(&output.stdout);
    let lines = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    let mut lines: Vec<Value> = lines.collect();
    let verdict = lines.pop().unwrap();
    (lines, verdict)
}

fn segments(state: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(state.join("recording")).unwrap();
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    found.sort();
    found
}

/// How the segments of a replay begin, in order.
fn beginnings(inputs: &[Value]) -> Vec<&str> {
    inputs
        .iter()
        .filter_map(|input| input["begins"].as_str())
        .collect()
}

/// Asserts that a replay has everything in order and every answer as it was.
fn assert_whole(state: &Path, inputs: &[Value], verdict: &Value) {
    let numbers: Vec<u64> = inputs
        .iter()
        .map(|input| input["number"].as_u64().unwrap())
        .collect();
    assert!(
        numbers.is_sorted_by(|one, next| one + 1 == *next),
        "{numbers:?}"
    );
    assert!(inputs.iter().all(|input| input["is_same"] == true));
    assert_eq!(verdict["inputs"], inputs.len(), "{}", state.display());
    assert_eq!(verdict["segments"], beginnings(inputs).len());
}

/// Rounds of the federation that is recorded: enough to fill several small segments.
const ROUNDS: u32 = 24;
/// A recording whose segments are full after some rounds.
const SMALL: &str = "storage.recording_mib=0.5";

#[test]
fn a_recording_is_replayed_across_full_segments_and_a_restart() {
    let federation = Federation::new(2, ROUNDS, &["--samples-per-node", "60"]);
    let (aggregator, address) = federation.start_aggregator();
    let recorded = ["--set", SMALL, "--set", "linger_seconds=600"];
    let start = |shard| federation.start_node(shard, &[&address], &recorded);
    let (mut node, other) = (start(1), start(2));
    node.wait_for_records(3);
    let mut stop = fednode();
    stop.args(["stop", "--state"]).arg(&node.state);
    assert!(run(stop).status.success());
    assert_eq!(node.wait().code(), Some(130));
    let node = start(1);
    node.wait_for("all rounds", is_finished);
    other.wait_for("all rounds of the other", is_finished);

    // While both run: a replay only reads.
    for member in [&node, &other, &aggregator] {
        let (inputs, verdict) = all(&member.state);
        assert_whole(&member.state, &inputs, &verdict);
        let last = inputs.last().unwrap();
        assert_eq!(last["phase_after"], "serving", "{last}");
    }
    let (inputs, _) = all(&node.state);
    let begins = beginnings(&inputs);
    let n_starts = begins.iter().filter(|begins| **begins == "start").count();
    assert_eq!(n_starts, 2, "two lives: {begins:?}");
    assert!(begins.contains(&"full"), "{begins:?}");
    let files = segments(&node.state);
    let bytes: u64 = files
        .iter()
        .map(|file| fs::metadata(file).unwrap().len())
        .sum();
    assert!(bytes <= 512 << 10, "{bytes} bytes in {files:?}");
    stops_where_it_is_told(&node, &inputs);
    log_lines_name_round_and_phase(&node);
}

fn stops_where_it_is_told(node: &Process, inputs: &[Value]) {
    let trained = inputs.iter().rev().find(|input| {
        let says = input["says"].as_str().unwrap();
        says.starts_with("trained")
    });
    let trained = trained.unwrap();
    let number = trained["number"].to_string();
    let shown = ["--from", &number, "--until", &number];
    let output = replay(&node.state, &shown);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    for words in [
        "role=\"node\" phase=\"training\"",
        "input=trained: round",
        "output=publish: local update",
        "doing       ",
    ] {
        assert!(said.contains(words), "`{words}` is not in: {said}");
    }
    let output = replay(&node.state, &[&shown, ["--json"].as_slice()].concat());
    let said = text(&output.stdout);
    let stopped: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    assert_eq!(stopped["until"], trained["number"]);
    assert_eq!(round(&stopped), round(&trained["input"]["Trained"]));
    assert!(
        stopped["machine"]["node"]["shared"]["memory"].is_object(),
        "{said}"
    );
}

fn log_lines_name_round_and_phase(node: &Process) {
    let log = node.log();
    let line = |words: &str| log.lines().find(|line| line.contains(words)).unwrap();
    let (begun, closed) = (line("round 2 begins"), line("round 2 closed"));
    assert!(begun.ends_with("round=2 phase=\"training\""), "{begun}");
    assert!(closed.ends_with("round=2 phase=\"merging\""), "{closed}");
}

/// A node of a federation of its own that has done its rounds: the quickest recording.
fn lonely(rounds: u32) -> (Federation, PathBuf) {
    let federation = Federation::new(1, rounds, &["--samples-per-node", "30"]);
    let mut node = federation.start_node(
        1,
        &[],
        &["--exit-when-finished", "--set", "linger_seconds=0"],
    );
    assert!(node.wait().success(), "{}", node.log());
    let state = node.state.clone();
    (federation, state)
}

/// Asserts that a replay fails with a code and one line that contains certain words.
fn assert_fails(state: &Path, arguments: &[&str], code: i32, words: &[&str]) {
    let output = replay(state, arguments);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    let mut lines = stderr.lines().filter(|line| line.starts_with("error: "));
    let line = lines
        .next()
        .unwrap_or_else(|| panic!("no error line: {stderr}"));
    assert!(lines.next().is_none(), "{stderr}");
    for word in words {
        assert!(line.contains(word), "`{word}` is not in: {line}");
    }
}

/// Changes bytes of a segment, and puts its records' checks right.
fn forge(file: &Path, change: impl FnOnce(&mut Vec<Vec<u8>>)) {
    let bytes = fs::read(file).unwrap();
    let line = bytes.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    let (mut records, mut rest) = (Vec::new(), &bytes[line..]);
    while let Some((length, behind)) = rest.split_first_chunk::<4>() {
        let (body, behind) = behind[4..].split_at(u32::from_le_bytes(*length) as usize);
        records.push(body.to_vec());
        rest = behind;
    }
    change(&mut records);
    let mut forged = bytes[..line].to_vec();
    for body in records {
        forged.extend((body.len() as u32).to_le_bytes());
        forged.extend(&BlobId::of(&body).as_bytes()[..4]);
        forged.extend(body);
    }
    fs::write(file, forged).unwrap();
}

#[test]
fn numbers_that_are_not_recorded_are_named() {
    let (_federation, state) = lonely(1);
    let (inputs, _) = all(&state);
    let recorded = format!("1 to {}", inputs.len());
    let remedy = [recorded.as_str(), "choose one"];
    assert_fails(&state, &["--until", "99999"], 2, &remedy);
    assert_fails(&state, &["--from", "0"], 2, &remedy);
    assert_fails(
        &state,
        &["--from", "3", "--until", "2"],
        2,
        &["--from 3", "exchange them"],
    );
}

#[test]
fn a_recording_that_is_cut_off_is_replayed_as_far_as_it_goes() {
    let (_federation, state) = lonely(1);
    let file = segments(&state).pop().unwrap();
    let whole = fs::read(&file).unwrap();
    let (inputs, _) = all(&state);
    fs::write(&file, &whole[..whole.len() - 3]).unwrap();
    let output = replay(&state, &[]);
    assert!(output.status.success());
    let said = text(&output.stderr);
    let last = format!("input {}", inputs.len() - 1);
    assert!(
        said.contains("in the middle of a record") && said.contains(&last),
        "{said}"
    );
    fs::write(&file, &whole[..500]).unwrap();
    assert_fails(
        &state,
        &[],
        7,
        &["cut off before its first input", "start the member again"],
    );
    fs::write(&file, b"").unwrap();
    assert_fails(&state, &[], 7, &["cut off before its first input"]);
}

#[test]
fn a_recording_of_another_version_or_federation_is_refused() {
    let (_federation, state) = lonely(1);
    let file = segments(&state).pop().unwrap();
    let whole = fs::read(&file).unwrap();
    let mut form = whole.clone();
    form[b"fednode recording ".len()] = b'9';
    fs::write(&file, form).unwrap();
    assert_fails(
        &state,
        &[],
        7,
        &["fednode recording 9", "the version that recorded it"],
    );
    fs::write(&file, b"PK\x03\x04 something else").unwrap();
    assert_fails(
        &state,
        &[],
        7,
        &["no segment of a recording", "move it away"],
    );
    fs::write(&file, &whole).unwrap();
    forge(&file, |records| {
        let version = env!("CARGO_PKG_VERSION").as_bytes();
        let mut windows = records[0].windows(version.len());
        let at = windows.position(|window| window == version).unwrap();
        records[0][at..at + version.len()].fill(b'9');
    });
    assert_fails(
        &state,
        &[],
        7,
        &["recorded by version 99999", "with that version"],
    );
    fs::write(&file, &whole).unwrap();
    let (_other, foreign) = lonely(2);
    fs::copy(foreign.join("federation"), state.join("federation")).unwrap();
    assert_fails(
        &state,
        &[],
        7,
        &["of federation", "in the folder that it was recorded in"],
    );
}

#[test]
fn an_answer_that_differs_is_found_at_its_input() {
    let (_federation, state) = lonely(1);
    let (inputs, _) = all(&state);
    let file = segments(&state).pop().unwrap();
    // Header and image come first, and the hash of the answer is the end of a record.
    forge(&file, |records| {
        let third = &mut records[2 + 2];
        let last = third.len() - 1;
        third[last] ^= 1;
    });
    assert!(inputs.len() > 3);
    assert_fails(
        &state,
        &[],
        70,
        &["answers input 3 otherwise", "--from 3 --until 3"],
    );
}

#[test]
fn without_a_recording_the_reason_is_named() {
    let folder = tempfile::tempdir().unwrap();
    assert_fails(folder.path(), &[], 7, &["not a state folder"]);
    let federation = Federation::new(1, 1, &["--samples-per-node", "30"]);
    let quiet = [
        "--exit-when-finished",
        "--set",
        "linger_seconds=0",
        "--set",
        "storage.recording_mib=0",
    ];
    let mut node = federation.start_node(1, &[], &quiet);
    assert!(node.wait().success(), "{}", node.log());
    assert_fails(
        &node.state,
        &[],
        7,
        &["holds no recording", "recording_mib"],
    );
    let mut wrong: Command = fednode();
    wrong.args(["start", "--set", "storage.recording_mib=-1"]);
    let refused = run(wrong);
    assert!(!refused.status.success());
    let tiny = [
        "--exit-when-finished",
        "--set",
        "linger_seconds=0",
        "--set",
        "storage.recording_mib=0.004",
    ];
    let mut node = federation.start_node(1, &[], &tiny);
    assert!(node.wait().success(), "{}", node.log());
    assert!(
        node.log().contains("raise `recording_mib`"),
        "{}",
        node.log()
    );
}
