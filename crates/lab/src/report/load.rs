//! Finds and reads the runs in the named folders.
//!
//! ```text
//! RUN ─► summary.json or metrics.jsonl in it?  yes: one run
//!            │ no
//!            ├► nodes/<i>/state/metrics.jsonl: one run, a swarm under way (the files are put together at its end)
//!            └► the same question for each folder in it: an experiment, all runs
//! ```
//!
//! A file that is missing, cut off or of another program is an error that names it. Only the last line of a run under way
//! may be torn: a node is just writing it, or died while writing.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use fednode_core::FederationSpec;
use fednode_runtime::exit::ExitCode;
use fednode_runtime::status::RoundRecord;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::run::Run;
use super::scale::Measured;
use crate::simulate::protocol;
use crate::swarm::folder::SUMMARY;
use crate::swarm::summary::Summary;
use fednode_cli::failure::fail;

const METRICS: &str = "metrics.jsonl";
const SPEC: &str = "federation.toml";

/// The runs in folders.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Runs with training.
    pub(crate) learned: Vec<Run>,
    /// Runs of the protocol alone.
    pub(crate) measured: Vec<Measured>,
}

/// Reads every run in the folders.
///
/// # Errors
/// Names the first folder without a run, or the file that cannot be used, and says what to do.
pub(crate) fn runs(folders: &[PathBuf]) -> anyhow::Result<Found> {
    let mut found: Vec<PathBuf> = Vec::new();
    for folder in folders {
        let inside = runs_in(folder)?;
        found.extend(
            inside
                .into_iter()
                .filter(|run| !found.contains(run))
                .collect::<Vec<_>>(),
        );
    }
    let mut runs = Found::default();
    for (folder, name) in found.iter().zip(names(&found)) {
        match without_training(folder)? {
            Some(summary) => runs.measured.push(Measured { name, summary }),
            None => runs.learned.push(read(folder, name)?),
        }
    }
    Ok(runs)
}

/// Returns the result of a run of the protocol alone.
fn without_training(folder: &Path) -> anyhow::Result<Option<protocol::Summary>> {
    let path = folder.join(SUMMARY);
    let text = fs::read_to_string(&path).unwrap_or_default();
    let summary: Value = serde_json::from_str(&text).unwrap_or_default();
    if summary.pointer("/effective_config/simulation/training") != Some(&Value::Bool(false)) {
        return Ok(None);
    }
    serde_json::from_value(summary)
        .map(Some)
        .map_err(|error| not_ours(&path, &error, "the result of a run"))
}

fn runs_in(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let shown = folder.display();
    if is_run(folder) {
        return Ok(vec![folder.to_owned()]);
    }
    let unreadable = |error: io::Error| {
        let text = match error.kind() {
            io::ErrorKind::NotFound => {
                format!("there is no folder `{shown}`: name the folder of a run (its --out)")
            }
            io::ErrorKind::NotADirectory => {
                format!("`{shown}` is no folder: name the folder of a run, not a file in it")
            }
            _ => format!("cannot read the folder `{shown}`: {error}"),
        };
        fail(ExitCode::Data, text)
    };
    let mut inside = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if path.is_dir() && is_run(&path) {
            inside.push(path);
        }
    }
    inside.sort();
    if inside.is_empty() && folder.join(SPEC).is_file() {
        let text = format!(
            "no node of `{shown}` has finished a round yet: wait for the first, or see its logs"
        );
        return Err(fail(ExitCode::Data, text));
    }
    if inside.is_empty() {
        let text = format!(
            "`{shown}` holds no run: neither `{SUMMARY}` nor `{METRICS}` lies in it or in a folder in it; name what was \
             given to --out of `fednode swarm` or `fednode simulate`"
        );
        return Err(fail(ExitCode::Data, text));
    }
    Ok(inside)
}

fn is_run(folder: &Path) -> bool {
    folder.join(SUMMARY).is_file() || folder.join(METRICS).is_file() || !states(folder).is_empty()
}

/// Returns the records of the nodes of a swarm whose result is not written yet, with their shards.
fn states(folder: &Path) -> Vec<(u32, PathBuf)> {
    let Ok(entries) = fs::read_dir(folder.join("nodes")) else {
        return Vec::new();
    };
    let shard = |entry: fs::DirEntry| entry.file_name().to_str()?.parse::<u32>().ok();
    let path = |shard: u32| (shard, folder.join(format!("nodes/{shard}/state/{METRICS}")));
    let mut states: Vec<_> = entries
        .filter_map(|entry| Some(path(shard(entry.ok()?)?)))
        .collect();
    states.retain(|(_, path)| path.is_file());
    states.sort();
    states
}

/// Gives each run the shortest end of its path that no other run has.
fn names(folders: &[PathBuf]) -> Vec<String> {
    let canonical = |folder: &PathBuf| folder.canonicalize().unwrap_or_else(|_| folder.clone());
    let parts: Vec<Vec<String>> = folders
        .iter()
        .map(|folder| {
            canonical(folder)
                .iter()
                .map(|part| part.to_string_lossy().into_owned())
                .collect()
        })
        .collect();
    let end =
        |parts: &[String], length: usize| parts[parts.len().saturating_sub(length)..].join("/");
    let longest = parts.iter().map(Vec::len).max().unwrap_or(0);
    let name = |own: &Vec<String>| {
        // An experiment without variants has folders `-seed1`, `-seed2`: theirs is the experiment's name, too.
        let is_whole = |length: &usize| !end(own, *length).starts_with('-');
        let is_unique = |length: &usize| {
            parts
                .iter()
                .filter(|other| end(other, *length) == end(own, *length))
                .count()
                == 1
        };
        end(
            own,
            (1..=longest)
                .find(|length| is_whole(length) && is_unique(length))
                .unwrap_or(longest),
        )
    };
    parts.iter().map(name).collect()
}

fn read(folder: &Path, name: String) -> anyhow::Result<Run> {
    let path = folder.join(SUMMARY);
    match fs::read_to_string(&path) {
        Ok(text) => {
            let summary: Summary =
                parse(&text).map_err(|error| not_ours(&path, &error, "the result of a run"))?;
            let metrics = folder.join(METRICS);
            if !metrics.is_file() {
                let text = format!(
                    "`{}` is missing: copy it from where the run was made",
                    metrics.display()
                );
                return Err(fail(ExitCode::Data, text));
            }
            let (records, torn) = records(&metrics)?;
            if let Some(line) = torn.first() {
                let text = format!(
                    "`{}` is cut off in line {line}: copy it again, or run it again",
                    metrics.display()
                );
                return Err(fail(ExitCode::Data, text));
            }
            Ok(Run::finished(folder, name, summary, records))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => under_way(folder, name),
        Err(error) => Err(fail(
            ExitCode::Data,
            format!("cannot read `{}`: {error}", path.display()),
        )),
    }
}

fn under_way(folder: &Path, name: String) -> anyhow::Result<Run> {
    let path = folder.join(METRICS);
    let files = if path.is_file() {
        vec![(None, path)]
    } else {
        states(folder).into_iter().map(shard_known).collect()
    };
    let (mut all, mut torn_lines) = (Vec::new(), 0);
    for (shard, path) in files {
        let (records, torn) = records(&path)?;
        all.extend(records.into_iter().map(|record| (shard, record)));
        torn_lines += torn.len();
    }
    let spec = fs::read_to_string(folder.join(SPEC)).ok();
    let spec = spec.and_then(|text| FederationSpec::from_toml(&text).ok());
    Ok(Run::under_way(folder, name, spec, all, torn_lines))
}

fn shard_known((shard, path): (u32, PathBuf)) -> (Option<u32>, PathBuf) {
    (Some(shard), path)
}

/// Reads records. Also returns the numbers of lines that a crash tore.
fn records(path: &Path) -> anyhow::Result<(Vec<RoundRecord>, Vec<usize>)> {
    let unreadable = |error: io::Error| {
        fail(
            ExitCode::Data,
            format!("cannot read `{}`: {error}", path.display()),
        )
    };
    let bytes = fs::read(path).map_err(unreadable)?;
    // A line may be torn within a character.
    let text = String::from_utf8_lossy(&bytes);
    let (mut records, mut torn) = (Vec::new(), Vec::new());
    for (at, line) in text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty())
    {
        match parse::<RoundRecord>(line) {
            Ok(record) => records.push(record),
            Err(error) if error.is_eof() => torn.push(at + 1),
            Err(error) => {
                let text = format!(
                    "`{}` is no list of rounds: line {} is none ({error}); name a folder that fednode has written",
                    path.display(),
                    at + 1
                );
                return Err(fail(ExitCode::Data, text));
            }
        }
    }
    Ok((records, torn))
}

/// Reads JSON of this program.
///
/// A loss that is not finite was written as null, because JSON cannot hold it. Where a number is needed it becomes
/// `f64::MAX`, which [`super::words::known`] recognises.
fn parse<T: DeserializeOwned>(text: &str) -> serde_json::Result<T> {
    serde_json::from_str(text).or_else(|error| {
        let Ok(mut value) = serde_json::from_str::<Value>(text) else {
            return Err(error);
        };
        fill_scores(&mut value);
        // Of two errors the first is about the file as it is.
        serde_json::from_value(value).map_err(|_| error)
    })
}

fn fill_scores(value: &mut Value) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(fill_scores),
        Value::Object(map) => {
            let is_score = map.len() == 3
                && ["accuracy", "loss", "n_samples"]
                    .iter()
                    .all(|key| map.contains_key(*key));
            for (key, value) in map.iter_mut() {
                let must_be_number = (is_score && key != "n_samples") || key == "train_loss";
                match value {
                    Value::Null if must_be_number => *value = f64::MAX.into(),
                    value => fill_scores(value),
                }
            }
        }
        _ => {}
    }
}

fn not_ours(path: &Path, error: &serde_json::Error, what: &str) -> anyhow::Error {
    let shown = path.display();
    let text = if error.is_eof() {
        format!(
            "`{shown}` is cut off: copy it again, or remove it to have what `{METRICS}` beside it says"
        )
    } else {
        format!("`{shown}` is not {what} ({error}): name a folder that fednode has written")
    };
    fail(ExitCode::Data, text)
}

#[cfg(test)]
mod tests {
    use super::super::fixtures;
    use super::*;
    use fednode_cli::failure::{code, one_line};

    fn error_of(folder: &Path) -> String {
        let error = runs(&[folder.to_owned()]).unwrap_err();
        assert_eq!(code(&error), ExitCode::Data);
        one_line(&error)
    }

    #[test]
    fn an_experiment_is_all_its_runs() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["b-seed1", "a-seed1"] {
            fixtures::write(
                &folder.path().join(name),
                &fixtures::summary(1),
                &fixtures::records(1),
            );
        }
        let found = runs(&[folder.path().to_owned(), folder.path().join("a-seed1")])
            .unwrap()
            .learned;
        assert_eq!(
            found
                .iter()
                .map(|run| run.name.as_str())
                .collect::<Vec<_>>(),
            ["a-seed1", "b-seed1"]
        );
        assert!(found.iter().all(|run| run.is_finished()));
    }

    #[test]
    fn names_are_as_long_as_they_must_be() {
        let folders = ["/x/one/run", "/x/two/run", "/x/two/other"].map(PathBuf::from);
        assert_eq!(names(&folders), ["one/run", "two/run", "other"]);
        assert_eq!(
            names(&["/x/one/-seed1".into(), "/x/one/-seed2".into()]),
            ["one/-seed1", "one/-seed2"]
        );
    }

    #[test]
    fn each_broken_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("run");
        assert!(
            error_of(&run).contains("there is no folder"),
            "{}",
            error_of(&run)
        );
        fs::create_dir(&run).unwrap();
        assert!(error_of(&run).contains("holds no run"));
        fs::write(run.join(SPEC), "").unwrap();
        assert!(
            error_of(&run).contains("has finished a round yet"),
            "{}",
            error_of(&run)
        );
        fixtures::write(&run, &fixtures::summary(1), &fixtures::records(1));
        let (summary, metrics) = (run.join(SUMMARY), run.join(METRICS));
        assert!(
            error_of(&summary).contains("is no folder"),
            "{}",
            error_of(&summary)
        );
        let text = fs::read_to_string(&metrics).unwrap();
        fs::write(&metrics, &text[..text.len() - 40]).unwrap();
        assert!(
            error_of(&run).contains("metrics.jsonl` is cut off in line 6"),
            "{}",
            error_of(&run)
        );
        fs::write(&metrics, "{\"epoch\": 1}\n").unwrap();
        assert!(
            error_of(&run).contains("line 1 is none (missing field"),
            "{}",
            error_of(&run)
        );
        fs::remove_file(&metrics).unwrap();
        assert!(error_of(&run).contains("metrics.jsonl` is missing"));
        let text = fs::read_to_string(&summary).unwrap();
        fs::write(&summary, &text[..text.len() / 2]).unwrap();
        assert!(error_of(&run).contains("summary.json` is cut off"));
        fs::write(&summary, "[]").unwrap();
        assert!(
            error_of(&run).contains("summary.json` is not the result of a run"),
            "{}",
            error_of(&run)
        );
    }

    #[test]
    fn a_swarm_under_way_is_read_from_its_nodes() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("nodes/2/state");
        fs::create_dir_all(&state).unwrap();
        let lines: Vec<String> = fixtures::records(1)
            .iter()
            .take(1)
            .map(|record| serde_json::to_string(record).unwrap())
            .collect();
        fs::write(state.join(METRICS), format!("{}\n{{\"round\":", lines[0])).unwrap();
        let found = runs(&[folder.path().to_owned()]).unwrap().learned;
        assert!(!found[0].is_finished());
        assert_eq!((found[0].records.len(), found[0].torn_lines), (1, 1));
        assert_eq!(found[0].nodes[0].label, "2");
    }

    #[test]
    fn a_loss_that_was_no_number_is_not_taken_for_damage() {
        let mut record = fixtures::records(1)[0].clone();
        record.validation = Some(fednode_core::Score {
            accuracy: 0.5,
            loss: f64::NAN,
            n_samples: 3,
        });
        let read: RoundRecord = parse(&serde_json::to_string(&record).unwrap()).unwrap();
        assert_eq!(
            super::super::words::known(read.validation.unwrap().loss),
            None
        );
    }
}
