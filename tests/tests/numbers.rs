//! A number instead of classes: raw tables of several owners, from files to a model that answers with a number.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use fednode_e2e::{assert_fails, fednode, json_of, run};
use serde_json::Value;

/// A clinic's table: a dose that follows age and smoking, with an error of some units; `turned` clinics measure what is left of 200.
fn clinic(folder: &Path, name: &str, rows: std::ops::Range<usize>, is_turned: bool) -> PathBuf {
    let line = |row: usize| {
        let (age, smokes) = (20 + row * 7 % 60, (row * 11).is_multiple_of(2));
        let error = (row * 37 % 21) as f64 - 10.0;
        let dose = 40.0 + 1.5 * age as f64 + if smokes { 20.0 } else { 0.0 } + error;
        let dose = if is_turned { 200.0 - dose } else { dose };
        let age = if row % 9 == 4 {
            String::new()
        } else {
            age.to_string()
        };
        format!("{age},{smokes},{dose}\n")
    };
    let path = folder.join(name);
    let lines: String = rows.map(line).collect();
    std::fs::write(&path, format!("age,smokes,dose\n{lines}")).unwrap();
    path
}

fn predicted(state: &Path, table: &Path) -> Vec<f64> {
    let mut command = fednode();
    command
        .args(["predict", "--json", "--state"])
        .arg(state)
        .arg(table);
    let rows = json_of(&run(command));
    let number = |row: &Value| {
        assert_eq!(row["name"], "dose");
        row["number"].as_f64().unwrap()
    };
    rows.as_array().unwrap().iter().map(number).collect()
}

#[test]
fn files_of_three_owners_become_models_that_answer_with_a_number() {
    let folder = tempfile::tempdir().unwrap();
    let tables = [
        clinic(folder.path(), "north.csv", 0..30, false),
        clinic(folder.path(), "south.csv", 100..220, false),
        clinic(folder.path(), "west.csv", 300..400, true),
    ];
    let mut swarm = fednode();
    let out = folder.path().join("out");
    swarm
        .args(["swarm", "--json", "--device", "cpu", "--out"])
        .arg(&out);
    for table in &tables {
        swarm.args(["--own", &format!("csv:{},target=dose", table.display())]);
    }
    let summary = json_of(&run(swarm));
    assert_eq!(summary["measure"], "r2");
    assert_eq!(summary["target"], "dose");
    let of = |key: &str| summary[key].as_f64().unwrap();
    assert!(of("served") > 0.8, "{summary}");
    assert!((of("served") - of("alone") - of("difference")).abs() < 1e-9);
    assert!(of("difference") > -0.05, "peers do no harm: {summary}");
    // Weighted by how much each node's tests vary, the mean of R² is R² of all tests.
    assert!(
        (of("mean_accuracy") - of("served")).abs() < 1e-4,
        "{summary}"
    );
    let measures = &summary["measures"];
    assert!(measures["rmse"][0].as_f64().unwrap() < 20.0, "{measures}");
    assert_eq!(measures.get("accuracy"), None);
    let mut report = fednode();
    report.args(["report", "--json", "--out"]);
    report.arg(folder.path().join("report")).arg(&out);
    let reported = json_of(&run(report));
    let worth = &reported["runs"][0]["worth"];
    assert_eq!(worth["measures"], *measures, "{reported}");
    assert_eq!(worth["worst_node"]["shard"], summary["worst_node"]["shard"]);

    // Each owner's model speaks of its own clinic, and in its unit.
    let new = folder.path().join("new.csv");
    std::fs::write(&new, "smokes,age\nno,30\nno,70\n").unwrap();
    let state = |node: u32| out.join(format!("nodes/{node}/state"));
    for (node, expected) in [(1, [85.0, 145.0]), (3, [115.0, 55.0])] {
        let numbers = predicted(&state(node), &new);
        let pairs = numbers.iter().zip(expected);
        assert!(
            pairs
                .into_iter()
                .all(|(got, expected)| (got - expected).abs() < 12.0),
            "{node}: {numbers:?}"
        );
    }
    let parquet = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../crates/data/tests/data/patients.parquet"
    );
    assert_eq!(
        predicted(&state(1), Path::new(parquet)),
        predicted(&state(1), &new),
        "the same two rows in a Parquet file"
    );
    // A table that says nothing of what is predicted is read as the federation's.
    let mut evaluate = fednode();
    let table = format!("csv:{}", tables[1].display());
    evaluate
        .args(["evaluate", "--json", "--data", &table, "--state"])
        .arg(state(2));
    let evaluation = json_of(&run(evaluate));
    assert!(
        evaluation["score"]["accuracy"].as_f64().unwrap() > 0.85,
        "{evaluation}"
    );
}

#[test]
fn a_federation_is_judged_by_the_measure_that_it_names() {
    let folder = tempfile::tempdir().unwrap();
    let tables = [
        clinic(folder.path(), "north.csv", 0..60, false),
        clinic(folder.path(), "south.csv", 100..220, false),
    ];
    let mut swarm = fednode();
    let out = folder.path().join("out");
    swarm
        .args(["swarm", "--device", "cpu", "--set", "metric=mae", "--out"])
        .arg(&out);
    for table in &tables {
        swarm.args(["--own", &format!("csv:{},target=dose", table.display())]);
    }
    let output = run(swarm);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        text.contains("MAE, of which less is better: served "),
        "{text}"
    );
    let file = std::fs::read(out.join("summary.json")).unwrap();
    let summary: Value = serde_json::from_slice(&file).unwrap();
    assert_eq!(summary["measure"], "mae");
    let of = |key: &str| summary[key].as_f64().unwrap();
    assert!((2.0..12.0).contains(&of("served")), "{summary}");
    // Rounds are judged alike: the last one by what is served in the end.
    let text = std::fs::read_to_string(out.join("metrics.jsonl")).unwrap();
    let records = text.lines().map(|line| serde_json::from_str(line).unwrap());
    let records: Vec<Value> = records.collect();
    assert!(
        records.iter().all(|it| it["judged"]["measure"] == "mae"),
        "{text}"
    );
    for node in summary["per_node"].as_array().unwrap() {
        let own = |record: &&Value| record["node_id"] == node["node_id"];
        let last = records.iter().rfind(own).unwrap();
        let [served, judged] =
            [&node["served"], &last["judged"]["value"]].map(|it| it.as_f64().unwrap());
        assert!((served / judged - 1.0).abs() < 1e-4, "{node} {last}");
    }
    // Less is better, and a gain is above zero.
    assert!((of("alone") - of("served") - of("difference")).abs() < 1e-9);
    let mut evaluate = fednode();
    evaluate
        .args(["evaluate", "--json", "--state"])
        .arg(out.join("nodes/1/state"));
    let evaluation = json_of(&run(evaluate));
    assert_eq!(evaluation["metric"], "mae");
    let mae = evaluation["measures"]["mae"].as_f64().unwrap();
    let bounds = evaluation["interval"].as_array().unwrap();
    let bounds: Vec<f64> = bounds.iter().filter_map(Value::as_f64).collect();
    assert!(bounds[0] <= mae && mae <= bounds[1], "{evaluation}");
}

#[test]
fn what_is_for_classes_alone_is_refused_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let table = clinic(folder.path(), "north.csv", 0..60, false);
    let source = format!("csv:{},target=dose", table.display());
    let swarm = |more: &[&str]| {
        let mut swarm = fednode();
        swarm.args(["swarm", "--data", &source, "--nodes", "2", "--out"]);
        swarm.arg(folder.path().join("out")).args(more);
        run(swarm)
    };
    for (more, words) in [
        (
            &["--algorithm", "fedpac"][..],
            ["`data.target` is a number", "or one of fedavg"],
        ),
        (&["--pool"], ["`data.target` is a number", "`pool`"]),
        (
            &["--privacy", "dp:4"],
            ["`data.target` is a number", "`privacy.epsilon`"],
        ),
        (
            &["--set", "metric=auroc"],
            ["`metric` is `auroc`", "choose one of mae, rmse, r2"],
        ),
    ] {
        assert_fails(&swarm(more), 3, &words);
    }
    let constant = folder.path().join("constant.csv");
    std::fs::write(&constant, "a,y\n1,5\n2,5\n3,5\n4,5\n").unwrap();
    let mut init = fednode();
    let source = format!("csv:{},target=y", constant.display());
    init.args(["init", "--open", "--data", &source]);
    init.arg(folder.path().join("fed"));
    let words = ["`y`", "one number in all rows", ",target=COLUMN"];
    assert_fails(&run(init), 3, &words);
    let mut data = fednode();
    data.args(["data", &format!("csv:{},target=smokes", table.display())]);
    let words = ["`smokes`", "holds words", ",target=COLUMN"];
    assert_fails(&run(data), 4, &words);
}

/// Three real nodes add up their rows once, under masks and with noise. The ledger of each counts one release.
#[test]
fn rows_that_nobody_may_see_are_added_up_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let mut swarm = fednode();
    let out = folder.path().join("out");
    swarm.args(["swarm", "--json", "--device", "cpu", "--rounds", "3"]);
    swarm.args(["--privacy", "masked+dp:8", "--out"]).arg(&out);
    for (name, rows) in [
        ("north.csv", 0..120),
        ("south.csv", 200..320),
        ("west.csv", 400..520),
    ] {
        let table = clinic(folder.path(), name, rows, false);
        swarm.args(["--own", &format!("csv:{},target=dose", table.display())]);
    }
    let summary = json_of(&run(swarm));
    assert_eq!(summary["privacy"]["mode"], "masked+dp:8", "{summary}");
    let of = |key: &str| summary[key].as_f64().unwrap();
    assert!(of("served") > of("alone") - 0.02, "{summary}");
    for node in 1..=3 {
        let state = out.join(format!("nodes/{node}/state"));
        let ledger = std::fs::read(state.join("privacy.json")).unwrap();
        let ledger: Value = serde_json::from_slice(&ledger).unwrap();
        assert_eq!(ledger.as_array().unwrap().len(), 1, "{ledger}");
        assert_eq!(ledger[0]["what"], "sums of rows");
        let card = std::fs::read_to_string(state.join("final/card.json")).unwrap();
        assert!(card.contains("noised-statistics"), "{card}");
    }
}
