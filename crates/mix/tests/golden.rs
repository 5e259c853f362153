//! Eq. 8 to 11 against an independent double-precision run (`tests/data/fedmoe_da_plan.json`), and the refresh schedule.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::Arc;

use fednode_core::{
    BlobId, Exchange, ExpertExchange, ExpertId, Matching, NodeId, ParamSet, PeersPerExpert,
    ProxySet, Round, Slot, Weighting,
};
use fednode_mix::{Measure, energy, merge_row, plan};

const TOLERANCE: f64 = 1e-6;

#[derive(serde::Deserialize)]
struct Golden {
    cases: Vec<Case>,
}

#[derive(serde::Deserialize)]
struct Case {
    experts_per_node: Vec<usize>,
    proxy_dim: usize,
    #[serde(rename = "P")]
    peers: u32,
    tau: f64,
    proxies: Vec<Vec<f32>>,
    experts: Vec<Vec<f32>>,
    similarity: Vec<Vec<f64>>,
    plan: Vec<Vec<f64>>,
    aggregated: Vec<Vec<f64>>,
}

impl Case {
    /// The experts in the order of the columns.
    fn ids(&self) -> Vec<ExpertId> {
        let nodes = (1u8..).zip(&self.experts_per_node);
        nodes
            .flat_map(|(node, n)| (0u16..).take(*n).map(move |slot| (node, slot)))
            .map(|(node, slot)| ExpertId {
                owner: NodeId::from_bytes([node; 32]),
                slot: Slot(slot),
            })
            .collect()
    }

    fn known(&self) -> BTreeMap<NodeId, Arc<ProxySet>> {
        let mut values: BTreeMap<NodeId, Vec<f32>> = BTreeMap::new();
        for (id, proxy) in self.ids().iter().zip(&self.proxies) {
            values.entry(id.owner).or_default().extend(proxy);
        }
        values
            .into_iter()
            .map(|(owner, values)| {
                (
                    owner,
                    Arc::new(ProxySet::new(self.proxy_dim, values).unwrap()),
                )
            })
            .collect()
    }

    fn expert(&self, column: usize) -> Arc<ParamSet> {
        let mut params = ParamSet::new();
        params
            .insert(
                "w",
                &[self.experts[column].len()],
                self.experts[column].clone(),
            )
            .unwrap();
        Arc::new(params)
    }

    fn exchange(&self) -> ExpertExchange {
        ExpertExchange {
            peers_per_expert: PeersPerExpert::Count(self.peers),
            refresh_every: 5,
            temperature: self.tau,
            weighting: Weighting::Uniform,
            slots_per_node: None,
            max_distance: None,
            matching: Matching::default(),
            noise: None,
        }
    }
}

fn check(case: &Case) {
    let (ids, known) = (case.ids(), case.known());
    let column = |id: ExpertId| ids.iter().position(|other| *other == id).unwrap();
    for owner in known.keys() {
        for row in plan(*owner, Round(1), BlobId::of(b""), &known, &case.exchange()).rows {
            let i = column(ExpertId {
                owner: *owner,
                slot: row.slot,
            });
            let mut weights = vec![0.0; ids.len()];
            for source in &row.sources {
                let j = column(source.expert);
                weights[j] = source.weight;
                assert!(
                    (source.similarity - case.similarity[i][j]).abs() < TOLERANCE,
                    "similarity {i} {j}"
                );
            }
            for (j, (weight, expected)) in weights.iter().zip(&case.plan[i]).enumerate() {
                assert!(
                    (weight - expected).abs() < TOLERANCE,
                    "plan {i} {j}: {weight} against {expected}"
                );
            }
            let merged = merge_row(&row, &mut |id| Some(case.expert(column(id)))).unwrap();
            for (value, expected) in merged.params.values().zip(&case.aggregated[i]) {
                assert!(
                    (f64::from(value) - expected).abs() < TOLERANCE,
                    "expert {i}: {value} against {expected}"
                );
            }
        }
    }
}

#[test]
fn agrees_with_the_reference_run() {
    let golden: Golden = serde_json::from_str(include_str!("data/fedmoe_da_plan.json")).unwrap();
    assert_eq!(golden.cases.len(), 5);
    golden.cases.iter().for_each(check);
}

#[test]
fn proxies_refresh_as_in_test_vector_3() {
    let case: Golden = serde_json::from_str(include_str!("data/fedmoe_da_plan.json")).unwrap();
    let exchange = Exchange {
        averaging: None,
        experts: Some(case.cases[0].exchange()),
        everybody_first: false,
        prepares: false,
        total: None,
    };
    let mut newest = None;
    let mut used = Vec::new();
    for round in (1..=12).map(Round) {
        used.push(newest); // the plan of this round comes from the newest refresh before it
        if exchange.refreshes_in(round) {
            newest = Some(round.0);
        }
    }
    let [none, one, six, eleven] = [None, Some(1), Some(6), Some(11)];
    assert_eq!(
        used,
        [
            none, one, one, one, one, one, six, six, six, six, six, eleven
        ]
    );
}

#[test]
fn an_interval_of_one_refreshes_every_round() {
    let case: Golden = serde_json::from_str(include_str!("data/fedmoe_da_plan.json")).unwrap();
    let experts = ExpertExchange {
        refresh_every: 1,
        ..case.cases[0].exchange()
    };
    let exchange = Exchange {
        averaging: None,
        experts: Some(experts),
        everybody_first: false,
        prepares: false,
        total: None,
    };
    assert!((1..20).map(Round).all(|round| exchange.refreshes_in(round)));
    assert!(!exchange.refreshes_in(Round::ZERO));
}

#[derive(serde::Deserialize)]
struct StatisticsGolden {
    epsilon: f64,
    nodes: Vec<StatisticsNode>,
    #[serde(rename = "A")]
    weights: Vec<Vec<f64>>,
    b: Vec<f64>,
    queries: Vec<Vec<f32>>,
    predictions: Vec<StatisticsPrediction>,
}

#[derive(serde::Deserialize)]
struct StatisticsNode {
    features: Vec<Vec<f32>>,
    labels: Vec<usize>,
    counts: Vec<f64>,
}

#[derive(serde::Deserialize)]
struct StatisticsPrediction {
    #[serde(rename = "T")]
    temperature: f64,
    prior: Vec<f64>,
    probabilities: Vec<Vec<f64>>,
}

/// The classifier from sums, against an independent double-precision run (`tests/data/statistics_expert.json`).
#[test]
fn statistics_agree_with_the_reference_run() {
    let golden: StatisticsGolden =
        serde_json::from_str(include_str!("data/statistics_expert.json")).unwrap();
    let close = |got: &[f64], expected: &[f64]| {
        let near = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-5 * b.abs().max(1.0);
        assert!(
            got.len() == expected.len() && got.iter().zip(expected).all(near),
            "{got:?} is not {expected:?}"
        );
    };
    let mut pooled = fednode_mix::Statistics::new(golden.b.len(), golden.queries[0].len());
    for node in &golden.nodes {
        let before = pooled.counts.clone();
        node.features
            .iter()
            .zip(&node.labels)
            .for_each(|(features, class)| pooled.add(features, *class));
        let added: Vec<f64> = pooled
            .counts
            .iter()
            .zip(before)
            .map(|(now, before)| now - before)
            .collect();
        close(&added, &node.counts);
    }
    let solved = pooled.solve(golden.epsilon).unwrap();
    close(&solved.weights, &golden.weights.concat());
    close(&solved.offsets, &golden.b);
    for prediction in &golden.predictions {
        for (query, expected) in golden.queries.iter().zip(&prediction.probabilities) {
            close(
                &solved.probabilities(query, prediction.temperature, &prediction.prior),
                expected,
            );
        }
    }
}

#[derive(serde::Deserialize)]
struct EnergyGolden {
    cases: Vec<EnergyCase>,
}

#[derive(serde::Deserialize)]
struct EnergyCase {
    dim: usize,
    #[serde(rename = "T")]
    temperature: f64,
    gamma: f64,
    own: usize,
    features: Vec<Vec<Vec<f32>>>,
    scores: Vec<f64>,
    cosine: Vec<f64>,
    dropped: Vec<usize>,
}

/// The scores of a pool's members, against an independent double-precision run (`tests/data/pm_moe_energy.json`).
#[test]
fn energies_agree_with_the_reference_run() {
    let golden: EnergyGolden =
        serde_json::from_str(include_str!("data/pm_moe_energy.json")).unwrap();
    for case in &golden.cases {
        let outputs: Vec<Vec<f32>> = case
            .features
            .iter()
            .map(|samples| samples.concat())
            .collect();
        let scores = |measure: Measure| -> Vec<f64> {
            outputs
                .iter()
                .map(|other| measure.mean(&outputs[case.own], other, case.dim))
                .collect()
        };
        let energies = scores(Measure::Energy(case.temperature));
        for (got, expected) in [
            (&energies, &case.scores),
            (&scores(Measure::Cosine), &case.cosine),
        ] {
            assert!(
                got.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-7),
                "{got:?} is not {expected:?}"
            );
        }
        let kept = energy::kept(&energies, case.own, case.gamma);
        let mut dropped = energy::ranking(&energies, case.own);
        dropped.reverse();
        dropped.retain(|member| !kept[*member]);
        assert_eq!(dropped, case.dropped);
    }
}
