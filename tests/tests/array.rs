//! A grid as an array of jobs: each plays its share, and the table of the last is that of one process that plays all.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::Command;

use fednode_e2e::{assert_fails, fednode, json_of, run};
use serde_json::Value;

const EXPERIMENT: &str = r#"
data = "digits"
seeds = [1, 2]

[set]
nodes = 2
rounds = 1

[grid]
algorithm = ["local", "fedavg"]
"#;

fn simulate(file: &Path, out: &Path, arguments: &[&str]) -> Command {
    let mut command = fednode();
    command
        .args(["simulate", "--json", "--threads", "1"])
        .arg(file);
    command.args(arguments).arg("--out").arg(out);
    command
}

/// Returns a table without what depends on the machine: where it lies, and how long it took.
fn table(text: &[u8]) -> Value {
    let mut table: Value = serde_json::from_slice(text).unwrap();
    table.as_object_mut().unwrap().remove("out");
    for row in table["rows"].as_array_mut().unwrap() {
        row.as_object_mut()
            .unwrap()
            .retain(|key, _| !key.contains("seconds") && !key.contains("rss"));
    }
    table
}

#[test]
fn jobs_that_share_the_runs_make_the_table_of_one_that_plays_all() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("grid.toml");
    fs::write(&file, EXPERIMENT).unwrap();
    let (alone, shared) = (folder.path().join("alone"), folder.path().join("shared"));
    let listed = json_of(&run(simulate(&file, &shared, &["--list"])));
    assert_eq!(listed["runs"].as_array().unwrap().len(), 4);
    let of_one_job = json_of(&run(simulate(&file, &shared, &["--list", "--run", "2/3"])));
    assert_eq!(of_one_job["runs"], serde_json::json!([listed["runs"][1]]));
    let whole = run(simulate(&file, &alone, &[]));
    let first = run(simulate(&file, &shared, &["--run", "2/3"]));
    let said = String::from_utf8_lossy(&first.stderr);
    assert!(
        said.contains("1 of 4 runs are in the table so far"),
        "{said}"
    );
    assert_eq!(table(&first.stdout)["rows"].as_array().unwrap().len(), 1);
    for share in ["1/3", "3/3"] {
        json_of(&run(simulate(&file, &shared, &["--run", share])));
    }
    let written = fs::read(shared.join("table.json")).unwrap();
    assert_eq!(table(&written), table(&whole.stdout));
    // A job that is started again plays nothing again.
    let before = fs::metadata(shared.join("table.json"))
        .unwrap()
        .modified()
        .unwrap();
    let summaries = |_: ()| -> Vec<_> {
        let runs = fs::read_dir(&shared)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        let written = runs
            .map(|run| run.join("summary.json"))
            .filter(|path| path.exists());
        written
            .map(|path| fs::metadata(path).unwrap().modified().unwrap())
            .collect()
    };
    let finished = summaries(());
    assert!(finished.len() == 4 && finished.iter().all(|time| *time <= before));
    json_of(&run(simulate(&file, &shared, &["--run", "1/3"])));
    assert_eq!(summaries(()), finished);
}

#[test]
fn a_share_that_is_none_and_one_without_a_folder_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for share in ["0/3", "4/3", "1"] {
        let mut command = fednode();
        command
            .args(["simulate", "--run", share, "--out"])
            .arg(folder.path());
        let output = run(command);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("is not of the form I/N"), "{said}");
    }
    let mut command = fednode();
    command.args(["simulate", "--run", "1/2"]);
    assert_fails(&run(command), 2, &["name it with --out"]);
}
