//! Fetches the layers of the configuration from where they are: the environment and `node.toml`.
//!
//! The rules of layering are in [`crate::config`]; here are only the files.

use std::path::{Path, PathBuf};

use fednode_runtime::exit::ExitCode;

use crate::config::{Config, File, is_setting};
use crate::failure::{OrFail, fail};

/// Read without being named, if it is in the current folder.
const DEFAULT_FILE: &str = "node.toml";
/// Names another file.
const FILE_VARIABLE: &str = "FEDNODE_CONFIG";

/// Layers flags over the environment over `node.toml`: the one named, else `FEDNODE_CONFIG`, else the one in the
/// current folder, else none.
///
/// # Errors
/// Fails if a named file cannot be read, and on everything that [`Config::resolve`] refuses.
pub(crate) fn resolve(flags: toml::Table, file: Option<&Path>) -> anyhow::Result<Config> {
    let named = file
        .map(Path::to_owned)
        .or_else(|| std::env::var_os(FILE_VARIABLE).map(PathBuf::from));
    let path = named.clone().unwrap_or_else(|| DEFAULT_FILE.into());
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => Some(text),
        Err(error) if named.is_none() && error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => {
            return Err(fail(
                ExitCode::Configuration,
                format!("cannot read `{}`: {error}", path.display()),
            ));
        }
    };
    let folder = path.parent().unwrap_or(Path::new(""));
    let file = text.as_deref().map(|text| File { text, folder });
    // Variables that are no text cannot be ours: all our names are ASCII.
    let variables = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    Config::resolve(flags, variables, file)
        .map_err(|error| name_the_file(error, &path, text.is_some()))
        .or_fail(ExitCode::Configuration)
}

/// Says which variables would set something of a node, to a command that takes flags only.
pub(crate) fn warn_of_variables(command: &str) {
    for (name, _) in std::env::vars_os() {
        if let Some(name) = name.to_str().filter(|name| is_setting(name)) {
            eprintln!(
                "`{name}` is for `fednode start`: `fednode {command}` goes by its flags alone"
            );
        }
    }
}

fn name_the_file(error: fednode_core::ConfigError, path: &Path, exists: bool) -> anyhow::Error {
    if exists && error.0.starts_with("line ") {
        anyhow::anyhow!("`{}`, {error}", path.display())
    } else {
        error.into()
    }
}
