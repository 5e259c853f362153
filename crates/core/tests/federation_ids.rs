//! The ids of three federations: whoever moves them makes every running federation another one.
#![allow(clippy::unwrap_used)]

use fednode_core::FederationSpec;

/// FedMoE-DA on ten nodes, each of which trains in every other round.
const EXPERTS: &str = r#"
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

/// A head that is learned from prototypes, and heads that are matched by statistics.
const LEARNED: &str = r#"
algorithm = "fedgh"
[model]
name = "mlp"
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

#[test]
fn the_ids_of_three_federations_stay_as_they_are() {
    let id = |text| FederationSpec::from_toml(text).unwrap().id().to_string();
    assert_eq!(
        id(""),
        "8db8da8415c208a8c87ae7a81f4c12d3a9a45c3666a0d5d18e982dc874bba5c8"
    );
    assert_eq!(
        id(EXPERTS),
        "f1685edde2ba51e4bb77e9685ba576636fceaa45da42b308c6a55827e96db697"
    );
    assert_eq!(
        id(LEARNED),
        "a8e89a43a344fd21bff7f9330098bf4be3f57b8fae01d1f9596f71cf4f27d50c"
    );
}
