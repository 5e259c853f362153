//! A frozen network in front of every model: images go through it once, live and simulated, and everything learns from
//! its features.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use fednode_e2e::{assert_fails, fednode, json_of, run};
use serde_json::Value;

/// Of the crate's golden files: `identity` hands out the pixels, three channels of any size.
fn onnx(name: &str) -> PathBuf {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
    crates.join(format!("backbone/tests/data/{name}.onnx"))
}

/// Pixels of the 8x8 digits as they are, from 0 to 1, in each of three channels.
fn pixels() -> String {
    format!("{},size=8x8,mean=0,scale=1", onnx("identity").display())
}

/// A command whose features are kept in a folder of the test.
fn command(folder: &Path, words: &[&str]) -> Command {
    let mut command = fednode();
    command
        .env("XDG_CACHE_HOME", folder.join("cache"))
        .args(words);
    command
}

fn federation(folder: &Path, name: &str, more: &[&str]) -> Output {
    let backbone = pixels();
    let words = ["--json", "--device", "cpu", "--nodes", "2", "--rounds", "2"];
    let mut command = command(folder, &[name]);
    command
        .args(words)
        .args(["--samples-per-node", "200", "--backbone", &backbone])
        .args(["--out"])
        .arg(folder.join(name))
        .args(more);
    run(command)
}

/// Returns the sizes of the files in which features are kept.
fn kept(folder: &Path) -> Vec<u64> {
    let keys = std::fs::read_dir(folder.join("cache/fednode/features")).unwrap();
    let files = keys.flat_map(|key| std::fs::read_dir(key.unwrap().path()).unwrap());
    files
        .map(|file| file.unwrap().metadata().unwrap().len())
        .collect()
}

/// Returns the accuracy of an evaluation.
fn accuracy(answer: &Value) -> f64 {
    answer["score"]["accuracy"].as_f64().unwrap()
}

#[test]
fn images_become_features_live_and_simulated() {
    let folder = tempfile::tempdir().unwrap();
    let live = json_of(&federation(folder.path(), "swarm", &[]));
    let spec = &live["effective_config"]["federation"];
    assert_eq!(
        spec["fingerprints"]["input"],
        serde_json::json!([1, 1, 192])
    );
    assert_eq!(spec["model"]["backbone"]["size"], serde_json::json!([8, 8]));
    let of = |key: &str| live[key].as_f64().unwrap();
    assert!(of("served") > of("majority_class_accuracy") + 0.3, "{live}");
    // Two nodes of 200 images, once each: 32 + 4 · 192 + 8 bytes a row.
    let rows = kept(folder.path()).iter().sum::<u64>() / 808;
    assert!(
        (398..=400).contains(&rows),
        "{rows} rows: each image once, equal ones perhaps twice"
    );

    let before = kept(folder.path());
    let simulated = json_of(&federation(folder.path(), "simulate", &["--control"]));
    assert_eq!(kept(folder.path()), before, "nothing was computed again");
    let difference = simulated["served"].as_f64().unwrap() - of("served");
    assert!(difference.abs() < 0.1, "live {live}, simulated {simulated}");

    // What the node knows of its backbone is enough to evaluate it and to predict.
    let state = folder.path().join("swarm/nodes/1/state");
    let state = state.to_str().unwrap();
    let own = ["evaluate", "--json", "--state", state];
    let evaluated = json_of(&run(command(folder.path(), &own)));
    let node = live["per_node"][0]["accuracy"].as_f64().unwrap();
    assert!(
        (accuracy(&evaluated) - node).abs() < 1e-9,
        "{evaluated} {node}"
    );
    let all = ["evaluate", "--json", "--state", state, "--data", "digits"];
    let all = json_of(&run(command(folder.path(), &all)));
    assert!(
        accuracy(&all) > 0.5 && all["score"]["n_samples"] == 1797,
        "{all}"
    );
}

#[test]
fn images_of_any_size_are_predicted() {
    let folder = tempfile::tempdir().unwrap();
    let images = folder.path().join("images");
    let picture = |width, height, colour: [u8; 3]| {
        image::RgbImage::from_pixel(width, height, image::Rgb(colour))
    };
    for (class, [red, blue]) in [("red", [180, 20]), ("blue", [20, 180])] {
        std::fs::create_dir_all(images.join(class)).unwrap();
        for number in 0..20_u8 {
            let picture = picture(12, 10, [red + number, 40, blue + number]);
            let path = images.join(class).join(format!("{number:02}.png"));
            picture.save(path).unwrap();
        }
    }
    let data = format!("folder:{}", images.display());
    let trained = federation(
        folder.path(),
        "swarm",
        &[
            "--data",
            &data,
            "--samples-per-node",
            "20",
            "--partition",
            "iid",
        ],
    );
    json_of(&trained);
    let (red, blue) = (folder.path().join("a.png"), folder.path().join("b.png"));
    picture(31, 40, [190, 30, 30]).save(&red).unwrap();
    picture(9, 9, [30, 30, 150]).save(&blue).unwrap();
    let state = folder.path().join("swarm/nodes/2/state");
    let mut predict = command(folder.path(), &["predict", "--json", "--state"]);
    predict.arg(&state).args([red, blue]);
    let predicted = json_of(&run(predict));
    let names: Vec<&str> = predicted
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["red", "blue"]);

    let table = folder.path().join("t.csv");
    std::fs::write(&table, "a,b\n1,2\n").unwrap();
    let mut predict = command(folder.path(), &["predict", "--state"]);
    predict.arg(&state).arg(table);
    assert_fails(
        &run(predict),
        4,
        &["is a table, and the model takes images"],
    );
}

#[test]
fn another_file_or_none_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("home");
    let mut init = command(folder.path(), &["init"]);
    init.arg(&home)
        .args(["--nodes", "2", "--backbone", &pixels()]);
    json_of(&run({
        init.arg("--json");
        init
    }));
    let node = home.join("node.toml");
    let settings = std::fs::read_to_string(&node).unwrap();
    assert!(settings.contains("identity.onnx"), "{settings}");
    let start = |more: &[&str]| {
        let mut start = command(folder.path(), &["start", "--config"]);
        start.arg(&node).args(more);
        run(start)
    };
    let doctor = || {
        let mut doctor = command(folder.path(), &["doctor", "--config"]);
        doctor.arg(&node);
        let output = run(doctor);
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let healthy = doctor();
    assert!(healthy.contains("192 features of an image"), "{healthy}");
    let other = onnx("layout");
    let other = start(&["--backbone", other.to_str().unwrap()]);
    assert_fails(&other, 3, &["layout.onnx"]);
    let none = settings.replace("identity.onnx", "nowhere.onnx");
    std::fs::write(&node, none).unwrap();
    assert_fails(&start(&[]), 3, &["nowhere.onnx"]);
    let ill = doctor();
    let line = ill.lines().find(|line| line.contains("nowhere.onnx"));
    assert!(
        line.is_some_and(|line| line.starts_with("fail  backbone")),
        "{ill}"
    );
    let without: String = settings
        .lines()
        .filter(|line| !line.starts_with("backbone"))
        .map(|line| format!("{line}\n"))
        .collect();
    std::fs::write(&node, without).unwrap();
    assert_fails(&start(&[]), 3, &["name it with --backbone"]);

    let simulate = |backbone: &str, data: &str| {
        let mut simulate = command(folder.path(), &["simulate", "--nodes", "2", "--data", data]);
        simulate.args(["--backbone", backbone]);
        run(simulate)
    };
    let hostile = onnx("bad-cycle");
    assert_fails(
        &simulate(hostile.to_str().unwrap(), "digits"),
        3,
        &["bad-cycle.onnx"],
    );
    let table = folder.path().join("t.csv");
    std::fs::write(&table, "a,label\n1.5,0\n2.5,1\n".repeat(9)).unwrap();
    let table = format!("csv:{}", table.display());
    assert_fails(&simulate(&pixels(), &table), 3, &["these data are none"]);
    let typed = simulate("x.onnx,sise=3", "digits");
    assert_eq!(typed.status.code(), Some(2));
    let said = String::from_utf8_lossy(&typed.stderr).into_owned();
    assert!(said.contains("unknown option `sise`"), "{said}");
}
