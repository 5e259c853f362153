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
//! process. A member that was away meanwhile hears of rounds that it does not know. If most of those who are here speak of them,
//! it leaves out what it has missed. A single member cannot make others leave out more than the organiser has signed.
//!
//! In an endless federation rounds are added after each end without anybody's word, and two voices are needed to leave any out.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use fednode_core::spec::Followed;
use fednode_core::{FederationSpec, NodeId, Role, Round};
use fednode_engine::Phase;
use fednode_net::MemberBook;
use fednode_store::{OpenError, Store};
use tracing::info;

use crate::driver::Driver;
use crate::error::RunError;
use crate::final_model;
use crate::machine::Machine;
use crate::organiser::{MEMBERS_FILE, Organiser};

/// Returns the spec with the rounds that were added after the ends that this member is done with. Those are the end of its final
/// model, and all up to `done`. What cannot be followed is left out with a warning. Blocks.
///
/// # Errors
/// Fails if what is kept cannot be read.
pub fn extended(
    spec: FederationSpec,
    (state, organiser): (&Path, Option<&Path>),
    done: Round,
) -> Result<FederationSpec, RunError> {
    // A program that has just started names no end. The final model shows which one a node is done with.
    let done = done.max(final_model::end_of(state, spec.id()));
    let Some(id) = spec.organiser else {
        return Ok(spec.extended_by([], done).spec);
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
    let Followed { spec, trouble } = book.extended(&spec, done);
    if let Some(trouble) = trouble {
        tracing::warn!("{}", unfollowed(&trouble));
    }
    Ok(spec)
}

/// Returns the newest closed round that a state folder knows of; 0 if there is no such folder yet. The member may be running. Blocks.
///
/// # Errors
/// Fails if what is kept cannot be read.
pub fn newest_round(state: &Path) -> Result<Round, RunError> {
    let store = match Store::open_read_only(state) {
        Err(OpenError::Missing(_)) => return Ok(Round::ZERO),
        opened => opened?,
    };
    let newest = store.ledger.last_round();
    let newest = newest.map_err(|error| RunError::StateContent(error.to_string()))?;
    Ok(newest.map_or(Round::ZERO, |record| record.round))
}

fn unfollowed(trouble: &dyn std::fmt::Display) -> String {
    format!(
        "what the organiser has changed cannot be followed: {trouble}; a newer version of this program may be needed"
    )
}

/// What is known of added rounds while a member runs.
#[derive(Debug)]
pub(crate) struct MoreRounds {
    book: Option<Arc<MemberBook>>,
    /// How many statements there were when it was looked last.
    looked_at: Option<u64>,
    are_there: bool,
    /// After which end the organiser changes settings of an endless federation, as far as it was said here.
    changed: Round,
    /// In which rounds after the last that this member knows of others are.
    beyond: BTreeMap<NodeId, Round>,
    /// Whether it was said that what the organiser has said cannot be kept.
    complained: bool,
}

impl MoreRounds {
    pub(crate) fn of(book: Option<Arc<MemberBook>>, spec: &FederationSpec) -> Self {
        Self {
            book,
            looked_at: None,
            // An endless federation needs nobody's word to go on.
            are_there: spec.endless,
            changed: spec.since(),
            beyond: BTreeMap::new(),
            complained: false,
        }
    }

    /// Looks whether some were added. Returns the line to say, when that is news.
    pub(crate) fn look(&mut self, spec: &FederationSpec) -> Option<Result<String, String>> {
        let book = self.book.as_ref()?;
        let reached = book.reached();
        if self.looked_at == Some(reached) {
            return None;
        }
        // Statements are never changed, so a higher number is the only news there can be.
        self.looked_at = Some(reached);
        if spec.endless {
            let end = book.last_change(spec);
            let is_news = end > self.changed;
            self.changed = self.changed.max(end);
            let from = end.next();
            return is_news.then(|| {
                Ok(format!(
                    "the organiser has changed settings: they count from round {from} on"
                ))
            });
        }
        if self.are_there {
            return None;
        }
        let followed = book.extended(spec, Round(spec.rounds));
        let (now, last) = (spec.rounds, followed.spec.rounds);
        if last > now {
            self.are_there = true;
            let more = last - now;
            return Some(Ok(format!(
                "the organiser has added {more} rounds: after round {now} it goes on to round {last}"
            )));
        }
        followed.trouble.map(|trouble| Err(unfollowed(&trouble)))
    }

    /// A member speaks of a round that is not known here. The network bounds how many members it tells of.
    pub(crate) fn heard_of(&mut self, node: NodeId, round: Round) {
        self.beyond.insert(node, round);
    }

    /// Returns the end that a member has missed, if most of those who are here are further and it has nothing better to do than
    /// to follow them.
    pub(crate) fn missed(
        &self,
        spec: &FederationSpec,
        (role, phase): (Role, Phase),
        here: impl Iterator<Item = NodeId>,
    ) -> Option<Round> {
        if !self.are_there {
            return None;
        }
        let here: Vec<NodeId> = here.collect();
        // Nobody has signed how far an endless federation is. So one voice is not enough, where there can be two.
        if spec.endless && spec.nodes > 2 && here.len() < 2 {
            return None;
        }
        let (last, heard) = (Round(spec.rounds), self.reached_by_most(here.into_iter())?);
        let are_further = match (role, phase) {
            (_, Phase::Joining) | (Role::Aggregator, Phase::Exchanging) => heard > last,
            // The last round may just be closed. Once a later one is, it is over for good.
            (Role::Node, Phase::Exchanging) => heard > last.next(),
            _ => false,
        };
        are_further.then(|| Round(heard.0.saturating_sub(1)))
    }

    /// Returns the round that more than half of these members have reached, as far as rounds are not known here.
    fn reached_by_most(&self, here: impl Iterator<Item = NodeId>) -> Option<Round> {
        let round = |node: NodeId| self.beyond.get(&node).copied().unwrap_or(Round::ZERO);
        let mut rounds: Vec<Round> = here.map(round).collect();
        rounds.sort_unstable_by(|a, b| b.cmp(a));
        // Half of them is not most. Of two that differ the lower round counts.
        rounds.get(rounds.len() / 2).copied()
    }

    /// Returns the end after which a member goes on that is done with all that it knew.
    pub(crate) fn next_end(&self, spec: &FederationSpec) -> Option<Round> {
        self.are_there.then_some(Round(spec.rounds))
    }

    /// Writes down what the organiser has said, for the next start. Without that it would not know of the rounds that it is
    /// started for.
    ///
    /// # Errors
    /// Returns the line to say, once.
    pub(crate) fn keep(&mut self, state: &Path) -> Result<(), Option<String>> {
        let save = |book: &Arc<MemberBook>| book.save(&state.join(MEMBERS_FILE));
        let kept = self.book.as_ref().map_or(Ok(()), save);
        kept.map_err(|error| {
            let is_news = !std::mem::replace(&mut self.complained, true);
            let line =
                format!("this member does not go on with the rounds that were added yet: {error}");
            is_news.then_some(line)
        })
    }
}

impl<M: Machine> Driver<'_, M> {
    pub(crate) fn look_for_more_rounds(&mut self) {
        match self.more.look(&self.base.spec) {
            Some(Ok(line)) => {
                info!("{line}");
                self.base.remark(line);
            }
            Some(Err(line)) => self.base.warn(line),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: Role = Role::Node;

    fn member(n: u8) -> NodeId {
        NodeId::from_bytes([n; 32])
    }

    /// What a member has missed of ten rounds, of others who are in these rounds; 0 for one who speaks of no unknown round.
    fn missed(rounds: &[u32], role: Role, phase: Phase) -> Option<u32> {
        let spec = FederationSpec::default();
        let mut more = MoreRounds {
            are_there: true,
            ..MoreRounds::of(None, &spec)
        };
        let others = || (1..).zip(rounds);
        for (n, round) in others().filter(|(_, round)| **round > 0) {
            more.heard_of(member(n), Round(*round));
        }
        let here = others().map(|(n, _)| member(n));
        let missed = more.missed(&spec, (role, phase), here);
        missed.map(|round| round.0)
    }

    #[test]
    fn who_was_away_follows_once_nothing_of_its_own_is_left_to_do() {
        assert_eq!(missed(&[0, 0], NODE, Phase::Joining), None);
        assert_eq!(missed(&[11], NODE, Phase::Joining), Some(10));
        assert_eq!(missed(&[11], Role::Aggregator, Phase::Exchanging), Some(10));
        let late = missed(&[11, 11], NODE, Phase::Exchanging);
        assert_eq!(late, None, "perhaps a moment late");
        assert_eq!(missed(&[14, 14], NODE, Phase::Exchanging), Some(13));
        for busy in [Phase::Training, Phase::Merging, Phase::Pooling] {
            assert_eq!(missed(&[14, 14], NODE, busy), None, "{busy:?}");
        }
        assert_eq!(
            MoreRounds::of(None, &FederationSpec::default()).next_end(&FederationSpec::default()),
            None
        );
    }

    #[test]
    fn one_voice_is_not_enough_where_nobody_has_signed_how_far_others_are() {
        let missed = |nodes: u32, rounds: &[u32]| {
            let spec = FederationSpec {
                nodes,
                endless: true,
                ..FederationSpec::default()
            };
            let mut more = MoreRounds::of(None, &spec);
            let others = || (1..).zip(rounds);
            others().for_each(|(n, round)| more.heard_of(member(n), Round(*round)));
            let here = others().map(|(n, _)| member(n));
            more.missed(&spec, (NODE, Phase::Joining), here)
        };
        assert_eq!(missed(5, &[99_999]), None);
        assert_eq!(missed(5, &[99_999, 14]), Some(Round(13)));
        assert_eq!(
            missed(2, &[14]),
            Some(Round(13)),
            "there is only one other node"
        );
    }

    #[test]
    fn a_minority_makes_nobody_leave_rounds_out() {
        let joining = |rounds: &[u32]| missed(rounds, NODE, Phase::Joining);
        assert_eq!(joining(&[99_999, 0]), None, "one of two");
        assert_eq!(joining(&[99_999, 0, 0]), None);
        assert_eq!(joining(&[99_999, 99_999, 0, 0]), None);
        // What most have reached counts, and not what the boldest says.
        assert_eq!(joining(&[99_999, 13, 12]), Some(12));
        assert_eq!(joining(&[]), None);
    }
}
