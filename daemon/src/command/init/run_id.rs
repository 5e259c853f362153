//! The id of a run: what tells one run of a federation from the next one of the same settings.
//!
//! Adverts live for a day and more. Without it, somebody who kept those of an old run could say them again in a new one,
//! and its nodes would follow the old closings to the end.

use std::path::{Path, PathBuf};
use std::{fs, io};

use fednode_core::{ConfigError, FederationId, FederationSpec};
use fednode_files::whole_file;
use fednode_net::Identity;
use fednode_runtime::exit::ExitCode;
use fednode_runtime::organiser::MEMBERS_FILE;
use fednode_runtime::releases;

use crate::home::{AGGREGATOR, DEFAULT_STATES};
use fednode_cli::failure::{OrFail, fail};
use fednode_cli::files::NODE;

/// Letters of an id: more than a hundred random bits.
const LETTERS: usize = 22;
/// The table and the key that hold it.
const TABLE: &str = "[fingerprints]";
const KEY: &str = "run";

/// Makes a new id.
pub(super) fn fresh() -> String {
    // The public half of a key that nobody keeps: no two are alike.
    let random = Identity::generate().node_id().to_string();
    // All names begin alike.
    random.chars().skip(random.len() - LETTERS).collect()
}

/// Writes another id into the text of a spec, and leaves everything else as it is, comments too.
///
/// # Errors
/// Fails if the file has a form that cannot be edited line by line.
pub(super) fn renewed(text: &str, id: &str) -> Result<String, ConfigError> {
    let mut expected = FederationSpec::from_toml(text)?;
    expected.fingerprints.run = Some(id.to_owned());
    let line = format!("{KEY} = \"{id}\"");
    let mut lines: Vec<&str> = text.lines().collect();
    let table = lines.iter().position(|at| at.trim() == TABLE);
    match table {
        None => lines.extend(["", TABLE, &line]),
        Some(table) => {
            let inside = lines[table + 1..].iter().take_while(|at| !opens_table(at));
            let place = inside.clone().position(|at| sets_the_key(at));
            match place {
                Some(place) => lines[table + 1 + place] = &line,
                None => lines.insert(table + 1, &line),
            }
        }
    }
    let renewed = lines.join("\n") + "\n";
    if FederationSpec::from_toml(&renewed)? == expected {
        return Ok(renewed);
    }
    let text = format!(
        "write `{line}` into its table {TABLE} yourself: the file has another form than `init` gives it"
    );
    Err(ConfigError(text))
}

fn opens_table(line: &str) -> bool {
    line.trim_start().starts_with('[')
}

/// Tells whether a line sets the id, or is the comment that stands where it is not set.
fn sets_the_key(line: &str) -> bool {
    let line = line.trim_start_matches(['#', ' ']);
    let rest = line.strip_prefix(KEY).map(str::trim_start);
    rest.is_some_and(|rest| rest.starts_with('='))
}

/// What a node keeps from one run to the next: who it is, that it is a member, where it is, and what it has released of its data.
const KEPT: [&str; 4] = ["key", MEMBERS_FILE, "port", releases::FILE];

/// Refuses the folder of a fedboot. Its state lies in another place than that of a node, which would be made beside it.
///
/// # Errors
/// Says how a fedboot takes up another run.
pub(super) fn refuse_fedboot(dir: &Path) -> anyhow::Result<()> {
    let state = DEFAULT_STATES[1];
    let is_one = dir.join(AGGREGATOR).exists() || dir.join(state).exists();
    if dir.join(NODE).exists() || !is_one {
        return Ok(());
    }
    let text = format!(
        "`{}` is the folder of a fedboot, not of a node: stop it, put the organiser's new federation.toml there, move all but \
         `key` and `{MEMBERS_FILE}` out of its state folder (`{state}`), and start it again",
        dir.display()
    );
    Err(fail(ExitCode::Configuration, text))
}

/// Refuses while a node runs with a state folder.
///
/// # Errors
/// Says what to do.
pub(super) fn refuse_if_used(state: &Path) -> anyhow::Result<()> {
    if fednode_store::is_free(state).or_fail(ExitCode::State)? {
        return Ok(());
    }
    let text = format!(
        "a node runs with state folder `{}`: stop it first (`fednode stop`)",
        state.display()
    );
    Err(fail(ExitCode::State, text))
}

/// Makes room for the state of another run: the folder of the last one keeps its content under another name, and the new one
/// has the same key and certificate. Does nothing to a folder that is of this federation already.
///
/// # Errors
/// Fails if the disk does. Nothing is lost then: what is to be kept is copied before the folder gets its other name.
pub(super) fn set_aside(state: &Path, next: FederationId) -> anyhow::Result<Option<PathBuf>> {
    let name = state.file_name().unwrap_or_default().to_string_lossy();
    let ready = state.with_file_name(format!("{name}.next"));
    // An earlier attempt ended between its two last steps.
    if !state.exists() && ready.exists() {
        fs::rename(&ready, state).or_fail(ExitCode::State)?;
    }
    let Some(federation) = federation_of(state).or_fail(ExitCode::State)? else {
        return Ok(None);
    };
    if federation.trim() == next.to_string() {
        return Ok(None);
    }
    let short: String = federation.trim().chars().take(8).collect();
    let aside = state.with_file_name(format!("{name}-{short}"));
    let moved = prepare(state, &ready)
        .and_then(|()| fs::rename(state, &aside))
        .and_then(|()| fs::rename(&ready, state));
    moved.or_fail(ExitCode::State)?;
    Ok(Some(aside))
}

/// Tells whether a state folder is of a federation already.
pub(super) fn is_of(state: &Path, federation: FederationId) -> bool {
    let known = federation_of(state).ok().flatten();
    known.is_some_and(|known| known.trim() == federation.to_string())
}

/// Reads which federation a state folder is of, if any was begun in it.
fn federation_of(state: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(state.join("federation")) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Makes the folder of the next run, with what is kept.
fn prepare(state: &Path, ready: &Path) -> io::Result<()> {
    fednode_files::owner::make_folders(ready)?;
    for name in KEPT {
        match fs::read(state.join(name)) {
            // Nobody else may read it, and a full disk must not leave half a key.
            Ok(bytes) => whole_file::write_private(&ready.join(name), &bytes)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_run_of_the_same_settings_is_another_federation() {
        let spec = FederationSpec::default();
        let text = spec.to_toml().replace("# A name for people", "# Our name");
        let (one, two) = (fresh(), fresh());
        assert!(one != two && one.len() == LETTERS);
        let first = renewed(&text, &one).unwrap();
        assert!(first.contains("# Our name"), "comments stay");
        let second = renewed(&first, &two).unwrap();
        assert_eq!(second.matches("run = ").count(), 1, "one line is replaced");
        let id = |text: &str| FederationSpec::from_toml(text).unwrap().id();
        assert!(id(&text) == spec.id() && id(&first) != id(&text) && id(&second) != id(&first));
        let bare = renewed("version = 2\nrounds = 3\n", &one).unwrap();
        assert!(
            bare.ends_with(&format!("[fingerprints]\nrun = \"{one}\"\n")),
            "{bare}"
        );
        let inline = "version = 2\nfingerprints = { classes = 3 }\n";
        assert!(renewed(inline, &one).is_err());
    }

    #[test]
    fn the_state_of_the_run_before_is_kept_and_the_key_stays() {
        let home = tempfile::tempdir().unwrap();
        let state = home.path().join("state");
        fs::create_dir(&state).unwrap();
        let next = FederationId::from_bytes([7; 32]);
        assert!(
            set_aside(&state, next).unwrap().is_none(),
            "nothing ran yet"
        );
        let key = Identity::load_or_create(&state.join("key")).unwrap();
        fs::write(state.join("federation"), "0123456789abcdef\n").unwrap();
        fs::write(state.join(MEMBERS_FILE), b"members").unwrap();
        fs::write(state.join(releases::FILE), b"[]").unwrap();
        let aside = set_aside(&state, next).unwrap().unwrap();
        assert!(aside.ends_with("state-01234567") && aside.join("federation").exists());
        let again = Identity::load_or_create(&state.join("key")).unwrap();
        assert!(again.node_id() == key.node_id() && !state.join("federation").exists());
        assert_eq!(fs::read(state.join(MEMBERS_FILE)).unwrap(), b"members");
        let releases = fs::read(state.join(releases::FILE)).unwrap();
        assert_eq!(releases, b"[]", "what was released stays counted");
        // A crash between the two last steps.
        fs::rename(&state, home.path().join("state.next")).unwrap();
        assert!(set_aside(&state, next).unwrap().is_none());
        let again = Identity::load(&state.join("key")).unwrap();
        assert_eq!(again.node_id(), key.node_id());
    }
}
