//! What may be meant where the short form of a source begins with no kind: a file without `csv:`, or a slip of the finger.

use std::path::Path;

use super::{KINDS, Kind};
use crate::error::TextError;

/// How the names of tables end.
const TABLES: [&str; 3] = [".csv", ".tsv", ".parquet"];
/// How the names of other files with data end.
const FILES: [&str; 10] = [
    ".json", ".jsonl", ".npy", ".npz", ".txt", ".xlsx", ".gz", ".zip", ".png", ".jpg",
];
/// What some write before a path, and is no kind.
const BEFORE_PATHS: [&str; 3] = ["file://", "file:", "path:"];

/// Says what may be meant by a text that begins with the name of no kind.
pub(super) fn unknown_kind(text: &str, name: &str) -> TextError {
    let bare = BEFORE_PATHS
        .iter()
        .find_map(|before| text.strip_prefix(*before));
    let path = bare.or((name == text || name.contains('/')).then_some(text));
    if let Some(meant) = path.and_then(of_path) {
        return TextError::Near(meant);
    }
    let letters = |name: &str| {
        let mut letters: Vec<char> = name.chars().collect();
        letters.sort_unstable();
        letters
    };
    if let Some(kind) = KINDS
        .iter()
        .find(|kind| letters(kind.name) == letters(name))
    {
        return TextError::Near(format!("did you mean `{}`?", kind.form()));
    }
    let names: Vec<&str> = KINDS.iter().map(|kind| kind.name).collect();
    let near = fednode_config::unknown_name("kind", name, &names);
    if near.ends_with('?') {
        return TextError::Near(near);
    }
    // `parquet:ward.parquet`: no kind, and a table all the same.
    let rest = text.split_once(':').map(|(_, rest)| rest);
    let table = rest.filter(|rest| ends(rest.split(',').next().unwrap_or_default(), &TABLES));
    match table.and_then(of_path) {
        Some(meant) => TextError::Near(meant),
        None => TextError::Kind(KINDS.iter().map(Kind::form).collect()),
    }
}

/// Says what is to be written in the place of a path, or that nothing is there; nothing where the text is no path, or the kind
/// cannot be guessed. Relative paths are looked for in the current folder.
fn of_path(text: &str) -> Option<String> {
    let (path, options) = text.split_once(',').unwrap_or((text, "label=COLUMN"));
    let is_table = ends(path, &TABLES);
    let is_path = is_table || path.contains('/') || ends(path, &FILES);
    let is_there = Path::new(path).exists();
    match () {
        () if is_table && is_there => Some(format!("did you mean `csv:{path},{options}`?")),
        () if is_table => Some(format!(
            "there is no file `{path}` here: check its name, and write `csv:{path},{options}`"
        )),
        () if is_path && !is_there => Some(format!(
            "there is no `{path}` here: check its name, and write its kind before it, as in `csv:FILE`"
        )),
        () => None,
    }
}

fn ends(path: &str, ends: &[&str]) -> bool {
    let path = path.to_lowercase();
    ends.iter().any(|end| path.ends_with(end))
}
