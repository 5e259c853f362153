//! The page of data sources says what the tables of the code say: readers with their options, divisions, transforms.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use fednode_data::{partition, source, transform};

/// What stands on the page below a heading.
fn section(heading: &str) -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/data.md");
    let page = std::fs::read_to_string(path).unwrap();
    let (_, after) = page.split_once(&format!("\n## {heading}\n")).unwrap();
    let (section, _) = after.split_once("\n## ").unwrap_or((after, ""));
    section.to_owned()
}

/// The rows of the tables below a heading: what stands in the back quotes of the first cell, and the rest of the row.
/// A bar within a cell has a stroke before it.
fn rows(heading: &str) -> Vec<(String, String)> {
    let section = section(heading).replace("\\|", "\u{a6}");
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    let cells = rows.filter_map(|row| row.split_once("` |"));
    let plain = |cell: &str| cell.replace('\u{a6}', "|");
    cells
        .map(|(first, rest)| (plain(first), plain(rest)))
        .collect()
}

/// The first cells of the rows below a heading.
fn forms(heading: &str) -> BTreeSet<String> {
    rows(heading).into_iter().map(|(first, _)| first).collect()
}

#[test]
fn every_form_of_a_source_is_on_the_page_as_help_writes_it() {
    let known: BTreeSet<String> = source::KINDS.iter().map(source::Kind::form).collect();
    assert_eq!(forms("Sources"), known);
}

#[test]
fn every_option_of_a_source_is_on_the_page() {
    let known: BTreeSet<(String, String)> = source::KINDS
        .iter()
        .flat_map(|kind| {
            let options = kind.doc().keys.into_iter();
            options.map(move |option| (option.key.to_owned(), kind.name.to_owned()))
        })
        .collect();
    let mut said = BTreeSet::new();
    for (option, rest) in rows("Options of sources") {
        let (kinds, meaning) = rest.split_once(" | ").unwrap();
        assert!(meaning.len() > 10, "`{option}`: {meaning}");
        let kinds = kinds.split('`').skip(1).step_by(2);
        said.extend(kinds.map(|kind| (option.clone(), kind.to_owned())));
    }
    assert_eq!(said, known);
    assert!(said.contains(&("group".to_owned(), "csv".to_owned())));
}

#[test]
fn every_partition_is_on_the_page() {
    let known = partition::KINDS.iter().map(|kind| kind.form.to_owned());
    assert_eq!(forms("Partitions"), known.collect::<BTreeSet<_>>());
}

#[test]
fn every_transform_is_on_the_page() {
    let known = transform::KINDS
        .iter()
        .map(|kind| format!("+{}", kind.form));
    assert_eq!(forms("Transforms"), known.collect::<BTreeSet<_>>());
}
