//! My own settings: `node.toml`, the `FEDNODE_*` variables and the flags of `fednode start`, from one definition.
//!
//! ```text
//! flags  >  FEDNODE_* variables  >  node.toml  >  defaults          (the later a layer, the weaker)
//! ```
//!
//! [`Config`] is the resolved result. A key is declared here, or in a table that all members have
//! ([`fednode_runtime::settings`]), with its documentation, type and default; file, variable, flag and sample are made of
//! that. What all members must agree on is not here but in `federation.toml` ([`crate::federation`]).

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use fednode_config::layers::{self, Settings, Variables};
use fednode_config::{ConfigError, TableDoc, config, in_range, sample};
use fednode_data::{DataSource, source};
use fednode_runtime::releases::{self, OwnersBudget};
use fednode_runtime::settings::{self, Log, Network};

use crate::shard::Shard;

config! {
    /// One node's own settings. Nothing here need be the same on other nodes; what must be is in federation.toml.
    /// Flags of `fednode start` override FEDNODE_* variables (FEDNODE_DEVICE=cpu), those override this file. A key without a
    /// flag is set by `--set network.mdns=true`. Variables know no tables: `key` of [network] is FEDNODE_NETWORK_KEY.
    /// Paths are relative to the folder of this file. An empty text stands for none.
    pub struct Config {
        /// The federation's spec, the same file for all members.
        spec: PathBuf = "federation.toml".into() => "FILE",
        /// Which part of the data is mine, `I/N`, counting from 1; without it all of `data` is mine (partition `own`).
        shard: Option<Shard> = None => "I/N",
        /// The file of index lists when the spec's partition is `file`.
        partition_file: Option<PathBuf> = None => "FILE",
        /// The file of the parameters that the spec's `fingerprints.initial` names, where the federation starts from given ones.
        initial: Option<PathBuf> = None => "FILE",
        /// The ONNX file that the spec's `model.backbone` names, where the federation looks at images through one.
        backbone: Option<PathBuf> = None => "FILE",
        /// This node's own model, where its algorithm shares nothing of it; without it, what the spec says.
        model: Option<String> = None => "NAME",
        /// What to train on: `auto` (a GPU if one works, else the CPU), `vulkan`, `vulkan:1` (the second one), `cpu`.
        device: String = "auto".into() => "DEVICE",
        /// Threads for training on the CPU (at most 4096); 0 takes every core.
        threads: usize = 0 => "N",
        /// Whether to stop after the last round instead of serving experts to others. An endless federation has none.
        exit_when_finished: bool = false,
        /// Most seconds to go on serving after the last round before that stop, so that slower nodes get what they need
        /// (0 to 86400).
        linger_seconds: f64 = 600.0 => "SECONDS",
        /// Rounds between two evaluations before the exchange and on validation samples (at least 1); the last round always
        /// has them. After the exchange every round is evaluated on the test samples.
        evaluate_every: u32 = 10 => "ROUNDS",
        /// Whether others may have this node's private module, where the federation pools them after the last round. A node
        /// that keeps its module has a pool all the same.
        share_module: bool = true,
        /// Where to answer over HTTP with this node's model, as `fednode serve` does, from the first round on; nowhere if absent.
        /// Address and token are in `serve.json` of the state folder. Port 0 is one that the system chooses.
        serve: Option<SocketAddr> = None => "ADDRESS:PORT",
        /// Where the samples come from. `kind` names a reader, which has keys of its own. On a command line the source is one
        /// text, which may stand here too: data = "csv:ward.csv,label=dx". Its variable is FEDNODE_DATA_SOURCE.
        data: DataSource = DataSource::default() => "SOURCE",
        /// How this node is reached, and whom it meets.
        @table network: Network = Network::default(),
        /// What is kept on disk and in memory.
        @table storage: Storage = Storage::default(),
        /// What may leave this node of its data.
        @table privacy: Privacy = Privacy::default(),
        /// How log lines are written.
        @table log: Log = Log::default(),
    }
}

config! {
    /// What may leave this node of its data. `fednode privacy` shows what has left.
    pub struct Privacy {
        /// Most ε of everything that this node publishes, for one training sample more or less (0.05 to 1000, 0 for no bound).
        /// Nothing is published beyond it, and nothing at all in a federation that promises nothing.
        budget: f64 = 0.0 => "EPSILON",
        /// The probability with which that may fail (1e-12 to 0.01).
        delta: f64 = 1e-5,
        /// The file in which every release is counted; `privacy.json` in the state folder if absent. Give all federations of the
        /// same data the same file.
        releases: Option<PathBuf> = None => "FILE",
        /// Whether this node publishes statistics of fewer samples than numbers, of which members can tell who is in them. Without
        /// it such a node ends at its start.
        accept_exposure: bool = false,
    }
}

config! {
    /// What is kept on disk and in memory.
    pub struct Storage {
        /// The folder for everything that must survive a restart: key, checkpoints, blobs, ledger, final model.
        state: PathBuf = "state".into() => "DIR",
        /// Most mebibytes of other nodes' experts kept on disk (at least 1).
        quota_mib: u64 = 10_240 => "MIB",
        /// Most mebibytes of the flight recorder (0 to 4096): the inputs of the last rounds, for `fednode replay`. 0 records
        /// nothing.
        recording_mib: f64 = 16.0 => "MIB",
        /// Most mebibytes of memory (at least 1) for features: what frozen parts of the model make of the training samples.
        /// They are computed once where only a head, a gate or a pool learns. A pool needs as much again, at most, for
        /// validation samples. Features that do not fit lie in a file in the state folder while they are needed. The file
        /// takes half of the free disk at most.
        feature_memory_mib: u64 = 1024 => "MIB",
    }
}

/// The keys that have a flag of their own: what is typed every day.
const FLAGS: [&str; 17] = [
    "spec",
    "shard",
    "partition_file",
    "initial",
    "backbone",
    "model",
    "device",
    "threads",
    "exit_when_finished",
    "data",
    "listen",
    "peers",
    "network_key",
    "allow",
    "organiser",
    "open",
    "state",
];

impl Settings for Config {
    const VARIABLES: Variables = Variables {
        prefix: "FEDNODE_",
        // Where the file is, where readers look for downloaded data sets, and which log lines are written
        // (`debug`, `fednode_net=trace`).
        others: &["FEDNODE_CONFIG", "FEDNODE_DATA", "FEDNODE_LOG"],
        renamed: &[("data", "FEDNODE_DATA_SOURCE")],
    };

    fn table() -> TableDoc {
        Self::doc()
    }

    fn validate(&self) -> Result<(), ConfigError> {
        settings::check(
            &self.network,
            self.storage.quota_mib,
            self.storage.recording_mib,
            self.linger_seconds,
        )?;
        in_range(&[
            (self.threads <= 4096, "threads", "at most 4096"),
            (self.evaluate_every >= 1, "evaluate_every", "at least 1"),
            (
                self.storage.feature_memory_mib >= 1,
                "feature_memory_mib",
                "at least 1",
            ),
            (
                self.privacy.budget == 0.0 || (0.05..=1000.0).contains(&self.privacy.budget),
                "privacy.budget",
                "0, or 0.05 to 1000",
            ),
            (
                (1e-12..=0.01).contains(&self.privacy.delta),
                "privacy.delta",
                "1e-12 to 0.01",
            ),
        ])
    }

    fn change_inner_paths(
        key: &str,
        value: toml::Value,
        change: &dyn Fn(&str) -> String,
    ) -> Result<toml::Value, ConfigError> {
        if key != "data" {
            return Ok(value);
        }
        let source: DataSource = value
            .try_into()
            .map_err(|error: toml::de::Error| ConfigError(error.message().to_owned()))?;
        let moved = source.with_paths(|path| change(&path.to_string_lossy()).into());
        Ok(moved.to_table().into())
    }

    fn has_flag(key: &str) -> bool {
        FLAGS.contains(&key)
    }

    fn help(key: &str) -> Option<String> {
        (key == "data").then(crate::data::help)
    }
}

/// Tells whether a variable is one of a node's settings.
pub fn is_setting(name: &str) -> bool {
    layers::is_setting::<Config>(name)
}

impl Config {
    /// Writes the commented `node.toml`, with the keys of the reader that is used.
    pub fn to_toml(&self) -> String {
        let mut doc = Self::doc();
        let data = doc.keys.iter_mut().find(|key| key.key == "data");
        let data = data.expect("a key of these settings");
        data.lines.push(" Readers:".into());
        data.lines.extend(
            source::KINDS
                .iter()
                .map(|kind| format!("   {:<14} {}", kind.name, kind.about)),
        );
        data.table = Some(self.data.doc());
        sample(self, &doc)
    }

    /// Returns what the owner allows to be released, and where that is counted.
    pub fn owners_budget(&self) -> OwnersBudget {
        let Privacy {
            budget,
            delta,
            releases,
            accept_exposure: _,
        } = &self.privacy;
        OwnersBudget {
            epsilon: Some(*budget).filter(|budget| *budget > 0.0),
            delta: *delta,
            file: releases
                .clone()
                .unwrap_or_else(|| self.state().join(releases::FILE)),
        }
    }

    /// Returns the state folder.
    pub fn state(&self) -> &Path {
        &self.storage.state
    }
}

#[cfg(test)]
mod tests {
    use fednode_config::layers::{File, Resolved};
    use fednode_net::Compression;
    use fednode_runtime::Control;
    use fednode_runtime::telemetry::Format;

    use super::*;

    fn resolve(
        flags: &str,
        variables: &[(&str, &str)],
        file: &str,
    ) -> Result<Resolved<Config>, ConfigError> {
        let variables = variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let folder = Path::new("/etc/fednode");
        let flags = flags.parse().unwrap();
        layers::resolve(&flags, variables, Some(File { text: file, folder }))
    }

    fn error(flags: &str, variables: &[(&str, &str)], file: &str) -> String {
        resolve(flags, variables, file).unwrap_err().0
    }

    #[test]
    fn stronger_layers_win_and_paths_begin_where_the_file_is() {
        let file = "device = \"file\"\nthreads = 1\nshard = \"1/2\"\n[storage]\nstate = \"s\"\n\
                    [data]\nkind = \"csv\"\nfile = \"ward.csv\"\nlabel = \"dx\"";
        let environment = [("FEDNODE_DEVICE", "variable"), ("FEDNODE_THREADS", "2")];
        let resolved = resolve("device = \"flag\"", &environment, file).unwrap();
        let config = resolved.settings;
        assert_eq!((config.device.as_str(), config.threads), ("flag", 2));
        assert_eq!(config.shard, Some(Shard { index: 1, of: 2 }));
        assert_eq!(config.state(), Path::new("/etc/fednode/s"));
        assert_eq!(
            config.data.to_string(),
            "csv:/etc/fednode/ward.csv,label=dx"
        );
        assert_eq!(config.log.format, Format::Human);
        // A path that no file gave stays relative to the current folder.
        assert_eq!(config.spec, Path::new("federation.toml"));
        assert_eq!(resolved.note, None);
    }

    #[test]
    fn a_file_of_the_old_form_says_the_same() {
        let old = "data = \"csv:ward.csv,label=dx\"\nshard = \"\"\npartition_file = \"\"\ninitial = \"\"\n\
                   model = \"\"\nstate = \"s\"\nlisten = [\"/ip4/0.0.0.0/tcp/1\"]\nnetwork_key = \"k\"\n\
                   allow = \"\"\nmdns = true\ncompression = \"off\"\ncontrol = \"off\"\nquota_mib = 7\n\
                   log_format = \"json\"";
        let new = "[data]\nkind = \"csv\"\nfile = \"ward.csv\"\nlabel = \"dx\"\n[storage]\nstate = \"s\"\n\
                   quota_mib = 7\n[network]\nlisten = [\"/ip4/0.0.0.0/tcp/1\"]\nkey = \"k\"\nmdns = true\n\
                   compression = \"off\"\ncontrol = \"off\"\n[log]\nformat = \"json\"";
        let (old, new) = (
            resolve("", &[], old).unwrap(),
            resolve("", &[], new).unwrap(),
        );
        assert_eq!(old.settings, new.settings);
        assert_eq!(old.settings.network.key, Some("/etc/fednode/k".into()));
        assert_eq!(old.settings.network.control, Control::Off);
        let note = old.note.unwrap();
        assert!(
            note.contains("`state`") && note.ends_with("[log], [network], [storage] now"),
            "{note}"
        );
        assert_eq!(new.note, None);
    }

    #[test]
    fn the_variable_of_the_data_is_not_that_of_their_folder() {
        let environment = [
            ("FEDNODE_DATA", "/var/lib/datasets"),
            ("FEDNODE_DATA_SOURCE", "csv:x"),
            ("FEDNODE_COMPRESSION", "off"),
        ];
        let config = resolve("", &environment, "[data]\nkind = \"digits\"").unwrap();
        assert_eq!(config.settings.data.to_string(), "csv:x");
        assert_eq!(config.settings.network.compression, Compression::Off);
        assert_eq!(
            error("", &[("FEDNODE_DEVCIE", "cpu")], ""),
            "unknown variable `FEDNODE_DEVCIE`: did you mean `FEDNODE_DEVICE`?"
        );
    }

    #[test]
    fn variables_that_are_not_called_as_their_keys_are_in_the_book() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../docs/how-to/variables.md"
        );
        let page = std::fs::read_to_string(path).unwrap();
        let doc = Config::doc();
        let entries = doc.entries();
        let flat = entries
            .iter()
            .filter(|entry| entry.doc.flat != entry.doc.key);
        let flat = flat.map(|entry| format!("FEDNODE_{}", entry.doc.flat.to_uppercase()));
        let Variables {
            others, renamed, ..
        } = Config::VARIABLES;
        let others = others.iter().map(|name| (*name).to_owned());
        let renamed = renamed.iter().map(|(_, name)| (*name).to_owned());
        let all: Vec<String> = flat.chain(others).chain(renamed).collect();
        assert_eq!(all.len(), 6, "{all:?}");
        for name in all {
            assert!(page.contains(&format!("`{name}`")), "{name}");
        }
    }

    #[test]
    fn error_in_a_data_table_names_its_line() {
        assert_eq!(
            error(
                "",
                &[],
                "\n[data]\nkind = \"csv\"\nfile = \"x\"\nlable = \"y\""
            ),
            "line 2: unknown key `lable`: did you mean `label`?"
        );
        let wrong = error("", &[], "data = \"cvs:x\"");
        assert!(
            wrong.starts_with("line 1: `cvs:x` is not a data source: did you mean `csv:FILE"),
            "{wrong}"
        );
        assert_eq!(
            error("", &[], "\nthreds = 1"),
            "line 2: unknown key `threds`: did you mean `threads`?"
        );
    }

    #[test]
    fn names_what_is_out_of_range() {
        let wrong = |flags: &str| error(flags, &[], "");
        assert_eq!(
            wrong("threads = 5000"),
            "`threads` is out of range: it must be at most 4096"
        );
        assert_eq!(
            wrong("[storage]\nquota_mib = 0"),
            "`quota_mib` is out of range: it must be at least 1"
        );
        assert_eq!(
            wrong("[log]\nformat = \"xml\""),
            "`log.format`: unknown value `xml`: expected one of `human`, `json`"
        );
        assert_eq!(
            wrong("[network]\ncontrol = \"localhost\""),
            "`network.control`: `localhost` is no address as `127.0.0.1:0`, nor `off`"
        );
        assert_eq!(
            wrong("shard = \"3/2\""),
            "`shard`: `3/2` is not of the form I/N with I from 1 to N, as 2/5"
        );
    }

    #[test]
    fn sample_file_is_read_back_with_the_keys_of_its_reader() {
        let config = Config {
            data: "csv:/ward.csv,label=dx".parse().unwrap(),
            ..Config::default()
        };
        for config in [Config::default(), config] {
            let text = config.to_toml();
            let file = File {
                text: &text,
                folder: Path::new(""),
            };
            let read = layers::resolve::<Config>(&toml::Table::new(), [], Some(file)).unwrap();
            assert_eq!(read.settings, config, "{text}");
            assert_eq!(read.note, None, "{text}");
        }
    }
}
