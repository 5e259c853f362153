//! Where samples come from: one file per format, one table that lists them all.
//!
//! A source is read in two steps, because a node needs a few hundred samples of perhaps seventy thousand: [`Source::pool`]
//! reads only what the partition needs (labels and shape), [`Source::read`] streams through the values and keeps only
//! the wanted rows. The pool counts training samples first, then test samples; the partition divides it anew.

mod cifar;
mod csv_table;
mod digits;
mod fashion_mnist;
mod folder;
mod idx;
mod options;
mod records;
mod rows;
mod text;

pub use csv_table::numbers;
pub use idx::{is_transposed, transposed};

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::error::DataError;
use crate::samples::Samples;
use crate::vocabulary::Vocabulary;

/// What is known of all samples of a source before any of them is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// Channels, height and width of one sample.
    pub shape: [usize; 3],
    /// The class of each sample; a sample's index is its place here.
    pub labels: Vec<u16>,
    /// The classes' names; every label is below their number.
    pub class_names: Arc<[String]>,
}

/// An opened data set.
pub trait Source: fmt::Debug + Send {
    /// Reads labels and shape.
    ///
    /// # Errors
    /// Names the file that is missing, truncated, mislabelled or of another format.
    fn pool(&self) -> Result<Pool, DataError>;

    /// Reads the samples at `wanted`, in that order; the indices are below the number of labels of `pool`.
    ///
    /// # Errors
    /// As [`Source::pool`].
    fn read(&self, pool: &Pool, wanted: &[u32]) -> Result<Samples, DataError>;

    /// Returns what its texts' tokens are numbered by; nothing unless its samples are texts.
    ///
    /// # Errors
    /// As [`Source::pool`].
    fn vocabulary(&self) -> Result<Option<Arc<Vocabulary>>, DataError> {
        Ok(None)
    }

    /// Tells whether the vocabulary is counted from the source's own texts, so that other texts would give another.
    fn counts_vocabulary(&self) -> bool {
        false
    }

    /// Returns the names of the values of a sample, in their order; nothing unless it is a table whose columns have names,
    /// no two the same.
    ///
    /// # Errors
    /// As [`Source::pool`].
    fn columns(&self) -> Result<Option<Vec<String>>, DataError> {
        Ok(None)
    }

    /// Says which columns a sample is to have, and in what order; a table without names has them in its own order all the same.
    fn arrange(&mut self, _columns: &[String]) {}
}

/// A row of the table of formats.
#[derive(Debug)]
pub struct Kind {
    /// The word before the colon.
    pub name: &'static str,
    /// How it is written.
    pub form: &'static str,
    /// What it is, in one line.
    pub about: &'static str,
    open: fn(&str) -> Result<Box<dyn Source>, DataError>,
}

/// All formats.
pub const KINDS: [Kind; 10] = [
    Kind {
        name: "digits",
        form: "digits",
        about: "1,797 handwritten digits of 8x8 pixels, built in",
        open: digits::open,
    },
    Kind {
        name: "fashion-mnist",
        form: "fashion-mnist",
        about: "Fashion-MNIST, from Debian's dataset-fashion-mnist or $FEDNODE_DATA/fashion-mnist",
        open: fashion_mnist::open,
    },
    Kind {
        name: "mnist",
        form: "mnist:DIR",
        about: "MNIST in its IDX files",
        open: idx::open_mnist,
    },
    Kind {
        name: "idx",
        form: "idx:DIR[,split=NAME]",
        about: "any data set in IDX files named like MNIST's or EMNIST's",
        open: idx::open,
    },
    Kind {
        name: "cifar10",
        form: "cifar10:DIR",
        about: "CIFAR-10, binary version",
        open: cifar::open_10,
    },
    Kind {
        name: "cifar100",
        form: "cifar100:DIR",
        about: "CIFAR-100, binary version",
        open: cifar::open_100,
    },
    Kind {
        name: "folder",
        form: "folder:DIR[,resize=HxW][,channels=1|3][,classes=[LABEL=>]A|…]",
        about: "PNG and JPEG images, one sub-folder per class",
        open: folder::open,
    },
    Kind {
        name: "csv",
        form: "csv:FILE[,label=COL][,classes=[LABEL=>]A|…]",
        about: "a table of numbers with a label column",
        open: csv_table::open,
    },
    Kind {
        name: "ag-news",
        form: "ag-news:DIR[,vocabulary=N][,length=N][,vocabulary_file=FILE]",
        about: "AG News: train.csv and test.csv, texts of four classes",
        open: text::open_ag_news,
    },
    Kind {
        name: "text",
        form: "text:FILE[,test=FILE][,vocabulary=N][,length=N][,vocabulary_file=FILE][,classes=[LABEL=>]A|…]",
        about: "a CSV table whose first column is the class and whose others are text",
        open: text::open,
    },
];

/// A data source as the user writes it, for example `fashion-mnist` or `csv:flowers.csv,label=species`.
#[derive(Clone)]
pub struct DataSource {
    text: String,
    kind: &'static Kind,
    columns: Vec<String>,
}

impl DataSource {
    /// Returns the format.
    pub fn kind(&self) -> &'static Kind {
        self.kind
    }

    /// Returns the same source with these columns of a table, by their names and in this order; none are all, as they are.
    #[must_use]
    pub fn with_columns(self, columns: &[String]) -> Self {
        Self {
            columns: columns.to_vec(),
            ..self
        }
    }

    /// Finds the files.
    ///
    /// # Errors
    /// Says which files are missing and how to get them.
    pub fn open(&self) -> Result<Box<dyn Source>, DataError> {
        let mut opened = (self.kind.open)(
            self.text
                .split_once(':')
                .map_or("", |(_, argument)| argument),
        )?;
        opened.arrange(&self.columns);
        Ok(opened)
    }
}

impl fmt::Debug for DataSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DataSource").field(&self.text).finish()
    }
}

impl fmt::Display for DataSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl PartialEq for DataSource {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl FromStr for DataSource {
    type Err = DataError;

    fn from_str(text: &str) -> Result<Self, DataError> {
        let wrong = |cause: String| DataError::Text {
            text: text.to_owned(),
            what: "data source",
            cause,
        };
        let (name, argument) = text.split_once(':').unwrap_or((text, ""));
        let Some(kind) = KINDS.iter().find(|kind| kind.name == name) else {
            let forms: Vec<&str> = KINDS.iter().map(|kind| kind.form).collect();
            return Err(wrong(format!("expected one of {}", forms.join(", "))));
        };
        if kind.form.contains(':') == argument.is_empty() {
            return Err(wrong(format!("expected `{}`", kind.form)));
        }
        Ok(Self {
            text: text.to_owned(),
            kind,
            columns: Vec::new(),
        })
    }
}

/// Options of a source that are paths, as its own argument is.
const PATH_OPTIONS: [&str; 2] = ["test", "vocabulary_file"];

/// Returns a source as text with every path in it changed; what is no source stays as it is.
pub fn with_paths(text: &str, change: impl Fn(&str) -> String) -> String {
    let Some((name, argument)) = text.split_once(':') else {
        return text.to_owned();
    };
    let Some(kind) = KINDS.iter().find(|kind| kind.name == name) else {
        return text.to_owned();
    };
    let (mut path, mut options) = (argument, String::new());
    while kind.form.contains('[')
        && let Some((head, option)) = path.rsplit_once(',')
        && let Some((key, value)) = option.split_once('=')
    {
        let value = if PATH_OPTIONS.contains(&key) {
            change(value)
        } else {
            value.to_owned()
        };
        options = format!(",{key}={value}{options}");
        path = head;
    }
    format!("{name}:{}{options}", change(path))
}

/// Names classes by their numbers.
fn numbered(n: usize) -> Arc<[String]> {
    (0..n).map(|class| class.to_string()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_starts_with_its_name() {
        for kind in &KINDS {
            assert!(
                kind.form.split([':', '[']).next() == Some(kind.name),
                "{}",
                kind.form
            );
        }
    }

    #[test]
    fn paths_are_changed_wherever_a_source_has_them() {
        let deeper = |text: &str| with_paths(text, |path| format!("/d/{path}"));
        assert_eq!(deeper("digits"), "digits");
        assert_eq!(deeper("csv:a,b.csv,label=x"), "csv:/d/a,b.csv,label=x");
        assert_eq!(deeper("mnist:a,b=c"), "mnist:/d/a,b=c");
        assert_eq!(
            deeper("text:t.csv,test=u.csv,length=9,vocabulary_file=v"),
            "text:/d/t.csv,test=/d/u.csv,length=9,vocabulary_file=/d/v"
        );
        assert_eq!(deeper("mnits:x"), "mnits:x");
    }

    #[test]
    fn names_what_is_possible() {
        let error = "mnits:/data".parse::<DataSource>().unwrap_err().to_string();
        assert!(
            error.starts_with(
                "`mnits:/data` is not a data source: expected one of digits, fashion-mnist,"
            ),
            "{error}"
        );
        let error = "cifar10".parse::<DataSource>().unwrap_err().to_string();
        assert_eq!(
            error,
            "`cifar10` is not a data source: expected `cifar10:DIR`"
        );
        assert!("digits:x".parse::<DataSource>().is_err());
    }

    #[test]
    fn a_folder_name_may_hold_colons() {
        assert_eq!(
            "idx:C:/data".parse::<DataSource>().unwrap().to_string(),
            "idx:C:/data"
        );
    }
}
