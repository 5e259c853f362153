//! `fednode backup` and `fednode restore`: a node in one file, for a disk that dies and for another machine.
//!
//! Both know a node by its folder. It is the folder of node.toml (or fedboot.toml), or the state folder itself.
//!
//! | part of a backup | restored to |
//! |---|---|
//! | `state/` | where the settings say, seen from the folder |
//! | `organiser/`, if there is one | the folder |
//! | `node.toml`, `fedboot.toml`, `federation.toml`, `network.key` | the folder |

use std::fs;
use std::path::{Component, Path, PathBuf};

use fednode_net::Identity;
use fednode_runtime::control;
use fednode_runtime::exit::ExitCode;
use fednode_runtime::organiser;
use fednode_store::backup::{self, About, Item, Manifest, Place};
use fednode_store::{OpenError, StateFolder, Store};
use serde::Serialize;

use crate::served;
use fednode_cli::clock::utc_text;
use fednode_cli::failure::{OrFail, fail};
use fednode_cli::files::{NETWORK_KEY, NODE, SPEC};
use fednode_cli::output::{self, Form, Report};
use fednode_cli::table::bytes;

/// The aggregator's settings.
const AGGREGATOR: &str = "fedboot.toml";
/// Files beside the state folder that make a node what it is.
const BESIDE: [&str; 4] = [NODE, AGGREGATOR, SPEC, NETWORK_KEY];
/// Files of a state folder that mean nothing to the next start. The recording is large, and of use to its own run.
const OF_ONE_START: [&str; 4] = [
    control::FILE_NAME,
    served::ACCESS_FILE,
    "privacy.lock",
    "recording",
];
/// Where state folders are, if settings do not say it.
const DEFAULT_STATES: [&str; 2] = ["state", "fedboot-state"];
/// Holds what a node has released of its data.
const RELEASES: &str = "state/privacy.json";
/// What no round depends on.
const LEDGER: &str = "state/ledger.sqlite";
/// The key of the organiser.
const ORGANISER: &str = "organiser/key";
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

/// What is typed after `backup`.
#[derive(Debug, clap::Args)]
pub(crate) struct BackupArgs {
    /// The file to write. It will hold the node's key.
    file: PathBuf,
    /// The node's folder, with node.toml or fedboot.toml in it, or its state folder.
    #[arg(long, default_value = ".")]
    dir: PathBuf,
}

/// What is typed after `restore`.
#[derive(Debug, clap::Args)]
pub(crate) struct RestoreArgs {
    /// A file that `fednode backup` has written.
    file: PathBuf,
    /// The folder to put the node into. What it holds of a node already is not replaced.
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Where the state folder goes, seen from that folder [default: where the backup says, if that is within it].
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
}

/// Writes a backup, while the node runs or not.
pub(crate) fn back_up(args: &BackupArgs, form: Form) -> anyhow::Result<()> {
    let settings = Settings::of(&args.dir)?;
    let place = settings.state(&args.dir)?;
    let state = args.dir.join(&place);
    let node = Identity::load(&state.join("key"))
        .or_fail(ExitCode::State)?
        .node_id();
    let mut about = About::new(
        env!("CARGO_PKG_VERSION").into(),
        fednode_net::now(),
        node.to_string(),
        place,
    );
    match StateFolder::open_read_only(&state) {
        Ok(folder) => about.federation = Some(folder.federation().to_string()),
        // A node that was prepared and never started has a key and no more.
        Err(OpenError::Missing(_)) => {}
        Err(error) => return Err(error).or_fail(ExitCode::State),
    }
    // A ledger that cannot be read is no reason to lose the rest.
    let newest = Store::open_read_only(&state).ok();
    let newest = newest.and_then(|store| store.ledger.last_round().ok().flatten());
    about.round = newest.map(|record| record.round.0);
    let mut items = beside(&args.dir, &about.state).or_fail(ExitCode::State)?;
    items.extend(backup::items_of_state(&state, &OF_ONE_START).or_fail(ExitCode::State)?);
    let manifest = backup::write(&args.file, &about, &items).or_fail(ExitCode::State)?;
    let is_running = !fednode_store::is_free(&state).or_fail(ExitCode::State)?;
    let done = BackedUp {
        file: args.file.clone(),
        lacks_ledger: about.federation.is_some() && !manifest.files.contains_key(LEDGER),
        elsewhere: settings.elsewhere(&args.dir),
        content: Content::of(&about, &manifest),
        is_running,
    };
    output::print(&done, form)
}

/// Puts a node back.
pub(crate) fn restore(args: &RestoreArgs, form: Form) -> anyhow::Result<()> {
    let about = backup::about(&args.file).or_fail(ExitCode::State)?;
    let state = args.state.as_ref().unwrap_or(&about.state);
    let is_within = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
    // A file may come from anywhere. It does not decide by itself what is written outside of the folder.
    if args.state.is_none() && !state.components().all(is_within) {
        let text = format!(
            "the state folder of this backup was at `{}`: say where it goes with --state DIR",
            state.display()
        );
        return Err(fail(ExitCode::Usage, text));
    }
    let state: PathBuf = args.dir.join(state).components().collect();
    let folders = [
        ("state", state.clone()),
        (organiser::FOLDER, args.dir.join(organiser::FOLDER)),
    ];
    let files = BESIDE.map(|name| (name, args.dir.join(name)));
    let place = |(part, path): (&str, PathBuf)| Place {
        part: part.to_owned(),
        path,
    };
    let places: Vec<Place> = folders.into_iter().chain(files).map(place).collect();
    let manifest = backup::restore(&args.file, &places).or_fail(ExitCode::State)?;
    let done = Restored {
        dir: args.dir.clone(),
        start: start(&args.dir, &state, &manifest),
        state,
        counts_releases: manifest.files.contains_key(RELEASES),
        organises: manifest.files.contains_key(ORGANISER),
        content: Content::of(&about, &manifest),
    };
    output::print(&done, form)
}

/// The settings of the node of a folder, as they stand in its file.
pub(crate) struct Settings {
    table: toml::Table,
    /// Where the state folder is, if the file does not say it; nothing without a file.
    default_state: Option<&'static str>,
}

impl Settings {
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
                    table: toml::Table::new(),
                    default_state: None,
                });
            }
        };
        let read = fs::read_to_string(&file).map_err(anyhow::Error::from);
        let table = read.and_then(|text| Ok(text.parse()?));
        let named = |error| anyhow::anyhow!("`{}`: {error}", file.display());
        Ok(Self {
            table: table.map_err(named).or_fail(ExitCode::Configuration)?,
            default_state: Some(default),
        })
    }

    /// Returns the state folder that is meant, seen from the node's folder.
    ///
    /// # Errors
    /// Says that this is no node's folder.
    pub(crate) fn state(&self, dir: &Path) -> anyhow::Result<PathBuf> {
        // Files of earlier versions have the key outside of the table.
        let said = self.text(Some("storage"), "state");
        let said = said.or_else(|| self.text(None, "state"));
        if let Some(state) = said.or(self.default_state) {
            return Ok(state.into());
        }
        let mut states = ["."].into_iter().chain(DEFAULT_STATES);
        let found = states.find(|state| dir.join(state).join("key").exists());
        found.map(PathBuf::from).ok_or_else(|| {
            let text = format!(
                "`{}` is no node's folder that you may read: it has no {NODE}, no {AGGREGATOR} and no key; name another with \
                 --dir",
                dir.display()
            );
            fail(ExitCode::State, text)
        })
    }

    /// Lists the files that the settings name and that no backup holds: they are others', or lie elsewhere.
    fn elsewhere(&self, dir: &Path) -> Vec<String> {
        let own: Vec<PathBuf> = BESIDE
            .into_iter()
            .chain([organiser::FOLDER])
            .map(|name| dir.join(name))
            .collect();
        let named = NAMED.iter().filter_map(|(table, key)| {
            let value = self.text(*table, key)?;
            let is_own = value.is_empty() || own.contains(&dir.join(value));
            (!is_own).then(|| format!("`{key}` ({value})"))
        });
        named.collect()
    }

    fn text(&self, table: Option<&str>, key: &str) -> Option<&str> {
        let table = match table {
            Some(table) => self.table.get(table)?.as_table()?,
            None => &self.table,
        };
        table.get(key)?.as_str()
    }
}

/// Lists what is needed beside the state folder.
fn beside(dir: &Path, state: &Path) -> std::io::Result<Vec<Item>> {
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

/// Says how the restored node is started.
fn start(dir: &Path, state: &Path, manifest: &Manifest) -> String {
    let has = |name: &str| manifest.files.contains_key(name);
    let file = |name: &str| dir.join(name).display().to_string();
    if has(NODE) {
        format!(
            "Start this one with\n  fednode start --config {}",
            file(NODE)
        )
    } else if has(AGGREGATOR) {
        format!(
            "Start this one with\n  fedboot start --config {}",
            file(AGGREGATOR)
        )
    } else {
        format!("Start this one as before, with --state {}", state.display())
    }
}

/// What a backup holds, for people.
#[derive(Debug, Serialize)]
struct Content {
    node: String,
    federation: Option<String>,
    round: Option<u32>,
    /// On the wall clock, in UTC.
    made_at: String,
    files: usize,
    bytes: u64,
}

impl Content {
    fn of(about: &About, manifest: &Manifest) -> Self {
        Self {
            node: about.node.clone(),
            federation: about.federation.clone(),
            round: about.round,
            made_at: utc_text(about.made_at.0),
            files: manifest.files.len(),
            bytes: manifest.bytes(),
        }
    }

    /// Says how far the node was.
    fn stand(&self) -> String {
        match (&self.federation, self.round) {
            (None, _) => "before its first start".into(),
            (_, None) => "before its first round".into(),
            (_, Some(round)) => format!("in round {round}"),
        }
    }
}

/// A backup that was written.
#[derive(Debug, Serialize)]
struct BackedUp {
    file: PathBuf,
    #[serde(flatten)]
    content: Content,
    is_running: bool,
    lacks_ledger: bool,
    /// Files that the settings name and that are not in it.
    elsewhere: Vec<String>,
}

impl Report for BackedUp {
    fn human(&self) -> String {
        let (file, content) = (self.file.display(), &self.content);
        let since = if self.is_running {
            " What it does from now on is not in it."
        } else {
            ""
        };
        let ledger = if self.lacks_ledger {
            "The ledger cannot be read, so the history of rounds is not in it.\n"
        } else {
            ""
        };
        let elsewhere = if self.elsewhere.is_empty() {
            String::new()
        } else {
            let files = self.elsewhere.join(", ");
            format!("Not in it, keep them too: {files}.\n")
        };
        format!(
            "wrote {file}: {} files, {}, of node {} {}.{since}\nIt holds the node's key: whoever has it can speak as this \
             node. Put it back with `fednode restore {file} --dir FOLDER`.\n{ledger}{elsewhere}",
            content.files,
            bytes(content.bytes),
            content.node,
            content.stand(),
        )
    }
}

/// A node that was put back.
#[derive(Debug, Serialize)]
struct Restored {
    dir: PathBuf,
    state: PathBuf,
    start: String,
    counts_releases: bool,
    organises: bool,
    #[serde(flatten)]
    content: Content,
}

impl Report for Restored {
    fn human(&self) -> String {
        let content = &self.content;
        let (made_at, stand) = (&content.made_at, content.stand());
        let releases = if self.counts_releases {
            format!(
                "What it released of its data after {made_at} is not counted any more: lower `budget` in table `privacy` of node.toml by as much.\n"
            )
        } else {
            String::new()
        };
        let organiser = if self.organises {
            "Start the node and let it meet others before you invite or revoke: they know what the organiser has forgotten.\n"
        } else {
            ""
        };
        format!(
            "restored node {} as it was at {made_at}, {stand}, to {}\nIts original must not run any more: two nodes with one \
             key contradict each other. {}\n{releases}{organiser}",
            content.node,
            self.dir.display(),
            self.start,
        )
    }
}
