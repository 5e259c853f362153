//! The classes of a table, from the labels that occur in it.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::file::Layout;
use super::header::is_number;
use crate::source::numbered;

/// So many labels may each occur once.
const FEW: usize = 20;

/// Derives the classes of a table, unless its first row looks like a header that was not recognised, or labels hardly occur twice,
/// as names of people do.
pub(super) fn classes_of(
    layout: &Layout,
    labels: &[Arc<str>],
    distinct: &BTreeSet<Arc<str>>,
) -> Result<Arc<[String]>, String> {
    match lone_word(labels).filter(|_| !layout.has_header) {
        Some(name) => Err(format!(
            "has the label `{name}` in its first row and numbers in all others: if that row is a header, name the column \
             with `,label={name}`"
        )),
        None => match distinct.iter().find(|label| is_fraction(label)) {
            Some(label) if distinct.iter().all(|label| is_number(label)) => Err(format!(
                "has the label `{label}`, a number with a fraction: name the column of the classes with `,label=COLUMN`, or \
                 that of a number to predict with `,target=COLUMN`"
            )),
            _ if distinct.len() > FEW && 2 * distinct.len() > labels.len() => Err(format!(
                "has {} different labels in {} rows: name the column of the classes with `,label=COLUMN`",
                distinct.len(),
                labels.len()
            )),
            _ => class_names(distinct),
        },
    }
}

fn is_fraction(label: &str) -> bool {
    label.parse::<f64>().is_ok_and(|value| value.fract() != 0.0)
}

/// Returns the first label if it is the only one that is no whole number: most likely the name of the column.
fn lone_word(labels: &[Arc<str>]) -> Option<&str> {
    let is_class = |label: &Arc<str>| label.parse::<u16>().is_ok();
    let (first, rest) = labels.split_first()?;
    (!rest.is_empty() && !is_class(first) && rest.iter().all(is_class)).then_some(first)
}

/// Derives the classes from the labels that occur: in the order of their numbers, or of their letters. Whole numbers from 0 on, of
/// which most occur, are a count from 0, so that those that are missing here are classes, too.
pub(in crate::source) fn class_names(
    distinct: &BTreeSet<Arc<str>>,
) -> Result<Arc<[String]>, String> {
    if distinct.len() >= usize::from(u16::MAX) {
        return Err(format!(
            "has {} different labels: is this the label column?",
            distinct.len()
        ));
    }
    let numbers = distinct.iter().map(|text| Some((text.parse().ok()?, text)));
    let Some(mut numbers) = numbers.collect::<Option<Vec<(u16, _)>>>() else {
        return Ok(distinct.iter().map(|text| text.to_string()).collect());
    };
    numbers.sort_unstable();
    let n_counted = numbers
        .last()
        .map_or(0, |(highest, _)| usize::from(*highest) + 1);
    let is_plain = |(number, text): &(u16, &Arc<str>)| number.to_string() == ***text;
    let begins = numbers.first().is_some_and(|(lowest, _)| *lowest == 0);
    if begins && numbers.iter().all(is_plain) && 2 * numbers.len() > n_counted {
        return Ok(numbered(n_counted));
    }
    Ok(numbers.iter().map(|(_, text)| text.to_string()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_that_are_numbers_are_a_count_from_zero_or_names() {
        let classes = |labels: &[&str]| {
            let distinct = labels.iter().map(|label| Arc::from(*label)).collect();
            class_names(&distinct).unwrap().to_vec()
        };
        assert_eq!(classes(&["0", "1", "3"]), ["0", "1", "2", "3"], "a count");
        assert_eq!(classes(&["1", "2"]), ["1", "2"], "from one on");
        assert_eq!(classes(&["10", "9"]), ["9", "10"], "in their order");
        assert_eq!(classes(&["0", "100"]), ["0", "100"], "most are missing");
        assert_eq!(classes(&["00", "01"]), ["00", "01"], "as they are written");
        assert_eq!(classes(&["-1", "1"]), ["-1", "1"]);
    }
}
