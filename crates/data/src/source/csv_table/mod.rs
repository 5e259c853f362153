//! CSV: a table of numbers, one sample per row, one column that names the class.
//!
//! - **Header:** the first row is a header if none of its cells is a number, or if one of them is the label column. It
//!   is one, too, if it numbers the other columns from 0, as pandas does, and no other row has its label.
//! - **Label column:** `label=` with a name or a number counted from 0; else the column called `label`, `class` or
//!   `target`; else the last one.
//! - **Classes:** whole numbers are the classes themselves, `0` to the largest; other labels are classes in alphabetical
//!   order. Nodes that each bring their own table must give `classes=`, or the same class may get different numbers.
//! - **Columns:** all but the label's, in their order; where a federation names its columns, those
//!   of a table with a header by their names, whatever else it has.
//! - **Values** are taken as they are; scale them beforehand.

mod classes;
mod header;
mod unlabelled;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use csv::{ReaderBuilder, StringRecord};
use fednode_config::{TableDoc, config};

use self::classes::classes_of;
use self::header::{check_label, find, is_number, numbers_columns};
use super::kind::Reader;
use super::options::{Classes, Column};
use super::records::Wanted;
use super::{Facts, Pool, Source};
use crate::error::DataError;
use crate::samples::{Pixels, Samples};

pub(super) use self::classes::class_names;
pub use self::header::HeaderError;
pub use self::unlabelled::{RowsError, numbers};

/// Headers that name the label column.
pub(super) const LABEL_NAMES: [&str; 3] = ["label", "class", "target"];

#[derive(Debug)]
struct CsvTable {
    path: PathBuf,
    label: Option<String>,
    classes: Option<Classes>,
    /// The columns that are wanted; none are all.
    wanted: Vec<String>,
}

/// What the first row tells.
struct Layout {
    has_header: bool,
    label: usize,
    /// The columns of a sample's values.
    features: Vec<usize>,
    /// What they are called, if there is a header.
    names: Vec<String>,
}

config! {
    /// A table of numbers.
    pub(super) struct Options {
        /// The table, separated by commas.
        file: PathBuf = PathBuf::new() => "FILE",
        /// The column of the classes: its name, or its number from 0. Without it, the column that is called `label`, `class`
        /// or `target`, else the last one.
        label: Option<Column> = None => "COL",
        /// The classes, where every node brings its own table: how many, names in order, or `LABEL=>NAME`, or a table of
        /// labels and names. Without it, the labels that are there.
        classes: Option<Classes> = None => "[LABEL=>]A|…",
    }
}

impl Reader for Options {
    const NAME: &'static str = "csv";
    const ABOUT: &'static str = "a table of numbers with a label column";
    const ARGUMENT: Option<&'static str> = Some("file");

    fn table() -> TableDoc {
        Self::doc()
    }

    fn open(self, columns: &[String]) -> Result<Box<dyn Source>, DataError> {
        Ok(Box::new(CsvTable {
            path: self.file,
            label: self.label.map(|Column(column)| column),
            classes: self.classes,
            wanted: columns.to_vec(),
        }))
    }
}

impl CsvTable {
    fn reader(&self, has_header: bool) -> Result<csv::Reader<std::fs::File>, DataError> {
        let mut builder = ReaderBuilder::new();
        builder.has_headers(has_header).trim(csv::Trim::All);
        builder
            .from_path(&self.path)
            .map_err(|error| damaged(&self.path, error))
    }

    fn layout(&self) -> Result<Layout, DataError> {
        let first = self.reader(false)?.records().next();
        let first = first.ok_or_else(|| DataError::malformed(&self.path, "is empty"))?;
        let first = first.map_err(|error| damaged(&self.path, error))?;
        let columns = first.len();
        if columns < 2 {
            let separator = [';', '\t']
                .into_iter()
                .find(|separator| first.iter().any(|cell| cell.contains(*separator)));
            let cause = match separator {
                Some(separator) => format!("is separated by {separator:?}: write it with commas"),
                None => "needs at least a label and one value per row".to_owned(),
            };
            return Err(DataError::malformed(&self.path, cause));
        }
        let by_name = self.named_column(&first);
        let label = match (&self.label, by_name) {
            (_, Some(column)) => column,
            (Some(text), None) => {
                let number = text.parse().ok().filter(|column| *column < columns);
                number.ok_or_else(|| {
                    let cause = format!(
                        "has no column `{text}` (names from the header, or 0 to {})",
                        columns - 1
                    );
                    DataError::malformed(&self.path, cause)
                })?
            }
            (None, None) => columns - 1,
        };
        let has_header = by_name.is_some()
            || !first.iter().any(is_number)
            || numbers_columns(&first, label) && !self.is_a_class(&first[label], label)?;
        let mut features: Vec<usize> = (0..columns).filter(|column| *column != label).collect();
        if !has_header {
            return Ok(Layout {
                has_header,
                label,
                features,
                names: Vec::new(),
            });
        }
        if !self.wanted.is_empty() {
            let malformed =
                |cause: HeaderError| DataError::malformed(&self.path, cause.to_string());
            features = find(&self.wanted, &first).map_err(malformed)?;
            let is_guessed = self.label.is_none() && by_name.is_none();
            check_label(&first, label, &features, is_guessed).map_err(malformed)?;
        }
        let names = features
            .iter()
            .map(|column| first[*column].to_owned())
            .collect();
        Ok(Layout {
            has_header,
            label,
            features,
            names,
        })
    }

    /// Tells whether the label of the first row is that of another one too.
    fn is_a_class(&self, name: &str, label: usize) -> Result<bool, DataError> {
        let mut rows = 0;
        self.for_each(false, |_, row| {
            rows += usize::from(&row[label] == name);
            Ok(())
        })?;
        Ok(rows > 1)
    }

    fn named_column(&self, first: &StringRecord) -> Option<usize> {
        let position = |name: &str| {
            first
                .iter()
                .position(|cell| cell.eq_ignore_ascii_case(name) && !is_number(cell))
        };
        match &self.label {
            Some(name) => position(name),
            None => LABEL_NAMES.iter().find_map(|name| position(name)),
        }
    }

    /// Shows each row, with its place among the samples.
    fn for_each(
        &self,
        has_header: bool,
        mut visit: impl FnMut(usize, &StringRecord) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        let mut reader = self.reader(has_header)?;
        let mut row = StringRecord::new();
        let mut at = 0;
        while reader
            .read_record(&mut row)
            .map_err(|error| damaged(&self.path, error))?
        {
            visit(at, &row)?;
            at += 1;
        }
        Ok(())
    }

    fn number(&self, row: &StringRecord, column: usize) -> Result<f32, DataError> {
        let cell = &row[column];
        cell.parse::<f32>()
            .ok()
            .filter(|value| value.is_finite())
            .ok_or_else(|| {
                let line = std::fs::read(&self.path).map_or(0, |bytes| line_of(&bytes, row));
                DataError::malformed(
                    &self.path,
                    format!("holds `{cell}` in column {column} of line {line}, not a number"),
                )
            })
    }
}

/// Returns the line of a row, counting from 1: the reader's own count is one too low where lines end with CR and LF.
fn line_of(bytes: &[u8], row: &StringRecord) -> usize {
    let start = row
        .position()
        .map_or(0, |position| position.byte() as usize)
        .min(bytes.len());
    let ends = bytes[start..]
        .iter()
        .take_while(|byte| b"\r\n".contains(byte))
        .count();
    1 + bytes[..start + ends]
        .iter()
        .filter(|byte| **byte == b'\n')
        .count()
}

impl Source for CsvTable {
    fn describe(&self) -> Result<Facts, DataError> {
        let names = self.layout()?.names;
        let distinct: BTreeSet<&String> = names.iter().collect();
        let are_names = !names.is_empty() && distinct.len() == names.len();
        Ok(Facts::Table {
            columns: are_names.then_some(names),
        })
    }

    fn pool(&self) -> Result<Pool, DataError> {
        let layout = self.layout()?;
        let mut texts: Vec<Arc<str>> = Vec::new();
        let mut distinct: BTreeSet<Arc<str>> = BTreeSet::new();
        self.for_each(layout.has_header, |_, row| {
            let text = &row[layout.label];
            if text.is_empty() {
                let line = std::fs::read(&self.path).map_or(0, |bytes| line_of(&bytes, row));
                return Err(DataError::malformed(
                    &self.path,
                    format!("has no label in line {line}: leave that row out"),
                ));
            }
            let text = distinct
                .get(text)
                .cloned()
                .unwrap_or_else(|| Arc::from(text));
            distinct.insert(Arc::clone(&text));
            texts.push(text);
            Ok(())
        })?;
        let Classes {
            names,
            labels: written,
        } = match &self.classes {
            Some(classes) => classes.clone(),
            None => {
                let found = classes_of(&layout, &texts, &distinct);
                Classes::called(found.map_err(|cause| DataError::malformed(&self.path, cause))?)
            }
        };
        let by_name: BTreeMap<&str, u16> = written.iter().map(String::as_str).zip(0..).collect();
        let label = |(at, text): (usize, &Arc<str>)| {
            by_name.get(text.as_ref()).copied().ok_or_else(|| {
                let cause = format!(
                    "has label `{text}` in row {at}, which is none of its {} classes",
                    names.len()
                );
                DataError::malformed(&self.path, cause)
            })
        };
        let labels = texts
            .iter()
            .enumerate()
            .map(label)
            .collect::<Result<_, _>>()?;
        Ok(Pool {
            shape: [1, 1, layout.features.len()],
            labels,
            class_names: names,
        })
    }

    fn read(&self, pool: &Pool, indices: &[u32]) -> Result<Samples, DataError> {
        let layout = self.layout()?;
        let width = pool.shape[2];
        let wanted = Wanted::new(indices);
        let mut cursor = wanted.within(0..u32::MAX);
        let mut values = vec![0.0; indices.len() * width];
        self.for_each(layout.has_header, |at, row| {
            for place in cursor.places(at) {
                for (value, column) in values[place * width..(place + 1) * width]
                    .iter_mut()
                    .zip(&layout.features)
                {
                    *value = self.number(row, *column)?;
                }
            }
            Ok(())
        })?;
        pool.samples(indices, Pixels::Floats(values))
    }
}

fn damaged(path: &Path, error: csv::Error) -> DataError {
    match error.into_kind() {
        csv::ErrorKind::Io(source) => DataError::Read {
            path: path.to_owned(),
            source,
        },
        csv::ErrorKind::UnequalLengths {
            pos,
            expected_len,
            len,
        } => {
            let line = pos.map_or(0, |pos| pos.line());
            DataError::malformed(
                path,
                format!("has {len} cells in line {line}, but {expected_len} before"),
            )
        }
        _ => DataError::malformed(path, "is no UTF-8 text"),
    }
}
