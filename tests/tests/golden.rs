//! Golden results of seeded simulations: one algorithm of each kind, pool, statistics, partial participation, other
//! partitions, 16-bit transfer, robust aggregation, epochs ahead, no aggregator.
//!
//! A redesign that is meant to change no result must leave all of them as they are, to the last bit. Floating-point
//! sums depend on the processor's instruction set, so the file keeps exact hashes for each kind of processor. A case that
//! was not recorded on this kind is compared by its accuracy with that of another kind, within [`TOLERANCE`].
//!
//! ```text
//! FEDNODE_GOLDEN=write cargo test -p fednode-e2e --test golden     records the results of this processor's kind
//! ```
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use fednode_core::BlobId;
use fednode_e2e::{fednode, json_of, run};
use serde_json::{Value, json};

/// Largest difference of a mean accuracy between two kinds of processors. Rounding differs, and training amplifies it.
const TOLERANCE: f64 = 0.05;

/// What is simulated: a name, and the flags beside those of [`COMMON`].
const CASES: &[(&str, &str)] = &[
    ("fedmoe-da", "--algorithm fedmoe-da --set profile=paper"),
    (
        "fedmoe-da-f16",
        "--algorithm fedmoe-da --set profile=personal --set max_distance=0 --set transfer.precision=f16 --set hyper.aggregation=mean",
    ),
    (
        "fedmoe-da-ahead",
        "--algorithm fedmoe-da --set training.ahead_epochs=1 --no-aggregator",
    ),
    (
        "fedavg",
        "--algorithm fedavg --partition pathological:3 --set hyper.aggregation=mean",
    ),
    (
        "fedavg-clipped",
        "--algorithm fedavg --partition dirichlet:0.3+sizes:5",
    ),
    (
        "fedavg-median",
        "--algorithm fedavg --set hyper.aggregation=median",
    ),
    (
        "scaffold-participation",
        "--algorithm scaffold --set round.participation=0.5 --rounds 5 --set hyper.aggregation=mean",
    ),
    (
        "fedper-pool",
        "--algorithm fedper --pool --set hyper.aggregation=mean",
    ),
    (
        "fedrep-statistics",
        "--algorithm fedrep --set statistics.enabled=true --set hyper.aggregation=mean",
    ),
    (
        "random-statistics",
        "--algorithm fedper --set statistics.enabled=true --set statistics.features=random --set hyper.aggregation=mean",
    ),
    ("fedpac", "--algorithm fedpac --set own_head=free"),
    ("fedgh", "--algorithm fedgh --partition iid"),
    ("fedgen", "--algorithm fedgen"),
    ("fedjets", "--algorithm fedjets --set common_rounds=1"),
    ("pfl-mfe", "--algorithm pfl-mfe"),
    ("fd-two-models", "--algorithm fd --model cnn --model lenet5"),
    ("dbe", "--algorithm dbe --set hyper.aggregation=mean"),
    (
        "pfedmoe",
        "--algorithm pfedmoe --set hyper.aggregation=mean",
    ),
    (
        "fedbabu-fine-tuned",
        "--algorithm fedbabu --set fine_tuning_epochs=2 --set hyper.aggregation=mean",
    ),
    ("fedfomo", "--algorithm fedfomo --set peers_per_expert=2"),
    ("dflmoe", "--algorithm dflmoe --set mixture_epochs=2"),
];
const COMMON: &str =
    "--nodes 5 --rounds 3 --seed 7 --local-epochs 1 --samples-per-node 120 --threads 2";

/// What of a round's record must not change; the rest depends on the clock or on the machine.
const KEYS: &[&str] = &[
    "round",
    "node_id",
    "closed_by",
    "members",
    "train_loss",
    "n_samples",
    "expert_share",
    "multiply_adds",
    "n_sources_used",
    "mixed",
    "accuracy_after_local_training",
    "loss_after_local_training",
    "validation_after_local_training",
    "accuracy",
    "loss",
    "validation",
    "test_samples",
    "test_expert_share",
    "bytes_sent",
    "bytes_received",
];

#[test]
fn seeded_simulations_give_their_golden_results() {
    let folder = tempfile::tempdir().unwrap();
    let results: BTreeMap<&str, Value> = CASES
        .iter()
        .map(|(name, flags)| (*name, simulate(&folder.path().join(name), flags)))
        .collect();
    let mut golden = read();
    if std::env::var("FEDNODE_GOLDEN").as_deref() == Ok("write") {
        golden.insert(processor().to_owned(), json!(results));
        std::fs::write(
            path(),
            serde_json::to_string_pretty(&golden).unwrap() + "\n",
        )
        .unwrap();
        return;
    }
    let differences: Vec<String> = results
        .iter()
        .filter_map(|(name, found)| difference(&golden, name, found))
        .collect();
    assert!(
        differences.is_empty(),
        "results have changed:\n{}",
        differences.join("\n")
    );
}

/// Compares a result exactly with that of this processor's kind. One that was recorded on other kinds alone is compared
/// within the tolerance.
fn difference(golden: &BTreeMap<String, Value>, name: &str, found: &Value) -> Option<String> {
    let exact = golden.get(processor()).and_then(|kind| kind.get(name));
    let near = || golden.values().find_map(|kind| kind.get(name));
    let (expected, agrees) = match exact {
        Some(expected) => (expected, expected == found),
        None => {
            let expected = near().expect("some kind of processor has each case");
            (expected, is_near(expected, found))
        }
    };
    (!agrees).then(|| format!("{name}: expected {expected}, found {found}"))
}

fn is_near(expected: &Value, found: &Value) -> bool {
    let accuracy = |result: &Value| result["mean_accuracy"].as_f64().unwrap();
    (accuracy(expected) - accuracy(found)).abs() <= TOLERANCE
}

/// Plays one simulation and returns hashes of its records and of everything that the nodes learned.
fn simulate(out: &Path, flags: &str) -> Value {
    let mut command = fednode();
    command
        .args(["simulate", "--json", "--data", "digits", "--out"])
        .arg(out)
        .args(arguments(flags));
    let summary = json_of(&run(command));
    let per_node = summary["per_node"].as_array().unwrap();
    let of_nodes = |key: &str| -> Vec<&Value> { per_node.iter().map(|node| &node[key]).collect() };
    json!({
        "mean_accuracy": summary["mean_accuracy"],
        "records": hash(&records(out)),
        "last_stage": hash(&json!([of_nodes("accuracy_after_finishing"), of_nodes("pool")])),
        "parameters": hash(&json!(of_nodes("parameters_hash"))),
    })
}

/// Joins the common flags with a case's own, which replace common ones of the same name.
fn arguments(flags: &str) -> Vec<String> {
    let words: Vec<&str> = COMMON.split(' ').collect();
    let common = words
        .chunks(2)
        .filter(|pair| !flags.split(' ').any(|flag| flag == pair[0]))
        .flatten();
    common
        .copied()
        .chain(flags.split(' '))
        .map(str::to_owned)
        .collect()
}

fn records(out: &Path) -> Value {
    let text = std::fs::read_to_string(out.join("metrics.jsonl")).unwrap();
    let stable = |line: &str| -> Value {
        let record: Value = serde_json::from_str(line).unwrap();
        KEYS.iter().map(|key| record[*key].clone()).collect()
    };
    text.lines().map(stable).collect()
}

fn hash(value: &Value) -> String {
    BlobId::of(value.to_string().as_bytes()).to_string()
}

/// Returns the kind of this processor, as far as it decides how sums are rounded.
fn processor() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            "x86-64 with AVX-512"
        } else if is_x86_feature_detected!("fma") {
            "x86-64 with FMA"
        } else {
            "x86-64"
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        std::env::consts::ARCH
    }
}

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden/simulations.json")
}

fn read() -> BTreeMap<String, Value> {
    let text = std::fs::read_to_string(path()).unwrap_or_else(|_| "{}".into());
    serde_json::from_str(&text).unwrap()
}
