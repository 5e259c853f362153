//! `fednode simulate`: what it says is what a live federation would have learned, whatever the number of threads.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use fednode_e2e::{algorithms, fednode, json_of, run, signal};
use rustix::process::Signal;
use serde_json::Value;

fn simulate(out: &Path, arguments: &[&str]) -> Command {
    let mut command = fednode();
    command
        .args(["simulate", "--json", "--out"])
        .arg(out)
        .args(arguments);
    command
}

/// Accuracy before and after the last exchange, by shard.
fn accuracies(summary: &Value) -> Vec<(f64, f64)> {
    let of = |node: &Value, key: &str| node[key].as_f64().unwrap();
    let pair = |node: &Value| {
        (
            of(node, "accuracy_after_local_training"),
            of(node, "accuracy"),
        )
    };
    summary["per_node"]
        .as_array()
        .unwrap()
        .iter()
        .map(pair)
        .collect()
}

/// The records without what depends on the machine.
fn records(out: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(out.join("metrics.jsonl")).unwrap();
    let bare = |line: &str| {
        let mut record: Value = serde_json::from_str(line).unwrap();
        for key in ["train_seconds", "round_seconds", "waited_seconds"] {
            record.as_object_mut().unwrap().remove(key);
        }
        record
    };
    text.lines().map(bare).collect()
}

#[test]
fn a_simulation_learns_what_a_swarm_learns() {
    compare_with_a_swarm(&["--algorithm", "fedmoe-da", "--global-test"]);
}

/// The same where nodes train while they wait.
#[test]
fn a_simulation_trains_ahead_as_a_swarm_does() {
    let folder = compare_with_a_swarm(&["--set", "training.ahead_epochs=1"]);
    let text = std::fs::read_to_string(folder.path().join("live/metrics.jsonl")).unwrap();
    let ahead =
        |line: &str| serde_json::from_str::<Value>(line).unwrap()["ahead"]["seconds"].as_f64();
    let ahead: Vec<f64> = text.lines().filter_map(ahead).collect();
    assert_eq!(
        ahead.len(),
        6,
        "three nodes, after every round but the last"
    );
    assert!(ahead.iter().all(|seconds| *seconds > 0.0));
}

/// Without a word about the algorithm. Statistics are fetched once, by the members that agree.
#[test]
fn a_federation_by_agreement_learns_live_what_it_learns_simulated() {
    let folder = compare_with_a_swarm(&[]);
    for record in records(&folder.path().join("live")) {
        let shares = record["composition"]["shares"].as_array().unwrap().iter();
        let total: f64 = shares.map(|share| share["weight"].as_f64().unwrap()).sum();
        assert!((total - 1.0).abs() < 1e-9, "{}", record["composition"]);
    }
}

fn compare_with_a_swarm(more: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let settings = [&["--nodes", "3", "--rounds", "3", "--seed", "4"], more].concat();
    let simulated = json_of(&run(simulate(&folder.path().join("simulated"), &settings)));
    let mut swarm = fednode();
    swarm
        .args([
            "swarm",
            "--no-control",
            "--json",
            "--device",
            "cpu",
            "--out",
        ])
        .arg(folder.path().join("live"))
        .args(settings);
    let live = json_of(&run(swarm));
    for key in [
        "algorithm",
        "data",
        "partition",
        "partition_hash",
        "seed",
        "nodes",
        "rounds",
        "majority_class_accuracy",
    ] {
        assert_eq!(simulated[key], live[key], "{key}");
    }
    // Members are summed in the order of their names, which differ, so the last bits may.
    for (simulated, live) in accuracies(&simulated).into_iter().zip(accuracies(&live)) {
        assert!(
            (simulated.0 - live.0).abs() < 0.02 && (simulated.1 - live.1).abs() < 0.02,
            "{simulated:?} {live:?}"
        );
    }
    let wire = |summary: &Value, kind: &str| summary["bytes_per_round"][kind].as_f64().unwrap();
    let (of_simulated, of_live) = (
        wire(&simulated, "peer_to_peer"),
        wire(&live, "peer_to_peer"),
    );
    assert!(
        (of_simulated / of_live - 1.0).abs() < 0.02,
        "{of_simulated} bytes, live {of_live}"
    );
    let global = |summary: &Value| -> Vec<Option<f64>> {
        let nodes = summary["per_node"].as_array().unwrap();
        nodes
            .iter()
            .map(|node| node["everyones_test"]["accuracy"].as_f64())
            .collect()
    };
    assert_eq!(
        global(&simulated)[0].is_some(),
        more.contains(&"--global-test")
    );
    for (simulated, live) in global(&simulated).into_iter().zip(global(&live)) {
        assert_eq!(simulated.is_some(), live.is_some());
        assert!(
            (simulated.unwrap_or(0.0) - live.unwrap_or(0.0)).abs() < 0.02,
            "{simulated:?} {live:?}"
        );
    }
    let work = |name: &str| {
        let counts = records(&folder.path().join(name))
            .into_iter()
            .map(|record| record["multiply_adds"].as_u64());
        counts
            .collect::<Option<Vec<u64>>>()
            .unwrap()
            .iter()
            .sum::<u64>() as f64
    };
    let (of_simulated, of_live) = (work("simulated"), work("live"));
    assert!(
        (of_simulated / of_live - 1.0).abs() < 0.02,
        "{of_simulated} multiply-adds, live {of_live}"
    );
    folder
}

/// Steps too small for 32 bits: every mean is the one before it, and rounds end all the same, live and simulated.
#[test]
fn rounds_end_in_which_nothing_is_learned() {
    let folder = tempfile::tempdir().unwrap();
    for more in [&[][..], &["--no-aggregator"]] {
        let settings = [
            &[
                "--nodes",
                "3",
                "--rounds",
                "3",
                "--lr",
                "1e-30",
                "--algorithm",
                "fedavg",
            ],
            more,
        ]
        .concat();
        let mut swarm = fednode();
        let out = folder.path().join(format!("live{}", more.len()));
        swarm
            .args([
                "swarm",
                "--no-control",
                "--json",
                "--device",
                "cpu",
                "--out",
            ])
            .arg(out)
            .args(&settings);
        let simulated = json_of(&run(simulate(
            &folder.path().join(format!("simulated{}", more.len())),
            &settings,
        )));
        // All rounds are done, and the end says that the models are of no use.
        let swarm = run(swarm);
        assert_eq!(swarm.status.code(), Some(10), "{more:?}");
        let live: Value = serde_json::from_slice(&swarm.stdout).unwrap();
        for summary in [simulated, live] {
            let rounds: Vec<u64> = summary["per_node"]
                .as_array()
                .unwrap()
                .iter()
                .map(|node| node["last_round"].as_u64().unwrap())
                .collect();
            assert_eq!(rounds, [3; 3], "{more:?}");
        }
    }
}

/// Live and simulated, two of five train in a round; how good they are in the end is known of all.
#[test]
fn a_share_of_the_nodes_trains_in_a_round() {
    let folder = tempfile::tempdir().unwrap();
    let settings = [
        "--nodes",
        "5",
        "--rounds",
        "4",
        "--algorithm",
        "fedper",
        "--set",
        "round.participation=0.4",
    ];
    let simulated = json_of(&run(simulate(&folder.path().join("simulated"), &settings)));
    let mut swarm = fednode();
    swarm
        .args([
            "swarm",
            "--no-control",
            "--json",
            "--device",
            "cpu",
            "--out",
        ])
        .arg(folder.path().join("live"))
        .args(settings);
    for (name, summary) in [("simulated", simulated), ("live", json_of(&run(swarm)))] {
        assert_eq!(summary["per_node"].as_array().unwrap().len(), 5, "{name}");
        let accuracy = |key: &str| summary[key].as_f64().unwrap();
        assert!(
            accuracy("mean_accuracy") > accuracy("majority_class_accuracy"),
            "{name}"
        );
        let records = records(&folder.path().join(name));
        let of_round = |round: u64| {
            records
                .iter()
                .filter(move |record| record["round"] == round)
        };
        // While nodes still meet, one may be drawn too many.
        assert!(
            (2..=3).contains(&of_round(1).count()),
            "{name}: {}",
            of_round(1).count()
        );
        assert_eq!([of_round(2).count(), of_round(3).count()], [2, 2], "{name}");
        let trained = of_round(4)
            .filter(|record| record["n_samples"].as_u64() > Some(0))
            .count();
        assert_eq!((of_round(4).count(), trained), (5, 2), "{name}");
        assert!(
            of_round(4).all(|record| record["accuracy"].is_f64()),
            "{name}"
        );
    }
}

/// Two of four nodes train in a round, so that what a node last knew is often some rounds old.
#[test]
fn every_algorithm_learns_with_a_share_of_the_nodes() {
    let folder = tempfile::tempdir().unwrap();
    let names = algorithms();
    let axis = format!("algorithm={}", names.join(","));
    let settings = [
        "--nodes",
        "4",
        "--rounds",
        "8",
        "--set",
        "round.participation=0.5",
        "--lr",
        "0.1",
        "--sweep",
        &axis,
    ];
    let table = json_of(&run(simulate(folder.path(), &settings)));
    let rows = table["rows"].as_array().unwrap();
    assert_eq!(rows.len(), names.len());
    for row in rows {
        let of = |key: &str| row[key][0].as_f64().unwrap();
        let (accuracy, floor) = (of("mean_accuracy"), of("majority_class_accuracy"));
        // Who trains in which round depends on the seed, which moves these by points.
        assert!(
            accuracy > floor + 0.1,
            "{}: {accuracy}, always the majority class {floor}",
            row["name"]
        );
    }
}

#[test]
fn a_run_with_liars_shows_the_honest_nodes() {
    let folder = tempfile::tempdir().unwrap();
    let play = |lies: &str| {
        let out = folder.path().join(lies.replace(':', "-"));
        let settings = [
            ["--data", "digits"],
            ["--nodes", "6"],
            ["--rounds", "3"],
            ["--algorithm", "fedavg"],
            ["--set", "training.learning_rate=0.05"],
            ["--lies", lies],
        ];
        let summary = json_of(&simulate(&out, settings.as_flattened()).output().unwrap());
        let nodes = summary["per_node"].as_array().unwrap();
        let shards: Vec<u64> = nodes
            .iter()
            .map(|node| node["shard"].as_u64().unwrap())
            .collect();
        assert_eq!(shards, [1, 2, 4, 5], "{lies}");
        assert_eq!(
            summary.get("banned"),
            None,
            "{lies}: an honest node was banned"
        );
        assert_eq!(summary["effective_config"]["simulation"]["lies"], lies);
        let accuracy = summary["mean_accuracy"].as_f64().unwrap();
        (accuracy, summary["partition_hash"].clone())
    };
    let ((absent, honest), (flipped, lied)) = (play("absent:3"), play("repeated:3"));
    assert!(flipped < absent, "{flipped} with liars, {absent} without");
    assert_eq!(honest, lied, "nodes of the two runs are pairs");
    let out = folder.path().join("wrong");
    let refused = simulate(&out, &["--lies", "flip:3"]).output().unwrap();
    let text = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{text}");
    assert!(text.contains("flipped"), "{text}");
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let out = |threads: &str| folder.path().join(threads);
    for threads in ["1", "3"] {
        run(simulate(
            &out(threads),
            &["--nodes", "5", "--rounds", "2", "--threads", threads],
        ));
    }
    let (one, three) = (records(&out("1")), records(&out("3")));
    assert_eq!(one.len(), 10);
    assert_eq!(one, three);
}

#[test]
fn an_experiment_runs_every_setting_once() {
    let folder = tempfile::tempdir().unwrap();
    let (file, out) = (folder.path().join("e.toml"), folder.path().join("out"));
    let experiment = "data = \"digits\"\nseeds = [1, 2]\n[set]\nnodes = 2\nrounds = 1\n[grid]\nalgorithm = [\"local\", \"fedavg\"]\n";
    std::fs::write(&file, experiment).unwrap();
    let table = json_of(&run(simulate(&out, &[file.to_str().unwrap()])));
    let rows = table["rows"].as_array().unwrap();
    assert_eq!(
        rows.iter()
            .map(|row| row["name"].as_str().unwrap())
            .collect::<Vec<_>>(),
        ["local", "fedavg"]
    );
    assert!(
        rows.iter()
            .all(|row| row["mean_accuracy"].as_array().unwrap().len() == 2),
        "{table}"
    );
    assert!(out.join("table.md").is_file() && out.join("fedavg-seed2/summary.json").is_file());

    let before = std::fs::metadata(out.join("local-seed1/summary.json"))
        .unwrap()
        .modified()
        .unwrap();
    run(simulate(&out, &[file.to_str().unwrap()]));
    let after = std::fs::metadata(out.join("local-seed1/summary.json"))
        .unwrap()
        .modified()
        .unwrap();
    assert_eq!(before, after, "a finished run is not run again");

    let refused = simulate(&out, &[file.to_str().unwrap(), "--lr", "0.5"])
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(7), "{error}");
    assert!(error.contains("training.learning_rate"), "{error}");

    std::fs::write(&file, experiment.replace("[grid]", "[gird]")).unwrap();
    let refused = simulate(&out, &[file.to_str().unwrap()]).output().unwrap();
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(3), "{error}");
    assert!(error.contains("did you mean `grid`"), "{error}");
}

#[test]
fn a_run_that_diverges_is_named_and_the_others_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let sweep = [
        "--nodes",
        "2",
        "--rounds",
        "1",
        "--sweep",
        "training.learning_rate=1e30,0.05",
    ];
    let output = simulate(&out, &sweep).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    let last = error.lines().last().unwrap();
    assert!(
        last.contains("1 of 2 runs failed") && last.contains("learning_rate=1e30, seed"),
        "{error}"
    );
    let table: Value = serde_json::from_slice(&output.stdout).unwrap();
    let names: Vec<&str> = table["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        (output.status.code(), names),
        (Some(10), vec!["learning_rate=0.05"]),
        "{error}"
    );
}

#[test]
fn a_report_holds_what_the_runs_say() {
    let folder = tempfile::tempdir().unwrap();
    let (out, page, csv) = (
        folder.path().join("runs"),
        folder.path().join("page.html"),
        folder.path().join("csv"),
    );
    let settings = [
        "--nodes",
        "3",
        "--rounds",
        "2",
        "--seeds",
        "1,2",
        "--sweep",
        "algorithm=local,fedper",
    ];
    assert!(run(simulate(&out, &settings)).status.success());
    let mut report = fednode();
    report
        .arg("report")
        .arg(&out)
        .arg("--compare")
        .arg("--out")
        .arg(&page)
        .arg("--csv")
        .arg(&csv);
    let output = run(report);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let html = std::fs::read_to_string(&page).unwrap();
    for summary in ["local-seed1", "fedper-seed2"] {
        let text = std::fs::read_to_string(out.join(summary).join("summary.json")).unwrap();
        let summary: Value = serde_json::from_str(&text).unwrap();
        let accuracy = format!("{:.1}", 100.0 * summary["mean_accuracy"].as_f64().unwrap());
        assert!(html.contains(&accuracy), "{accuracy} is not on the page");
    }
    let foreign = html
        .replace("http://www.w3.org/2000/svg", "")
        .contains("://");
    assert!(html.contains("<svg") && !html.contains("NaN"));
    assert!(!foreign && !html.contains("src="), "not self-contained");
    let rounds = std::fs::read_to_string(csv.join("rounds.csv")).unwrap();
    assert_eq!(
        rounds.lines().count(),
        1 + 2 * 2 * 3 * 2,
        "a line per run, node and round below the header"
    );

    let mut missing = fednode();
    missing.arg("report").arg(folder.path().join("nothing"));
    let output = run(missing);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.code() == Some(4)
            && stderr.lines().count() == 1
            && stderr.contains("nothing"),
        "{stderr}"
    );
}

/// The exit code and what was said, which is one line.
fn refusal(command: &mut Command) -> (Option<i32>, String) {
    let output = command.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(error.lines().count(), 1, "{error}");
    (output.status.code(), error)
}

#[test]
fn a_wrong_sweep_is_refused_before_anything_runs() {
    let folder = tempfile::tempdir().unwrap();
    let (file, out) = (folder.path().join("e.toml"), folder.path().join("out"));
    for (text, wanted) in [
        ("[grid]\nround = [1, 2]", "unknown key `round`"),
        ("[grid]\nrounds = []", "the grid has no value for `rounds`"),
        ("[grid]", "`grid`: expected a table with a list of values"),
        (
            "[set]\nrounds = 1\n[grid]\nalgorithm = [\"local\", \"fedavgg\"]",
            "did you mean `fedavg`",
        ),
    ] {
        std::fs::write(&file, text).unwrap();
        let (code, error) = refusal(&mut simulate(&out, &[file.to_str().unwrap()]));
        assert!(
            code == Some(3) && error.contains(wanted),
            "{text}: {code:?} {error}"
        );
    }
    for (sweep, wanted) in [
        ("round=1,2", "unknown key `round`"),
        ("rounds=", "the grid has no value for `rounds`"),
    ] {
        let (code, error) = refusal(&mut simulate(&out, &["--sweep", sweep]));
        assert!(
            code == Some(3) && error.contains(wanted),
            "{sweep}: {code:?} {error}"
        );
    }
    for (arguments, wanted) in [
        (
            ["--toy-floats", "0", "--sweep", "nodes=3,0"].as_slice(),
            "`nodes`",
        ),
        (
            &["--toy-floats", "0", "--nodes", "3", "--sweep", "nodes=4,5"],
            "`nodes` is what the rows differ in",
        ),
        (
            &["--lr", "0.1", "--sweep", "training.learning_rate=0.2"],
            "is what the rows differ in",
        ),
        (&["--seeds", "1,1"], "seed 1 is there twice"),
        (&["--compare-plans"], "without training"),
        (
            &[
                "--nodes",
                "257",
                "--set",
                "round.participation=0.004",
                "--samples-per-node",
                "6",
            ],
            "`round.participation`",
        ),
        (
            &["--algorithm", "fedjets", "--rounds", "3"],
            "`common_rounds` takes 3",
        ),
        (
            &["--algorithm", "fedmix", "--set", "selected_experts=5"],
            "`selected_experts` is 5",
        ),
    ] {
        let (code, error) = refusal(&mut simulate(&out, arguments));
        assert!(
            code == Some(3) && error.contains(wanted),
            "{arguments:?}: {code:?} {error}"
        );
    }
    let tiny = [
        "--algorithm",
        "pfl-mf",
        "--samples-per-node",
        "4",
        "--nodes",
        "3",
    ];
    let (code, error) = refusal(&mut simulate(&out, &tiny));
    assert!(
        code == Some(4) && error.contains("algorithm `pfl-mf` needs 4"),
        "{code:?} {error}"
    );
    assert!(!out.exists(), "something was run");
}

#[test]
fn more_nodes_than_the_memory_holds_are_refused_with_the_estimate() {
    let folder = tempfile::tempdir().unwrap();
    let (table, out) = (folder.path().join("table.csv"), folder.path().join("out"));
    // Three samples for each of as many nodes as a spec may have. Their labels are classes 0 to 999.
    std::fs::write(
        &table,
        (0..300_000)
            .map(|row| format!("0.5,{}\n", row % 1000))
            .collect::<String>(),
    )
    .unwrap();
    let data = format!("csv:{}", table.display());
    // 64 experts of 1 MB for each of 100,000 nodes in three versions, and as much for each of 100,000 threads: 37 TB. Only
    // one node's 62 MB are made, to be weighed.
    let many = "100000";
    let learners = [
        "--data",
        &data,
        "--nodes",
        many,
        "--partition",
        "iid",
        "--algorithm",
        "fedmoe-da",
        "--set",
        "model.experts=64",
        "--threads",
        many,
    ];
    // Twelve parts of 16 GB for each toy: 19 PB.
    let toys = ["--nodes", many, "--toy-floats", "4000000000"];
    for arguments in [learners.as_slice(), &toys] {
        let (code, error) = refusal(&mut simulate(&out, arguments));
        let parts = ["100000 nodes need about ", " TB of memory", " are free"];
        assert!(
            code == Some(3) && parts.iter().all(|part| error.contains(part)),
            "{arguments:?}: {code:?} {error}"
        );
    }
    assert!(!out.exists(), "something was run");
}

#[test]
fn the_protocol_alone_needs_no_data_and_has_its_plot() {
    let folder = tempfile::tempdir().unwrap();
    let (out, plots) = (folder.path().join("runs"), folder.path().join("plots"));
    let sweep = [
        "--toy-floats",
        "0",
        "--rounds",
        "3",
        "--sweep",
        "nodes=4,8,16",
    ];
    let table = json_of(&run(simulate(&out, &sweep)));
    let messages = |row: &Value| row["messages_per_round"].as_f64().unwrap();
    let rows = table["rows"].as_array().unwrap();
    // Everybody hears everybody's update and the aggregator's word, so messages grow with the nodes.
    assert!(
        rows.windows(2)
            .all(|rows| messages(&rows[1]) > 1.5 * messages(&rows[0])),
        "{table}"
    );
    let text = std::fs::read_to_string(out.join("nodes=8-seed1/summary.json")).unwrap();
    let summary: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (&summary["nodes"], &summary["rounds"]),
        (&8.into(), &3.into())
    );
    assert!(
        summary["bytes_per_round"]["gossip"].as_f64().unwrap() > 0.0,
        "{summary}"
    );
    assert!(
        summary["wall_seconds"].is_number() && summary.get("mean_accuracy").is_none(),
        "{summary}"
    );

    let planned = [
        "--toy-floats",
        "0",
        "--nodes",
        "8",
        "--rounds",
        "3",
        "--compare-plans",
    ];
    let summary = json_of(&run(simulate(&folder.path().join("plans"), &planned)));
    assert_eq!(
        summary["plans"],
        serde_json::json!([{ "round": 1, "recall": 1.0, "similarity_lost": 0.0 }])
    );

    // A shared part of 1,000 floats goes up and comes back in each of the three rounds, a header beside it; now and then it
    // comes from a peer.
    let large = [
        "--nodes",
        "8",
        "--rounds",
        "3",
        "--algorithm",
        "fedavg",
        "--toy-floats",
        "1000",
    ];
    let summary = json_of(&run(simulate(&folder.path().join("large"), &large)));
    let moved = summary["bytes_per_round"]["aggregator"].as_f64().unwrap();
    assert!((7_000.0..8_200.0).contains(&moved), "{moved}");

    let mut report = fednode();
    report.arg("report").arg(&out).arg("--plots").arg(&plots);
    let output = run(report);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        std::fs::read_to_string(plots.join("scale-fedmoe-da.svg"))
            .unwrap()
            .contains("bytes of gossip")
    );

    let (code, error) = refusal(&mut simulate(
        &out.join("nodes=8-seed1"),
        &["--nodes", "8", "--rounds", "3"],
    ));
    assert!(
        code == Some(7) && error.contains("name another --out"),
        "a run with training: {code:?} {error}"
    );
}

/// Runs until a line of progress is seen, then sends Ctrl-C; returns the exit code.
fn interrupt(out: &Path, arguments: &[&str], at: &str) -> Option<i32> {
    let mut command = fednode();
    command
        .args(["simulate", "--out"])
        .arg(out)
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    for line in BufReader::new(child.stderr.take().unwrap()).lines() {
        if line.unwrap().starts_with(at) {
            signal(child.id(), Signal::INT);
        }
    }
    child.wait().unwrap().code()
}

/// The result without what depends on the machine.
fn summary(out: &Path) -> Value {
    let text = std::fs::read_to_string(out.join("summary.json")).unwrap();
    let mut summary: Value = serde_json::from_str(&text).unwrap();
    for key in ["wall_seconds", "train_seconds", "overhead"] {
        summary.as_object_mut().unwrap().remove(key);
    }
    for node in summary["per_node"].as_array_mut().unwrap() {
        node.as_object_mut().unwrap().remove("peak_rss_bytes");
    }
    summary
}

#[test]
fn an_interrupted_run_goes_on_as_if_it_never_was() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, cut) = (folder.path().join("whole"), folder.path().join("cut"));
    let settings = ["--nodes", "4", "--rounds", "6", "--seed", "3"];
    run(simulate(&whole, &settings));
    let again = |extra: [&'static str; 2]| [settings.as_slice(), &extra].concat();
    assert_eq!(
        interrupt(&cut, &again(["--threads", "2"]), "round 2 of"),
        Some(130)
    );
    let snapshot = cut.join("snapshot");
    assert!(snapshot.is_file() && !cut.join("summary.json").exists());

    let mut changed = simulate(&cut, &["--nodes", "4", "--rounds", "7", "--seed", "3"]);
    let (code, error) = refusal(&mut changed);
    assert!(
        code == Some(7) && error.contains("`federation.rounds` = 6, not 7"),
        "{code:?} {error}"
    );

    let saved = std::fs::read(&snapshot).unwrap();
    std::fs::write(&snapshot, &saved[..saved.len() / 2]).unwrap();
    let (code, error) = refusal(&mut simulate(&cut, &settings));
    assert!(
        code == Some(7) && error.contains("cut off or damaged"),
        "{code:?} {error}"
    );
    std::fs::write(&snapshot, &saved).unwrap();

    run(simulate(&cut, &again(["--threads", "1"])));
    assert_eq!(records(&cut), records(&whole));
    assert_eq!(summary(&cut), summary(&whole));
    assert!(!snapshot.exists(), "a finished run needs no snapshot");
}

/// The last stage takes seconds; should it be over before the signal comes, all is tried again.
#[test]
fn a_run_may_be_interrupted_more_than_once_and_after_its_last_round() {
    const ATTEMPTS: u32 = 5;
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("whole");
    let settings = [
        "--nodes",
        "3",
        "--rounds",
        "3",
        "--set",
        "round.participation=0.7",
        "--algorithm",
        "fedper",
        "--pool",
        "--global-test",
    ];
    run(simulate(&whole, &settings));
    let interrupted_twice = |attempt: u32| {
        let cut = folder.path().join(format!("cut-{attempt}"));
        assert_eq!(interrupt(&cut, &settings, "round 1 of"), Some(130));
        let code = interrupt(&cut, &settings, "round 3 of");
        assert!(code == Some(130) || code == Some(0), "{code:?}");
        let is_cut = code == Some(130);
        let files = ["snapshot", "summary.json"].map(|name| cut.join(name).is_file());
        assert_eq!(
            files,
            [is_cut, !is_cut],
            "what an interrupted run leaves, or a finished one"
        );
        is_cut.then_some(cut)
    };
    let cut = (1..=ATTEMPTS)
        .find_map(interrupted_twice)
        .expect("one of so many signals comes before the end");
    run(simulate(&cut, &settings));
    assert_eq!(records(&cut), records(&whole));
    assert_eq!(summary(&cut), summary(&whole));
}
