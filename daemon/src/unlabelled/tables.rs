//! Tables as they are given: rows of a file or of a request, and whose they are.

use fednode_core::spec::{Architecture, TableColumn};
use fednode_data::table::{CellError, Decimal, encode};
use fednode_data::{Pixels, source};

use super::Takes;
use super::error::Unfit;

/// The column that says whose each row is, unless the model uses it.
const ID: &str = "id";

impl Takes {
    /// Reads a table.
    pub(crate) fn table(&self, bytes: &[u8]) -> Result<Pixels, Unfit> {
        if self.extractor.is_some() {
            Err(Unfit::NoImages)
        } else if self.columns.is_empty() {
            csv(bytes, &self.model, &self.known.columns)
        } else {
            raw(bytes, &self.columns)
        }
    }

    /// Reads the column that says whose the rows of a table are: the one of this name. If none is named, it is the usual
    /// one, unless there is none or the model uses it.
    ///
    /// # Errors
    /// Says that there is no column of this name.
    pub(crate) fn ids(&self, bytes: &[u8], id: Option<&str>) -> Result<Option<Vec<String>>, Unfit> {
        if let Some(id) = id {
            let ids = source::row_ids(bytes, id)?;
            return ids.ok_or_else(|| Unfit::NoId(id.to_owned())).map(Some);
        }
        let described = self.columns.iter().map(|column| &column.name);
        let mut used = described.chain(&self.known.columns);
        if used.any(|name| name.eq_ignore_ascii_case(ID)) {
            return Ok(None);
        }
        Ok(source::row_ids(bytes, ID)?)
    }

    /// Reads rows of as many cells as the model takes, in the order of its columns.
    pub(crate) fn cells(&self, rows: &[Vec<String>]) -> Result<Pixels, Unfit> {
        let value = |place: usize, cell: &str| match self.columns.get(place) {
            Some(column) => encode(column, cell, Decimal::Point),
            None => {
                let value = cell.parse::<f32>().ok().filter(|value| value.is_finite());
                value.ok_or_else(|| CellError::NoNumber(cell.to_owned()))
            }
        };
        let mut values = Vec::new();
        for (row, cells) in rows.iter().enumerate() {
            for (place, cell) in cells.iter().enumerate() {
                let value = value(place, cell).map_err(|cause| Unfit::Cell {
                    row,
                    column: self.column_name(place),
                    cause,
                });
                values.push(value?);
            }
        }
        Ok(Pixels::Floats(values))
    }

    fn column_name(&self, place: usize) -> String {
        let described = self.columns.get(place).map(|column| &column.name);
        let name = described.or_else(|| self.known.columns.get(place));
        name.cloned().unwrap_or(place.to_string())
    }
}

pub(super) fn csv(bytes: &[u8], model: &Architecture, columns: &[String]) -> Result<Pixels, Unfit> {
    let width: usize = model.input.iter().product();
    let values = source::numbers(bytes, width, columns)?;
    if values.is_empty() {
        Err(Unfit::NoRows)
    } else {
        Ok(Pixels::Floats(values))
    }
}

fn raw(bytes: &[u8], columns: &[TableColumn]) -> Result<Pixels, Unfit> {
    let values = source::raw_rows(bytes, columns)?;
    if values.is_empty() {
        Err(Unfit::NoRows)
    } else {
        Ok(Pixels::Floats(values))
    }
}
