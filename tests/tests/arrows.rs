//! The drawing and the house agree: who may depend on whom, and under which licences.
//!
//! Read from `cargo metadata`, so nothing but cargo is needed. ARCHITECTURE.md, "Crates", is the drawing.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

fn metadata(arguments: &[&str]) -> Value {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml");
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--format-version",
            "1",
            "--locked",
            "--manifest-path",
            manifest,
        ])
        .args(arguments)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

/// All packages that are built here: those of other platforms may never have been fetched.
fn everything() -> Value {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).arg("-vV").output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let host = said
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .unwrap();
    metadata(&["--filter-platform", host])
}

/// The ordinary and build dependencies of every workspace member, by name.
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let metadata = metadata(&["--no-deps"]);
    let packages = metadata["packages"].as_array().unwrap();
    let name = |package: &Value| package["name"].as_str().unwrap().to_owned();
    let used = |package: &Value| {
        let all = package["dependencies"].as_array().unwrap().iter();
        all.filter(|dependency| dependency["kind"] != "dev")
            .map(name)
            .collect()
    };
    packages
        .iter()
        .map(|package| (name(package), used(package)))
        .collect()
}

#[test]
fn only_the_drawn_arrows_exist() {
    let drawn: BTreeMap<&str, &[&str]> = [
        ("fednode-config", &[] as &[&str]),
        ("fednode-core", &["config"]),
        ("fednode-mix", &["core", "privacy"]),
        ("fednode-data", &["config", "core"]),
        ("fednode-files", &[]),
        ("fednode-kernels", &[]),
        ("fednode-measure", &[]),
        ("fednode-privacy", &[]),
        ("fednode-masked", &["core"]),
        ("fednode-backbone", &[]),
        ("fednode-onnx", &[]),
        ("fednode-serve", &[]),
        ("fednode-store", &["core"]),
        ("fednode-net", &["core", "files"]),
        ("fednode-engine", &["core", "masked", "mix"]),
        ("fednode-sim", &["core", "masked", "mix", "engine"]),
        (
            "fednode-learn",
            &[
                "core", "mix", "data", "kernels", "measure", "onnx", "privacy",
            ],
        ),
        (
            "fednode-runtime",
            &[
                "core", "files", "masked", "mix", "privacy", "engine", "store", "net",
            ],
        ),
        ("fednode-page", &["core", "runtime"]),
        (
            "fednode-cli",
            &[
                "backbone", "config", "core", "data", "learn", "measure", "net", "page", "runtime",
            ],
        ),
        (
            "fednode-lab",
            &[
                "cli", "config", "core", "data", "engine", "learn", "measure", "net", "page",
                "runtime", "sim",
            ],
        ),
        (
            "fednode",
            &[
                "cli", "config", "core", "data", "engine", "files", "lab", "learn", "measure",
                "net", "page", "runtime", "serve", "store",
            ],
        ),
        ("fedboot", &["config", "core", "net", "page", "runtime"]),
    ]
    .into();
    let actual = dependencies();
    let undrawn: Vec<&String> = actual
        .keys()
        .filter(|name| name.starts_with("fed") && !drawn.contains_key(name.as_str()))
        .filter(|name| *name != "fednode-e2e")
        .collect();
    assert!(
        undrawn.is_empty(),
        "{undrawn:?} are not drawn in ARCHITECTURE.md"
    );
    for (package, allowed) in drawn {
        let allowed: BTreeSet<String> = allowed
            .iter()
            .map(|name| format!("fednode-{name}"))
            .collect();
        let own = actual[package]
            .iter()
            .filter(|name| name.starts_with("fednode"));
        let extra: Vec<&String> = own.filter(|name| !allowed.contains(*name)).collect();
        assert!(
            extra.is_empty(),
            "{package} uses {extra:?}, which ARCHITECTURE.md does not allow"
        );
    }
}

#[test]
fn each_heavy_library_lives_in_one_crate() {
    let homes = [
        ("burn", "fednode-learn"),
        ("pulp", "fednode-kernels"),
        ("parquet", "fednode-data"),
        ("rten", "fednode-backbone"),
        ("libp2p", "fednode-net"),
        ("serde_cbor", "fednode-net"),
        ("rusqlite", "fednode-store"),
    ];
    for (package, used) in dependencies() {
        for (library, home) in homes {
            let uses = used
                .iter()
                .any(|name| name == library || name.starts_with(&format!("{library}-")));
            assert!(
                !uses || package == home,
                "{package} depends on {library}, which lives in {home}"
            );
        }
    }
}

#[test]
fn the_pure_crates_have_no_machinery() {
    let actual = dependencies();
    for package in [
        "fednode-config",
        "fednode-core",
        "fednode-mix",
        "fednode-measure",
        "fednode-privacy",
        "fednode-masked",
        "fednode-engine",
        "fednode-sim",
    ] {
        for machinery in [
            "tokio", "futures", "burn", "libp2p", "rusqlite", "axum", "rayon",
        ] {
            assert!(
                !actual[package].contains(machinery),
                "{package} depends on {machinery}"
            );
        }
    }
    let kernels = ["pulp", "rayon"].map(str::to_owned).into();
    assert_eq!(
        actual["fednode-kernels"], kernels,
        "the inner loops need instructions and threads, nothing else"
    );
    let backbone = ["blake3", "rten", "thiserror"].map(str::to_owned).into();
    let foreign = ["burn", "libp2p", "csv", "image"];
    for library in foreign {
        assert!(
            !actual["fednode-serve"].contains(library),
            "fednode-serve depends on {library}"
        );
    }
    assert_eq!(
        actual["fednode-backbone"], backbone,
        "a reader of hostile files needs a hash, a runtime and errors, nothing else"
    );
}

fn read(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    std::fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The crates that read no clock and draw nothing by themselves, by the first of ARCHITECTURE.md's invariants of absence.
fn deterministic() -> BTreeSet<String> {
    let text = read("ARCHITECTURE.md");
    let (_, invariants) = text.split_once("### Invariants of absence").unwrap();
    let (listed, _) = invariants.split_once("read no clock").unwrap();
    let names = listed.split('`').skip(1).step_by(2);
    let bare = |name: &str| name.rsplit('-').next().unwrap().to_owned();
    names.map(bare).collect()
}

/// The methods that a `clippy.toml` forbids.
fn forbidden(path: &str) -> BTreeSet<String> {
    let text = read(path);
    let entries = text.lines().filter(|line| !line.starts_with('#'));
    let paths = entries.filter_map(|line| line.split_once("path = \"")?.1.split_once('"'));
    paths.map(|(path, _)| path.to_owned()).collect()
}

#[test]
fn lints_forbid_clocks_chance_and_endless_queues_where_runs_must_replay() {
    let everywhere = [
        "tokio::sync::mpsc::unbounded_channel",
        "futures::channel::mpsc::unbounded",
        "std::sync::mpsc::channel",
        "rand::rng",
        "rand::random",
    ];
    let in_pure_crates = [
        "std::time::Instant::now",
        "std::time::SystemTime::now",
        "std::thread::spawn",
        "std::thread::sleep",
    ];
    let holds = |file: &str, bans: &[&str]| {
        let forbidden = forbidden(file);
        let allowed = bans.iter().filter(|ban| !forbidden.contains(**ban));
        let allowed: Vec<&&str> = allowed.collect();
        assert!(allowed.is_empty(), "{file} allows {allowed:?}");
    };
    holds("clippy.toml", &everywhere);
    let deterministic = deterministic();
    for name in ["config", "core", "mix", "engine", "sim"] {
        assert!(deterministic.contains(name), "{deterministic:?}");
    }
    for name in &deterministic {
        // It takes the place of the one at the root.
        let file = format!("crates/{name}/clippy.toml");
        holds(&file, &[&everywhere[..], &in_pure_crates[..]].concat());
    }
}

#[test]
fn a_writer_of_graphs_computes_nothing() {
    let onnx = ["thiserror"].map(str::to_owned).into();
    assert_eq!(dependencies()["fednode-onnx"], onnx);
}

#[test]
fn the_bootstrap_has_no_tensors_and_no_laboratory() {
    let metadata = everything();
    let nodes = metadata["resolve"]["nodes"].as_array().unwrap();
    let by_id: BTreeMap<&str, &Value> = nodes
        .iter()
        .map(|node| (node["id"].as_str().unwrap(), node))
        .collect();
    let root = by_id.keys().find(|id| id.contains("/bootstrap#")).unwrap();
    let (mut open, mut seen) = (vec![*root], BTreeSet::new());
    while let Some(id) = open.pop() {
        if seen.insert(id) {
            open.extend(
                by_id[id]["deps"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .filter(|dep| is_ordinary(dep))
                    .map(|dep| dep["pkg"].as_str().unwrap()),
            );
        }
    }
    let foreign = ["burn", "cubecl", "/crates/lab#", "/crates/sim#"];
    let reached: Vec<&&str> = seen
        .iter()
        .filter(|id| foreign.iter().any(|part| id.contains(part)))
        .collect();
    assert!(reached.is_empty(), "fedboot reaches {reached:?}");
}

fn is_ordinary(dependency: &Value) -> bool {
    dependency["dep_kinds"]
        .as_array()
        .unwrap()
        .iter()
        .any(|kind| kind["kind"].is_null())
}

/// Licences that ask for nothing but attribution, or (MPL, CDLA) only concern their own files.
const LICENCES: [&str; 16] = [
    "MIT",
    "MIT-0",
    "Apache-2.0",
    "BSD-1-Clause",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Zlib",
    "0BSD",
    "CC0-1.0",
    "Unlicense",
    "Unicode-3.0",
    "BSL-1.0",
    "MPL-2.0",
    "CDLA-Permissive-2.0",
    "NCSA",
];

/// Packages whose licence is only a text.
const READ_LICENCES: [(&str, &str); 1] = [("cfg_block", "Apache-2.0")];

#[test]
fn every_dependency_has_a_licence_we_can_ship() {
    let metadata = everything();
    let mut refused = Vec::new();
    for package in metadata["packages"].as_array().unwrap() {
        // A package that states no expression ships a text, which somebody has read.
        let read = READ_LICENCES
            .iter()
            .find(|(name, _)| package["name"] == *name)
            .map(|(_, licence)| *licence);
        let licence = package["license"]
            .as_str()
            .or(read)
            .unwrap_or("none stated");
        if !is_acceptable(licence) {
            refused.push(format!(
                "{} {}: {licence}",
                package["name"], package["version"]
            ));
        }
    }
    assert!(refused.is_empty(), "{refused:#?}");
}

/// Every `AND` part must have an acceptable `OR` part.
fn is_acceptable(expression: &str) -> bool {
    let plain = expression.replace(['(', ')'], " ").replace('/', " OR ");
    let known =
        |word: &str| LICENCES.contains(&word.trim().split(" WITH ").next().unwrap_or_default());
    plain
        .split(" AND ")
        .all(|part| part.split(" OR ").any(known))
}
