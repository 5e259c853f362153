//! What a model must be able to do in order to be served, and what is said of it.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

/// What is known of a model, as `GET /v1/model` answers.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ModelFacts {
    /// The name of its federation.
    pub federation: String,
    /// The federated algorithm that trained it.
    pub algorithm: String,
    /// Its name in the table of models.
    pub model: String,
    /// Rounds of its federation.
    pub rounds: u32,
    /// The last round that it was trained in.
    pub round: u32,
    /// Whether all rounds are done.
    pub is_final: bool,
    /// The classes' names; a class is its place here. Where a number is predicted it is what that is called.
    pub classes: Vec<String>,
    /// Whether a number is predicted, and no class.
    pub predicts_number: bool,
    /// What a sample is.
    pub input: InputFacts,
    /// How good it was, as its card says.
    pub measures: Value,
    /// Who trained it on what, as its card says.
    pub provenance: Value,
}

/// What a sample is.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum InputFacts {
    /// A row of a table.
    Table {
        /// How many values a row has.
        width: usize,
        /// What they are, in their order; none if the columns have no names.
        columns: Vec<ColumnFacts>,
    },
    /// An image, which is scaled to this size.
    Image {
        /// 1 for grey, 3 for colours.
        channels: usize,
        /// Rows of pixels.
        height: usize,
        /// Columns of pixels.
        width: usize,
    },
    /// A text.
    Text {
        /// How many tokens of it are read.
        tokens: usize,
    },
}

impl Default for InputFacts {
    fn default() -> Self {
        Self::Table {
            width: 0,
            columns: Vec::new(),
        }
    }
}

/// A column of a table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ColumnFacts {
    /// What a header calls it.
    pub name: String,
    /// What it holds.
    pub kind: ColumnKind,
    /// The words of a category; other words count as one more.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub levels: Vec<String>,
    /// About the smallest and the largest number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub range: Option<[f64; 2]>,
    /// Whether a value may be missing.
    pub gaps: bool,
}

/// What a column holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ColumnKind {
    /// Numbers.
    Number,
    /// Yes or no.
    Boolean,
    /// One of a few words.
    Category,
}

/// What a request holds, before a model looks at it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Input<'a> {
    /// Rows of as many cells as the model has columns, in their order; an empty cell is a gap.
    Cells(Vec<Vec<String>>),
    /// A table as text, with a header.
    Table {
        /// The text.
        text: &'a [u8],
        /// The column that names the rows; if nobody names one, `id` is meant, unless the model uses it.
        id: Option<&'a str>,
    },
    /// Image files, each a PNG or a JPEG.
    Images(Vec<Cow<'a, [u8]>>),
    /// Texts.
    Texts(Vec<Cow<'a, str>>),
}

/// Samples that a model can predict.
#[derive(Debug)]
pub struct Batch<S> {
    /// The samples.
    pub samples: S,
    /// How many they are.
    pub len: usize,
    /// What names each of them; empty if nothing does.
    pub ids: Vec<Option<String>>,
}

/// Some samples of a batch.
#[derive(Debug)]
pub struct Piece<'a, S> {
    /// All samples of the batch.
    pub samples: &'a S,
    /// Which of them are meant.
    pub range: Range<usize>,
}

/// What a model says of one sample.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The most probable class; 0 where a number is predicted.
    pub class: u16,
    /// The probability of each class; empty where a number is predicted.
    pub probabilities: Vec<f32>,
    /// The number, where one is predicted.
    pub number: Option<f32>,
    /// The expert that decided, if there are experts.
    pub expert: Option<u16>,
}

/// Tells why a request holds nothing to predict.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It is not what it says it is.
    #[error("{0}")]
    Malformed(String),
    /// It is well-formed, but nothing for this model.
    #[error("{0}")]
    Unfit(String),
    /// It holds too much.
    #[error("{0}")]
    TooLarge(String),
}

/// Turns what a request holds into samples; several threads may ask at once.
pub trait Reader: Send + Sync + 'static {
    /// Samples in memory.
    type Samples: Send + 'static;

    /// Says what the model is. It may be another one for each request.
    fn facts(&self) -> Arc<ModelFacts>;

    /// Makes samples that [`Predictor::predict`] does not refuse.
    ///
    /// # Errors
    /// Names the row and the column, and says what is wrong.
    fn read(&self, input: Input<'_>) -> Result<Batch<Self::Samples>, Refused>;
}

/// Predicts samples; it has a thread of its own.
pub trait Predictor<S>: Send + 'static {
    /// Predicts all samples of all pieces, in their order.
    ///
    /// # Errors
    /// Says in one line what failed.
    fn predict(&mut self, pieces: &[Piece<'_, S>]) -> Result<Vec<Answer>, String>;
}
