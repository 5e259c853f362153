//! The cost of a run until its nodes reach an accuracy.
//!
//! ```text
//! accuracy after round t   the newest accuracy of every node that has trained by then, after the exchange, weighted as in the last round
//! rounds                   the first t after which it is the target or more; `None` if it never is
//! bytes per node           on the wire, both ways, in rounds 1 to t, mean over the nodes
//! multiply-adds per node   of training in rounds 1 to t, forward and backward, mean over the nodes
//! training                 seconds of training in rounds 1 to t, summed over the nodes
//! ```
//!
//! Nodes that rest in a round count with the round in which they trained last. The target is judged by test samples. So this
//! compares the cost of algorithms, and is no way to choose when to stop.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::compare::{Comparison, Group};
use super::html::{self, numbers, words};
use super::run::Run;
use super::stats::{self, Moments};
use super::words::{bytes, decimal, duration, escape, known, large, percent};
use crate::swarm::summary;
use fednode_cli::table;

/// The cost up to a round.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Effort {
    /// The round.
    pub(crate) rounds: u32,
    /// Bytes on the wire, both ways, mean over the nodes.
    pub(crate) bytes_per_node: f64,
    /// Multiply-adds of training, mean over the nodes; `None` if a record has none.
    pub(crate) multiply_adds_per_node: Option<f64>,
    /// Seconds of training, summed over the nodes.
    pub(crate) train_seconds: f64,
}

/// The cost of runs that differ in the seed only: means over those that reached the target.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Efforts {
    /// Runs.
    pub(crate) runs: usize,
    /// Runs that reached the target. The other fields are about these.
    pub(crate) reached: usize,
    /// Rounds.
    pub(crate) rounds: Option<Moments>,
    /// Bytes per node.
    pub(crate) bytes_per_node: Option<Moments>,
    /// Multiply-adds per node.
    pub(crate) multiply_adds_per_node: Option<Moments>,
    /// Seconds of training.
    pub(crate) train_seconds: Option<Moments>,
}

/// Returns the cost of a run until its accuracy, 0 to 1, was `target` or more.
pub(crate) fn effort(run: &Run, target: f64) -> Option<Effort> {
    let nodes: BTreeSet<_> = run.records.iter().map(|record| record.node_id).collect();
    // R² of a number counts by how much the node's numbers vary.
    let summary = run.summary.as_ref();
    let is_number = summary.is_some_and(|summary| summary.target.is_some());
    let of_numbers = run.nodes.iter().filter(|_| is_number);
    let variations: BTreeMap<&str, f64> = of_numbers
        .map(|node| (node.node_id.as_str(), node.weight))
        .collect();
    let mut newest: BTreeMap<_, (f64, f64)> = BTreeMap::new();
    let (mut wire, mut train_seconds, mut multiply_adds) = (0.0, 0.0, Some(0.0));
    for (round, records) in run.by_round() {
        for record in records {
            wire += (record.bytes_sent.wire + record.bytes_received.wire) as f64;
            multiply_adds = multiply_adds
                .zip(record.multiply_adds)
                .map(|(sum, more)| sum + more as f64);
            train_seconds += known(record.train_seconds).unwrap_or(0.0);
            if let Some(accuracy) = known(record.accuracy) {
                let variation = variations.get(record.node_id.to_string().as_str());
                let weight = variation.copied().unwrap_or(f64::from(record.test_samples));
                newest.insert(record.node_id, (accuracy, weight));
            }
        }
        let weights: f64 = newest.values().map(|(_, weight)| weight).sum();
        if weights > 0.0 && summary::weighted_mean(newest.values().copied()) >= target {
            let n_nodes = nodes.len() as f64;
            let (bytes_per_node, multiply_adds_per_node) =
                (wire / n_nodes, multiply_adds.map(|sum| sum / n_nodes));
            return Some(Effort {
                rounds: round.0,
                bytes_per_node,
                multiply_adds_per_node,
                train_seconds,
            });
        }
    }
    None
}

/// Sums up the cost of the runs of a group.
pub(crate) fn efforts<'a>(runs: impl Iterator<Item = &'a Run>, target: f64) -> Efforts {
    let all: Vec<Option<Effort>> = runs.map(|run| effort(run, target)).collect();
    let of = |number: fn(&Effort) -> f64| stats::moments(all.iter().flatten().map(number));
    let multiply_adds: Option<Vec<f64>> = all
        .iter()
        .flatten()
        .map(|effort| effort.multiply_adds_per_node)
        .collect();
    Efforts {
        runs: all.len(),
        reached: all.iter().flatten().count(),
        rounds: of(|effort| f64::from(effort.rounds)),
        bytes_per_node: of(|effort| effort.bytes_per_node),
        multiply_adds_per_node: multiply_adds.and_then(stats::moments),
        train_seconds: of(|effort| effort.train_seconds),
    }
}

const COLUMNS: [&str; 6] = [
    "runs",
    "reached by",
    "rounds",
    "bytes per node",
    "multiply-adds per node",
    "training",
];

impl Efforts {
    /// Returns the cells of a row.
    fn cells(&self, name: String) -> Vec<String> {
        let mean = |moments: &Option<Moments>| moments.as_ref().map(|moments| moments.mean);
        let rounds = match &self.rounds {
            Some(Moments {
                mean,
                deviation: Some(deviation),
                ..
            }) => {
                format!("{} ± {}", decimal(*mean, 1), decimal(*deviation, 1))
            }
            rounds => decimal(mean(rounds), 0),
        };
        let reached = format!("{} of {}", self.reached, self.runs);
        let multiply_adds = large(mean(&self.multiply_adds_per_node));
        let (bytes, training) = (
            bytes(mean(&self.bytes_per_node)),
            duration(mean(&self.train_seconds)),
        );
        vec![name, reached, rounds, bytes, multiply_adds, training]
    }
}

/// Writes the table of a comparison for a terminal, if a target was named.
pub(crate) fn table(comparison: &Comparison) -> Option<String> {
    let [runs, others @ ..] = COLUMNS;
    let columns: Vec<table::Column> = std::iter::once(table::text(runs))
        .chain(others.map(table::number))
        .collect();
    let row = |group: &Group| Some(group.to_target.as_ref()?.cells(group.name.clone()));
    let rows: Vec<Vec<String>> = comparison.groups.iter().filter_map(row).collect();
    Some(format!(
        "\nto reach {}:\n{}",
        percent(comparison.target?),
        table::render(&columns, &rows)
    ))
}

/// Writes the table of a comparison for the page.
pub(crate) fn section<'a>(
    groups: impl Iterator<Item = (&'a str, &'a Efforts)>,
    target: f64,
) -> String {
    let [runs, others @ ..] = COLUMNS;
    let columns: Vec<html::Column> = std::iter::once(words(runs))
        .chain(others.map(numbers))
        .collect();
    let rows: Vec<Vec<String>> = groups
        .map(|(name, efforts)| efforts.cells(escape(name)))
        .collect();
    format!(
        "<h3>What it took to reach {}</h3>\n<p class=\"soft\">Means over the runs that got there. Accuracy by round is over every \
         node’s newest model after an exchange, weighted by test samples; bytes are those on the wire, both ways; \
         multiply-adds are those of convolutions and fully connected layers, forward and backward; training is the sum over the \
         nodes.</p>\n{}",
        percent(target),
        html::table(&columns, &rows)
    )
}

#[cfg(test)]
mod tests {
    use super::super::fixtures;
    use super::*;
    use fednode_runtime::status::Bytes;

    fn run() -> Run {
        let mut records = fixtures::records(1);
        for record in &mut records {
            record.bytes_sent = Bytes {
                wire: 100,
                ..Bytes::default()
            };
            record.bytes_received = Bytes {
                wire: 20,
                ..Bytes::default()
            };
            record.multiply_adds = Some(1_500);
        }
        Run::finished(
            std::path::Path::new("x"),
            "x".into(),
            fixtures::summary(1),
            records,
        )
    }

    /// After round 1 the nodes are at 25.1, 50.1 and 65.1 % of 10, 20 and 30 samples: 53.4 %; after round 2 at 78.4 %.
    #[test]
    fn a_target_is_reached_in_the_first_round_that_is_good_enough() {
        let multiply_adds_per_node = Some(1_500.0);
        let first = Effort {
            rounds: 1,
            bytes_per_node: 120.0,
            multiply_adds_per_node,
            train_seconds: 24.0,
        };
        assert_eq!(effort(&run(), 0.534), Some(first));
        let multiply_adds_per_node = Some(3_000.0);
        let second = Effort {
            rounds: 2,
            bytes_per_node: 240.0,
            multiply_adds_per_node,
            train_seconds: 48.0,
        };
        assert_eq!(effort(&run(), 0.535), Some(second));
        assert_eq!(effort(&run(), 0.79), None);
        let mut older = run();
        older.records[0].multiply_adds = None;
        assert_eq!(
            effort(&older, 0.535),
            Some(Effort {
                multiply_adds_per_node: None,
                ..second
            })
        );
    }

    /// R² counts by how much each node's numbers vary: (25.1 · 30 + 50.1 · 20 + 65.1 · 10) / 60 is 40.1 % after round 1.
    #[test]
    fn nodes_that_predict_a_number_count_as_in_the_table() {
        let mut summary = fixtures::summary(1);
        summary.target = Some("stay".into());
        for (node, variation) in summary.per_node.iter_mut().zip([30.0, 20.0, 10.0]) {
            node.variation = Some(variation);
        }
        let folder = std::path::Path::new("x");
        let run = Run::finished(folder, "x".into(), summary, fixtures::records(1));
        let rounds = |target| effort(&run, target).map(|effort| effort.rounds);
        assert_eq!((rounds(0.40), rounds(0.41)), (Some(1), Some(2)));
    }

    /// The node of 90.1 % rests in round 2. It still counts with the 65.1 % of round 1, and costs nothing.
    #[test]
    fn resting_node_counts_with_its_newest_model() {
        let mut run = run();
        run.records
            .retain(|record| record.round.0 == 1 || record.node_id != fixtures::node_id(3));
        assert_eq!(
            effort(&run, 0.65).map(|effort| (effort.rounds, effort.bytes_per_node)),
            Some((2, 200.0))
        );
        assert_eq!(effort(&run, 0.67), None);
    }

    #[test]
    fn runs_that_do_not_get_there_are_counted_and_left_out() {
        let mut worse = run();
        worse.records.truncate(3);
        let efforts = efforts([&run(), &worse].into_iter(), 0.7);
        assert_eq!(
            (
                efforts.runs,
                efforts.reached,
                efforts.rounds.map(|rounds| rounds.mean)
            ),
            (2, 1, Some(2.0))
        );
        let text = section([("a < b", &efforts)].into_iter(), 0.7);
        assert!(
            text.contains("a &lt; b") && text.contains("1 of 2") && text.contains("70.0 %"),
            "{text}"
        );
    }
}
