//! One file of a table: its separator, its header, which column is what, its rows.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use csv::{ReaderBuilder, StringRecord};

use super::header::{HeaderError, find, is_number, numbers_columns, settle_label, twice};
use super::parquet;
use crate::error::DataError;
use crate::source::Columns;
use crate::table::{self, Decimal, encode};

/// Headers that name the label column.
pub(in crate::source) const LABEL_NAMES: [&str; 3] = ["label", "class", "target"];
/// What a column says of rows that are for tests.
const FOR_TESTS: [&str; 4] = ["test", "true", "yes", "1"];
/// What it says of others.
const NOT_FOR_TESTS: [&str; 5] = ["train", "training", "false", "no", "0"];
/// Longest first line, in bytes.
const LONGEST_HEADER: u64 = 1 << 20;

/// One file, and which of its columns are what.
#[derive(Debug, Clone)]
pub(super) struct Table {
    pub(super) path: PathBuf,
    pub(super) label: Option<String>,
    /// Whether that column holds numbers to predict.
    pub(super) predicts_numbers: bool,
    /// The column that says which rows are for tests.
    pub(super) split: Option<String>,
    /// The column that says which rows belong together.
    pub(super) group: Option<String>,
    /// The columns that are wanted.
    pub(super) wanted: Columns,
    /// Its text, if it is a Parquet file.
    pub(super) written_out: Option<Arc<[u8]>>,
}

/// What the first row tells.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) has_header: bool,
    pub(super) label: usize,
    /// What that column is called: its place, without a header.
    pub(super) label_name: String,
    /// Whether it was taken only because it is the last one.
    pub(super) is_label_guessed: bool,
    /// The columns of `split` and `group`, if they are wanted.
    split: Option<usize>,
    group: Option<usize>,
    /// The columns of a sample's values.
    pub(super) features: Vec<usize>,
    /// What they are called, if there is a header.
    pub(super) names: Vec<String>,
    pub(super) decimal: Decimal,
}

/// What a file says of its rows besides their values.
#[derive(Debug, Default)]
pub(super) struct Rows {
    /// How each is labelled.
    pub(super) labels: Vec<Arc<str>>,
    /// Which are for tests, if a column says so.
    pub(super) tests: Option<Vec<bool>>,
    /// Which group each belongs to, if a column says so.
    pub(super) groups: Option<Vec<Arc<str>>>,
}

impl Table {
    /// Takes the text of a Parquet file in place of the file. Whether the file is there is found out where it is read.
    pub(super) fn opened(mut self) -> Result<Self, DataError> {
        let mut start = [0; parquet::MAGIC.len()];
        let file = std::fs::File::open(&self.path);
        let is_read = file.and_then(|mut file| file.read_exact(&mut start));
        if is_read.is_ok() && parquet::is_parquet(&start) {
            let bytes = std::fs::read(&self.path).map_err(DataError::read(&self.path))?;
            let text = parquet::written_out(bytes);
            let text = text.map_err(|error| DataError::malformed(&self.path, error.to_string()))?;
            self.written_out = Some(text.into());
        }
        Ok(self)
    }

    fn reader(&self, has_header: bool) -> Result<csv::Reader<Box<dyn Read>>, DataError> {
        let mut builder = ReaderBuilder::new();
        builder
            .has_headers(has_header)
            .delimiter(self.separator()?)
            .trim(csv::Trim::All);
        let from: Box<dyn Read> = match &self.written_out {
            Some(text) => Box::new(std::io::Cursor::new(Arc::clone(text))),
            None => Box::new(std::fs::File::open(&self.path).map_err(DataError::read(&self.path))?),
        };
        Ok(builder.from_reader(from))
    }

    fn separator(&self) -> Result<u8, DataError> {
        match self.written_out {
            Some(_) => Ok(b','),
            None => separator_of(&self.path),
        }
    }

    pub(super) fn layout(&self) -> Result<Layout, DataError> {
        let first = self.reader(false)?.records().next();
        let first = first.ok_or_else(|| DataError::malformed(&self.path, "is empty"))?;
        let first = first.map_err(|error| damaged(&self.path, error))?;
        if first.len() < 2 {
            let cause = "needs at least a label and one value per row";
            return Err(DataError::malformed(&self.path, cause));
        }
        let by_name = self.named_column(&first);
        let label = self.label_column(&first, by_name)?;
        let has_header = self.written_out.is_some()
            || by_name.is_some()
            || !first.iter().any(is_number)
            || numbers_columns(&first, label) && !self.is_a_class(&first[label], label)?;
        let [split, group] = [&self.split, &self.group].map(|name| {
            name.as_ref()
                .map(|name| self.column(name, &first))
                .transpose()
        });
        let (split, group) = (split?, group?);
        let is_feature =
            |column: &usize| *column != label && ![split, group].contains(&Some(*column));
        let mut layout = Layout {
            has_header,
            label,
            label_name: if has_header {
                first[label].to_owned()
            } else {
                label.to_string()
            },
            is_label_guessed: self.label.is_none() && by_name.is_none(),
            split,
            group,
            features: (0..first.len()).filter(is_feature).collect(),
            names: Vec::new(),
            decimal: self.decimal(has_header)?,
        };
        if has_header {
            self.name_features(&mut layout, &first)?;
        } else if let Columns::Described(columns) = &self.wanted {
            let cause = format!(
                "has no header, and the federation reads its columns by their names: `{}` and others",
                columns[0].name
            );
            return Err(DataError::malformed(&self.path, cause));
        }
        Ok(layout)
    }

    /// Returns where the label is: in the column that is named, in that of the number, else in the last one.
    fn label_column(
        &self,
        first: &StringRecord,
        by_name: Option<usize>,
    ) -> Result<usize, DataError> {
        match (&self.label, by_name) {
            (_, Some(column)) => Ok(column),
            (Some(text), None) => {
                let number = text.parse().ok().filter(|column| *column < first.len());
                number.ok_or_else(|| self.no_column(text, first.len()))
            }
            (None, None) => Ok(first.len() - 1),
        }
    }

    /// Finds the columns that are wanted by the names of a header.
    fn name_features(&self, layout: &mut Layout, header: &StringRecord) -> Result<(), DataError> {
        if let Some(wanted) = self.wanted_names() {
            let malformed =
                |cause: HeaderError| DataError::malformed(&self.path, cause.to_string());
            layout.features = find(&wanted, header).map_err(malformed)?;
            let said = (!layout.is_label_guessed).then_some(layout.label);
            let is_free = |column: &usize| ![layout.split, layout.group].contains(&Some(*column));
            let others = (0..header.len()).filter(is_free).collect();
            layout.label =
                settle_label(header, said, &layout.features, others).map_err(malformed)?;
            header[layout.label].clone_into(&mut layout.label_name);
            layout.is_label_guessed = false;
        } else if let Some(name) = twice(header) {
            let text = match name {
                "" => "has columns without a name: give each one".to_owned(),
                name => format!("has two columns `{name}`: give each a name of its own"),
            };
            return Err(DataError::malformed(&self.path, text));
        }
        let name = |column: &usize| header[*column].to_owned();
        layout.names = layout.features.iter().map(name).collect();
        Ok(())
    }

    /// Returns the names of the columns that are wanted; nothing if all are.
    fn wanted_names(&self) -> Option<Vec<String>> {
        match &self.wanted {
            Columns::All => None,
            Columns::Named(names) => Some(names.clone()),
            Columns::Described(columns) => {
                Some(columns.iter().map(|column| column.name.clone()).collect())
            }
        }
    }

    /// Tells what stands before fractions: a comma where commas separate nothing, some cell needs one, and none needs a point.
    fn decimal(&self, has_header: bool) -> Result<Decimal, DataError> {
        if self.separator()? == b',' {
            return Ok(Decimal::Point);
        }
        let mut needed = [false; 2];
        self.for_each(has_header, |_, row| {
            Decimal::note(row, &mut needed);
            Ok(())
        })?;
        Ok(Decimal::of(needed))
    }

    /// Returns the place of a column that is named, or counted from 0.
    fn column(&self, name: &str, first: &StringRecord) -> Result<usize, DataError> {
        let by_name = first
            .iter()
            .position(|cell| cell.eq_ignore_ascii_case(name));
        let by_number = || name.parse().ok().filter(|column| *column < first.len());
        by_name
            .or_else(by_number)
            .ok_or_else(|| self.no_column(name, first.len()))
    }

    fn no_column(&self, name: &str, columns: usize) -> DataError {
        let cause = format!(
            "has no column `{name}` (names from the header, or 0 to {})",
            columns - 1
        );
        DataError::malformed(&self.path, cause)
    }

    /// Returns what is said of the rows besides their values. The same words are one in memory.
    pub(super) fn rows(&self, distinct: &mut BTreeSet<Arc<str>>) -> Result<Rows, DataError> {
        let layout = self.layout()?;
        let mut rows = Rows {
            tests: layout.split.map(|_| Vec::new()),
            groups: layout.group.map(|_| Vec::new()),
            ..Rows::default()
        };
        let mut groups: BTreeSet<Arc<str>> = BTreeSet::new();
        self.for_each(layout.has_header, |_, row| {
            let text = &row[layout.label];
            if text.is_empty() {
                // A column of words is another mistake than a gap, and has to be said first.
                let is_word = |text: &&Arc<str>| table::number(text, layout.decimal).is_err();
                let words = rows.labels.iter().filter(is_word).count();
                let cause = match self.predicts_numbers {
                    true if 2 * words > rows.labels.len() => words_to_predict(&layout.label_name),
                    true => format!(
                        "has no number to predict in line {}: leave that row out",
                        self.line(row)
                    ),
                    false => format!(
                        "has no label in line {}: leave that row out",
                        self.line(row)
                    ),
                };
                return Err(DataError::malformed(&self.path, cause));
            }
            rows.labels.push(interned(distinct, text));
            if let (Some(tests), Some(column)) = (&mut rows.tests, layout.split) {
                let is_for_tests = is_for_tests(&row[column]).ok_or_else(|| {
                    let cause = format!(
                        "says `{}` in line {} of its column of `split`, which may say `test`, `true`, `yes` or `1`, and `train`, \
                         `false`, `no` or `0`",
                        &row[column],
                        self.line(row)
                    );
                    DataError::malformed(&self.path, cause)
                })?;
                tests.push(is_for_tests);
            }
            if let (Some(of_rows), Some(column)) = (&mut rows.groups, layout.group) {
                of_rows.push(interned(&mut groups, &row[column]));
            }
            Ok(())
        })?;
        if rows.labels.is_empty() {
            return Err(DataError::malformed(&self.path, "has no rows"));
        }
        Ok(rows)
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
    pub(super) fn for_each(
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

    /// Reads the value of a feature.
    pub(super) fn value(
        &self,
        row: &StringRecord,
        layout: &Layout,
        feature: usize,
    ) -> Result<f32, DataError> {
        let column = layout.features[feature];
        let cell = &row[column];
        let value = match &self.wanted {
            Columns::Described(columns) => encode(&columns[feature], cell, layout.decimal),
            Columns::All | Columns::Named(_) => table::number(cell, layout.decimal),
        };
        value.map_err(|cause| {
            let line = self.line(row);
            let name = layout.names.get(feature);
            let name = name.map_or_else(|| (column + 1).to_string(), |name| format!("`{name}`"));
            DataError::malformed(
                &self.path,
                format!("{cause}, in column {name} of line {line}"),
            )
        })
    }

    /// Returns the line of the row at a place, counting from 1.
    pub(super) fn line_of(&self, layout: &Layout, wanted: usize) -> Result<usize, DataError> {
        let mut line = 0;
        self.for_each(layout.has_header, |at, row| {
            if at == wanted {
                line = self.line(row);
            }
            Ok(())
        })?;
        Ok(line)
    }

    /// Returns the line of a row, counting from 1.
    fn line(&self, row: &StringRecord) -> usize {
        match &self.written_out {
            Some(text) => line_of(text, row),
            None => std::fs::read(&self.path).map_or(0, |bytes| line_of(&bytes, row)),
        }
    }
}

/// Tells what a column says of a row: whether it is for tests. `None` if it says nothing of that.
fn is_for_tests(word: &str) -> Option<bool> {
    let is_any = |words: &[&str]| words.iter().any(|known| word.eq_ignore_ascii_case(known));
    match (is_any(&FOR_TESTS), is_any(&NOT_FOR_TESTS)) {
        (true, _) => Some(true),
        (_, true) => Some(false),
        _ => None,
    }
}

/// Returns a word as it is known, or makes it known.
fn interned(known: &mut BTreeSet<Arc<str>>, word: &str) -> Arc<str> {
    if let Some(known) = known.get(word) {
        return Arc::clone(known);
    }
    let word: Arc<str> = Arc::from(word);
    known.insert(Arc::clone(&word));
    word
}

/// Returns what separates the cells of a table: what its first line has most of.
fn separator_of(path: &Path) -> Result<u8, DataError> {
    let file = std::fs::File::open(path).map_err(DataError::read(path))?;
    let mut line = Vec::new();
    BufReader::new(file)
        .take(LONGEST_HEADER)
        .read_until(b'\n', &mut line)
        .map_err(DataError::read(path))?;
    Ok(most_frequent_separator(&line))
}

/// Returns which separator a line has most of outside quotation marks, the comma if there is none.
pub(super) fn most_frequent_separator(line: &[u8]) -> u8 {
    let count = |separator: u8| {
        let mut is_quoted = false;
        line.iter()
            .filter(|byte| {
                is_quoted ^= **byte == b'"';
                !is_quoted && **byte == separator
            })
            .count()
    };
    // Of equals the last one counts: a comma may also be in numbers.
    let separators = [b',', b'|', b'\t', b';'];
    let most = separators
        .into_iter()
        .max_by_key(|separator| count(*separator));
    most.filter(|separator| count(*separator) > 0)
        .unwrap_or(b',')
}

/// Returns the line of a row, counting from 1: the reader's own count is one too low where lines end with CR and LF.
pub(super) fn line_of(bytes: &[u8], row: &StringRecord) -> usize {
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
/// Says that a column of words has no numbers to predict.
pub(super) fn words_to_predict(name: &str) -> String {
    format!(
        "holds words in column `{name}`, and numbers are predicted: name another one with `,target=COLUMN`"
    )
}
