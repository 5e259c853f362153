//! CSV: a table of numbers, one sample per row, one column that names the class.
//!
//! - **Header:** the first row is a header if none of its cells is a number, or if one of them is the label column. It
//!   is one, too, if it numbers the other columns from 0, as pandas does, and no other row has its label.
//! - **Label column:** `label=` with a name or a number counted from 0; else the column called `label`, `class` or
//!   `target`; else the last one.
//! - **Classes:** the labels that occur, in the order of their numbers or letters. Whole numbers from 0 on, of which most occur, are
//!   a count: those that are missing are classes, too. In a federation the classes are those of its spec.
//! - **Numbers:** `target=` names the column of a number that is predicted instead of a class.
//! - **Columns:** all but the label's, in their order; where a federation names its columns, those
//!   of a table with a header by their names, whatever else it has.
//! - **Values:** where the spec describes the columns (`data.columns`), words, gaps and truth values are read as
//!   [`crate::table`] says. Otherwise all are numbers, taken as they are.
//! - **Tests:** rows of a file of their own (`test=FILE`), or those of which a column says so (`split=COLUMN`); rows of which
//!   a column says the same (`group=COLUMN`), as the visits of one patient, stay together.
//! - **Parquet:** a file that begins as a Parquet file is read as the same table written as CSV.
//! - **Separators:** commas, semicolons, tabs or bars, whichever the first row has most of. Where it is no comma, numbers may
//!   have decimal commas.

mod classes;
mod file;
mod header;
mod ids;
mod parquet;
mod unlabelled;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use fednode_config::{ConfigError, TableDoc, config};
use fednode_core::spec::MOST_COLUMNS;

use self::classes::classes_of;
use self::file::{Layout, Rows, Table, words_to_predict};
use super::kind::Reader;
use super::options::{Classes, Column};
use super::records::Wanted;
use super::{Columns, Facts, Label, Pool, Source};
use crate::error::DataError;
use crate::samples::{Pixels, Samples};
use crate::table::{self, Survey};

pub(super) use self::classes::class_names;
pub(super) use self::file::LABEL_NAMES;
pub use self::header::HeaderError;
pub use self::ids::row_ids;
pub use self::parquet::{ParquetError, is_parquet, text_of};
pub use self::unlabelled::{RowsError, numbers, raw_rows};

/// A table, and one of rows for tests if there is one.
#[derive(Debug)]
struct CsvTable {
    tables: Vec<Table>,
    predicts: Predicts,
}

/// What the label column holds.
#[derive(Debug)]
enum Predicts {
    /// Classes: these, or those of the labels that occur.
    Classes(Option<Classes>),
    /// Numbers.
    Numbers,
}

config! {
    /// A table.
    pub(super) struct Options {
        /// The table, separated by commas, semicolons, tabs or bars; or a Parquet file.
        file: PathBuf = PathBuf::new() => "FILE",
        /// The column of the classes: its name, or its number from 0. Without it, the column that is called `label`, `class`
        /// or `target`, else the last one.
        label: Option<Column> = None => "COL",
        /// The classes: how many, names in order, or `LABEL=>NAME`, or a table of labels and names. Without it, the labels that
        /// are there; in a federation its classes, if it has all of them.
        classes: Option<Classes> = None => "[LABEL=>]A|…",
        /// The column of the number that is predicted, instead of `label`: its name, or its number from 0.
        target: Option<Column> = None => "COL",
        /// A table of rows for tests, with the same columns.
        test: Option<PathBuf> = None => "FILE",
        /// The column that says which rows are for tests (`test`, `true`, `yes` or `1`), and which are not (`train`, `false`,
        /// `no` or `0`).
        split: Option<Column> = None => "COL",
        /// The column that says which rows belong together, as the visits of one patient: they are all for tests or all not.
        group: Option<Column> = None => "COL",
    }
}

impl Reader for Options {
    const NAME: &'static str = "csv";
    const ABOUT: &'static str = "a table with a column of classes, or of a number to predict";
    const ARGUMENT: Option<&'static str> = Some("file");

    fn table() -> TableDoc {
        Self::doc()
    }

    fn check(&self) -> Result<(), ConfigError> {
        let ways = [
            self.test.is_some(),
            self.split.is_some(),
            self.group.is_some() && self.test.is_some(),
        ];
        if ways.into_iter().filter(|is_given| *is_given).count() > 1 {
            let text = "`test` and `split` both say which rows are for tests, and with `test` no `group` can: leave one out";
            return Err(ConfigError(text.into()));
        }
        if self.target.is_some() && (self.label.is_some() || self.classes.is_some()) {
            let text = "`target` is the column of a number, and `label` and `classes` are about classes: leave one out";
            return Err(ConfigError(text.into()));
        }
        Ok(())
    }

    fn open(self, columns: &Columns) -> Result<Box<dyn Source>, DataError> {
        let name = |column: Option<Column>| column.map(|Column(column)| column);
        let predicts = match self.target {
            Some(_) => Predicts::Numbers,
            None => Predicts::Classes(self.classes),
        };
        let table = Table {
            path: self.file,
            predicts_numbers: self.target.is_some(),
            label: name(self.target.or(self.label)),
            split: name(self.split),
            group: name(self.group),
            wanted: columns.clone(),
            written_out: None,
        };
        let test = self.test.map(|path| Table {
            path,
            ..table.clone()
        });
        let tables = [table].into_iter().chain(test).map(Table::opened);
        Ok(Box::new(CsvTable {
            tables: tables.collect::<Result<_, _>>()?,
            predicts,
        }))
    }
}

impl CsvTable {
    /// Returns the classes: those that are named, else those of the labels that occur. Each file has so many labels.
    fn classes(
        &self,
        layout: &Layout,
        files: &[Vec<Arc<str>>],
        distinct: &BTreeSet<Arc<str>>,
        named: Option<&Classes>,
    ) -> Result<Classes, DataError> {
        if let Some(classes) = named {
            return Ok(classes.clone());
        }
        for (file, labels) in self.tables.iter().zip(files) {
            let Some(at) = labels.iter().position(|label| table::is_no_label(label)) else {
                continue;
            };
            let line = file.line_of(&file.layout()?, at)?;
            let cause = format!(
                "has `{0}` for a label in line {line}: leave that row out, or name the classes with `,classes=…` if `{0}` is one",
                labels[at]
            );
            return Err(DataError::malformed(&file.path, cause));
        }
        classes_of(layout, &files[0], distinct)
            .map(Classes::called)
            .map_err(|cause| DataError::malformed(&self.tables[0].path, cause))
    }

    /// Returns the numbers of rows, of which each file has so many.
    fn numbers(&self, files: &[Vec<Arc<str>>]) -> Result<Vec<f32>, DataError> {
        let mut numbers = Vec::new();
        for (table, texts) in self.tables.iter().zip(files) {
            // Each file has a decimal sign of its own.
            let layout = table.layout()?;
            let is_word = |text: &&Arc<str>| table::number(text, layout.decimal).is_err();
            if 2 * texts.iter().filter(is_word).count() > texts.len() {
                let cause = words_to_predict(&layout.label_name);
                return Err(DataError::malformed(&table.path, cause));
            }
            for (at, text) in texts.iter().enumerate() {
                match table::number(text, layout.decimal) {
                    Ok(number) => numbers.push(number),
                    Err(cause) => {
                        let (name, line) = (&layout.label_name, table.line_of(&layout, at)?);
                        let cause = format!(
                            "{cause}, in column `{name}` of line {line}: leave that row out"
                        );
                        return Err(DataError::malformed(&table.path, cause));
                    }
                }
            }
        }
        Ok(numbers)
    }

    /// Returns the classes of rows, of which each file has so many.
    fn labels(&self, classes: &Classes, files: &[Vec<Arc<str>>]) -> Result<Vec<u16>, DataError> {
        let mut known: BTreeMap<&Arc<str>, u16> = BTreeMap::new();
        let mut labels = Vec::new();
        for (table, texts) in self.tables.iter().zip(files) {
            for (at, text) in texts.iter().enumerate() {
                if !known.contains_key(text) {
                    let class = classes.of(text).ok_or_else(|| {
                        let line = table.layout().and_then(|layout| table.line_of(&layout, at));
                        let cause = format!(
                            "has label `{text}` in line {}, which is none of its {} classes",
                            line.unwrap_or_default(),
                            classes.names.len()
                        );
                        DataError::malformed(&table.path, cause)
                    })?;
                    known.insert(text, class);
                }
                labels.push(known[text]);
            }
        }
        Ok(labels)
    }
}

impl Source for CsvTable {
    fn grows_at_the_end(&self) -> bool {
        true
    }

    fn describe(&self) -> Result<Facts, DataError> {
        let names = self.tables[0].layout()?.names;
        let distinct: BTreeSet<&String> = names.iter().collect();
        let are_names = !names.is_empty() && distinct.len() == names.len();
        Ok(Facts::Table {
            columns: are_names.then_some(names),
        })
    }

    fn label(&self) -> Result<Option<Label>, DataError> {
        let layout = self.tables[0].layout()?;
        Ok(Some(Label {
            name: layout.label_name,
            is_guessed: layout.is_label_guessed,
        }))
    }

    fn survey(&self) -> Result<Option<Survey>, DataError> {
        let layout = self.tables[0].layout()?;
        let distinct: BTreeSet<&String> = layout.names.iter().collect();
        let n_columns = layout.names.len();
        if n_columns == 0 || distinct.len() < n_columns || n_columns > MOST_COLUMNS {
            return Ok(None);
        }
        let mut survey = Survey::of(layout.names.iter().cloned());
        self.tables[0].for_each(layout.has_header, |_, row| {
            let cells = layout.features.iter().map(|column| &row[*column]);
            survey.add(cells, layout.decimal);
            Ok(())
        })?;
        survey.finish();
        Ok(Some(survey))
    }

    fn pool(&self) -> Result<Pool, DataError> {
        let layout = self.tables[0].layout()?;
        let mut distinct = BTreeSet::new();
        let files: Vec<Rows> = self
            .tables
            .iter()
            .map(|table| table.rows(&mut distinct))
            .collect::<Result<_, _>>()?;
        let mut tests = files[0].tests.clone();
        if let [train, test] = files.as_slice() {
            let of = |rows: &Rows, is_test| vec![is_test; rows.labels.len()];
            tests = Some([of(train, false), of(test, true)].concat());
        }
        let groups = files[0]
            .groups
            .as_ref()
            .map(|groups| numbered_groups(groups));
        let texts: Vec<Vec<Arc<str>>> = files.into_iter().map(|rows| rows.labels).collect();
        let pool = Pool {
            shape: [1, 1, layout.features.len()],
            tests,
            groups,
            ..Pool::default()
        };
        let named = match &self.predicts {
            Predicts::Classes(named) => named.as_ref(),
            Predicts::Numbers => {
                let targets = self.numbers(&texts)?;
                return Ok(Pool {
                    labels: vec![0; targets.len()],
                    class_names: [layout.label_name].into(),
                    targets: Some(targets),
                    ..pool
                });
            }
        };
        let classes = self.classes(&layout, &texts, &distinct, named)?;
        Ok(Pool {
            labels: self.labels(&classes, &texts)?,
            class_names: classes.names,
            ..pool
        })
    }

    fn read(&self, pool: &Pool, indices: &[u32]) -> Result<Samples, DataError> {
        let width = pool.shape[2];
        let wanted = Wanted::new(indices);
        let mut values = vec![0.0; indices.len() * width];
        let mut start = 0;
        for table in &self.tables {
            let layout = table.layout()?;
            let mut cursor = wanted.within(start..u32::MAX);
            table.for_each(layout.has_header, |at, row| {
                start += 1;
                for place in cursor.places(at) {
                    let sample = &mut values[place * width..(place + 1) * width];
                    for (feature, value) in sample.iter_mut().enumerate() {
                        *value = table.value(row, &layout, feature)?;
                    }
                }
                Ok(())
            })?;
        }
        pool.samples(indices, Pixels::Floats(values))
    }
}

/// Numbers groups in the order of their words.
fn numbered_groups(groups: &[Arc<str>]) -> Vec<u32> {
    let distinct: BTreeSet<&Arc<str>> = groups.iter().collect();
    let numbers: BTreeMap<&Arc<str>, u32> = distinct.into_iter().zip(0..).collect();
    groups.iter().map(|group| numbers[group]).collect()
}
