//! What names the rows of a table: a column that no model reads, so that predictions can be told apart.

use csv::ReaderBuilder;

use super::file::most_frequent_separator;
use super::unlabelled::RowsError;

/// Returns what a column says of each row, as it stands there; nothing if the header has no such column. Names are found
/// as they are written, else whatever the case of their letters.
///
/// # Errors
/// Fails on what is no text, and on rows of unequal width.
pub fn row_ids(bytes: &[u8], column: &str) -> Result<Option<Vec<String>>, RowsError> {
    let first_line = bytes.split(|byte| *byte == b'\n').next();
    let mut reader = ReaderBuilder::new()
        .delimiter(most_frequent_separator(first_line.unwrap_or_default()))
        .trim(csv::Trim::All)
        .from_reader(bytes);
    let no_text = |_| RowsError::NoText;
    let header = reader.headers().map_err(no_text)?;
    let place = |is_it: &dyn Fn(&str) -> bool| header.iter().position(is_it);
    let exact = place(&|cell| cell == column);
    let any_case = || place(&|cell| cell.eq_ignore_ascii_case(column));
    let Some(place) = exact.or_else(any_case) else {
        return Ok(None);
    };
    let width = header.len();
    let id = |row: Result<csv::StringRecord, csv::Error>| {
        let row = row.map_err(|error| RowsError::of(&error, width))?;
        Ok(row[place].to_owned())
    };
    reader.records().map(id).collect::<Result<_, _>>().map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_names_the_rows_whatever_separates_them() {
        let table = b"age;Id;pain\n58,5;p-1;\"a\nb\"\n\n41; 007 ;none\n";
        let ids = |column| row_ids(table, column).unwrap();
        assert_eq!(ids("id").unwrap(), ["p-1", "007"]);
        assert_eq!(ids("pain").unwrap(), ["a\nb", "none"]);
        assert_eq!(ids("key"), None);
        assert_eq!(row_ids(b"", "id"), Ok(None));
        assert_eq!(
            row_ids(b"id,ID\n1,2\n", "ID").unwrap().unwrap(),
            ["2"],
            "as it is written"
        );
        let error = row_ids(b"id,age\n1\n", "id").unwrap_err().to_string();
        assert_eq!(error, "has 1 values in line 2, but its header has 2");
    }
}
