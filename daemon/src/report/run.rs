//! One run as a report sees it, finished or under way.
//!
//! A finished run is its `summary.json` with the rounds of `metrics.jsonl`; of one that is under way the rounds are all
//! there is, and what only the summary knows (floors, the pool, failures) is absent rather than 0.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use fednode_core::{FederationSpec, NodeId, PoolOutcome, Round, Score, Served};
use fednode_runtime::status::RoundRecord;
use serde::Serialize;
use serde_json::Value;

use super::words::known;
use crate::swarm::summary::{self, Failed, Summary};

/// A run.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    /// How it is called in the report; no other run has this name.
    pub(crate) name: String,
    /// Where it lies.
    pub(crate) folder: PathBuf,
    /// Its result, if it is finished.
    pub(crate) summary: Option<Summary>,
    /// The federated algorithm; "–" if nothing says.
    pub(crate) algorithm: String,
    /// Rounds that were asked for, if that is known.
    pub(crate) rounds: Option<u32>,
    /// Its seed, if that is known.
    pub(crate) seed: Option<u64>,
    /// Hash of the division of the data; empty if it is not known.
    pub(crate) partition_hash: String,
    /// Every setting in force, dotted keys; empty if they are not known.
    pub(crate) settings: BTreeMap<String, String>,
    /// Its nodes, by shard.
    pub(crate) nodes: Vec<Node>,
    /// Every round of every node, by round, then by node.
    pub(crate) records: Vec<RoundRecord>,
    /// Lines of `metrics.jsonl` that were passed over because a crash had torn them.
    pub(crate) torn_lines: usize,
}

/// One node of a run.
#[derive(Debug, Clone, Default)]
pub(crate) struct Node {
    /// Its shard, or the end of its name where the shard is not known.
    pub(crate) label: String,
    /// Its shard, counting from 1.
    pub(crate) shard: Option<u32>,
    /// Its name in the federation.
    pub(crate) node_id: String,
    /// The last round it finished.
    pub(crate) last_round: u32,
    /// Samples it learned from.
    pub(crate) train_samples: u32,
    /// Samples it was judged by.
    pub(crate) test_samples: u32,
    /// Classes among its training samples.
    pub(crate) classes: Vec<u32>,
    /// Accuracy in its last round, after the exchange.
    pub(crate) accuracy: Option<f64>,
    /// Accuracy in its last round, before the exchange.
    pub(crate) before_exchange: Option<f64>,
    /// Accuracy after the stage that follows the last round.
    pub(crate) after_last_stage: Option<f64>,
    /// Accuracy of the model that it ends with on everyone's test samples, if that was asked for: the global test.
    pub(crate) on_everyone: Option<f64>,
    /// The same with classes weighted as the node has them: the local test.
    pub(crate) on_own_classes: Option<f64>,
    /// Accuracy of always saying its commonest training class.
    pub(crate) floor: Option<f64>,
    /// What became of its pool.
    pub(crate) pool: Option<PoolOutcome>,
    /// Share of its test samples that each of its experts decided.
    pub(crate) expert_share: Vec<f64>,
    /// Bytes it sent.
    pub(crate) bytes_sent: Option<f64>,
    /// Bytes it received.
    pub(crate) bytes_received: Option<f64>,
    /// Most memory it ever held.
    pub(crate) peak_rss_bytes: Option<f64>,
}

/// The few numbers by which a run is judged. All accuracies are on test samples, 0 to 1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(crate) struct Headline {
    /// Last round, after the exchange, weighted by test samples.
    pub(crate) mean_accuracy: Option<f64>,
    /// Last round, before the exchange, weighted by test samples.
    pub(crate) mean_accuracy_before_exchange: Option<f64>,
    /// After the stage that follows the last round, weighted by test samples.
    pub(crate) mean_accuracy_after_last_stage: Option<f64>,
    /// Last round, after the exchange, every node counting the same.
    pub(crate) unweighted_mean_accuracy: Option<f64>,
    /// Last round, after the exchange, mean of the worst tenth of the nodes.
    pub(crate) worst_tenth_accuracy: Option<f64>,
    /// After the stage that follows the last round, every node counting the same.
    pub(crate) unweighted_mean_after_last_stage: Option<f64>,
    /// After that stage, mean of the worst tenth of the nodes.
    pub(crate) worst_tenth_after_last_stage: Option<f64>,
    /// On everyone's test samples, every node counting the same.
    pub(crate) accuracy_on_everyone: Option<f64>,
    /// The same with classes weighted as each node has them.
    pub(crate) accuracy_on_own_classes: Option<f64>,
    /// Always saying a node's commonest training class, weighted by test samples.
    pub(crate) majority_class_accuracy: Option<f64>,
}

/// What a pool is compared with, and the pool itself. All but [`Self::Served`] are of the model alone, without the
/// statistics expert.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Comparator {
    /// The model with its own module as it was pooled, which is fine-tuned where `pool.fine_tune` asks for it: the
    /// baseline.
    Own,
    /// The model with the mixture.
    Mixture,
    /// What predicts from now on: the mixture or, where that is no better, the own module; with the statistics expert
    /// if that is mixed in after the pool.
    Served,
    /// The own module after as many epochs as the gate.
    FineTunedHead,
    /// The plain average of all members' outputs.
    Uniform,
    /// The mixture of all members, none dropped.
    WithoutDenoising,
}

impl Comparator {
    /// All of them, the baseline first.
    pub(crate) const ALL: [Self; 6] = [
        Self::Own,
        Self::Mixture,
        Self::Served,
        Self::FineTunedHead,
        Self::Uniform,
        Self::WithoutDenoising,
    ];

    /// Returns its name for people.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Own => "own module",
            Self::Mixture => "mixture",
            Self::Served => "served",
            Self::FineTunedHead => "fine-tuned head",
            Self::Uniform => "uniform average",
            Self::WithoutDenoising => "without denoising",
        }
    }

    /// Returns how good it is on a node's test samples without the statistics expert, if that was found out. Of
    /// [`Self::Served`] this need not be how good what predicts is; for its accuracy see [`Node::pool_accuracy`].
    pub(crate) fn score_without_statistics(self, pool: &PoolOutcome) -> Option<Score> {
        let controls = pool.controls.as_ref();
        match (self, &pool.served) {
            (Self::Own, _) | (Self::Served, Served::Own { .. }) => Some(pool.test.own),
            (Self::Mixture, _) | (Self::Served, Served::Mixture) => pool.test.mixture,
            (Self::FineTunedHead, _) => controls?.fine_tuned_head,
            (Self::Uniform, _) => Some(controls?.uniform),
            (Self::WithoutDenoising, _) => controls?.without_denoising,
        }
    }
}

impl Node {
    /// Returns a comparator's test accuracy, if there is a pool. What is served is the model that the node ends with;
    /// only where nothing says how good that is, it is the mixture or the own module without the statistics expert.
    pub(crate) fn pool_accuracy(&self, comparator: Comparator) -> Option<f64> {
        let pool = self.pool.as_ref()?;
        let in_the_end = self
            .after_last_stage
            .filter(|_| comparator == Comparator::Served);
        in_the_end.or_else(|| known(comparator.score_without_statistics(pool)?.accuracy))
    }

    /// Returns the accuracy of the model that the node ends with.
    pub(crate) fn final_accuracy(&self) -> Option<f64> {
        self.after_last_stage.or(self.accuracy)
    }
}

impl Run {
    /// Puts together a finished run.
    pub(crate) fn finished(
        folder: &Path,
        name: String,
        summary: Summary,
        records: Vec<RoundRecord>,
    ) -> Self {
        let records = ordered(records);
        let last = last_records(&records);
        let nodes = summary.per_node.iter().map(|node| {
            // The summary says 0 of a node whose last round was not evaluated; its record knows better.
            let evaluated = last
                .get(&node.node_id)
                .is_none_or(|record| record.accuracy.is_some());
            Node {
                label: node.shard.to_string(),
                shard: Some(node.shard),
                node_id: node.node_id.clone(),
                last_round: node.last_round,
                train_samples: node.train_samples,
                test_samples: node.test_samples,
                classes: node.classes.clone(),
                accuracy: known(node.accuracy).filter(|_| evaluated),
                before_exchange: known(node.accuracy_after_local_training),
                after_last_stage: known(node.accuracy_after_finishing),
                on_everyone: known(node.everyones_test.map(|test| test.accuracy)),
                on_own_classes: known(node.everyones_test.map(|test| test.accuracy_on_own_classes)),
                floor: known(node.majority_class_accuracy),
                pool: node.pool.clone(),
                expert_share: node.expert_share.clone(),
                bytes_sent: Some(node.bytes_sent as f64),
                bytes_received: Some(node.bytes_received as f64),
                peak_rss_bytes: Some(node.peak_rss_bytes as f64),
            }
        });
        Self {
            name,
            folder: folder.to_owned(),
            algorithm: summary.algorithm.clone(),
            rounds: Some(summary.rounds),
            seed: Some(summary.seed),
            partition_hash: summary.partition_hash.clone(),
            settings: flat(&summary.effective_config),
            nodes: nodes.collect(),
            summary: Some(summary),
            records,
            torn_lines: 0,
        }
    }

    /// Puts together what is known of a run that is under way, or was never finished.
    pub(crate) fn under_way(
        folder: &Path,
        name: String,
        spec: Option<FederationSpec>,
        records: Vec<(Option<u32>, RoundRecord)>,
        torn_lines: usize,
    ) -> Self {
        let shards: BTreeMap<String, u32> = records
            .iter()
            .filter_map(|(shard, record)| Some((record.node_id.to_string(), (*shard)?)))
            .collect();
        let records = ordered(records.into_iter().map(|(_, record)| record).collect());
        let mut nodes: Vec<Node> = last_records(&records)
            .into_iter()
            .map(|(id, record)| unfinished_node(&id, shards.get(&id).copied(), record, &records))
            .collect();
        nodes.sort_by_key(|node| (node.shard, node.node_id.clone()));
        let settings = spec
            .as_ref()
            .and_then(|spec| serde_json::to_value(spec).ok());
        Self {
            name,
            folder: folder.to_owned(),
            summary: None,
            algorithm: spec
                .as_ref()
                .map_or(super::words::ABSENT.into(), |spec| spec.algorithm.clone()),
            rounds: spec.as_ref().map(|spec| spec.rounds),
            seed: spec.as_ref().map(|spec| spec.seed),
            partition_hash: spec
                .as_ref()
                .map_or(String::new(), |spec| spec.partition_hash().to_owned()),
            settings: settings.map_or_else(BTreeMap::new, |spec| {
                flat(&serde_json::json!({ "federation": spec }))
            }),
            nodes,
            records,
            torn_lines,
        }
    }

    /// Tells whether there is a result.
    pub(crate) const fn is_finished(&self) -> bool {
        self.summary.is_some()
    }

    /// Says what a run lacks that has no result; nothing of one that has.
    pub(crate) fn standing(&self) -> &'static str {
        let is_through = |node: &Node| self.rounds.is_some_and(|rounds| node.last_round >= rounds);
        match (
            &self.summary,
            !self.nodes.is_empty() && self.nodes.iter().all(is_through),
        ) {
            (Some(_), _) => "",
            (None, true) => " (all rounds, no summary)",
            (None, false) => " (under way or broken off)",
        }
    }

    /// Returns the nodes that died, and of what.
    pub(crate) fn failed(&self) -> &[Failed] {
        self.summary
            .as_ref()
            .map_or(&[], |summary| &summary.failed_nodes)
    }

    /// Returns the last round that any node finished.
    pub(crate) fn last_round(&self) -> u32 {
        self.nodes
            .iter()
            .map(|node| node.last_round)
            .max()
            .unwrap_or(0)
    }

    /// Returns the nodes that are averaged: of a finished run those that finished the last round, for a node that died
    /// earlier is listed only; of a run under way all, each with its own last round.
    pub(crate) fn last_nodes(&self) -> impl Iterator<Item = &Node> {
        let (last_round, is_finished) = (self.last_round(), self.is_finished());
        self.nodes
            .iter()
            .filter(move |node| !is_finished || node.last_round == last_round)
    }

    /// Returns the rounds, each with the records of its nodes.
    pub(crate) fn by_round(&self) -> BTreeMap<Round, Vec<&RoundRecord>> {
        let mut rounds: BTreeMap<Round, Vec<&RoundRecord>> = BTreeMap::new();
        for record in &self.records {
            rounds.entry(record.round).or_default().push(record);
        }
        rounds
    }

    /// Tells whether any node had a pool.
    pub(crate) fn has_pool(&self) -> bool {
        self.nodes.iter().any(|node| node.pool.is_some())
    }

    /// Returns the numbers by which it is judged; each over the nodes that have it.
    pub(crate) fn headline(&self) -> Headline {
        let last: Vec<&Node> = self.last_nodes().collect();
        let weighted = |nodes: &[&Node], of: fn(&Node) -> Option<f64>| {
            let pairs = nodes
                .iter()
                .filter_map(|node| Some((of(node)?, node.test_samples)));
            let pairs: Vec<(f64, u32)> = pairs.filter(|(_, samples)| *samples > 0).collect();
            (!pairs.is_empty()).then(|| summary::weighted_mean(pairs))
        };
        let accuracies: Vec<f64> = last.iter().filter_map(|node| node.accuracy).collect();
        let all: Vec<&Node> = self.nodes.iter().collect();
        let ends: Vec<f64> = all
            .iter()
            .filter_map(|node| node.after_last_stage)
            .collect();
        let each = |of: fn(&Node) -> Option<f64>| {
            all.iter().filter_map(|node| of(node)).collect::<Vec<f64>>()
        };
        let any = |values: &[f64], of: fn(&[f64]) -> f64| (!values.is_empty()).then(|| of(values));
        Headline {
            mean_accuracy: weighted(&last, |node| node.accuracy),
            mean_accuracy_before_exchange: weighted(&last, |node| node.before_exchange),
            mean_accuracy_after_last_stage: weighted(&all, |node| node.after_last_stage),
            unweighted_mean_accuracy: any(&accuracies, summary::mean),
            worst_tenth_accuracy: any(&accuracies, summary::worst_tenth),
            unweighted_mean_after_last_stage: any(&ends, summary::mean),
            worst_tenth_after_last_stage: any(&ends, summary::worst_tenth),
            accuracy_on_everyone: any(&each(|node| node.on_everyone), summary::mean),
            accuracy_on_own_classes: any(&each(|node| node.on_own_classes), summary::mean),
            majority_class_accuracy: weighted(&last, |node| node.floor),
        }
    }
}

fn unfinished_node(
    id: &str,
    shard: Option<u32>,
    last: &RoundRecord,
    records: &[RoundRecord],
) -> Node {
    let mine = || {
        records
            .iter()
            .filter(|record| record.node_id == last.node_id)
    };
    Node {
        label: shard.map_or_else(|| short(id), |shard| shard.to_string()),
        shard,
        node_id: id.to_owned(),
        last_round: last.round.0,
        train_samples: last.n_samples,
        test_samples: last.test_samples,
        accuracy: known(last.accuracy),
        before_exchange: known(last.accuracy_after_local_training),
        expert_share: last.test_expert_share.clone(),
        bytes_sent: Some(mine().map(|record| record.bytes_sent.wire as f64).sum()),
        bytes_received: Some(mine().map(|record| record.bytes_received.wire as f64).sum()),
        peak_rss_bytes: last.peak_rss_bytes.map(|bytes| bytes as f64),
        ..Node::default()
    }
}

/// Returns the end of a node's name, where names differ.
pub(crate) fn short(node_id: &str) -> String {
    let skipped = node_id.chars().count().saturating_sub(8);
    node_id.chars().skip(skipped).collect()
}

/// Puts records in order; of a round that a node trained again after a restart the last record counts.
fn ordered(records: Vec<RoundRecord>) -> Vec<RoundRecord> {
    let by_round: BTreeMap<(Round, NodeId), RoundRecord> = records
        .into_iter()
        .map(|record| ((record.round, record.node_id), record))
        .collect();
    by_round.into_values().collect()
}

fn last_records(records: &[RoundRecord]) -> BTreeMap<String, &RoundRecord> {
    records
        .iter()
        .map(|record| (record.node_id.to_string(), record))
        .collect()
}

/// Writes a tree of settings as dotted keys. A table without any is left out: what is absent from it says the same.
fn flat(settings: &Value) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut open = vec![(String::new(), settings)];
    while let Some((path, value)) = open.pop() {
        match value {
            Value::Null if path.is_empty() => {}
            Value::Object(map) => open.extend(map.iter().map(|(key, value)| {
                (
                    if path.is_empty() {
                        key.clone()
                    } else {
                        format!("{path}.{key}")
                    },
                    value,
                )
            })),
            Value::String(text) => drop(all.insert(path, text.clone())),
            value => drop(all.insert(path, value.to_string())),
        }
    }
    all
}

/// Returns whose modules any node of a run was offered, in the order of the nodes, then strangers.
pub(crate) fn module_owners(run: &Run) -> Vec<String> {
    let mut owners: Vec<String> = run.nodes.iter().map(|node| node.node_id.clone()).collect();
    let members = run
        .nodes
        .iter()
        .filter_map(|node| node.pool.as_ref())
        .flat_map(|pool| &pool.members);
    let strangers: BTreeSet<String> = members
        .filter_map(|member| Some(member.node?.to_string()))
        .collect();
    let known: BTreeSet<&str> = run.nodes.iter().map(|node| node.node_id.as_str()).collect();
    owners.extend(
        strangers
            .into_iter()
            .filter(|id| !known.contains(id.as_str())),
    );
    owners
}

#[cfg(test)]
mod tests {
    use super::super::fixtures;
    use super::*;

    #[test]
    fn the_headline_is_the_summarys() {
        let summary = fixtures::summary(1);
        let run = Run::finished(
            Path::new("x"),
            "x".into(),
            summary.clone(),
            fixtures::records(1),
        );
        let headline = run.headline();
        assert_eq!(headline.mean_accuracy, Some(summary.mean_accuracy));
        assert_eq!(
            headline.unweighted_mean_accuracy,
            Some(summary.unweighted_mean_accuracy)
        );
        assert_eq!(
            headline.worst_tenth_accuracy,
            Some(summary.worst_tenth_accuracy)
        );
        assert_eq!(
            headline.majority_class_accuracy,
            Some(summary.majority_class_accuracy)
        );
        assert_eq!(
            headline.mean_accuracy_before_exchange,
            Some(summary.accuracy_before_exchange())
        );
        assert_eq!(
            headline.mean_accuracy_after_last_stage,
            summary.accuracy_after_finishing()
        );
    }

    #[test]
    fn a_round_that_was_not_evaluated_is_absent_not_zero() {
        let mut records = fixtures::records(1);
        for record in &mut records {
            (record.accuracy, record.accuracy_after_local_training) = (None, None);
        }
        let run = Run::finished(
            Path::new("x"),
            "x".into(),
            fixtures::summary(1),
            records.clone(),
        );
        assert_eq!(run.headline().mean_accuracy, None);
        let run = Run::under_way(
            Path::new("x"),
            "x".into(),
            None,
            records.into_iter().map(|r| (None, r)).collect(),
            0,
        );
        assert_eq!(
            (run.headline(), run.algorithm.as_str()),
            (
                Headline {
                    ..Headline::default()
                },
                "–"
            )
        );
    }

    #[test]
    fn served_is_what_the_node_ends_with() {
        let run = Run::finished(
            Path::new("x"),
            "x".into(),
            fixtures::summary(1),
            fixtures::records(1),
        );
        for node in &run.nodes {
            let served = node.pool_accuracy(Comparator::Served);
            assert!(
                served.is_some() && served == node.after_last_stage,
                "{served:?}"
            );
            assert_ne!(
                served,
                node.pool_accuracy(Comparator::Mixture),
                "the statistics expert is beside the mixture"
            );
        }
        let without_pool = Node {
            pool: None,
            ..run.nodes[0].clone()
        };
        assert_eq!(without_pool.pool_accuracy(Comparator::Served), None);
    }

    #[test]
    fn served_is_what_the_pool_says_where_the_end_is_not_known() {
        let pool = fixtures::summary(1).per_node[0].pool.clone().unwrap();
        let node = |pool| Node {
            pool: Some(pool),
            ..Node::default()
        };
        let mixture = node(pool.clone());
        assert_eq!(
            mixture.pool_accuracy(Comparator::Served),
            mixture.pool_accuracy(Comparator::Mixture)
        );
        let own = node(PoolOutcome {
            served: Served::Own {
                reason: "no better".into(),
            },
            controls: None,
            ..pool
        });
        assert_eq!(
            own.pool_accuracy(Comparator::Served),
            own.pool_accuracy(Comparator::Own)
        );
        assert_ne!(
            own.pool_accuracy(Comparator::Served),
            mixture.pool_accuracy(Comparator::Served)
        );
        assert_eq!(own.pool_accuracy(Comparator::Uniform), None);
    }

    #[test]
    fn settings_are_dotted() {
        let flat = flat(&serde_json::json!({"a": {"b": 1, "c": "x"}, "d": {}, "e": [1, 2]}));
        let want =
            [("a.b", "1"), ("a.c", "x"), ("e", "[1,2]")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        assert_eq!(flat, BTreeMap::from(want));
    }
}
