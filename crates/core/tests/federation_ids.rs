//! The ids of three federations: whoever moves them makes every running federation another one.
#![allow(clippy::unwrap_used)]

use fednode_core::FederationSpec;

/// FedMoE-DA on ten nodes, each of which trains in every other round.
const EXPERTS: &str = r#"
version = 2
name = "wards"
rounds = 30
nodes = 10
[round]
participation = 0.5
[exchange.averaging]
weighting = "uniform"
rule = "trimmed-mean"
[exchange.experts]
peers_per_expert = 3
refresh_every = 5
temperature = 0.5
weighting = "samples"
slots_per_node = 2
max_distance = 4.0
[hyper]
profile = "robust"
"#;

/// A head that is learned from prototypes, heads that are matched by statistics, and a pool.
const LEARNED: &str = r#"
version = 2
algorithm = "fedgh"
[model]
name = "mlp"
[pool]
preset = "code"
epochs = 3
[fingerprints]
partition = "0123456789abcdef"
[exchange.averaging]
weighting = "uniform"
rule.prototypes = { iterations = 1, learning_rate = 1.0, batch_size = 10 }
[exchange.experts]
peers_per_expert = "all"
refresh_every = 1
temperature = 1.0
weighting = "uniform"
matching = "statistics"
"#;

fn read(text: &str) -> FederationSpec {
    FederationSpec::from_toml(text).unwrap()
}

/// Under Python: `blake3(b"fednode federation spec 2\n" + json.dumps(keys, sort_keys=True, separators=(",", ":")))`.
#[test]
fn the_ids_of_three_federations_stay_as_they_are() {
    let id = |text| read(text).id().to_string();
    assert_eq!(
        id("version = 2"),
        "1c68e076f62a31a8148e0e31b5c364155038e912c5beb62c23290ced3a231950"
    );
    assert_eq!(
        id(EXPERTS),
        "c88f9539776d6522e25dff037533e07be83032d989d48fb6f91e95d40363eb06"
    );
    assert_eq!(
        id(LEARNED),
        "133805a8590b54e9d17e408abcfc16a23b85d46e93bba6b63857517492519cfe"
    );
}

#[test]
fn what_is_hashed_are_the_keys_without_a_default_in_alphabetical_order() {
    let canonical = |text| String::from_utf8(read(text).canonical_bytes()).unwrap();
    assert_eq!(
        canonical("version = 2"),
        "fednode federation spec 2\n{}",
        "a key that has its default is left out, so that a new one moves no id"
    );
    assert_eq!(
        canonical(LEARNED),
        "fednode federation spec 2\n{\"algorithm\":\"fedgh\",\
         \"exchange.averaging.rule.prototypes.batch_size\":10,\
         \"exchange.averaging.rule.prototypes.iterations\":1,\
         \"exchange.averaging.rule.prototypes.learning_rate\":1.0,\
         \"exchange.averaging.weighting\":\"uniform\",\"exchange.experts.matching\":\"statistics\",\
         \"exchange.experts.peers_per_expert\":\"all\",\"exchange.experts.refresh_every\":1,\
         \"exchange.experts.temperature\":1.0,\"exchange.experts.weighting\":\"uniform\",\
         \"fingerprints.partition\":\"0123456789abcdef\",\"model.name\":\"mlp\",\"pool.epochs\":3,\
         \"pool.preset\":\"code\"}"
    );
}

/// A default that changes would change what running federations do, without another id.
#[test]
fn defaults_stay_as_they_are() {
    let entries = FederationSpec::default().entries();
    let lines: Vec<String> = entries
        .iter()
        .map(|entry| format!("{} = {}", entry.key, entry.value))
        .collect();
    let expected = include_str!("data/defaults.txt");
    assert_eq!(lines.join("\n"), expected.trim_end());
}
