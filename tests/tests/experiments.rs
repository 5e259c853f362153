//! The files in `experiments`: each can be started. Their runs take hours; that a setting is wrong shows at once.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use fednode_e2e::{fednode, run};
use serde_json::Value;

/// Writes a data set of the shape and size of Fashion-MNIST: 60,000 and 10,000 black images of ten classes.
fn write_images(folder: &Path) {
    for (name, count) in [("train", 60_000_u32), ("t10k", 10_000)] {
        let header = |magic: u32, sides: &[u32]| -> Vec<u8> {
            [&[magic, count], sides]
                .concat()
                .into_iter()
                .flat_map(u32::to_be_bytes)
                .collect()
        };
        let mut images = header(0x0803, &[28, 28]);
        images.resize(images.len() + count as usize * 28 * 28, 0);
        fs::write(folder.join(format!("{name}-images-idx3-ubyte")), images).unwrap();
        let labels = (0..count).map(|at| (at % 10) as u8);
        let labels: Vec<u8> = header(0x0801, &[]).into_iter().chain(labels).collect();
        fs::write(folder.join(format!("{name}-labels-idx1-ubyte")), labels).unwrap();
    }
}

/// Writes as many texts of ten classes as an experiment of texts takes.
fn write_texts(file: &Path) {
    let rows = (0..6_000).map(|at| format!("c{},some words and word{at}\n", at % 10));
    fs::write(file, rows.collect::<String>()).unwrap();
}

fn experiments() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../experiments");
    let paths = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    paths
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "toml")
        })
        .collect()
}

#[test]
fn every_experiment_can_be_started() {
    let folder = tempfile::tempdir().unwrap();
    write_images(folder.path());
    let texts = folder.path().join("texts.csv");
    write_texts(&texts);
    let texts = format!("text:{}", texts.display());
    let data = format!("mnist:{}", folder.path().display());
    let (mut started, mut runs) = (BTreeSet::new(), 0);
    for path in experiments() {
        let mut command = fednode();
        command
            .args(["simulate", "--dry-run", "--json", "--seeds", "1"])
            .arg(&path);
        command.arg("--out").arg(folder.path().join("runs"));
        let experiment = fs::read_to_string(&path).unwrap();
        if experiment.contains("data = \"text:") {
            command.args(["--data", &texts]);
        } else if !experiment.contains("toy_floats = 0") {
            command.args(["--data", &data]);
        }
        let output = run(command);
        let error = String::from_utf8_lossy(&output.stderr);
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        if name == "fedmoe-da-embedding" {
            // What it starts from is made first, by a command that the file names.
            assert_eq!(output.status.code(), Some(3), "{error}");
            assert!(error.contains("pretrained/models/1.safetensors"), "{error}");
            continue;
        }
        assert!(output.status.success(), "{name}: {error}");
        let listing: Value = serde_json::from_slice(&output.stdout).unwrap();
        let listed = listing["runs"].as_array().unwrap();
        assert!(
            listed.iter().all(|run| run["state"] == "to-do"),
            "{listed:?}"
        );
        runs += listed.len();
        started.insert(name);
    }
    assert!(
        started.contains("pfedmoe") && started.contains("rivals") && runs > 200,
        "{runs} runs of {started:?}"
    );
    assert!(!folder.path().join("runs").exists(), "nothing was run");
}
