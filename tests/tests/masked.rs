//! A federation whose sums are masked, with the real binaries.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::Command;

use fednode_e2e::{
    Federation, Process, SLOW_ROUNDS, assert_fails, fednode, is_finished, json_of, run,
};
use serde_json::Value;

const MASKED: [&str; 16] = [
    "--nodes",
    "4",
    "--rounds",
    "4",
    "--seed",
    "1",
    "--algorithm",
    "fedavg",
    "--model",
    "mlp",
    "--data",
    "digits",
    "--partition",
    "iid",
    "--privacy",
    "masked",
];

fn command(name: &str, out: &Path, more: &[&str]) -> Command {
    let mut command = fednode();
    command.args([name, "--json", "--device", "cpu", "--out"]);
    command.arg(out).args(more);
    command
}

fn accuracy(summary: &Value) -> f64 {
    summary["mean_accuracy"].as_f64().unwrap()
}

#[test]
fn a_swarm_learns_from_sums_and_everybody_can_prove_them() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let summary = json_of(&run(command(
        "swarm",
        &out,
        &[&MASKED[..], &["--no-control"]].concat(),
    )));
    assert_eq!(summary["privacy"]["mode"], "masked");
    assert!(accuracy(&summary) > 0.7, "{summary}");
    for member in ["nodes/1/state", "nodes/4/state", "fedboot/state"] {
        let mut audit = fednode();
        audit
            .args(["audit", "--json", "--state"])
            .arg(out.join(member));
        let history = json_of(&run(audit));
        let rounds = history["rounds"].as_array().unwrap();
        assert_eq!(rounds.len(), 4, "{member}: {history}");
        for row in rounds {
            assert_eq!(row["verdict"]["is"], "confirmed", "{member}: {row}");
            assert_eq!(row["members"], 4, "{row}");
            // Nobody learns how many samples a node has.
            let updates = row["updates"].as_array().unwrap();
            assert!(updates.iter().all(|update| update["samples"] == 0), "{row}");
        }
        // Nothing was added up in the first round, in which masks are made.
        let mean = |at: usize| &rounds[at]["mean"];
        assert!(
            (1..4).all(|at| mean(at) != mean(at - 1)),
            "{member}: {history}"
        );
    }
}

#[test]
fn simulated_sums_are_those_of_open_parts() {
    let folder = tempfile::tempdir().unwrap();
    let run_with = |name: &str, more: &[&str]| {
        let out = folder.path().join(name);
        json_of(&run(command(
            "simulate",
            &out,
            &[&MASKED[..14], more].concat(),
        )))
    };
    let masked = run_with("masked", &["--privacy", "masked"]);
    let open = run_with("open", &["--set", "aggregation=mean"]);
    assert_eq!(masked["privacy"]["mode"], "masked");
    // The masked one has a round less to learn in.
    let (masked, open) = (accuracy(&masked), accuracy(&open));
    assert!((masked - open).abs() < 0.1, "{masked} and {open}");
}

#[test]
fn what_masks_do_not_cover_is_refused_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |more: &[&str], word: &str| {
        let arguments = [&["--privacy", "masked"], more].concat();
        let output = run(command("simulate", &folder.path().join("run"), &arguments));
        assert_fails(&output, 3, &[word]);
    };
    refused(&["--algorithm", "fedmoe-da"], "masks do not cover");
    refused(&["--algorithm", "local"], "add nothing up");
    refused(
        &["--algorithm", "fedavg", "--set", "aggregation=median"],
        "the rule `mean`",
    );
    refused(&["--algorithm", "fedavg", "--nodes", "2"], "`nodes`");
    refused(&["--algorithm", "fedper", "--pool"], "pool");
    let fedavg = ["--algorithm", "fedavg", "--set", "privacy.group=4"];
    refused(&fedavg, "leave it out");
    refused(&["--set", "privacy.group=2"], "3 to 48");
    refused(
        &["--algorithm", "fedavg", "--set", "statistics.enabled=true"],
        "statistics",
    );
    assert!(fs::read_dir(folder.path()).unwrap().next().is_none());
}

#[test]
fn a_federation_under_masks_survives_its_aggregator_and_takes_a_killed_node_back() {
    let masked = ["--algorithm", "fedavg", "--privacy", "masked"];
    let settings = [&masked[..], &SLOW_ROUNDS].concat();
    let federation = Federation::new(4, 12, &settings);
    let (mut fedboot, address) = federation.start_aggregator();
    let start = |shard| federation.start_node(shard, &[&address], &[]);
    let mut nodes: Vec<Process> = (1..=3).map(start).collect();
    let mut victim = start(4);
    // Nodes meet each other before the one that introduced them is gone.
    nodes[0].wait_for_records(3);
    victim.kill();
    let neighbour = nodes[0].status().unwrap()["listeners"][0]
        .as_str()
        .unwrap()
        .to_owned();
    nodes[0].wait_for_records(5);
    let back = federation.start_node(4, &[&address, &neighbour], &[]);
    nodes[0].wait_for_records(6);
    fedboot.kill();
    nodes.push(back);
    for node in &nodes {
        node.wait_for("the last round", is_finished);
    }
    let mut audit = fednode();
    audit
        .args(["audit", "--json", "--state"])
        .arg(&nodes[0].state);
    let history = json_of(&run(audit));
    let rounds = history["rounds"].as_array().unwrap();
    let confirmed = rounds
        .iter()
        .filter(|row| row["verdict"]["is"] == "confirmed");
    assert!(confirmed.count() >= 9, "{history}");
    assert_eq!(rounds.last().unwrap()["members"], 4, "{history}");
}

/// By default nodes add up their statistics once, in the last round, and share the noise. With 4 nodes one may be missing.
#[test]
fn a_swarm_adds_up_its_statistics_once_and_counts_the_release() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let settings = ["--nodes", "4", "--rounds", "3", "--seed", "1"];
    let promise = ["--privacy", "masked+dp:40", "--no-control"];
    let summary = json_of(&run(command(
        "swarm",
        &out,
        &[&settings[..], &promise].concat(),
    )));
    assert_eq!(summary["privacy"]["mode"], "masked+dp:40");
    assert_eq!(summary["privacy"]["epsilon"], 40.0);
    let nodes = summary["per_node"].as_array().unwrap();
    let lacks = nodes.iter().all(|node| node["lacks"].is_null());
    assert!(nodes.len() == 4 && lacks, "{summary}");
    for node in 1..=4 {
        let state = out.join(format!("nodes/{node}/state"));
        let releases = fs::read_to_string(state.join("privacy.json")).unwrap();
        let releases: Value = serde_json::from_str(&releases).unwrap();
        let releases = releases.as_array().unwrap();
        assert_eq!(releases.len(), 1, "one release in three rounds");
        assert_eq!(releases[0]["what"], "class statistics");
    }
    let mut look = fednode();
    look.args(["privacy", "--json", "--config"]);
    look.arg(out.join("nodes/1/node.toml"));
    let answer = json_of(&run(look));
    let spent = answer["spent"]["epsilon"].as_f64().unwrap();
    assert!((39.9..=40.0).contains(&spent), "{answer}");
    let mut audit = fednode();
    audit.args(["audit", "--json", "--state"]);
    audit.arg(out.join("nodes/1/state"));
    let history = json_of(&run(audit));
    let rounds = history["rounds"].as_array().unwrap();
    let confirmed = |row: &Value| row["verdict"]["is"] == "confirmed" && row["members"] == 4;
    assert!(
        rounds.len() == 3 && rounds.iter().all(confirmed),
        "{history}"
    );
    let mean = |at: usize| &rounds[at]["mean"];
    assert_eq!(
        mean(0),
        mean(1),
        "nothing is added up before the last round"
    );
    assert_ne!(mean(1), mean(2), "{history}");
}

/// Eight nodes in groups of four: two sums, which everybody recomputes, and which all nodes of one distribution believe.
#[test]
fn a_swarm_adds_up_statistics_in_groups() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let settings = ["--nodes", "8", "--rounds", "3", "--seed", "1"];
    let groups = ["--privacy", "masked", "--set", "privacy.group=4"];
    let iid = ["--partition", "iid", "--no-control"];
    let summary = json_of(&run(command(
        "swarm",
        &out,
        &[&settings[..], &groups, &iid].concat(),
    )));
    let nodes = summary["per_node"].as_array().unwrap();
    for node in nodes {
        assert!(node["lacks"].is_null(), "{node}");
        let shares = node["composition"]["shares"].as_array().unwrap();
        let of_groups = |share: &Value| share["component"] == "group-statistics";
        assert!(shares.iter().any(of_groups), "{node}");
    }
    assert_eq!(nodes.len(), 8);
    let mut audit = fednode();
    audit.args(["audit", "--json", "--state"]);
    audit.arg(out.join("nodes/3/state"));
    let history = json_of(&run(audit));
    let rounds = history["rounds"].as_array().unwrap();
    let confirmed = |row: &Value| row["verdict"]["is"] == "confirmed" && row["members"] == 8;
    assert!(
        rounds.len() == 3 && rounds.iter().all(confirmed),
        "{history}"
    );
}
