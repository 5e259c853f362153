//! A node's folder: which settings are in it, where they say that its state is, and what else belongs to it.
//!
//! It is the folder of node.toml or fedboot.toml, or a state folder by itself. Settings are read as they are written, since
//! flags and variables of a moment say nothing of what the folder is.

use std::fs;
use std::path::{Path, PathBuf};

use fednode_cli::failure::{OrFail, fail};
use fednode_cli::files::{NETWORK_KEY, NODE, SPEC};
use fednode_runtime::exit::ExitCode;
use fednode_runtime::organiser;
use fednode_store::backup::Item;

/// The aggregator's settings.
pub(crate) const AGGREGATOR: &str = "fedboot.toml";
/// Files beside the state folder that make a node what it is.
pub(crate) const BESIDE: [&str; 4] = [NODE, AGGREGATOR, SPEC, NETWORK_KEY];
/// Where state folders are, if settings do not say it.
pub(crate) const DEFAULT_STATES: [&str; 2] = ["state", "fedboot-state"];
/// The keys of settings that name files.
const NAMED: [(Option<&str>, &str); 9] = [
    (None, "spec"),
    (None, "partition_file"),
    (None, "initial"),
    (None, "backbone"),
    (Some("data"), "file"),
    (Some("network"), "key"),
    (Some("network"), "organiser"),
    (Some("network"), "allow"),
    (Some("privacy"), "releases"),
];

/// The folder of a node, or of an aggregator, and its settings as they stand in its file.
#[derive(Debug)]
pub(crate) struct Home {
    dir: PathBuf,
    table: toml::Table,
    /// Where the state folder is, if the file does not say it; nothing without a file.
    default_state: Option<&'static str>,
}

impl Home {
    /// Reads node.toml or fedboot.toml, if there is one.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or if there are both.
    pub(crate) fn of(dir: &Path) -> anyhow::Result<Self> {
        let [node, aggregator] = [NODE, AGGREGATOR].map(|file| dir.join(file));
        let (file, default) = match (node.exists(), aggregator.exists()) {
            (true, true) => {
                let text = format!(
                    "`{}` has a {NODE} and a {AGGREGATOR}: name the state folder of the one that you mean with --dir",
                    dir.display()
                );
                return Err(fail(ExitCode::Usage, text));
            }
            (true, false) => (node, DEFAULT_STATES[0]),
            (false, true) => (aggregator, DEFAULT_STATES[1]),
            (false, false) => {
                return Ok(Self {
                    dir: dir.to_owned(),
                    table: toml::Table::new(),
                    default_state: None,
                });
            }
        };
        let read = fs::read_to_string(&file).map_err(anyhow::Error::from);
        let table = read.and_then(|text| Ok(text.parse()?));
        let named = |error| anyhow::anyhow!("`{}`: {error}", file.display());
        Ok(Self {
            dir: dir.to_owned(),
            table: table.map_err(named).or_fail(ExitCode::Configuration)?,
            default_state: Some(default),
        })
    }

    /// Returns the state folder that is meant, seen from the node's folder.
    ///
    /// # Errors
    /// Says that this is no node's folder.
    pub(crate) fn state(&self) -> anyhow::Result<PathBuf> {
        // Files of earlier versions have the key outside of the table.
        let said = self.text(Some("storage"), "state");
        let said = said.or_else(|| self.text(None, "state"));
        if let Some(state) = said.or(self.default_state) {
            return Ok(state.into());
        }
        let mut states = ["."].into_iter().chain(DEFAULT_STATES);
        let found = states.find(|state| self.dir.join(state).join("key").exists());
        found.map(PathBuf::from).ok_or_else(|| {
            let text = format!(
                "`{}` is no node's folder that you may read: it has no {NODE}, no {AGGREGATOR} and no key; name another with \
                 --dir",
                self.dir.display()
            );
            fail(ExitCode::State, text)
        })
    }

    /// Lists the files that the settings name and that no backup holds: they are others', or lie elsewhere.
    pub(crate) fn elsewhere(&self) -> Vec<String> {
        let own: Vec<PathBuf> = BESIDE
            .into_iter()
            .chain([organiser::FOLDER])
            .map(|name| self.dir.join(name))
            .collect();
        let named = NAMED.iter().filter_map(|(table, key)| {
            let value = self.text(*table, key)?;
            let is_own = value.is_empty() || own.contains(&self.dir.join(value));
            (!is_own).then(|| format!("`{key}` ({value})"))
        });
        named.collect()
    }

    /// Lists what a backup needs beside the state folder.
    ///
    /// # Errors
    /// Fails if the organiser's folder cannot be read.
    pub(crate) fn beside(&self, state: &Path) -> std::io::Result<Vec<Item>> {
        let dir = &self.dir;
        // A state folder by itself has nothing beside it that is known to be its own.
        if state == Path::new(".") {
            return Ok(Vec::new());
        }
        let item = |name: String| Item {
            path: dir.join(&name),
            name,
        };
        let files = BESIDE.map(|name| item(name.to_owned()));
        let mut items: Vec<Item> = files.into_iter().filter(|it| it.path.is_file()).collect();
        let organiser = dir.join(organiser::FOLDER);
        if organiser.is_dir() {
            for entry in fs::read_dir(organiser)? {
                let name = entry?.file_name().to_string_lossy().into_owned();
                if name != "lock" {
                    items.push(item(format!("{}/{name}", organiser::FOLDER)));
                }
            }
        }
        Ok(items)
    }

    fn text(&self, table: Option<&str>, key: &str) -> Option<&str> {
        let table = match table {
            Some(table) => self.table.get(table)?.as_table()?,
            None => &self.table,
        };
        table.get(key)?.as_str()
    }
}
