//! What a start finds in the state folder, and what it writes there once nothing refuses it any more.
//!
//! A folder that somebody has taken a file out of still works, but not as its owner thinks: without the key the node is
//! another one to the others. So whatever is missing beside what is there is said, with what helps. In a folder that has
//! run before, a start that is refused changes nothing but the lock and the number of the start.

use std::path::Path;

use fednode_core::Round;
use fednode_files::whole_file;

use crate::error::RunError;
use crate::records;

/// What a start found in its state folder.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    pub(crate) has_key: bool,
    pub(crate) has_checkpoint: bool,
    /// The newest round of the ledger.
    pub(crate) newest: Option<Round>,
}

impl Found {
    /// Returns a line for each thing that is missing though the node has run before.
    pub(crate) fn missing(&self) -> Vec<String> {
        let mut missing = Vec::new();
        if !self.has_key && (self.has_checkpoint || self.newest.is_some()) {
            missing.push(
                "the key of this node was missing, so it begins under a new name and the others know it as a stranger: to be \
                 the old one again, stop it and put the old key back"
                    .to_owned(),
            );
        }
        if let Some(round) = self.newest.filter(|_| !self.has_checkpoint) {
            missing.push(format!(
                "no checkpoint is left, though this node has been in round {round}: it begins anew; to go on instead, stop it \
                 and put a copy of the folder `checkpoints` back"
            ));
        }
        missing
    }
}

/// Writes what a start leaves in the state folder: facts for other commands, and records without what a kill left. Blocks.
///
/// Returns a line for the user if something could not be tidied.
///
/// # Errors
/// Fails if the facts cannot be written.
pub(crate) fn settle(
    state: &Path,
    facts: &[(&'static str, String)],
) -> Result<Option<String>, RunError> {
    facts
        .iter()
        .try_for_each(|(name, text)| keep(&state.join(name), text))?;
    // Readers cope with double lines, so a full disk is no reason not to start.
    let tidied = records::tidy(&records::path_in(state));
    Ok(tidied
        .err()
        .map(|error| format!("metrics.jsonl keeps its double lines: {error}")))
}

/// Writes a small file, whole or not at all; one that says the same stays, so that a full disk is no obstacle to a restart.
fn keep(path: &Path, text: &str) -> Result<(), RunError> {
    // Compared first: a disk that is full of checkpoints must not keep a member from starting.
    if std::fs::read_to_string(path).is_ok_and(|kept| kept == text) {
        return Ok(());
    }
    whole_file::write(path, text.as_bytes()).map_err(|error| {
        RunError::StateContent(format!("cannot write `{}`: {error}", path.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_taken_out_of_a_folder_is_said_and_a_new_folder_lacks_nothing() {
        let found = |has_key, has_checkpoint, newest: Option<u32>| {
            let newest = newest.map(Round);
            let found = Found {
                has_key,
                has_checkpoint,
                newest,
            };
            found.missing()
        };
        assert_eq!(found(false, false, None), Vec::<String>::new());
        assert_eq!(found(true, true, Some(7)), Vec::<String>::new());
        let key = found(false, true, None);
        assert!(key.len() == 1 && key[0].contains("put the old key back"));
        let checkpoints = found(true, false, Some(7));
        assert!(checkpoints.len() == 1 && checkpoints[0].contains("round 7"));
        assert_eq!(found(false, false, Some(7)).len(), 2);
    }
}
