//! The folder of a swarm: what lies where.
//!
//! ```text
//! DIR/federation.toml          the spec of all
//! DIR/fedboot/state            the aggregator's state folder
//! DIR/nodes/<i>/node.toml      a node's settings: `fednode start --config` on it starts that node again
//! DIR/nodes/<i>/state          its state folder
//! DIR/logs/<name>.log          output of each process
//! DIR/models/<i>.safetensors   each node's final model, with <i>.json beside it
//! DIR/metrics.jsonl            one line per node and round
//! DIR/summary.json             the result
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use fednode_core::FederationSpec;
use fednode_runtime::exit::ExitCode;
use fednode_runtime::status::RoundRecord;
use fednode_runtime::whole_file;
use serde::Serialize;

use fednode_cli::config::Config;
use fednode_cli::failure::{OrFail, fail};

/// The file that holds the result.
pub(crate) const SUMMARY: &str = "summary.json";

/// What a simulation that was killed at its very end leaves behind: all but its result.
pub(crate) const UNFINISHED: [&str; 5] = [
    "federation.toml",
    "federation.toml.partial",
    "metrics.jsonl",
    "metrics.jsonl.partial",
    "summary.json.partial",
];

/// The folder of one swarm, or of one simulation.
#[derive(Debug, Clone)]
pub(crate) struct Folder {
    root: PathBuf,
}

impl Folder {
    /// Makes the folder.
    ///
    /// # Errors
    /// Refuses one that holds something, so that no result is overwritten.
    pub(crate) fn create(root: &Path) -> anyhow::Result<Self> {
        refuse_others(root, &[])?;
        let made = ["logs", "models", "fedboot"]
            .into_iter()
            .try_for_each(|name| fs::create_dir_all(root.join(name)));
        Self::made(root, made)
    }

    /// Makes the folder of a simulation, which may hold what an interrupted one left behind.
    ///
    /// # Errors
    /// Refuses one that holds anything else, so that no result is overwritten.
    pub(crate) fn of_simulation(root: &Path, left_behind: &[&str]) -> anyhow::Result<Self> {
        refuse_others(root, &[left_behind, &UNFINISHED].concat())?;
        Self::made(root, fs::create_dir_all(root))
    }

    fn made(root: &Path, made: io::Result<()>) -> anyhow::Result<Self> {
        made.map_err(|error| unwritable(root, &error))?;
        // Children have the same current folder, but a path that is absolute can be used by whoever reads it later.
        let root = root
            .canonicalize()
            .map_err(|error| unwritable(root, &error))?;
        Ok(Self { root })
    }

    /// Returns the folder itself.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Returns where the spec is.
    pub(crate) fn spec(&self) -> PathBuf {
        self.root.join("federation.toml")
    }

    /// Returns where a process writes.
    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.root
            .join("logs")
            .join(format!("{}.log", name.replace(' ', "-")))
    }

    /// Returns the aggregator's state folder.
    pub(crate) fn aggregator_state(&self) -> PathBuf {
        self.root.join("fedboot/state")
    }

    /// Returns a node's state folder.
    pub(crate) fn node_state(&self, shard: u32) -> PathBuf {
        self.root.join(format!("nodes/{shard}/state"))
    }

    /// Writes the spec.
    ///
    /// # Errors
    /// Fails if the disk does; so do all functions here that write.
    pub(crate) fn write_spec(&self, spec: &FederationSpec) -> anyhow::Result<()> {
        self.write("federation.toml", spec.to_toml().as_bytes())
    }

    /// Writes a node's settings and returns where they are.
    pub(crate) fn write_node(&self, shard: u32, config: &Config) -> anyhow::Result<PathBuf> {
        let name = format!("nodes/{shard}/node.toml");
        fs::create_dir_all(self.node_state(shard))
            .map_err(|error| unwritable(&self.root, &error))?;
        self.write(&name, config.to_toml().as_bytes())?;
        Ok(self.root.join(name))
    }

    /// Writes the records of all nodes, by round, then by node.
    pub(crate) fn write_metrics(&self, mut records: Vec<RoundRecord>) -> anyhow::Result<()> {
        records.sort_by_key(|record| (record.round, record.node_id));
        let mut text = Vec::new();
        for record in &records {
            serde_json::to_writer(&mut text, record)?;
            text.push(b'\n');
        }
        self.write("metrics.jsonl", &text)
    }

    /// Writes the result.
    pub(crate) fn write_summary(&self, summary: &impl Serialize) -> anyhow::Result<()> {
        self.write(
            SUMMARY,
            (serde_json::to_string_pretty(summary)? + "\n").as_bytes(),
        )
    }

    /// Writes a node's final model and its card.
    pub(crate) fn write_model(&self, shard: u32, model: &[u8], card: &str) -> anyhow::Result<()> {
        self.write(&format!("models/{shard}.safetensors"), model)?;
        self.write(&format!("models/{shard}.json"), card.as_bytes())
    }

    fn write(&self, name: &str, bytes: &[u8]) -> anyhow::Result<()> {
        let path = self.root.join(name);
        // Whole or not at all: others may read a result while it is written.
        let written = whole_file::write(&path, bytes);
        written
            .map_err(|error| unwritable(&path, &error))
            .or_fail(ExitCode::State)
    }
}

fn refuse_others(root: &Path, known: &[&str]) -> anyhow::Result<()> {
    let is_other = |entry: io::Result<fs::DirEntry>| {
        entry.is_ok_and(|e| !known.iter().any(|name| e.file_name() == *name))
    };
    if fs::read_dir(root).is_ok_and(|mut entries| entries.any(is_other)) {
        let root = root.display();
        return Err(fail(
            ExitCode::Usage,
            format!("`{root}` is not empty: name another folder with --out"),
        ));
    }
    Ok(())
}

fn unwritable(path: &Path, error: &io::Error) -> anyhow::Error {
    fail(
        ExitCode::State,
        format!("cannot write `{}`: {error}", path.display()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::swarm::fixtures::record;
    use fednode_config::layers;

    #[test]
    fn refuses_to_overwrite_a_result() {
        let parent = tempfile::tempdir().unwrap();
        let root = parent.path().join("run");
        let folder = Folder::create(&root).unwrap();
        folder.write_spec(&FederationSpec::default()).unwrap();
        assert!(
            Folder::create(&root)
                .unwrap_err()
                .to_string()
                .contains("not empty")
        );
        assert!(Folder::of_simulation(&root, &["left"]).is_err());
        let root = parent.path().join("interrupted");
        fs::create_dir(&root).unwrap();
        fs::write(root.join("left"), "").unwrap();
        assert!(Folder::create(&root).is_err() && Folder::of_simulation(&root, &["left"]).is_ok());
    }

    #[test]
    fn metrics_are_in_order_of_rounds() {
        let parent = tempfile::tempdir().unwrap();
        let folder = Folder::create(&parent.path().join("run")).unwrap();
        folder.write_metrics(vec![record(2), record(1)]).unwrap();
        let read = fednode_runtime::records::read(&folder.root().join("metrics.jsonl")).unwrap();
        assert_eq!(read, [record(1), record(2)]);
    }

    #[test]
    fn a_nodes_settings_start_it_again() {
        let parent = tempfile::tempdir().unwrap();
        let folder = Folder::create(&parent.path().join("run")).unwrap();
        let path = folder
            .write_node(
                2,
                &Config {
                    shard: "2/5".parse().ok(),
                    ..Config::default()
                },
            )
            .unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let file = layers::File {
            text: &text,
            folder: path.parent().unwrap(),
        };
        let read = layers::resolve::<Config>(&toml::Table::new(), [], Some(file)).unwrap();
        assert_eq!(read.settings.shard.unwrap().to_string(), "2/5");
        let state = read.settings.state().to_owned();
        assert!(state.ends_with("nodes/2/state"), "{state:?}");
    }
}
