//! The table of an experiment: a line for each setting, over its seeds; for people, as Markdown and as JSON.

use std::fs;
use std::path::Path;

use fednode_runtime::exit::ExitCode;
use fednode_runtime::whole_file;
use serde::Serialize;

use crate::control::Worth;
use crate::swarm::summary::{self, Summary};
use fednode_cli::failure::fail;
use fednode_cli::output::Report;
use fednode_cli::table::{Column, bytes, duration, measured, number, percent, render, text};
use fednode_measure::Measure;

/// A line.
pub(crate) trait Row: Serialize {
    /// What it is made of.
    type Of;
    /// The headings, the setting's name first.
    const HEAD: &'static [&'static str];
    /// What the columns hold.
    const LEGEND: &'static str;

    /// Puts the results of one setting together, one per seed.
    fn new(name: String, summaries: &[Self::Of]) -> Self;

    /// Returns what it says below each heading.
    fn cells(&self) -> Vec<String>;

    /// Returns the seeds.
    fn seeds(&self) -> &[u64];
}

/// What a row says where it has nothing.
const NOTHING: &str = "-";

/// What an experiment found.
#[derive(Debug, Serialize)]
pub(crate) struct Table<R> {
    /// A line for each setting.
    pub(crate) rows: Vec<R>,
    /// Where everything lies.
    pub(crate) out: String,
}

impl<R: Row> Table<R> {
    /// Writes the table so far.
    ///
    /// # Errors
    /// Fails if the disk does.
    pub(crate) fn write(&self, out: &Path) -> anyhow::Result<()> {
        let json = serde_json::to_string_pretty(self)? + "\n";
        let written = fs::create_dir_all(out)
            // Whole or not at all: several jobs may write the table of one experiment.
            .and_then(|()| whole_file::write(&out.join("table.json"), json.as_bytes()))
            .and_then(|()| whole_file::write(&out.join("table.md"), self.markdown().as_bytes()));
        written.map_err(|error| {
            fail(
                ExitCode::State,
                format!("cannot write to `{}`: {error}", out.display()),
            )
        })
    }

    /// Returns the headings, and the cells below them, of the columns in which any row has something. A row says so if it
    /// lacks seeds that another has, because a run of it failed.
    fn head_and_cells(&self) -> (Vec<&'static str>, Vec<Vec<String>>) {
        let most = self.most_seeds();
        let cells = |row: &R| {
            let mut cells = row.cells();
            let seeds = row.seeds().len();
            if let Some(name) = cells.first_mut().filter(|_| seeds < most) {
                name.push_str(&format!(" ({seeds} of {most} seeds)"));
            }
            cells
        };
        let rows: Vec<Vec<String>> = self.rows.iter().map(cells).collect();
        let is_shown = |at: &usize| rows.is_empty() || rows.iter().any(|row| row[*at] != NOTHING);
        let shown: Vec<usize> = (0..R::HEAD.len()).filter(is_shown).collect();
        let head = shown.iter().map(|at| R::HEAD[*at]).collect();
        let shown_of = |row: &Vec<String>| shown.iter().map(|at| row[*at].clone()).collect();
        (head, rows.iter().map(shown_of).collect())
    }

    fn most_seeds(&self) -> usize {
        self.rows
            .iter()
            .map(|row| row.seeds().len())
            .max()
            .unwrap_or(0)
    }

    fn markdown(&self) -> String {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let (head, rows) = self.head_and_cells();
        let head: Vec<String> = head.into_iter().map(String::from).collect();
        let rule = "|---".repeat(head.len()) + "|\n";
        let rows: String = rows.iter().map(|cells| line(cells)).collect();
        line(&head) + &rule + &rows
    }
}

impl<R: Row> Report for Table<R> {
    fn human(&self) -> String {
        let column =
            |(at, name): (usize, &&'static str)| if at == 0 { text(name) } else { number(name) };
        let (head, rows) = self.head_and_cells();
        let columns: Vec<Column> = head.iter().enumerate().map(column).collect();
        let seeds = self.most_seeds();
        let table = render(&columns, &rows);
        format!(
            "{table}\n{}, over {seeds} seed(s)\nEverything lies in {}\n",
            R::LEGEND,
            self.out
        )
    }
}

/// What learners learned in one setting.
#[derive(Debug, Serialize)]
pub(crate) struct Learned {
    name: String,
    seeds: Vec<u64>,
    /// By what served and alone are judged; nothing where nobody asked what a node does alone.
    measure: Option<Measure>,
    served: Vec<f64>,
    alone: Vec<f64>,
    mean_accuracy: Vec<f64>,
    accuracy_after_local_training: Vec<f64>,
    accuracy_after_finishing: Vec<f64>,
    accuracy_on_everyone: Vec<f64>,
    accuracy_on_own_classes: Vec<f64>,
    worst_tenth_accuracy: Vec<f64>,
    worst_tenth_after_finishing: Vec<f64>,
    best_round_accuracy: Vec<f64>,
    majority_class_accuracy: Vec<f64>,
    bytes_per_node_and_round: f64,
    wall_seconds: f64,
}

impl Row for Learned {
    type Of = Summary;
    const HEAD: &'static [&'static str] = &[
        "setting",
        "served",
        "alone",
        "last round",
        "before exchange",
        "finished",
        "global test",
        "local test",
        "worst tenth",
        "its end",
        "best round",
        "floor",
        "bytes",
        "time",
    ];
    const LEGEND: &'static str = "\
served, alone: what the nodes end with, and what each does by itself, by the measure of the federation; the others:
accuracy in per cent on the nodes' own test samples and weighted by them, after the last round's exchange and before it;
finished: after the stage that follows the last round (own tuning, pool); worst tenth: mean of the lowest tenth of the
nodes, after the last round, and in the end after that stage; best round: chosen by test samples, for comparison only;
global and local test: everyone's test samples, as they are and weighted as a node has its classes; floor: always saying
a node's commonest class; where a number is predicted accuracy is R², weighted by how much the tests vary, and there is no floor;
bytes per node and round; time of all seeds together; mean ± standard deviation over the seeds";

    fn new(name: String, summaries: &[Summary]) -> Self {
        let all = |of: fn(&Summary) -> f64| summaries.iter().map(of).collect::<Vec<f64>>();
        let everyones: Vec<_> = summaries
            .iter()
            .filter_map(Summary::everyones_test)
            .collect();
        let worths: Vec<&Worth> = summaries
            .iter()
            .filter_map(|summary| summary.worth.as_ref())
            .collect();
        Self {
            name,
            seeds: summaries.iter().map(|summary| summary.seed).collect(),
            measure: worths.first().map(|worth| worth.measure),
            served: worths.iter().map(|worth| worth.served).collect(),
            alone: worths.iter().map(|worth| worth.alone).collect(),
            mean_accuracy: all(|summary| summary.mean_accuracy),
            accuracy_after_local_training: all(Summary::accuracy_before_exchange),
            accuracy_after_finishing: summaries
                .iter()
                .filter_map(Summary::accuracy_after_finishing)
                .collect(),
            accuracy_on_everyone: everyones.iter().map(|test| test.accuracy).collect(),
            accuracy_on_own_classes: everyones
                .iter()
                .map(|test| test.accuracy_on_own_classes)
                .collect(),
            worst_tenth_accuracy: all(|summary| summary.worst_tenth_accuracy),
            worst_tenth_after_finishing: summaries
                .iter()
                .filter_map(Summary::worst_tenth_after_finishing)
                .collect(),
            best_round_accuracy: summaries
                .iter()
                .filter_map(|summary| summary.best_round_accuracy)
                .collect(),
            majority_class_accuracy: all(|summary| summary.majority_class_accuracy),
            bytes_per_node_and_round: summary::mean(&all(|summary| {
                summary.bytes_per_round.total()
            })),
            wall_seconds: summaries.iter().map(|summary| summary.wall_seconds).sum(),
        }
    }

    fn cells(&self) -> Vec<String> {
        vec![
            self.name.clone(),
            self.judged(&self.served),
            self.judged(&self.alone),
            spread(&self.mean_accuracy),
            spread(&self.accuracy_after_local_training),
            spread(&self.accuracy_after_finishing),
            spread(&self.accuracy_on_everyone),
            spread(&self.accuracy_on_own_classes),
            spread(&self.worst_tenth_accuracy),
            spread(&self.worst_tenth_after_finishing),
            spread(&self.best_round_accuracy),
            spread(&self.majority_class_accuracy),
            bytes(self.bytes_per_node_and_round.round() as u64),
            duration(self.wall_seconds),
        ]
    }

    fn seeds(&self) -> &[u64] {
        &self.seeds
    }
}

impl Learned {
    /// Writes a value of the measure over the seeds; the measure is named where it is not accuracy.
    fn judged(&self, values: &[f64]) -> String {
        match (self.measure, mean_and_deviation(values)) {
            (None, _) | (_, None) => NOTHING.into(),
            (Some(Measure::Accuracy), _) => spread(values),
            (Some(measure), Some((mean, deviation))) => {
                let deviation = deviation.map_or_else(String::new, |deviation| {
                    format!(" ± {}", measured(measure, deviation))
                });
                let (mean, label) = (measured(measure, mean), measure.label());
                format!("{mean}{deviation} ({label})")
            }
        }
    }
}

/// Returns the mean and, of two values and more, the standard deviation.
fn mean_and_deviation(values: &[f64]) -> Option<(f64, Option<f64>)> {
    if values.is_empty() {
        return None;
    }
    let mean = summary::mean(values);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let deviation = (squares / (values.len() as f64 - 1.0)).sqrt();
    Some((mean, (values.len() > 1).then_some(deviation)))
}

/// Mean and standard deviation, in per cent; a dash if there is nothing.
fn spread(values: &[f64]) -> String {
    match mean_and_deviation(values) {
        None => NOTHING.into(),
        Some((mean, None)) => percent(mean),
        Some((mean, Some(deviation))) => {
            format!("{:.1} ± {:.1}", 100.0 * mean, 100.0 * deviation)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreads_are_over_seeds() {
        assert_eq!(spread(&[0.5]), percent(0.5));
        assert_eq!(spread(&[0.5, 0.7]), "60.0 ± 14.1");
    }

    #[test]
    fn what_is_judged_by_another_measure_is_named() {
        let mut learned = Learned::new("plain".into(), &[]);
        assert_eq!(learned.judged(&[]), NOTHING);
        learned.measure = Some(Measure::LogLoss);
        assert_eq!(learned.judged(&[0.5, 0.7]), "0.6000 ± 0.1414 (log loss)");
        learned.measure = Some(Measure::Accuracy);
        assert_eq!(learned.judged(&[0.5, 0.7]), "60.0 ± 14.1");
    }

    #[test]
    fn a_column_without_any_value_is_left_out() {
        let row = |name: &str, everyone: &[f64]| {
            let mut row = Learned::new(name.into(), &[]);
            row.accuracy_on_everyone = everyone.to_vec();
            row
        };
        let table = |rows| Table {
            rows,
            out: "here".into(),
        };
        let none = table(vec![row("a", &[]), row("b", &[])]).markdown();
        assert!(none.starts_with("| setting | bytes | time |\n"), "{none}");
        let one = table(vec![row("a", &[]), row("b", &[0.5])]).markdown();
        assert!(
            one.starts_with("| setting | global test | bytes | time |\n"),
            "{one}"
        );
        assert!(one.contains("| a | - | 0 B |"), "{one}");
    }
}
