//! One run in a report, finished or under way.
//!
//! A finished run is its `summary.json` with the rounds of `metrics.jsonl`. A run under way has only its rounds. The fields
//! that only a summary has (floors, the pool, failures) are then absent, not 0.

mod node;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use fednode_core::{FederationSpec, NodeId, Round};
use fednode_measure::Better;
use fednode_runtime::status::RoundRecord;
use serde::Serialize;
use serde_json::Value;

use super::words::{ABSENT, known};
use crate::control::Worth;
use crate::swarm::summary::{self, Failed, Summary};
use fednode_cli::table::named;

pub(crate) use node::{Comparator, Node, short};

/// A run.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    /// Its name in the report, different from those of all other runs.
    pub(crate) name: String,
    /// Where it lies.
    pub(crate) folder: PathBuf,
    /// Its result, if it is finished.
    pub(crate) summary: Option<Summary>,
    /// The federated algorithm; "–" if nothing says.
    pub(crate) algorithm: String,
    /// The planned number of rounds, if known.
    pub(crate) rounds: Option<u32>,
    /// Its seed, if known.
    pub(crate) seed: Option<u64>,
    /// Hash of the division of the data; empty if it is not known.
    pub(crate) partition_hash: String,
    /// Every setting in force, dotted keys; empty if they are not known.
    pub(crate) settings: BTreeMap<String, String>,
    /// Its nodes, by shard.
    pub(crate) nodes: Vec<Node>,
    /// Every round of every node, by round, then by node.
    pub(crate) records: Vec<RoundRecord>,
    /// Lines of `metrics.jsonl` that were skipped because a crash had torn them.
    pub(crate) torn_lines: usize,
}

/// The main numbers of a run. All accuracies are on test samples, 0 to 1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(crate) struct Headline {
    /// What is served by the measure of the federation, if that is a share of which more is better.
    pub(crate) served: Option<f64>,
    /// What each node does alone, by the same.
    pub(crate) alone: Option<f64>,
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
    /// Always predicting a node's commonest training class, weighted by test samples.
    pub(crate) majority_class_accuracy: Option<f64>,
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
            // The summary has 0 for a node whose last round was not evaluated. Its record tells the two cases apart.
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
                weight: node.weight(),
                classes: node.classes.clone(),
                accuracy: known(node.accuracy).filter(|_| evaluated),
                before_exchange: known(node.accuracy_after_local_training),
                after_last_stage: known(node.accuracy_after_finishing),
                on_everyone: known(node.everyones_test.map(|test| test.accuracy)),
                on_own_classes: known(node.everyones_test.map(|test| test.accuracy_on_own_classes)),
                floor: known(node.majority_class_accuracy),
                pool: node.pool.clone(),
                expert_share: node.expert_share.clone(),
                composition: node.composition.clone(),
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

    /// Puts together a run that is under way, or was never finished.
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
            .map(|(id, record)| Node::under_way(&id, shards.get(&id).copied(), record, &records))
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

    /// Describes a run without a result. Returns an empty text for one with a result.
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

    /// Returns the nodes that died, with the causes.
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

    /// Returns the nodes that are averaged.
    ///
    /// Of a finished run these are the nodes that finished the last round; a node that died earlier is listed only. Of a run
    /// under way these are all nodes, each with its own last round.
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

    /// Returns whether joining was worth it, if that is known.
    pub(crate) fn worth(&self) -> Option<&Worth> {
        self.summary.as_ref()?.worth.as_ref()
    }

    /// Writes what is served and what each node does alone, by the measure of the federation, which is named.
    pub(crate) fn judged(&self) -> [String; 2] {
        self.worth().map_or([ABSENT; 2].map(String::from), |worth| {
            [worth.served, worth.alone].map(|value| named(worth.measure, value))
        })
    }

    /// Returns the main numbers, each over the nodes that have it.
    pub(crate) fn headline(&self) -> Headline {
        let last: Vec<&Node> = self.last_nodes().collect();
        let weighted = |nodes: &[&Node], of: fn(&Node) -> Option<f64>| {
            let pairs = nodes
                .iter()
                .filter_map(|node| Some((of(node)?, node.weight)));
            let pairs: Vec<(f64, f64)> = pairs.filter(|(_, weight)| *weight > 0.0).collect();
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
        let worth = self
            .worth()
            .filter(|worth| worth.measure.is_share() && worth.measure.better() == Better::Higher);
        Headline {
            served: worth.map(|worth| worth.served),
            alone: worth.map(|worth| worth.alone),
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

/// Sorts records. Of a round that a node trained again after a restart the last record counts.
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

/// Writes a tree of settings as dotted keys. An empty table is left out.
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

/// Returns the owners of all modules that a node of the run was offered: first nodes in order, then others.
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
    fn settings_are_dotted() {
        let flat = flat(&serde_json::json!({"a": {"b": 1, "c": "x"}, "d": {}, "e": [1, 2]}));
        let want =
            [("a.b", "1"), ("a.c", "x"), ("e", "[1,2]")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        assert_eq!(flat, BTreeMap::from(want));
    }
}
