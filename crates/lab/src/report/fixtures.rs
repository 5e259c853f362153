//! An invented run for the tests of this folder: three nodes, two rounds, a pool with its comparators, and a statistics
//! expert beside it, so that what is served is not the mixture.

use std::fs;
use std::path::Path;

use fednode_core::{Controls, NodeId, PoolMember, PoolOutcome, Score, Scores, Served};
use fednode_runtime::status::{Bytes, RoundRecord};

use super::run::Run;
use crate::swarm::fixtures as of_swarm;
use crate::swarm::summary::{self, BytesPerRound, Node, Overhead, Privacy, Summary};

/// Accuracies of the nodes after the last exchange; a seed adds thousandths to them.
const ACCURACIES: [f64; 3] = [0.5, 0.75, 0.9];
/// Test samples of the nodes.
const SAMPLES: [u32; 3] = [10, 20, 30];

/// Returns the whole run as it is read from a folder.
pub(super) fn run() -> Run {
    Run::finished(Path::new("x"), "x".into(), summary(1), records(1))
}

/// Returns a node's name.
pub(super) fn node_id(shard: usize) -> NodeId {
    NodeId::from_bytes([shard as u8; 32])
}

fn accuracy(seed: u64, at: usize) -> f64 {
    ACCURACIES[at] + seed as f64 / 1000.0
}

/// Returns the accuracy of the model that a node ends with: the mixture with the statistics expert beside it.
fn served(seed: u64, at: usize) -> f64 {
    accuracy(seed, at) + 0.05 * (at + 1) as f64 / 3.0
}

fn pool(seed: u64, at: usize) -> PoolOutcome {
    let score = |accuracy| Score {
        accuracy,
        loss: 1.0 - accuracy,
        n_samples: SAMPLES[at],
    };
    let own = accuracy(seed, at);
    let member = |other: usize| PoolMember {
        node: (other != at).then(|| node_id(other + 1)),
        score: (other != at).then_some(2.0 + 0.125 * other as f64),
        kept: other != 2 || at == 2,
        gate_mass: if other == at { 0.7 } else { 0.15 },
    };
    let others = (0..3).filter(|other| *other != at);
    let scores = Scores {
        own: score(own),
        mixture: Some(score(own + 0.02)),
    };
    PoolOutcome {
        members: std::iter::once(at).chain(others).map(member).collect(),
        refused: vec![],
        served: Served::Mixture,
        epochs: 5,
        unseen: 0,
        best_epoch: Some(4),
        learning_rate: Some(0.5),
        validation: scores,
        test: scores,
        controls: Some(Controls {
            fine_tuned_head: Some(score(own + 0.01)),
            uniform: score(own - 0.25),
            without_denoising: None,
        }),
    }
}

/// Returns the result of a node.
fn node(seed: u64, at: usize) -> Node {
    Node {
        shard: at as u32 + 1,
        node_id: node_id(at + 1).to_string(),
        last_round: 2,
        train_samples: 4 * SAMPLES[at],
        test_samples: SAMPLES[at],
        variation: None,
        classes: vec![0, 3],
        accuracy: accuracy(seed, at),
        accuracy_after_local_training: Some(accuracy(seed, at) - 0.125),
        accuracy_after_finishing: Some(served(seed, at)),
        pool: Some(pool(seed, at)),
        served: None,
        alone: None,
        everyones_test: None,
        parameters_hash: None,
        majority_class_accuracy: 0.25,
        expert_share: vec![0.25, 0.75],
        domain_information: None,
        lacks: None,
        useless: None,
        composition: None,
        bytes_sent: 1500,
        bytes_received: 2500,
        peak_rss_bytes: 50_000_000,
    }
}

/// Returns a result.
pub(super) fn summary(seed: u64) -> Summary {
    let per_node: Vec<Node> = (0..3).map(|at| node(seed, at)).collect();
    let accuracies: Vec<f64> = per_node.iter().map(|node| node.accuracy).collect();
    Summary {
        algorithm: "fedper".into(),
        data: "digits".into(),
        partition: "dirichlet:0.5".into(),
        partition_hash: format!("hash of seed {seed}"),
        seed,
        nodes: 3,
        rounds: 2,
        device: "cpu".into(),
        privacy: Privacy::default(),
        target: None,
        worth: None,
        mean_accuracy: summary::weighted_mean(
            per_node
                .iter()
                .map(|node| (node.accuracy, node.test_samples)),
        ),
        unweighted_mean_accuracy: summary::mean(&accuracies),
        worst_tenth_accuracy: summary::worst_tenth(&accuracies),
        best_round_accuracy: None,
        majority_class_accuracy: 0.25,
        per_node,
        failed_nodes: vec![],
        banned: vec![],
        bytes_per_round: BytesPerRound {
            aggregator: 1e3,
            peer_to_peer: 2e6,
            gossip: 30.0,
        },
        wall_seconds: 12.0,
        train_seconds: 9.0,
        overhead: Overhead::default(),
        effective_config: serde_json::json!({
            "federation": { "name": "<b>digits & co</b>", "seed": seed, "fingerprints": { "partition": format!("{seed}") } },
        }),
    }
}

/// Returns the rounds of the same run.
pub(super) fn records(seed: u64) -> Vec<RoundRecord> {
    let record = |round: u32, at: usize| {
        let usual = of_swarm::record(round);
        RoundRecord {
            node_id: node_id(at + 1),
            train_loss: 1.5 / f64::from(round),
            n_samples: 4 * SAMPLES[at],
            accuracy: Some(accuracy(seed, at) - if round == 2 { 0.0 } else { 0.25 }),
            accuracy_after_local_training: (round == 2).then(|| accuracy(seed, at) - 0.125),
            loss: Some(1.0 / f64::from(round)),
            test_samples: SAMPLES[at],
            bytes_received: Bytes {
                control: 1,
                ..usual.bytes_received
            },
            ..usual
        }
    };
    (1..=2)
        .flat_map(|round| (0..3).map(move |at| record(round, at)))
        .collect()
}

/// Writes a run's folder.
pub(super) fn write(folder: &Path, summary: &Summary, records: &[RoundRecord]) {
    let summary = serde_json::to_string_pretty(summary)
        .expect("a summary has only text keys and finite numbers");
    let line = |record| {
        serde_json::to_string(record).expect("a record has only text keys and finite numbers")
            + "\n"
    };
    let lines: String = records.iter().map(line).collect();
    let written = fs::create_dir_all(folder)
        .and_then(|()| fs::write(folder.join("summary.json"), summary))
        .and_then(|()| fs::write(folder.join("metrics.jsonl"), lines));
    written.expect("a test's folder can be written to");
}
