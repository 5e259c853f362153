//! The content of a report, in order: an overview of the runs, their comparison, then each run.

use super::compare::{Comparison, Contrast, HEADLINES};
use super::effort;
use super::figures::{MOST_BARS, MOST_ROWS};
use super::html::{self, Column, numbers, words};
use super::run::{Comparator, Node, Run, short};
use super::stats::{FEWEST_FOR_WILCOXON, Moments, Paired, RankTest};
use super::svg::Plot;
use super::words::{
    ABSENT, bytes, decimal, duration, escape, percent, points, probability, quoted,
};
use crate::swarm::summary;

/// Up to this many runs are shown open.
const OPEN: usize = 6;

/// A run with its plots and its pool's contrasts.
#[derive(Debug)]
pub(crate) struct Shown<'a> {
    /// The run.
    pub(crate) run: &'a Run,
    /// Its plots.
    pub(crate) plots: Vec<Plot>,
    /// The comparisons of its pool.
    pub(crate) pools: Vec<Contrast>,
}

/// Writes the page. `alone` is the part about the `n_alone` runs of the protocol alone.
pub(crate) fn page(
    shown: &[Shown<'_>],
    comparison: Option<&Comparison>,
    (n_alone, alone): (usize, &str),
) -> String {
    let n_runs = shown.len() + n_alone;
    let title = match shown {
        [one] if n_runs == 1 => format!("{} – fednode report", one.run.name),
        _ => format!("{n_runs} runs – fednode report"),
    };
    let heading = match shown {
        [one] if n_runs == 1 => format!("Report of {}", one.run.name),
        _ => format!("Report of {n_runs} runs"),
    };
    let mut body = format!("<h1>{}</h1>\n{alone}", escape(&heading));
    if shown.len() > 1 {
        body += &overview(shown);
    }
    body += &comparison.map_or(String::new(), side_by_side);
    if shown.len() > 1 || comparison.is_some() {
        body += DEFINITIONS;
    }
    for (at, shown_run) in shown.iter().enumerate() {
        let name = escape(&shown_run.run.name);
        let class = if shown.len() == 1 {
            " class=\"first\""
        } else {
            ""
        };
        let heading = format!("<h2 id=\"run-{at}\"{class}>{name}</h2>\n");
        let text = section(shown_run);
        body += &heading;
        body += &if shown.len() > OPEN {
            html::details("Numbers, plots and settings of this run", &text)
        } else {
            text
        };
    }
    let has_tests = shown.iter().any(|shown| !shown.pools.is_empty());
    if has_tests || comparison.is_some_and(|comparison| !comparison.contrasts.is_empty()) {
        body += &about_the_tests();
    }
    html::page(&title, &body)
}

fn overview(shown: &[Shown<'_>]) -> String {
    let mut columns = vec![
        words("run"),
        words("algorithm"),
        numbers("seed"),
        numbers("nodes"),
        numbers("rounds"),
    ];
    columns.extend(HEADLINES.iter().map(|(name, _)| numbers(name)));
    let row = |(at, shown): (usize, &Shown<'_>)| {
        let run = shown.run;
        let headline = run.headline();
        let mut cells = vec![
            format!(
                "<a href=\"#run-{at}\">{}</a>{}",
                escape(&run.name),
                run.standing()
            ),
            escape(&run.algorithm),
            run.seed.map_or(ABSENT.into(), |seed| seed.to_string()),
            run.nodes.len().to_string(),
            rounds(run),
        ];
        cells.extend(HEADLINES.iter().map(|(_, of)| percent(of(&headline))));
        cells
    };
    let rows: Vec<Vec<String>> = shown.iter().enumerate().map(row).collect();
    format!("<h3>Runs</h3>\n{}", html::table_of_known(&columns, &rows))
}

const DEFINITIONS: &str = "<p class=\"soft\">All accuracies are on test samples. “Mean, last round” is after the exchange. It \
    is weighted by each node’s test samples, and so are “before exchange”, “after the last stage” and the floor. In “unweighted \
    mean” every node counts the same. “Worst tenth” is the mean of the lowest tenth of the nodes, after the last round’s \
    exchange and, marked “end”, after the last stage. “Global test” is the accuracy of the nodes’ final models on everyone’s \
    test samples, as a mean over the nodes. “Local test” is the same with classes weighted as each node has them. The floor is \
    the accuracy of always predicting a node’s commonest training class.</p>\n";

fn rounds(run: &Run) -> String {
    match run.rounds {
        Some(rounds) if rounds != run.last_round() => format!("{} of {rounds}", run.last_round()),
        _ => run.last_round().to_string(),
    }
}

fn side_by_side(comparison: &Comparison) -> String {
    let mut text = "<h2 class=\"first\">Side by side</h2>\n".to_owned();
    if !comparison.unfinished.is_empty() {
        let names = escape(&comparison.unfinished.join(", "));
        text += &format!(
            "<p class=\"warn\">Left out for want of a summary (under way, broken off, or the records of one node): {names}</p>\n"
        );
    }
    let names: Vec<&str> = comparison
        .groups
        .iter()
        .map(|group| group.name.as_str())
        .collect();
    text += "<h3>Settings that differ</h3>\n";
    if comparison.differing.is_empty() {
        text += "<p>None but the seed.</p>\n";
    } else {
        let columns: Vec<Column> = [words("setting")]
            .into_iter()
            .chain(names.iter().map(|name| words(name)))
            .collect();
        let value = |value: &Option<String>| value.as_deref().map_or(ABSENT.to_owned(), escape);
        let rows = comparison.differing.iter().map(|setting| {
            let values = setting.values.iter().map(value);
            [format!("<code>{}</code>", escape(&setting.key))]
                .into_iter()
                .chain(values)
                .collect()
        });
        text += &html::table(&columns, &rows.collect::<Vec<_>>());
    }
    text += "<h3>Mean ± standard deviation over runs that differ in the seed only</h3>\n";
    let mut columns = vec![words("runs"), numbers("number"), words("seeds")];
    columns.extend(HEADLINES.iter().map(|(name, _)| numbers(name)));
    let rows = comparison.groups.iter().map(|group| {
        let seeds: Vec<String> = group.seeds.iter().map(u64::to_string).collect();
        let mut cells = vec![
            escape(&group.name),
            group.runs.len().to_string(),
            seeds.join(", "),
        ];
        cells.extend(
            HEADLINES
                .iter()
                .map(|(name, _)| moments(group.moments.get(name))),
        );
        cells
    });
    text += &html::table_of_known(&columns, &rows.collect::<Vec<_>>());
    text += &comparison.plot.as_ref().map_or(String::new(), html::figure);
    if let Some(target) = comparison.target {
        let groups = comparison.groups.iter();
        text += &effort::section(
            groups.filter_map(|group| Some((group.name.as_str(), group.to_target.as_ref()?))),
            target,
        );
    }
    if !comparison.contrasts.is_empty() {
        text += NODE_BY_NODE;
        text += &contrasts(&comparison.contrasts);
    }
    if !comparison.pools.is_empty() {
        text += "<h3>What the pool is worth, over the nodes of all runs of a group</h3>\n";
        text += &contrasts(&comparison.pools);
    }
    text
}

const NODE_BY_NODE: &str = "<h3>Node by node</h3>\n<p>A pair is the same shard of the same division of the data under the \
    same seed, in two groups. Each group is compared with every <code>local</code> group with which it has pairs. Without \
    one, it is compared with the first earlier group with which it has pairs. A <code>local</code> group is compared only \
    with earlier <code>local</code> groups.</p>\n";

fn moments(moments: Option<&Moments>) -> String {
    match moments {
        None => ABSENT.into(),
        Some(Moments {
            mean,
            deviation: None,
            ..
        }) => percent(*mean),
        Some(Moments {
            mean,
            deviation: Some(deviation),
            ..
        }) => {
            format!("{:.1} ± {:.1} %", 100.0 * mean, 100.0 * deviation)
        }
    }
}

fn contrasts(all: &[Contrast]) -> String {
    let columns = [
        words(""),
        words("difference of"),
        numbers("pairs"),
        numbers("mean ± s (points)"),
        numbers("better"),
        numbers("worse"),
        numbers("equal"),
        numbers("t (df)"),
        numbers("p of t"),
        words("by ranks"),
        numbers("p"),
    ];
    let rows: Vec<Vec<String>> = all.iter().map(contrast).collect();
    let note = "<p class=\"soft\">Every node counts the same; see <a href=\"#tests\">about the tests</a>.</p>\n";
    html::table(&columns, &rows) + note
}

fn about_the_tests() -> String {
    format!(
        "<h2 id=\"tests\">About the tests</h2>\n<p>The t-test is paired and two-sided. The second test is Wilcoxon’s signed \
         ranks (normal approximation, corrected for ties, differences of 0 dropped). With fewer than {FEWEST_FOR_WILCOXON} \
         differences other than 0 it is the exact sign test. No p is corrected for the number of tests. The nodes of one run \
         learn from each other, so their differences are not quite independent. Read a p near a threshold with that in \
         mind.</p>\n"
    )
}

fn contrast(contrast: &Contrast) -> Vec<String> {
    let mut cells = vec![escape(&contrast.group), escape(&contrast.what)];
    let Some(paired) = &contrast.paired else {
        cells.push("no pairs".into());
        cells.resize(11, ABSENT.into());
        return cells;
    };
    let Paired {
        pairs,
        mean,
        deviation,
        better,
        worse,
        equal,
        t_test,
        rank_test,
    } = paired;
    let deviation = deviation.map_or(String::new(), |deviation| {
        format!(" ± {:.2}", 100.0 * deviation)
    });
    cells.extend([pairs.to_string(), points(*mean) + &deviation]);
    cells.extend([better, worse, equal].map(usize::to_string));
    cells.extend([
        t_test.map_or(ABSENT.into(), |test| {
            format!("{} ({})", decimal(test.t, 2), test.degrees_of_freedom)
        }),
        probability(t_test.map(|test| test.p)),
        match rank_test {
            None => ABSENT.into(),
            Some(RankTest::Wilcoxon { n, w, z, .. }) => {
                format!("Wilcoxon W = {w:.1}, z = {}, n = {n}", decimal(*z, 2))
            }
            Some(RankTest::Sign { n, .. }) => format!("sign test, n = {n}"),
        },
        probability(rank_test.map(RankTest::p)),
    ]);
    cells
}

fn section(shown: &Shown<'_>) -> String {
    let run = shown.run;
    let mut text = about(run);
    text += &format!("<dl class=\"numbers\">\n{}</dl>\n", headline(run));
    if !shown.pools.is_empty() {
        text += "<h3>What the pool is worth, over the nodes of this run</h3>\n";
        text += &contrasts(&shown.pools);
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

fn headline(run: &Run) -> String {
    let headline = run.headline();
    let mut text = [
        ("Mean accuracy, last round", headline.mean_accuracy, "after the exchange; weighted by test samples"),
        (
            "Before the exchange",
            headline.mean_accuracy_before_exchange,
            "mean accuracy in the last round after local training; weighted by test samples",
        ),
        (
            "After the last stage",
            headline.mean_accuracy_after_last_stage,
            "mean accuracy of the models that the nodes end with (own tuning, pool); weighted by test samples",
        ),
        (
            "Unweighted mean",
            headline.unweighted_mean_accuracy,
            "last round, after the exchange; every node counts the same",
        ),
        (
            "Worst tenth",
            headline.worst_tenth_accuracy,
            "last round, after the exchange; mean of the lowest tenth of the nodes",
        ),
        (
            "Worst tenth, end",
            headline.worst_tenth_after_last_stage,
            "after the stage that follows the last round; mean of the lowest tenth of the nodes",
        ),
        (
            "Global test",
            headline.accuracy_on_everyone,
            "on everyone’s test samples, the models that the nodes end with; every node counts the same",
        ),
        (
            "Local test",
            headline.accuracy_on_own_classes,
            "on everyone’s test samples, classes weighted as each node has them; every node counts the same",
        ),
        (
            "Majority-class floor",
            headline.majority_class_accuracy,
            "of always predicting a node’s commonest training class; weighted by test samples",
        ),
    ]
    .into_iter()
    // Only some runs are tested on everyone's samples.
    .filter(|(name, value, _)| value.is_some() || !name.ends_with("test"))
    .map(|(name, value, means)| html::number(name, &percent(value), means))
    .collect::<String>();
    let Some(summary) = &run.summary else {
        return text;
    };
    let traffic = summary.bytes_per_round;
    let kinds = format!(
        "per node and round, mean: {} with the aggregator, {} from peer to peer, {} gossip",
        bytes(traffic.aggregator),
        bytes(traffic.peer_to_peer),
        bytes(traffic.gossip)
    );
    let total = traffic.aggregator + traffic.peer_to_peer + traffic.gossip;
    text += &html::number("Traffic", &bytes(total), &kinds);
    let training = format!(
        "in all; {} of it in the local updates of a node, mean; {} of the rounds’ time was not training",
        duration(summary.train_seconds),
        percent(summary.overhead.share)
    );
    text + &html::number("Time", &duration(summary.wall_seconds), &training)
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
