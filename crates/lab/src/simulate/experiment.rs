//! Experiments: many simulations with one table, described by a TOML file or by a grid on the command line.
//!
//! ```toml
//! data = "fashion-mnist"
//! # own = ["csv:a.csv", "csv:b.csv"]   # in place of `data`: each node's own
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
//! [[regime]]                           # named settings, each run with every variant: other data, for example
//! name = "rotated"
//! set = { "data.partition" = "iid+rotated:4:2" }
//!
//! [[variant]]                          # or settings with a name of their own
//! name = "FedMoE-DA, P = 5"
//! set = { algorithm = "fedmoe-da", peers_per_expert = 5 }
//! ```
//!
//! `lies` in a `set` says which nodes lie and how ([`super::lies`]).
//!
//! Or the protocol alone, `toy_floats = 0`, for which there is no data. A key has one place: what a row of the table
//! is named after cannot be set for all of them too.

mod file;

use fednode_core::ConfigError;

use fednode_cli::dotted::{Assignment, bare};

/// What an experiment's file says.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Experiment {
    /// The data source.
    pub(crate) data: Option<String>,
    /// Each node's own data source, instead of one that is divided.
    pub(crate) own: Vec<String>,
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
    /// Whether its plans are compared with those of somebody who knows all proxies.
    pub(crate) compare_plans: bool,
    /// Floats in each part of the toys that take the models' place, if the protocol is played alone; 0 for a few.
    pub(crate) toy_floats: Option<u32>,
    /// Settings of all runs.
    pub(crate) set: Vec<Assignment>,
    /// Axes of the grid: a key and its values.
    pub(crate) grid: Vec<(String, Vec<String>)>,
    /// Settings with a name that each variant is run with.
    pub(crate) regimes: Vec<Variant>,
    /// Settings with a name.
    pub(crate) variants: Vec<Variant>,
}

/// Settings under one name.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Variant {
    /// What the table calls it.
    pub(crate) name: String,
    /// What is set.
    pub(crate) set: Vec<Assignment>,
}

impl Variant {
    /// Returns it with more in its name and in what is set.
    fn with(&self, name: &str, set: &[Assignment]) -> Self {
        let names = [self.name.as_str(), name].into_iter();
        let names: Vec<&str> = names.filter(|part| !part.is_empty()).collect();
        Self {
            name: names.join(" "),
            set: [&self.set, set].concat(),
        }
    }

    /// Returns the keys that these set.
    fn keys(variants: &[Self]) -> impl Iterator<Item = &String> {
        let set = variants.iter().flat_map(|variant| &variant.set);
        set.map(|set| &set.key)
    }
}

impl Experiment {
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
        let keys_of = Variant::keys;
        let in_variants = || keys_of(&self.variants).chain(keys_of(&self.regimes));
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
                "`{key}` is set by a variant or a regime and has a list of values too"
            )));
        }
        if let Some(key) = keys_of(&self.regimes)
            .find(|of_regime| keys_of(&self.variants).any(|key| bare(key) == bare(of_regime)))
        {
            return Err(ConfigError(format!(
                "`{key}` is set by a regime and by a variant too"
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
            ("own", !self.own.is_empty()),
            ("partition_file", self.partition_file.is_some()),
            ("evaluate_every", self.evaluate_every.is_some()),
            ("global_test", self.global_test.is_some()),
        ];
        match of_training.into_iter().find(|(_, is_there)| *is_there) {
            Some((key, _)) if self.toy_floats.is_some() => {
                Err(ConfigError(format!("without training there is no `{key}`")))
            }
            _ if self.compare_plans && self.toy_floats.is_none() => Err(ConfigError(
                "plans are compared without training: `toy_floats`".into(),
            )),
            _ => Ok(()),
        }
    }

    /// Returns all settings: each regime with each variant and each combination of the grid. Without any, one without a
    /// name.
    pub(crate) fn settings(&self) -> Vec<Variant> {
        let mut settings = vec![Variant::default()];
        for named in [&self.regimes, &self.variants] {
            if !named.is_empty() {
                settings = settings
                    .iter()
                    .flat_map(|setting| {
                        named.iter().map(|more| setting.with(&more.name, &more.set))
                    })
                    .collect();
            }
        }
        for (key, values) in &self.grid {
            let with = |variant: &Variant, value: &String| {
                let short = key.rsplit('.').next().unwrap_or(key);
                let added = if key == "algorithm" {
                    value.clone()
                } else {
                    format!("{short}={value}")
                };
                variant.with(&added, &[Assignment::new(key, value)])
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_grid_multiplies_the_variants() {
        let text = "seeds = [1, 2]\n[set]\nmodel = { name = ['cnn-1', 'cnn-2'] }\nrounds = 3\ntraining = { learning_rate = 0.5 }\n\
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
                "model.name=[\"cnn-1\", \"cnn-2\"]",
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
    fn every_regime_is_run_with_every_variant() {
        let regimes = "[[regime]]\nname = 'skewed'\nset = { nodes = 4, data.partition = 'dirichlet:0.1' }\n\
                       [[regime]]\nname = 'rotated'\nset = { data.partition = 'iid+rotated:4:2' }\n";
        let variants = "[[variant]]\nname = 'a'\nset = { rounds = 1 }\n[[variant]]\nname = 'b'\nset = { rounds = 2 }";
        let parse = |text: &str| Experiment::parse(text, Path::new("")).unwrap();
        let settings = parse(&format!("{regimes}{variants}")).settings();
        let names: Vec<&str> = settings
            .iter()
            .map(|setting| setting.name.as_str())
            .collect();
        assert_eq!(names, ["skewed a", "skewed b", "rotated a", "rotated b"]);
        let set: Vec<&str> = settings[1].set.iter().map(|set| set.key.as_str()).collect();
        assert_eq!(set, ["data.partition", "nodes", "rounds"]);
        assert_eq!(parse(regimes).settings().len(), 2);

        let refused = |text: &str, flags: &[String]| parse(text).check(flags).unwrap_err().0;
        let twice = format!("{regimes}[[variant]]\nname = 'c'\nset = {{ nodes = 5 }}");
        assert_eq!(
            refused(&twice, &[]),
            "`nodes` is set by a regime and by a variant too"
        );
        assert!(
            refused(regimes, &["nodes".into()]).starts_with("`nodes` is what the rows differ in")
        );
        let listed = format!("{regimes}[grid]\nnodes = [1, 2]");
        assert!(refused(&listed, &[]).contains("has a list of values too"));
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
