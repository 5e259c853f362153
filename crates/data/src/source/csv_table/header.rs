//! What a first row says: whether it is a header, and where a named column is.

use std::collections::BTreeSet;

use csv::StringRecord;

/// Tells whether a cell is a number.
pub(super) fn is_number(cell: &str) -> bool {
    cell.parse::<f64>().is_ok()
}

/// Tells whether a first row is the numbers of the columns, with a name for the label.
pub(super) fn numbers_columns(first: &StringRecord, label: usize) -> bool {
    let others = first
        .iter()
        .enumerate()
        .filter(|(column, _)| *column != label);
    let is_count = others
        .zip(0u32..)
        .all(|((_, cell), number)| *cell == *number.to_string());
    is_count && !is_number(&first[label])
}

/// Tells why a header does not name the columns that are wanted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// A column is not there.
    #[error("has no column `{0}`, one of the columns of the federation's spec")]
    NoColumn(String),
    /// A column is there twice.
    #[error("has two columns `{0}`, one of the columns of the federation's spec")]
    TwoColumns(String),
    /// The label is a feature.
    #[error(
        "takes `{0}` for the label, which is one of the columns of the federation's spec: name the label's column \
         with `,label=COLUMN`"
    )]
    LabelIsFeature(String),
    /// There is no column besides the features.
    #[error(
        "has no label: all its columns are columns of the federation's spec (`fednode predict` takes such a table)"
    )]
    NoLabel,
    /// The label may be any of several columns.
    #[error("may have its label in any of {}: name it with `,label=COLUMN`", .0.join(", "))]
    AnyLabel(Vec<String>),
}

/// Returns where each of these columns is, by the names of a header.
pub(super) fn find(wanted: &[String], header: &StringRecord) -> Result<Vec<usize>, HeaderError> {
    let position = |name: &String| {
        let places = |is_it: &dyn Fn(&str) -> bool| -> Vec<usize> {
            header
                .iter()
                .enumerate()
                .filter(|(_, cell)| is_it(cell))
                .map(|(column, _)| column)
                .collect()
        };
        // As it is written, else whatever the case of its letters.
        let exact = places(&|cell| cell == name);
        let places = if exact.is_empty() {
            places(&|cell| cell.eq_ignore_ascii_case(name))
        } else {
            exact
        };
        match (places.first().copied(), places.get(1)) {
            (Some(column), None) => Ok(column),
            (None, _) => Err(HeaderError::NoColumn(name.clone())),
            (Some(_), Some(_)) => Err(HeaderError::TwoColumns(name.clone())),
        }
    };
    wanted.iter().map(position).collect()
}

/// Returns a name that two columns have.
pub(super) fn twice(header: &StringRecord) -> Option<&str> {
    let mut seen = BTreeSet::new();
    header.iter().find(|name| !seen.insert(*name))
}

/// Returns where the label is. Where nobody said so, it is the only one of these columns that is no feature.
pub(super) fn settle_label(
    header: &StringRecord,
    said: Option<usize>,
    features: &[usize],
    mut others: Vec<usize>,
) -> Result<usize, HeaderError> {
    others.retain(|column| !features.contains(column));
    match (said, &others[..]) {
        (Some(label), _) if features.contains(&label) => {
            Err(HeaderError::LabelIsFeature(header[label].to_owned()))
        }
        (Some(label), _) => Ok(label),
        (None, [label]) => Ok(*label),
        (None, []) => Err(HeaderError::NoLabel),
        (None, [..]) => {
            let names = others.iter().map(|column| header[*column].to_owned());
            Err(HeaderError::AnyLabel(names.collect()))
        }
    }
}
