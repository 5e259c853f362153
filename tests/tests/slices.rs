//! Means that are averaged slice by slice, with real processes.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use fednode_e2e::{assert_fails, fednode, json_of, run};
use serde_json::Value;

/// A hidden layer wide enough for a shared part of 1.2 MB: two segments, so two slices.
const LAYERS: &str = "model.layers=linear 4000, relu";

fn swarm(out: &Path, slices: &str) -> Value {
    let mut swarm = fednode();
    swarm
        .args(["swarm", "--json", "--device", "cpu", "--no-control"])
        .args(["--nodes", "3", "--rounds", "3", "--seed", "5"])
        .args(["--algorithm", "fedavg", "--model", "declared"])
        .args(["--set", LAYERS, "--set", "aggregation=mean"])
        .args(["--set", slices, "--set", "round.audit=1", "--out"])
        .arg(out);
    json_of(&run(swarm))
}

/// A mean looks at each number by itself, so its slices are those of the whole, and so is all that is learned.
#[test]
fn nodes_that_average_in_slices_learn_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let [sliced, whole] = [("sliced", "round.slices=8"), ("whole", "round.slices=1")]
        .map(|(name, slices)| swarm(&folder.path().join(name), slices));
    let learned = |summary: &Value| {
        let nodes = summary["per_node"].as_array().unwrap();
        let of = |node: &Value| (node["accuracy"].clone(), node["loss"].clone());
        nodes.iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(learned(&sliced), learned(&whole));
    // With slices the aggregator fetches those of the mean, and no part of any node.
    let moved = |summary: &Value| summary["bytes_per_round"]["aggregator"].as_f64().unwrap();
    assert!(
        moved(&sliced) < 0.3 * moved(&whole),
        "{} and {}",
        moved(&sliced),
        moved(&whole)
    );
    let mut audit = fednode();
    audit
        .args(["audit", "--json", "--state"])
        .arg(folder.path().join("sliced/nodes/1/state"));
    let audit = json_of(&run(audit));
    let rounds = audit["rounds"].as_array().unwrap();
    assert_eq!(rounds.len(), 3);
    assert!(
        rounds
            .iter()
            .all(|round| round["verdict"]["is"] == "confirmed"),
        "{audit}"
    );
}

#[test]
fn what_is_averaged_as_a_whole_cannot_be_divided() {
    let refused = |arguments: &[&str], words: [&str; 2]| {
        let folder = tempfile::tempdir().unwrap();
        let mut swarm = fednode();
        swarm
            .args(["swarm", "--nodes", "3", "--set", "round.slices=4", "--out"])
            .arg(folder.path().join("out"))
            .args(arguments);
        assert_fails(&run(swarm), 3, &words);
    };
    refused(
        &["--algorithm", "fedavg", "--set", "privacy.sums=masked"],
        ["round.slices", "masked"],
    );
    refused(&["--algorithm", "fedgh"], ["round.slices", "as a whole"]);
}
