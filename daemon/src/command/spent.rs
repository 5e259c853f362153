//! What the releases of a node cost together, as `fednode privacy` and `fednode status` say it.

use std::path::PathBuf;

use fednode_runtime::exit::ExitCode;
use fednode_runtime::releases::{Entry, OwnersBudget, Releases};
use serde::Serialize;

use fednode_cli::failure::OrFail;

/// What was released and what it cost.
#[derive(Debug, Serialize)]
pub(crate) struct Spent {
    /// ε of all releases together; no number in JSON where nothing bounds it.
    pub(crate) epsilon: f64,
    /// The probability with which that may fail.
    pub(crate) delta: f64,
    /// Most ε that the owner allows.
    pub(crate) budget: Option<f64>,
    /// How many releases there were.
    pub(crate) count: usize,
    /// The file of releases.
    pub(crate) file: PathBuf,
}

impl Spent {
    /// Adds up what an owner's file of releases holds.
    ///
    /// # Errors
    /// Fails on an owner's δ out of range.
    pub(crate) fn of(owner: OwnersBudget, entries: &[Entry]) -> anyhow::Result<Self> {
        Ok(Self {
            epsilon: Releases::spent(&owner, entries).or_fail(ExitCode::Configuration)?,
            delta: owner.delta,
            budget: owner.epsilon,
            count: entries.len(),
            file: owner.file,
        })
    }

    /// Reads an owner's file of releases and adds up what it holds.
    ///
    /// # Errors
    /// As [`Self::of`]; or the file cannot be read.
    pub(crate) fn read(owner: OwnersBudget) -> anyhow::Result<Self> {
        let entries = Releases::read(&owner.file).or_fail(ExitCode::State)?;
        Self::of(owner, &entries)
    }

    /// Says it in one line.
    pub(crate) fn sentence(&self) -> String {
        let Self {
            epsilon,
            delta,
            count,
            ..
        } = self;
        let file = self.file.display();
        let budget = self.budget.map_or_else(String::new, |budget| {
            format!(" of {budget} that the owner allows")
        });
        match (count, epsilon.is_finite()) {
            (0, _) => format!("released so far: nothing, epsilon 0{budget} (`{file}`)\n"),
            (_, true) => format!(
                "released so far: {count}, epsilon {epsilon:.2}{budget} at delta {delta:e} (`{file}`)\n"
            ),
            (_, false) => format!(
                "released so far: {count}, without a bound, since nothing protects at least one of them (`{file}`)\n"
            ),
        }
    }
}
