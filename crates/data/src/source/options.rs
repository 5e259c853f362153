//! The types that options of readers have, and how a short text becomes one of them.

use std::collections::BTreeSet;
use std::sync::Arc;

use fednode_config::KeyDoc;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::numbered;
use crate::table::is_gap;

/// What `classes` may be, for messages.
const CLASSES: &str =
    "names like `cat|dog`, `0=>cat|1=>dog`, `0=>healthy|*=>sick`, or a number from 2 to 65535";
/// Stands between what the data call a class and what the federation calls it.
const ARROW: &str = "=>";

/// Stands for every label that is not named.
const OTHERS: &str = "*";

/// The classes of data, in the order of their numbers.
///
/// Several labels may be one class: `0=>healthy|1=>sick|2=>sick`, or `0=>healthy|*=>sick` where all others are sick.
/// Nodes that bring their own data must agree on the names and their order, else the same label would mean different
/// things. Written as a number (the labels are 0, 1, …), as a list of names or of `LABEL=>NAME`, which gives the order, or
/// as a table of labels and names. A table has no order, so its classes are in the alphabetical order of their names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Classes {
    /// What the federation calls them.
    pub(super) names: Arc<[String]>,
    /// What the data call them, and which class that is: its place among the names.
    labels: Arc<[(String, u16)]>,
}

impl Classes {
    /// Returns classes that data and federation call the same.
    pub(super) fn called(names: Arc<[String]>) -> Self {
        let labels = names.iter().cloned().zip(0..).collect();
        Self { names, labels }
    }

    /// Returns classes that the data call 1, 2, 3 and so on.
    pub(super) fn numbered_from_one(names: &[&str]) -> Self {
        let labels = (1_u16..)
            .zip(names)
            .map(|(label, _)| (label.to_string(), label - 1));
        Self {
            labels: labels.collect(),
            names: names.iter().map(|name| (*name).to_owned()).collect(),
        }
    }

    /// Returns the class of a label; nothing if it has none.
    pub(super) fn of(&self, label: &str) -> Option<u16> {
        let find = |wanted: &str| self.labels.iter().find(|(label, _)| label == wanted);
        // A gap somewhere in the column makes some programs write `1.0` for `1`.
        let whole = || find(label.strip_suffix(".0")?);
        // A gap is no other label.
        let others = || find(OTHERS).filter(|_| !is_gap(label));
        let found = find(label).or_else(whole).or_else(others);
        found.map(|(_, class)| *class)
    }

    fn read(value: &toml::Value) -> Option<Self> {
        let pairs: Vec<(String, String)> = match value {
            toml::Value::Integer(count) => return Self::counted(*count),
            toml::Value::String(text) => text.split('|').map(pair).collect(),
            toml::Value::Array(items) => items
                .iter()
                .map(|item| item.as_str().map(pair))
                .collect::<Option<_>>()?,
            toml::Value::Table(names) => {
                let mut pairs = names
                    .iter()
                    .map(|(label, name)| Some((label.clone(), name.as_str()?.to_owned())))
                    .collect::<Option<Vec<_>>>()?;
                pairs.sort_by(|(_, a), (_, b)| a.cmp(b));
                pairs
            }
            _ => return None,
        };
        let mut names: Vec<String> = Vec::new();
        let mut labels = Vec::with_capacity(pairs.len());
        for (label, name) in &pairs {
            let known = names.iter().position(|known| known == name);
            let class = known.unwrap_or(names.len());
            if known.is_none() {
                names.push(name.clone());
            }
            labels.push((label.clone(), u16::try_from(class).ok()?));
        }
        let is_valid = names.len() >= 2 && names.len() < usize::from(u16::MAX);
        let distinct: BTreeSet<&String> = pairs.iter().map(|(label, _)| label).collect();
        (is_valid && distinct.len() == labels.len()).then(|| Self {
            names: names.into(),
            labels: labels.into(),
        })
    }

    fn counted(count: i64) -> Option<Self> {
        let count = u16::try_from(count).ok().filter(|count| *count >= 2)?;
        Some(Self::called(numbered(count.into())))
    }
}

/// Reads `LABEL=>NAME`, or a name that is the label too.
fn pair(text: &str) -> (String, String) {
    let (label, name) = text.split_once(ARROW).unwrap_or((text, text));
    (label.trim().to_owned(), name.trim().to_owned())
}

impl<'de> Deserialize<'de> for Classes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = toml::Value::deserialize(deserializer)?;
        Self::read(&value).ok_or_else(|| D::Error::custom(format!("expected {CLASSES}")))
    }
}

impl Serialize for Classes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let name_of = |class: &u16| &self.names[usize::from(*class)];
        let are_names = self.labels.len() == self.names.len()
            && self
                .labels
                .iter()
                .all(|(label, class)| label == name_of(class));
        if *self.names == *numbered(self.names.len()) && are_names {
            return serializer.serialize_u64(self.names.len() as u64);
        }
        let text = |(label, class): &(String, u16)| {
            let name = name_of(class);
            if label == name {
                name.clone()
            } else {
                format!("{label}{ARROW}{name}")
            }
        };
        let items: Vec<String> = self.labels.iter().map(text).collect();
        items.serialize(serializer)
    }
}

/// A column of a table, by its name or its number: which of the two it is, the header tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(super) struct Column(pub(super) String);

impl<'de> Deserialize<'de> for Column {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match toml::Value::deserialize(deserializer)? {
            toml::Value::String(name) => Ok(Self(name)),
            toml::Value::Integer(number) => Ok(Self(number.to_string())),
            _ => Err(D::Error::custom(
                "expected the name of a column, or its number from 0",
            )),
        }
    }
}

/// The size of images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) height: u32,
    pub(super) width: u32,
}

impl Size {
    fn parse(text: &str) -> Option<Self> {
        let side = |text: &str| {
            text.parse::<u32>()
                .ok()
                .filter(|side| (1..=4096).contains(side))
        };
        let (height, width) = text.split_once('x')?;
        Some(Self {
            height: side(height)?,
            width: side(width)?,
        })
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = toml::Value::deserialize(deserializer)?;
        let size = value.as_str().and_then(Self::parse);
        size.ok_or_else(|| D::Error::custom("expected a size like `28x28`, at most 4096x4096"))
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{}x{}", self.height, self.width))
    }
}

/// Channels of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Channels {
    /// One: grey.
    Grey = 1,
    /// Three: red, green, blue.
    Colour = 3,
}

impl<'de> Deserialize<'de> for Channels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match toml::Value::deserialize(deserializer)?.as_integer() {
            Some(1) => Ok(Self::Grey),
            Some(3) => Ok(Self::Colour),
            _ => Err(D::Error::custom("expected 1 or 3")),
        }
    }
}

impl Serialize for Channels {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(*self as u8)
    }
}

/// A whole number within bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(super) struct Number<const LEAST: usize, const MOST: usize>(pub(super) usize);

impl<'de, const LEAST: usize, const MOST: usize> Deserialize<'de> for Number<LEAST, MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = toml::Value::deserialize(deserializer)?.as_integer();
        let number = value.and_then(|number| usize::try_from(number).ok());
        let number = number.filter(|number| (LEAST..=MOST).contains(number));
        number
            .map(Self)
            .ok_or_else(|| D::Error::custom(format!("expected a number from {LEAST} to {MOST}")))
    }
}

/// Reads an option of the short form: a path is a text whatever it looks like, a whole number is one, all else is a text.
pub(super) fn typed(text: &str, key: &KeyDoc) -> toml::Value {
    match text.parse::<i64>() {
        Ok(number) if !key.is_path => number.into(),
        _ => text.into(),
    }
}

/// Writes an option as the short form has it.
pub(super) fn short(value: &toml::Value) -> String {
    match value {
        toml::Value::String(text) => text.clone(),
        toml::Value::Array(items) => {
            let items: Vec<String> = items.iter().map(short).collect();
            items.join("|")
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classes(toml: &str) -> Result<Classes, String> {
        let mut table: toml::Table = format!("x = {toml}").parse().unwrap();
        table
            .remove("x")
            .unwrap()
            .try_into()
            .map_err(|error: toml::de::Error| error.message().to_owned())
    }

    #[test]
    fn classes_are_a_number_names_or_a_table() {
        let lists = |toml: &str| {
            let classes = classes(toml).unwrap();
            let labels: Vec<&str> = classes
                .labels
                .iter()
                .map(|(label, _)| label.as_str())
                .collect();
            (labels.join(" "), classes.names.join(" "))
        };
        let expected = |labels: &str, names: &str| (labels.to_owned(), names.to_owned());
        assert_eq!(lists("3"), expected("0 1 2", "0 1 2"));
        assert_eq!(lists("'b | a'"), expected("b a", "b a"));
        assert_eq!(lists("['b', 'x=>a']"), expected("b x", "b a"));
        // Whatever the labels are called, all nodes have the same order of names.
        assert_eq!(
            lists("{ M = 'malignant', B = 'benign' }"),
            expected("B M", "benign malignant")
        );
        assert_eq!(
            lists("{ 0 = 'malignant', 1 = 'benign' }"),
            expected("1 0", "benign malignant")
        );
    }

    #[test]
    fn several_labels_are_one_class() {
        let heart = classes("'0=>healthy|1=>sick|2=>sick'").unwrap();
        assert_eq!(&*heart.names, ["healthy", "sick"]);
        let of = |classes: &Classes, labels: [&str; 4]| labels.map(|label| classes.of(label));
        let labels = ["0", "2", "1.0", "7"];
        assert_eq!(of(&heart, labels), [Some(0), Some(1), Some(1), None]);
        let rest = classes("'0=>healthy|*=>sick'").unwrap();
        assert_eq!(of(&rest, labels), [Some(0), Some(1), Some(1), Some(1)]);
    }

    #[test]
    fn doubled_and_lone_classes_are_refused() {
        for toml in [
            "1",
            "-1",
            "70000",
            "'a|a'",
            "'a'",
            "['a=>x', 'a=>y']",
            "[1, 2]",
            "{ a = 1 }",
            "true",
        ] {
            assert_eq!(
                classes(toml).unwrap_err(),
                format!("expected {CLASSES}"),
                "{toml}"
            );
        }
    }

    #[test]
    fn sizes_are_height_and_width() {
        let size = Size::parse("28x32").unwrap();
        assert_eq!((size.height, size.width), (28, 32));
        for text in ["28", "0x3", "4097x1", "axb"] {
            assert_eq!(Size::parse(text), None, "{text}");
        }
    }
}
