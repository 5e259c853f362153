//! Tables without labels, for predictions.

use csv::{ReaderBuilder, StringRecord};
use fednode_core::spec::TableColumn;

use super::file::{line_of, most_frequent_separator};
use super::header::{HeaderError, find, is_number};
use crate::table::{CellError, Decimal, encode};

/// Tells why bytes are no rows of numbers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RowsError {
    /// They are no text.
    #[error("is no UTF-8 text")]
    NoText,
    /// The header does not name what the model takes.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// A row is of another width.
    #[error("has {values} values in line {line}, but {who} {expected}")]
    Width {
        /// How many it has.
        values: usize,
        /// Where it is.
        line: usize,
        /// Who says how many there should be.
        who: &'static str,
        /// How many that are.
        expected: usize,
    },
    /// A value is not of its column.
    #[error("{cause}, in column `{column}` of line {line}")]
    Cell {
        /// What is wrong.
        cause: CellError,
        /// The column.
        column: String,
        /// Where it is.
        line: usize,
    },
    /// There is no header.
    #[error("has no header: its first line must name the columns `{}`", .0.join("`, `"))]
    NoHeader(Vec<String>),
    /// A value is no finite number.
    #[error("holds `{cell}` in line {line}, not a finite number")]
    NoNumber {
        /// What stands there.
        cell: String,
        /// Where it is.
        line: usize,
    },
}

/// Reads rows of numbers without any label, one after the other; a first row without any number, or with all these columns'
/// names, is a header. With a header the columns are found by their names, and others are left out.
///
/// # Errors
/// Names the line that is no row of so many finite numbers, or the column that is not there.
pub fn numbers(bytes: &[u8], width: usize, columns: &[String]) -> Result<Vec<f32>, RowsError> {
    let mut reader = ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .trim(csv::Trim::All)
        .from_reader(bytes);
    let (mut values, mut places) = (Vec::new(), None);
    for (at, row) in reader.records().enumerate() {
        let row = row.map_err(|_| RowsError::NoText)?;
        let names_all = || {
            !columns.is_empty()
                && columns
                    .iter()
                    .all(|name| row.iter().any(|cell| cell == name))
        };
        if at == 0 && (!row.iter().any(is_number) || names_all()) {
            places = (!columns.is_empty())
                .then(|| find(columns, &row))
                .transpose()?
                .map(|found| (row.len(), found));
            continue;
        }
        let line = line_of(bytes, &row);
        let expected = places.as_ref().map_or(width, |(cells, _)| *cells);
        if row.len() != expected {
            let who = if places.is_some() {
                "its header has"
            } else {
                "the model takes"
            };
            let values = row.len();
            return Err(RowsError::Width {
                values,
                line,
                who,
                expected,
            });
        }
        let cells: Vec<&str> = match &places {
            Some((_, places)) => places.iter().map(|column| &row[*column]).collect(),
            None => row.iter().collect(),
        };
        for cell in cells {
            let number = cell.parse::<f32>().ok().filter(|value| value.is_finite());
            let no_number = || RowsError::NoNumber {
                cell: cell.to_owned(),
                line,
            };
            values.push(number.ok_or_else(no_number)?);
        }
    }
    Ok(values)
}

/// Reads rows of a raw table without any label, one after the other, by the names in its header: a gap is NaN.
///
/// # Errors
/// Names the column that is not there, or the cell that is not of its column.
pub fn raw_rows(bytes: &[u8], columns: &[TableColumn]) -> Result<Vec<f32>, RowsError> {
    let names: Vec<String> = columns.iter().map(|column| column.name.clone()).collect();
    let first_line = bytes
        .split(|byte| *byte == b'\n')
        .next()
        .unwrap_or_default();
    let separator = most_frequent_separator(first_line);
    let mut reader = ReaderBuilder::new()
        .delimiter(separator)
        .trim(csv::Trim::All)
        .from_reader(bytes);
    let no_text = |_| RowsError::NoText;
    let header = reader.headers().map_err(no_text)?.clone();
    let is_known = |name: &String| header.iter().any(|cell| cell.eq_ignore_ascii_case(name));
    if !names.iter().any(is_known) {
        return Err(RowsError::NoHeader(names));
    }
    let places = find(&names, &header)?;
    let rows = reader
        .records()
        .map(|row| row.map_err(|error| RowsError::of(&error, header.len())))
        .collect::<Result<Vec<StringRecord>, _>>()?;
    let mut needed = [false; 2];
    let may_be_commas = separator != b',';
    rows.iter()
        .filter(|_| may_be_commas)
        .for_each(|row| Decimal::note(row, &mut needed));
    let decimal = Decimal::of(needed);
    let mut values = Vec::with_capacity(rows.len() * columns.len());
    for row in &rows {
        for (column, place) in columns.iter().zip(&places) {
            let value = encode(column, &row[*place], decimal);
            values.push(value.map_err(|cause| RowsError::Cell {
                cause,
                column: column.name.clone(),
                line: line_of(bytes, row),
            })?);
        }
    }
    Ok(values)
}

impl RowsError {
    /// Says why the reader refuses a row of a table with so many columns.
    pub(super) fn of(error: &csv::Error, expected: usize) -> Self {
        match error.kind() {
            csv::ErrorKind::UnequalLengths { pos, len, .. } => Self::Width {
                values: *len as usize,
                line: pos.as_ref().map_or(0, |pos| pos.line() as usize),
                who: "its header has",
                expected,
            },
            _ => Self::NoText,
        }
    }
}
