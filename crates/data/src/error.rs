//! What can be wrong with data: one line that names the file and the cause.

use std::io;
use std::path::{Path, PathBuf};

use fednode_core::ConfigError;

use crate::samples::SamplesError;

/// Tells why a text names no data source or partition.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// There is no such kind.
    #[error("expected one of {}", .0.join(", "))]
    Kind(Vec<String>),
    /// There is no such kind, and what is meant can be guessed.
    #[error("{0}")]
    Near(String),
    /// The argument of the kind is wrong or missing.
    #[error("expected `{0}`")]
    Form(String),
    /// The kind has no such option.
    #[error("unknown option `{name}`, expected one of {}", known.join(", "))]
    Option {
        /// What was given.
        name: String,
        /// What there is.
        known: Vec<&'static str>,
    },
    /// The transforms behind a partition are none, or do not go together.
    #[error("{0}")]
    Transforms(String),
    /// An option has a wrong value.
    #[error(transparent)]
    Value(#[from] ConfigError),
}

/// Tells why data could not be read or divided.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// A file or folder cannot be read.
    #[error("cannot read `{}`: {source}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file can be read but does not hold what it should.
    #[error("`{}` {cause}", path.display())]
    Malformed {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        cause: String,
    },
    /// A data set is not there; says how to get it.
    #[error("{0}")]
    Absent(String),
    /// The text names no data source or partition, or has a wrong argument.
    #[error("`{text}` is not a {what}: {cause}")]
    Text {
        /// What was given.
        text: String,
        /// `data source` or `partition`.
        what: &'static str,
        /// What is wrong with it, and what is possible.
        cause: TextError,
    },
    /// A transform of the partition is not for these data.
    #[error("`+{transform}` cannot change these data: {cause}")]
    Transform {
        /// The transform as it was given.
        transform: String,
        /// Why.
        cause: String,
    },
    /// There are too few samples to divide.
    #[error("{nodes} nodes need at least {needed} samples, but the data set has {available}")]
    TooFew {
        /// Nodes to divide among.
        nodes: usize,
        /// Samples needed.
        needed: usize,
        /// Samples there are.
        available: usize,
    },
    /// The shard index is beyond the partition.
    #[error("there is no shard {shard}: the data is divided among {nodes} nodes, counted from 0")]
    NoSuchShard {
        /// The index given.
        shard: usize,
        /// Shards there are.
        nodes: usize,
    },
    /// A shard has no samples to train or test on.
    #[error("shard {shard} has no {part} samples")]
    EmptyShard {
        /// The shard.
        shard: usize,
        /// `training` or `test`.
        part: &'static str,
    },
    /// Rows are missing.
    #[error(
        "rows that were there are gone: the table has {now}, and this node began with {rows}, so nobody can tell which it is tested on; \
         put them back, or begin with another state folder"
    )]
    Fewer {
        /// Rows that there are.
        now: usize,
        /// Rows that there were.
        rows: usize,
    },
    /// Rows were put in between, or changed.
    #[error(
        "the first {0} rows are not those that this node began with, so nobody can tell which it is tested on: append new rows \
         at the end of the table, or begin with another state folder"
    )]
    Moved(usize),
    /// Each node would number the words of its own texts.
    #[error(
        "where each node brings its own texts, their vocabularies would differ: give all nodes one list of words with \
         `,vocabulary_file=FILE`; `fednode data SOURCE --words FILE` makes one"
    )]
    OwnVocabulary,
    /// Features of images could not be computed.
    #[error("{0}")]
    Features(String),
    /// What a reader produced does not fit together.
    #[error(transparent)]
    Samples(#[from] SamplesError),
}

impl DataError {
    pub(crate) fn malformed(path: &Path, cause: impl Into<String>) -> Self {
        Self::Malformed {
            path: path.to_owned(),
            cause: cause.into(),
        }
    }

    /// Makes an I/O error one that names its file.
    pub(crate) fn read(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| match source.kind() {
            io::ErrorKind::UnexpectedEof => Self::Malformed {
                path,
                cause: "is truncated".into(),
            },
            _ => Self::Read { path, source },
        }
    }
}
