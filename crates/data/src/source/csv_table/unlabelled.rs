//! Tables without labels, for predictions.

use csv::ReaderBuilder;

use super::header::{HeaderError, find, is_number};
use super::line_of;

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
