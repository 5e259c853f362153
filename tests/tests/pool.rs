//! PM-MoE's second stage with the real binaries: private modules go round after the last round, and a mixture predicts.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use fednode_e2e::{Federation, Process, fednode, is_finished, json_of, run};
use serde_json::Value;

fn accuracy(value: &Value) -> f64 {
    value["accuracy"]
        .as_f64()
        .unwrap_or_else(|| panic!("no accuracy in {value}"))
}

/// What `fednode evaluate` says of the model that a node has written, on the node's own test samples.
fn evaluate(node: &Process) -> Value {
    let mut command = fednode();
    command
        .args(["evaluate", "--json", "--state"])
        .arg(&node.state);
    json_of(&run(command))["score"].clone()
}

/// Writes an image of a nought as the digits are: eight rows of eight points, 0 to 255.
fn write_image(folder: &Path) -> PathBuf {
    let rows = [
        "00258200", "02f86f20", "09a00c90", "0c6008c0", "0c6008c0", "09900c90", "02f67f30",
        "00269300",
    ];
    let points: Vec<u8> = rows
        .iter()
        .flat_map(|row| row.bytes())
        .map(|digit| 17 * hex(digit))
        .collect();
    // An IDX file: unsigned bytes, three dimensions.
    let head = [[0, 0, 8, 3], [0, 0, 0, 1], [0, 0, 0, 8], [0, 0, 0, 8]].concat();
    let path = folder.join("nought-idx3-ubyte");
    std::fs::write(&path, [head, points].concat()).unwrap();
    path
}

fn hex(digit: u8) -> u8 {
    char::from(digit).to_digit(16).unwrap() as u8
}

#[test]
fn a_death_between_the_stages_leaves_the_others_a_pool_that_predicts() {
    // Without a guard, as in the paper, every node serves its mixture, better or not.
    let settings = [
        "--algorithm",
        "fedper",
        "--pool=paper",
        "--set",
        "pool.epochs=60",
        "--set",
        "round.grace_seconds=1",
    ];
    let federation = Federation::new(4, 2, &settings);
    let (_fedboot, address) = federation.start_aggregator();
    let mut nodes: Vec<Process> = (1..=4)
        .map(|shard| federation.start_node(shard, &[&address], &[]))
        .collect();
    nodes[3].wait_for("the second stage", |status| status["phase"] == "pooling");
    nodes[3].kill();
    let folder = tempfile::tempdir().unwrap();
    let image = write_image(folder.path());
    for node in &nodes[..3] {
        let status = node.wait_for("the pool", is_finished);
        let pool = &status["pool"];
        let others = pool["members"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|member| !member["node"].is_null())
            .count();
        assert!(
            (2..=3).contains(&others),
            "the two others, and the dead one if it was quick: {pool}"
        );
        assert!(
            pool["validation"]["mixture"].is_object(),
            "no gate was trained: {pool}"
        );
        assert_eq!(pool["served"], "mixture", "{pool}");
        let told = &status["finished_evaluation"]["test"];
        assert_eq!(accuracy(told), accuracy(&pool["test"]["mixture"]), "{pool}");
        assert_eq!(
            accuracy(&evaluate(node)),
            accuracy(told),
            "the model on the disk is the one that was evaluated"
        );
        let mut predict = fednode();
        predict
            .args(["predict", "--json", "--state"])
            .arg(&node.state)
            .arg(&image);
        let predicted = json_of(&run(predict));
        let probabilities = predicted[0]["probabilities"].as_array().unwrap();
        let sum: f64 = probabilities
            .iter()
            .map(|share| share.as_f64().unwrap())
            .sum();
        assert!(
            probabilities.len() == 10 && (sum - 1.0).abs() < 1e-5,
            "{predicted}"
        );
    }
}

/// Runs the same federation live and simulated; returns both summaries.
fn twice(settings: &[&str]) -> (Value, Value) {
    let folder = tempfile::tempdir().unwrap();
    let play = |command: &str| {
        let mut process = fednode();
        process
            .args([command, "--json", "--device", "cpu", "--out"])
            .arg(folder.path().join(command))
            .args(settings);
        json_of(&run(process))
    };
    (play("swarm"), play("simulate"))
}

#[test]
fn a_simulated_pool_is_a_live_one() {
    let settings = [
        "--nodes",
        "3",
        "--rounds",
        "2",
        "--seed",
        "4",
        "--algorithm",
        "fedrod",
        "--pool=best",
        "--set",
        "pool.epochs=8",
    ];
    let (live, simulated) = twice(&settings);
    assert_eq!(
        live["effective_config"]["federation"]["statistics"]["enabled"], true,
        "`best` has both"
    );
    let nodes = |summary: &Value| summary["per_node"].as_array().unwrap().clone();
    for (live, simulated) in nodes(&live).iter().zip(nodes(&simulated)) {
        let members = |node: &Value| node["pool"]["members"].as_array().unwrap().len();
        assert_eq!((members(live), members(&simulated)), (3, 3));
        let after = |node: &Value| node["accuracy_after_finishing"].as_f64().unwrap();
        // Members are summed in the order of their names, which differ, so the last bits may.
        assert!(
            (after(live) - after(&simulated)).abs() < 0.03,
            "{} {}",
            after(live),
            after(&simulated)
        );
    }
}

#[test]
fn pool_without_a_private_module_is_refused_at_the_start() {
    for algorithm in ["fedavg", "local"] {
        let mut command = fednode();
        command.args(["swarm", "--algorithm", algorithm, "--pool"]);
        let output = run(command);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(3), "{stderr}");
        assert!(
            stderr.contains("no private module") && stderr.contains("leave out `--pool`"),
            "{stderr}"
        );
    }
}
