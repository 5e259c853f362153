//! Which plots a run gets, and the numbers in them.

mod heats;

use std::collections::BTreeMap;

use fednode_core::{Judged, Round};
use fednode_measure::{Better, Measure};
use fednode_runtime::status::RoundRecord;

use super::bars::{Groups, Stacks};
use super::compare::Group;
use super::lines::{self, Lines};
use super::run::{Comparator, Node, Run};
use super::stats;
use super::svg::{COLOURS, Plot};
use super::words::{bytes, known};
use crate::swarm::collect;

/// Nodes side by side in one plot of bars.
const BARS: usize = 20;
/// Largest number of nodes whose bars are drawn. The table and `nodes.csv` have all nodes.
pub(crate) const MOST_BARS: usize = 200;
/// Largest number of rows of a heat map. `modules.csv` has all values.
pub(crate) const MOST_ROWS: usize = 100;

/// Draws all plots for which a run has numbers.
pub(crate) fn all(run: &Run) -> Vec<Plot> {
    let curves = [accuracy(run), judged(run), loss(run)];
    let costs = [traffic(run), time(run)];
    curves
        .into_iter()
        .flatten()
        .chain(nodes(run))
        .chain(heats::all(run))
        .chain(costs.into_iter().flatten())
        .collect()
}

/// Draws the accuracy of each group of runs by round.
pub(crate) fn side_by_side(runs: &[Run], groups: &[Group]) -> Option<Plot> {
    let curve = |group: &Group| {
        let mut rounds: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
        for run in runs.iter().filter(|run| group.runs.contains(&run.name)) {
            for (round, values) in by_round(run, |record| record.accuracy) {
                rounds.entry(round).or_default().extend(values);
            }
        }
        let means = rounds
            .into_iter()
            .filter_map(|(round, values)| Some((round, stats::moments(values)?.mean)));
        means.collect::<Vec<(u32, f64)>>()
    };
    Lines {
        title: "Accuracy by round, after the exchange, of each group of runs",
        description: "Mean test accuracy after each round's exchange over all nodes of all runs of a group, every node \
                      counting the same.",
        slug: "compare-accuracy",
        label: "test accuracy",
        unit: lines::Unit::Share,
        spread: Vec::new(),
        others: groups.iter().take(2 * COLOURS).map(|group| (group.name.as_str(), curve(group))).collect(),
    }
    .draw()
}

/// Returns a value of each node, round by round, where it is known.
fn by_round(run: &Run, of: impl Fn(&RoundRecord) -> Option<f64>) -> Vec<(u32, Vec<f64>)> {
    let values = |records: Vec<&RoundRecord>| {
        records
            .into_iter()
            .filter_map(&of)
            .filter_map(known)
            .collect::<Vec<_>>()
    };
    let rounds = run
        .by_round()
        .into_iter()
        .map(|(round, records)| (round.0, values(records)));
    rounds.filter(|(_, values)| !values.is_empty()).collect()
}

fn spread(values: Vec<(u32, Vec<f64>)>) -> Vec<(u32, stats::Spread)> {
    values
        .into_iter()
        .filter_map(|(round, values)| Some((round, stats::spread(values)?)))
        .collect()
}

fn medians(values: Vec<(u32, Vec<f64>)>) -> Vec<(u32, f64)> {
    spread(values)
        .into_iter()
        .map(|(round, spread)| (round, spread.median))
        .collect()
}

fn accuracy(run: &Run) -> Option<Plot> {
    let before = medians(by_round(run, |record| record.accuracy_after_local_training));
    Lines {
        title: "Accuracy by round, after the exchange",
        description: "Test accuracy of the nodes after each round's exchange: median, middle half and all nodes, every \
                      node counting the same. Dashed: median before the exchange, in the rounds in which it was evaluated.",
        slug: "accuracy",
        label: "test accuracy",
        unit: lines::Unit::Share,
        spread: spread(by_round(run, |record| record.accuracy)),
        others: vec![("median before the exchange", before)],
    }
    .draw()
}

/// Draws the measure that the federation names, if it names another one.
fn judged(run: &Run) -> Option<Plot> {
    let of = |judged: &Option<Judged>| judged.as_ref().and_then(|judged| judged.value);
    let named = run.records.iter().find_map(|record| record.judged.as_ref());
    let measure: Measure = named?.measure.parse().ok()?;
    if measure == Measure::Accuracy {
        return None;
    }
    let before = medians(by_round(run, |record| {
        of(&record.judged_after_local_training)
    }));
    let less = match measure.better() {
        Better::Higher => "",
        Better::Lower => " Less is better.",
    };
    Lines {
        title: &format!("{} by round, after the exchange", measure.label()),
        description: &format!(
            "The measure that the federation names, on the test samples of the nodes after each round's exchange: median, \
             middle half and all nodes, every node counting the same. Dashed: median before the exchange, in the rounds in \
             which it was evaluated.{less}"
        ),
        slug: measure.name(),
        label: measure.label(),
        unit: if measure.is_share() { lines::Unit::Share } else { lines::Unit::Number },
        spread: spread(by_round(run, |record| of(&record.judged))),
        others: vec![("median before the exchange", before)],
    }
    .draw()
}

fn loss(run: &Run) -> Option<Plot> {
    Lines {
        title: "Loss by round, after the exchange",
        description: "Mean cross-entropy in nats on the test samples after each round's exchange: median, middle half and \
                      all nodes. Dashed: median of the training loss in the last local epoch.",
        slug: "loss",
        label: "loss (nats)",
        unit: lines::Unit::Number,
        spread: spread(by_round(run, |record| record.loss)),
        others: vec![("median training loss", medians(by_round(run, |record| record.training_loss().filter(|_| record.n_samples > 0))))],
    }
    .draw()
}

/// One way to judge a node: its name, and the accuracy.
type Judging = (&'static str, fn(&Node) -> Option<f64>);

fn nodes(run: &Run) -> Vec<Plot> {
    let plain: [Judging; 4] = [
        ("before exchange", |node| node.before_exchange),
        ("after exchange", |node| node.accuracy),
        ("after the last stage", |node| node.after_last_stage),
        ("majority-class floor", |node| node.floor),
    ];
    let pool: [Judging; 6] = [
        (Comparator::Own.name(), |node| {
            node.pool_accuracy(Comparator::Own)
        }),
        (Comparator::Mixture.name(), |node| {
            node.pool_accuracy(Comparator::Mixture)
        }),
        (Comparator::Served.name(), |node| {
            node.pool_accuracy(Comparator::Served)
        }),
        (Comparator::FineTunedHead.name(), |node| {
            node.pool_accuracy(Comparator::FineTunedHead)
        }),
        (Comparator::Uniform.name(), |node| {
            node.pool_accuracy(Comparator::Uniform)
        }),
        (Comparator::WithoutDenoising.name(), |node| {
            node.pool_accuracy(Comparator::WithoutDenoising)
        }),
    ];
    let rounds = "Accuracy of each node in its last round";
    let about = "Accuracy on each node's own test samples in its last round: before and after the exchange, and after the \
                 last stage, if there is one. The floor is the accuracy of always predicting the commonest class.";
    let mut plots = panels(run, ("nodes", rounds, about), &plain);
    if run.has_pool() {
        let about = "Accuracy on each node's own test samples: of the model with the own module, and of the pool without \
                     the statistics expert. “Served” is the model that the node ends with, with the statistics expert \
                     if there is one. The mark across a group is the height of the own module.";
        plots.extend(panels(
            run,
            (
                "pool",
                "The pool of private modules against the own module",
                about,
            ),
            &pool,
        ));
    }
    plots
}

/// Draws bars for so many nodes at a time, without the measures that no node has.
fn panels(run: &Run, (slug, title, about): (&str, &str, &str), measures: &[Judging]) -> Vec<Plot> {
    let has = |measure: &&Judging| run.nodes.iter().any(|node| measure.1(node).is_some());
    let used: Vec<&Judging> = measures.iter().filter(has).collect();
    let shown = &run.nodes[..run.nodes.len().min(MOST_BARS)];
    let panel = |(at, chunk): (usize, &[Node])| {
        let (first, last) = (chunk.first()?.label.as_str(), chunk.last()?.label.as_str());
        let is_part = shown.len() > BARS;
        let title = if is_part {
            format!("{title}: nodes {first} to {last}")
        } else {
            title.to_owned()
        };
        let slug = if is_part {
            format!("{slug}-{}", at + 1)
        } else {
            slug.to_owned()
        };
        let groups = chunk.iter().map(|node| {
            (
                node.label.as_str(),
                used.iter().map(|(_, of)| of(node)).collect(),
            )
        });
        let groups: Vec<(&str, Vec<Option<f64>>)> = groups.collect();
        let names = used.iter().map(|(name, _)| *name).collect();
        Groups {
            title: &title,
            description: about,
            slug: &slug,
            names,
            baseline: 0,
            groups,
        }
        .draw()
    };
    if used.is_empty() {
        Vec::new()
    } else {
        shown.chunks(BARS).enumerate().filter_map(panel).collect()
    }
}

/// Returns the means over nodes of the parts of each round.
fn means(run: &Run, parts: impl Fn(&RoundRecord) -> Vec<f64>) -> Vec<(u32, Vec<f64>)> {
    let mean = |(round, records): (Round, Vec<&RoundRecord>)| {
        let count = records.len().max(1) as f64;
        let all: Vec<Vec<f64>> = records.into_iter().map(&parts).collect();
        let n_parts = all.first().map_or(0, Vec::len);
        (
            round.0,
            (0..n_parts)
                .map(|part| all.iter().map(|parts| parts[part]).sum::<f64>() / count)
                .collect(),
        )
    };
    run.by_round().into_iter().map(mean).collect()
}

fn traffic(run: &Run) -> Option<Plot> {
    Stacks {
        title: "Bytes of one node in one round, by kind",
        description: "Mean over nodes. With the aggregator: both directions. Peer to peer, gossip and control: received \
                      bytes only, because every byte that one node receives is sent by another.",
        slug: "bytes",
        label: "bytes",
        unit: |value, _| bytes(value),
        names: vec!["aggregator", "peer to peer", "gossip", "control"],
        rounds: means(run, |record| {
            let (sent, received) = (record.bytes_sent, record.bytes_received);
            let kinds =
                [sent.aggregator + received.aggregator, received.peer_to_peer, received.gossip, received.control];
            kinds.map(|bytes| bytes as f64).to_vec()
        }),
    }
    .draw()
}

fn time(run: &Run) -> Option<Plot> {
    let records: Vec<&RoundRecord> = run.records.iter().collect();
    let ready = collect::everybody_ready(&records);
    Stacks {
        title: "Where the time of a round went",
        description: "Mean over nodes, in seconds. Waiting for slower nodes: others still trained. In a simulation only \
                      computation takes time.",
        slug: "time",
        label: "seconds",
        unit: |value, decimals| format!("{value:.decimals$} s"),
        names: vec![
            "training",
            "waiting for slower nodes",
            "waiting for experts",
            "waiting for the mean",
            "merging",
            "evaluating",
            "saving and publishing",
            "other",
        ],
        rounds: means(run, |record| {
            let facts = collect::facts(record, ready.get(&record.round).copied().unwrap_or(f64::MIN));
            let by_cause: BTreeMap<&str, f64> = facts.waited.iter().copied().collect();
            let of = |causes: &[&str]| causes.iter().filter_map(|cause| by_cause.get(cause)).sum::<f64>();
            let known = facts.train_seconds + by_cause.values().sum::<f64>();
            let mut parts = vec![facts.train_seconds];
            parts.extend(["stragglers", "experts", "global", "merge", "evaluate"].map(|cause| of(&[cause])));
            parts.extend([of(&["save", "publish"]), (facts.round_seconds - known).max(0.0)]);
            parts
        }),
    }
    .draw()
}

#[cfg(test)]
mod tests {
    use super::super::fixtures;
    use super::*;

    #[test]
    fn every_plot_that_has_numbers_is_drawn() {
        let plots = all(&fixtures::run());
        let slugs: Vec<&str> = plots.iter().map(|plot| plot.slug.as_str()).collect();
        let want = [
            "accuracy",
            "loss",
            "nodes",
            "pool",
            "gate-mass",
            "scores",
            "experts",
            "bytes",
            "time",
        ];
        assert_eq!(slugs, want);
        assert!(plots.iter().all(|plot| !plot.standalone().contains("NaN")));
    }

    #[test]
    fn a_run_that_is_judged_by_another_measure_has_its_curve_too() {
        let slugs = |measure: &str| {
            let mut run = fixtures::run();
            for record in &mut run.records {
                record.judged = record.accuracy.map(|accuracy| Judged {
                    measure: measure.to_owned(),
                    value: Some(1.0 - accuracy),
                });
            }
            let plots = all(&run).into_iter().take(3);
            plots.map(|plot| plot.slug).collect::<Vec<_>>()
        };
        assert_eq!(slugs("log-loss"), ["accuracy", "log-loss", "loss"]);
        assert_eq!(slugs("accuracy"), ["accuracy", "loss", "nodes"]);
    }

    #[test]
    fn a_run_under_way_has_what_its_rounds_say() {
        let records = fixtures::records(1)
            .into_iter()
            .take(4)
            .map(|record| (None, record))
            .collect();
        let run = Run::under_way(std::path::Path::new("x"), "x".into(), None, records, 0);
        let slugs: Vec<String> = all(&run).into_iter().map(|plot| plot.slug).collect();
        assert_eq!(
            slugs,
            ["accuracy", "loss", "nodes", "experts", "bytes", "time"]
        );
    }

    #[test]
    fn each_group_of_runs_has_its_curve() {
        let runs = [fixtures::run()];
        let text = side_by_side(&runs, &super::super::compare::compare(&runs, None).groups)
            .unwrap()
            .inline();
        assert!(
            text.contains(">x</text>") && text.matches("<polyline").count() == 1,
            "{text}"
        );
    }

    #[test]
    fn many_nodes_are_several_plots() {
        let mut run = fixtures::run();
        let node = run.nodes[0].clone();
        run.nodes = (1..=45)
            .map(|shard| Node {
                label: shard.to_string(),
                ..node.clone()
            })
            .collect();
        let plots = panels(
            &run,
            ("nodes", "t", "d"),
            &[("after exchange", |node| node.accuracy)],
        );
        assert_eq!(
            plots
                .iter()
                .map(|plot| plot.slug.as_str())
                .collect::<Vec<_>>(),
            ["nodes-1", "nodes-2", "nodes-3"]
        );
    }
}
