//! A real file of version 1, as `fednode init` wrote it, and what version 2 makes of it.
#![allow(clippy::unwrap_used)]

use fednode_core::FederationSpec;
use fednode_core::spec::{Preset, StatisticsGate};

/// `fednode init --data digits --nodes 4 --rounds 6 --algorithm fedper --pool=code --set pool.epochs=3 --set
/// statistics.gate=sample --set training.learning_rate=0.1`.
const FILE: &str = include_str!("data/version1.toml");

fn read(text: &str) -> FederationSpec {
    FederationSpec::from_toml(text).unwrap()
}

#[test]
fn a_file_of_version_1_is_read_and_said_to_be_one() {
    let reading = FederationSpec::read(FILE).unwrap();
    let notice = reading.notice.unwrap();
    assert!(
        notice.contains("version 1") && !notice.contains('\n'),
        "{notice}"
    );
    let spec = reading.spec;
    assert_eq!((spec.version, spec.rounds, spec.nodes), (2, 6, 4));
    assert_eq!(spec.training.learning_rate, 0.1);
    assert_eq!(spec.statistics.gate, StatisticsGate::Sample);
    let pool = &spec.pool;
    assert_eq!((pool.preset, pool.epochs), (Some(Preset::Code), Some(3)));
    assert_eq!(
        (pool.guard, pool.fine_tune, pool.max_members),
        (None, None, 20)
    );
    assert_eq!(spec.partition_hash().len(), 64);
    assert_eq!(spec.fingerprints.class_names.len(), 10);
    assert_eq!(
        (
            spec.fingerprints.initial,
            spec.fingerprints.vocabulary.clone()
        ),
        (None, None)
    );
    assert_eq!(spec.exchange.averaging.clone().unwrap().rule.name(), "mean");
    let again = FederationSpec::read(&spec.to_toml()).unwrap();
    assert_eq!((again.spec, again.notice), (spec, None));
}

/// The cards of exported models hold their federation's spec.
#[test]
fn the_json_of_either_version_is_read() {
    let table: toml::Table = FILE.parse().unwrap();
    let spec = FederationSpec::from_json(serde_json::to_value(table).unwrap()).unwrap();
    assert_eq!(spec, read(FILE));
    let again = FederationSpec::from_json(serde_json::to_value(&spec).unwrap()).unwrap();
    assert_eq!(again, spec);
    let error = FederationSpec::from_json(serde_json::json!({ "round": 3 })).unwrap_err();
    assert!(error.0.contains("round"), "{error}");
}

#[test]
fn every_preset_of_version_1_is_recognised_by_its_numbers() {
    let pool = |keys: &str| read(&format!("[pool]\nenabled = true\n{keys}")).pool;
    assert_eq!(pool("").preset, Some(Preset::Fixed));
    let best = pool("fine_tune = true\nguard = false");
    assert_eq!(
        (best.preset, best.fine_tune, best.guard),
        (Some(Preset::Best), None, Some(false))
    );
    let paper = "renormalize = \"never\"\nbatch_size = 10\nstandardize = false\n\
                 learning_rates = [0.5]\ngate_input = \"samples\"\nguard = false";
    let paper = pool(paper);
    assert_eq!(
        (paper.preset, paper.epochs, paper.guard),
        (Some(Preset::Paper), None, None)
    );
    let off = read("[pool]\nenabled = false\ndrop_share = 0.7");
    assert!(
        !off.pool.is_enabled(),
        "numbers of a stage that there is not say nothing"
    );
}

#[test]
fn what_version_2_cannot_express_is_refused_with_what_to_do() {
    let error = FederationSpec::from_toml("[pool]\nenabled = true\ndrop_share = 0.7").unwrap_err();
    assert!(
        error.0.starts_with("`pool.drop_share` is of version 1") && error.0.contains("pool.preset"),
        "{error}"
    );
    let error = FederationSpec::from_toml("version = 3").unwrap_err();
    assert_eq!(
        error.0,
        "`version` is out of range: it must be 2: a newer fednode reads newer versions"
    );
}

#[test]
fn what_is_wrong_in_a_file_without_a_version_has_its_line() {
    let error = FederationSpec::from_toml("rounds = 3\n[training]\nbatchsize = 3").unwrap_err();
    assert_eq!(
        error.0,
        "line 3: unknown key `batchsize`: did you mean `batch_size`?"
    );
    assert!(
        FederationSpec::from_toml("rounds = 0")
            .unwrap_err()
            .0
            .contains("rounds")
    );
}
