//! `fednode predict FILE…`: what a node's model says about files.

use std::path::PathBuf;

use fednode_learn::Prediction;
use fednode_runtime::exit::ExitCode;
use serde::Serialize;

use crate::unlabelled;
use fednode_cli::failure::OrFail;
use fednode_cli::model::{Model, ModelArgs};
use fednode_cli::output::{self, Form, Report};
use fednode_cli::table::{number, percent, render, text};

/// What is typed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// PNG or JPEG images, IDX files of images, CSV files of numbers; for a model of texts, files with a text per line.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// Predicts and prints.
pub(crate) fn run(args: &Args, form: Form) -> anyhow::Result<()> {
    let model = args.model.load()?;
    let vocabulary = model.vocabulary()?;
    let mut rows = Vec::new();
    for path in &args.files {
        let samples = unlabelled::read(
            path,
            &model.spec().architecture(),
            &model.spec().fingerprints,
            &model.spec().data.columns,
            vocabulary.as_ref(),
        )?;
        let learner = model.learner(&samples, &args.model.device)?;
        let predictions = learner.predict(&samples).or_fail(ExitCode::Data)?;
        rows.extend(
            (0..)
                .zip(predictions)
                .map(|(at, prediction)| Row::new(&model, path, at, prediction)),
        );
    }
    output::print(&Answer(rows), form)
}

#[derive(Debug, Serialize)]
struct Answer(Vec<Row>);

#[derive(Debug, Serialize)]
struct Row {
    file: String,
    /// Which sample of the file, counting from 0.
    sample: usize,
    class: u16,
    name: String,
    probability: f32,
    expert: Option<u16>,
    probabilities: Vec<f32>,
}

impl Row {
    fn new(model: &Model, path: &std::path::Path, sample: usize, prediction: Prediction) -> Self {
        let Prediction {
            class,
            probabilities,
            expert,
        } = prediction;
        Self {
            file: path.display().to_string(),
            sample,
            class,
            name: model.class_name(class),
            probability: probabilities
                .get(usize::from(class))
                .copied()
                .unwrap_or(0.0),
            expert: expert.map(|slot| slot.0),
            probabilities,
        }
    }
}

impl Report for Answer {
    fn human(&self) -> String {
        let columns = [
            text("file"),
            number("sample"),
            text("class"),
            number("probability"),
            number("expert"),
        ];
        let row = |row: &Row| {
            vec![
                row.file.clone(),
                row.sample.to_string(),
                row.name.clone(),
                percent(f64::from(row.probability)),
                row.expert.map_or("-".into(), |slot| slot.to_string()),
            ]
        };
        render(&columns, &self.0.iter().map(row).collect::<Vec<_>>())
    }
}
