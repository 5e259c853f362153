//! What a file holds, column by column, and what is proposed for it.

use std::collections::{BTreeMap, BTreeSet};

use fednode_core::spec::{ColumnKind, TableColumn};

use super::cell::{Decimal, is_gap, parsed, truth};

/// Most different words of a category.
const MOST_LEVELS: usize = 50;
/// Fewest rows in which a whole number of its own in every row looks like the number of the row, if it is called so, and if
/// it is not.
const FEWEST_NUMBERED: [usize; 2] = [20, 50];
/// How many numbers there are at most for each row where rows are numbered: some may have been left out.
const GAPS_OF_NUMBERS: f64 = 3.0;
/// What a column of numbers of rows is called, or ends with.
const NUMBER_NAMES: [&str; 4] = ["id", "index", "row", "nr"];

/// What a file holds, column by column.
#[derive(Debug, Clone, Default)]
pub struct Survey {
    columns: Vec<Seen>,
}

/// What was seen of one column.
#[derive(Debug, Clone)]
struct Seen {
    name: String,
    rows: usize,
    gaps: usize,
    numbers: usize,
    /// Cells that are 0 or 1.
    bits: usize,
    truths: usize,
    range: [f64; 2],
    /// The first word that is no number.
    first_word: Option<String>,
    /// How often each word occurs; no more are counted once there are too many.
    words: BTreeMap<String, usize>,
    /// Whether each file had one value only.
    is_constant: bool,
    /// The whole numbers of the file that is looked at, as long as each occurs once.
    numbered: Option<BTreeSet<i64>>,
    /// Whether the rows of each file had whole numbers of their own that seem to count them.
    is_row_number: bool,
}

/// What is proposed for a column.
#[derive(Debug, Clone, PartialEq)]
pub struct Proposal {
    /// What the header calls it.
    pub name: String,
    /// The share of rows without a value, 0 to 1.
    pub gaps: f64,
    /// The column, or why it is left out.
    pub column: Result<TableColumn, String>,
}

impl Survey {
    /// Begins with the names of the columns.
    pub fn of(names: impl IntoIterator<Item = String>) -> Self {
        let columns = names.into_iter().map(Seen::new).collect();
        Self { columns }
    }

    /// Looks at a row: as many cells as there are columns.
    pub fn add<'a>(&mut self, cells: impl IntoIterator<Item = &'a str>, decimal: Decimal) {
        for (column, cell) in self.columns.iter_mut().zip(cells) {
            column.add(cell, decimal);
        }
    }

    /// Ends a file: says of each column whether it has one value only, or numbers the rows.
    pub fn finish(&mut self) {
        self.columns.iter_mut().for_each(Seen::finish);
    }

    /// Adds what another file holds, by the names of its columns. A column that only one of them has stays out.
    pub fn join(&mut self, other: &Self) {
        let find = |name: &str| {
            let exact = other.columns.iter().find(|column| column.name == name);
            let is_it = |column: &&Seen| column.name.eq_ignore_ascii_case(name);
            exact.or_else(|| other.columns.iter().find(is_it))
        };
        self.columns.retain(|column| find(&column.name).is_some());
        for column in &mut self.columns {
            let joined = find(&column.name).expect("what others lack was left out");
            column.join(joined);
        }
    }

    /// Returns what is proposed for each column.
    pub fn proposals(&self) -> Vec<Proposal> {
        self.columns.iter().map(Seen::proposal).collect()
    }

    /// Returns the columns that are worth learning from.
    pub fn columns(&self) -> Vec<TableColumn> {
        let proposals = self.proposals().into_iter();
        proposals
            .filter_map(|proposal| proposal.column.ok())
            .collect()
    }
}

impl Seen {
    fn new(name: String) -> Self {
        Self {
            name,
            rows: 0,
            gaps: 0,
            numbers: 0,
            bits: 0,
            truths: 0,
            range: [f64::INFINITY, f64::NEG_INFINITY],
            first_word: None,
            words: BTreeMap::new(),
            is_constant: false,
            numbered: Some(BTreeSet::new()),
            is_row_number: false,
        }
    }

    fn add(&mut self, cell: &str, decimal: Decimal) {
        self.rows += 1;
        if is_gap(cell) {
            self.gaps += 1;
            return;
        }
        // A node reads numbers of half the digits, so what is too large for these is none.
        let value = parsed(cell, decimal).filter(|value| (*value as f32).is_finite());
        if let Some(value) = value {
            self.numbers += 1;
            self.bits += usize::from([0.0, 1.0].contains(&value));
            let is_whole = value.fract() == 0.0;
            // A second row of the same number ends the count.
            let is_new = |numbers: &mut BTreeSet<i64>| is_whole && numbers.insert(value as i64);
            self.numbered = self
                .numbered
                .take()
                .and_then(|mut numbers| is_new(&mut numbers).then_some(numbers));
            let [low, high] = &mut self.range;
            (*low, *high) = (low.min(value), high.max(value));
        } else {
            self.first_word.get_or_insert_with(|| cell.to_owned());
        }
        self.truths += usize::from(truth(cell).is_some());
        if self.words.len() <= MOST_LEVELS || self.words.contains_key(cell) {
            *self.words.entry(cell.to_owned()).or_default() += 1;
        }
    }

    fn finish(&mut self) {
        let [low, high] = self.range;
        self.is_constant = self.words.len() <= 1;
        let are_numbered = self
            .numbered
            .take()
            .is_some_and(|numbers| numbers.len() == self.rows);
        let name = self.name.to_ascii_lowercase();
        let is_called_so = NUMBER_NAMES.iter().any(|ending| {
            let rest = name.strip_suffix(ending);
            rest.is_some_and(|rest| rest.is_empty() || rest.ends_with(['_', '-', '.', ' ']))
        });
        let are_close = high - low < GAPS_OF_NUMBERS * self.rows as f64;
        let [if_called_so, if_not] = FEWEST_NUMBERED;
        let is_likely =
            is_called_so && self.rows >= if_called_so || are_close && self.rows >= if_not;
        self.is_row_number = are_numbered && is_likely;
    }

    fn join(&mut self, other: &Self) {
        self.rows += other.rows;
        self.gaps += other.gaps;
        self.numbers += other.numbers;
        self.bits += other.bits;
        self.first_word = self.first_word.take().or_else(|| other.first_word.clone());
        self.truths += other.truths;
        let ([low, high], [others_low, others_high]) = (self.range, other.range);
        self.range = [low.min(others_low), high.max(others_high)];
        for (word, count) in &other.words {
            *self.words.entry(word.clone()).or_default() += count;
        }
        self.is_constant &= other.is_constant;
        self.is_row_number &= other.is_row_number;
    }

    fn proposal(&self) -> Proposal {
        Proposal {
            name: self.name.clone(),
            gaps: self.gaps as f64 / self.rows.max(1) as f64,
            column: self.column(),
        }
    }

    fn column(&self) -> Result<TableColumn, String> {
        let values = self.rows - self.gaps;
        let column = |kind| TableColumn {
            name: self.name.clone(),
            kind,
            gaps: self.gaps > 0,
            ..TableColumn::default()
        };
        if values == 0 {
            return Err("has no values".to_owned());
        }
        if self.is_constant {
            return Err("has one value only".to_owned());
        }
        if self.is_row_number {
            return Err("numbers the rows".to_owned());
        }
        let [low, high] = self.range;
        let are_bits = (low, high) == (0.0, 1.0);
        // One site may write yes and no, and another one 1 and 0.
        if self.truths + self.bits == values && (self.truths > 0 || are_bits) {
            return Ok(column(ColumnKind::Boolean));
        }
        if self.numbers == values && low >= high {
            return Err("has one value only".to_owned());
        }
        if self.numbers == values {
            let range = self.range;
            let number = column(ColumnKind::Number);
            return Ok(TableColumn { range, ..number });
        }
        if 10 * self.numbers > 9 * values {
            return Err(format!(
                "has numbers, and words in {} of its rows, such as `{}`",
                values - self.numbers,
                self.first_word.as_deref().unwrap_or_default()
            ));
        }
        if self.words.len() > MOST_LEVELS || 2 * self.words.len() > values.max(4) {
            return Err(format!(
                "has words, and too many different ones for a category ({} or more)",
                self.words.len()
            ));
        }
        Ok(TableColumn {
            levels: self.words.keys().cloned().collect(),
            ..column(ColumnKind::Category)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn survey(names: &[&str], rows: &[&[&str]]) -> Survey {
        let mut survey = Survey::of(names.iter().map(|name| (*name).to_owned()));
        for row in rows {
            survey.add(row.iter().copied(), Decimal::Point);
        }
        survey.finish();
        survey
    }

    fn column(cells: &[&str]) -> Result<TableColumn, String> {
        let rows: Vec<[&str; 1]> = cells.iter().map(|cell| [*cell]).collect();
        let rows: Vec<&[&str]> = rows.iter().map(|row| &row[..]).collect();
        survey(&["x"], &rows).proposals().remove(0).column
    }

    #[test]
    fn kinds_are_told_by_what_the_cells_hold() {
        let kind = |cells: &[&str]| column(cells).map(|column| (column.kind, column.gaps));
        assert_eq!(kind(&["1", "2.5", "1"]), Ok((ColumnKind::Number, false)));
        assert_eq!(kind(&["1", "0", "NA"]), Ok((ColumnKind::Boolean, true)));
        assert_eq!(
            kind(&["TRUE", "false", "true"]),
            Ok((ColumnKind::Boolean, false))
        );
        let words = column(&["flat", "up", "flat", "?", "up"]).unwrap();
        assert_eq!((words.kind, words.gaps), (ColumnKind::Category, true));
        assert_eq!(words.levels, ["flat", "up"]);
    }

    #[test]
    fn what_cannot_be_learned_from_is_left_out_with_the_reason() {
        let reason = |cells: &[&str]| column(cells).unwrap_err();
        assert_eq!(reason(&["", "?", "NA"]), "has no values");
        assert_eq!(reason(&["a", "a", ""]), "has one value only");
        assert_eq!(reason(&["1", "1.0"]), "has one value only");
        assert!(reason(&["a", "b", "c", "d", "e"]).contains("too many"));
        let mut mostly = vec!["1.5"; 19];
        mostly.push("high");
        assert_eq!(
            reason(&mostly),
            "has numbers, and words in 1 of its rows, such as `high`"
        );
    }

    /// Patients' numbers of a file of which a third was left out; ages, of which some occur twice, stay.
    #[test]
    fn numbers_of_rows_are_left_out() {
        let ids: Vec<String> = (0..60).map(|row| (700 + row * 3 / 2).to_string()).collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        assert_eq!(column(&ids).unwrap_err(), "numbers the rows");
        let ages: Vec<String> = (0..60).map(|row| (40 + row % 20).to_string()).collect();
        let ages: Vec<&str> = ages.iter().map(String::as_str).collect();
        assert_eq!(column(&ages).unwrap().kind, ColumnKind::Number);
    }

    #[test]
    fn files_may_write_names_and_truths_in_their_own_ways() {
        let mut first = survey(&["Alarm", "x"], &[&["yes", "1"], &["no", "2"]]);
        first.join(&survey(&["x", "alarm"], &[&["3", "0"], &["4", "1"]]));
        let columns = first.columns();
        let kinds: Vec<(&str, ColumnKind)> = columns
            .iter()
            .map(|column| (column.name.as_str(), column.kind))
            .collect();
        assert_eq!(
            kinds,
            [("Alarm", ColumnKind::Boolean), ("x", ColumnKind::Number)]
        );
    }

    #[test]
    fn several_files_are_described_by_what_all_hold() {
        let mut first = survey(
            &["age", "site", "cp", "own"],
            &[
                &["40", "A", "typical", "1"],
                &["51", "A", "none", "2"],
                &["60", "A", "typical", "3"],
                &["60", "A", "none", "3"],
            ],
        );
        let second = survey(
            &["cp", "age", "site"],
            &[
                &["other", "30", "B"],
                &["none", "", "B"],
                &["none", "31", "B"],
                &["other", "32", "B"],
            ],
        );
        first.join(&second);
        let columns = first.columns();
        let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
        assert_eq!(
            names,
            ["age", "cp"],
            "a column that one file lacks, or that names the file, is out"
        );
        assert_eq!((columns[0].range, columns[0].gaps), ([30.0, 60.0], true));
    }
}
