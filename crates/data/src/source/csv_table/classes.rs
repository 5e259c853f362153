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

/// Derives the classes from the labels that occur.
pub(in crate::source) fn class_names(
    distinct: &BTreeSet<Arc<str>>,
) -> Result<Arc<[String]>, String> {
    let numbers: Option<Vec<u16>> = distinct.iter().map(|text| text.parse().ok()).collect();
    if distinct.len() >= usize::from(u16::MAX) {
        return Err(format!(
            "has {} different labels: is this the label column?",
            distinct.len()
        ));
    }
    match numbers.and_then(|numbers| numbers.into_iter().max()) {
        Some(highest) => Ok(numbered(usize::from(highest) + 1)),
        None => Ok(distinct.iter().map(|text| text.to_string()).collect()),
    }
}
