//! `fednode swarm` with the real binaries: one command, a federation, a result.
#![allow(clippy::unwrap_used)]

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fednode_e2e::{algorithms, fednode, json_of, run, signal};

fn swarm(out: &std::path::Path, arguments: &[&str]) -> Command {
    let mut command = fednode();
    command
        .args([
            "swarm",
            "--json",
            "--device",
            "cpu",
            "--no-control",
            "--out",
        ])
        .arg(out)
        .args(arguments);
    command
}

#[test]
fn four_nodes_finish_and_learn() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let summary = json_of(&run(swarm(
        &out,
        &[
            "--algorithm",
            "fedmoe-da",
            "--nodes",
            "4",
            "--rounds",
            "3",
            "--seed",
            "3",
        ],
    )));

    for key in [
        "algorithm",
        "data",
        "partition",
        "partition_hash",
        "seed",
        "nodes",
        "rounds",
        "device",
        "mean_accuracy",
    ] {
        assert!(!summary[key].is_null(), "`{key}` is missing from {summary}");
    }
    let (accuracy, floor) = (
        summary["mean_accuracy"].as_f64().unwrap(),
        summary["majority_class_accuracy"].as_f64().unwrap(),
    );
    assert!(
        accuracy > floor + 0.05,
        "accuracy {accuracy}, always the majority class {floor}"
    );

    let nodes = summary["per_node"].as_array().unwrap();
    assert_eq!(nodes.len(), 4);
    for node in nodes {
        assert!(
            node["bytes_received"].as_u64().unwrap() > 0
                && node["peak_rss_bytes"].as_u64().unwrap() > 0,
            "{node}"
        );
        let share: f64 = node["expert_share"]
            .as_array()
            .unwrap()
            .iter()
            .map(|share| share.as_f64().unwrap())
            .sum();
        assert!((share - 1.0).abs() < 1e-6, "expert shares sum to {share}");
    }
    let bytes = &summary["bytes_per_round"];
    for kind in ["aggregator", "peer_to_peer", "gossip"] {
        assert!(
            bytes[kind].as_f64().unwrap() > 0.0,
            "nothing of kind {kind} in {bytes}"
        );
    }

    let records = std::fs::read_to_string(out.join("metrics.jsonl")).unwrap();
    assert_eq!(
        records.lines().count(),
        4 * 3,
        "one record per node and round"
    );
    assert!(out.join("summary.json").is_file() && out.join("logs").is_dir());
    for shard in 1..=4 {
        let model = std::fs::read(out.join(format!("models/{shard}.safetensors"))).unwrap();
        assert!(!fednode_core::ParamSet::decode(&model).unwrap().is_empty());
    }
}

#[test]
fn every_algorithm_of_the_table_runs() {
    let folder = tempfile::tempdir().unwrap();
    for algorithm in algorithms() {
        let algorithm = algorithm.as_str();
        let out = folder.path().join(algorithm);
        let settings = [
            "--nodes",
            "2",
            "--rounds",
            "3",
            "--algorithm",
            algorithm,
            "--lr",
            "0.1",
        ];
        // Its experts begin when the common one is done.
        let begins: &[&str] = if algorithm == "fedjets" {
            &["--set", "common_rounds=1"]
        } else {
            &[]
        };
        let summary = json_of(&run(swarm(&out, &[&settings, begins].concat())));
        let number = |key: &str| summary[key].as_f64().unwrap();
        let (accuracy, floor) = (number("mean_accuracy"), number("majority_class_accuracy"));
        assert!(
            accuracy > floor + 0.05,
            "{algorithm}: {accuracy}, always the majority class {floor}"
        );
        let exchanged = summary["bytes_per_round"]["peer_to_peer"].as_f64().unwrap();
        // A mean may come from whoever holds it, so bytes are certain only where experts or heads are mixed, or nothing
        // is shared at all.
        let mixes = ["fedmoe-da", "fedpac", "fedfomo", "dflmoe"].contains(&algorithm);
        assert!(
            exchanged > 0.0 || !mixes,
            "`{algorithm}` moved nothing from node to node"
        );
        assert!(
            exchanged == 0.0 || algorithm != "local",
            "`local` moved {exchanged} bytes between nodes"
        );
        // FedPAC's statistics are bytes between nodes too: that its heads travel is seen where they arrive.
        let used = foreign_experts_used(&out);
        assert_eq!(
            used > 0,
            mixes,
            "`{algorithm}` used {used} experts or heads of other nodes"
        );
        let averaged = summary["bytes_per_round"]["aggregator"].as_f64().unwrap();
        assert_eq!(
            averaged > 0.0,
            !["local", "fedfomo", "dflmoe"].contains(&algorithm),
            "{algorithm} moved {averaged} bytes with the aggregator"
        );
        let finished = &summary["per_node"][0]["accuracy_after_finishing"];
        let tunes = ["fedbabu", "fedavg-ft", "dflmoe"].contains(&algorithm)
            || algorithm.starts_with("pfl-");
        assert_eq!(
            finished.is_number(),
            tunes,
            "{algorithm} finished with {finished}"
        );
    }
}

/// Experts of others that were mixed into own ones, over all nodes and rounds.
fn foreign_experts_used(out: &std::path::Path) -> u64 {
    let records = std::fs::read_to_string(out.join("metrics.jsonl")).unwrap();
    let record = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap();
    records
        .lines()
        .map(|line| record(line)["n_sources_used"].as_u64().unwrap())
        .sum()
}

#[test]
fn runs_without_an_aggregator() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let summary = json_of(&run(swarm(
        &out,
        &["--nodes", "3", "--rounds", "3", "--no-aggregator"],
    )));
    assert_eq!(summary["per_node"].as_array().unwrap().len(), 3);
    assert!(
        summary["per_node"]
            .as_array()
            .unwrap()
            .iter()
            .all(|node| node["last_round"] == 3),
        "{summary}"
    );
}

/// The child processes are the ordinary binaries, direct children of the swarm: their numbers and names, from /proc.
fn children(pid: u32) -> Vec<(u32, String)> {
    let child = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.ok()?;
        let own = entry.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        // pid (name) state parent …, and the name may contain anything.
        let (name, rest) = stat.split_once('(')?.1.rsplit_once(") ")?;
        let parent: u32 = rest.split(' ').nth(1)?.parse().ok()?;
        (parent == pid).then(|| (own, name.to_owned()))
    };
    std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(child)
        .collect()
}

fn wait_for_children(pid: u32, n: usize) -> Vec<(u32, String)> {
    let started = Instant::now();
    loop {
        let found = children(pid);
        if found.len() >= n {
            return found;
        }
        assert!(
            started.elapsed() < Duration::from_secs(30),
            "only {found:?}"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn is_alive(pid: u32) -> bool {
    std::path::Path::new(&format!("/proc/{pid}/exe")).exists()
}

#[test]
fn ctrl_c_stops_every_child() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = swarm(
        &folder.path().join("run"),
        &["--nodes", "3", "--rounds", "1000"],
    );
    let mut process = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let found = wait_for_children(process.id(), 4);
    let names: Vec<&str> = found.iter().map(|(_, name)| name.as_str()).collect();
    assert_eq!(
        names.iter().filter(|name| **name == "fedboot").count(),
        1,
        "{names:?}"
    );
    assert_eq!(
        names.iter().filter(|name| **name == "fednode").count(),
        3,
        "{names:?}"
    );

    std::thread::sleep(Duration::from_millis(500));
    let pressed = Instant::now();
    signal(process.id(), rustix::process::Signal::INT);
    let status = process.wait().unwrap();
    assert!(
        pressed.elapsed() < Duration::from_secs(10),
        "took {:?}",
        pressed.elapsed()
    );
    assert_eq!(status.code(), Some(130));
    assert!(
        found.iter().all(|(pid, _)| !is_alive(*pid)),
        "a child survived"
    );
}

#[test]
fn a_dead_child_fails_the_swarm_and_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = swarm(
        &folder.path().join("run"),
        &["--nodes", "3", "--rounds", "1000"],
    );
    let process = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let found = wait_for_children(process.id(), 4);
    let victim = found.iter().find(|(_, name)| name == "fednode").unwrap().0;
    signal(victim, rustix::process::Signal::KILL);
    let output = process.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(9), "{stderr}");
    assert!(
        stderr
            .lines()
            .any(|line| line.starts_with("error") && line.contains("node")),
        "{stderr}"
    );
    assert!(
        found.iter().all(|(pid, _)| !is_alive(*pid)),
        "a child survived"
    );
}
