//! Where a node's state folder is, for commands that only look at it.

use std::path::{Path, PathBuf};

use fednode_config::layers::set;
use fednode_runtime::control::{self, Client};
use fednode_runtime::exit::ExitCode;
use fednode_runtime::membership;
use fednode_runtime::releases::{self, OwnersBudget};

use crate::config::Config;
use crate::failure::{OrFail, fail};
use crate::layers::{self, DEFAULT_FILE};

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
            set::<Config>(
                &mut flags,
                "state",
                meant(state).to_string_lossy().into_owned(),
            );
        }
        layers::resolve(&flags, self.config.as_deref())
    }

    /// Returns the folder.
    ///
    /// # Errors
    /// Fails on a wrong configuration, and on a folder that this user may not look into.
    pub fn folder(&self) -> anyhow::Result<PathBuf> {
        let folder = self.config()?.storage.state;
        refuse_closed(&folder)?;
        Ok(folder)
    }

    /// Names a folder.
    pub fn of(state: PathBuf) -> Self {
        Self {
            state: Some(state),
            config: None,
        }
    }

    /// Returns the settings of the node whose state folder is meant, if its node.toml is found: it was named, it is the one that
    /// commands find here, or it lies beside the folder. Another node's says nothing of this one.
    fn of_folder(&self) -> anyhow::Result<Option<Config>> {
        let place = |folder: &Path| folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
        let state = place(&self.config()?.storage.state);
        let beside = state.parent().map(|parent| parent.join(DEFAULT_FILE));
        let candidates = [
            self.config.clone().map(Some),
            Some(None),
            beside.filter(|file| file.is_file()).map(Some),
        ];
        for file in candidates.into_iter().flatten() {
            let found = layers::resolve(&toml::Table::new(), file.as_deref())?;
            if place(&found.storage.state) == state {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Returns the settings of the node that is meant, also where only its state folder is named.
    ///
    /// # Errors
    /// As [`StateArgs::config`].
    pub fn config_of_node(&self) -> anyhow::Result<Config> {
        match self.of_folder()? {
            Some(config) => Ok(config),
            None => self.config(),
        }
    }

    /// Returns what the owner allows to be released; nothing is bounded where no node.toml says so.
    ///
    /// # Errors
    /// As [`StateArgs::config`].
    pub fn owners_budget(&self) -> anyhow::Result<OwnersBudget> {
        if let Some(config) = self.of_folder()? {
            return Ok(config.owners_budget());
        }
        let state = self.folder()?;
        let state = state.canonicalize().unwrap_or(state);
        Ok(OwnersBudget {
            epsilon: None,
            delta: releases::DELTA,
            file: state.join(releases::FILE),
        })
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

/// Returns the state folder that is meant: whoever names the folder that `fednode init` or `fednode join` made means the one in it.
pub fn meant(folder: &Path) -> PathBuf {
    let is_one =
        |folder: &Path| folder.join("federation").is_file() || folder.join("key").is_file();
    let within = folder.join("state");
    if !is_one(folder) && (is_one(&within) || control::is_closed(&within)) {
        return within;
    }
    folder.to_owned()
}

/// Refuses a folder that this user may not look into, since it would seem to be empty.
///
/// # Errors
/// Says who may.
pub fn refuse_closed(folder: &Path) -> anyhow::Result<()> {
    if !control::is_closed(folder) {
        return Ok(());
    }
    let text = format!(
        "cannot look into `{}`: permission denied. Run this as the user that runs the node, with `sudo -u USER`",
        folder.display()
    );
    Err(fail(ExitCode::State, text))
}

/// Says that a folder holds nothing but its key, if that is so.
///
/// # Errors
/// Says how to start the node.
pub fn refuse_unused(state: &Path) -> anyhow::Result<()> {
    if state.join("federation").is_file() || !state.join("key").is_file() {
        return Ok(());
    }
    let node = state.parent().unwrap_or(Path::new(".")).join(DEFAULT_FILE);
    let text = format!(
        "no node has run with `{}` yet: start it first, with `fednode start --config {}`",
        state.display(),
        node.display()
    );
    Err(fail(ExitCode::State, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_that_init_made_stands_for_the_state_folder_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        assert_eq!(meant(folder.path()), folder.path());
        std::fs::create_dir(&state).unwrap();
        assert_eq!(meant(folder.path()), folder.path(), "it is empty");
        std::fs::write(state.join("federation"), "").unwrap();
        assert_eq!(meant(folder.path()), state);
        assert_eq!(meant(&state), state);
    }

    #[test]
    fn a_folder_that_may_not_be_entered_is_not_taken_for_an_empty_one() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        std::fs::create_dir(&state).unwrap();
        let allow = |mode| std::fs::set_permissions(&state, std::fs::Permissions::from_mode(mode));
        allow(0o000).unwrap();
        // Root may enter it all the same.
        if std::fs::read_dir(&state).is_err() {
            for named in [folder.path(), state.as_path()] {
                let error = StateArgs::of(named.to_owned()).folder().unwrap_err();
                let text = error.to_string();
                let shown = format!("`{}`: permission denied", state.display());
                assert!(text.contains(&shown) && text.contains("sudo -u"), "{text}");
            }
        }
        allow(0o700).unwrap();
        assert_eq!(StateArgs::of(state.clone()).folder().unwrap(), state);
    }

    #[test]
    fn a_state_folder_leads_to_the_settings_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let (state, file) = (
            folder.path().join("state"),
            folder.path().join(DEFAULT_FILE),
        );
        std::fs::create_dir(&state).unwrap();
        let named = StateArgs::of(state.clone());
        assert_eq!(
            named.config_of_node().unwrap().device,
            Config::default().device
        );
        let text = format!(
            "device = \"cpu\"\nstorage.state = \"{}\"\n",
            state.display()
        );
        std::fs::write(&file, text).unwrap();
        assert_eq!(named.config_of_node().unwrap().device, "cpu");
        std::fs::write(&file, "device = \"cpu\"\nstorage.state = \"/another\"\n").unwrap();
        assert_ne!(named.config_of_node().unwrap().device, "cpu");
    }
}
