//! The aggregator's own settings: `fedboot.toml`, the `FEDBOOT_*` variables and the flags of `fedboot start`, from one
//! definition, as those of a node are.

use std::path::PathBuf;

use fednode_config::layers::{Settings, Variables};
use fednode_config::{ConfigError, TableDoc, config};
use fednode_runtime::settings::{self, Log, Network};

/// Read without being named, if it is in the current folder.
pub(crate) const DEFAULT_FILE: &str = "fedboot.toml";
/// Where it can be reached, unless somebody says otherwise.
const LISTEN: &str = "/ip4/0.0.0.0/tcp/4001";
/// Most peers: it introduces all nodes to each other.
const MAX_PEERS: usize = 1024;

config! {
    /// The aggregator's own settings. What all members must agree on is in federation.toml.
    /// Flags of `fedboot start` override FEDBOOT_* variables (FEDBOOT_LISTEN=/ip4/0.0.0.0/tcp/4001), those override this
    /// file. Flags and variables know no tables: `key` of [network] is --network-key and FEDBOOT_NETWORK_KEY.
    /// Paths are relative to the folder of this file. An empty text stands for none.
    pub(crate) struct Config {
        /// The federation's spec, the same file as every node has.
        spec: PathBuf = "federation.toml".into() => "FILE",
        /// Whether to stop when all rounds are done and nobody needs this process any more.
        exit_when_finished: bool = false,
        /// Most seconds to go on serving after the last round before that stop (0 to 86400).
        linger_seconds: f64 = 600.0 => "SECONDS",
        /// How the aggregator is reached, and whom it meets.
        @table network: Network = Network {
            listen: vec![LISTEN.into()],
            max_peers: MAX_PEERS,
            relay: true,
            ..Network::default()
        },
        /// What is kept on disk.
        @table storage: Storage = Storage::default(),
        /// How log lines are written.
        @table log: Log = Log::default(),
    }
}

config! {
    /// What is kept on disk.
    pub(crate) struct Storage {
        /// The folder for everything that must survive a restart: key, checkpoints, blobs.
        state: PathBuf = "fedboot-state".into() => "DIR",
        /// Most mebibytes of blobs kept on disk (at least 1).
        quota_mib: u64 = 2048 => "MIB",
        /// Most mebibytes of the flight recorder (0 to 4096): the inputs of the last rounds, for `fednode replay`. 0 records
        /// nothing.
        recording_mib: f64 = 16.0 => "MIB",
    }
}

impl Settings for Config {
    const VARIABLES: Variables = Variables {
        prefix: "FEDBOOT_",
        others: &["FEDBOOT_CONFIG"],
        renamed: &[],
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
        )
    }

    fn old_flag(key: &str) -> Option<&'static str> {
        (key == "log_format").then_some("log")
    }
}

#[cfg(test)]
mod tests {
    use fednode_config::layers;

    use super::*;

    fn with(name: &str, value: &str) -> Result<Config, String> {
        let variables = [(name.to_owned(), value.to_owned())];
        let resolved = layers::resolve::<Config>(&toml::Table::new(), variables, None);
        resolved
            .map(|resolved| resolved.settings)
            .map_err(|error| error.0)
    }

    #[test]
    fn a_misspelt_variable_is_found_and_those_of_a_service_are_not() {
        for fine in [
            "FEDBOOT_PORT",
            "FEDBOOT_SERVICE_PORT_P2P",
            "FEDBOOT_PORT_4001_TCP_ADDR",
        ] {
            assert_eq!(with(fine, "7"), Ok(Config::default()), "{fine}");
        }
        assert_eq!(with("FEDBOOT_MAX_PEERS", "7").unwrap().network.max_peers, 7);
        assert_eq!(
            with("FEDBOOT_MAXPEERS", "7").unwrap_err(),
            "unknown variable `FEDBOOT_MAXPEERS`: did you mean `FEDBOOT_MAX_PEERS`?"
        );
    }

    #[test]
    fn settings_keep_the_aggregators_own_defaults() {
        let config = with("FEDBOOT_MDNS", "true").unwrap();
        assert!(config.network.mdns);
        assert_eq!(config.network.listen, [LISTEN]);
        assert_eq!(
            with("FEDBOOT_QUOTA_MIB", "0").unwrap_err(),
            "`quota_mib` is out of range: it must be at least 1"
        );
    }
}
