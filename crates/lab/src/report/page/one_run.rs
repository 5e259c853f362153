//! The part of a page about one run: its numbers, plots, nodes, pools and settings.

use super::{Shown, contrasts, rounds};
use crate::control::Worth;
use crate::report::figures::{MOST_BARS, MOST_ROWS};
use crate::report::html::{self, numbers, words};
use crate::report::run::{Comparator, Headline, Node, Run, short};
use crate::report::words::{ABSENT, bytes, duration, escape, percent, quoted};
use crate::swarm::summary::{self, Summary};

/// Writes it.
pub(super) fn section(shown: &Shown<'_>) -> String {
    let run = shown.run;
    let mut text = about(run);
    text += &format!("<dl class=\"numbers\">\n{}</dl>\n", headline(run));
    if !shown.pools.is_empty() {
        text += "<h3>What the pool is worth, over the nodes of this run</h3>\n";
        text += &contrasts::table(&shown.pools);
    }
    text.extend(shown.plots.iter().map(html::figure));
    if run.nodes.len() > MOST_BARS.min(MOST_ROWS) {
        text += &format!(
            "<p>Bars are drawn of {MOST_BARS} nodes and heat maps of {MOST_ROWS} at most; <code>--csv</code> writes all.</p>\n"
        );
    }
    text += &html::details("Nodes", &nodes(run));
    if run.has_pool() {
        text += &html::details("Pools", &pools(run));
    }
    text += &html::details("Effective configuration", &settings(run));
    let folder = quoted(&run.folder.display().to_string());
    text += &format!(
        "<p>Read again with</p>\n<pre>{}</pre>\n",
        escape(&format!("fednode report {folder} --csv csv --plots plots"))
    );
    text
}

fn about(run: &Run) -> String {
    let mut text = match &run.summary {
        Some(summary) => format!(
            "<p>{} on {} ({}), {} nodes, {} rounds, seed {}, {}; in <code>{}</code></p>\n",
            escape(&summary.algorithm),
            escape(&summary.data),
            escape(&summary.partition),
            summary.nodes,
            summary.rounds,
            summary.seed,
            escape(&summary.device),
            escape(&run.folder.display().to_string())
        ),
        None => format!(
            "<p>{}, {} nodes known; in <code>{}</code></p>\n<p class=\"warn\">Under way, or never finished: there is no \
             summary.json. The numbers are those of its rounds so far, up to round {}. Accuracies are those of each node’s \
             own last round.</p>\n",
            escape(&run.algorithm),
            run.nodes.len(),
            escape(&run.folder.display().to_string()),
            escape(&rounds(run))
        ),
    };
    text += &worth(run.summary.as_ref());
    if run.torn_lines > 0 {
        text += &format!(
            "<p class=\"warn\">{} torn line(s) of metrics.jsonl were skipped.</p>\n",
            run.torn_lines
        );
    }
    for failed in run.failed() {
        text += &format!(
            "<p class=\"warn\">Failed: {}: {}</p>\n",
            escape(&failed.name),
            escape(&failed.reason)
        );
    }
    text
}

/// Says whether joining was worth it, and what accuracy means where a number is predicted.
fn worth(summary: Option<&Summary>) -> String {
    let Some(summary) = summary else {
        return String::new();
    };
    let sentence = summary.worth.as_ref().map(Worth::sentence);
    let mut text = sentence.map_or_else(String::new, |sentence| {
        format!("<p><strong>{}</strong></p>\n", escape(&sentence))
    });
    if let Some(target) = &summary.target {
        text += &format!(
            "<p>These nodes predict the number <code>{}</code>: what this page calls accuracy is R², the share of its variance \
             that is explained.</p>\n",
            escape(target)
        );
    }
    text
}

/// A number of the headline: its name, itself, and what it means.
type Number = (&'static str, fn(&Headline) -> Option<f64>, &'static str);

/// What goes before: by the measure of the federation, not as accuracy.
const JUDGED: [(&str, &str); 2] = [
    (
        "Served",
        "what the federation left the nodes with, by the measure above",
    ),
    (
        "Alone",
        "what each node does by itself, by the same measure",
    ),
];

const NUMBERS: [Number; 9] = [
    (
        "Mean accuracy, last round",
        |headline| headline.mean_accuracy,
        "after the exchange; weighted by test samples",
    ),
    (
        "Before the exchange",
        |headline| headline.mean_accuracy_before_exchange,
        "mean accuracy in the last round after local training; weighted by test samples",
    ),
    (
        "After the last stage",
        |headline| headline.mean_accuracy_after_last_stage,
        "mean accuracy of the models that the nodes end with (own tuning, pool); weighted by test samples",
    ),
    (
        "Unweighted mean",
        |headline| headline.unweighted_mean_accuracy,
        "last round, after the exchange; every node counts the same",
    ),
    (
        "Worst tenth",
        |headline| headline.worst_tenth_accuracy,
        "last round, after the exchange; mean of the lowest tenth of the nodes",
    ),
    (
        "Worst tenth, end",
        |headline| headline.worst_tenth_after_last_stage,
        "after the stage that follows the last round; mean of the lowest tenth of the nodes",
    ),
    (
        "Global test",
        |headline| headline.accuracy_on_everyone,
        "on everyone’s test samples, the models that the nodes end with; every node counts the same",
    ),
    (
        "Local test",
        |headline| headline.accuracy_on_own_classes,
        "on everyone’s test samples, classes weighted as each node has them; every node counts the same",
    ),
    (
        "Majority-class floor",
        |headline| headline.majority_class_accuracy,
        "of always predicting a node’s commonest training class; weighted by test samples",
    ),
];

fn headline(run: &Run) -> String {
    let headline = run.headline();
    let judged: String = JUDGED
        .iter()
        .zip(run.judged())
        .map(|((name, means), value)| html::number(name, &value, means))
        .collect();
    let accuracies: String = NUMBERS
        .into_iter()
        .map(|(name, of, means)| (name, of(&headline), means))
        // Only some runs are tested on everyone's samples.
        .filter(|(name, value, _)| value.is_some() || !name.ends_with("test"))
        .map(|(name, value, means)| html::number(name, &percent(value), means))
        .collect();
    judged + &accuracies + &run.summary.as_ref().map_or(String::new(), costs)
}

/// Writes the traffic and the time of a finished run.
fn costs(summary: &Summary) -> String {
    let traffic = summary.bytes_per_round;
    let kinds = format!(
        "per node and round, mean: {} with the aggregator, {} from peer to peer, {} gossip",
        bytes(traffic.aggregator),
        bytes(traffic.peer_to_peer),
        bytes(traffic.gossip)
    );
    let total = traffic.aggregator + traffic.peer_to_peer + traffic.gossip;
    let traffic = html::number("Traffic", &bytes(total), &kinds);
    let training = format!(
        "in all; {} of it in the local updates of a node, mean; {} of the rounds’ time was not training",
        duration(summary.train_seconds),
        percent(summary.overhead.share)
    );
    traffic + &html::number("Time", &duration(summary.wall_seconds), &training)
}

fn nodes(run: &Run) -> String {
    let columns = [
        words("node"),
        words("id"),
        numbers("last round"),
        numbers("train samples"),
        numbers("test samples"),
        words("classes"),
        numbers("floor"),
        numbers("before exchange"),
        numbers("after exchange"),
        numbers("after the last stage"),
        numbers("sent"),
        numbers("received"),
        numbers("memory"),
        words("made of"),
    ];
    let row = |node: &Node| {
        let classes: Vec<String> = node.classes.iter().map(u32::to_string).collect();
        let mut cells = vec![
            escape(&node.label),
            format!(
                "<code title=\"{}\">{}</code>",
                escape(&node.node_id),
                escape(&short(&node.node_id))
            ),
            node.last_round.to_string(),
            node.train_samples.to_string(),
            node.test_samples.to_string(),
            if classes.is_empty() {
                ABSENT.into()
            } else {
                classes.join(" ")
            },
        ];
        cells.extend(
            [
                node.floor,
                node.before_exchange,
                node.accuracy,
                node.after_last_stage,
            ]
            .map(percent),
        );
        cells.extend([node.bytes_sent, node.bytes_received, node.peak_rss_bytes].map(bytes));
        let made_of = node.composition.as_ref();
        cells.push(made_of.map_or_else(|| ABSENT.into(), ToString::to_string));
        cells
    };
    html::table(&columns, &run.nodes.iter().map(row).collect::<Vec<_>>())
}

fn pools(run: &Run) -> String {
    let mut columns = vec![words("node")];
    columns.extend(
        Comparator::ALL
            .iter()
            .map(|comparator| numbers(comparator.name())),
    );
    columns.extend([
        words("serves"),
        numbers("members kept"),
        numbers("own gate mass"),
        words("refused"),
    ]);
    let row = |node: &Node| {
        let pool = node.pool.as_ref()?;
        let mut cells = vec![escape(&node.label)];
        cells.extend(Comparator::ALL.map(|comparator| percent(node.pool_accuracy(comparator))));
        let kept = pool.members.iter().filter(|member| member.kept).count();
        let own = pool
            .members
            .iter()
            .find(|member| member.node.is_none())
            .map(|member| member.gate_mass);
        let refused: Vec<String> = pool
            .refused
            .iter()
            .map(|(node, why)| format!("{}: {why}", short(&node.to_string())))
            .collect();
        cells.push(match &pool.served {
            fednode_core::Served::Mixture => "the mixture".into(),
            fednode_core::Served::Own { reason } => format!("its own module: {}", escape(reason)),
        });
        cells.extend([format!("{kept} of {}", pool.members.len()), percent(own)]);
        cells.push(if refused.is_empty() {
            ABSENT.into()
        } else {
            escape(&refused.join("; "))
        });
        Some(cells)
    };
    let mut rows: Vec<Vec<String>> = run.nodes.iter().filter_map(row).collect();
    let mut mean = vec!["mean, weighted by test samples".to_owned()];
    mean.extend(Comparator::ALL.map(|comparator| percent(weighted(run, comparator))));
    mean.resize(columns.len(), String::new());
    rows.push(mean);
    html::table(&columns, &rows)
        + "<p class=\"soft\">Accuracies on test samples, without the statistics expert. “Served” is the model that the node \
           ends with, including the statistics expert if there is one.</p>\n"
}

fn weighted(run: &Run, comparator: Comparator) -> Option<f64> {
    let pairs = run
        .nodes
        .iter()
        .filter_map(|node| Some((node.pool_accuracy(comparator)?, node.test_samples)));
    let pairs: Vec<(f64, u32)> = pairs.collect();
    (!pairs.is_empty()).then(|| summary::weighted_mean(pairs))
}

fn settings(run: &Run) -> String {
    if run.settings.is_empty() {
        return "<p>Unknown: there is neither a summary.json nor a federation.toml.</p>\n".into();
    }
    let rows: Vec<Vec<String>> = run
        .settings
        .iter()
        .map(|(key, value)| {
            vec![
                format!("<code>{}</code>", escape(key)),
                format!("<code>{}</code>", escape(value)),
            ]
        })
        .collect();
    html::table(&[words("setting"), words("value")], &rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::NodeWorth;
    use crate::report::fixtures;

    #[test]
    fn a_run_begins_with_its_verdict_and_says_what_accuracy_means() {
        let mut summary = fixtures::summary(1);
        assert_eq!(worth(Some(&summary)), "");
        summary.target = Some("dose <mg>".into());
        summary.worth = Some(Worth {
            measure: fednode_measure::Measure::Mae,
            served: 3.0,
            alone: 4.0,
            difference: 1.0,
            interval: None,
            worst_node: NodeWorth {
                shard: 1,
                test_samples: 9,
                served: 3.0,
                alone: 4.0,
            },
            measures: std::collections::BTreeMap::new(),
            per_node: Vec::new(),
        });
        let text = worth(Some(&summary));
        assert!(
            text.contains("less is better: served 3.000, alone 4.000, gain +1.000"),
            "{text}"
        );
        assert!(
            text.contains("dose &lt;mg&gt;") && text.contains("is R²"),
            "{text}"
        );
    }
}
