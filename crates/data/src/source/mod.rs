//! Where samples come from: one file per reader, one table that lists them all.
//!
//! ```text
//! "csv:FILE,label=x" ─┐
//! [data] kind = "csv" ┴─► DataSource ── open ─► Source ── describe ─► Facts
//!                         typed options           ├────── pool ─────► labels, shape
//!                                                 └────── read ─────► the wanted samples
//! ```
//!
//! A source is read in two steps, because a node needs a few hundred samples of perhaps seventy thousand.
//! [`Source::pool`] reads only what the partition needs (labels and shape). [`Source::read`] streams through the values
//! and keeps only the wanted rows. The pool counts training samples first, then test samples; the partition divides it
//! anew.
//!
//! A reader is a struct of options with their documentation, default and range, and what it opens. Help texts, the commented
//! `node.toml`, the short form and its messages are made of these options.

mod cifar;
mod csv_table;
mod data_source;
mod digits;
mod fashion_mnist;
mod federated;
mod folder;
mod idx;
mod kind;
mod options;
mod records;
mod rows;
mod text;
mod unknown;

use std::borrow::Cow;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use fednode_core::spec::TableColumn;

pub use csv_table::{
    HeaderError, ParquetError, RowsError, is_parquet, numbers, raw_rows, row_ids, text_of,
};
pub use data_source::DataSource;
pub use idx::{is_transposed, transposed};
pub use kind::Kind;
pub use text::texts_of;

use crate::error::DataError;
use crate::samples::{Pixels, Samples};
use crate::table::Survey;
use crate::vocabulary::Vocabulary;

/// What is known of all samples of a source before any of them is read.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Pool {
    /// Channels, height and width of one sample.
    pub shape: [usize; 3],
    /// The class of each sample; a sample's index is its place here.
    pub labels: Vec<u16>,
    /// The classes' names; every label is below their number. Of numbers it is what they are called, and the only class.
    pub class_names: Arc<[String]>,
    /// The number of each sample, where numbers are predicted.
    pub targets: Option<Vec<f32>>,
    /// Which samples the data themselves say are for tests; partition `own` heeds it.
    pub tests: Option<Vec<bool>>,
    /// Which group each sample belongs to, if the data say so; partition `own` keeps groups together.
    pub groups: Option<Vec<u32>>,
}

impl Pool {
    /// Makes samples of the values of those at `indices`.
    fn samples(&self, indices: &[u32], pixels: Pixels) -> Result<Samples, DataError> {
        let label = |index: &u32| self.labels[*index as usize];
        let labels = indices.iter().map(label).collect();
        let class_names = Arc::clone(&self.class_names);
        let Some(targets) = &self.targets else {
            return Ok(Samples::new(self.shape, pixels, labels, class_names)?);
        };
        let targets = indices.iter().map(|index| targets[*index as usize]);
        let name = &class_names[0];
        Ok(Samples::of_numbers(
            self.shape,
            pixels,
            targets.collect(),
            name,
        )?)
    }

    /// Returns by what a division mixes samples, and how many kinds there are: their classes, or of numbers [`BANDS`] bands of
    /// as many samples each, the smallest numbers first.
    pub(crate) fn strata(&self) -> (Cow<'_, [u16]>, usize) {
        let Some(targets) = &self.targets else {
            return (Cow::Borrowed(&self.labels), self.class_names.len());
        };
        let mut order: Vec<usize> = (0..targets.len()).collect();
        order.sort_by(|a, b| targets[*a].total_cmp(&targets[*b]));
        let mut bands = vec![0; targets.len()];
        for (rank, at) in order.into_iter().enumerate() {
            bands[at] = (rank * BANDS / targets.len()) as u16;
        }
        (Cow::Owned(bands), BANDS)
    }
}

/// In how many bands numbers are divided evenly.
const BANDS: usize = 10;

/// Which columns of a table are read, and how.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Columns {
    /// All of them: numbers as they are, in their order.
    #[default]
    All,
    /// Those of these names, in this order: numbers as they are.
    Named(Vec<String>),
    /// Those that are described: raw values, each as [`crate::table::encode`] reads it, a gap as NaN.
    Described(Vec<TableColumn>),
}

/// The column of a table that holds its labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Label {
    /// What the header calls it; its place, counted from 0, without a header.
    pub name: String,
    /// Whether it was taken for want of a better one, since it is the last.
    pub is_guessed: bool,
}

/// What the samples of a source are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Facts {
    /// Images: each stands for itself.
    Images,
    /// Rows of a table.
    Table {
        /// The names of a sample's values, in their order; none if the table has no names, or one twice.
        columns: Option<Vec<String>>,
    },
    /// Texts as numbers of tokens.
    Text {
        /// What the tokens are numbered by.
        vocabulary: Arc<Vocabulary>,
        /// Whether it was counted from these very texts, so that other texts would give another.
        is_counted: bool,
    },
}

/// An opened data set.
pub trait Source: fmt::Debug + Send {
    /// Tells whether what is added to the files comes after all samples that were there. Files of a folder are in the order of their
    /// names, so a new one moves others.
    fn grows_at_the_end(&self) -> bool {
        false
    }

    /// Says what its samples are.
    ///
    /// # Errors
    /// As [`Source::pool`].
    fn describe(&self) -> Result<Facts, DataError>;

    /// Returns the column of a table that holds its labels; nothing of anything else.
    ///
    /// # Errors
    /// As [`Source::pool`].
    fn label(&self) -> Result<Option<Label>, DataError> {
        Ok(None)
    }

    /// Reads labels and shape.
    ///
    /// # Errors
    /// Names the file that is missing, truncated, mislabelled or of another format.
    fn pool(&self) -> Result<Pool, DataError>;

    /// Looks at all cells of a table whose header names its columns, but for those of the label; nothing of anything else.
    ///
    /// # Errors
    /// As [`Source::pool`].
    fn survey(&self) -> Result<Option<Survey>, DataError> {
        Ok(None)
    }

    /// Counts the words of texts, and keeps those that occur in so many texts at least; nothing of anything else.
    ///
    /// # Errors
    /// As [`Source::pool`].
    fn common_words(&self, _fewest_texts: u64) -> Result<Option<Vocabulary>, DataError> {
        Ok(None)
    }

    /// Reads the samples at `wanted`, in that order; the indices are below the number of labels of `pool`.
    ///
    /// # Errors
    /// As [`Source::pool`].
    fn read(&self, pool: &Pool, wanted: &[u32]) -> Result<Samples, DataError>;
}

/// All readers.
pub const KINDS: &[Kind] = &[
    Kind::of::<digits::Options>(),
    Kind::of::<fashion_mnist::Options>(),
    Kind::of::<idx::MnistOptions>(),
    Kind::of::<idx::Options>(),
    Kind::of::<cifar::Cifar10Options>(),
    Kind::of::<cifar::Cifar100Options>(),
    Kind::of::<folder::Options>(),
    Kind::of::<csv_table::Options>(),
    Kind::of::<text::AgNewsOptions>(),
    Kind::of::<text::Options>(),
];

/// Returns the folder that an archive makes inside this one, or this one where it is the archive's.
fn unpacked<'a>(folder: &'a Path, archive: &str) -> Cow<'a, Path> {
    let inner = folder.join(archive);
    if inner.is_dir() {
        inner.into()
    } else {
        folder.into()
    }
}

/// Names classes by their numbers.
fn numbered(n: usize) -> Arc<[String]> {
    (0..n).map(|class| class.to_string()).collect()
}
