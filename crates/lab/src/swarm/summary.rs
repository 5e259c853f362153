//! The result of a swarm: `summary.json`, and the maths behind its few numbers.
//!
//! ```text
//! mean_accuracy            sum_i n_i a_i / sum_i n_i     n_i test samples of node i, a_i its accuracy in the last round;
//!                          of a number a_i is R², and n_i how much its test numbers vary (sum of squares around their mean)
//! unweighted_mean_accuracy sum_i a_i / N
//! worst_tenth_accuracy     mean of the lowest ceil(N / 10) of the a_i
//! overhead.share           1 - (seconds of training) / (seconds of rounds), both summed over nodes and rounds
//! overhead.idle_core_share the same, seen from the machine's cores
//! bytes_per_round          mean over nodes and rounds: what one node moves in one round
//! ```
//!
//! Nothing here reads a file or asks a process; [`super::collect`] does.

use std::collections::BTreeMap;

use crate::control::Worth;
use fednode_cli::everyone::EveryonesTest;
use fednode_core::spec::PrivacySpec;
use fednode_core::{BlobId, Composition, PoolOutcome, Served};
use serde::{Deserialize, Serialize};

/// Everything worth keeping of a swarm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Summary {
    /// The federated algorithm.
    pub(crate) algorithm: String,
    /// Where the data came from.
    pub(crate) data: String,
    /// How it was divided.
    pub(crate) partition: String,
    /// Hash of that division, before any labels are turned for liars.
    pub(crate) partition_hash: String,
    /// Seed of everything drawn.
    pub(crate) seed: u64,
    /// Nodes that were started.
    pub(crate) nodes: u32,
    /// Rounds that were asked for.
    pub(crate) rounds: u32,
    /// What was trained on.
    pub(crate) device: String,
    /// How what leaves a node is protected.
    #[serde(default)]
    pub(crate) privacy: Privacy,
    /// The number that is predicted, if it is no class: every accuracy here is R² then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) target: Option<String>,
    /// Whether joining was worth it: `served`, `alone`, `difference`, `interval`, `worst_node`; absent if nobody asked.
    #[serde(flatten, default, skip_serializing_if = "Option::is_none")]
    pub(crate) worth: Option<Worth>,
    /// Accuracy in the last round, weighted by test samples.
    pub(crate) mean_accuracy: f64,
    /// Accuracy in the last round, every node counting the same.
    pub(crate) unweighted_mean_accuracy: f64,
    /// Accuracy in the last round of the worst tenth of the nodes.
    pub(crate) worst_tenth_accuracy: f64,
    /// Accuracy in the round in which it was highest, weighted by test samples: chosen by those samples, so it is for
    /// comparison with results that are given so, and for nothing else. Absent where some round was not evaluated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) best_round_accuracy: Option<f64>,
    /// What always saying a node's commonest training class would reach, weighted by test samples.
    pub(crate) majority_class_accuracy: f64,
    /// One entry per node that got anywhere.
    pub(crate) per_node: Vec<Node>,
    /// Nodes that died, and of what.
    pub(crate) failed_nodes: Vec<Failed>,
    /// Honest nodes that other honest nodes banned, in a simulation; there should be none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) banned: Vec<u32>,
    /// Traffic of one node in one round.
    pub(crate) bytes_per_round: BytesPerRound,
    /// From the start of the first process to the end of the last round.
    pub(crate) wall_seconds: f64,
    /// Seconds that a node spent in local updates, over all rounds, mean over nodes.
    pub(crate) train_seconds: f64,
    /// What the rounds took beside training.
    pub(crate) overhead: Overhead,
    /// Every setting in force.
    pub(crate) effective_config: serde_json::Value,
}

/// How what leaves a node is protected.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Privacy {
    /// `open`, or `dp:` and ε.
    pub(crate) mode: String,
    /// ε of everything that a node publishes, for one training sample more or less; absent where nothing bounds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) epsilon: Option<f64>,
    /// The probability with which that may fail; absent with ε.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) delta: Option<f64>,
}

impl Privacy {
    /// Returns what a federation's spec promises.
    pub(crate) fn of(spec: &PrivacySpec) -> Self {
        Self {
            mode: spec.mode().to_string(),
            epsilon: spec.epsilon,
            delta: spec.epsilon.map(|_| spec.delta),
        }
    }
}

impl Default for Privacy {
    fn default() -> Self {
        Self::of(&PrivacySpec::default())
    }
}

impl Summary {
    /// Returns what people call the measure.
    pub(crate) fn measure(&self) -> &'static str {
        match self.target {
            Some(_) => "R²",
            None => "accuracy",
        }
    }

    /// Enters whether joining was worth it, for each node too.
    pub(crate) fn judged(mut self, worth: Option<Worth>) -> Self {
        let per_node = worth.iter().flat_map(|worth| &worth.per_node);
        for judged in per_node {
            let nodes = self.per_node.iter_mut();
            for node in nodes.filter(|node| node.shard == judged.shard) {
                (node.served, node.alone) = (Some(judged.served), Some(judged.alone));
            }
        }
        Self { worth, ..self }
    }

    /// Says that no node has a model of any use, if so.
    pub(crate) fn why_useless(&self) -> Option<String> {
        let first = self.per_node.first()?.useless.as_ref()?;
        let is_any_of_use = self.per_node.iter().any(|node| node.useless.is_none());
        (!is_any_of_use).then(|| format!("no node has a model of any use; of node 1, {first}"))
    }

    /// Returns the accuracy after the stage that follows the last round, weighted by test samples, if there is one.
    pub(crate) fn accuracy_after_finishing(&self) -> Option<f64> {
        let pairs = self
            .per_node
            .iter()
            .filter_map(|node| Some((node.accuracy_after_finishing?, node.weight())));
        let pairs: Vec<_> = pairs.collect();
        (!pairs.is_empty()).then(|| weighted_mean(pairs))
    }

    /// Returns the mean of the lowest tenth of the nodes after that stage, if there is one.
    pub(crate) fn worst_tenth_after_finishing(&self) -> Option<f64> {
        let finished: Vec<f64> = self
            .per_node
            .iter()
            .filter_map(|node| node.accuracy_after_finishing)
            .collect();
        (!finished.is_empty()).then(|| worst_tenth(&finished))
    }

    /// Returns the global and the local test of PFL-MoE, every node counting the same, if they were made.
    pub(crate) fn everyones_test(&self) -> Option<EveryonesTest> {
        let tests: Vec<EveryonesTest> = self
            .per_node
            .iter()
            .filter_map(|node| node.everyones_test)
            .collect();
        let mean_of =
            |of: fn(&EveryonesTest) -> f64| mean(&tests.iter().map(of).collect::<Vec<_>>());
        (!tests.is_empty()).then(|| EveryonesTest {
            accuracy: mean_of(|test| test.accuracy),
            accuracy_on_own_classes: mean_of(|test| test.accuracy_on_own_classes),
        })
    }

    /// Returns how many nodes made a pool, and how many of them serve the mixture.
    pub(crate) fn pools(&self) -> (usize, usize) {
        let pools: Vec<_> = self
            .per_node
            .iter()
            .filter_map(|node| node.pool.as_ref())
            .collect();
        (
            pools.len(),
            pools
                .iter()
                .filter(|pool| pool.served == Served::Mixture)
                .count(),
        )
    }

    /// Returns the accuracy of the last round before the exchange, weighted by test samples, over the nodes that have it.
    pub(crate) fn accuracy_before_exchange(&self) -> f64 {
        let last_round = self.per_node.iter().map(|node| node.last_round).max();
        let last = self
            .per_node
            .iter()
            .filter(|node| Some(node.last_round) == last_round);
        weighted_mean(
            last.filter_map(|node| Some((node.accuracy_after_local_training?, node.weight()))),
        )
    }
}

/// One node's result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Node {
    /// Which shard, counting from 1; also the name of its files.
    pub(crate) shard: u32,
    /// Its name in the federation.
    pub(crate) node_id: String,
    /// The last round it finished.
    pub(crate) last_round: u32,
    /// Samples it learned from.
    pub(crate) train_samples: u32,
    /// Samples it was judged by.
    pub(crate) test_samples: u32,
    /// What its R² counts for in means, where a number is predicted: how much its test numbers vary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) variation: Option<f64>,
    /// Classes among its training samples.
    pub(crate) classes: Vec<u32>,
    /// Accuracy after the last round's exchange.
    pub(crate) accuracy: f64,
    /// Accuracy in the last round before the exchange; absent for a node that stopped in a round without that evaluation.
    pub(crate) accuracy_after_local_training: Option<f64>,
    /// Accuracy after the stage that follows the last round, if the algorithm has one.
    #[serde(default)]
    pub(crate) accuracy_after_finishing: Option<f64>,
    /// What became of its pool of private modules, if there was one.
    #[serde(default)]
    pub(crate) pool: Option<PoolOutcome>,
    /// Accuracy of what it serves, if it was compared with what the node does alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) served: Option<f64>,
    /// Accuracy of what it does alone, if that was compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) alone: Option<f64>,
    /// How good its result is on everyone's test samples, if that was asked for.
    #[serde(default)]
    pub(crate) everyones_test: Option<EveryonesTest>,
    /// Hash of everything it learned, so that two simulations can be compared to the last bit; absent of a live node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) parameters_hash: Option<BlobId>,
    /// Accuracy of always saying its commonest training class.
    pub(crate) majority_class_accuracy: f64,
    /// Share of its test samples that each of its experts decided.
    pub(crate) expert_share: Vec<f64>,
    /// How much the choice of the expert says of a test sample's domain, 0 to 1; absent where domains are not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) domain_information: Option<f64>,
    /// What its model lacks of what the spec asks for, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lacks: Option<String>,
    /// Why its model is of no use, if it is no better than a constant answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) useless: Option<String>,
    /// What its model is made of, where it is more than the algorithm's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) composition: Option<Composition>,
    /// Bytes it sent, everything counted.
    pub(crate) bytes_sent: u64,
    /// Bytes it received, everything counted.
    pub(crate) bytes_received: u64,
    /// Most memory it ever held; of a simulation, its share of the most that the process ever held.
    pub(crate) peak_rss_bytes: u64,
}

/// A node that died.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Failed {
    /// Which process: `node 3`, `fedboot`.
    pub(crate) name: String,
    /// How it ended.
    pub(crate) reason: String,
}

/// What one node moves in one round, mean over nodes and rounds.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct BytesPerRound {
    /// With the aggregator, both ways: shared parts and their mean.
    pub(crate) aggregator: f64,
    /// Received from other nodes: experts. What one receives another sends, so that is not counted again.
    pub(crate) peer_to_peer: f64,
    /// Received adverts, duplicates included.
    pub(crate) gossip: f64,
}

impl BytesPerRound {
    /// Returns the sum over all kinds.
    pub(crate) fn total(self) -> f64 {
        self.aggregator + self.peer_to_peer + self.gossip
    }
}

/// What the rounds took beside training.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Overhead {
    /// Share of the rounds' time that was not training.
    pub(crate) share: f64,
    /// Seconds of all rounds of all nodes.
    pub(crate) round_seconds: f64,
    /// Seconds of all local updates of all nodes.
    pub(crate) train_seconds: f64,
    /// Share of the processor cores' time, from the first round's start to the last one's end, in which they ran no local
    /// update, nodes counted as one core each; absent where time is simulated. While one node waits, another may train.
    #[serde(default)]
    pub(crate) idle_core_share: Option<f64>,
    /// Where the rest went, in seconds, by cause. `stragglers`: others still trained.
    pub(crate) seconds_by_cause: BTreeMap<String, f64>,
}

/// One round of one node, as far as the summary needs it.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct RoundFacts {
    /// Seconds in the local update.
    pub(crate) train_seconds: f64,
    /// Seconds from the round's start to its end.
    pub(crate) round_seconds: f64,
    /// Seconds waited, by cause.
    pub(crate) waited: Vec<(&'static str, f64)>,
    /// Bytes moved.
    pub(crate) bytes: BytesPerRound,
}

impl Node {
    /// Returns what its accuracy counts for in means.
    pub(crate) fn weight(&self) -> f64 {
        self.variation.unwrap_or(f64::from(self.test_samples))
    }
}

/// Returns the mean of accuracies, weighted by test samples; of nothing it is 0.
pub(crate) fn weighted_mean<W: Into<f64>>(pairs: impl IntoIterator<Item = (f64, W)>) -> f64 {
    let pairs = pairs
        .into_iter()
        .map(|(accuracy, weight)| (accuracy, weight.into()));
    let (sum, weight) = pairs.fold((0.0, 0.0), |(sum, total), (accuracy, weight)| {
        (sum + accuracy * weight, total + weight)
    });
    if weight > 0.0 { sum / weight } else { 0.0 }
}

/// Returns the mean; of nothing it is 0.
pub(crate) fn mean(values: &[f64]) -> f64 {
    if values.is_empty() {
        0.0
    } else {
        values.iter().sum::<f64>() / values.len() as f64
    }
}

/// Returns the mean of the lowest tenth, at least of one; of nothing it is 0.
pub(crate) fn worst_tenth(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.truncate(values.len().div_ceil(10));
    mean(&sorted)
}

/// Adds up what the rounds took beside training.
pub(crate) fn overhead(rounds: &[RoundFacts]) -> Overhead {
    let mut overhead = Overhead::default();
    for round in rounds {
        overhead.round_seconds += round.round_seconds;
        overhead.train_seconds += round.train_seconds;
        for (cause, seconds) in &round.waited {
            *overhead
                .seconds_by_cause
                .entry((*cause).to_owned())
                .or_default() += seconds;
        }
    }
    if overhead.round_seconds > 0.0 {
        let known: f64 = overhead.seconds_by_cause.values().sum();
        let other = overhead.round_seconds - overhead.train_seconds - known;
        overhead
            .seconds_by_cause
            .insert("other".into(), other.max(0.0));
        overhead.share = 1.0 - overhead.train_seconds / overhead.round_seconds;
    }
    overhead
}

/// Returns the share of `cores` that ran no local update while rounds ran: `updates` and `rounds` are from when to when,
/// in seconds.
pub(crate) fn idle_core_share(
    updates: &[(f64, f64)],
    rounds: &[(f64, f64)],
    cores: usize,
) -> Option<f64> {
    let start = rounds.iter().map(|round| round.0).reduce(f64::min)?;
    let end = rounds.iter().map(|round| round.1).reduce(f64::max)?;
    let mut changes: Vec<(f64, i32)> = updates
        .iter()
        .flat_map(|(from, to)| [(*from, 1), (*to, -1)])
        .collect();
    changes.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut running, mut since, mut busy) = (0, start, 0.0);
    for (at, change) in changes {
        busy += f64::from(running.min(cores as i32)) * (at - since);
        (running, since) = (running + change, at);
    }
    (end > start).then(|| 1.0 - busy / (cores as f64 * (end - start)))
}

/// Returns what one node moves in one round, on average.
pub(crate) fn bytes_per_round(rounds: &[RoundFacts]) -> BytesPerRound {
    let mean_of = |part: fn(&BytesPerRound) -> f64| {
        mean(
            &rounds
                .iter()
                .map(|round| part(&round.bytes))
                .collect::<Vec<_>>(),
        )
    };
    BytesPerRound {
        aggregator: mean_of(|bytes| bytes.aggregator),
        peer_to_peer: mean_of(|bytes| bytes.peer_to_peer),
        gossip: mean_of(|bytes| bytes.gossip),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(got: f64, want: f64) {
        assert!((got - want).abs() < 1e-12, "got {got}, want {want}");
    }

    #[test]
    fn means_by_hand() {
        close(weighted_mean([(0.5, 10), (1.0, 30)]), 0.875);
        close(weighted_mean::<u32>([]), 0.0);
        close(weighted_mean([(0.5, 0)]), 0.0);
        close(mean(&[0.5, 1.0]), 0.75);
    }

    #[test]
    fn worst_tenth_by_hand() {
        close(worst_tenth(&[0.9, 0.2, 0.8]), 0.2);
        let eleven: Vec<f64> = (0..11).map(|n| f64::from(10 - n) / 10.0).collect();
        close(worst_tenth(&eleven), 0.05);
        close(worst_tenth(&[]), 0.0);
    }

    #[test]
    fn idle_cores_by_hand() {
        // Two cores for 10 s: three updates of 4, 4 and 6 s, at most two of which run at once, and 0 to 1 s nothing.
        let updates = [(1.0, 5.0), (1.0, 5.0), (2.0, 8.0)];
        let share = idle_core_share(&updates, &[(0.0, 9.0), (1.0, 10.0)], 2);
        close(share.unwrap(), 1.0 - (2.0 * 4.0 + 3.0) / 20.0);
        assert_eq!(idle_core_share(&[], &[], 2), None);
    }

    #[test]
    fn overhead_and_bytes_by_hand() {
        let round = |bytes| RoundFacts {
            train_seconds: 9.0,
            round_seconds: 10.0,
            waited: vec![("experts", 0.5), ("global", 0.25)],
            bytes: BytesPerRound {
                aggregator: bytes,
                peer_to_peer: 2.0 * bytes,
                gossip: 1.0,
            },
        };
        let rounds = [round(10.0), round(20.0), round(30.0), round(40.0)];
        let overhead = overhead(&rounds);
        close(overhead.share, 0.1);
        close(overhead.seconds_by_cause["experts"], 2.0);
        close(overhead.seconds_by_cause["other"], 1.0);
        let bytes = bytes_per_round(&rounds);
        assert_eq!(
            bytes,
            BytesPerRound {
                aggregator: 25.0,
                peer_to_peer: 50.0,
                gossip: 1.0
            }
        );
    }
}
