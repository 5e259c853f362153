//! How the file of an experiment becomes an [`Experiment`]: every key is known and has the right type.

use std::collections::BTreeMap;
use std::path::Path;

use fednode_core::config::{ConfigError, unknown_name};

use super::{Experiment, Variant};
use fednode_cli::dotted::Assignment;

const KEYS: [&str; 13] = [
    "data",
    "own",
    "partition_file",
    "seeds",
    "aggregator",
    "evaluate_every",
    "global_test",
    "compare_plans",
    "toy_floats",
    "set",
    "grid",
    "regime",
    "variant",
];

impl Experiment {
    /// Reads an experiment's file.
    ///
    /// # Errors
    /// Names the first key that is unknown or of the wrong type.
    pub(crate) fn parse(text: &str, folder: &Path) -> Result<Self, ConfigError> {
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
            let start = error.span().map_or(0, |span| span.start.min(text.len()));
            let line = text.as_bytes()[..start]
                .iter()
                .filter(|byte| **byte == b'\n');
            ConfigError(format!("line {}: {}", line.count() + 1, error.message()))
        })?;
        let mut experiment = Self {
            folder: folder.to_owned(),
            ..Self::default()
        };
        for (key, value) in table {
            experiment.enter(&key, value, folder)?;
        }
        experiment.check_training()?;
        Ok(experiment)
    }

    fn enter(&mut self, key: &str, value: toml::Value, folder: &Path) -> Result<(), ConfigError> {
        let wrong = |expected: &str| ConfigError(format!("`{key}`: expected {expected}"));
        let yes_or_no =
            |value: &toml::Value| value.as_bool().ok_or_else(|| wrong("`true` or `false`"));
        let count = |value: &toml::Value, least: u32| {
            let count = value
                .as_integer()
                .and_then(|count| u32::try_from(count).ok())
                .filter(|count| *count >= least);
            count.ok_or_else(|| wrong(&format!("a whole number of at least {least}")))
        };
        match key {
            "data" => self.data = Some(value.as_str().ok_or_else(|| wrong("a text"))?.to_owned()),
            "own" => {
                let text = |item: &toml::Value| item.as_str().map(str::to_owned);
                self.own = list(&value, text)
                    .ok_or_else(|| wrong("a list of texts, a source for each node"))?;
            }
            "partition_file" => {
                self.partition_file =
                    Some(folder.join(value.as_str().ok_or_else(|| wrong("a path"))?));
            }
            "aggregator" => self.aggregator = Some(yes_or_no(&value)?),
            "global_test" => self.global_test = Some(yes_or_no(&value)?),
            "compare_plans" => self.compare_plans = yes_or_no(&value)?,
            "evaluate_every" => self.evaluate_every = Some(count(&value, 1)?),
            "toy_floats" => self.toy_floats = Some(count(&value, 0)?),
            "seeds" => {
                let seed = |value: &toml::Value| u64::try_from(value.as_integer()?).ok();
                self.seeds = list(&value, seed)
                    .ok_or_else(|| wrong("a list of whole numbers, at least one"))?;
            }
            "set" => self.set = assignments(value.as_table().ok_or_else(|| wrong("a table"))?)?,
            "grid" => {
                let axes = value.as_table().filter(|axes| !axes.is_empty());
                for (key, values) in
                    axes.ok_or_else(|| wrong("a table with a list of values for each key"))?
                {
                    let values = values
                        .as_array()
                        .ok_or_else(|| wrong("a list of values for each key"))?;
                    let values = values
                        .iter()
                        .map(|value| scalar(key, value))
                        .collect::<Result<_, _>>()?;
                    self.add_axis(key, values)?;
                }
            }
            "regime" => self.regimes = read_named(key, &value)?,
            "variant" => self.variants = read_named(key, &value)?,
            _ => return Err(ConfigError(unknown_name("key", key, &KEYS))),
        }
        Ok(())
    }
}

/// Reads a list of one thing or more; nothing of anything else.
fn list<T>(value: &toml::Value, read: impl Fn(&toml::Value) -> Option<T>) -> Option<Vec<T>> {
    let items: Option<Vec<T>> = value.as_array()?.iter().map(read).collect();
    items.filter(|items| !items.is_empty())
}

/// Reads the tables `[[variant]]` or `[[regime]]`, whichever the key is.
fn read_named(key: &str, value: &toml::Value) -> Result<Vec<Variant>, ConfigError> {
    let tables = value.as_array().filter(|tables| !tables.is_empty());
    let wrong = || ConfigError(format!("`{key}`: expected `[[{key}]]` tables"));
    let tables = tables.ok_or_else(wrong)?.iter();
    tables.map(|table| read_variant(key, table)).collect()
}

fn read_variant(kind: &str, value: &toml::Value) -> Result<Variant, ConfigError> {
    let wrong = || {
        ConfigError(format!(
            "a {kind} is `name = \"…\"` and `set = {{ key = value }}`"
        ))
    };
    let table = value.as_table().ok_or_else(wrong)?;
    if let Some(key) = table
        .keys()
        .find(|key| !["name", "set"].contains(&key.as_str()))
    {
        return Err(ConfigError(unknown_name(
            &format!("key of a {kind}"),
            key,
            &["name", "set"],
        )));
    }
    let name = table
        .get("name")
        .and_then(toml::Value::as_str)
        .ok_or_else(wrong)?
        .to_owned();
    let set = assignments(
        table
            .get("set")
            .and_then(toml::Value::as_table)
            .ok_or_else(wrong)?,
    )?;
    Ok(Variant { name, set })
}

/// Turns a table into assignments; inner tables into dotted keys.
fn assignments(table: &toml::Table) -> Result<Vec<Assignment>, ConfigError> {
    let mut flat = BTreeMap::new();
    flatten(String::new(), table, &mut flat)?;
    Ok(flat
        .into_iter()
        .map(|(key, value)| Assignment { key, value })
        .collect())
}

fn flatten(
    prefix: String,
    table: &toml::Table,
    flat: &mut BTreeMap<String, String>,
) -> Result<(), ConfigError> {
    for (key, value) in table {
        let key = if prefix.is_empty() {
            key.clone()
        } else {
            format!("{prefix}.{key}")
        };
        match value {
            toml::Value::Table(inner) => flatten(key, inner, flat)?,
            toml::Value::Array(several) => {
                several
                    .iter()
                    .try_for_each(|value| scalar(&key, value).map(drop))?;
                flat.insert(key, value.to_string());
            }
            value => {
                let text = scalar(&key, value)?;
                flat.insert(key, text);
            }
        }
    }
    Ok(())
}

fn scalar(key: &str, value: &toml::Value) -> Result<String, ConfigError> {
    match value {
        toml::Value::String(text) => Ok(text.clone()),
        toml::Value::Integer(_) | toml::Value::Float(_) | toml::Value::Boolean(_) => {
            Ok(value.to_string())
        }
        _ => Err(ConfigError(format!("`{key}`: expected a single value"))),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_key_is_in_the_book() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../docs/how-to/experiments.md"
        );
        let page = std::fs::read_to_string(path).unwrap();
        let (_, table) = page.split_once("| key | meaning |\n").unwrap();
        let rows = table.lines().take_while(|line| line.starts_with('|'));
        let cells = rows.filter_map(|row| row.split('|').nth(1));
        let names = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
        let names: BTreeSet<&str> = names
            .map(|name| name.trim_matches(|c: char| "[]".contains(c)))
            .collect();
        assert_eq!(names, BTreeSet::from(KEYS));
    }

    #[test]
    fn names_what_is_wrong() {
        let error = |text: &str| Experiment::parse(text, Path::new("")).unwrap_err().0;
        assert_eq!(error("sets = 1"), "unknown key `sets`: did you mean `set`?");
        assert_eq!(
            error("[grid]"),
            "`grid`: expected a table with a list of values for each key"
        );
        assert_eq!(
            error("[grid]\nrounds = []"),
            "the grid has no value for `rounds`"
        );
        for seeds in ["seeds = [-1]", "seeds = []"] {
            let expected = "`seeds`: expected a list of whole numbers, at least one";
            assert_eq!(error(seeds), expected);
        }
        let comma = error("data = 'digits'\n[set]\n\"training.learning_rate\" = 0,5\n");
        assert!(comma.starts_with("line 3: "), "{comma}");
        assert_eq!(
            error("variant = []"),
            "`variant`: expected `[[variant]]` tables"
        );
        assert_eq!(
            error("[grid]\nrounds = [1, 1]"),
            "the grid has `1` twice for `rounds`"
        );
        assert_eq!(
            error("toy_floats = 0\ndata = 'digits'"),
            "without training there is no `data`"
        );
        assert!(error("compare_plans = true").contains("`toy_floats`"));
        assert_eq!(
            error("toy_floats = -1"),
            "`toy_floats`: expected a whole number of at least 0"
        );
        assert_eq!(
            error("[set]\nrounds = [[1]]"),
            "`rounds`: expected a single value"
        );
        assert_eq!(
            error("[[regime]]\nname = \"x\""),
            "a regime is `name = \"…\"` and `set = { key = value }`"
        );
        assert!(error("[[variant]]\nnames = \"x\"").contains("did you mean `name`"));
    }
}
