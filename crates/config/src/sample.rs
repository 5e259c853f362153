//! The commented file: every key, its documentation above it, its value.

use serde::Serialize;

use crate::doc::{KeyDoc, TableDoc};
use crate::read::to_table;

/// Writes a configuration as a commented sample file. A key without a value stands there as a comment.
///
/// # Panics
/// If the configuration cannot be written as TOML, which would be a mistake in its declaration.
pub fn sample<T: Serialize>(config: &T, doc: &TableDoc) -> String {
    let mut text = comment(&doc.lines);
    write_table(&mut text, "", &to_table(config), doc);
    text
}

fn write_table(text: &mut String, path: &str, table: &toml::Table, doc: &TableDoc) {
    // TOML wants the plain keys first: what follows a table's heading belongs to it.
    let (tables, plain): (Vec<&KeyDoc>, Vec<&KeyDoc>) =
        doc.keys.iter().partition(|key| key.table.is_some());
    for key in plain {
        text.push_str(&comment(&key.lines));
        match table.get(key.key) {
            Some(value) => write_value(text, key.key, value),
            None => text.push_str(&format!("# {} =\n", key.key)),
        }
        text.push('\n');
    }
    // A table without documented keys is written by a machine: all that it has is written.
    if doc.keys.is_empty() {
        for (name, value) in table {
            write_value(text, &key_text(name), value);
        }
    }
    for key in tables {
        let name = key.key;
        let inner_path = if path.is_empty() {
            name.to_owned()
        } else {
            format!("{path}.{name}")
        };
        text.push_str(&comment(&key.lines));
        match (table.get(name), &key.table) {
            (Some(toml::Value::Table(inner)), Some(inner_doc)) => {
                text.push_str(&format!("[{inner_path}]\n"));
                write_table(text, &inner_path, inner, inner_doc);
            }
            _ => text.push_str(&format!("# [{inner_path}]\n\n")),
        }
    }
}

fn write_value(text: &mut String, name: &str, value: &toml::Value) {
    match value {
        toml::Value::Table(inner) => {
            let entries: Vec<String> = inner
                .iter()
                .map(|(key, value)| format!("{} = {value}", key_text(key)))
                .collect();
            text.push_str(&format!("{name} = {{ {} }}\n", entries.join(", ")));
        }
        // Tables in a list are read one by one.
        toml::Value::Array(items) if items.iter().any(toml::Value::is_table) => {
            let lines: String = items.iter().map(|item| format!("    {item},\n")).collect();
            text.push_str(&format!("{name} = [\n{lines}]\n"));
        }
        value => text.push_str(&format!("{name} = {value}\n")),
    }
}

/// Returns a key as it is written: quoted unless it is a plain word.
fn key_text(key: &str) -> String {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !key.is_empty() && key.chars().all(is_bare) {
        key.to_owned()
    } else {
        toml::Value::from(key).to_string()
    }
}

fn comment(lines: &[String]) -> String {
    lines.iter().map(|line| format!("#{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::PathBuf;

    use super::*;
    use crate::parse;

    crate::config! {
        /// A sample.
        struct Inner {
            /// How deep.
            depth: u32 = 3,
        }
    }

    crate::config! {
        /// A sample of tables.
        struct Outer {
            /// What it is called.
            given_name: String = "x".into(),
            /// Where it lies.
            folder: Option<PathBuf> = None => "DIR",
            /// Names by number.
            names: BTreeMap<String, String> = [("0 or 1".into(), "few".into())].into(),
            /// The inner one.
            @table inner: Inner = Inner::default(),
        }
    }

    #[test]
    fn sample_is_read_back_and_carries_the_docs() {
        let text = sample(&Outer::default(), &Outer::doc());
        assert_eq!(parse::<Outer>(&text), Ok(Outer::default()), "{text}");
        assert!(
            text.contains("# What it is called.\ngiven_name = \"x\""),
            "{text}"
        );
        assert!(text.contains("# Where it lies.\n# folder =\n"), "{text}");
        assert!(text.contains("[inner]\n# How deep.\ndepth = 3"), "{text}");
    }

    #[test]
    fn paths_are_known_by_their_type() {
        let doc = Outer::doc();
        let paths: Vec<&str> = doc
            .entries()
            .iter()
            .filter(|entry| entry.doc.is_path)
            .map(|entry| entry.doc.key)
            .collect();
        assert_eq!(paths, ["folder"]);
        assert_eq!(doc.key("folder").unwrap().value, Some("DIR"));
    }
}
