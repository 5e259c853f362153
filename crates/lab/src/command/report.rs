//! `fednode report`: one HTML file of what came of runs, and on request their numbers and plots as files.

use std::fs;
use std::path::{Path, PathBuf};

use fednode_runtime::exit::ExitCode;
use serde::Serialize;

use crate::control::Worth;
use crate::report::compare::{self, Comparison, Contrast};
use crate::report::load::Found;
use crate::report::page::{self, Shown};
use crate::report::run::{Headline, Run};
use crate::report::svg::Plot;
use crate::report::words::percent;
use crate::report::{csv, effort, figures, load, scale};
use crate::simulate::protocol;
use fednode_cli::failure::fail;
use fednode_cli::output::{self, Form, Report};
use fednode_cli::table::{number, render, text};

/// What is typed.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folders of swarms or simulated runs, or of experiments: then all runs in them.
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// The page to write [default: `report.html` in the first folder].
    #[arg(long, value_name = "FILE.html")]
    out: Option<PathBuf>,
    /// Write all numbers as CSV into this folder: rounds, nodes, pools, modules.
    #[arg(long, value_name = "DIR")]
    csv: Option<PathBuf>,
    /// Write every plot as SVG into this folder.
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
    /// Put the runs side by side: settings, means over seeds, paired tests of the nodes against runs of `local`, or else
    /// against earlier ones.
    #[arg(long)]
    compare: bool,
    /// With `--compare`: what each took to reach this accuracy, in per cent: rounds, bytes, seconds of training.
    #[arg(long, value_name = "PER CENT", requires = "compare", value_parser = per_cent)]
    target: Option<f64>,
}

/// A text is no share in per cent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum NoPerCent {
    #[error("expected a number, like 80")]
    NoNumber,
    #[error("expected more than 0 and at most 100")]
    OutOfRange,
}

fn per_cent(text: &str) -> Result<f64, NoPerCent> {
    let number = text.trim_end_matches('%').trim().parse::<f64>();
    let number = number.map_err(|_| NoPerCent::NoNumber)?;
    if number > 0.0 && number <= 100.0 {
        Ok(number / 100.0)
    } else {
        Err(NoPerCent::OutOfRange)
    }
}

/// Writes the report and says where it is and what the runs came to.
pub fn run(args: &Args, form: Form) -> anyhow::Result<()> {
    let Found {
        learned: runs,
        measured,
    } = load::runs(&args.runs)?;
    let comparison = args.compare.then(|| compare::compare(&runs, args.target));
    let shown: Vec<Shown<'_>> = runs.iter().map(shown).collect();
    let scale = scale::plots(&measured);
    let alone = if measured.is_empty() {
        String::new()
    } else {
        scale::section(&measured, &scale)
    };
    let page = page::page(&shown, comparison.as_ref(), (measured.len(), &alone));
    let mut written = Vec::new();
    write(&place(args), &page, &mut written)?;
    if let Some(folder) = &args.csv {
        for (name, text) in csv::files(&runs) {
            write(&folder.join(name), &text, &mut written)?;
        }
    }
    if let Some(folder) = &args.plots {
        let beside = comparison
            .iter()
            .filter_map(|comparison| comparison.plot.as_ref());
        for (name, plot) in named(beside.chain(&scale), &shown) {
            write(&folder.join(name), &plot.standalone(), &mut written)?;
        }
    }
    let entries = shown.iter().map(Entry::new).collect();
    let without_training = measured
        .into_iter()
        .map(|measured| measured.summary)
        .collect();
    output::print(
        &Answer {
            written,
            runs: entries,
            without_training,
            comparison,
        },
        form,
    )
}

/// Returns where the page goes.
fn place(args: &Args) -> PathBuf {
    let in_the_first = || {
        let first = args.runs.first();
        first.map_or_else(PathBuf::new, |folder| folder.join("report.html"))
    };
    args.out.clone().unwrap_or_else(in_the_first)
}

/// Names the files of plots: first those of several runs, then those of each run after it.
fn named<'a>(
    of_several: impl Iterator<Item = &'a Plot>,
    shown: &'a [Shown<'_>],
) -> Vec<(String, &'a Plot)> {
    let mut named: Vec<(String, &Plot)> = of_several
        .map(|plot| (format!("{}.svg", plot.slug), plot))
        .collect();
    for shown in shown {
        let run = file_name(&shown.run.name);
        let plots = shown.plots.iter();
        named.extend(plots.map(|plot| (format!("{run}-{}.svg", plot.slug), plot)));
    }
    named
}

fn shown(run: &Run) -> Shown<'_> {
    let pools = compare::pools(&run.name, std::iter::once(run));
    Shown {
        run,
        plots: figures::all(run),
        pools,
    }
}

fn write(path: &Path, text: &str, written: &mut Vec<String>) -> anyhow::Result<()> {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let done = folder
        .map_or(Ok(()), fs::create_dir_all)
        .and_then(|()| fs::write(path, text));
    done.map_err(|error| {
        let text = format!(
            "cannot write `{}`: {error}; name another place",
            path.display()
        );
        fail(ExitCode::State, text)
    })?;
    written.push(path.display().to_string());
    Ok(())
}

/// Returns a run's name as part of a file's name.
fn file_name(name: &str) -> String {
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || ".=_-".contains(c) {
            c
        } else {
            '_'
        }
    };
    name.trim_start_matches('-').chars().map(plain).collect()
}

/// What was written, and what the runs came to.
#[derive(Debug, Serialize)]
struct Answer {
    written: Vec<String>,
    runs: Vec<Entry>,
    without_training: Vec<protocol::Summary>,
    comparison: Option<Comparison>,
}

/// What one run came to.
#[derive(Debug, Serialize)]
struct Entry {
    name: String,
    folder: String,
    finished: bool,
    #[serde(skip)]
    standing: &'static str,
    last_round: u32,
    #[serde(flatten)]
    headline: Headline,
    #[serde(skip)]
    judged: [String; 2],
    /// Whether joining was worth it, by the measure of the federation. `served` and `alone` of the headline are shares only.
    worth: Option<Worth>,
    pool: Vec<Contrast>,
}

impl Entry {
    fn new(shown: &Shown<'_>) -> Self {
        let run = shown.run;
        Self {
            name: run.name.clone(),
            folder: run.folder.display().to_string(),
            finished: run.is_finished(),
            standing: run.standing(),
            last_round: run.last_round(),
            headline: run.headline(),
            judged: run.judged(),
            worth: run.worth().cloned(),
            pool: shown.pools.clone(),
        }
    }

    fn row(&self) -> Vec<String> {
        let headline = &self.headline;
        let mut cells = vec![
            format!("{}{}", self.name, self.standing),
            self.last_round.to_string(),
        ];
        cells.extend(self.judged.clone());
        cells.extend([
            percent(headline.mean_accuracy),
            percent(headline.mean_accuracy_before_exchange),
            percent(headline.mean_accuracy_after_last_stage),
            percent(headline.worst_tenth_accuracy),
            percent(headline.majority_class_accuracy),
        ]);
        cells
    }
}

impl Report for Answer {
    fn human(&self) -> String {
        let columns = [
            text("run"),
            number("round"),
            number("served"),
            number("alone"),
            number("mean accuracy"),
            number("before exchange"),
            number("after the last stage"),
            number("worst tenth"),
            number("floor"),
        ];
        let mut table = if self.runs.is_empty() {
            String::new()
        } else {
            render(
                &columns,
                &self.runs.iter().map(Entry::row).collect::<Vec<_>>(),
            )
        };
        table.extend(self.without_training.iter().map(Report::human));
        table.extend(self.comparison.as_ref().and_then(effort::table));
        let place = match self.written.as_slice() {
            [page] => format!("the report is {page}"),
            [page, others @ ..] => format!(
                "the report is {page}; {} more files were written",
                others.len()
            ),
            [] => String::new(),
        };
        format!("{table}\n{place}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_after_their_runs() {
        assert_eq!(
            [file_name("-seed1"), file_name("a b/c-seed2")],
            ["seed1", "a_b_c-seed2"]
        );
    }

    #[test]
    fn unwritable_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let error = write(&file.join("report.html"), "", &mut Vec::new()).unwrap_err();
        assert!(
            error.to_string().contains("cannot write")
                && fednode_cli::failure::code(&error) == ExitCode::State
        );
    }

    #[test]
    fn the_answer_names_what_is_absent() {
        let entry = Entry {
            name: "x".into(),
            folder: "x".into(),
            finished: false,
            standing: " (under way or broken off)",
            last_round: 3,
            headline: Headline {
                mean_accuracy: Some(0.5),
                ..Headline::default()
            },
            worth: None,
            judged: ["0.6120 (log loss)".into(), "–".into()],
            pool: vec![],
        };
        let answer = Answer {
            written: vec!["x/report.html".into()],
            runs: vec![entry],
            without_training: vec![],
            comparison: None,
        };
        let text = answer.human();
        assert!(
            text.contains(
                "x (under way or broken off)      3  0.6120 (log loss)      –         50.0 %                –"
            ),
            "{text}"
        );
        assert!(text.ends_with("the report is x/report.html\n"), "{text}");
    }
}
