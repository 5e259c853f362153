//! The signed history of a federation of real processes, checked from their folders.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use fednode_e2e::{Federation, assert_fails, fednode, is_finished, json_of, run, signal};
use rustix::process::Signal;
use serde_json::Value;

fn audit(state: &Path, words: &[&str]) -> std::process::Output {
    let mut command = fednode();
    command.arg("audit").args(words).arg("--state").arg(state);
    run(command)
}

#[test]
fn every_member_and_fedboot_can_prove_each_round_that_closed() {
    let federation = Federation::new(2, 4, &["--algorithm", "fedavg"]);
    let (boot, address) = federation.start_aggregator();
    let nodes = [1, 2].map(|shard| federation.start_node(shard, &[&address], &[]));
    for node in &nodes {
        node.wait_for("the last round", is_finished);
    }
    let states = [&nodes[0], &nodes[1], &boot].map(|process| process.state.clone());
    // While they run: nothing in the folders is changed.
    let histories = states
        .each_ref()
        .map(|state| json_of(&audit(state, &["--json"])));
    for history in &histories {
        let rounds = history["rounds"].as_array().unwrap();
        assert_eq!(rounds.len(), 4, "{history}");
        for (row, number) in rounds.iter().zip(1..) {
            assert_eq!(row["round"], number, "{row}");
            assert_eq!(row["verdict"]["is"], "confirmed", "{row}");
            assert_eq!(row["members"], 2, "{row}");
            let link = if number == 1 { "first" } else { "linked" };
            assert_eq!(row["link"], link, "{row}");
            assert_eq!(row["updates"].as_array().unwrap().len(), 2, "{row}");
        }
    }
    let means = |history: &Value| -> Vec<Value> {
        let rounds = history["rounds"].as_array().unwrap();
        rounds.iter().map(|row| row["mean"].clone()).collect()
    };
    assert_eq!(means(&histories[0]), means(&histories[1]));
    assert_eq!(means(&histories[0]), means(&histories[2]));

    // An auditor gets a copy without the key, and needs no more.
    drop((nodes, boot));
    let copy = federation.path().join("copy");
    fs::create_dir(&copy).unwrap();
    for entry in fs::read_dir(&states[0]).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() && !path.ends_with("key") {
            fs::copy(&path, copy.join(path.file_name().unwrap())).unwrap();
        }
    }
    let text = String::from_utf8(audit(&copy, &[]).stdout).unwrap();
    assert!(
        text.contains("4 rounds: 4 confirmed, 0 without a mean"),
        "{text}"
    );
}

#[test]
fn a_history_that_cannot_be_checked_says_why() {
    let federation = Federation::new(1, 2, &["--algorithm", "local"]);
    assert_fails(
        &audit(&federation.path().join("nowhere"), &[]),
        7,
        &["nowhere"],
    );
    let mut node = federation.start_node(1, &[], &[]);
    node.wait_for("the last round", is_finished);
    let state = node.state.clone();
    signal(node.id(), Signal::INT);
    node.wait();
    let history = json_of(&audit(&state, &["--json"]));
    let rounds = history["rounds"].as_array().unwrap();
    assert_eq!(rounds.len(), 2, "{history}");
    assert!(
        rounds.iter().all(|row| row["link"] == "no-mean"),
        "{history}"
    );
    let spec = fs::read(state.join("federation.toml")).unwrap();
    fs::write(state.join("federation.toml"), "nodes = 3\n").unwrap();
    assert_fails(&audit(&state, &[]), 7, &["federation.toml"]);
    fs::write(state.join("federation.toml"), spec).unwrap();
    let ledger = state.join("ledger.sqlite");
    let whole = fs::read(&ledger).unwrap();
    for (cut, words) in [
        (whole.len() / 2, "malformed"),
        (0, "its log `ledger.sqlite-wal` is not beside it"),
    ] {
        // What an audit before has put beside it.
        for log in ["ledger.sqlite-wal", "ledger.sqlite-shm"] {
            _ = fs::remove_file(state.join(log));
        }
        fs::write(&ledger, &whole[..cut]).unwrap();
        assert_fails(&audit(&state, &[]), 7, &[words, "the whole folder"]);
    }
}
