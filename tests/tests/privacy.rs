//! A federation under a promise of differential privacy, with the real binaries.
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use fednode_e2e::closed::table;
use fednode_e2e::{assert_fails, fednode, json_of, run};
use serde_json::Value;

/// Little data: only a large ε leaves statistics of any use, which is all that this is about.
const PROMISE: [&str; 8] = [
    "--nodes",
    "3",
    "--rounds",
    "2",
    "--seed",
    "1",
    "--privacy",
    "dp:40",
];

fn command(name: &str, out: &Path, more: &[&str]) -> Command {
    let mut command = fednode();
    command.args([name, "--json", "--device", "cpu", "--out"]);
    command.arg(out).args(more);
    command
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// What a record says of samples is what the release says: nobody else may learn the true number.
fn numbers_of_samples(out: &Path) -> Vec<u64> {
    let text = std::fs::read_to_string(out.join("metrics.jsonl")).unwrap();
    let number = |line: &str| serde_json::from_str::<Value>(line).unwrap()["n_samples"].as_u64();
    text.lines().filter_map(number).collect()
}

#[test]
fn a_swarm_with_a_promise_counts_what_each_node_releases() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let more = [&PROMISE[..], &["--no-control"]].concat();
    let summary = json_of(&run(command("swarm", &out, &more)));
    assert_eq!(summary["privacy"]["mode"], "dp:40");
    assert_eq!(summary["privacy"]["epsilon"], 40.0);
    assert_eq!(summary["privacy"]["delta"], 1e-5);
    let nodes = summary["per_node"].as_array().unwrap();
    assert_eq!(nodes.len(), 3);
    assert!(
        nodes.iter().all(|node| node["lacks"].is_null()),
        "{summary}"
    );
    for node in 1..=3 {
        let state = out.join(format!("nodes/{node}/state"));
        let releases = json(&state.join("privacy.json"));
        let releases = releases.as_array().unwrap();
        assert_eq!(releases.len(), 1, "one release in two rounds");
        assert_eq!(releases[0]["what"], "class statistics");
    }
    // The owner sees it, with what attacks reach, and does not release any more by looking.
    let state = out.join("nodes/1/state");
    let mut look = fednode();
    let drawn = folder.path().join("drawn");
    look.args(["privacy", "--json", "--config"]);
    look.arg(out.join("nodes/1/node.toml"));
    look.arg("--pictures").arg(&drawn);
    let answer = json_of(&run(look));
    assert_eq!(answer["is_published"], true);
    // It tests the promise, and draws what others could.
    assert_eq!(answer["canaries"]["promised"], 40.0);
    assert!(answer["canaries"]["above"].as_f64().unwrap() < 40.0);
    let pictures = answer["pictures"].as_array().unwrap();
    assert_eq!(pictures.len(), 2, "one image, and the own classes");
    for picture in pictures {
        let sheet = image::open(picture.as_str().unwrap()).unwrap();
        assert!(sheet.width() > sheet.height(), "true, known and redrawn");
    }
    let mode = std::fs::metadata(&drawn).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700, "they are of real samples");
    let mut again = fednode();
    again.args(["privacy", "--config"]);
    again.arg(out.join("nodes/1/node.toml"));
    again.arg("--pictures").arg(&drawn);
    assert_fails(&run(again), 2, &["drawn", "choose another name"]);
    let spent = answer["spent"]["epsilon"].as_f64().unwrap();
    assert!((39.9..=40.0).contains(&spent), "{answer}");
    assert_eq!(answer["attacks"][0]["attack"], "matched filter");
    assert_eq!(
        json(&state.join("privacy.json")).as_array().unwrap().len(),
        1
    );
}

#[test]
fn a_swarm_that_trains_under_a_promise_counts_each_round() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let more = ["--no-control", "--algorithm", "fedper", "--model", "mlp"];
    let more = [&PROMISE[..], &more].concat();
    let summary = json_of(&run(command("swarm", &out, &more)));
    assert_eq!(summary["privacy"]["mode"], "dp:40");
    let releases = json(&out.join("nodes/2/state/privacy.json"));
    let releases = releases.as_array().unwrap();
    assert_eq!(releases.len(), 2, "one release in each of two rounds");
    for release in releases {
        assert_eq!(release["what"], "the training of a round");
        assert!(
            release["mechanism"]["training"]["steps"].as_u64().unwrap() > 1,
            "{release}"
        );
    }
    let mut look = fednode();
    look.args(["privacy", "--json", "--config"]);
    look.arg(out.join("nodes/2/node.toml"));
    let answer = json_of(&run(look));
    // All rounds together cost what the federation promises.
    let spent = answer["spent"]["epsilon"].as_f64().unwrap();
    assert!((39.0..=40.0).contains(&spent), "{answer}");
    assert_eq!(answer["attacks"][0]["attack"], "loss");
    // Every node counts alike, so that none says how many samples it has.
    assert!(numbers_of_samples(&out).iter().all(|told| *told == 1));
}

#[test]
fn a_simulation_with_a_promise_is_repeated_to_the_last_bit() {
    let folder = tempfile::tempdir().unwrap();
    let summaries = ["a", "b"].map(|name| {
        let out = folder.path().join(name);
        let more = [&PROMISE[..], &["--control"]].concat();
        let summary = json_of(&run(command("simulate", &out, &more)));
        (out, summary)
    });
    let hashes = summaries.each_ref().map(|(_, summary)| {
        let nodes = summary["per_node"].as_array().unwrap();
        nodes
            .iter()
            .map(|node| node["parameters_hash"].clone())
            .collect::<Vec<_>>()
    });
    assert_eq!(hashes[0], hashes[1]);
    let (out, summary) = &summaries[0];
    assert_eq!(summary["privacy"]["mode"], "dp:40");
    assert!(
        summary["served"].is_f64() && summary["alone"].is_f64(),
        "{summary}"
    );
    let told = numbers_of_samples(out);
    let train = summary["per_node"].as_array().unwrap().iter();
    let train: Vec<u64> = train
        .map(|node| node["train_samples"].as_u64().unwrap())
        .collect();
    assert_eq!(told.len(), 6, "three nodes, two rounds");
    assert!(told.iter().all(|told| *told > 0), "{told:?}");
    assert_ne!(told[..3], train[..], "the true numbers stay at home");
}

#[test]
fn an_owners_budget_keeps_a_node_out_of_a_federation_that_promises_less() {
    let folder = tempfile::tempdir().unwrap();
    let start = |promise: &str, budget: &str| {
        let folder = folder.path().join(promise.replace(':', "-"));
        let mut init = fednode();
        init.args([
            "init",
            "--open",
            "--nodes",
            "2",
            "--data",
            "digits",
            "--privacy",
            promise,
        ]);
        init.arg(&folder);
        assert!(init.output().unwrap().status.success());
        let mut start = fednode();
        start
            .arg("start")
            .arg("--config")
            .arg(folder.join("node.toml"));
        start.args([
            "--device",
            "cpu",
            "--shard",
            "1/2",
            "--set",
            "network.mdns=false",
        ]);
        start.args(["--set", &format!("privacy.budget={budget}")]);
        let output = start.output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), text)
    };
    let (code, text) = start("open", "4");
    assert_eq!(code, Some(3), "{text}");
    assert!(
        text.contains("nothing protects it") && text.contains("privacy.budget"),
        "{text}"
    );
    // A release that would not fit is refused before anything is trained or published.
    let (code, text) = start("dp:8", "4");
    assert_eq!(code, Some(3), "{text}");
    assert!(text.contains("above the budget of 4"), "{text}");
    let state = folder.path().join("dp-8/state");
    assert!(!state.join("privacy.json").exists());
    assert!(
        !state.join("metrics.jsonl").exists(),
        "no round was trained"
    );
}

/// 20 rows of 30 columns: their products have no direction but theirs, so every member can tell who is among them.
#[test]
fn a_node_that_all_members_could_look_into_starts_on_its_owners_word_alone() {
    let folder = tempfile::tempdir().unwrap();
    let table = folder.path().join("rows.csv");
    let columns = (0..30).map(|column| format!("c{column}"));
    let mut rows = columns
        .chain(["kind".to_owned()])
        .collect::<Vec<_>>()
        .join(",");
    for row in 0..20_u32 {
        let numbers = (1..=30_u32).map(|column| (row * 37 * column % 101).to_string());
        let kind = if row % 2 == 0 { "even" } else { "odd" };
        let cells: Vec<String> = numbers.chain([kind.to_owned()]).collect();
        rows = format!("{rows}\n{}", cells.join(","));
    }
    std::fs::write(&table, rows).unwrap();
    let source = format!("csv:{},label=kind", table.display());
    let start = |name: &str, promise: &str, settings: &[&str]| {
        let folder = folder.path().join(name);
        let mut init = fednode();
        init.args(["init", "--open", "--nodes", "3", "--data", &source]);
        init.args(["--privacy", promise]).arg(&folder);
        let made = init.output().unwrap();
        assert!(made.status.success(), "{made:?}");
        let mut start = fednode();
        start
            .args(["start", "--config"])
            .arg(folder.join("node.toml"));
        start.args(["--device", "cpu", "--data", &source]);
        start.args(["--set", "network.mdns=false"]);
        // What comes after it stops it in any case: nothing is published here.
        start.args(["--set", "privacy.budget=4"]).args(settings);
        let output = start.output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(3), "{text}");
        text
    };
    let refused = start("refused", "open", &[]);
    let remedies = [
        "can tell who is in",
        "masked+dp:4",
        "accept_exposure = true",
    ];
    assert!(
        remedies.iter().all(|word| refused.contains(word)),
        "{refused}"
    );
    let accepted = start(
        "accepted",
        "open",
        &["--set", "privacy.accept_exposure=true"],
    );
    assert!(accepted.contains("nothing protects it"), "{accepted}");
    // Under masks nobody sees these rows' products.
    let masked = start("masked", "masked", &[]);
    assert!(masked.contains("nothing protects it"), "{masked}");
}

#[test]
fn data_of_ones_own_are_protected_where_nobody_says_anything() {
    let folder = tempfile::tempdir().unwrap();
    let rows = folder.path().join("rows.csv");
    table(&rows, 40);
    let own = format!("csv:{},label=class", rows.display());
    let init = |name: &str, arguments: &[&str]| {
        let mut init = fednode();
        init.args(["init", "--json"]).args(arguments);
        init.arg(folder.path().join(name));
        init
    };
    let mode = |name: &str, arguments: &[&str]| {
        let made = json_of(&run(init(name, arguments)));
        made["privacy"].as_str().unwrap().to_owned()
    };
    assert_eq!(
        mode("three", &["--nodes", "3", "--data", &own]),
        "masked+dp:4"
    );
    assert_eq!(mode("public", &["--nodes", "3"]), "open");
    assert_eq!(mode("alone", &["--nodes", "1", "--data", &own]), "open");
    let two = ["--nodes", "2", "--data", &own];
    let said = ["`--privacy open` or `--privacy dp:4`", "3 to 255"];
    assert_fails(&run(init("two", &two)), 2, &said);
    let named = ["--algorithm", "fedavg", "--data", &own];
    assert_fails(&run(init("named", &named)), 2, &["is named", "masked+dp:4"]);
    let open = [&two[..], &["--privacy", "open"]].concat();
    assert_eq!(mode("open", &open), "open");
}
