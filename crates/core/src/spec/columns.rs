//! What the columns of a table hold, as all members agree on it: names, kinds and levels, nothing else.
//!
//! ```text
//! columns = [
//!     { name = "age", kind = "number", range = [29.0, 77.0] },
//!     { name = "thal", kind = "category", levels = ["fixed", "normal"], gaps = true },
//! ]
//! ```
//!
//! Means, deviations and shares are not here: nodes agree on them in the first round, without showing a row. Under a promise of
//! privacy there are none, and ranges and levels make the features.

use std::collections::BTreeSet;

use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};

/// Most columns that a spec describes, which people read.
pub const MOST_COLUMNS: usize = 1000;

/// What a column holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ColumnKind {
    /// Numbers.
    #[default]
    Number,
    /// Yes or no, in any of the usual words.
    Boolean,
    /// One of a few words, its levels. All other words are one more level.
    Category,
}

/// What is done to the numbers of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scaling {
    /// Less the mean, divided by the standard deviation.
    #[default]
    Standard,
    /// Less the median, divided by the distance of the quartiles over 1.349: a few wild values change nothing.
    Robust,
    /// The logarithm of one plus the amount, with the sign of the number, and then as `standard`.
    Log,
    /// Nothing.
    Plain,
}

/// What stands in for a value that is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Filling {
    /// The mean; of a category the commonest level.
    #[default]
    Mean,
    /// The median; of a category the commonest level.
    Median,
}

/// One column of a table.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TableColumn {
    /// What the header calls it.
    pub name: String,
    /// What it holds.
    pub kind: ColumnKind,
    /// The words of a category.
    pub levels: Vec<String>,
    /// About the smallest and the largest number that occur.
    pub range: [f64; 2],
    /// Whether values are missing, so that a feature of its own says where.
    pub gaps: bool,
    /// What is done to its numbers.
    pub scaling: Scaling,
    /// What stands in for a missing value.
    pub filling: Filling,
}

impl TableColumn {
    /// Returns how many features it becomes: a number or a truth value one, a category one for each level and one for all
    /// other words; where values are missing, one more says so.
    pub fn width(&self) -> usize {
        let values = match self.kind {
            ColumnKind::Number | ColumnKind::Boolean => 1,
            ColumnKind::Category => self.levels.len() + 1,
        };
        values + usize::from(self.gaps)
    }

    /// Says what is wrong with it, if anything is.
    fn fault(&self) -> Option<&'static str> {
        let [low, high] = self.range;
        let levels: BTreeSet<&String> = self.levels.iter().collect();
        match self.kind {
            _ if self.name.is_empty() => Some("every column needs a `name`"),
            ColumnKind::Number if !(low < high && (high - low).is_finite()) => {
                Some("the `range` of a number is its smallest and its largest value")
            }
            ColumnKind::Category if levels.is_empty() || levels.len() < self.levels.len() => {
                Some("a category needs `levels`, no two the same")
            }
            ColumnKind::Number | ColumnKind::Boolean if !levels.is_empty() => {
                Some("only a category has `levels`")
            }
            _ => None,
        }
    }
}

/// Returns how many features these columns become.
pub fn width_of(columns: &[TableColumn]) -> usize {
    columns.iter().map(TableColumn::width).sum()
}

/// Says what is wrong with the columns of a spec, if anything is.
pub(super) fn fault_of(columns: &[TableColumn]) -> Option<&'static str> {
    let names: BTreeSet<&String> = columns.iter().map(|column| &column.name).collect();
    if names.len() < columns.len() {
        return Some("columns of different names");
    }
    if columns.len() > MOST_COLUMNS {
        return Some("1000 columns at most");
    }
    columns.iter().find_map(TableColumn::fault)
}

/// For people what has its default is left out; what is not for people needs every field.
impl Serialize for TableColumn {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let usual = Self::default();
        let is_short = serializer.is_human_readable();
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("name", &self.name)?;
        map.serialize_entry("kind", &self.kind)?;
        macro_rules! unless_usual {
            ($($field:ident),*) => {$(
                if !is_short || self.$field != usual.$field {
                    map.serialize_entry(stringify!($field), &self.$field)?;
                }
            )*};
        }
        unless_usual!(levels, range, gaps, scaling, filling);
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(toml: &str) -> TableColumn {
        toml::from_str(toml).unwrap()
    }

    #[test]
    fn widths_count_levels_the_other_words_and_gaps() {
        for (toml, width) in [
            ("kind = 'number'", 1),
            ("kind = 'boolean'\ngaps = true", 2),
            ("kind = 'category'\nlevels = ['a', 'b']", 3),
            ("kind = 'category'\nlevels = ['a', 'b']\ngaps = true", 4),
        ] {
            assert_eq!(column(toml).width(), width, "{toml}");
        }
    }

    #[test]
    fn what_cannot_be_a_column_is_said() {
        let fault = |toml: &str| fault_of(&[column(toml)]);
        assert_eq!(fault("name = 'a'\nrange = [0, 1]"), None);
        assert!(fault("range = [0, 1]").unwrap().contains("`name`"));
        assert!(
            fault("name = 'a'\nrange = [1, 1]")
                .unwrap()
                .contains("`range`")
        );
        assert!(
            fault("name = 'a'\nrange = [0, inf]")
                .unwrap()
                .contains("`range`")
        );
        let words = "name = 'a'\nkind = 'category'\nlevels = ['x', 'x']";
        assert!(fault(words).unwrap().contains("`levels`"));
        let twice = vec![column("name = 'a'\nrange = [0, 1]"); 2];
        assert!(fault_of(&twice).unwrap().contains("different names"));
    }

    #[test]
    fn what_is_usual_is_not_written() {
        let column = column("name = 'a'\nrange = [0.0, 2.5]");
        let text = toml::Value::try_from(&column).unwrap().to_string();
        assert!(
            !text.contains("gaps") && !text.contains("scaling"),
            "{text}"
        );
        let json = serde_json::to_string(&column).unwrap();
        assert_eq!(serde_json::from_str::<TableColumn>(&json).unwrap(), column);
    }
}
