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
    assert_eq!(pool.max_members, 20);
    assert_eq!(spec.round.broadcast_set, 256);
    assert_eq!(
        (spec.fingerprints.input, spec.fingerprints.classes),
        ([1, 8, 8], 10)
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
    assert_eq!(pool("fine_tune = true").preset, Some(Preset::Best));
    let paper = "renormalize = \"never\"\nbatch_size = 10\nstandardize = false\n\
                 learning_rates = [0.5]\ngate_input = \"samples\"\nguard = false";
    let paper = pool(paper);
    assert_eq!((paper.preset, paper.epochs), (Some(Preset::Paper), None));
    let off = read("[pool]\nenabled = false\ndrop_share = 0.7");
    assert!(
        !off.pool.is_enabled(),
        "numbers of a stage that there is not say nothing"
    );
}

/// Each with the same meaning as in version 1.
#[test]
fn keys_that_moved_are_found_where_they_stand_now() {
    let spec = read(
        "[model]\nname = \"cnn\"\nby_node = [\"cnn-1\", \"cnn-2\"]\nvocabulary = 9\n\
         [training]\nschedule = \"step\"\nschedule_every = 3\nschedule_factor = 0.5\n\
         [scale]\nspeakers = 128\nfollows = 32\n[round]\nmin_members = 2\n\
         [limits]\nclock_skew_seconds = 300",
    );
    let names: Vec<&str> = spec.model.name.iter().collect();
    assert_eq!(names, ["cnn-1", "cnn-2"]);
    assert_eq!(spec.fingerprints.vocabulary_size, 9);
    assert_eq!(spec.training.schedule.to_string(), "step:3:0.5");
    assert_eq!((spec.round.broadcast_set, spec.most_followed()), (128, 32));
    let step = read("[training]\nschedule = \"step\"").training.schedule;
    assert_eq!(step.to_string(), "step:1:0.99");
}

/// A file of version 2 with such a key is refused as any other with an unknown one.
#[test]
fn version_2_knows_no_moved_keys() {
    for (table, key) in [
        ("model", "input = [1, 28, 28]"),
        ("model", "by_node = []"),
        ("training", "schedule_every = 1"),
        ("pool", "guard = true"),
        ("round", "min_members = 2"),
    ] {
        let text = format!("version = 2\n[{table}]\n{key}");
        let error = FederationSpec::from_toml(&text).unwrap_err().0;
        assert!(error.starts_with("line 3: unknown key `"), "{error}");
    }
    let error = FederationSpec::from_toml("version = 2\n[limits]").unwrap_err();
    assert!(
        error.0.starts_with("line 2: unknown key `limits`"),
        "{error}"
    );
}

#[test]
fn what_version_2_cannot_express_is_refused_with_what_to_do() {
    let error = FederationSpec::from_toml("[pool]\nenabled = true\ndrop_share = 0.7").unwrap_err();
    assert!(
        error.0.starts_with("`pool.drop_share` is of version 1") && error.0.contains("pool.preset"),
        "{error}"
    );
    let error = |text: &str| FederationSpec::from_toml(text).unwrap_err().0;
    for (pool, key, preset) in [
        ("guard = false", "guard", "fixed"),
        ("fine_tune = true\nguard = false", "guard", "best"),
        (
            "renormalize = \"never\"\nbatch_size = 10\nstandardize = false\n\
             learning_rates = [0.5]\ngate_input = \"samples\"",
            "guard",
            "paper",
        ),
    ] {
        let error = error(&format!("[pool]\nenabled = true\n{pool}"));
        let expected = format!(
            "`pool.{key}` is of version 1 and belongs to the preset now: write `version = 2` and \
             `pool.preset = \"{preset}\"` instead"
        );
        assert!(error.starts_with(&expected), "{error}");
    }
    assert_eq!(
        error("[limits]\nmax_norm_ratio = 4"),
        "`limits.max_norm_ratio` is of version 1 and always 10 now: write `version = 2` and leave it out"
    );
    assert!(error("[round]\nmin_members = 3").starts_with("`round.min_members` is of version 1"));
    assert!(error("[scale]\nfollows = 9").contains("a quarter of `round.broadcast_set`, 64,"));
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
