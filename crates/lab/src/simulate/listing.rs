//! The runs of an experiment, listed instead of played: every setting was checked on the way.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::play::{self, Play};
use super::snapshot;
use fednode_cli::output::Report;
use fednode_cli::table;

/// How far a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum State {
    /// Nothing of it is there.
    ToDo,
    /// It was interrupted, and would be gone on with.
    Interrupted,
    /// Its summary is there; it would not be played again.
    Finished,
}

/// A run that would be played.
#[derive(Debug, Serialize)]
struct Listed {
    name: String,
    seed: u64,
    what: String,
    out: PathBuf,
    state: State,
}

/// All runs of an experiment.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Listing {
    runs: Vec<Listed>,
}

impl Listing {
    /// Adds a run that would be played in a folder.
    ///
    /// # Errors
    /// As [`play::play`], of what is in the folder already.
    pub(crate) fn add<P: Play>(
        &mut self,
        name: &str,
        prepared: &P,
        folder: &Path,
    ) -> anyhow::Result<()> {
        let state = match play::finished(prepared, folder)? {
            Some(_) => State::Finished,
            None if snapshot::path(folder).exists() => State::Interrupted,
            None => State::ToDo,
        };
        let (name, seed) = (name.to_owned(), prepared.spec().seed);
        self.runs.push(Listed {
            name,
            seed,
            what: prepared.describe(),
            out: folder.to_owned(),
            state,
        });
        Ok(())
    }
}

impl Report for Listing {
    fn human(&self) -> String {
        let columns = [
            table::text("run"),
            table::number("seed"),
            table::text("what"),
            table::text("state"),
        ];
        let row = |listed: &Listed| {
            let name = if listed.name.is_empty() {
                listed.out.display().to_string()
            } else {
                listed.name.clone()
            };
            let state = match listed.state {
                State::ToDo => "to do",
                State::Interrupted => "interrupted",
                State::Finished => "finished",
            };
            vec![
                name,
                listed.seed.to_string(),
                listed.what.clone(),
                state.into(),
            ]
        };
        let rows: Vec<Vec<String>> = self.runs.iter().map(row).collect();
        let left = self
            .runs
            .iter()
            .filter(|listed| listed.state != State::Finished)
            .count();
        format!(
            "{}\nAll settings are right; {left} of {} runs are to be made.\n",
            table::render(&columns, &rows),
            rows.len()
        )
    }
}
