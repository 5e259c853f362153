//! Plays the runs of an experiment: all of them one after the other, or the share of one job among several.

use std::fs;
use std::path::{Path, PathBuf};

use fednode_runtime::exit::ExitCode;
use fednode_runtime::streams::say;

use super::experiment::folder_name;
use super::play::{self, Play};
use super::run::Means;
use super::table::{Row, Table};
use fednode_cli::failure::{self, OrFail, fail};
use fednode_cli::output::{self, Form};
use fednode_cli::shard::Shard;

/// The file that jobs lock while they make the table.
const TABLE_LOCK: &str = "table.lock";

/// Settings that are run with several seeds.
pub(crate) struct Planned<P> {
    pub(crate) name: String,
    pub(crate) runs: Vec<P>,
}

/// Returns how many runs there are.
pub(crate) fn total<P>(planned: &[Planned<P>]) -> usize {
    planned.iter().map(|planned| planned.runs.len()).sum()
}

/// Returns where a run lies.
pub(crate) fn folder(out: &Path, total: usize, name: &str, seed: u64) -> PathBuf {
    if total == 1 {
        out.to_owned()
    } else {
        // A name that begins with a dash would be an option of every command.
        let name = folder_name(name);
        let dash = if name.is_empty() { "" } else { "-" };
        out.join(format!("{name}{dash}seed{seed}"))
    }
}

/// Plays runs one after the other.
pub(crate) struct Player<'a> {
    /// Where everything lies.
    pub(crate) out: PathBuf,
    pub(crate) means: Means<'a>,
    /// How many runs there are.
    pub(crate) total: usize,
    /// How many of them were begun.
    played: usize,
    /// What failed, one line for each run.
    failures: Vec<String>,
}

impl<'a> Player<'a> {
    pub(crate) fn new(out: PathBuf, total: usize, means: Means<'a>) -> Self {
        Self {
            out,
            means,
            total,
            played: 0,
            failures: Vec::new(),
        }
    }

    /// Plays a run. Returns nothing of one whose training failed, if there are others.
    pub(crate) fn play<P: Play>(
        &mut self,
        name: &str,
        prepared: &P,
    ) -> anyhow::Result<Option<P::Summary>> {
        self.played += 1;
        let (number, total) = (self.played, self.total);
        let seed = prepared.spec().seed;
        if !self.means.quiet {
            let which = if total > 1 {
                format!("[{number}/{total}] {name}, seed {seed}: ")
            } else {
                String::new()
            };
            say(format_args!("{which}{}", prepared.describe()));
        }
        let folder = folder(&self.out, total, name, seed);
        match play::play(prepared, &folder, &self.means) {
            Ok(played) => {
                // Of several runs all are read from their files, those that were just played too: a parsed number may differ
                // in its last bit, and a table must not depend on who played what when.
                let gone = || {
                    let text = format!("the result in `{}` is gone", folder.display());
                    fail(ExitCode::State, text)
                };
                let summary = match total {
                    1 => played,
                    _ => play::finished(prepared, &folder)?.ok_or_else(gone)?,
                };
                // Said, and no failure: what does not learn is a result of an experiment, too.
                if let Some(useless) = P::why_useless(&summary).filter(|_| !self.means.quiet) {
                    say(useless);
                }
                Ok(Some(summary))
            }
            // What one setting does to its models is no reason to lose the others.
            Err(error) if total > 1 && failure::code(&error) == ExitCode::Training => {
                let failed = format!("{name}, seed {seed}: {error:#}");
                say(format_args!("{failed}; the other runs go on"));
                self.failures.push(failed);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Says how many runs failed, if any did.
    pub(crate) fn verdict(&self) -> anyhow::Result<()> {
        let [first, ..] = self.failures.as_slice() else {
            return Ok(());
        };
        let text = format!(
            "{} of {} runs failed and are not in the table; the first is {first}",
            self.failures.len(),
            self.total
        );
        Err(fail(ExitCode::Training, text))
    }
}

/// Visits the runs with their names; of several jobs those of one.
pub(crate) fn shared<P>(
    planned: &[Planned<P>],
    share: Option<Shard>,
) -> impl Iterator<Item = (&String, &P)> {
    let (first, every) = share.map_or((0, 1), |share| (share.position(), share.of as usize));
    let all = planned
        .iter()
        .flat_map(|planned| planned.runs.iter().map(|run| (&planned.name, run)));
    all.skip(first).step_by(every)
}

/// Plays the runs of one job among several, and makes the table of all that are finished by then: that of the job that ends
/// last has them all.
pub(crate) fn play_share<P: Play>(
    player: &mut Player<'_>,
    planned: &[Planned<P>],
    share: Shard,
    form: Form,
) -> anyhow::Result<()> {
    for (name, prepared) in shared(planned, Some(share)) {
        player.play(name, prepared)?;
    }
    // One job at a time, so that the last one finds the results of all.
    let lock = fs::create_dir_all(&player.out)
        .and_then(|()| fs::File::create(player.out.join(TABLE_LOCK)))
        .and_then(|lock| lock.lock().map(|()| lock));
    let lock = lock.or_fail(ExitCode::State)?;
    let mut table: Table<P::Row> = Table {
        rows: Vec::new(),
        out: player.out.display().to_string(),
    };
    let mut finished = 0;
    for Planned { name, runs } in planned {
        let mut summaries = Vec::new();
        for prepared in runs {
            let folder = folder(&player.out, player.total, name, prepared.spec().seed);
            summaries.extend(play::finished(prepared, &folder)?);
        }
        finished += summaries.len();
        if !summaries.is_empty() {
            table.rows.push(Row::new(name.clone(), &summaries));
        }
    }
    table.write(&player.out)?;
    drop(lock);
    output::print(&table, form)?;
    if finished < player.total {
        say(format_args!(
            "{finished} of {} runs are in the table so far; the job that ends last puts all in",
            player.total
        ));
    }
    player.verdict()
}
