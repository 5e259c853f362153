//! `fednode evaluate`: how good a node's model is, on its own test samples or on any data.

use std::collections::BTreeMap;
use std::path::PathBuf;

use fednode_core::FederationSpec;
use fednode_data::Samples;
use fednode_learn::{ClassCount, Evaluation, Learner, metric};
use fednode_measure::{Bootstrap, Measure, clopper_pearson};
use fednode_runtime::exit::ExitCode;
use serde::Serialize;

use fednode_cli::data::{self, Mine};
use fednode_cli::everyone::Everyone;
use fednode_cli::failure::{OrFail, fail};
use fednode_cli::model::{self, ModelArgs, Typed};
use fednode_cli::output::{self, Form, Report};
use fednode_cli::shard::Shard;
use fednode_cli::table::{measured, number, percent, render, text};

/// How often an interval holds.
const LEVEL: f64 = 0.95;

/// What is typed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Evaluate on all samples of this data instead of the node's own test samples; forms as in `fednode start`.
    #[arg(long, value_name = "SOURCE")]
    data: Option<String>,
    /// Of that data, only the test samples of this part, divided as the federation's spec says.
    #[arg(long, value_name = "I/N", requires = "data")]
    shard: Option<Shard>,
    /// Evaluate on the test samples of all nodes, where one data set is divided among them.
    #[arg(long, conflicts_with = "shard")]
    everyone: bool,
    /// The file of index lists, if the federation is divided by one.
    #[arg(long, value_name = "FILE")]
    partition_file: Option<PathBuf>,
}

/// Evaluates and prints.
pub(crate) fn run(args: &Args, form: Form) -> anyhow::Result<()> {
    if args.partition_file.is_some() && args.shard.is_none() && !args.everyone {
        return Err(fail(
            ExitCode::Usage,
            "--partition-file goes with --shard or --everyone",
        ));
    }
    let model = args.model.load()?;
    let (on, samples) = samples(args, &model)?;
    let learner = model.learner(&samples, &args.model.device)?;
    let evaluation = learner.evaluate_on(&samples).or_fail(ExitCode::Data)?;
    let measured = Measured::of(&learner, &samples, model.spec())?;
    let classes = evaluation.classes.iter().zip(samples.class_names.iter());
    let classes = classes
        .map(|(count, name)| Class {
            name: name.clone(),
            count: *count,
        })
        .collect();
    output::print(
        &Answer {
            model: model.path.display().to_string(),
            data: on,
            evaluation,
            measured,
            classes,
        },
        form,
    )
}

/// Returns what is evaluated on, in words and as samples.
fn samples(args: &Args, model: &model::Model) -> anyhow::Result<(String, Samples)> {
    match (&args.data, &args.shard) {
        (Some(source), None) if !args.everyone => {
            data::warn_of_table(&data::source(source)?, Some(model.spec()))?;
            Ok((
                format!("all of {source}"),
                data::everything(
                    args.model.behind(data::source(source)?, model.spec())?,
                    model.spec(),
                )?,
            ))
        }
        (source, shard) => {
            let (data, shard, partition_file) =
                (source.as_deref(), *shard, args.partition_file.as_deref());
            let config = args.model.samples_of(Typed {
                data,
                shard,
                partition_file,
            })?;
            if args.everyone {
                let source = config.data.clone().for_federation(model.spec());
                let everyone = Everyone::load(
                    &args.model.behind(source, model.spec())?,
                    model.spec(),
                    config.partition_file.as_deref(),
                )?;
                return Ok((
                    format!("everyone's test samples of {}", config.data),
                    everyone.samples,
                ));
            }
            let mine = Mine::load(&config, model.spec())?;
            let shard = config
                .shard
                .map_or(String::new(), |shard| format!(" {shard}"));
            let on = format!("test samples of {}{shard}", config.data);
            Ok((on, mine.split.test.clone()))
        }
    }
}

#[derive(Debug, Serialize)]
struct Answer {
    model: String,
    data: String,
    #[serde(flatten)]
    evaluation: Evaluation,
    #[serde(flatten)]
    measured: Measured,
    #[serde(rename = "per_class")]
    classes: Vec<Class>,
}

/// Every measure that has a value.
#[derive(Debug, Serialize)]
struct Measured {
    /// That by which the federation judges.
    metric: Measure,
    /// Where it may lie, with 95 % confidence; absent where it has no value, and of a single sample.
    interval: Option<[f64; 2]>,
    measures: BTreeMap<Measure, f64>,
}

impl Measured {
    fn of(learner: &Learner, samples: &Samples, spec: &FederationSpec) -> anyhow::Result<Self> {
        let metric = metric::of(spec).or_fail(ExitCode::Configuration)?;
        let predictions = learner.predict(samples).or_fail(ExitCode::Data)?;
        let beside = metric::beside(&predictions, samples).or_fail(ExitCode::Data)?;
        let interval = Bootstrap::seeded(spec.seed).interval(metric, &beside);
        let interval = match interval.map(|interval| [interval.low, interval.high]) {
            // Of rows that are all right, or all wrong, each resample is the same. The exact interval says what so few leave open.
            Some([low, high]) if metric == Measure::Accuracy && low == high => {
                let rows = beside.rows() as u32;
                let n_right = (low * f64::from(rows)).round() as u32;
                clopper_pearson(n_right, rows, LEVEL)
            }
            interval => interval,
        };
        let value = |measure: Measure| Some((measure, measure.of(&beside)?));
        Ok(Self {
            metric,
            interval,
            measures: Measure::all().filter_map(value).collect(),
        })
    }

    /// Returns a table, the measure of the federation first.
    fn table(&self) -> String {
        let row = |measure: Measure, value: Option<f64>, interval: Option<[f64; 2]>| {
            let interval = interval.map(|[low, high]| {
                format!("{} to {}", measured(measure, low), measured(measure, high))
            });
            vec![
                measure.label().to_owned(),
                value.map_or("none".to_owned(), |value| measured(measure, value)),
                interval.unwrap_or_default(),
            ]
        };
        let value = self.measures.get(&self.metric).copied();
        let first = row(self.metric, value, self.interval);
        let rest = self
            .measures
            .iter()
            .filter(|(measure, _)| **measure != self.metric);
        let rest = rest.map(|(measure, value)| row(*measure, Some(*value), None));
        let rows = std::iter::once(first).chain(rest);
        let columns = [text("measure"), number("value"), text("95 % interval")];
        render(&columns, &rows.collect::<Vec<_>>())
    }
}

#[derive(Debug, Serialize)]
struct Class {
    name: String,
    #[serde(flatten)]
    count: ClassCount,
}

impl Report for Answer {
    fn human(&self) -> String {
        let score = &self.evaluation.score;
        let share: Vec<String> = self
            .evaluation
            .expert_share
            .iter()
            .map(|share| percent(*share))
            .collect();
        let experts = if share.is_empty() {
            String::new()
        } else {
            format!("experts   {}\n", share.join(", "))
        };
        let columns = [text("class"), number("samples"), number("recognised")];
        let row = |class: &Class| {
            let recognised = f64::from(class.count.correct) / f64::from(class.count.total);
            vec![
                class.name.clone(),
                class.count.total.to_string(),
                percent(recognised),
            ]
        };
        if self.classes.is_empty() {
            return format!(
                "model     {}\ndata      {} ({} samples)\nloss      {:.4}\n\n{}",
                self.model,
                self.data,
                score.n_samples,
                score.loss,
                self.measured.table()
            );
        }
        let rows: Vec<Vec<String>> = self
            .classes
            .iter()
            .filter(|class| class.count.total > 0)
            .map(row)
            .collect();
        format!(
            "model     {}\ndata      {} ({} samples)\nloss      {:.4}\n{experts}\n{}\n{}",
            self.model,
            self.data,
            score.n_samples,
            score.loss,
            self.measured.table(),
            render(&columns, &rows)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_classes_that_occur_are_listed() {
        let class = |name: &str, correct, total| Class {
            name: name.into(),
            count: ClassCount { correct, total },
        };
        let answer = Answer {
            model: "m".into(),
            data: "digits".into(),
            evaluation: Evaluation {
                expert_share: vec![0.25, 0.75],
                domain_information: None,
                ..Evaluation::default()
            },
            measured: Measured {
                metric: Measure::Auroc,
                interval: Some([0.5, 1.0]),
                measures: [(Measure::Accuracy, 0.25), (Measure::Auroc, 0.75)].into(),
            },
            classes: vec![class("cat", 1, 4), class("dog", 0, 0)],
        };
        let text = answer.human();
        assert!(
            text.contains("cat          4      25.0 %") && !text.contains("dog"),
            "{text}"
        );
        assert!(text.contains("experts   25.0 %, 75.0 %"), "{text}");
        let measured = "AUROC     75.0 %  50.0 % to 100.0 %\naccuracy  25.0 %";
        assert!(text.contains(measured), "{text}");
    }
}
