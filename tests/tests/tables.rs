//! Raw tables of several owners: words, gaps and truth values as they are, from files to a model that answers.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use fednode_e2e::{assert_fails, fednode, json_of, run};
use serde_json::Value;

/// A hospital's table: an age around a mean, a word, a truth value, gaps. What is sick depends on all three.
fn hospital(folder: &Path, name: &str, n: usize, age: usize, separator: char) -> PathBuf {
    let row = |row: usize| {
        let (years, kind, smokes) = (
            age + row * 7 % 20,
            row * 5 % 3,
            (row * 11).is_multiple_of(2),
        );
        let sick = usize::from(years > age + 10) + usize::from(kind == 1) + usize::from(smokes);
        let years = if row % 9 == 4 {
            "?".to_owned()
        } else {
            format!("{years}.5")
        };
        let years = if separator == ';' {
            years.replace('.', ",")
        } else {
            years
        };
        let kind = ["typical", "none", "other kind"][kind];
        [
            row.to_string(),
            years,
            kind.to_owned(),
            smokes.to_string(),
            sick.to_string(),
        ]
    };
    let head = ["id", "age", "pain", "smokes", "grade"].map(str::to_owned);
    let rows = std::iter::once(head).chain((0..n).map(row));
    let lines: Vec<String> = rows
        .map(|cells| cells.join(&separator.to_string()))
        .collect();
    let path = folder.join(name);
    std::fs::write(&path, lines.join("\n")).unwrap();
    path
}

/// Names a table as a source: grades 0 and 1 are healthy.
fn source(path: &Path) -> String {
    format!(
        "csv:{},label=grade,classes=0=>healthy|1=>healthy|*=>sick",
        path.display()
    )
}

fn federation(command: &str, folder: &Path, tables: &[PathBuf], more: &[&str]) -> Output {
    let mut fednode = fednode();
    fednode
        .args([command, "--json", "--device", "cpu", "--out"])
        .arg(folder.join(command));
    for table in tables {
        fednode.args(["--own", &source(table)]);
    }
    fednode.args(more);
    run(fednode)
}

fn three_hospitals(folder: &Path) -> Vec<PathBuf> {
    vec![
        hospital(folder, "north.csv", 120, 40, ','),
        hospital(folder, "south.csv", 60, 55, ';'),
        hospital(folder, "west.tsv", 200, 30, '\t'),
    ]
}

fn accuracies(summary: &Value) -> Vec<f64> {
    let nodes = summary["per_node"].as_array().unwrap();
    nodes
        .iter()
        .map(|node| node["accuracy"].as_f64().unwrap())
        .collect()
}

fn predict(model: &Path, table: &Path) -> Command {
    let mut command = fednode();
    command
        .args(["predict", "--json", "--state"])
        .arg(model)
        .arg(table);
    command
}

#[test]
fn files_of_three_owners_become_models_that_answer() {
    let folder = tempfile::tempdir().unwrap();
    let tables = three_hospitals(folder.path());
    let live = json_of(&federation("swarm", folder.path(), &tables, &[]));
    assert_eq!(live["partition"], "own");
    let of = |key: &str| live[key].as_f64().unwrap();
    assert!(of("served") > of("majority_class_accuracy") + 0.1, "{live}");
    assert!((of("served") - of("alone") - of("difference")).abs() < 1e-9);
    assert!(live["interval"][0].as_f64().unwrap() <= of("difference"));
    assert!((1..=3).contains(&live["worst_node"]["shard"].as_u64().unwrap()));
    let gain = |node: &Value| node["served"].as_f64().unwrap() - node["alone"].as_f64().unwrap();
    let nodes = live["per_node"].as_array().unwrap();
    let least = nodes.iter().map(gain).fold(f64::INFINITY, f64::min);
    assert!((least - gain(&live["worst_node"])).abs() < 1e-9, "{live}");
    assert!(
        live["measures"]["auroc"][0].as_f64().unwrap() > 0.8,
        "{live}"
    );
    // The same samples are divided and trained in the same way in one process.
    let simulated = json_of(&federation(
        "simulate",
        folder.path(),
        &tables,
        &["--control"],
    ));
    for (live, simulated) in accuracies(&live).into_iter().zip(accuracies(&simulated)) {
        assert!(
            (live - simulated).abs() < 0.2,
            "{live}, simulated {simulated}"
        );
    }

    // New patients, columns in another order, a word that nobody knew, gaps.
    let state = folder.path().join("swarm/nodes/1/state");
    let patients = folder.path().join("new.csv");
    std::fs::write(
        &patients,
        "pain,smokes,age,ward\nnone,yes,58,7\ntypical,no,41,7\nnever heard,,NA,\n",
    )
    .unwrap();
    let predicted = json_of(&run(predict(&state, &patients)));
    let names: Vec<&str> = predicted
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["name"].as_str().unwrap())
        .collect();
    assert_eq!(names[..2], ["sick", "healthy"]);
    assert_eq!(names.len(), 3);
    what_all_tables_hold_is_described(folder.path(), &live);
    for node in 1..=3 {
        let log = log_of(folder.path(), node);
        assert!(!log.contains(OTHER_NAMES), "{log}");
    }
}

/// What a node says of a peer whose classes have other names.
const OTHER_NAMES: &str = "seems to call the classes by other names";

fn log_of(folder: &Path, node: usize) -> String {
    std::fs::read_to_string(folder.join(format!("swarm/logs/node-{node}.log"))).unwrap()
}

#[test]
fn a_label_column_that_means_the_reverse_is_noticed_on_both_sides() {
    let folder = tempfile::tempdir().unwrap();
    // Large enough that classes differ by more than chance makes of them.
    let tables = [("north.csv", 40), ("south.csv", 55), ("west.tsv", 30)];
    let tables: Vec<PathBuf> = tables
        .iter()
        .map(|(name, age)| hospital(folder.path(), name, 240, *age, '\t'))
        .collect();
    // At the last hospital 0 and 1 are sick, and all others are healthy.
    let table = std::fs::read_to_string(&tables[2]).unwrap();
    let reversed = table.lines().enumerate().map(|(at, line)| {
        let (cells, grade) = line.rsplit_once('\t').unwrap();
        match grade {
            _ if at == 0 => line.to_owned(),
            "0" | "1" => format!("{cells}\t3"),
            _ => format!("{cells}\t0"),
        }
    });
    let reversed: Vec<String> = reversed.collect();
    std::fs::write(&tables[2], reversed.join("\n")).unwrap();
    let more = ["--no-control", "--rounds", "3"];
    let _ = json_of(&federation("swarm", folder.path(), &tables, &more));
    let names = "its `sick` is like `healthy` here";
    let told = |node| {
        let log = log_of(folder.path(), node);
        let lines = log.lines().filter(|line| line.contains(OTHER_NAMES));
        let lines: Vec<String> = lines.map(str::to_owned).collect();
        assert!(lines.iter().all(|line| line.contains(names)), "{lines:?}");
        lines.len()
    };
    assert_eq!([told(1), told(2), told(3)], [1, 1, 2]);
}

/// Every node knows the same of everybody's columns, and it is what the three tables hold together.
fn what_all_tables_hold_is_described(folder: &Path, live: &Value) {
    let describe = |node: usize, more: &[&str]| {
        let mut command = fednode();
        let state = folder.join(format!("swarm/nodes/{node}/state"));
        command.args(["describe", "--json", "--state"]).arg(state);
        command.args(more);
        json_of(&run(command))
    };
    let known = describe(1, &[]);
    let nodes = live["per_node"].as_array().unwrap();
    let rows: u64 = nodes
        .iter()
        .map(|node| node["train_samples"].as_u64().unwrap())
        .sum();
    assert_eq!((&known["rows"], &known["nodes"]), (&rows.into(), &3.into()));
    assert_eq!(describe(3, &[])["columns"], known["columns"]);
    let column = |name: &str| {
        let columns = known["columns"].as_array().unwrap();
        columns
            .iter()
            .find(|column| column["name"] == name)
            .unwrap_or_else(|| panic!("{name}: {known}"))
    };
    // 120 rows around 40 and 9.5 above it, 60 around 55, 200 around 30; some are held out.
    let age = column("age");
    let mean = (120.0 * 40.0 + 60.0 * 55.0 + 200.0 * 30.0) / 380.0 + 10.0;
    let found = age["mean"].as_f64().unwrap();
    assert!((found - mean).abs() < 1.5, "{found}, not {mean}");
    // Of nine rows one has a gap, and of the others half smoke; a third has each kind of pain.
    let close = |value: &Value, share: f64| (value.as_f64().unwrap() - share).abs() < 0.06;
    assert!(close(&age["present"], 8.0 / 9.0), "{age}");
    let levels = column("pain")["levels"].as_array().unwrap();
    let named: Vec<&Value> = levels
        .iter()
        .filter(|level| !level["name"].is_null())
        .collect();
    assert_eq!(named.len(), 3);
    assert!(
        named.iter().all(|level| close(&level["share"], 1.0 / 3.0)),
        "{levels:?}"
    );
    let hidden = describe(1, &["--least", "500"]);
    let share = &hidden["columns"].as_array().unwrap()[0]["present"];
    assert!(share.is_null(), "{hidden}");
}

#[test]
fn what_would_break_a_round_is_said_with_column_and_line() {
    let folder = tempfile::tempdir().unwrap();
    let tables = three_hospitals(folder.path());
    let init = |dir: &str, data: &str| {
        let mut command = fednode();
        command
            .arg("init")
            .arg(folder.path().join(dir))
            .args(["--nodes", "3", "--data", data]);
        run(command)
    };
    assert!(init("organiser", &source(&tables[0])).status.success());
    let spec = folder.path().join("organiser/federation.toml");
    let text = std::fs::read_to_string(&spec).unwrap();
    assert!(
        text.contains("partition = \"own\"") && text.contains("typical"),
        "{text}"
    );

    let check = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        let mut command = fednode();
        command.args(["data", &source(&path), "--spec"]).arg(&spec);
        run(command)
    };
    let head = "age,pain,smokes,grade\n";
    let rows = "41.5,none,true,2
,typical,no,0
60,rare,1,3
"
    .repeat(4);
    let good = check("good.csv", &format!("{head}{rows}"));
    assert!(
        good.status.success(),
        "{}",
        String::from_utf8_lossy(&good.stderr)
    );
    let said = String::from_utf8_lossy(&good.stdout).into_owned();
    assert!(
        said.contains("`pain` has words that count as `other`: `rare`"),
        "{said}"
    );
    let words = check(
        "words.csv",
        &format!("{head}41.5,none,true,2\nold,typical,no,0\n"),
    );
    assert_fails(&words, 4, &["`old`", "column `age`", "line 3"]);
    let fewer = check("fewer.csv", "age,smokes,grade\n41,true,2\n42,false,0\n");
    assert_fails(&fewer, 4, &["no column `pain`"]);
    // Without names for its own labels a table has other classes than the federation.
    let mut command = fednode();
    command
        .args([
            "data",
            &format!("csv:{},label=grade", tables[1].display()),
            "--spec",
        ])
        .arg(&spec);
    assert_fails(&run(command), 4, &["do not go with the federation"]);
}

#[test]
fn sources_that_do_not_go_together_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let tables = three_hospitals(folder.path());
    let nodes = federation("swarm", folder.path(), &tables, &["--nodes", "5"]);
    assert_fails(&nodes, 3, &["--own is given 3 times"]);
    let divided = federation("swarm", folder.path(), &tables, &["--partition", "iid"]);
    assert_fails(&divided, 3, &["nothing is divided"]);
    let twice = [tables[0].clone(), tables[0].clone()];
    let twice = federation("swarm", folder.path(), &twice, &[]);
    assert_fails(&twice, 4, &["is given twice"]);
    let stranger = folder.path().join("stranger.csv");
    std::fs::write(
        &stranger,
        "height,grade\n".to_owned() + &"1.5,0\n2.5,3\n".repeat(9),
    )
    .unwrap();
    let strangers = [tables[0].clone(), stranger];
    let strangers = federation("swarm", folder.path(), &strangers, &[]);
    assert_fails(&strangers, 4, &["no column in common"]);
    let said = String::from_utf8_lossy(&strangers.stderr);
    let note = "note: column `age` is left out for all nodes: `csv:";
    assert!(
        said.contains(note) && said.contains("` has no such column"),
        "{said}"
    );
    let mut command = fednode();
    let other = format!(
        "csv:{},label=grade,classes=0=>well|*=>ill",
        tables[1].display()
    );
    command.args([
        "swarm",
        "--own",
        &source(&tables[0]),
        "--own",
        &other,
        "--out",
    ]);
    command.arg(folder.path().join("x"));
    assert_fails(&run(command), 4, &["`well`", "give them the same names"]);
}

/// Runs a swarm of two sources.
fn swarm_of(folder: &Path, sources: [&str; 2]) -> Output {
    let mut command = fednode();
    let [one, other] = sources;
    command.args(["swarm", "--device", "cpu", "--own", one, "--own", other]);
    command.arg("--out").arg(folder.join("x"));
    run(command)
}

#[test]
fn a_table_that_says_nothing_is_refused_before_anything_runs() {
    let folder = tempfile::tempdir().unwrap();
    let good = hospital(folder.path(), "good.csv", 60, 40, ',');
    let useless = folder.path().join("useless.csv");
    // One column never differs, and in the other each value occurs once.
    let rows = (0..40).map(|row| format!("yes,note {row},{}\n", row % 2));
    let text = "asked,remark,grade\n".to_owned() + &rows.collect::<String>();
    std::fs::write(&useless, text).unwrap();
    let refused = swarm_of(folder.path(), [&source(&good), &source(&useless)]);
    let words = ["useless.csv", "has no column that can be learned from"];
    assert_fails(&refused, 4, &words);
}

#[test]
fn images_of_another_size_are_refused_with_the_option_that_makes_them_alike() {
    let folder = tempfile::tempdir().unwrap();
    let images = |name: &str, width: u32| {
        let images = folder.path().join(name);
        for class in ["a", "b"] {
            std::fs::create_dir_all(images.join(class)).unwrap();
            for number in 0..6_u8 {
                let pixel = image::Luma([20 * number + u8::from(class == "b")]);
                let picture = image::GrayImage::from_pixel(width, 8, pixel);
                let path = images.join(class).join(format!("{number}.png"));
                picture.save(path).unwrap();
            }
        }
        format!("folder:{}", images.display())
    };
    let (small, large) = (images("small", 8), images("large", 12));
    let refused = swarm_of(folder.path(), [&small, &large]);
    let words = [
        "samples of 1x8x12 numbers, not 1x8x8",
        ",resize=HEIGHTxWIDTH",
    ];
    assert_fails(&refused, 4, &words);
}

#[test]
fn test_rows_are_those_that_the_owner_names() {
    let folder = tempfile::tempdir().unwrap();
    let tables = three_hospitals(folder.path());
    let test = hospital(folder.path(), "later.csv", 40, 45, ',');
    let mut command = fednode();
    command.args(["simulate", "--json", "--own"]);
    command.arg(format!("{},test={}", source(&tables[0]), test.display()));
    command.args([
        "--own",
        &source(&tables[1]),
        "--partition",
        "own:0.5",
        "--out",
    ]);
    command.arg(folder.path().join("run"));
    let summary = json_of(&run(command));
    let of = |node: usize, key: &str| summary["per_node"][node][key].as_u64().unwrap();
    assert_eq!((of(0, "test_samples"), of(1, "test_samples")), (40, 30));
    assert_eq!(
        of(0, "train_samples"),
        108,
        "all 120 rows, less a tenth for validation"
    );
}

#[test]
fn a_label_that_is_guessed_is_said_also_of_own_tables_in_a_simulation() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = fednode();
    command.args(["simulate", "--dry-run", "--out"]);
    command.arg(folder.path().join("run"));
    for name in ["north", "south", "west"] {
        let rows: String = (0..40)
            .map(|row| format!("{}.25,{}\n", row % 7, ["low", "high"][row % 2]))
            .collect();
        let table = folder.path().join(format!("{name}.csv"));
        fs::write(&table, format!("dose,grade\n{rows}")).unwrap();
        command.args(["--own", &format!("csv:{}", table.display())]);
    }
    let output = run(command);
    let said = String::from_utf8_lossy(&output.stderr);
    let note = "note: the last column, `grade`, is taken for the label";
    assert!(output.status.success() && said.contains(note), "{said}");
}

#[test]
fn advice_is_for_the_data_that_are_there() {
    let folder = tempfile::tempdir().unwrap();
    let table = hospital(folder.path(), "north.csv", 120, 40, ',');
    let advise = |source: &str| {
        let mut command = fednode();
        command.args(["advise", "--json", source]);
        run(command)
    };
    let answer = json_of(&advise(&source(&table)));
    let pieces = answer["advice"].as_array().unwrap();
    let about: Vec<&str> = pieces
        .iter()
        .map(|piece| piece["about"].as_str().unwrap())
        .collect();
    assert_eq!(about, ["algorithm", "tests", "privacy"], "{answer}");
    assert_eq!(
        (answer["samples"].as_u64(), answer["test_samples"].as_u64()),
        (Some(120), Some(30))
    );
    // 1.96 * sqrt(0.5 * 0.5 / 30)
    assert!(
        (answer["uncertainty"].as_f64().unwrap() - 0.17892).abs() < 1e-4,
        "{answer}"
    );
    let all_sick = folder.path().join("sick.csv");
    std::fs::write(&all_sick, "age,grade\n50,2\n60,3\n").unwrap();
    assert_fails(&advise(&source(&all_sick)), 4, &["one class only"]);
}
