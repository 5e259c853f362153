//! `fednode backup FILE`: all that makes a node in one file, for a disk that dies and for another machine.
//!
//! | part | restored to |
//! |---|---|
//! | `state/` | where the settings say, seen from the node's folder |
//! | `organiser/`, if there is one | the node's folder |
//! | `node.toml`, `fedboot.toml`, `federation.toml`, `network.key` | the node's folder |

use std::path::PathBuf;

use fednode_net::Identity;
use fednode_runtime::control;
use fednode_runtime::exit::ExitCode;
use fednode_store::backup::{self, About, Manifest};
use fednode_store::{OpenError, StateFolder, Store};
use serde::Serialize;

use crate::home::Home;
use crate::served;
use fednode_cli::clock::utc_text;
use fednode_cli::failure::OrFail;
use fednode_cli::output::{self, Form, Report};
use fednode_cli::table::bytes;

/// Files of a state folder that mean nothing to the next start. The recording is large, and of use to its own run.
const OF_ONE_START: [&str; 4] = [
    control::FILE_NAME,
    served::ACCESS_FILE,
    "privacy.lock",
    "recording",
];
/// What no round depends on.
const LEDGER: &str = "state/ledger.sqlite";

/// What is typed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The file to write. It will hold the node's key.
    file: PathBuf,
    /// The node's folder, with node.toml or fedboot.toml in it, or its state folder.
    #[arg(long, default_value = ".")]
    dir: PathBuf,
}

/// Writes a backup, while the node runs or not.
pub(crate) fn run(args: &Args, form: Form) -> anyhow::Result<()> {
    let home = Home::of(&args.dir)?;
    let place = home.state()?;
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
    let mut items = home.beside(&about.state).or_fail(ExitCode::State)?;
    items.extend(backup::items_of_state(&state, &OF_ONE_START).or_fail(ExitCode::State)?);
    let manifest = backup::write(&args.file, &about, &items).or_fail(ExitCode::State)?;
    let is_running = !fednode_store::is_free(&state).or_fail(ExitCode::State)?;
    let done = BackedUp {
        file: args.file.clone(),
        lacks_ledger: about.federation.is_some() && !manifest.files.contains_key(LEDGER),
        elsewhere: home.elsewhere(),
        content: Content::of(&about, &manifest),
        is_running,
    };
    output::print(&done, form)
}

/// What a backup holds, for people.
#[derive(Debug, Serialize)]
pub(super) struct Content {
    pub(super) node: String,
    federation: Option<String>,
    round: Option<u32>,
    /// On the wall clock, in UTC.
    pub(super) made_at: String,
    files: usize,
    bytes: u64,
}

impl Content {
    pub(super) fn of(about: &About, manifest: &Manifest) -> Self {
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
    pub(super) fn stand(&self) -> String {
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
            "The ledger is damaged, so the history of rounds is not in it.\n"
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
