//! The content of a report, in order: an overview of the runs, their comparison, then each run.

mod contrasts;
mod one_run;
mod side_by_side;

use super::compare::{Comparison, Contrast, HEADLINES};
use super::html::{self, numbers, words};
use super::run::Run;
use super::svg::Plot;
use super::words::{ABSENT, escape, percent};

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
    body += &comparison.map_or(String::new(), side_by_side::section);
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
        let text = one_run::section(shown_run);
        body += &heading;
        body += &if shown.len() > OPEN {
            html::details("Numbers, plots and settings of this run", &text)
        } else {
            text
        };
    }
    let has_tests = shown.iter().any(|shown| !shown.pools.is_empty());
    if has_tests || comparison.is_some_and(|comparison| !comparison.contrasts.is_empty()) {
        body += &contrasts::about_the_tests();
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
        // The first two are by the measure of the federation.
        let judged = run.judged();
        let others = HEADLINES.iter().skip(judged.len());
        cells.extend(judged);
        cells.extend(others.map(|(_, of)| percent(of(&headline))));
        cells
    };
    let rows: Vec<Vec<String>> = shown.iter().enumerate().map(row).collect();
    format!("<h3>Runs</h3>\n{}", html::table_of_known(&columns, &rows))
}

const DEFINITIONS: &str = "<p class=\"soft\">“Served” is what the federation left the nodes with, and \
    “alone” what each node does by itself, both by the measure of the federation. All accuracies are on test samples. “Mean, last round” is after the exchange. It \
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
