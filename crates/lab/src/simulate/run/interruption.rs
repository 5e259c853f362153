//! A run that is interrupted, and how the same command goes on with it.

use std::path::Path;
use std::sync::Arc;

use fednode_cli::failure::fail;
use fednode_cli::interrupt::Interrupts;
use fednode_runtime::exit::ExitCode;
use fednode_runtime::streams::say;
use fednode_sim::Past;

use super::Means;
use crate::simulate::models::{Kept, Models};
use crate::simulate::saver::{self, Saver};
use crate::simulate::snapshot::Snapshot;

/// Makes the saver of a run; it remembers what an interrupted run knew.
pub(super) fn saver(
    file: &Path,
    settings: serde_json::Value,
    earlier: Option<&Snapshot>,
    interrupts: &Interrupts,
) -> Saver {
    let known = earlier.map(|earlier| (earlier.history.clone(), earlier.state.took));
    Saver::new(
        file.to_owned(),
        settings,
        interrupts.clone(),
        known.unwrap_or_default(),
    )
}

/// Makes the nodes what they were, and returns what the simulator needs of the interrupted run.
pub(super) fn go_on(earlier: Snapshot, models: &mut Models, means: &Means<'_>) -> Past {
    let Snapshot {
        state,
        history,
        params,
    } = earlier;
    let mut at = |place: u32| Arc::clone(&params[place as usize]);
    let nodes: Vec<Kept> = state
        .nodes
        .into_iter()
        .map(|node| node.map(&mut at))
        .collect();
    if !means.quiet {
        let done: usize = nodes.iter().map(|node| node.mind.done.len()).sum();
        say(format_args!(
            "going on after an interruption: {done} rounds of nodes are done"
        ));
    }
    let contents = state
        .contents
        .iter()
        .map(|(blob, place)| (*blob, at(*place)))
        .collect();
    models.go_on(nodes);
    Past {
        events: state.events,
        answers: Box::new(saver::answers(history)),
        contents,
    }
}

/// Says where an interrupted run lies, or why it could not be saved.
pub(super) fn interrupted(file: &Path, saver: &Saver) -> anyhow::Error {
    let folder = file.parent().unwrap_or(Path::new("")).display();
    let text = match saver.failure() {
        Some(reason) => reason.to_owned(),
        None => format!(
            "interrupted: saved in `{folder}`, the same command with the same --out goes on from there"
        ),
    };
    fail(ExitCode::Interrupted, text)
}
