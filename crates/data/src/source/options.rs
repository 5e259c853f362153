//! The argument of a source: a path, then options as `,key=value`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use super::numbered;
use crate::error::DataError;

/// The classes of data, in the order of their numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Classes {
    /// What the federation calls them.
    pub(super) names: Arc<[String]>,
    /// What the data call them.
    pub(super) labels: Arc<[String]>,
}

impl Classes {
    /// Returns classes that data and federation call the same.
    pub(super) fn called(names: Arc<[String]>) -> Self {
        Self {
            labels: Arc::clone(&names),
            names,
        }
    }
}

/// A path and its options.
#[derive(Debug, Clone)]
pub(super) struct Argument {
    pub(super) path: PathBuf,
    options: BTreeMap<String, String>,
}

impl Argument {
    /// Takes options off the end as long as they have a known key; the rest is the path, commas and all.
    pub(super) fn parse(text: &str, known: &[&str]) -> Result<Self, DataError> {
        let (mut path, mut options) = (text, BTreeMap::new());
        while let Some((head, option)) = path.rsplit_once(',') {
            let Some((key, value)) = option.split_once('=') else {
                break;
            };
            if !known.contains(&key) {
                let cause = format!(
                    "unknown option `{key}`, expected one of {}",
                    known.join(", ")
                );
                return Err(wrong(text, cause));
            }
            options.insert(key.to_owned(), value.to_owned());
            path = head;
        }
        Ok(Self {
            path: path.into(),
            options,
        })
    }

    pub(super) fn get(&self, key: &str) -> Option<&str> {
        self.options.get(key).map(String::as_str)
    }

    /// Reads an option.
    pub(super) fn parsed<T>(
        &self,
        key: &str,
        expected: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, DataError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let parsed = parse(value)
            .ok_or_else(|| wrong(&format!("{key}={value}"), format!("expected {expected}")))?;
        Ok(Some(parsed))
    }

    /// Reads `classes`: names between bars, or how many there are. Nodes that bring their own data must agree on the names
    /// and their order, else the same label would mean different things; `LABEL=>NAME` says what the data call one.
    pub(super) fn classes(&self) -> Result<Option<Classes>, DataError> {
        let expected = "names like `cat|dog`, `0=>cat|1=>dog`, or a number from 2 to 65535";
        self.parsed("classes", expected, |value| match value.parse::<u16>() {
            Ok(n) => (n >= 2).then(|| Classes::called(numbered(n.into()))),
            Err(_) => {
                let pairs = value
                    .split('|')
                    .map(|class| class.split_once("=>").unwrap_or((class, class)));
                let (labels, names): (Vec<String>, Vec<String>) = pairs
                    .map(|(label, name)| (label.trim().to_owned(), name.trim().to_owned()))
                    .unzip();
                let are_distinct =
                    |texts: &[String]| texts.iter().collect::<BTreeSet<_>>().len() == texts.len();
                let is_valid = names.len() >= 2 && names.len() < usize::from(u16::MAX);
                (is_valid && are_distinct(&labels) && are_distinct(&names)).then(|| Classes {
                    names: names.into(),
                    labels: labels.into(),
                })
            }
        })
    }
}

fn wrong(text: &str, cause: String) -> DataError {
    DataError::Text {
        text: text.to_owned(),
        what: "data source",
        cause,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_known_options_and_leaves_commas_in_paths() {
        let argument =
            Argument::parse("/a,b/c.csv,label=x,classes=3", &["label", "classes"]).unwrap();
        assert_eq!(argument.path, PathBuf::from("/a,b/c.csv"));
        assert_eq!(argument.get("label"), Some("x"));
        assert_eq!(argument.classes().unwrap().unwrap().names.len(), 3);
    }

    #[test]
    fn refuses_unknown_options_and_doubled_classes() {
        let error = Argument::parse("x,lable=y", &["label"])
            .unwrap_err()
            .to_string();
        assert_eq!(
            error,
            "`x,lable=y` is not a data source: unknown option `lable`, expected one of label"
        );
        for classes in ["1", "a|a", "a"] {
            assert!(
                Argument::parse(&format!("x,classes={classes}"), &["classes"])
                    .unwrap()
                    .classes()
                    .is_err()
            );
        }
    }
}
