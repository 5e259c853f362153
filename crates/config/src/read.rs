//! Reads texts and tables into configuration structs, with errors of one line.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::spelling::{unknown_name, unknown_value};

/// Tells why a configuration was refused, in one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub String);

/// Reads a TOML file into a configuration struct.
///
/// # Errors
/// One line: where, what, and for an unknown key the nearest valid one.
pub fn parse<T: DeserializeOwned>(text: &str) -> Result<T, ConfigError> {
    toml::from_str(text).map_err(|error| at_line(&error, text))
}

/// Reads a table that was put together from several texts, so that no line can be named.
///
/// # Errors
/// One line: which key, what, and for an unknown key the nearest valid one.
pub fn from_table<T: DeserializeOwned>(table: toml::Table) -> Result<T, ConfigError> {
    toml::Value::Table(table)
        .try_into()
        .map_err(|error: toml::de::Error| {
            let message = explain(error.message());
            match key_of(&error) {
                Some(key) if !message.contains(&format!("`{key}`")) => {
                    ConfigError(format!("`{key}`: {message}"))
                }
                _ => ConfigError(message),
            }
        })
}

/// Writes a configuration as a table; keys without a value are left out.
///
/// # Panics
/// If the configuration cannot be written as TOML, which would be a mistake in its declaration.
pub fn to_table<T: Serialize>(config: &T) -> toml::Table {
    toml::Table::try_from(config).expect("a configuration is a TOML table")
}

/// Refuses the first key that is out of range; for each key, whether it is within, its name, and the range.
///
/// # Errors
/// Names the key and its range.
pub fn in_range(rules: &[(bool, &str, &str)]) -> Result<(), ConfigError> {
    match rules.iter().find(|(is_within, ..)| !is_within) {
        Some((_, key, range)) => Err(ConfigError(format!(
            "`{key}` is out of range: it must be {range}"
        ))),
        None => Ok(()),
    }
}

/// Names the line of an error in a text.
pub(crate) fn at_line(error: &toml::de::Error, text: &str) -> ConfigError {
    let place = error
        .span()
        .map(|span| format!("line {}: ", line_of(text, span.start)))
        .unwrap_or_default();
    ConfigError(format!("{place}{}", explain(error.message())))
}

/// Returns the line of a byte, counting from 1.
pub(crate) fn line_of(text: &str, byte: usize) -> usize {
    text[..byte.min(text.len())].matches('\n').count() + 1
}

/// Returns the key that an error is about, where no text has its place: the library puts it behind the message.
fn key_of(error: &toml::de::Error) -> Option<String> {
    let text = error.to_string();
    let (_, key) = text.rsplit_once("in `")?;
    Some(key.trim_end().trim_end_matches('`').to_owned())
}

/// Turns a message of serde into one line. It offers the nearest key for an unknown one, and all words of a closed set
/// for an unknown word.
pub fn explain(message: &str) -> String {
    let names: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    match names.split_first() {
        Some((unknown, valid)) if message.starts_with("unknown field") => {
            unknown_name("key", unknown, valid)
        }
        Some((unknown, valid)) if message.starts_with("unknown variant") => {
            unknown_value(unknown, valid)
        }
        _ => message.split_whitespace().collect::<Vec<_>>().join(" "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            /// The inner one.
            @table inner: Inner = Inner::default(),
        }
    }

    #[test]
    fn a_file_is_refused_by_its_line() {
        let error = parse::<Outer>("\n[inner]\ndepht = 1").unwrap_err();
        assert_eq!(
            error.0,
            "line 3: unknown key `depht`: did you mean `depth`?"
        );
    }

    #[test]
    fn a_table_is_refused_by_its_key() {
        let read = |text: &str| from_table::<Outer>(text.parse().unwrap());
        assert_eq!(read("[inner]\ndepth = 4").unwrap().inner.depth, 4);
        let error = read("[inner]\ndepth = \"x\"").unwrap_err();
        assert!(
            error.0.starts_with("`inner.depth`: invalid type"),
            "{error}"
        );
        let error = read("[inner]\ndepht = 1").unwrap_err();
        assert_eq!(
            error.0,
            "`inner`: unknown key `depht`: did you mean `depth`?"
        );
    }
}
