//! `fednode export` with the real binary: graphs that say what `fednode predict` says, and files that are not lost.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use fednode_e2e::{fednode, json_of, run};
use rten::{Model, Value, ValueView};
use serde_json::Value as Json;

/// Trains two nodes and returns the state folder of the first.
fn trained(out: &Path, arguments: &[&str]) -> PathBuf {
    let mut command = fednode();
    command.args([
        "swarm",
        "--json",
        "--device",
        "cpu",
        "--no-control",
        "--out",
    ]);
    command.arg(out).args(arguments);
    json_of(&run(command));
    out.join("nodes/1/state")
}

fn export(state: &Path, out: &Path, more: &[&str]) -> Output {
    let mut command: Command = fednode();
    command.args(["export", "--json", "--state"]).arg(state);
    command.arg("--out").arg(out).args(more);
    run(command)
}

/// The probabilities that a command prints, sample after sample.
fn predicted(state: &Path, file: &Path) -> Vec<f32> {
    let mut command = fednode();
    command.args(["predict", "--json", "--state"]).arg(state);
    command.arg(file);
    let rows = json_of(&run(command));
    let of = |row: &Json| row["probabilities"].as_array().unwrap().clone();
    let all = rows.as_array().unwrap().iter().flat_map(of);
    all.map(|value| value.as_f64().unwrap() as f32).collect()
}

/// The probabilities of a graph.
fn computed(graph: &Path, input: &str, shape: &[usize], values: &[f32]) -> Vec<f32> {
    let model = Model::load(fs::read(graph).unwrap()).unwrap();
    let ids = [input, "probabilities"].map(|name| model.node_id(name).unwrap());
    let view = ValueView::from_shape(shape, values).unwrap();
    let [made] = model
        .run_n(vec![(ids[0], view.into())], [ids[1]], None)
        .unwrap();
    match made {
        Value::FloatTensor(made) => made.into_data(),
        _ => panic!("probabilities are floats"),
    }
}

#[track_caller]
fn assert_close(got: &[f32], expected: &[f32]) {
    let difference = |(got, expected): (&f32, &f32)| (got - expected).abs();
    let largest = got.iter().zip(expected).map(difference).fold(0.0, f32::max);
    assert!(
        got.len() == expected.len() && largest < 1e-5,
        "{largest}: {got:?}, {expected:?}"
    );
}

#[track_caller]
fn assert_refused(output: &Output, words: &[&str]) {
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    let missing: Vec<&&str> = words
        .iter()
        .filter(|word| !message.contains(**word))
        .collect();
    assert!(
        missing.is_empty() && message.trim().lines().count() == 1,
        "`{message}` lacks {missing:?}"
    );
}

#[test]
fn the_default_on_images_says_what_predict_says_and_files_stay() {
    let folder = tempfile::tempdir().unwrap();
    let federation = [
        "--nodes",
        "2",
        "--rounds",
        "2",
        "--data",
        "digits",
        "--samples-per-node",
        "150",
    ];
    let state = trained(&folder.path().join("run"), &federation);
    let graph = folder.path().join("model.onnx");
    let told = json_of(&export(&state, &graph, &[]));
    assert_eq!(
        (&told["format"], told["card"].is_null()),
        (&Json::from("onnx"), true)
    );

    // Five images of 8 × 8 in IDX form.
    let pixels: Vec<u8> = (0..5 * 64).map(|at| (at * 37 % 251) as u8).collect();
    let header = [0, 0, 8, 3, 0, 0, 0, 5, 0, 0, 0, 8, 0, 0, 0, 8];
    let images = folder.path().join("images-idx3-ubyte");
    fs::write(&images, [&header[..], &pixels].concat()).unwrap();
    let normalised = |pixel: &u8| (f32::from(*pixel) / 255.0 - 0.5) / 0.5;
    let values: Vec<f32> = pixels.iter().map(normalised).collect();
    assert_close(
        &computed(&graph, "images", &[5, 1, 8, 8], &values),
        &predicted(&state, &images),
    );

    let before = fs::read(&graph).unwrap();
    assert_refused(
        &export(&state, &graph, &[]),
        &["model.onnx", "is there already", "--force"],
    );
    let parameters = folder.path().join("model.safetensors");
    assert_refused(
        &export(&state, &parameters, &["--format", "onnx"]),
        &["model.safetensors", "let it end in .onnx"],
    );
    assert_refused(
        &export(
            &state,
            &folder.path().join("other.onnx"),
            &["--format", "safetensors"],
        ),
        &["other.onnx", "let it end in .safetensors"],
    );
    // A card that belongs to something else is not written over either.
    fs::write(folder.path().join("model.json"), "mine").unwrap();
    assert_refused(
        &export(&state, &parameters, &[]),
        &["model.json", "is there already"],
    );
    assert!(!parameters.exists());
    assert!(export(&state, &parameters, &["--force"]).status.success());
    assert!(export(&state, &graph, &["--force"]).status.success());
    assert_eq!(
        fs::read(&graph).unwrap(),
        before,
        "the same model is the same file"
    );
    // What was exported as parameters is exported as the same graph.
    let mut again = fednode();
    again.args(["export", "--json", "--model"]).arg(&parameters);
    let other = folder.path().join("again.onnx");
    again.arg("--out").arg(&other);
    json_of(&run(again));
    assert_close(
        &computed(&other, "images", &[5, 1, 8, 8], &values),
        &predicted(&state, &images),
    );
}

#[test]
fn the_default_on_raw_tables_treats_columns_as_predict_does() {
    let folder = tempfile::tempdir().unwrap();
    let table = |name: &str, n: usize, age: usize| {
        let row = |row: usize| {
            let years = age + row * 7 % 20;
            let kind = ["typical", "none", "other kind"][row * 5 % 3];
            let sick = usize::from(years > age + 10) + usize::from(kind == "none");
            let years = if row % 9 == 4 {
                "?".to_owned()
            } else {
                years.to_string()
            };
            let smokes = if row % 4 == 1 {
                ""
            } else {
                ["no", "yes"][row % 2]
            };
            format!("{years},{kind},{smokes},{}\n", usize::from(sick > 0))
        };
        let rows: String = (0..n).map(row).collect();
        let path = folder.path().join(name);
        fs::write(&path, format!("age,pain,smokes,sick\n{rows}")).unwrap();
        format!("csv:{},label=sick", path.display())
    };
    let sources = [table("north.csv", 120, 40), table("south.csv", 80, 55)];
    let federation = ["--own", &sources[0], "--own", &sources[1], "--rounds", "3"];
    let state = trained(&folder.path().join("run"), &federation);
    let graph = folder.path().join("model.onnx");
    json_of(&export(&state, &graph, &[]));

    let patients = folder.path().join("new.csv");
    let text = "smokes,pain,age\nyes,none,58\nno,typical,41.5\n,never heard,\nno,,400\n";
    fs::write(&patients, text).unwrap();
    // Levels have the order of the columns' description, which is beside the graph.
    let file = String::from_utf8_lossy(&fs::read(&graph).unwrap()).into_owned();
    let start = file.find("[{\"kind\"").unwrap();
    let columns: Json = serde_json::Deserializer::from_str(&file[start..])
        .into_iter()
        .next()
        .unwrap()
        .unwrap();
    let rows = [
        ["58", "none", "yes"],
        ["41.5", "typical", "no"],
        ["", "never heard", ""],
        ["400", "", "no"],
    ];
    let value = |column: &Json, cell: &str| match column["kind"].as_str().unwrap() {
        _ if cell.is_empty() => f32::NAN,
        "number" => cell.parse().unwrap(),
        "boolean" => f32::from(u8::from(cell == "yes")),
        _ => {
            let levels = column["levels"].as_array().unwrap();
            let level = levels.iter().position(|level| level == cell);
            level.unwrap_or(levels.len()) as f32
        }
    };
    let cell = |row: &[&str; 3], column: &Json| {
        let at = ["age", "pain", "smokes"]
            .iter()
            .position(|name| column["name"] == *name);
        value(column, row[at.unwrap()])
    };
    let columns = columns.as_array().unwrap();
    let values: Vec<f32> = rows
        .iter()
        .flat_map(|row| columns.iter().map(|column| cell(row, column)))
        .collect();
    assert_close(
        &computed(&graph, "columns", &[4, columns.len()], &values),
        &predicted(&state, &patients),
    );
}
