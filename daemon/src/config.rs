//! My own settings: `node.toml`, the `FEDNODE_*` variables, and how flags, variables, file and defaults are layered.
//!
//! ```text
//! flags  >  FEDNODE_* variables  >  node.toml  >  defaults          (the later a layer, the weaker)
//! ```
//!
//! [`Config`] is the resolved result. What a user typed is [`crate::command::start::Args`], another type. The layers
//! meet as TOML tables, so a key exists in one place only, here, and every layer is checked by the same rules: an
//! unknown key or variable is an error that names the nearest valid one. What all members must agree on is not here
//! but in `federation.toml` ([`crate::federation`]).

#![allow(
    unreachable_pub,
    reason = "the configuration macro declares public structs"
)]

use std::path::Path;

use fednode_core::config::{self, ConfigError, unknown_name};
use fednode_data::source;
use fednode_net::Compression;

/// What every variable of ours begins with.
const PREFIX: &str = "FEDNODE_";
/// Variables that are no key of `node.toml`: where that file is, where the data readers look for downloaded data sets,
/// and which log lines are written (`debug`, `fednode_net=trace`).
const OTHER_VARIABLES: [&str; 3] = ["FEDNODE_CONFIG", "FEDNODE_DATA", "FEDNODE_LOG"];
/// The variable of key `data`, whose own name means the folder of data sets.
const DATA_VARIABLE: &str = "FEDNODE_DATA_SOURCE";
/// Keys that hold a path. In a file they are relative to that file's folder, elsewhere to the current one.
const PATH_KEYS: [&str; 6] = [
    "spec",
    "partition_file",
    "initial",
    "state",
    "network_key",
    "allow",
];

fednode_core::config! {
    /// One node's own settings. Nothing here need be the same on other nodes; what must be is in federation.toml.
    /// Flags of `fednode start` override FEDNODE_* variables (FEDNODE_DEVICE=cpu), those override this file.
    /// Paths are relative to the folder of this file.
    pub struct Config {
        /// The federation's spec, the same file for all members.
        spec: String = "federation.toml".into(),
        /// Where the data comes from: `digits` (built in), `fashion-mnist`, `mnist:DIR`, `idx:DIR`, `cifar10:DIR`,
        /// `cifar100:DIR`, `folder:DIR` (images, one folder per class), `csv:FILE`, `ag-news:DIR`, `text:FILE`. Its variable is
        /// FEDNODE_DATA_SOURCE.
        data: String = "digits".into(),
        /// Which part of the data is mine, `I/N`, counting from 1; empty when `data` is all mine (partition `own`).
        shard: String = String::new(),
        /// The file of index lists when the spec's partition is `file`.
        partition_file: String = String::new(),
        /// The file of the parameters that the spec's `fingerprints.initial` names; empty if the federation starts from drawn ones.
        initial: String = String::new(),
        /// The folder for everything that must survive a restart: key, checkpoints, blobs, ledger, final model.
        state: String = "state".into(),
        /// This node's own model, where its algorithm shares nothing of it; empty for what the spec says.
        model: String = String::new(),
        /// What to train on: `auto` (a GPU if one works, else the CPU), `vulkan`, `vulkan:1` (the second one), `cpu`.
        device: String = "auto".into(),
        /// Threads for training on the CPU; 0 takes every core.
        threads: usize = 0,
        /// Addresses to listen on. Port 0 lets the system choose.
        listen: Vec<String> = vec!["/ip4/0.0.0.0/tcp/0".into()],
        /// Addresses under which others reach this node, where it cannot know them itself (behind a port forward).
        external: Vec<String> = Vec::new(),
        /// Members to join through, any of them: `/ip4/192.0.2.7/tcp/4001/p2p/12D3KooW…`.
        peers: Vec<String> = Vec::new(),
        /// A file with the federation's pre-shared network key; empty for none.
        network_key: String = String::new(),
        /// A file with the node ids that may take part, one a line; empty lets everybody in who has the spec.
        allow: String = String::new(),
        /// Whether to look for members on the local network.
        mdns: bool = false,
        /// How experts and other blobs come here: `zstd` (packed against the version held before: the same numbers in
        /// fewer bytes, for about 2 ms of processor time per MB, both sides together) or `off` (as they are).
        compression: String = "zstd".into(),
        /// Where the control API listens, `127.0.0.1:0` (port chosen by the system), or `off`.
        control: String = "127.0.0.1:0".into(),
        /// Most mebibytes of other nodes' experts kept on disk.
        quota_mib: u64 = 10_240,
        /// Most mebibytes of memory for what frozen parts of the model make of the training samples, computed once where only a
        /// head, a gate or a pool learns (a pool needs as much again, at most, for validation samples). What does not fit lies in
        /// a file in the state folder while it is needed, which takes half of the free disk at most.
        feature_memory_mib: u64 = 1024,
        /// How log lines are written: `human` or `json`.
        log_format: String = "human".into(),
        /// Whether to stop after the last round instead of serving experts to others.
        exit_when_finished: bool = false,
        /// Rounds between two evaluations before the exchange and on validation samples; the last round always has them.
        /// After the exchange every round is evaluated on the test samples.
        evaluate_every: u32 = 10,
        /// Whether others may have this node's private module, where the federation pools them after the last round. A node
        /// that keeps its module has a pool all the same.
        share_module: bool = true,
        /// Most seconds to go on serving after the last round before that stop, so that slower nodes get what they need.
        linger_seconds: f64 = 600.0,
    }
}

/// A `node.toml` as found: its text and the folder its paths are relative to.
#[derive(Debug, Clone)]
pub(crate) struct File<'a> {
    /// What it contains.
    pub(crate) text: &'a str,
    /// The folder it lies in.
    pub(crate) folder: &'a Path,
}

/// Tells whether a variable is one of a node's settings.
pub(crate) fn is_setting(name: &str) -> bool {
    let is_meant = name
        .strip_prefix(PREFIX)
        .is_some_and(|rest| !config::is_of_a_service(rest));
    is_meant && !OTHER_VARIABLES.contains(&name)
}

impl Config {
    /// Layers flags over variables over a file over the defaults.
    ///
    /// # Errors
    /// One line that names the layer and the key.
    pub(crate) fn resolve(
        flags: toml::Table,
        variables: impl IntoIterator<Item = (String, String)>,
        file: Option<File<'_>>,
    ) -> Result<Self, ConfigError> {
        let mut table = defaults();
        if let Some(file) = file {
            // Parsed as a whole first: only then does an error know its line.
            config::parse::<Self>(file.text)?;
            table.extend(rebased(
                file.text
                    .parse()
                    .map_err(|_| ConfigError("not a TOML file".into()))?,
                file.folder,
            ));
        }
        table.extend(from_variables(variables)?);
        table.extend(flags);
        let resolved = Self::try_from_table(table)?;
        resolved.validate()?;
        Ok(resolved)
    }

    /// Writes the commented `node.toml`.
    pub(crate) fn to_toml(&self) -> String {
        config::sample(self, &Self::doc())
    }

    fn try_from_table(table: toml::Table) -> Result<Self, ConfigError> {
        let text = toml::to_string(&table).map_err(|error| ConfigError(error.to_string()))?;
        // Line numbers of a text that nobody wrote would mislead.
        config::parse(&text).map_err(|error| {
            ConfigError(
                error
                    .0
                    .split_once(": ")
                    .map_or(error.0.clone(), |(_, message)| message.to_owned()),
            )
        })
    }

    fn validate(&self) -> Result<(), ConfigError> {
        let rules = [
            (
                ["human", "json"].contains(&self.log_format.as_str()),
                "log_format",
                "`human` or `json`",
            ),
            (
                self.compression.parse::<Compression>().is_ok(),
                "compression",
                "`off` or `zstd`",
            ),
            (self.threads <= 4096, "threads", "at most 4096"),
            (self.evaluate_every >= 1, "evaluate_every", "at least 1"),
            (self.quota_mib >= 1, "quota_mib", "at least 1"),
            (
                self.feature_memory_mib >= 1,
                "feature_memory_mib",
                "at least 1",
            ),
            (
                (0.0..=86_400.0).contains(&self.linger_seconds),
                "linger_seconds",
                "0 to 86400",
            ),
            (
                self.control == "off" || self.control.parse::<std::net::SocketAddr>().is_ok(),
                "control",
                "an address as `127.0.0.1:0`, or `off`",
            ),
        ];
        match rules.into_iter().find(|(holds, ..)| !holds) {
            Some((_, key, range)) => Err(ConfigError(format!(
                "`{key}` is out of range: it must be {range}"
            ))),
            None => Ok(()),
        }
    }
}

fn defaults() -> toml::Table {
    toml::Table::try_from(Config::default()).expect("a configuration is a TOML table")
}

/// Makes the paths of a file relative to the current folder.
fn rebased(mut table: toml::Table, folder: &Path) -> toml::Table {
    for key in PATH_KEYS {
        if let Some(toml::Value::String(path)) = table.get_mut(key)
            && !path.is_empty()
        {
            *path = within(folder, path);
        }
    }
    if let Some(toml::Value::String(data)) = table.get_mut("data") {
        *data = source::with_paths(data, |path| within(folder, path));
    }
    table
}

fn within(folder: &Path, path: &str) -> String {
    folder.join(path).to_string_lossy().into_owned()
}

/// Turns `FEDNODE_*` variables into a table; a value is read as the type that its key has.
fn from_variables(
    variables: impl IntoIterator<Item = (String, String)>,
) -> Result<toml::Table, ConfigError> {
    let defaults = defaults();
    let mut table = toml::Table::new();
    for (name, text) in variables {
        if !is_setting(&name) {
            continue;
        }
        let key = if name == DATA_VARIABLE {
            "data".into()
        } else {
            name[PREFIX.len()..].to_ascii_lowercase()
        };
        let Some(default) = defaults.get(&key) else {
            return Err(unknown_variable(&name, &defaults));
        };
        let value = typed(&text, default)
            .ok_or_else(|| ConfigError(format!("`{name}={text}`: expected {}", kind(default))))?;
        table.insert(key, value);
    }
    Ok(table)
}

fn unknown_variable(name: &str, defaults: &toml::Table) -> ConfigError {
    let keys = defaults.keys().filter(|key| *key != "data");
    let own = keys.map(|key| format!("{PREFIX}{}", key.to_ascii_uppercase()));
    let valid: Vec<String> = own
        .chain([DATA_VARIABLE.to_owned()])
        .chain(OTHER_VARIABLES.map(str::to_owned))
        .collect();
    let valid: Vec<&str> = valid.iter().map(String::as_str).collect();
    ConfigError(unknown_name("variable", name, &valid))
}

/// Reads a text as the type of `like`; lists are separated by commas.
fn typed(text: &str, like: &toml::Value) -> Option<toml::Value> {
    let list = || {
        text.split(',')
            .map(str::trim)
            .filter(|item| !item.is_empty())
    };
    match like {
        toml::Value::String(_) => Some(toml::Value::String(text.to_owned())),
        toml::Value::Integer(_) => text.parse().ok().map(toml::Value::Integer),
        toml::Value::Float(_) => text.parse().ok().map(toml::Value::Float),
        toml::Value::Boolean(_) => text.parse().ok().map(toml::Value::Boolean),
        toml::Value::Array(_) => Some(toml::Value::Array(
            list().map(|item| item.to_owned().into()).collect(),
        )),
        toml::Value::Datetime(_) | toml::Value::Table(_) => None,
    }
}

fn kind(value: &toml::Value) -> &'static str {
    match value {
        toml::Value::Integer(_) => "a whole number",
        toml::Value::Float(_) => "a number",
        toml::Value::Boolean(_) => "`true` or `false`",
        _ => "a text",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(text: &str) -> toml::Table {
        text.parse().unwrap()
    }

    fn variables(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn stronger_layers_win() {
        let text = "device = \"file\"\nthreads = 1\nshard = \"1/2\"\nstate = \"s\"\ndata = \"csv:ward.csv,label=dx\"";
        let file = || {
            Some(File {
                text,
                folder: Path::new("/etc/fednode"),
            })
        };
        let environment = variables(&[
            ("FEDNODE_DEVICE", "variable"),
            ("FEDNODE_THREADS", "2"),
            ("HOME", "/root"),
        ]);
        let resolved = Config::resolve(table("device = \"flag\""), environment, file()).unwrap();
        assert_eq!(
            (
                resolved.device.as_str(),
                resolved.threads,
                resolved.shard.as_str()
            ),
            ("flag", 2, "1/2")
        );
        assert_eq!(resolved.state, "/etc/fednode/s");
        assert_eq!(resolved.data, "csv:/etc/fednode/ward.csv,label=dx");
        assert_eq!(resolved.log_format, "human");
        // A path that no file gave stays relative to the current folder.
        assert_eq!(resolved.spec, "federation.toml");
    }

    #[test]
    fn variables_have_the_type_of_their_key() {
        let environment = variables(&[
            ("FEDNODE_PEERS", "/ip4/1.2.3.4/tcp/1, /ip4/1.2.3.4/tcp/2"),
            ("FEDNODE_MDNS", "true"),
            ("FEDNODE_LINGER_SECONDS", "3"),
            ("FEDNODE_DATA", "/var/lib/datasets"),
            ("FEDNODE_DATA_SOURCE", "csv:x"),
        ]);
        let resolved = Config::resolve(toml::Table::new(), environment, None).unwrap();
        assert_eq!(resolved.peers, ["/ip4/1.2.3.4/tcp/1", "/ip4/1.2.3.4/tcp/2"]);
        assert!(resolved.mdns);
        assert_eq!(resolved.data, "csv:x");
        assert_eq!(resolved.linger_seconds.to_bits(), 3f64.to_bits());
        let error = Config::resolve(
            toml::Table::new(),
            variables(&[("FEDNODE_THREADS", "two")]),
            None,
        )
        .unwrap_err();
        assert_eq!(error.0, "`FEDNODE_THREADS=two`: expected a whole number");
    }

    #[test]
    fn unknown_keys_and_variables_offer_the_nearest() {
        let error = Config::resolve(
            toml::Table::new(),
            variables(&[("FEDNODE_DEVCIE", "cpu")]),
            None,
        )
        .unwrap_err();
        assert_eq!(
            error.0,
            "unknown variable `FEDNODE_DEVCIE`: did you mean `FEDNODE_DEVICE`?"
        );
        let file = File {
            text: "\nthreds = 1",
            folder: Path::new(""),
        };
        let error = Config::resolve(toml::Table::new(), [], Some(file)).unwrap_err();
        assert_eq!(
            error.0,
            "line 2: unknown key `threds`: did you mean `threads`?"
        );
    }

    #[test]
    fn names_what_is_out_of_range() {
        let error = Config::resolve(table("log_format = \"xml\""), [], None).unwrap_err();
        assert_eq!(
            error.0,
            "`log_format` is out of range: it must be `human` or `json`"
        );
        let error = Config::resolve(table("compression = \"lz4\""), [], None).unwrap_err();
        assert_eq!(
            error.0,
            "`compression` is out of range: it must be `off` or `zstd`"
        );
        let error = Config::resolve(table("control = \"localhost\""), [], None).unwrap_err();
        assert_eq!(
            error.0,
            "`control` is out of range: it must be an address as `127.0.0.1:0`, or `off`"
        );
    }

    #[test]
    fn sample_file_is_the_default_configuration() {
        let text = Config::default().to_toml();
        let file = File {
            text: &text,
            folder: Path::new(""),
        };
        assert_eq!(
            Config::resolve(toml::Table::new(), [], Some(file)).unwrap(),
            Config::default(),
            "{text}"
        );
    }
}
