//! A node's model as what `fednode-serve` answers with, and how it is replaced by newer ones.
//!
//! ```text
//! model ─► what it takes ─► Served: requests to samples, on any thread
//!     └──► learner ───────► Predicting: samples to answers, on one thread ─► fednode-serve
//!                                ▲
//! state folder ─► newer: the model of a later round, on a thread of its own
//! ```

pub(crate) mod beside;
mod newer;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use fednode_core::spec::{ColumnKind as SpecKind, TableColumn};
use fednode_data::{Pixels, Samples};
use fednode_learn::{ComputeDevice, Learner};
use fednode_runtime::exit::ExitCode;
use fednode_runtime::streams::say;
use fednode_serve::{
    Answer, Batch, ColumnFacts, ColumnKind, Input, InputFacts, ModelFacts, Piece, Predictor,
    Reader, Refused, StartError,
};
use serde_json::json;

use crate::unlabelled::{Takes, Unfit};
use fednode_cli::failure::OrFail;
use fednode_cli::model::{Model, ModelArgs};

/// Name of the file with address and token.
pub(crate) const ACCESS_FILE: &str = "serve.json";

/// What is known of the model that answers, and the next one if there is one.
#[derive(Debug)]
struct Current {
    facts: RwLock<Arc<ModelFacts>>,
    next: Mutex<Option<Learner>>,
}

impl Current {
    fn facts(&self) -> Arc<ModelFacts> {
        let facts = self.facts.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&facts)
    }

    /// Gives the next model to whoever predicts.
    fn replace(&self, learner: Learner, facts: ModelFacts) {
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = Some(learner);
        *self.facts.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(facts);
    }
}

/// Opens a model for a server: what reads requests, and what predicts.
///
/// A node's model is replaced by those of later rounds and ends as long as the server runs.
///
/// # Errors
/// Fails if there is no model, or if it cannot predict.
pub(crate) fn open(
    args: &ModelArgs,
    device: &ComputeDevice,
) -> anyhow::Result<(Served, Predicting)> {
    let stamp = args.stamp()?;
    let model = args.load()?;
    let takes = Takes::of(args, &model)?;
    let current = Arc::new(Current {
        facts: RwLock::new(Arc::new(facts(&model, &takes))),
        next: Mutex::new(None),
    });
    let predicting = Predicting {
        learner: model.learner_on(&takes.blank()?, device)?,
        takes: takes.clone(),
        current: Arc::clone(&current),
    };
    // The first prediction takes longer than others, and says whether there can be any.
    predicting.warm_up().or_fail(ExitCode::State)?;
    if args.may_change() {
        newer::follow(&current, args, &takes, device, stamp)?;
    }
    Ok((Served { takes, current }, predicting))
}

/// Says on standard error that other machines can reach an address, if they can.
pub(crate) fn warn_of_reach(bind: SocketAddr) {
    if !bind.ip().is_loopback() {
        say(format_args!(
            "warning: other machines can reach {bind}, and nothing is encrypted: put a proxy with TLS before it"
        ));
    }
}

/// Returns the exit code of a server that cannot start.
pub(crate) const fn code(error: &StartError) -> ExitCode {
    match error {
        StartError::Bind { .. } => ExitCode::Network,
        StartError::Access { .. } => ExitCode::State,
        StartError::Thread(_) => ExitCode::Internal,
    }
}

/// Says what a model is.
fn facts(model: &Model, takes: &Takes) -> ModelFacts {
    let card = &model.card.model;
    let spec = model.spec();
    let classes = (0..spec.architecture().classes).map(|class| model.class_name(class as u16));
    let record = card.last_record.as_ref();
    let finished = card.finished.as_ref();
    let measures = match finished {
        Some(finished) => json!({ "test": finished.test, "validation": finished.validation }),
        None => json!({
            "test": record.and_then(|record| record.accuracy.map(|accuracy| json!({
                "accuracy": accuracy,
                "loss": record.loss,
                "n_samples": record.test_samples,
            }))),
            "validation": record.and_then(|record| record.validation),
        }),
    };
    ModelFacts {
        federation: card.name.clone(),
        algorithm: card.algorithm.clone(),
        model: spec.architecture().name,
        rounds: card.rounds,
        round: card.round.0,
        is_final: !model.is_under_way,
        classes: classes.collect(),
        predicts_number: spec.data.target.is_some(),
        input: takes.facts(),
        measures,
        provenance: json!({
            "node_id": card.node_id,
            "federation_id": card.federation,
            "seed": card.seed,
            "version": card.version,
            "trainer": card.trainer,
            "members_of_last_round": record.map(|record| record.members),
            "foreign_experts_mixed_in": record.map(|record| record.n_sources_used),
        }),
    }
}

impl Takes {
    /// Says what a sample is.
    fn facts(&self) -> InputFacts {
        let [channels, height, width] = self.looked_at();
        let n_values = channels * height * width;
        if self.reads_texts() {
            return InputFacts::Text { tokens: n_values };
        }
        let described = self.columns();
        let names = self.column_names();
        if described.is_empty() && names.is_empty() && (channels, height) != (1, 1) {
            return InputFacts::Image {
                channels,
                height,
                width,
            };
        }
        let columns: Vec<ColumnFacts> = if described.is_empty() {
            names.iter().map(|name| number(name)).collect()
        } else {
            described.iter().map(column).collect()
        };
        let width = if columns.is_empty() {
            n_values
        } else {
            columns.len()
        };
        InputFacts::Table { width, columns }
    }
}

/// A column of which only the name is known: numbers without a gap.
fn number(name: &str) -> ColumnFacts {
    ColumnFacts {
        name: name.to_owned(),
        kind: ColumnKind::Number,
        levels: Vec::new(),
        range: None,
        gaps: false,
    }
}

fn column(column: &TableColumn) -> ColumnFacts {
    let kind = match column.kind {
        SpecKind::Number => ColumnKind::Number,
        SpecKind::Boolean => ColumnKind::Boolean,
        SpecKind::Category => ColumnKind::Category,
    };
    ColumnFacts {
        name: column.name.clone(),
        kind,
        levels: column.levels.clone(),
        range: (kind == ColumnKind::Number).then_some(column.range),
        // Something stands in for a value that is missing, whether or not one was in training.
        gaps: true,
    }
}

/// Turns requests into samples.
#[derive(Debug)]
pub(crate) struct Served {
    takes: Takes,
    current: Arc<Current>,
}

impl Served {
    /// Says what the model is that answers now.
    pub(crate) fn known(&self) -> Arc<ModelFacts> {
        self.current.facts()
    }
}

impl Reader for Served {
    type Samples = Samples;

    fn facts(&self) -> Arc<ModelFacts> {
        self.current.facts()
    }

    fn read(&self, input: Input<'_>) -> Result<Batch<Samples>, Refused> {
        let takes = &self.takes;
        let mut ids = Vec::new();
        let pixels = match input {
            Input::Cells(rows) => takes.cells(&rows).map_err(|cause| refused("", cause))?,
            Input::Table { text, id } => {
                let refused = |cause| refused("the table ", cause);
                let pixels = takes.table(text).map_err(refused)?;
                let named = takes.ids(text, id).map_err(refused)?;
                ids = named.into_iter().flatten().map(Some).collect();
                pixels
            }
            Input::Images(images) => {
                let image = |(at, bytes): (usize, &[u8])| {
                    let image = takes.image(bytes);
                    image.map_err(|cause| refused(&format!("images[{at}] "), cause))
                };
                let images = images.iter().map(|bytes| &**bytes).enumerate();
                let images: Vec<Pixels> = images.map(image).collect::<Result<_, _>>()?;
                joined(images).map_err(Refused::Unfit)?
            }
            Input::Texts(texts) => takes
                .texts(texts.iter().map(|text| &**text))
                .ok_or_else(|| Refused::Unfit("the model takes no texts".into()))?,
            _ => return Err(Refused::Unfit("the model does not take these".into())),
        };
        let samples = takes.samples(pixels);
        let samples = samples.map_err(|error| Refused::Malformed(error.to_string()))?;
        let len = samples.len();
        Ok(Batch { samples, len, ids })
    }
}

fn refused(what: &str, cause: Unfit) -> Refused {
    let text = format!("{what}{cause}");
    if cause.is_of_the_model() {
        Refused::Unfit(text)
    } else {
        Refused::Malformed(text)
    }
}

/// Puts values one after the other.
///
/// # Errors
/// Fails on values of different kinds, and on none.
fn joined(parts: Vec<Pixels>) -> Result<Pixels, String> {
    let mut parts = parts.into_iter();
    let mut all = parts.next().ok_or("there are no samples")?;
    for part in parts {
        match (&mut all, part) {
            (Pixels::Bytes { values, .. }, Pixels::Bytes { values: more, .. }) => {
                values.extend(more);
            }
            (Pixels::Floats(values), Pixels::Floats(more)) => values.extend(more),
            (Pixels::Tokens { ids, .. }, Pixels::Tokens { ids: more, .. }) => ids.extend(more),
            _ => return Err("samples are of different kinds".into()),
        }
    }
    Ok(all)
}

/// Predicts samples.
#[derive(Debug)]
pub(crate) struct Predicting {
    learner: Learner,
    takes: Takes,
    current: Arc<Current>,
}

impl Predicting {
    /// Predicts a sample that says nothing.
    fn warm_up(&self) -> anyhow::Result<()> {
        self.learner.predict(&self.takes.blank()?)?;
        Ok(())
    }
}

impl Predictor<Samples> for Predicting {
    fn predict(&mut self, pieces: &[Piece<'_, Samples>]) -> Result<Vec<Answer>, String> {
        let next = self.current.next.lock();
        if let Some(newer) = next.unwrap_or_else(PoisonError::into_inner).take() {
            self.learner = newer;
        }
        let part = |piece: &Piece<'_, Samples>| {
            let places: Vec<u32> = piece.range.clone().map(|at| at as u32).collect();
            piece.samples.subset(&places).pixels
        };
        let pixels = joined(pieces.iter().map(part).collect())?;
        let samples = self.takes.samples(pixels);
        let samples = samples.map_err(|error| error.to_string())?;
        let predictions = self.learner.predict(&samples);
        let predictions = predictions.map_err(|error| error.to_string())?.into_iter();
        Ok(predictions
            .map(|prediction| Answer {
                class: prediction.class,
                probabilities: prediction.probabilities,
                number: prediction.number,
                expert: prediction.expert.map(|slot| slot.0),
            })
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_joined_in_their_order() {
        let floats = |values: &[f32]| Pixels::Floats(values.to_vec());
        let all = joined(vec![floats(&[1.0]), floats(&[2.0, 3.0])]);
        assert_eq!(all, Ok(floats(&[1.0, 2.0, 3.0])));
        let bytes = Pixels::Bytes {
            values: vec![1],
            white: 255,
        };
        assert!(joined(vec![floats(&[1.0]), bytes]).is_err());
        assert!(joined(Vec::new()).is_err());
    }

    #[test]
    fn a_described_column_says_what_it_holds() {
        let level = TableColumn {
            name: "pain".into(),
            kind: SpecKind::Category,
            levels: vec!["none".into(), "typical".into()],
            ..TableColumn::default()
        };
        let said = serde_json::to_value(column(&level)).unwrap();
        let expected = json!({
            "name": "pain", "kind": "category", "levels": ["none", "typical"], "gaps": true
        });
        assert_eq!(said, expected);
        assert_eq!(
            serde_json::to_value(number("age")).unwrap()["kind"],
            "number"
        );
    }

    #[test]
    fn what_is_wrong_is_the_requests_fault_or_the_models() {
        let malformed = refused("the table ", Unfit::NoRows);
        assert_eq!(
            malformed,
            Refused::Malformed("the table holds no rows of numbers".into())
        );
        let unfit = refused("images[0] ", Unfit::Channels(2));
        assert!(matches!(unfit, Refused::Unfit(_)), "{unfit}");
    }
}
