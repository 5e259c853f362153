//! Fetches the layers of a node's settings from where they are: the environment and `node.toml`.

use std::path::Path;

use fednode_runtime::exit::ExitCode;
use fednode_runtime::settings;
use fednode_runtime::streams::say;

use crate::config::{Config, is_setting};
use crate::failure::OrFail;

/// Read without being named, if it is in the current folder.
pub const DEFAULT_FILE: &str = "node.toml";

/// Layers flags over the environment over `node.toml`: the one named, else `FEDNODE_CONFIG`, else the one in the
/// current folder, else none.
///
/// # Errors
/// Fails if a named file cannot be read, and on everything that the layers refuse.
pub fn resolve(flags: &toml::Table, file: Option<&Path>) -> anyhow::Result<Config> {
    settings::load(flags, file, DEFAULT_FILE).or_fail(ExitCode::Configuration)
}

/// Says which variables would set something of a node, to a command that takes flags only.
pub fn warn_of_variables(command: &str) {
    for (name, _) in std::env::vars_os() {
        if let Some(name) = name.to_str().filter(|name| is_setting(name)) {
            say(format_args!(
                "`{name}` is for `fednode start`: `fednode {command}` goes by its flags alone"
            ));
        }
    }
}
