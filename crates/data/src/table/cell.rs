//! What the words of a cell mean.

use fednode_core::spec::{ColumnKind, TableColumn};

/// Words that stand for no value, whatever the case of their letters.
const GAPS: [&str; 7] = ["", "na", "n/a", "nan", "null", "?", "-"];
/// What Python writes for no value; `none` may be a level, as of pains.
const GAP_OF_PYTHON: &str = "None";
const YES: [&str; 4] = ["true", "yes", "t", "y"];
const NO: [&str; 4] = ["false", "no", "f", "n"];

/// What stands before the fraction of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Decimal {
    /// A point, as in `2.5`.
    #[default]
    Point,
    /// A comma, as in `2,5`.
    Comma,
}

/// Tells why a cell is no value of its column.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CellError {
    /// A word stands where a number should.
    #[error("holds `{0}`, which is no number")]
    NoNumber(String),
    /// A number is larger than what a float holds.
    #[error("holds `{0}`, which is out of range: numbers go to 3.4e38")]
    TooLarge(String),
    /// A word stands where yes or no should.
    #[error("holds `{0}`, which is neither yes nor no")]
    NoBoolean(String),
}

/// Tells whether a cell has no value.
pub(crate) fn is_gap(cell: &str) -> bool {
    is_any(cell, &GAPS) || cell == GAP_OF_PYTHON
}

/// Tells whether the label of a row says that it has none. `-` may be a class beside `+`, and `None` one as of pains.
pub(crate) fn is_no_label(cell: &str) -> bool {
    is_any(cell, &GAPS) && cell != "-"
}

fn is_any(cell: &str, words: &[&str]) -> bool {
    words.iter().any(|word| cell.eq_ignore_ascii_case(word))
}

impl Decimal {
    /// Notes whether cells need a comma before their fractions, or a point.
    pub(crate) fn note<'a>(cells: impl IntoIterator<Item = &'a str>, needed: &mut [bool; 2]) {
        for cell in cells {
            needed[0] |= cell.contains(',') && parsed(cell, Self::Comma).is_some();
            needed[1] |= parsed(cell, Self::Point).is_some() && parsed(cell, Self::Comma).is_none();
        }
    }

    /// Returns what cells need of which that was noted. Where they contradict each other, those with commas are no numbers.
    pub(crate) const fn of([comma, point]: [bool; 2]) -> Self {
        if comma && !point {
            Self::Comma
        } else {
            Self::Point
        }
    }
}

/// Reads a finite number.
///
/// # Errors
/// Says that it is none.
pub(crate) fn number(cell: &str, decimal: Decimal) -> Result<f32, CellError> {
    let value = parsed(cell, decimal).map(|value| value as f32);
    match value {
        None => Err(CellError::NoNumber(cell.to_owned())),
        Some(value) if value.is_finite() => Ok(value),
        Some(_) => Err(CellError::TooLarge(cell.to_owned())),
    }
}

/// Reads a finite number.
pub(super) fn parsed(cell: &str, decimal: Decimal) -> Option<f64> {
    let parsed = match decimal {
        Decimal::Point => cell.parse::<f64>(),
        // Points may stand between thousands alone: `1.5` would become 15.
        Decimal::Comma if are_thousands(cell) => {
            cell.replace('.', "").replace(',', ".").parse::<f64>()
        }
        Decimal::Comma => return None,
    };
    parsed.ok().filter(|value| value.is_finite())
}

/// Tells whether all points before the comma have three digits behind them.
fn are_thousands(cell: &str) -> bool {
    let whole = cell.split(',').next().unwrap_or_default();
    let mut groups = whole.split('.').skip(1);
    groups.all(|group| group.len() == 3 && group.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Reads a word for yes or no.
pub(super) fn truth(cell: &str) -> Option<bool> {
    match (is_any(cell, &YES), is_any(cell, &NO)) {
        (true, _) => Some(true),
        (_, true) => Some(false),
        _ => None,
    }
}

/// Makes a number of a cell: itself, 1 for yes and 0 for no, or the place of a word among the levels, behind them for any
/// other word. A gap is NaN.
///
/// # Errors
/// Says what is expected instead.
pub fn encode(column: &TableColumn, cell: &str, decimal: Decimal) -> Result<f32, CellError> {
    if is_gap(cell) {
        return Ok(f32::NAN);
    }
    match column.kind {
        // A site may write yes and no where another one counts to one.
        ColumnKind::Number => match truth(cell).filter(|_| column.range == [0.0, 1.0]) {
            Some(truth) => Ok(f32::from(u8::from(truth))),
            None => number(cell, decimal),
        },
        ColumnKind::Boolean => {
            let by_number = || parsed(cell, decimal).filter(|value| [0.0, 1.0].contains(value));
            let value = truth(cell).map(|truth| f32::from(u8::from(truth)));
            value
                .or_else(|| by_number().map(|value| value as f32))
                .ok_or_else(|| CellError::NoBoolean(cell.to_owned()))
        }
        ColumnKind::Category => Ok(level(&column.levels, cell, decimal) as f32),
    }
}

/// Returns the place of a word among levels: as it is written, else whatever its case, else as the same number.
fn level(levels: &[String], cell: &str, decimal: Decimal) -> usize {
    let place = |is_it: &dyn Fn(&String) -> bool| levels.iter().position(is_it);
    let by_number = || {
        let value = parsed(cell, decimal)?;
        place(&|level| parsed(level, Decimal::Point) == Some(value))
    };
    place(&|level| level == cell)
        .or_else(|| place(&|level| level.eq_ignore_ascii_case(cell)))
        .or_else(by_number)
        .unwrap_or(levels.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(kind: ColumnKind, levels: &[&str]) -> TableColumn {
        TableColumn {
            kind,
            levels: levels.iter().map(|level| (*level).to_owned()).collect(),
            ..TableColumn::default()
        }
    }

    #[test]
    fn every_word_for_a_gap_is_one() {
        let number = column(ColumnKind::Number, &[]);
        for cell in ["", "NA", "NaN", "?", "Null", "None", "N/A", "-"] {
            assert!(
                encode(&number, cell, Decimal::Point).unwrap().is_nan(),
                "{cell}"
            );
        }
    }

    #[test]
    fn none_is_a_word_like_others() {
        let category = column(ColumnKind::Category, &["mild", "none"]);
        assert_eq!(encode(&category, "none", Decimal::Point), Ok(1.0));
    }

    #[test]
    fn numbers_have_points_or_commas() {
        let number = column(ColumnKind::Number, &[]);
        assert_eq!(encode(&number, "-2.5e1", Decimal::Point), Ok(-25.0));
        assert_eq!(encode(&number, "1.234,5", Decimal::Comma), Ok(1234.5));
        assert!(
            encode(&number, "1.5", Decimal::Comma).is_err(),
            "not fifteen"
        );
        assert!(encode(&number, "12.05.2020", Decimal::Comma).is_err());
        let share = TableColumn {
            range: [0.0, 1.0],
            ..number.clone()
        };
        assert_eq!(encode(&share, "TRUE", Decimal::Point), Ok(1.0));
        let age = TableColumn {
            range: [18.0, 90.0],
            ..number.clone()
        };
        assert!(encode(&age, "TRUE", Decimal::Point).is_err());
        let error = encode(&number, "high", Decimal::Point).unwrap_err();
        assert_eq!(error.to_string(), "holds `high`, which is no number");
        assert!(encode(&number, "inf", Decimal::Point).is_err());
    }

    #[test]
    fn a_file_has_points_or_commas_and_never_both() {
        let decimal = |cells: &[&str]| {
            let mut needed = [false; 2];
            Decimal::note(cells.iter().copied(), &mut needed);
            Decimal::of(needed)
        };
        assert_eq!(decimal(&["2,5", "1.234", "word"]), Decimal::Comma);
        assert_eq!(decimal(&["1,234", "2.5"]), Decimal::Point);
        assert_eq!(decimal(&["7", "8"]), Decimal::Point);
    }

    #[test]
    fn truth_values_are_words_or_zero_and_one() {
        let boolean = column(ColumnKind::Boolean, &[]);
        for (cell, value) in [("TRUE", 1.0), ("no", 0.0), ("1.0", 1.0), ("0", 0.0)] {
            assert_eq!(encode(&boolean, cell, Decimal::Point), Ok(value), "{cell}");
        }
        assert!(encode(&boolean, "2", Decimal::Point).is_err());
    }

    #[test]
    fn a_word_that_is_no_level_stands_behind_them() {
        let category = column(ColumnKind::Category, &["Male", "female", "3"]);
        for (cell, place) in [("Male", 0.0), ("FEMALE", 1.0), ("3.0", 2.0), ("other", 3.0)] {
            assert_eq!(encode(&category, cell, Decimal::Point), Ok(place), "{cell}");
        }
    }
}
