//! From what the nodes said and wrote to the [`Summary`].

use std::collections::{BTreeMap, BTreeSet};

use fednode_cli::data::Yardstick;
use fednode_cli::everyone::EveryonesTest;
use fednode_core::work::LastStage;
use fednode_core::{BlobId, FederationSpec, NodeId, Round};
use fednode_runtime::status::{RoundRecord, Status};
use fednode_runtime::trainer::TrainerCard;

use crate::swarm::summary::{
    self, BytesPerRound, Failed, Node, Overhead, Privacy, RoundFacts, Summary,
};

/// What is known of one node at the end.
#[derive(Debug, Clone)]
pub(crate) struct Observed {
    /// Its shard, counting from 1.
    pub(crate) shard: u32,
    /// Its name in the federation.
    pub(crate) node_id: NodeId,
    /// What it trains on.
    pub(crate) card: TrainerCard,
    /// Bytes it sent, everything counted.
    pub(crate) bytes_sent: u64,
    /// Bytes it received, everything counted.
    pub(crate) bytes_received: u64,
    /// Most memory it ever held.
    pub(crate) peak_rss_bytes: u64,
    /// What came after the last round.
    pub(crate) last_stage: LastStage,
    /// How good its result is on everyone's test samples, if that was asked for.
    pub(crate) everyones_test: Option<EveryonesTest>,
    /// Hash of everything it learned, if the run keeps it at hand.
    pub(crate) parameters_hash: Option<BlobId>,
    /// The rounds it finished, in order.
    pub(crate) records: Vec<RoundRecord>,
    /// What is known of its tests.
    pub(crate) yardstick: Yardstick,
}

impl Observed {
    /// Puts together what a live node said last and what it wrote.
    pub(crate) fn live(
        shard: u32,
        status: &Status,
        records: Vec<RoundRecord>,
        yardstick: Yardstick,
    ) -> Self {
        let peak = status
            .peak_rss_bytes
            .or(records.last().and_then(|record| record.peak_rss_bytes));
        Self {
            shard,
            node_id: status.node_id,
            card: status.trainer.clone().unwrap_or_default(),
            bytes_sent: status.traffic.sent.wire,
            bytes_received: status.traffic.received.wire,
            peak_rss_bytes: peak.unwrap_or(0),
            last_stage: LastStage {
                evaluations: status.finished_evaluation.clone(),
                pool: status.pool.clone(),
            },
            everyones_test: None,
            parameters_hash: None,
            records,
            yardstick,
        }
    }
}

/// What is known of the run as a whole.
#[derive(Debug, Clone)]
pub(crate) struct Run<'a> {
    /// The spec.
    pub(crate) spec: &'a FederationSpec,
    /// The data source as given.
    pub(crate) data: &'a str,
    /// The device, for people.
    pub(crate) device: &'a str,
    /// Cores that the nodes share; `None` where time is simulated.
    pub(crate) cores: Option<usize>,
    /// Seconds from the first process to the last round.
    pub(crate) wall_seconds: f64,
    /// Every setting in force.
    pub(crate) effective_config: serde_json::Value,
}

/// Returns the highest mean accuracy of a round, weighted as that of the last round is, over the rounds in which all nodes that were
/// ever evaluated are. With a share of the nodes in each round that is the last alone.
fn best_round(records: &[&RoundRecord], weight_of: impl Fn(&RoundRecord) -> f64) -> Option<f64> {
    let mut rounds: BTreeMap<Round, Vec<(f64, f64)>> = BTreeMap::new();
    for record in records {
        if let Some(accuracy) = record.accuracy.filter(|accuracy| accuracy.is_finite()) {
            rounds
                .entry(record.round)
                .or_default()
                .push((accuracy, weight_of(record)));
        }
    }
    let most = rounds.values().map(Vec::len).max()?;
    let complete = rounds.into_values().filter(|round| round.len() == most);
    complete.map(summary::weighted_mean).max_by(f64::total_cmp)
}

/// Makes the summary.
pub(crate) fn summarise(run: Run<'_>, observed: &[Observed], failed_nodes: Vec<Failed>) -> Summary {
    let per_node: Vec<Node> = observed.iter().filter_map(node).collect();
    let records: Vec<&RoundRecord> = observed
        .iter()
        .flat_map(|observed| &observed.records)
        .collect();
    let ready = everybody_ready(&records);
    let rounds: Vec<RoundFacts> = records
        .iter()
        .map(|record| facts(record, ready[&record.round]))
        .collect();
    // R² of a number counts by how much the node's numbers vary.
    let variation = |observed: &Observed| Some((observed.node_id, observed.yardstick.variation?));
    let variations: BTreeMap<NodeId, f64> = observed.iter().filter_map(variation).collect();
    let weight_of = |record: &RoundRecord| {
        let variation = variations.get(&record.node_id).copied();
        variation.unwrap_or(f64::from(record.test_samples))
    };
    let last = Last::of(&per_node);
    let accuracies = last.accuracies();
    let mean_accuracy = last.weighted(|node| node.accuracy);
    let majority_class_accuracy = last.weighted(|node| node.majority_class_accuracy);
    let spec = run.spec;
    Summary {
        algorithm: spec.algorithm.clone(),
        data: run.data.to_owned(),
        partition: spec.data.partition.clone(),
        partition_hash: spec.partition_hash().to_owned(),
        seed: spec.seed,
        nodes: spec.nodes,
        rounds: spec.rounds,
        device: run.device.to_owned(),
        privacy: Privacy::of(&spec.privacy),
        target: spec.data.target.as_ref().map(|target| target.name.clone()),
        worth: None,
        mean_accuracy,
        unweighted_mean_accuracy: summary::mean(&accuracies),
        worst_tenth_accuracy: summary::worst_tenth(&accuracies),
        best_round_accuracy: best_round(&records, weight_of),
        majority_class_accuracy,
        per_node,
        failed_nodes,
        banned: Vec::new(),
        bytes_per_round: summary::bytes_per_round(&rounds),
        wall_seconds: run.wall_seconds,
        train_seconds: mean_train_seconds(observed),
        overhead: Overhead {
            idle_core_share: idle_core_share(&run, &records),
            ..summary::overhead(&rounds)
        },
        effective_config: run.effective_config,
    }
}

/// The nodes that finished the last round. The accuracies of a node that died are those of an earlier round; they are
/// listed but not averaged.
struct Last<'a>(Vec<&'a Node>);

impl<'a> Last<'a> {
    fn of(nodes: &'a [Node]) -> Self {
        let last_round = nodes.iter().map(|node| node.last_round).max().unwrap_or(0);
        let is_last = |node: &&Node| node.last_round == last_round;
        Self(nodes.iter().filter(is_last).collect())
    }

    fn accuracies(&self) -> Vec<f64> {
        self.0.iter().map(|node| node.accuracy).collect()
    }

    /// Returns a mean that is weighted by test samples.
    fn weighted(&self, of: fn(&Node) -> f64) -> f64 {
        summary::weighted_mean(self.0.iter().map(|node| (of(node), node.weight())))
    }
}

/// Returns the seconds that a node spent in local updates, mean over the nodes that finished any round.
fn mean_train_seconds(observed: &[Observed]) -> f64 {
    let began = observed
        .iter()
        .filter(|observed| !observed.records.is_empty());
    let seconds = |observed: &Observed| {
        let records = observed.records.iter();
        records.map(|record| record.train_seconds).sum()
    };
    summary::mean(&began.map(seconds).collect::<Vec<f64>>())
}

/// Returns a node's entry; a node without any finished round has no result to enter.
fn node(observed: &Observed) -> Option<Node> {
    let (card, record) = (&observed.card, observed.records.last()?);
    let finished = observed.last_stage.evaluations.as_ref();
    Some(Node {
        shard: observed.shard,
        node_id: observed.node_id.to_string(),
        last_round: record.round.0,
        train_samples: card.train_samples,
        test_samples: card.test_samples,
        variation: observed.yardstick.variation,
        classes: card.classes.clone(),
        accuracy: record.accuracy.unwrap_or(0.0),
        accuracy_after_local_training: record.accuracy_after_local_training,
        accuracy_after_finishing: finished.and_then(|e| Some(e.test?.accuracy)),
        pool: observed.last_stage.pool.clone(),
        served: None,
        alone: None,
        everyones_test: observed.everyones_test,
        parameters_hash: observed.parameters_hash,
        majority_class_accuracy: observed.yardstick.floor,
        expert_share: record.test_expert_share.clone(),
        domain_information: record.test_domain_information,
        lacks: finished.map_or(&record.lacks, |e| &e.lacks).clone(),
        useless: finished.map_or(&record.useless, |e| &e.useless).clone(),
        composition: finished
            .map_or(&record.composition, |e| &e.composition)
            .clone(),
        bytes_sent: observed.bytes_sent,
        bytes_received: observed.bytes_received,
        peak_rss_bytes: observed.peak_rss_bytes,
    })
}

/// Returns when a node had published its update, in seconds of its clock.
fn ready_at(record: &RoundRecord) -> f64 {
    record.started_at.0 as f64 / 1e3 + record.train_seconds + record.waited_seconds.publish
}

/// Returns for every round when the last node had published its update. The nodes of a swarm share a clock.
pub(crate) fn everybody_ready(records: &[&RoundRecord]) -> BTreeMap<Round, f64> {
    let mut ready = BTreeMap::new();
    for record in records {
        let last = ready.entry(record.round).or_insert(f64::MIN);
        *last = ready_at(record).max(*last);
    }
    ready
}

/// Takes some seconds off these, one after the other.
fn less(mut seconds: f64, from: [f64; 3]) -> [f64; 3] {
    from.map(|part| {
        let taken = seconds.min(part);
        seconds -= taken;
        part - taken
    })
}

fn idle_core_share(run: &Run<'_>, records: &[&RoundRecord]) -> Option<f64> {
    let from = |record: &RoundRecord| record.started_at.0 as f64 / 1e3;
    let ahead = records.iter().filter_map(|record| record.ahead);
    let ahead = ahead.map(|ahead| (ahead.started_at.0 as f64 / 1e3, ahead.seconds));
    let updates = records
        .iter()
        .map(|record| (from(record), record.train_seconds))
        .chain(ahead);
    let updates: Vec<_> = updates
        .map(|(from, seconds)| (from, from + seconds))
        .collect();
    let rounds: Vec<_> = records
        .iter()
        .map(|record| (from(record), from(record) + record.round_seconds))
        .collect();
    let nodes = records
        .iter()
        .map(|record| record.node_id)
        .collect::<BTreeSet<_>>()
        .len();
    summary::idle_core_share(&updates, &rounds, run.cores?.min(nodes))
}

/// Returns what a summary needs of a round. `everybody_ready` is when the last node had published its update of that
/// round: until then the exchange waits for somebody else's training, not for the network.
pub(crate) fn facts(record: &RoundRecord, everybody_ready: f64) -> RoundFacts {
    let (sent, received, waited) = (
        record.bytes_sent,
        record.bytes_received,
        record.waited_seconds,
    );
    let ahead = record.ahead.map_or(0.0, |ahead| ahead.seconds);
    // Whoever trains while it waits does not wait: for slower nodes first, for experts last.
    let stragglers =
        (everybody_ready - ready_at(record)).clamp(0.0, waited.experts + waited.global);
    let for_experts = stragglers.min(waited.experts);
    let [stragglers, global, experts] = less(
        ahead,
        [
            stragglers,
            waited.global - (stragglers - for_experts),
            waited.experts - for_experts,
        ],
    );
    RoundFacts {
        train_seconds: record.train_seconds + ahead,
        round_seconds: record.round_seconds,
        waited: vec![
            ("stragglers", stragglers),
            ("experts", experts),
            ("global", global),
            ("merge", waited.merge),
            ("evaluate", waited.evaluate),
            ("save", waited.save),
            ("publish", waited.publish),
        ],
        bytes: BytesPerRound {
            aggregator: (sent.aggregator + received.aggregator) as f64,
            peer_to_peer: received.peer_to_peer as f64,
            gossip: received.gossip as f64,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::swarm::fixtures::{NODE, record, status};
    use fednode_core::Timestamp;
    use fednode_runtime::status::{Ahead, Waited};

    fn quarter() -> Yardstick {
        Yardstick {
            floor: 0.25,
            variation: None,
        }
    }

    #[test]
    fn a_node_that_died_early_is_listed_but_not_averaged() {
        let observed = |shard, rounds: u32, accuracy| {
            let records = (1..=rounds).map(|round| RoundRecord {
                accuracy: Some(accuracy),
                ..record(round)
            });
            Observed::live(shard, &status(rounds), records.collect(), quarter())
        };
        let spec = FederationSpec::default();
        let effective_config = serde_json::Value::Null;
        let run = Run {
            spec: &spec,
            data: "digits",
            device: "cpu",
            cores: Some(2),
            wall_seconds: 20.0,
            effective_config,
        };
        let summary = summarise(run, &[observed(1, 3, 0.5), observed(2, 1, 1.0)], vec![]);
        assert_eq!((summary.per_node.len(), summary.mean_accuracy), (2, 0.5));
    }

    #[test]
    fn waiting_for_the_slowest_is_told_from_waiting_for_the_network() {
        let waited = |experts, global| Waited {
            experts,
            global,
            publish: 1.0,
            ..Waited::default()
        };
        let record = |train_seconds, waited_seconds| RoundRecord {
            train_seconds,
            waited_seconds,
            ..record(1)
        };
        let (quick, slow) = (
            record(4.0, waited(3.0, 2.5)),
            record(8.0, waited(0.5, 0.25)),
        );
        let ready = everybody_ready(&[&quick, &slow]);
        let causes = |record| facts(record, ready[&Round(1)]).waited[..3].to_vec();
        assert_eq!(
            causes(&quick),
            [("stragglers", 4.0), ("experts", 0.0), ("global", 1.5)]
        );
        assert_eq!(
            causes(&slow),
            [("stragglers", 0.0), ("experts", 0.5), ("global", 0.25)]
        );
    }

    #[test]
    fn the_best_round_is_one_in_which_everybody_is_evaluated() {
        let record = |round, accuracy, test_samples| RoundRecord {
            accuracy,
            test_samples,
            ..record(round)
        };
        // Round 1: (0.6 + 3 * 0.8) / 4; round 2 lacks a node; round 3: 0.5.
        let records = [
            record(1, Some(0.6), 1),
            record(1, Some(0.8), 3),
            record(2, Some(0.99), 1),
            record(3, Some(0.5), 1),
            record(3, Some(0.5), 3),
        ];
        let records: Vec<&RoundRecord> = records.iter().collect();
        let by_samples = |record: &RoundRecord| f64::from(record.test_samples);
        let best = best_round(&records, by_samples).unwrap();
        assert!((best - 0.75).abs() < 1e-12, "{best}");
        assert_eq!(best_round(&[&record(1, None, 1)], by_samples), None);
        // By other weights round 3 stays as it is, and round 1 is (3 * 0.6 + 0.8) / 4.
        let best = best_round(&records, |record| 4.0 - by_samples(record)).unwrap();
        assert!((best - 0.65).abs() < 1e-12, "{best}");
    }

    #[test]
    fn training_during_a_wait_is_not_waiting() {
        let waited_seconds = Waited {
            experts: 3.0,
            global: 2.5,
            publish: 1.0,
            ..Waited::default()
        };
        let ahead = Some(Ahead {
            started_at: Timestamp(5_000),
            seconds: 4.5,
        });
        let quick = RoundRecord {
            train_seconds: 4.0,
            waited_seconds,
            ahead,
            ..record(1)
        };
        let facts = facts(&quick, ready_at(&quick) + 4.0);
        assert_eq!(
            facts.waited[..3],
            [("stragglers", 0.0), ("experts", 0.0), ("global", 1.0)]
        );
        assert_eq!(facts.train_seconds, 8.5);
    }

    #[test]
    fn one_entry_per_node_that_finished_a_round() {
        let observed = |shard, done: u32| {
            Observed::live(
                shard,
                &status(done),
                (1..=done).map(record).collect(),
                quarter(),
            )
        };
        let spec = FederationSpec::default();
        let effective_config = serde_json::Value::Null;
        let run = Run {
            spec: &spec,
            data: "digits",
            device: "cpu",
            cores: Some(2),
            wall_seconds: 20.0,
            effective_config,
        };
        let failed = Failed {
            name: "node 2".into(),
            reason: "killed".into(),
        };
        let summary = summarise(run, &[observed(1, 2), observed(2, 0)], vec![failed]);
        assert_eq!(summary.per_node.len(), 1);
        let node = &summary.per_node[0];
        assert_eq!(
            (node.node_id.as_str(), node.last_round),
            (NODE.to_string().as_str(), 2)
        );
        assert_eq!(
            (
                node.train_samples,
                node.test_samples,
                node.classes.as_slice()
            ),
            (80, 20, &[1, 2][..])
        );
        assert_eq!(
            (node.bytes_sent, node.bytes_received, node.peak_rss_bytes),
            (1000, 2000, 50)
        );
        assert_eq!(
            (
                summary.mean_accuracy,
                summary.majority_class_accuracy,
                summary.train_seconds
            ),
            (0.75, 0.25, 16.0)
        );
        assert!((summary.overhead.share - 0.2).abs() < 1e-12);
        let bytes = BytesPerRound {
            aggregator: 40.0,
            peer_to_peer: 200.0,
            gossip: 7.0,
        };
        assert_eq!(summary.bytes_per_round, bytes);
    }
}
