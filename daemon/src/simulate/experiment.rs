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
//!
//! Or the protocol alone, `no_training = true`, for which there is no data. A key has one place: what a row of the table
//! is named after cannot be set for all of them too.

use std::collections::BTreeMap;
use std::path::Path;

use fednode_core::config::{ConfigError, unknown_name};

use crate::dotted::{Assignment, bare};

const KEYS: [&str; 12] = [
    "data",
    "partition_file",
    "seeds",
    "aggregator",
    "evaluate_every",
    "global_test",
    "no_training",
    "compare_plans",
    "toy_floats",
    "set",
    "grid",
    "variant",
];

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
    /// Whether the protocol is played alone.
    pub(crate) no_training: bool,
    /// Whether its plans are compared with those of somebody who knows all proxies.
    pub(crate) compare_plans: bool,
    /// Floats in each part of the toys that take the models' place there.
    pub(crate) toy_floats: Option<u32>,
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
        let table: toml::Table = text
            .parse()
            .map_err(|error: toml::de::Error| ConfigError(error.message().to_owned()))?;
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
        let at_least_one = |value: &toml::Value| {
            let count = value
                .as_integer()
                .and_then(|count| u32::try_from(count).ok())
                .filter(|count| *count > 0);
            count.ok_or_else(|| wrong("a whole number of at least 1"))
        };
        match key {
            "data" => self.data = Some(value.as_str().ok_or_else(|| wrong("a text"))?.to_owned()),
            "partition_file" => {
                self.partition_file =
                    Some(folder.join(value.as_str().ok_or_else(|| wrong("a path"))?));
            }
            "aggregator" => self.aggregator = Some(yes_or_no(&value)?),
            "global_test" => self.global_test = Some(yes_or_no(&value)?),
            "no_training" => self.no_training = yes_or_no(&value)?,
            "compare_plans" => self.compare_plans = yes_or_no(&value)?,
            "evaluate_every" => self.evaluate_every = Some(at_least_one(&value)?),
            "toy_floats" => self.toy_floats = Some(at_least_one(&value)?),
            "seeds" => {
                let seed = |value: &toml::Value| {
                    value.as_integer().and_then(|seed| u64::try_from(seed).ok())
                };
                let seeds = value
                    .as_array()
                    .map(|seeds| seeds.iter().map(seed).collect::<Option<Vec<u64>>>());
                let seeds = seeds.flatten().filter(|seeds| !seeds.is_empty());
                self.seeds = seeds.ok_or_else(|| wrong("a list of whole numbers"))?;
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
            "variant" => {
                let variants = value.as_array().filter(|variants| !variants.is_empty());
                for variant in variants.ok_or_else(|| wrong("`[[variant]]` tables"))? {
                    self.variants.push(read_variant(variant)?);
                }
            }
            _ => return Err(ConfigError(unknown_name("key", key, &KEYS))),
        }
        Ok(())
    }

    /// Adds an axis to the grid, in the place of one that varies the same key.
    ///
    /// # Errors
    /// Refuses one without values, or with one value twice.
    pub(crate) fn add_axis(&mut self, key: &str, values: Vec<String>) -> Result<(), ConfigError> {
        if values.is_empty() {
            return Err(ConfigError(format!("the grid has no value for `{key}`")));
        }
        if let Some(value) = first_repeated(&values) {
            return Err(ConfigError(format!(
                "the grid has `{value}` twice for `{key}`"
            )));
        }
        match self
            .grid
            .iter_mut()
            .find(|(axis, _)| bare(axis) == bare(key))
        {
            Some((_, earlier)) => *earlier = values,
            None => self.grid.push((key.to_owned(), values)),
        }
        Ok(())
    }

    /// Checks that every row of the table is what its name says, with these keys set by flags for all of them.
    ///
    /// # Errors
    /// Names a key that has two places, a seed or a name that is there twice.
    pub(crate) fn check(&self, flags: &[String]) -> Result<(), ConfigError> {
        let axes = self.grid.iter().map(|(key, _)| key);
        let in_variants = || {
            self.variants
                .iter()
                .flat_map(|variant| &variant.set)
                .map(|set| &set.key)
        };
        let is_set = |key: &&String| flags.iter().any(|flag| bare(flag) == bare(key));
        if let Some(key) = axes.clone().chain(in_variants()).find(is_set) {
            let text = format!(
                "`{key}` is what the rows differ in, so it cannot be set for all of them: `--sweep {key}=…`"
            );
            return Err(ConfigError(format!("{text} gives an axis other values")));
        }
        if let Some(key) = axes
            .clone()
            .find(|axis| in_variants().any(|key| bare(key) == bare(axis)))
        {
            return Err(ConfigError(format!(
                "`{key}` is set by a variant and has a list of values too"
            )));
        }
        if !self.seeds.is_empty() && axes.chain(in_variants()).any(|key| key == "seed") {
            return Err(ConfigError(
                "`seed` is varied by `seeds`, not by a list of values or a variant".into(),
            ));
        }
        if let Some(seed) = first_repeated(&self.seeds) {
            return Err(ConfigError(format!("seed {seed} is there twice")));
        }
        let folders: Vec<String> = self
            .settings()
            .iter()
            .map(|variant| folder_name(&variant.name))
            .collect();
        let twice = |folder| {
            ConfigError(format!(
                "two settings are called `{folder}`, or would be as a folder's name"
            ))
        };
        first_repeated(&folders).map_or(Ok(()), |folder| Err(twice(folder)))
    }

    /// Checks that what has no data asks nothing of data.
    ///
    /// # Errors
    /// Names the first key that does.
    pub(crate) fn check_training(&self) -> Result<(), ConfigError> {
        let of_training = [
            ("data", self.data.is_some()),
            ("partition_file", self.partition_file.is_some()),
            ("evaluate_every", self.evaluate_every.is_some()),
            ("global_test", self.global_test.is_some()),
        ];
        match of_training.into_iter().find(|(_, is_there)| *is_there) {
            Some((key, _)) if self.no_training => {
                Err(ConfigError(format!("without training there is no `{key}`")))
            }
            _ if self.compare_plans && !self.no_training => Err(ConfigError(
                "plans are compared without training: `no_training`".into(),
            )),
            _ if self.toy_floats.is_some() && !self.no_training => Err(ConfigError(
                "`toy_floats` is of what is not trained: `no_training`".into(),
            )),
            _ => Ok(()),
        }
    }

    /// Returns all settings: each variant with each combination of the grid. Without either, one without a name.
    pub(crate) fn settings(&self) -> Vec<Variant> {
        let mut settings = self.variants.clone();
        if settings.is_empty() {
            settings.push(Variant {
                name: String::new(),
                set: Vec::new(),
            });
        }
        for (key, values) in &self.grid {
            let with = |variant: &Variant, value: &String| {
                let short = key.rsplit('.').next().unwrap_or(key);
                let added = if key == "algorithm" {
                    value.clone()
                } else {
                    format!("{short}={value}")
                };
                let name = [variant.name.as_str(), &added]
                    .into_iter()
                    .filter(|part| !part.is_empty());
                let mut set = variant.set.clone();
                set.push(Assignment::new(key, value));
                Variant {
                    name: name.collect::<Vec<_>>().join(" "),
                    set,
                }
            };
            settings = settings
                .iter()
                .flat_map(|variant| values.iter().map(|value| with(variant, value)))
                .collect();
        }
        settings
    }
}

/// What the folder of a setting is called.
pub(crate) fn folder_name(name: &str) -> String {
    name.chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || ".=-".contains(c) {
                c
            } else {
                '_'
            }
        })
        .collect()
}

fn first_repeated<T: PartialEq>(values: &[T]) -> Option<&T> {
    values
        .iter()
        .enumerate()
        .find(|(at, value)| values[..*at].contains(value))
        .map(|(_, value)| value)
}

fn read_variant(value: &toml::Value) -> Result<Variant, ConfigError> {
    let wrong = || ConfigError("a variant is `name = \"…\"` and `set = { key = value }`".into());
    let table = value.as_table().ok_or_else(wrong)?;
    if let Some(key) = table
        .keys()
        .find(|key| !["name", "set"].contains(&key.as_str()))
    {
        return Err(ConfigError(unknown_name(
            "key of a variant",
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
    use super::*;

    #[test]
    fn a_grid_multiplies_the_variants() {
        let text = "seeds = [1, 2]\n[set]\nmodel = { by_node = ['cnn-1', 'cnn-2'] }\nrounds = 3\ntraining = { learning_rate = 0.5 }\n\
                    [grid]\nalgorithm = [\"local\", \"fedavg\"]\n\"data.partition\" = [\"iid\"]\n\
                    [[variant]]\nname = \"a\"\nset = { nodes = 4 }\n[[variant]]\nname = \"b\"\nset = { nodes = 5 }";
        let experiment = Experiment::parse(text, Path::new("")).unwrap();
        let set: Vec<String> = experiment
            .set
            .iter()
            .map(|set| format!("{}={}", set.key, set.value))
            .collect();
        assert_eq!(
            set,
            [
                "model.by_node=[\"cnn-1\", \"cnn-2\"]",
                "rounds=3",
                "training.learning_rate=0.5"
            ]
        );
        let names: Vec<String> = experiment
            .settings()
            .into_iter()
            .map(|variant| variant.name)
            .collect();
        assert_eq!(
            names,
            [
                "a local partition=iid",
                "a fedavg partition=iid",
                "b local partition=iid",
                "b fedavg partition=iid"
            ]
        );
        assert_eq!(Experiment::default().settings().len(), 1);
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
            assert_eq!(error(seeds), "`seeds`: expected a list of whole numbers");
        }
        assert_eq!(
            error("variant = []"),
            "`variant`: expected `[[variant]]` tables"
        );
        assert_eq!(
            error("[grid]\nrounds = [1, 1]"),
            "the grid has `1` twice for `rounds`"
        );
        assert_eq!(
            error("no_training = true\ndata = 'digits'"),
            "without training there is no `data`"
        );
        assert!(error("compare_plans = true").contains("`no_training`"));
        assert!(error("toy_floats = 9").contains("`no_training`"));
        assert_eq!(
            error("no_training = true\ntoy_floats = 0"),
            "`toy_floats`: expected a whole number of at least 1"
        );
        assert_eq!(
            error("[set]\nrounds = [[1]]"),
            "`rounds`: expected a single value"
        );
        assert!(error("[[variant]]\nnames = \"x\"").contains("did you mean `name`"));
    }

    #[test]
    fn a_row_is_what_its_name_says() {
        let check = |text: &str, flags: &[&str]| {
            let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
            Experiment::parse(text, Path::new(""))
                .unwrap()
                .check(&flags)
                .map_err(|error| error.0)
        };
        let grid =
            "seeds = [1]\n[set]\nnodes = 2\n[grid]\nrounds = [1, 2]\n\"hyper.mu\" = [0.1, 0.2]";
        assert_eq!(check(grid, &["nodes", "seed"]), Ok(()));
        assert!(
            check(grid, &["rounds"])
                .unwrap_err()
                .starts_with("`rounds` is what the rows differ in")
        );
        assert!(
            check(grid, &["mu"])
                .unwrap_err()
                .starts_with("`hyper.mu` is what the rows differ in")
        );
        let variant = "[[variant]]\nname = \"a\"\nset = { rounds = 2 }";
        assert!(check(variant, &["rounds"]).is_err());
        assert!(
            check(&format!("[grid]\nrounds = [1]\n{variant}"), &[])
                .unwrap_err()
                .contains("set by a variant")
        );
        assert_eq!(
            check("seeds = [1, 2, 1]", &[]).unwrap_err(),
            "seed 1 is there twice"
        );
        assert!(
            check("seeds = [1]\n[grid]\nseed = [3]", &[])
                .unwrap_err()
                .contains("`seeds`")
        );
        assert_eq!(
            check(&format!("{variant}\n{variant}"), &[])
                .unwrap_err()
                .lines()
                .count(),
            1
        );
        let alike =
            variant.replace("\"a\"", "\"P≥1\"") + "\n" + &variant.replace("\"a\"", "\"P≤1\"");
        assert!(
            check(&alike, &[])
                .unwrap_err()
                .starts_with("two settings are called `P_1`")
        );
    }

    #[test]
    fn an_axis_takes_the_place_of_one_with_the_same_key() {
        let mut experiment =
            Experiment::parse("[grid]\nmu = [1, 2]\nrounds = [3]", Path::new("")).unwrap();
        experiment.add_axis("hyper.mu", vec!["5".into()]).unwrap();
        let names: Vec<String> = experiment
            .settings()
            .into_iter()
            .map(|variant| variant.name)
            .collect();
        assert_eq!(names, ["mu=5 rounds=3"]);
    }
}
