//! `fednode restore FILE`: a node put back from its backup, here or on another machine.

use std::path::{Component, Path, PathBuf};

use fednode_runtime::exit::ExitCode;
use fednode_runtime::organiser;
use fednode_store::backup::{self, Manifest, Place};
use serde::Serialize;

use super::backup::Content;
use crate::home::{AGGREGATOR, BESIDE};
use fednode_cli::failure::{OrFail, fail};
use fednode_cli::files::NODE;
use fednode_cli::output::{self, Form, Report};

/// Holds what a node has released of its data.
const RELEASES: &str = "state/privacy.json";
/// The key of the organiser.
const ORGANISER: &str = "organiser/key";

/// What is typed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A file that `fednode backup` has written.
    file: PathBuf,
    /// The folder to put the node into. What it holds of a node already is not replaced.
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Where the state folder goes, seen from that folder [default: where the backup says, if that is within it].
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
}

/// Puts a node back.
pub(crate) fn run(args: &Args, form: Form) -> anyhow::Result<()> {
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
        start: start(&args.dir, &manifest),
        state,
        counts_releases: manifest.files.contains_key(RELEASES),
        organises: manifest.files.contains_key(ORGANISER),
        content: Content::of(&about, &manifest),
    };
    output::print(&done, form)
}

/// Returns the command that starts the restored node, unless its settings are not known.
fn start(dir: &Path, manifest: &Manifest) -> Option<String> {
    let programs = [("fednode", NODE), ("fedboot", AGGREGATOR)];
    let mut known = programs.into_iter();
    let (program, file) = known.find(|(_, file)| manifest.files.contains_key(*file))?;
    let file = dir.join(file);
    Some(format!("{program} start --config {}", file.display()))
}

/// A node that was put back.
#[derive(Debug, Serialize)]
struct Restored {
    dir: PathBuf,
    state: PathBuf,
    /// The command that starts it, if its settings are in the backup.
    start: Option<String>,
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
                "What it released of its data after {made_at} is not counted any more: lower `budget` in table `privacy` of \
                 node.toml by as much.\n"
            )
        } else {
            String::new()
        };
        let start = match &self.start {
            Some(command) => format!("Start this one with\n  {command}"),
            None => format!(
                "Start this one as before, with --state {}",
                self.state.display()
            ),
        };
        let organiser = if self.organises {
            "Start the node and let it meet others before you invite or revoke: they know what the organiser has forgotten.\n"
        } else {
            ""
        };
        format!(
            "restored node {} as it was at {made_at}, {stand}, to {}\nIts original must not run any more: of two nodes with \
             one key the older one ends. {start}\n{releases}{organiser}",
            content.node,
            self.dir.display(),
        )
    }
}
