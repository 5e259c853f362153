//! `fednode simulate`: federations in one process, one after the other, and a table of what they learned.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use fednode_core::ConfigError;
use fednode_runtime::exit::ExitCode;
use fednode_runtime::status::RoundRecord;
use serde::Serialize;
use serde_json::Value;

use crate::clock;
use crate::data;
use crate::device::Choice;
use crate::dotted::Assignment;
use crate::failure::{OrFail, fail};
use crate::federation;
use crate::output::{self, Form, Report};
use crate::simulate::experiment::{Experiment, Variant};
use crate::simulate::run::{Means, Prepared, Run};
use crate::swarm::folder::Folder;
use crate::swarm::interrupt::Interrupts;
use crate::swarm::summary::{self, Summary};
use crate::table::{Column, bytes, duration, number, percent, render, text};

/// What is typed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// An experiment's file; flags override it.
    file: Option<PathBuf>,
    #[command(flatten)]
    federation: federation::Args,
    #[arg(long, help = data::help(), value_name = "SOURCE")]
    data: Option<String>,
    /// Run with each of these values; may be repeated, every combination is run.
    #[arg(long, value_name = "KEY=VALUE,…")]
    sweep: Vec<Assignment>,
    /// Run with each of these seeds.
    #[arg(long, value_delimiter = ',', value_name = "SEED,…", conflicts_with = "seed")]
    seeds: Vec<u64>,
    /// Have no aggregator: the nodes average among themselves.
    #[arg(long)]
    no_aggregator: bool,
    /// Rounds between two evaluations before the exchange and on validation samples [default: 10].
    #[arg(long, value_name = "ROUNDS", value_parser = clap::value_parser!(u32).range(1..))]
    evaluate_every: Option<u32>,
    /// Evaluate every node's result on everyone's test samples too.
    #[arg(long)]
    global_test: bool,
    /// What to train on: auto, vulkan, vulkan:I, cpu.
    #[arg(long, default_value = "cpu")]
    device: String,
    /// How many nodes compute side by side [default: one per core].
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Where to write everything; runs that are finished there are not run again (default: `runs/<time>`, for an
    /// experiment's file `runs/<its name>`).
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Rounds between two complete evaluations, unless somebody says otherwise.
const EVALUATE_EVERY: u32 = 10;

/// Runs everything and prints the result.
pub(crate) fn run(args: &Args, form: Form) -> anyhow::Result<()> {
    let experiment = experiment(args)?;
    let planned = plan(args, &experiment)?;
    let interrupts = Interrupts::install().or_fail(ExitCode::Internal)?;
    let device = Choice::find(&args.device)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let means = Means {
        device: &device,
        threads: args.threads.unwrap_or(cores).max(1),
        interrupts: &interrupts,
        quiet: form == Form::Json,
    };
    let out = args.out.clone().unwrap_or_else(|| default_out(args.file.as_deref()));
    let mut table = Table { rows: Vec::new(), out: out.display().to_string() };
    let (total, single) = (planned.iter().map(|planned| planned.runs.len()).sum::<usize>(), planned.len() == 1);
    let mut number = 0;
    for Planned { name, runs } in planned {
        let mut summaries = Vec::new();
        for (seed, prepared) in runs {
            number += 1;
            let folder = if total == 1 { out.clone() } else { out.join(folder_name(&name, seed)) };
            if !means.quiet {
                announce(&prepared, &name, seed, (number, total));
            }
            summaries.push(play(&prepared, &folder, &means)?);
        }
        if let ([summary], true) = (summaries.as_slice(), single) {
            return output::print(summary, form);
        }
        table.rows.push(Row::new(name, &summaries));
        table.write(&out)?;
    }
    output::print(&table, form)
}

/// Settings that are run with several seeds.
struct Planned {
    name: String,
    runs: Vec<(u64, Prepared)>,
}

fn experiment(args: &Args) -> anyhow::Result<Experiment> {
    let mut experiment = match &args.file {
        None => Experiment::default(),
        Some(path) => {
            let shown = path.display();
            let text = fs::read_to_string(path).map_err(|error| {
                fail(ExitCode::Configuration, format!("cannot read the experiment `{shown}`: {error}"))
            })?;
            let folder = path.parent().unwrap_or(Path::new(""));
            let named = |ConfigError(error)| fail(ExitCode::Configuration, format!("`{shown}`: {error}"));
            Experiment::parse(&text, folder).map_err(named)?
        }
    };
    for Assignment { key, value } in &args.sweep {
        let values = value.split(',').map(str::trim).filter(|value| !value.is_empty()).map(str::to_owned).collect();
        experiment.add_axis(key, values).or_fail(ExitCode::Configuration)?;
    }
    if !args.seeds.is_empty() {
        experiment.seeds.clone_from(&args.seeds);
    }
    Ok(experiment)
}

/// Checks all settings before the first run: a wrong one must not show after hours.
fn plan(args: &Args, experiment: &Experiment) -> anyhow::Result<Vec<Planned>> {
    let seeds = match (experiment.seeds.is_empty(), args.federation.seed) {
        (_, Some(seed)) => vec![Some(seed)],
        (true, None) => vec![None],
        (false, None) => experiment.seeds.iter().copied().map(Some).collect(),
    };
    let mut planned = Vec::new();
    for variant in experiment.settings() {
        let mut runs = Vec::new();
        for seed in &seeds {
            let named = |error: anyhow::Error| match variant.name.is_empty() {
                true => error,
                false => error.context(format!("`{}`", variant.name)),
            };
            let prepared = settings(args, experiment, &variant, *seed).prepare().map_err(named)?;
            runs.push((prepared.spec.seed, prepared));
        }
        planned.push(Planned { name: variant.name, runs });
    }
    Ok(planned)
}

/// File, then variant and grid, then flags; the later wins.
fn settings(args: &Args, experiment: &Experiment, variant: &Variant, seed: Option<u64>) -> Run {
    let mut federation = args.federation.clone();
    let mut set = [experiment.set.as_slice(), &variant.set].concat();
    set.retain(|assignment| match assignment.key.as_str() {
        "algorithm" => {
            if args.federation.algorithm.is_none() {
                federation.algorithm = Some(assignment.value.clone());
            }
            false
        }
        _ => true,
    });
    federation.defaults = set;
    federation.seed = seed;
    federation.partition_file = federation.partition_file.or_else(|| experiment.partition_file.clone());
    Run {
        federation,
        data: args.data.clone().or(experiment.data.clone()).unwrap_or_else(|| "digits".into()),
        aggregator: !args.no_aggregator && experiment.aggregator.unwrap_or(true),
        evaluate_every: args.evaluate_every.or(experiment.evaluate_every).unwrap_or(EVALUATE_EVERY),
        global_test: args.global_test || experiment.global_test.unwrap_or(false),
    }
}

fn default_out(file: Option<&Path>) -> PathBuf {
    let name = file.and_then(Path::file_stem).map(|stem| stem.to_string_lossy().into_owned());
    PathBuf::from("runs").join(name.unwrap_or_else(|| clock::utc_name(SystemTime::now())))
}

fn folder_name(name: &str, seed: u64) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || ".=-".contains(c) { c } else { '_' };
    format!("{}-seed{seed}", name.chars().map(plain).collect::<String>())
}

fn announce(prepared: &Prepared, name: &str, seed: u64, (number, total): (usize, usize)) {
    let spec = &prepared.spec;
    let which = if total > 1 { format!("[{number}/{total}] {name}, seed {seed}: ") } else { String::new() };
    eprintln!(
        "{which}{} nodes, {} rounds of {} on {} ({})",
        spec.nodes, spec.rounds, spec.algorithm, spec.data.name, spec.data.partition
    );
}

/// Runs what was not run before.
fn play(prepared: &Prepared, folder: &Path, means: &Means<'_>) -> anyhow::Result<Summary> {
    if let Some(summary) = finished(prepared, folder)? {
        return Ok(summary);
    }
    let finished = prepared.play(means)?;
    let folder = Folder::create(folder)?;
    folder.write_spec(&prepared.spec)?;
    let records: Vec<RoundRecord> = finished.records;
    folder.write_metrics(records)?;
    folder.write_summary(&finished.summary)?;
    Ok(finished.summary)
}

/// Returns the result of an earlier run with the same settings.
fn finished(prepared: &Prepared, folder: &Path) -> anyhow::Result<Option<Summary>> {
    let path = folder.join("summary.json");
    let Ok(text) = fs::read_to_string(&path) else { return Ok(None) };
    let shown = path.display();
    let damaged = |error| fail(ExitCode::State, format!("`{shown}` cannot be read ({error}): name another --out"));
    let summary: Summary = serde_json::from_str(&text).map_err(damaged)?;
    match difference("", &summary.effective_config, &prepared.effective()) {
        None => Ok(Some(summary)),
        Some((key, then, now)) => {
            let folder = folder.display();
            let text = format!("`{folder}` holds a run with `{key}` = {then}, not {now}: name another --out");
            Err(fail(ExitCode::State, text))
        }
    }
}

/// Returns the first key in which two settings differ, with both values.
fn difference(path: &str, then: &Value, now: &Value) -> Option<(String, String, String)> {
    if let (Value::Object(before), Value::Object(after)) = (then, now) {
        let keys = before.keys().chain(after.keys().filter(|key| !before.contains_key(*key)));
        return keys.into_iter().find_map(|key| {
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            let value = |table: &serde_json::Map<String, Value>| table.get(key).cloned().unwrap_or(Value::Null);
            difference(&path, &value(before), &value(after))
        });
    }
    (then != now).then(|| (path.to_owned(), then.to_string(), now.to_string()))
}

/// What an experiment found.
#[derive(Debug, Serialize)]
struct Table {
    rows: Vec<Row>,
    out: String,
}

/// One setting, over its seeds.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    seeds: Vec<u64>,
    mean_accuracy: Vec<f64>,
    accuracy_after_local_training: Vec<f64>,
    accuracy_after_finishing: Vec<f64>,
    accuracy_on_everyone: Vec<f64>,
    accuracy_on_own_classes: Vec<f64>,
    worst_tenth_accuracy: Vec<f64>,
    majority_class_accuracy: Vec<f64>,
    bytes_per_node_and_round: f64,
    wall_seconds: f64,
}

impl Row {
    fn new(name: String, summaries: &[Summary]) -> Self {
        let all = |of: fn(&Summary) -> f64| summaries.iter().map(of).collect::<Vec<f64>>();
        let total = |summary: &Summary| {
            let bytes = summary.bytes_per_round;
            bytes.aggregator + bytes.peer_to_peer + bytes.gossip
        };
        let everyones: Vec<_> = summaries.iter().filter_map(Summary::everyones_test).collect();
        Self {
            name,
            seeds: summaries.iter().map(|summary| summary.seed).collect(),
            mean_accuracy: all(|summary| summary.mean_accuracy),
            accuracy_after_local_training: all(Summary::accuracy_before_exchange),
            accuracy_after_finishing: summaries.iter().filter_map(Summary::accuracy_after_finishing).collect(),
            accuracy_on_everyone: everyones.iter().map(|test| test.accuracy).collect(),
            accuracy_on_own_classes: everyones.iter().map(|test| test.accuracy_on_own_classes).collect(),
            worst_tenth_accuracy: all(|summary| summary.worst_tenth_accuracy),
            majority_class_accuracy: all(|summary| summary.majority_class_accuracy),
            bytes_per_node_and_round: summary::mean(&summaries.iter().map(total).collect::<Vec<_>>()),
            wall_seconds: summaries.iter().map(|summary| summary.wall_seconds).sum(),
        }
    }
}

impl Table {
    fn write(&self, out: &Path) -> anyhow::Result<()> {
        let json = serde_json::to_string_pretty(self)? + "\n";
        let written = fs::create_dir_all(out)
            .and_then(|()| fs::write(out.join("table.json"), json))
            .and_then(|()| fs::write(out.join("table.md"), self.markdown()));
        written.map_err(|error| fail(ExitCode::State, format!("cannot write to `{}`: {error}", out.display())))
    }

    fn cells(&self) -> Vec<Vec<String>> {
        let row = |row: &Row| {
            vec![
                row.name.clone(),
                spread(&row.mean_accuracy),
                spread(&row.accuracy_after_local_training),
                spread(&row.accuracy_after_finishing),
                spread(&row.accuracy_on_everyone),
                spread(&row.accuracy_on_own_classes),
                spread(&row.worst_tenth_accuracy),
                spread(&row.majority_class_accuracy),
                bytes(row.bytes_per_node_and_round.round() as u64),
                duration(row.wall_seconds),
            ]
        };
        self.rows.iter().map(row).collect()
    }

    fn markdown(&self) -> String {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let head = line(&HEAD.map(str::to_owned)) + "|---|---|---|---|---|---|---|---|---|---|\n";
        head + &self.cells().iter().map(|cells| line(cells)).collect::<String>()
    }
}

const HEAD: [&str; 10] = [
    "setting",
    "last round",
    "before exchange",
    "finished",
    "global test",
    "local test",
    "worst tenth",
    "floor",
    "bytes",
    "time",
];

impl Report for Table {
    fn human(&self) -> String {
        let columns: Vec<Column> =
            HEAD.iter().enumerate().map(|(at, name)| if at == 0 { text(name) } else { number(name) }).collect();
        let seeds = self.rows.first().map_or(0, |row| row.seeds.len());
        format!(
            "{}\naccuracy in per cent after the last round, mean ± standard deviation over {seeds} seed(s); bytes per node \
             and round\nEverything lies in {}\n",
            render(&columns, &self.cells()),
            self.out
        )
    }
}

/// Mean and standard deviation, in per cent; a dash if there is nothing.
fn spread(values: &[f64]) -> String {
    if values.is_empty() {
        return "-".into();
    }
    let mean = summary::mean(values);
    if values.len() < 2 {
        return percent(mean);
    }
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (values.len() - 1) as f64;
    format!("{:.1} ± {:.1}", 100.0 * mean, 100.0 * variance.sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_of_two_settings_is_named() {
        let (a, b) = (serde_json::json!({"x": {"y": 1, "z": 2}}), serde_json::json!({"x": {"y": 1, "z": 3}}));
        assert_eq!(difference("", &a, &a), None);
        assert_eq!(difference("", &a, &b), Some(("x.z".into(), "2".into(), "3".into())));
        let c = serde_json::json!({"x": {"y": 1, "z": 2}, "w": 0});
        assert_eq!(difference("", &a, &c), Some(("w".into(), "null".into(), "0".into())));
    }

    #[test]
    fn spreads_are_over_seeds() {
        assert_eq!(spread(&[0.5]), percent(0.5));
        assert_eq!(spread(&[0.5, 0.7]), "60.0 ± 14.1");
        assert_eq!(folder_name("P=5 a/b", 3), "P=5_a_b-seed3");
    }
}
