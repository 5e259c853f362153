//! PM-MoE's second stage with the real binaries: private modules go round after the last round, and a mixture predicts.
#![allow(clippy::unwrap_used)]

use fednode_e2e::{Federation, Process, fednode, is_finished, json_of, run};
use serde_json::Value;

fn accuracy(value: &Value) -> f64 {
    value["accuracy"].as_f64().unwrap_or_else(|| panic!("no accuracy in {value}"))
}

/// What `fednode evaluate` says of the model that a node has written, on the node's own test samples.
fn evaluate(node: &Process, shard: usize) -> Value {
    let mut command = fednode();
    command.args(["evaluate", "--json", "--state"]).arg(&node.state);
    json_of(&run(command))["score"].clone()
}

#[test]
fn a_death_between_the_stages_leaves_the_others_a_pool_that_predicts() {
    let settings = ["--algorithm", "fedper", "--pool", "--set", "pool.epochs=60", "--set", "round.grace_seconds=1"];
    let federation = Federation::new(4, 2, &settings);
    let (_fedboot, address) = federation.start_aggregator();
    let mut nodes: Vec<Process> = (1..=4).map(|shard| federation.start_node(shard, &[&address], &[])).collect();
    nodes[3].wait_for("the second stage", |status| status["phase"] == "pooling");
    nodes[3].kill();
    for (shard, node) in (1..).zip(&nodes[..3]) {
        let status = node.wait_for("the pool", is_finished);
        let pool = &status["pool"];
        let others = pool["members"].as_array().unwrap().iter().filter(|member| !member["node"].is_null()).count();
        assert!((2..=3).contains(&others), "the two others, and the dead one if it was quick: {pool}");
        assert!(pool["validation"]["mixture"].is_object(), "no gate was trained: {pool}");
        let serves_mixture = pool["served"] == "mixture";
        let chosen = if serves_mixture { &pool["test"]["mixture"] } else { &pool["test"]["own"] };
        let told = &status["finished_evaluation"]["test"];
        assert_eq!(accuracy(told), accuracy(chosen), "{pool}");
        assert_eq!(
            accuracy(&evaluate(node, shard)),
            accuracy(told),
            "the model on the disk is the one that was evaluated"
        );
    }
}

/// Runs the same federation live and simulated; returns both summaries.
fn twice(settings: &[&str]) -> (Value, Value) {
    let folder = tempfile::tempdir().unwrap();
    let play = |command: &str| {
        let mut process = fednode();
        process.args([command, "--json", "--device", "cpu", "--out"]).arg(folder.path().join(command)).args(settings);
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
    assert_eq!(live["effective_config"]["federation"]["statistics"]["enabled"], true, "`best` has both");
    let nodes = |summary: &Value| summary["per_node"].as_array().unwrap().clone();
    for (live, simulated) in nodes(&live).iter().zip(nodes(&simulated)) {
        let members = |node: &Value| node["pool"]["members"].as_array().unwrap().len();
        assert_eq!((members(live), members(&simulated)), (3, 3));
        let after = |node: &Value| node["accuracy_after_finishing"].as_f64().unwrap();
        // Members are summed in the order of their names, which differ, so the last bits may.
        assert!((after(live) - after(&simulated)).abs() < 0.03, "{} {}", after(live), after(&simulated));
    }
}

#[test]
fn an_algorithm_without_a_private_module_is_refused_before_anything_starts() {
    for algorithm in ["fedavg", "local"] {
        let mut command = fednode();
        command.args(["swarm", "--algorithm", algorithm, "--pool"]);
        let output = run(command);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(3), "{stderr}");
        assert!(stderr.contains("no private module") && stderr.contains("leave out `--pool`"), "{stderr}");
    }
}
