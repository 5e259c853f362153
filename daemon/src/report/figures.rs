//! Which plots a run gets, and the numbers in them.

use std::collections::BTreeMap;

use fednode_core::{PoolMember, Round};
use fednode_runtime::status::RoundRecord;

use super::bars::{Groups, Stacks};
use super::compare::Group;
use super::heat::{self, Cell, Heat};
use super::lines::{self, Lines};
use super::run::{Comparator, Node, Run, module_owners, short};
use super::stats;
use super::svg::{COLOURS, Plot};
use super::words::{bytes, known};
use crate::swarm::collect;

/// Nodes side by side in one plot of bars.
const BARS: usize = 20;
/// Most nodes whose bars are drawn; all are in the table and in `nodes.csv`.
pub(crate) const MOST_BARS: usize = 200;
/// Most rows of a heat map; all values are in `modules.csv`.
pub(crate) const MOST_ROWS: usize = 100;

/// Draws all plots of a run for which it has numbers.
pub(crate) fn all(run: &Run) -> Vec<Plot> {
    let curves = [accuracy(run), loss(run)];
    let heats = [similarity(run), gate_mass(run), scores(run), experts(run)];
    let costs = [traffic(run), time(run)];
    curves
        .into_iter()
        .flatten()
        .chain(nodes(run))
        .chain(heats.into_iter().chain(costs).flatten())
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
                      node counting the same; dashed: median before the exchange, in the rounds in which it was evaluated.",
        slug: "accuracy",
        label: "test accuracy",
        unit: lines::Unit::Share,
        spread: spread(by_round(run, |record| record.accuracy)),
        others: vec![("median before the exchange", before)],
    }
    .draw()
}

fn loss(run: &Run) -> Option<Plot> {
    Lines {
        title: "Loss by round, after the exchange",
        description: "Mean cross-entropy in nats on the test samples after each round's exchange: median, middle half and \
                      all nodes; dashed: median of the training loss in the last local epoch.",
        slug: "loss",
        label: "loss (nats)",
        unit: lines::Unit::Number,
        spread: spread(by_round(run, |record| record.loss)),
        others: vec![("median training loss", medians(by_round(run, |record| (record.n_samples > 0).then_some(record.train_loss))))],
    }
    .draw()
}

/// One way to judge a node: its name, and the accuracy.
type Measure = (&'static str, fn(&Node) -> Option<f64>);

fn nodes(run: &Run) -> Vec<Plot> {
    let plain: [Measure; 4] = [
        ("before exchange", |node| node.before_exchange),
        ("after exchange", |node| node.accuracy),
        ("after the last stage", |node| node.after_last_stage),
        ("majority-class floor", |node| node.floor),
    ];
    let pool: [Measure; 6] = [
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
    let about = "Accuracy on each node's own test samples in its last round, before and after the exchange and after the \
                 stage that follows the rounds, if there is one, beside what always saying the commonest class reaches.";
    let mut plots = panels(run, ("nodes", rounds, about), &plain);
    if run.has_pool() {
        let about = "Accuracy on each node's own test samples of the model with its own module, and of what the pool \
                     makes of it, without the statistics expert; “served” is the model that the node ends with, with \
                     that expert where there is one. The mark across a group is the own module's height.";
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
fn panels(run: &Run, (slug, title, about): (&str, &str, &str), measures: &[Measure]) -> Vec<Plot> {
    let has = |measure: &&Measure| run.nodes.iter().any(|node| measure.1(node).is_some());
    let used: Vec<&Measure> = measures.iter().filter(has).collect();
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

/// Makes the rows and columns of a heat map of nodes by owners of modules. A cell is made of the member of the row's pool,
/// if it is one, and of whether it is the row's own.
fn modules(
    run: &Run,
    cell: impl Fn(Option<&PoolMember>, Whose) -> Cell,
) -> (Vec<String>, Vec<(String, Vec<Cell>)>) {
    let owners: Vec<String> = module_owners(run).into_iter().take(MOST_ROWS).collect();
    let labels: BTreeMap<&str, &str> = run
        .nodes
        .iter()
        .map(|node| (node.node_id.as_str(), node.label.as_str()))
        .collect();
    let row = |node: &Node| {
        let members = &node.pool.as_ref()?.members;
        let own = members.iter().find(|member| member.node.is_none());
        let foreign: BTreeMap<String, &PoolMember> = members
            .iter()
            .filter_map(|member| Some((member.node?.to_string(), member)))
            .collect();
        let of = |owner: &String| match *owner == node.node_id {
            true => cell(own, Whose::Own),
            false => cell(foreign.get(owner).copied(), Whose::Foreign),
        };
        Some((node.label.clone(), owners.iter().map(of).collect()))
    };
    let rows = run.nodes.iter().filter_map(row).take(MOST_ROWS).collect();
    let label = |owner: &String| {
        labels
            .get(owner.as_str())
            .map_or_else(|| short(owner), |label| (*label).to_owned())
    };
    (owners.iter().map(label).collect(), rows)
}

/// Whose module it is, seen from a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    Own,
    Foreign,
}

fn gate_mass(run: &Run) -> Option<Plot> {
    let (columns, rows) = modules(run, |member, _| match member {
        Some(member) if member.kept => Cell::Value(member.gate_mass),
        Some(member) => Cell::LeftOut(member.gate_mass),
        None => Cell::Absent,
    });
    Heat {
        title: "Gate mass: whose module each node listens to (per cent)",
        description: "Mean weight that each node's gate gives to each module, over its validation samples; the own module \
                      lies on the diagonal. A corner cut marks a module that was left out; “–” one that was not there.",
        slug: "gate-mass",
        columns_label: "module of node",
        columns,
        rows,
        range: Some((0.0, 1.0)),
        unit: heat::Unit::Share,
    }
    .draw()
}

fn scores(run: &Run) -> Option<Plot> {
    let (columns, rows) = modules(run, |member, whose| {
        match (whose, member.map(|member| (member.score, member.kept))) {
            (Whose::Own, _) => Cell::Own,
            (Whose::Foreign, None | Some((None, _))) => Cell::Absent,
            (Whose::Foreign, Some((Some(score), true))) => Cell::Value(score),
            (Whose::Foreign, Some((Some(score), false))) => Cell::LeftOut(score),
        }
    });
    Heat {
        title: "How well each module fits each node (energy; more is more alike)",
        description: "Score of each foreign module's outputs beside the own module's, by which the least fitting are left \
                      out. A corner cut marks a module that was left out; “–” one that was not there.",
        slug: "scores",
        columns_label: "module of node",
        columns,
        rows,
        range: None,
        unit: heat::Unit::Score,
    }
    .draw()
}

fn similarity(run: &Run) -> Option<Plot> {
    let ids: Vec<(&str, &str)> = run
        .nodes
        .iter()
        .map(|node| (node.node_id.as_str(), node.label.as_str()))
        .take(MOST_ROWS)
        .collect();
    let mut newest: BTreeMap<String, BTreeMap<String, f64>> = BTreeMap::new();
    for record in run.records.iter().filter(|record| !record.mixed.is_empty()) {
        let mixed = record
            .mixed
            .iter()
            .map(|mixed| (mixed.node.to_string(), mixed.similarity));
        newest.insert(record.node_id.to_string(), mixed.collect());
    }
    let row = |(id, label): &(&str, &str)| {
        let mixed = newest.get(*id)?;
        let cell = |(owner, _): &(&str, &str)| match mixed.get(*owner) {
            _ if owner == id => Cell::Own,
            Some(similarity) => Cell::Value(*similarity),
            None => Cell::Absent,
        };
        Some(((*label).to_owned(), ids.iter().map(cell).collect()))
    };
    Heat {
        title: "Whose experts each node mixed in, and how alike they are",
        description: "Highest cosine similarity of a proxy of the column's node with one of the row's, in the last round in \
                      which the row's node mixed in experts of others; “–” where it mixed in none of that node's.",
        slug: "similarity",
        columns_label: "experts of node",
        columns: ids.iter().map(|(_, label)| (*label).to_owned()).collect(),
        rows: ids.iter().filter_map(row).collect(),
        range: None,
        unit: heat::Unit::Score,
    }
    .draw()
}

fn experts(run: &Run) -> Option<Plot> {
    let n_experts = run.nodes.iter().map(|node| node.expert_share.len()).max()?;
    let cells = |node: &Node| {
        let share = |at: usize| {
            node.expert_share
                .get(at)
                .map_or(Cell::Absent, |share| Cell::Value(*share))
        };
        (node.label.clone(), (0..n_experts).map(share).collect())
    };
    // One expert that decides everything is no picture.
    let rows = if n_experts > 1 {
        run.nodes.iter().take(MOST_ROWS).map(cells).collect()
    } else {
        Vec::new()
    };
    Heat {
        title: "Which of its experts decides a node's test samples (per cent)",
        description: "Share of each node's test samples that its own gate sends to each of its experts, in its last round.",
        slug: "experts",
        columns_label: "expert",
        columns: (0..n_experts).map(|at| at.to_string()).collect(),
        rows,
        range: Some((0.0, 1.0)),
        unit: heat::Unit::Share,
    }
    .draw()
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
        description: "Mean over nodes. With the aggregator both ways; from peer to peer, gossip and control what was \
                      received, for what one node receives another has sent.",
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
                      what was computed takes time.",
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
    use fednode_core::MixedIn;

    use super::super::fixtures;
    use super::*;

    fn run() -> Run {
        Run::finished(
            std::path::Path::new("x"),
            "x".into(),
            fixtures::summary(1),
            fixtures::records(1),
        )
    }

    #[test]
    fn every_plot_that_has_numbers_is_drawn() {
        let plots = all(&run());
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
    fn own_lies_on_the_diagonal_and_what_was_dropped_is_marked() {
        let text = gate_mass(&run()).unwrap().inline();
        assert!(
            text.contains("node 2, module of node 2: 70<")
                && text.contains("node 2, module of node 3: 15, left out"),
            "{text}"
        );
        let text = scores(&run()).unwrap().inline();
        assert!(
            text.contains("node 1, module of node 1: its own")
                && text.contains("node 3, module of node 2: 2.12"),
            "{text}"
        );
    }

    #[test]
    fn whose_experts_were_mixed_in_is_a_heat_map() {
        let mut records = fixtures::records(1);
        let mixed = |at: usize, similarity| MixedIn {
            node: fixtures::node_id(at),
            similarity,
            weight: 0.1,
        };
        // Node 1 mixed in those of node 3 in round 1 and of node 2 in round 2; node 3 none at all.
        records[0].mixed = vec![mixed(3, 0.9)];
        records[3].mixed = vec![mixed(2, 0.75)];
        records[1].mixed = vec![mixed(1, 0.25)];
        let run = Run::finished(
            std::path::Path::new("x"),
            "x".into(),
            fixtures::summary(1),
            records,
        );
        let text = similarity(&run).unwrap().inline();
        let cells = [
            "node 1, experts of node 2: 0.75",
            "node 2, experts of node 1: 0.25",
            "node 1, experts of node 1: its own",
        ];
        assert!(
            cells.iter().all(|cell| text.contains(cell)) && !text.contains(": 0.90"),
            "{text}"
        );
        assert!(similarity(&self::run()).is_none(), "nothing was mixed");
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
        let runs = [run()];
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
        let mut run = run();
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
