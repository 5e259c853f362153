//! `fednode predict FILE…`: what a node's model says about files.

use std::path::{Path, PathBuf};

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
    /// PNG or JPEG images, IDX files of images, tables; for a model of texts, files with a text per line. `-` is standard
    /// input.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The column of the tables that says whose each row is [default: `id`, if it is there and the model does not use it].
    #[arg(long, value_name = "COLUMN")]
    id: Option<String>,
}

/// Predicts and prints.
pub(crate) fn run(args: &Args, form: Form) -> anyhow::Result<()> {
    let model = args.model.load()?;
    let takes = unlabelled::Takes::of(&args.model, &model)?;
    let mut rows = Vec::new();
    for path in &args.files {
        let (samples, ids) = takes.file(path, args.id.as_deref())?;
        let learner = model.learner(&samples, &args.model.device)?;
        let predictions = learner.predict(&samples).or_fail(ExitCode::Data)?;
        let ids = ids.into_iter().flatten().map(Some);
        let ids = ids.chain(std::iter::repeat(None));
        rows.extend(
            (0..)
                .zip(predictions)
                .zip(ids)
                .map(|((at, prediction), id)| Row::new(&model, path, at, id, prediction)),
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
    /// What the row's own column says that it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    class: Option<u16>,
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    number: Option<f32>,
    /// Nothing where a number is predicted, as of class and probabilities.
    #[serde(skip_serializing_if = "Option::is_none")]
    probability: Option<f32>,
    expert: Option<u16>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    probabilities: Vec<f32>,
}

impl Row {
    fn new(
        model: &Model,
        path: &Path,
        sample: usize,
        id: Option<String>,
        prediction: Prediction,
    ) -> Self {
        let Prediction {
            class,
            probabilities,
            number,
            expert,
        } = prediction;
        Self {
            file: path.display().to_string(),
            sample,
            id,
            class: number.is_none().then_some(class),
            name: model.class_name(class),
            number,
            probability: probabilities.get(usize::from(class)).copied(),
            expert: expert.map(|slot| slot.0),
            probabilities,
        }
    }
}

impl Report for Answer {
    fn human(&self) -> String {
        let has_ids = self.0.iter().any(|row| row.id.is_some());
        let mut columns = vec![text("file"), number("sample")];
        columns.extend(has_ids.then_some(text("id")));
        let are_numbers = self.0.iter().any(|row| row.number.is_some());
        columns.extend(if are_numbers {
            vec![text("predicts"), number("number")]
        } else {
            vec![text("class"), number("probability"), number("expert")]
        });
        let row = |row: &Row| {
            let mut cells = vec![row.file.clone(), row.sample.to_string()];
            cells.extend(has_ids.then(|| row.id.clone().unwrap_or("-".into())));
            cells.push(row.name.clone());
            cells.extend(match row.number {
                Some(number) => vec![number.to_string()],
                None => vec![
                    percent(row.probability.map_or(f64::NAN, f64::from)),
                    row.expert.map_or("-".into(), |slot| slot.to_string()),
                ],
            });
            cells
        };
        render(&columns, &self.0.iter().map(row).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_shown_where_there_are_any() {
        let row = |id: Option<&str>| Row {
            file: "t.csv".into(),
            sample: 0,
            id: id.map(str::to_owned),
            class: Some(1),
            name: "sick".into(),
            number: None,
            probability: Some(0.75),
            expert: None,
            probabilities: vec![0.25, 0.75],
        };
        let without = Answer(vec![row(None)]);
        assert!(!without.human().contains("id"), "{}", without.human());
        let with = Answer(vec![row(Some("p-1")), row(None)]).human();
        assert!(
            with.contains("p-1  sick") && with.contains("-    sick"),
            "{with}"
        );
        let json = serde_json::to_value(&without).unwrap();
        assert_eq!(json[0].get("id"), None);
        let numbers = Answer(vec![Row {
            number: Some(151.25),
            name: "progression".into(),
            ..row(None)
        }])
        .human();
        assert!(numbers.contains("progression  151.25"), "{numbers}");
        assert!(!numbers.contains("probability"), "{numbers}");
    }
}
