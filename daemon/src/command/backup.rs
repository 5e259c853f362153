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
use std::path::{Path, PathBuf};

use fednode_net::Identity;
use fednode_runtime::control;
use fednode_runtime::exit::ExitCode;
use fednode_runtime::organiser;
use fednode_store::Store;
use fednode_store::backup::{self, About, Item, Manifest, Place};
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
}

/// Writes a backup, while the node runs or not.
pub(crate) fn back_up(args: &BackupArgs, form: Form) -> anyhow::Result<()> {
    let place = state_of(&args.dir)?;
    let state = args.dir.join(&place);
    let key = state.join("key");
    if !key.is_file() {
        let text = format!(
            "nothing to back up: there is no key in `{}`",
            state.display()
        );
        return Err(fail(ExitCode::State, text));
    }
    let node = Identity::load(&key).or_fail(ExitCode::State)?.node_id();
    let mut about = About::new(
        env!("CARGO_PKG_VERSION").into(),
        fednode_net::now(),
        node.to_string(),
        place,
    );
    // A node that was prepared and never started has a key and no more.
    if let Ok(store) = Store::open_read_only(&state) {
        about.federation = Some(store.folder.federation().to_string());
        let round = store.ledger.last_round().or_fail(ExitCode::State)?;
        about.round = round.map(|record| record.round.0);
    }
    let mut items = beside(&args.dir, &about.state).or_fail(ExitCode::State)?;
    items.extend(backup::items_of_state(&state, &OF_ONE_START).or_fail(ExitCode::State)?);
    let manifest = backup::write(&args.file, &about, &items).or_fail(ExitCode::State)?;
    let is_running = !fednode_store::is_free(&state).or_fail(ExitCode::State)?;
    let done = BackedUp {
        file: args.file.clone(),
        content: Content::of(&about, &manifest),
        is_running,
    };
    output::print(&done, form)
}

/// Puts a node back.
pub(crate) fn restore(args: &RestoreArgs, form: Form) -> anyhow::Result<()> {
    let about = backup::about(&args.file).or_fail(ExitCode::State)?;
    let folders = [
        ("state", args.dir.join(&about.state)),
        (organiser::FOLDER, args.dir.join(organiser::FOLDER)),
    ];
    let files = BESIDE.map(|name| (name, args.dir.join(name)));
    // `ward/.` as the place of a state folder is `ward`; only that has a name to stage beside.
    let place = |(part, path): (&str, PathBuf)| Place {
        part: part.to_owned(),
        path: path.components().collect(),
    };
    let places: Vec<Place> = folders.into_iter().chain(files).map(place).collect();
    let manifest = backup::restore(&args.file, &places).or_fail(ExitCode::State)?;
    let done = Restored {
        dir: args.dir.clone(),
        state: args.dir.join(&about.state).components().collect(),
        start: start(&args.dir, &about, &manifest),
        counts_releases: manifest.files.contains_key(RELEASES),
        content: Content::of(&about, &manifest),
    };
    output::print(&done, form)
}

/// Finds the state folder that is meant, seen from the node's folder.
pub(crate) fn state_of(dir: &Path) -> anyhow::Result<PathBuf> {
    for (file, default) in [NODE, AGGREGATOR].into_iter().zip(DEFAULT_STATES) {
        let path = dir.join(file);
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            text => text.map_err(anyhow::Error::from),
        };
        let table: toml::Table = text
            .and_then(|text| Ok(text.parse()?))
            .or_fail(ExitCode::Configuration)?;
        // Files of earlier versions have the key outside of the table.
        let storage = table.get("storage").and_then(|it| it.get("state"));
        let said = storage
            .or_else(|| table.get("state"))
            .and_then(|it| it.as_str());
        return Ok(said.unwrap_or(default).into());
    }
    let mut states = ["."].into_iter().chain(DEFAULT_STATES);
    let found = states.find(|state| dir.join(state).join("key").is_file());
    found.map(PathBuf::from).ok_or_else(|| {
        let text = format!(
            "`{}` is no node's folder: it has no {NODE}, no {AGGREGATOR} and no key; name another with --dir",
            dir.display()
        );
        fail(ExitCode::State, text)
    })
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
fn start(dir: &Path, about: &About, manifest: &Manifest) -> String {
    let has = |name: &str| manifest.files.contains_key(name);
    let file = |name: &str| dir.join(name).display().to_string();
    if has(NODE) {
        format!("fednode start --config {}", file(NODE))
    } else if has(AGGREGATOR) {
        format!("fedboot start --config {}", file(AGGREGATOR))
    } else {
        let state: PathBuf = dir.join(&about.state).components().collect();
        format!("fednode start --state {} …", state.display())
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
}

impl Report for BackedUp {
    fn human(&self) -> String {
        let (file, content) = (self.file.display(), &self.content);
        let since = if self.is_running {
            " What it does from now on is not in it."
        } else {
            ""
        };
        format!(
            "wrote {file}: {} files, {}, of node {} {}.{since}\nIt holds the node's key: whoever has it can speak as this \
             node. Put it back with `fednode restore {file} --dir FOLDER`.\n",
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
        format!(
            "restored node {} as it was at {made_at}, {stand}, to {}\nIts original must not run any more: two nodes with one \
             key contradict each other. Start this one with\n  {}\n{releases}",
            content.node,
            self.dir.display(),
            self.start,
        )
    }
}
