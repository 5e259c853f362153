//! The invariants of FedMoE-DA's exchange (Zhan et al., MSN 2024, Eq. 8 to 11) on random federations.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::Arc;

use fednode_core::{
    AggregationPlan, BlobId, ExpertExchange, ExpertId, Matching, NodeId, ParamSet, PeersPerExpert,
    ProxySet, Round, Rule, Slot, Weighting,
};
use fednode_mix::{Part, Proxies, average, cosine, merge_row, plan};
use proptest::prelude::*;

type Known = BTreeMap<NodeId, Arc<ProxySet>>;

const DIMENSION: usize = 11; // not a multiple of the vector width
const TOLERANCE: f64 = 1e-6;

fn node(byte: u8) -> NodeId {
    NodeId::from_bytes([byte; 32])
}

fn exchange(peers: u32, temperature: f64) -> ExpertExchange {
    ExpertExchange {
        peers_per_expert: PeersPerExpert::Count(peers),
        refresh_every: 5,
        temperature,
        weighting: Weighting::Uniform,
        slots_per_node: None,
        max_distance: None,
        matching: Matching::default(),
        noise: None,
    }
}

fn proxy_set() -> impl Strategy<Value = Vec<f32>> {
    (1usize..5).prop_flat_map(|k| prop::collection::vec(-10.0f32..10.0, k * DIMENSION))
}

/// One to six nodes with one to four experts each.
fn federation() -> impl Strategy<Value = Known> {
    prop::collection::vec(proxy_set(), 1..7)
        .prop_map(|sets| (1..).map(node).zip(sets.into_iter().map(set)).collect())
}

fn set(values: Vec<f32>) -> Arc<ProxySet> {
    Arc::new(ProxySet::new(DIMENSION, values).unwrap())
}

fn plans(known: &Known, exchange: &ExpertExchange) -> BTreeMap<NodeId, AggregationPlan> {
    known
        .keys()
        .map(|own| (*own, plan(*own, Round(1), BlobId::of(b""), known, exchange)))
        .collect()
}

/// The plan as a sparse matrix, to compare plans whose rows are ordered differently.
fn matrix(plans: &BTreeMap<NodeId, AggregationPlan>) -> BTreeMap<(ExpertId, ExpertId), f64> {
    let rows = plans
        .iter()
        .flat_map(|(owner, plan)| plan.rows.iter().map(move |row| (*owner, row)));
    let cells = rows.flat_map(|(owner, row)| {
        let own = ExpertId {
            owner,
            slot: row.slot,
        };
        row.sources
            .iter()
            .map(move |source| ((own, source.expert), source.weight))
    });
    cells.collect()
}

fn assert_same(a: &BTreeMap<(ExpertId, ExpertId), f64>, b: &BTreeMap<(ExpertId, ExpertId), f64>) {
    assert!(a.keys().eq(b.keys()));
    assert!(
        a.values()
            .zip(b.values())
            .all(|(x, y)| (x - y).abs() < TOLERANCE)
    );
}

fn expert(values: &[f32]) -> Arc<ParamSet> {
    let mut params = ParamSet::new();
    params
        .insert("w", &[values.len()], values.to_vec())
        .unwrap();
    Arc::new(params)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn rows_are_convex_hold_self_first_and_have_the_right_size(
        known in federation(), peers in 0u32..9, temperature in 0.01f64..3.0,
    ) {
        let experts: usize = known.values().map(|set| set.len()).sum();
        for (own, plan) in plans(&known, &exchange(peers, temperature)) {
            prop_assert_eq!(plan.rows.len(), known[&own].len());
            for row in &plan.rows {
                let sum: f64 = row.sources.iter().map(|source| source.weight).sum();
                prop_assert!((sum - 1.0).abs() < 1e-12);
                prop_assert!(row.sources.iter().all(|source| source.weight >= 0.0));
                prop_assert_eq!(row.sources[0].expert, ExpertId { owner: own, slot: row.slot });
                prop_assert_eq!(row.sources.len(), experts.min(peers as usize + 1));
                prop_assert!(row.sources.windows(2).all(|pair| pair[0].similarity >= pair[1].similarity));
            }
        }
    }

    #[test]
    fn scaling_proxies_changes_nothing(known in federation(), exponents in prop::collection::vec(-20i32..20, 6)) {
        // Powers of two, so that scaling itself does not round and ties cannot turn.
        let scaled = known.iter().zip(&exponents).map(|((owner, old), exponent)| {
            let scale = 2.0f32.powi(*exponent);
            (*owner, set(old.iter().flatten().map(|value| value * scale).collect()))
        });
        let scaled: Known = scaled.collect();
        assert_same(&matrix(&plans(&known, &exchange(3, 1.0))), &matrix(&plans(&scaled, &exchange(3, 1.0))));
    }

    #[test]
    fn permuting_nodes_permutes_the_plan(known in federation(), shift in 1usize..6) {
        let names: Vec<NodeId> = known.keys().copied().collect();
        let rename: BTreeMap<NodeId, NodeId> =
            (0..names.len()).map(|i| (names[i], names[(i + shift) % names.len()])).collect();
        let renamed: Known = known.iter().map(|(owner, set)| (rename[owner], set.clone())).collect();
        let expert = |id: ExpertId| ExpertId { owner: rename[&id.owner], slot: id.slot };
        let expected = matrix(&plans(&known, &exchange(3, 1.0)));
        let expected = expected.into_iter().map(|((i, j), weight)| ((expert(i), expert(j)), weight)).collect();
        assert_same(&matrix(&plans(&renamed, &exchange(3, 1.0))), &expected);
    }

    #[test]
    fn without_peers_experts_stay_bit_identical(known in federation(), values in prop::collection::vec(any::<f32>(), 5)) {
        let own = expert(&values);
        for row in plans(&known, &exchange(0, 1.0)).values().flat_map(|plan| &plan.rows) {
            let merged = merge_row(row, &mut |_| Some(own.clone())).unwrap();
            prop_assert_eq!(merged.params.to_bytes(), own.to_bytes());
        }
    }

    #[test]
    fn merging_equal_experts_changes_nothing(known in federation(), values in prop::collection::vec(-1e30f32..1e30, 5)) {
        let own = expert(&values);
        for row in plans(&known, &exchange(5, 1.0)).values().flat_map(|plan| &plan.rows) {
            let merged = merge_row(row, &mut |_| Some(own.clone())).unwrap();
            prop_assert_eq!(merged.params.to_bytes(), own.to_bytes());
        }
    }

    #[test]
    fn similarities_agree_with_the_plain_formula(known in federation()) {
        let proxies = Proxies::collect(&known, DIMENSION);
        let vectors: Vec<&[f32]> = known.values().flat_map(|set| set.iter()).collect();
        for (i, a) in vectors.iter().enumerate() {
            for (j, r) in proxies.row(i).into_iter().enumerate() {
                let sum = |x: &[f32], y: &[f32]| x.iter().zip(y).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>();
                let b = vectors[j];
                let plain = sum(a, b) / (sum(a, a) * sum(b, b)).sqrt();
                prop_assert!((r - plain).abs() < 1e-12);
                prop_assert!((cosine(a, b) - r).abs() < 1e-12);
            }
        }
    }

    #[test]
    fn robust_rules_stay_within_the_honest_values(
        honest in prop::collection::vec(-5.0f32..5.0, 4..20), lie in any::<f32>(), at in 0usize..4,
    ) {
        let mut values = honest.clone();
        values.insert(at, lie);
        let members: Vec<_> = values.iter().map(|value| Part { weight: 1.0, params: expert(&[*value]) }).collect();
        let low = honest.iter().copied().fold(f32::INFINITY, f32::min);
        let high = honest.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        for rule in [Rule::named("median"), Rule::named("trimmed-mean")] {
            let value = average(&rule, &members).unwrap().values().next().unwrap();
            prop_assert!((low..=high).contains(&value), "{:?} gives {} for {:?}", rule, value, values);
        }
    }

    #[test]
    fn every_subset_of_sources_renormalises_to_one(known in federation(), mask in any::<u32>()) {
        let own = expert(&[1.0]);
        for (owner, plan) in plans(&known, &exchange(6, 1.0)) {
            for row in &plan.rows {
                let mut bit = 0;
                let merged = merge_row(row, &mut |id| {
                    bit += 1;
                    let there = id == ExpertId { owner, slot: row.slot } || mask >> bit & 1 == 1;
                    there.then(|| own.clone())
                }).unwrap();
                let sum: f64 = merged.sources.iter().map(|(_, weight)| weight).sum();
                prop_assert!((sum - 1.0).abs() < 1e-12);
                prop_assert_eq!(merged.sources.len() + merged.missing.len(), row.sources.len());
            }
        }
    }
}

/// A thousand nodes with four experts each and the paper's largest gate: own rows must not hold a round up. The bound is
/// loose (an unoptimised build on a busy machine takes well under a second); it catches quadratic work, not slow machines.
#[test]
fn own_rows_of_a_thousand_nodes_select_the_planted_neighbours() {
    use rand::{Rng, SeedableRng};
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(7);
    let (nodes, experts, dimension) = (1000u16, 4, 512);
    let mut known = Known::new();
    for i in 0..nodes {
        let values = (0..experts * dimension)
            .map(|_| rng.random_range(-1.0f32..1.0))
            .collect();
        let mut name = [0; 32];
        name[..2].copy_from_slice(&i.to_be_bytes());
        known.insert(
            NodeId::from_bytes(name),
            Arc::new(ProxySet::new(dimension, values).unwrap()),
        );
    }
    let names: Vec<NodeId> = known.keys().copied().collect();
    // Node 500 holds, slot by slot, noisy copies of what node 3 holds.
    let noisy = known[&names[3]]
        .iter()
        .flatten()
        .map(|value| value + rng.random_range(-0.1f32..0.1))
        .collect();
    known.insert(
        names[500],
        Arc::new(ProxySet::new(dimension, noisy).unwrap()),
    );
    let plan = plan(
        names[3],
        Round(1),
        BlobId::of(b""),
        &known,
        &exchange(5, 1.0),
    );
    for (slot, row) in (0..).zip(&plan.rows) {
        assert_eq!(
            row.sources[1].expert,
            ExpertId {
                owner: names[500],
                slot: Slot(slot)
            }
        );
        assert!(row.sources[1].similarity > 0.9 && row.sources[2].similarity < 0.5);
    }
}
