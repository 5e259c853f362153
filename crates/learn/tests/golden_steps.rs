//! Two local updates of every algorithm, held to the bits that were recorded when they were known to be right.
//!
//! The recorded file has, for every case and tensor, a hash of its numbers and their norm. Kernels round differently with
//! other vector instructions, so hashes belong to one kind of processor; on any other the norms are compared.
//! `UPDATE_GOLDEN=1` writes the file anew, for whoever changes a formula on purpose.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use common::{small_fashion, split};
use fednode_core::spec::Preset;
use fednode_core::{BlobRef, FederationSpec, HyperValue, NodeId, ParamSet, Round};
use fednode_learn::{ComputeDevice, GateSettings, Learner, PoolSettings, algorithm};
use serde::{Deserialize, Serialize};

/// How far a norm may be off on another kind of processor.
const TOLERANCE: f64 = 2e-2;

/// The hash and the norm of a tensor.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Print(String, f64);

/// Tensors by case and name.
type Prints = BTreeMap<String, BTreeMap<String, Print>>;

/// What was recorded, and on which kind of processor.
#[derive(Serialize, Deserialize)]
struct Recorded {
    processor: String,
    cases: Prints,
}

/// Returns the vector instructions that decide how sums are rounded.
fn processor() -> String {
    #[cfg(target_arch = "x86_64")]
    {
        if std::is_x86_feature_detected!("avx512f") {
            return "avx512f".into();
        }
        if std::is_x86_feature_detected!("avx2") {
            return "avx2".into();
        }
    }
    std::env::consts::ARCH.into()
}

fn spec(algorithm: &str, model: &str) -> FederationSpec {
    let mut spec = FederationSpec {
        algorithm: algorithm.into(),
        rounds: 9,
        ..FederationSpec::default()
    };
    spec.model.name = model.into();
    spec.fingerprints.input = [1, 7, 7];
    spec.model.experts = 2;
    (
        spec.training.learning_rate,
        spec.training.batch_size,
        spec.training.local_epochs,
    ) = (0.05, 16, 2);
    spec
}

fn with(mut spec: FederationSpec, hyper: &[(&str, &str)]) -> FederationSpec {
    spec.hyper.extend(
        hyper
            .iter()
            .map(|(key, value)| ((*key).to_owned(), value.parse::<HyperValue>().unwrap())),
    );
    algorithm::fill_exchange(&mut spec).unwrap();
    spec
}

/// Every row, then what a row alone does not show: other models, the other keys of `training`, the stages that follow.
fn cases() -> Vec<(String, FederationSpec)> {
    let row = |row: &algorithm::Row| (row.name.to_owned(), with(spec(row.name, "cnn"), &[]));
    let mut cases: Vec<_> = algorithm::TABLE.iter().map(row).collect();
    let mut add = |name: &str, spec| cases.push((name.to_owned(), spec));
    for model in ["lenet5", "mlp", "cnn-5"] {
        add(&format!("fedper {model}"), with(spec("fedper", model), &[]));
    }
    for name in ["fedavg", "fedbn", "fedper", "fedmoe-da", "scaffold"] {
        add(
            &format!("{name} resnet-8"),
            with(spec(name, "resnet-8"), &[]),
        );
    }
    for name in ["fedavg", "fedpac", "fedapen", "gpfl"] {
        let mut spec = spec(name, "mlp");
        spec.training.momentum = 0.5;
        spec.training.weight_decay = 0.01;
        spec.training.clip_norm = 1.0;
        add(&format!("{name} momentum"), with(spec, &[]));
    }
    let personal = [("profile", "personal"), ("load_balance", "0.1")];
    add(
        "fedmoe-da personal",
        with(spec("fedmoe-da", "cnn"), &personal),
    );
    add(
        "fedbabu head",
        with(
            spec("fedbabu", "cnn"),
            &[("fine_tuning", "head"), ("fine_tuning_epochs", "2")],
        ),
    );
    let stages = [
        ("personal_epochs", "2"),
        ("gate_epochs", "2"),
        ("finishing_batch_size", "8"),
    ];
    add("pfl-mf stages", with(spec("pfl-mf", "cnn"), &stages));
    add("pfl-mfe stages", with(spec("pfl-mfe", "cnn"), &stages));
    add(
        "fedjets experts",
        with(spec("fedjets", "cnn"), &[("common_rounds", "1")]),
    );
    let mut augmented = spec("fedavg", "cnn");
    augmented.training.augmentation = fednode_core::Augmentation::CropFlip;
    add("fedavg crop-flip", with(augmented, &[]));
    let mut statistics = spec("fedavg", "cnn");
    statistics.statistics.enabled = true;
    statistics.rounds = 2;
    add("fedavg statistics", with(statistics, &[]));
    for name in ["fedper", "lg-fedavg", "dbe", "fedmoe-da"] {
        let mut spec = spec(name, "cnn");
        spec.pool.preset = Some(Preset::Fixed);
        add(&format!("{name} pool"), with(spec, &[]));
    }
    cases
}

fn pool() -> PoolSettings {
    let fixed = PoolSettings::preset(Preset::Fixed);
    PoolSettings {
        epochs: 2,
        batch_size: 16,
        gate: GateSettings {
            dropout: 0.25,
            ..fixed.gate
        },
        guard: false,
        ..fixed
    }
}

/// Trains two rounds and does what follows them; returns the state.
fn learned(spec: &FederationSpec) -> ParamSet {
    let samples = small_fashion();
    let device = ComputeDevice::cpu(1).unwrap();
    let mut learner = Learner::new(spec, 3, split(&samples, 70), &device).unwrap();
    let watch = &mut |_| ControlFlow::Continue(());
    for round in 1..=2 {
        let update = learner.local_update(Round(round), watch).unwrap();
        learner.adopt(update.shared, Vec::new()).unwrap();
    }
    learner.finish(Round(2), watch).unwrap();
    if spec.pool.is_enabled() {
        let pool = pool();
        learner.fine_tune_module(&pool, watch).unwrap();
        let mut other = Learner::new(spec, 4, split(&samples, 40), &device).unwrap();
        other.local_update(Round(1), watch).unwrap();
        let foreign = (NodeId::from_bytes([7; 32]), other.module().unwrap().params);
        learner.assemble_pool(&pool, vec![foreign], watch).unwrap();
    }
    learner.state()
}

fn prints(state: &ParamSet) -> BTreeMap<String, Print> {
    let one = |(name, tensor): (&str, &fednode_core::Tensor)| {
        let bytes: Vec<u8> = tensor
            .values()
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        let square: f64 = tensor
            .values()
            .iter()
            .map(|value| f64::from(*value).powi(2))
            .sum();
        let hash = BlobRef::of(&bytes).id.to_string();
        (
            name.to_owned(),
            Print(hash[..16].to_owned(), (square.sqrt() * 1e9).round() / 1e9),
        )
    };
    state.iter().map(one).collect()
}

fn path() -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/steps.json")
}

#[track_caller]
fn compare(
    case: &str,
    got: &BTreeMap<String, Print>,
    expected: &BTreeMap<String, Print>,
    exact: bool,
) {
    assert!(
        got.keys().eq(expected.keys()),
        "{case}: tensors {:?}, recorded {:?}",
        got.keys(),
        expected.keys()
    );
    for (name, print) in got {
        let recorded = &expected[name];
        let is_same = if exact {
            print.0 == recorded.0
        } else {
            (print.1 - recorded.1).abs() <= TOLERANCE * recorded.1.max(1.0)
        };
        assert!(
            is_same,
            "{case}: `{name}` is {print:?}, recorded {recorded:?}"
        );
    }
}

#[test]
fn two_local_updates_of_every_algorithm_are_those_that_were_recorded() {
    let got: Prints = cases()
        .iter()
        .map(|(name, spec)| (name.clone(), prints(&learned(spec))))
        .collect();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        let recorded = Recorded {
            processor: processor(),
            cases: got,
        };
        let text = serde_json::to_string_pretty(&recorded).unwrap();
        std::fs::write(path(), text + "\n").unwrap();
        return;
    }
    let recorded: Recorded = serde_json::from_slice(&std::fs::read(path()).unwrap()).unwrap();
    let exact = recorded.processor == processor();
    for (case, prints) in &recorded.cases {
        compare(case, &got[case], prints, exact);
    }
    assert!(
        got.keys().eq(recorded.cases.keys()),
        "not recorded yet: {:?}",
        got.keys()
            .filter(|case| !recorded.cases.contains_key(*case))
            .collect::<Vec<_>>()
    );
}
