//! Where a node's state folder is, for commands that only look at it.

use std::path::PathBuf;

use fednode_config::layers::set;
use fednode_runtime::control::Client;
use fednode_runtime::exit::ExitCode;
use fednode_runtime::membership;

use crate::config::Config;
use crate::failure::OrFail;
use crate::layers;

/// How a state folder is named.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct StateArgs {
    /// The node's state folder [default: `state` in table `storage` of node.toml, else `state`].
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// The node's node.toml.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl StateArgs {
    /// Returns the settings of the node that is meant.
    ///
    /// # Errors
    /// Fails on a wrong configuration.
    pub fn config(&self) -> anyhow::Result<Config> {
        let mut flags = toml::Table::new();
        if let Some(state) = &self.state {
            set::<Config>(&mut flags, "state", state.to_string_lossy().into_owned());
        }
        layers::resolve(&flags, self.config.as_deref())
    }

    /// Returns the folder.
    ///
    /// # Errors
    /// As [`StateArgs::config`].
    pub fn folder(&self) -> anyhow::Result<PathBuf> {
        Ok(self.config()?.storage.state)
    }

    /// Finds the node that runs on the folder.
    ///
    /// # Errors
    /// Says that none runs, and what to do.
    pub fn client(&self) -> anyhow::Result<Client> {
        let folder = self.folder()?;
        // What is printed calls members by their names.
        _ = membership::look(&folder);
        Client::of(&folder).or_fail(ExitCode::State)
    }
}
