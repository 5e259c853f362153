//! Tables in Parquet files: written out as the text of the same table, so that they are read as any other.
//!
//! ```text
//! names of columns  ─► the first line
//! null              ─► an empty cell, which is a gap
//! numbers           ─► the shortest text that reads as the same number
//! dates and times   ─► as 2024-05-01 and 2024-05-01 12:00:00
//! ```
//!
//! Lines are counted as a spreadsheet does: the names are in line 1, the first row in line 2. Lists and records are no cells of a
//! table. The column in which pandas keeps the index of a frame is no column of it, and is left out.
//!
//! Files may be compressed by Snappy, Zstandard, gzip or LZ4.

use std::borrow::Cow;

use bytes::Bytes;
use csv::WriterBuilder;
use fednode_core::guarded::guarded;
use parquet::basic::{LogicalType, TimeUnit};
use parquet::data_type::AsBytes;
use parquet::errors::ParquetError as Cause;
use parquet::file::metadata::ParquetMetaData;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use parquet::schema::types::Type;

/// What a Parquet file begins and ends with.
pub(super) const MAGIC: &[u8] = b"PAR1";
/// What pandas calls columns of the index.
const INDEX: &str = "__index_level_";
const MILLIS_OF_DAY: i64 = 24 * 3600 * 1000;
/// Days before and after 1970 that dates are written of: some 27,000 years.
const MOST_DAYS: i64 = 10_000_000;
const NO_DATE: &str = "dates that no calendar has";

/// Tells why a Parquet file is no table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParquetError {
    /// It is damaged, or uses what is not known here.
    #[error("is no Parquet file that can be read: {0}")]
    Damaged(String),
    /// A column holds something that is no cell.
    #[error(
        "has {what} in column `{column}`, which are no cells of a table: leave that column out"
    )]
    NoCell {
        /// What it holds.
        what: &'static str,
        /// Its name.
        column: String,
    },
}

impl From<Cause> for ParquetError {
    fn from(cause: Cause) -> Self {
        let text = cause.to_string();
        Self::Damaged(text.lines().next().unwrap_or_default().to_owned())
    }
}

/// Tells whether bytes are those of a Parquet file, by how they begin.
pub fn is_parquet(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

/// Returns the text of a table: bytes as they are, unless they are those of a Parquet file.
///
/// It is for files of one's own. A small Parquet file can hold a table that no memory holds.
///
/// # Errors
/// Says what is wrong with a Parquet file.
pub fn text_of(bytes: &[u8]) -> Result<Cow<'_, [u8]>, ParquetError> {
    if is_parquet(bytes) {
        written_out(bytes.to_vec()).map(Cow::Owned)
    } else {
        Ok(Cow::Borrowed(bytes))
    }
}

/// Writes the table of a Parquet file out, separated by commas.
///
/// # Errors
/// Says what is wrong with it.
pub(super) fn written_out(bytes: Vec<u8>) -> Result<Vec<u8>, ParquetError> {
    // The library asserts what its checks leave open: single wrong bytes in a file may end in a panic.
    guarded(|| table(bytes)).unwrap_or_else(|said| Err(ParquetError::Damaged(said)))
}

fn table(bytes: Vec<u8>) -> Result<Vec<u8>, ParquetError> {
    let size = bytes.len() as u64;
    let reader = SerializedFileReader::new(Bytes::from(bytes))?;
    check_places(reader.metadata(), size)?;
    let schema = reader.metadata().file_metadata().schema();
    let columns: Vec<Column<'_>> = schema
        .get_fields()
        .iter()
        .map(|field| Column::of(field))
        .collect();
    let shown = || columns.iter().filter(|column| !column.is_index());
    let mut table = WriterBuilder::new().from_writer(Vec::new());
    let written = |error: csv::Error| ParquetError::Damaged(error.to_string());
    table
        .write_record(shown().map(|column| column.name))
        .map_err(written)?;
    let mut cells: Vec<String> = Vec::new();
    for row in reader.get_row_iter(None)? {
        let row = row?;
        cells.clear();
        for (column, (_, field)) in columns.iter().zip(row.get_column_iter()) {
            if !column.is_index() {
                cells.push(column.cell(field)?);
            }
        }
        table.write_record(&cells).map_err(written)?;
    }
    table
        .into_inner()
        .map_err(|error| ParquetError::Damaged(error.to_string()))
}

/// Refuses a file whose columns are said to lie outside of it.
fn check_places(known: &ParquetMetaData, size: u64) -> Result<(), ParquetError> {
    let columns = known.row_groups().iter().flat_map(|group| group.columns());
    for column in columns {
        let start = column
            .dictionary_page_offset()
            .unwrap_or(column.data_page_offset());
        let place = u64::try_from(start)
            .ok()
            .zip(u64::try_from(column.compressed_size()).ok());
        let end = place.and_then(|(start, length)| start.checked_add(length));
        if end.is_none_or(|end| end > size) {
            return Err(ParquetError::Damaged(
                "a column lies outside of the file".into(),
            ));
        }
    }
    Ok(())
}

/// What is known of a column before its first cell.
struct Column<'a> {
    name: &'a str,
    /// Whether its numbers are nanoseconds since 1970, which the library gives as plain numbers.
    is_nanoseconds: bool,
}

impl<'a> Column<'a> {
    fn of(field: &'a Type) -> Self {
        let logical = field.get_basic_info().logical_type_ref();
        Self {
            name: field.name(),
            is_nanoseconds: matches!(
                logical,
                Some(LogicalType::Timestamp(time)) if time.unit == TimeUnit::NANOS
            ),
        }
    }

    fn is_index(&self) -> bool {
        self.name.starts_with(INDEX)
    }

    /// Writes a cell.
    fn cell(&self, field: &Field) -> Result<String, ParquetError> {
        let no_cell = |what| ParquetError::NoCell {
            what,
            column: self.name.to_owned(),
        };
        let moment = |field: &Field, day: i64| moment(field, day).ok_or_else(|| no_cell(NO_DATE));
        Ok(match field {
            Field::Null => String::new(),
            Field::Str(text) => text.clone(),
            Field::Float16(value) => f32::from(*value).to_string(),
            Field::Float(value) => value.to_string(),
            Field::Double(value) => value.to_string(),
            // Some writers do not say that bytes are text.
            Field::Bytes(value) => String::from_utf8(value.as_bytes().to_vec())
                .map_err(|_| no_cell("bytes that are no text"))?,
            Field::Group(_) => return Err(no_cell("records")),
            Field::ListInternal(_) | Field::MapInternal(_) => return Err(no_cell("lists")),
            Field::Date(days) => moment(field, i64::from(*days))?,
            Field::TimestampMillis(millis) => moment(field, millis / MILLIS_OF_DAY)?,
            Field::TimestampMicros(micros) => moment(field, micros / (1000 * MILLIS_OF_DAY))?,
            Field::Long(nanos) if self.is_nanoseconds => {
                let micros = nanos.div_euclid(1000);
                moment(
                    &Field::TimestampMicros(micros),
                    micros / (1000 * MILLIS_OF_DAY),
                )?
            }
            // Without digits behind it the point is written all the same.
            Field::Decimal(_) => field.to_string().trim_end_matches('.').to_owned(),
            _ => field.to_string(),
        })
    }
}

/// Writes a date or a time, given its day. The time zone behind it is always that of Greenwich. Days that no calendar has are
/// nothing.
fn moment(field: &Field, day: i64) -> Option<String> {
    let is_known = day.abs() < MOST_DAYS;
    is_known.then(|| {
        let text = field.to_string();
        let text = text.strip_suffix(" +00:00").unwrap_or(&text);
        let whole = [".000000", ".000"]
            .iter()
            .find_map(|nothing| text.strip_suffix(nothing));
        whole.unwrap_or(text).to_owned()
    })
}
