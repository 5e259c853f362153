//! More rounds after the last one: what the organiser has added, and when a member takes it up.
//!
//! ```text
//! organiser/members ─┐
//! state/members ─────┴─► MemberBook ──► the rounds after each end that this member is done with ──► a start
//!                            └── looked at every second ──► known ──► at the end: started anew
//! ```
//!
//! An extension only appends rounds. Whoever hears of it in the middle goes on as before, so an end takes place as it was agreed
//! on, and settings change for all in the same round. When a member is done with what it knew, it ends with
//! [`Outcome::Extended`](crate::Outcome::Extended). Its caller reads data and settings anew then, and starts it again in the same
//! process. A member that was away meanwhile hears of rounds that it does not know. It leaves out what it has missed.

use std::path::Path;
use std::sync::Arc;

use fednode_core::{FederationSpec, Role, Round};
use fednode_engine::Phase;
use fednode_net::MemberBook;

use crate::error::RunError;
use crate::final_model;
use crate::organiser::{MEMBERS_FILE, Organiser};

/// Returns the spec with the rounds that the organiser has added after the ends that this member is done with. Those are the end
/// of its final model, and all up to `done`. What cannot be followed is left out with a warning. Blocks.
///
/// # Errors
/// Fails if what is kept cannot be read.
pub fn extended(
    spec: FederationSpec,
    (state, organiser): (&Path, Option<&Path>),
    done: Round,
) -> Result<FederationSpec, RunError> {
    let Some(id) = spec.organiser else {
        return Ok(spec);
    };
    let unreadable = |error: &dyn std::fmt::Display| RunError::StateContent(error.to_string());
    let book = MemberBook::load(&state.join(MEMBERS_FILE), id).map_err(|e| unreadable(&e))?;
    if let Some(folder) = organiser.filter(|folder| folder.exists()) {
        let organiser = Organiser::open(folder).map_err(|error| unreadable(&error))?;
        let said = organiser.book().map_err(|error| unreadable(&error))?;
        // Of another organiser's statements none is taken; the start says so itself.
        for signed in said.after(0) {
            _ = book.take(&signed);
        }
    }
    let finished = final_model::end_of(state, spec.id());
    Ok(book
        .extended(&spec, done.max(finished))
        .unwrap_or_else(|error| {
            tracing::warn!("{}", unfollowed(&error));
            spec
        }))
}

fn unfollowed(error: &dyn std::fmt::Display) -> String {
    format!(
        "the organiser has added rounds that cannot be followed: {error}; a newer version of this program may be needed"
    )
}

/// What is known of added rounds while a member runs.
#[derive(Debug)]
pub(crate) struct MoreRounds {
    book: Option<Arc<MemberBook>>,
    /// How many statements there were when it was looked last.
    looked_at: Option<u64>,
    are_there: bool,
    /// The newest round of others after the last that this member knows of.
    heard: Round,
}

impl MoreRounds {
    pub(crate) fn of(book: Option<Arc<MemberBook>>) -> Self {
        Self {
            book,
            looked_at: None,
            are_there: false,
            heard: Round::ZERO,
        }
    }

    /// Looks whether some were added. Returns the line to say, when that is news.
    pub(crate) fn look(&mut self, spec: &FederationSpec) -> Option<Result<String, String>> {
        let book = self.book.as_ref()?;
        let reached = book.reached();
        if self.are_there || self.looked_at == Some(reached) {
            return None;
        }
        self.looked_at = Some(reached);
        match book.extended(spec, Round(spec.rounds)) {
            Ok(extended) if extended.rounds > spec.rounds => {
                self.are_there = true;
                let (last, more) = (extended.rounds, extended.rounds - spec.rounds);
                Some(Ok(format!(
                    "the organiser has added {more} rounds: after round {} it goes on to round {last}",
                    spec.rounds
                )))
            }
            Ok(_) => None,
            Err(error) => Some(Err(unfollowed(&error))),
        }
    }

    /// A member speaks of a round that is not known here.
    pub(crate) fn heard_of(&mut self, round: Round) {
        self.heard = self.heard.max(round);
    }

    /// Returns the end that a member has missed, if the others are further and it has nothing better to do than to follow them.
    pub(crate) fn missed(&self, spec: &FederationSpec, role: Role, phase: Phase) -> Option<Round> {
        let last = Round(spec.rounds);
        let are_further = match (role, phase) {
            (_, Phase::Joining) | (Role::Aggregator, Phase::Exchanging) => self.heard > last,
            // The last round may just be closed. Once a later one is, it is over for good.
            (Role::Node, Phase::Exchanging) => self.heard > last.next(),
            _ => false,
        };
        let before = Round(self.heard.0.saturating_sub(1));
        (self.are_there && are_further).then_some(before)
    }

    /// Returns the end after which a member goes on that is done with all that it knew.
    pub(crate) fn next_end(&self, spec: &FederationSpec) -> Option<Round> {
        self.are_there.then_some(Round(spec.rounds))
    }

    /// Writes down what the organiser has said, for the next start.
    pub(crate) fn keep(&self, state: &Path) -> Result<(), String> {
        let save = |book: &Arc<MemberBook>| book.save(&state.join(MEMBERS_FILE));
        let kept = self.book.as_ref().map_or(Ok(()), save);
        kept.map_err(|error| {
            format!("this member cannot go on with the rounds that were added: {error}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_away_follows_once_nothing_of_its_own_is_left_to_do() {
        let spec = FederationSpec::default();
        let missed = |heard, role, phase| {
            let more = MoreRounds {
                are_there: true,
                heard: Round(heard),
                ..MoreRounds::of(None)
            };
            more.missed(&spec, role, phase).map(|round| round.0)
        };
        let (node, hub) = (Role::Node, Role::Aggregator);
        assert_eq!(missed(0, node, Phase::Joining), None);
        assert_eq!(missed(11, node, Phase::Joining), Some(10));
        assert_eq!(missed(11, hub, Phase::Exchanging), Some(10));
        assert_eq!(
            missed(11, node, Phase::Exchanging),
            None,
            "perhaps a moment late"
        );
        assert_eq!(missed(14, node, Phase::Exchanging), Some(13));
        for busy in [Phase::Training, Phase::Merging, Phase::Pooling] {
            assert_eq!(missed(14, node, busy), None, "{busy:?}");
        }
        assert_eq!(MoreRounds::of(None).next_end(&spec), None);
    }
}
