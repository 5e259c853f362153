//! Experiments: many simulations with one table, described by a TOML file or by a grid on the command line.
//!
//! ```toml
//! data = "fashion-mnist"
//! partition_file = "lists.json"        # optional, relative to this file; so is `initial` in a `set`
//! seeds = [1, 2, 3]                    # each setting is run with each seed
//!
//! [set]                                # any key of federation.toml or hyper-parameter, for all runs
//! nodes = 20
//! rounds = 20
//! "training.learning_rate" = 0.005
//!
//! [grid]                               # every combination of these
//! algorithm = ["local", "fedavg"]
//!
//! [[variant]]                          # or settings with a name of their own
//! name = "FedMoE-DA, P = 5"
//! set = { algorithm = "fedmoe-da", peers_per_expert = 5 }
//! ```

use std::collections::BTreeMap;
use std::path::Path;

use fednode_core::config::{ConfigError, unknown_name};

use crate::dotted::Assignment;

const KEYS: [&str; 9] =
    ["data", "partition_file", "seeds", "aggregator", "evaluate_every", "global_test", "set", "grid", "variant"];

/// What an experiment's file says.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Experiment {
    /// The data source.
    pub(crate) data: Option<String>,
    /// Index lists, relative to the current folder.
    pub(crate) partition_file: Option<std::path::PathBuf>,
    /// Where the file is; the paths in it start there.
    pub(crate) folder: std::path::PathBuf,
    /// Seeds; each setting is run with each.
    pub(crate) seeds: Vec<u64>,
    /// Whether there is an aggregator.
    pub(crate) aggregator: Option<bool>,
    /// Rounds between two complete evaluations.
    pub(crate) evaluate_every: Option<u32>,
    /// Whether every node's result is evaluated on everyone's test samples too.
    pub(crate) global_test: Option<bool>,
    /// Settings of all runs.
    pub(crate) set: Vec<Assignment>,
    /// Axes of the grid: a key and its values.
    pub(crate) grid: Vec<(String, Vec<String>)>,
    /// Settings with a name.
    pub(crate) variants: Vec<Variant>,
}

/// Settings under one name.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Variant {
    /// What the table calls it.
    pub(crate) name: String,
    /// What is set.
    pub(crate) set: Vec<Assignment>,
}

impl Experiment {
    /// Reads an experiment's file.
    ///
    /// # Errors
    /// Names the first key that is unknown or of the wrong type.
    pub(crate) fn parse(text: &str, folder: &Path) -> Result<Self, ConfigError> {
        let table: toml::Table =
            text.parse().map_err(|error: toml::de::Error| ConfigError(error.message().to_owned()))?;
        let mut experiment = Self { folder: folder.to_owned(), ..Self::default() };
        for (key, value) in table {
            experiment.enter(&key, value, folder)?;
        }
        Ok(experiment)
    }

    fn enter(&mut self, key: &str, value: toml::Value, folder: &Path) -> Result<(), ConfigError> {
        let wrong = |expected: &str| ConfigError(format!("`{key}`: expected {expected}"));
        match key {
            "data" => self.data = Some(value.as_str().ok_or_else(|| wrong("a text"))?.to_owned()),
            "partition_file" => {
                self.partition_file = Some(folder.join(value.as_str().ok_or_else(|| wrong("a path"))?));
            }
            "aggregator" => self.aggregator = Some(value.as_bool().ok_or_else(|| wrong("`true` or `false`"))?),
            "global_test" => self.global_test = Some(value.as_bool().ok_or_else(|| wrong("`true` or `false`"))?),
            "evaluate_every" => {
                let every = value.as_integer().and_then(|every| u32::try_from(every).ok()).filter(|every| *every > 0);
                self.evaluate_every = Some(every.ok_or_else(|| wrong("a whole number of at least 1"))?);
            }
            "seeds" => {
                let seed = |value: &toml::Value| value.as_integer().and_then(|seed| u64::try_from(seed).ok());
                let seeds = value.as_array().map(|seeds| seeds.iter().map(seed).collect::<Option<Vec<u64>>>());
                self.seeds = seeds.flatten().ok_or_else(|| wrong("a list of whole numbers"))?;
            }
            "set" => self.set = assignments(value.as_table().ok_or_else(|| wrong("a table"))?)?,
            "grid" => {
                let axes = value.as_table().filter(|axes| !axes.is_empty());
                for (key, values) in axes.ok_or_else(|| wrong("a table with a list of values for each key"))? {
                    let values = values.as_array().ok_or_else(|| wrong("a list of values for each key"))?;
                    let values = values.iter().map(|value| scalar(key, value)).collect::<Result<_, _>>()?;
                    self.add_axis(key, values)?;
                }
            }
            "variant" => {
                for variant in value.as_array().ok_or_else(|| wrong("`[[variant]]` tables"))? {
                    self.variants.push(read_variant(variant)?);
                }
            }
            _ => return Err(ConfigError(unknown_name("key", key, &KEYS))),
        }
        Ok(())
    }

    /// Adds an axis to the grid.
    ///
    /// # Errors
    /// Refuses one without values.
    pub(crate) fn add_axis(&mut self, key: &str, values: Vec<String>) -> Result<(), ConfigError> {
        if values.is_empty() {
            return Err(ConfigError(format!("the grid has no value for `{key}`")));
        }
        self.grid.push((key.to_owned(), values));
        Ok(())
    }

    /// Returns all settings: each variant with each combination of the grid. Without either, one without a name.
    pub(crate) fn settings(&self) -> Vec<Variant> {
        let mut settings = self.variants.clone();
        if settings.is_empty() {
            settings.push(Variant { name: String::new(), set: Vec::new() });
        }
        for (key, values) in &self.grid {
            let with = |variant: &Variant, value: &String| {
                let short = key.rsplit('.').next().unwrap_or(key);
                let added = if key == "algorithm" { value.clone() } else { format!("{short}={value}") };
                let name = [variant.name.as_str(), &added].into_iter().filter(|part| !part.is_empty());
                let mut set = variant.set.clone();
                set.push(Assignment::new(key, value));
                Variant { name: name.collect::<Vec<_>>().join(" "), set }
            };
            settings = settings.iter().flat_map(|variant| values.iter().map(|value| with(variant, value))).collect();
        }
        settings
    }
}

fn read_variant(value: &toml::Value) -> Result<Variant, ConfigError> {
    let wrong = || ConfigError("a variant is `name = \"…\"` and `set = { key = value }`".into());
    let table = value.as_table().ok_or_else(wrong)?;
    if let Some(key) = table.keys().find(|key| !["name", "set"].contains(&key.as_str())) {
        return Err(ConfigError(unknown_name("key of a variant", key, &["name", "set"])));
    }
    let name = table.get("name").and_then(toml::Value::as_str).ok_or_else(wrong)?.to_owned();
    let set = assignments(table.get("set").and_then(toml::Value::as_table).ok_or_else(wrong)?)?;
    Ok(Variant { name, set })
}

/// Turns a table into assignments; inner tables into dotted keys.
fn assignments(table: &toml::Table) -> Result<Vec<Assignment>, ConfigError> {
    let mut flat = BTreeMap::new();
    flatten(String::new(), table, &mut flat)?;
    Ok(flat.into_iter().map(|(key, value)| Assignment { key, value }).collect())
}

fn flatten(prefix: String, table: &toml::Table, flat: &mut BTreeMap<String, String>) -> Result<(), ConfigError> {
    for (key, value) in table {
        let key = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        match value {
            toml::Value::Table(inner) => flatten(key, inner, flat)?,
            toml::Value::Array(several) => {
                several.iter().try_for_each(|value| scalar(&key, value).map(drop))?;
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
        toml::Value::Integer(_) | toml::Value::Float(_) | toml::Value::Boolean(_) => Ok(value.to_string()),
        _ => Err(ConfigError(format!("`{key}`: expected a single value"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_multiplies_the_variants() {
        let text = "seeds = [1, 2]\n[set]\nmodel = { by_node = ['cnn-1', 'cnn-2'] }\nrounds = 3\ntraining = { learning_rate = 0.5 }\n\
                    [grid]\nalgorithm = [\"local\", \"fedavg\"]\n\"data.partition\" = [\"iid\"]\n\
                    [[variant]]\nname = \"a\"\nset = { nodes = 4 }\n[[variant]]\nname = \"b\"\nset = { nodes = 5 }";
        let experiment = Experiment::parse(text, Path::new("")).unwrap();
        let set: Vec<String> = experiment.set.iter().map(|set| format!("{}={}", set.key, set.value)).collect();
        assert_eq!(set, ["model.by_node=[\"cnn-1\", \"cnn-2\"]", "rounds=3", "training.learning_rate=0.5"]);
        let names: Vec<String> = experiment.settings().into_iter().map(|variant| variant.name).collect();
        assert_eq!(
            names,
            ["a local partition=iid", "a fedavg partition=iid", "b local partition=iid", "b fedavg partition=iid"]
        );
        assert_eq!(Experiment::default().settings().len(), 1);
    }

    #[test]
    fn names_what_is_wrong() {
        let error = |text: &str| Experiment::parse(text, Path::new("")).unwrap_err().0;
        assert_eq!(error("sets = 1"), "unknown key `sets`: did you mean `set`?");
        assert_eq!(error("[grid]"), "`grid`: expected a table with a list of values for each key");
        assert_eq!(error("[grid]\nrounds = []"), "the grid has no value for `rounds`");
        assert_eq!(error("seeds = [-1]"), "`seeds`: expected a list of whole numbers");
        assert_eq!(error("[set]\nrounds = [[1]]"), "`rounds`: expected a single value");
        assert!(error("[[variant]]\nnames = \"x\"").contains("did you mean `name`"));
    }
}
