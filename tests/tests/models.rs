//! What becomes of models, with the real binaries: different ones in one federation (pFedMoE), and a common one made
//! personal without a network (PFL-MoE).
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

use fednode_e2e::{Federation, Process, fednode, is_finished, json_of, run};

const MODELS: &str = "cnn-1,cnn-2,cnn-3,cnn-4,cnn-5";

#[test]
fn five_models_train_together_while_one_node_dies_and_another_comes() {
    let settings = [
        "--algorithm",
        "pfedmoe",
        "--model",
        MODELS,
        "--set",
        "small_model=cnn-5",
    ];
    let slow = [
        "--samples-per-node",
        "100",
        "--local-epochs",
        "4",
        "--set",
        "round.grace_seconds=1",
    ];
    let federation = Federation::new(6, 6, &[&settings[..], &slow[..]].concat());
    let (_fedboot, address) = federation.start_aggregator();
    let mut nodes: Vec<Process> = (1..=5)
        .map(|shard| federation.start_node(shard, &[&address], &[]))
        .collect();
    nodes[0].wait_for_records(2);
    nodes[1].kill();
    // The sixth begins with the models anew.
    nodes.push(federation.start_node(6, &[&address], &[]));
    let mut accuracies = Vec::new();
    for (shard, model) in [
        (1, "cnn-1"),
        (3, "cnn-3"),
        (4, "cnn-4"),
        (5, "cnn-5"),
        (6, "cnn-1"),
    ] {
        let node = &nodes[shard - 1];
        let status = node.wait_for("the last round", is_finished);
        assert_eq!(status["trainer"]["model"], model, "{status}");
        let mut evaluate = fednode();
        evaluate
            .args([
                "evaluate",
                "--json",
                "--data",
                "digits",
                "--shard",
                &format!("{shard}/6"),
                "--state",
            ])
            .arg(&node.state);
        let told = &status["last_record"]["accuracy"];
        assert_eq!(
            json_of(&run(evaluate))["score"]["accuracy"],
            *told,
            "the model on the disk is node {shard}'s own"
        );
        accuracies.extend(told.as_f64());
    }
    // Always the majority class is right in 3 of 10 with such shards.
    let mean = accuracies.iter().sum::<f64>() / 5.0;
    assert!(mean > 0.5, "{accuracies:?}");
}

#[test]
fn models_that_do_not_go_together_are_refused_before_anything_starts() {
    let federation = Federation::new(2, 2, &["--algorithm", "fedper"]);
    let mut node = federation.start_node(1, &[], &["--model", "lenet5"]);
    assert_eq!(node.wait().code(), Some(3));
    assert!(
        node.log()
            .contains("a node cannot have model `lenet5` where others have `cnn`"),
        "{}",
        node.log()
    );

    // Features of 500 and of 84 numbers, in a file that was edited by hand after `fednode init` had checked it.
    let federation = Federation::new(2, 2, &["--algorithm", "fedproto"]);
    let spec = std::fs::read_to_string(federation.spec()).unwrap();
    let edited = spec.replace("name = \"cnn\"", "name = [\"cnn-1\", \"lenet5\"]");
    assert_ne!(edited, spec);
    std::fs::write(federation.spec(), edited).unwrap();
    let mut node = federation.start_node(1, &[], &[]);
    let (code, log) = (node.wait().code(), node.log());
    assert_eq!((code, log.lines().count()), (Some(3), 1), "{log}");
    for part in [
        "federation.toml`: ",
        "a node cannot have model `lenet5` where others have `cnn-1`",
    ] {
        assert!(log.contains(part), "{part} is not in {log}");
    }

    // The features of the small model and of the own one differ in width: nobody would find out before it starts.
    let folder = tempfile::tempdir().unwrap();
    let mut init = fednode();
    init.arg("init").arg(folder.path().join("new")).args([
        "--algorithm",
        "pfedmoe",
        "--model",
        "mlp",
    ]);
    init.args(["--set", "small_model=cnn", "--data", "digits"]);
    let output = run(init);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(
        (output.status.code(), error.lines().count()),
        (Some(3), 1),
        "{error}"
    );
}

#[test]
fn a_common_model_is_made_personal_without_a_network() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let mut swarm = fednode();
    swarm
        .args([
            "swarm",
            "--no-control",
            "--json",
            "--nodes",
            "3",
            "--rounds",
            "3",
            "--algorithm",
            "fedavg",
            "--out",
        ])
        .arg(&out);
    // Whoever makes a model personal trains nothing ahead, and PFL-MoE could not.
    swarm.args(["--set", "training.ahead_epochs=1"]);
    json_of(&run(swarm));
    let on_shard = |command: &str, model: &Path| {
        let mut process = fednode();
        process
            .args([
                command, "--json", "--data", "digits", "--shard", "1/3", "--model",
            ])
            .arg(model);
        process
    };
    let personalise = |algorithm: Option<&str>, model: &Path, result: &Path| -> Command {
        let mut process = on_shard("personalise", model);
        process
            .args(algorithm.iter().flat_map(|name| ["--algorithm", name]))
            .arg("--out")
            .arg(result);
        process
    };
    let (common, personal) = (
        out.join("models/1.safetensors"),
        folder.path().join("personal.safetensors"),
    );
    let told = json_of(&run(personalise(Some("pfl-mfe"), &common, &personal)));
    let accuracy = |scores: &serde_json::Value| scores["test"]["accuracy"].as_f64().unwrap();
    assert!(
        accuracy(&told["after"]) > accuracy(&told["before"]),
        "{told}"
    );
    let evaluated = json_of(&run(on_shard("evaluate", &personal)));
    assert_eq!(
        evaluated["score"]["accuracy"].as_f64(),
        Some(accuracy(&told["after"]))
    );
    for (algorithm, model, word) in [
        (None, &common, "trains nothing after the last round"),
        (None, &personal, "needs nothing more"),
    ] {
        let output = run(personalise(
            algorithm,
            model,
            &folder.path().join("never.safetensors"),
        ));
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !output.status.success() && stderr.contains(word),
            "{stderr}"
        );
    }
    assert!(!folder.path().join("never.safetensors").exists());
}

#[test]
fn a_model_of_texts_predicts_lines() {
    let folder = tempfile::tempdir().unwrap();
    let (corpus, lines, out) = (
        folder.path().join("corpus.csv"),
        folder.path().join("lines.txt"),
        folder.path().join("run"),
    );
    // Two classes of texts that share half of their words.
    let line = |at: usize| {
        let (class, own) = if at.is_multiple_of(2) {
            ("sport", "goal team match")
        } else {
            ("money", "bank loan stock")
        };
        format!(
            "{class},the {} of {own} number {}\n",
            ["day", "news", "end"][at % 3],
            at % 7
        )
    };
    std::fs::write(&corpus, (0..200).map(line).collect::<String>()).unwrap();
    std::fs::write(
        &lines,
        "The team has a match\na loan of the bank, a stock\n",
    )
    .unwrap();
    let mut swarm = fednode();
    swarm.args([
        "swarm",
        "--no-control",
        "--json",
        "--nodes",
        "2",
        "--rounds",
        "3",
        "--algorithm",
        "fedper",
        "--partition",
        "iid",
    ]);
    swarm
        .args([
            "--data",
            &format!("text:{},length=12", corpus.display()),
            "--out",
        ])
        .arg(&out);
    let summary = json_of(&run(swarm));
    assert_eq!(summary["mean_accuracy"], 1.0, "{summary}");
    let mut predict = fednode();
    predict
        .args(["predict", "--json", "--model"])
        .arg(out.join("models/1.safetensors"))
        .arg(&lines);
    let predicted = json_of(&run(predict));
    let names: Vec<&str> = predicted
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["sport", "money"]);
}
