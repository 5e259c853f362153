//! Stragglers: who is waited for beyond the grace time, and how long.
//!
//! A member that is not done when the quorum is may be at work with more samples, or on a slower machine. Without it the mean
//! would never learn of its data. So whoever closes a round remembers how long each member takes:
//!
//! ```text
//! closing ───────── quorum ──grace time──► closed, if nobody straggles
//!    │◄──── t ────►│◄──────── 2 t ───────►│ closed at the latest
//!    │◄──────── d ────────►│◄──── d ────►│   as long as a member that takes d is waited for
//! ```
//!
//! A member that takes longer than that holds nobody up, and neither does one that said nothing before the last closing. It is
//! waited for again once it speaks. In the first round, where nobody is known, all have the longest time.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use fednode_core::{ClosingId, MAX_MEMBERS, NodeId, Timestamp};
use serde::{Deserialize, Serialize};

/// How many times as long as the quorum took others are waited for after it.
const PATIENCE: u32 = 2;
/// How many closings are remembered.
const MAX_CLOSINGS: usize = 8;
/// How many members are remembered, twice as many as a round counts; who spoke longest ago is forgotten first.
const MAX_SPOKEN: usize = 2 * MAX_MEMBERS;

/// What a member said last, and how long it took.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Spoken {
    at: Timestamp,
    /// The closing that it trained from.
    follows: Option<ClosingId>,
    /// How long its training took, from that closing or from its update before, whichever came later.
    took: Option<Duration>,
    /// It was expected in the round that was closed last, and said nothing.
    is_silent: bool,
}

/// How long members take.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Stragglers {
    /// The closings that were followed last, the newest last. `None` is the time before any round is closed.
    closings: VecDeque<(Option<ClosingId>, Timestamp)>,
    members: BTreeMap<NodeId, Spoken>,
}

impl Stragglers {
    /// The round after a closing begins now: the machine was started, or waited for newcomers until now.
    pub(crate) fn begin(&mut self, closing: Option<ClosingId>, now: Timestamp) {
        self.closings.retain(|(known, _)| *known != closing);
        self.closings.push_back((closing, now));
        if self.closings.len() > MAX_CLOSINGS {
            self.closings.pop_front();
        }
    }

    /// A member said an update. Tells whether it is its first of that round.
    pub(crate) fn on_update(
        &mut self,
        now: Timestamp,
        node: NodeId,
        follows: Option<ClosingId>,
    ) -> bool {
        let began = self.began(follows);
        let before = self.members.get(&node);
        // Whoever says another update of the same round, or the same one after a restart, was done when it said the first.
        if before.is_some_and(|before| before.follows == follows && !before.is_silent) {
            return false;
        }
        let free = before.map_or(Timestamp::default(), |before| before.at);
        let took = began.map(|began| now.since(began.max(free)));
        // Nobody knows when that round began, so what it took before is the best guess.
        let took = took.or(before.and_then(|before| before.took));
        let spoken = Spoken {
            at: now,
            follows,
            took,
            is_silent: false,
        };
        self.remember(node, spoken);
        true
    }

    fn remember(&mut self, node: NodeId, spoken: Spoken) {
        if self.members.len() >= MAX_SPOKEN && !self.members.contains_key(&node) {
            let members = self.members.iter();
            let oldest = members.map(|(node, spoken)| (spoken.at, *node)).min();
            if let Some((_, oldest)) = oldest {
                self.members.remove(&oldest);
            }
        }
        self.members.insert(node, spoken);
    }

    /// A member said an update some time ago, so nobody knows how long it took.
    pub(crate) fn on_late_news(&mut self, node: NodeId, follows: Option<ClosingId>) {
        let before = self.members.get(&node);
        let spoken = Spoken {
            at: before.map_or(Timestamp::default(), |before| before.at),
            follows,
            took: before.and_then(|before| before.took),
            is_silent: false,
        };
        self.remember(node, spoken);
    }

    /// A round is closed. Some of those who were expected in it have said nothing.
    pub(crate) fn note_silent(&mut self, expected: impl Iterator<Item = NodeId>) {
        // Whoever follows the newest of them has spoken in the round that ends now.
        let older = self.closings.len().saturating_sub(1);
        let older: Vec<_> = self
            .closings
            .iter()
            .take(older)
            .map(|(id, _)| *id)
            .collect();
        for node in expected {
            if let Some(spoken) = self.members.get_mut(&node) {
                // What follows a closing that is not known here is newer than all.
                spoken.is_silent = older.contains(&spoken.follows);
            }
        }
    }

    /// Tells whether a member has said its update of the round after a closing.
    fn has_spoken(&self, node: NodeId, closing: Option<ClosingId>) -> bool {
        let spoken = self.members.get(&node);
        spoken.is_some_and(|spoken| spoken.follows == closing)
    }

    /// Returns until when the round after a closing stays open for those of these members who have said nothing yet, if it does
    /// for any of them. The quorum was there at `quorum`.
    pub(crate) fn until(
        &self,
        closing: Option<ClosingId>,
        quorum: Timestamp,
        members: impl Iterator<Item = NodeId>,
    ) -> Option<Timestamp> {
        let (began, latest) = (self.began(closing)?, self.latest(closing, quorum));
        let until = |node: NodeId| {
            if self.has_spoken(node, closing) {
                return None;
            }
            let Some(spoken) = self.members.get(&node) else {
                return closing.is_none().then_some(latest);
            };
            // Without a time of this member nobody can say how long to wait for it.
            let (start, took) = (spoken.at.max(began), spoken.took?);
            let is_in_time = start + took <= latest;
            (!spoken.is_silent && is_in_time).then(|| (start + took * 2).min(latest))
        };
        members.filter_map(until).max()
    }

    /// Returns until when the round after a closing stays open at the latest.
    pub(crate) fn latest(&self, closing: Option<ClosingId>, quorum: Timestamp) -> Timestamp {
        let took = self.began(closing).map(|began| quorum.since(began));
        quorum + took.unwrap_or_default() * PATIENCE
    }

    /// Returns when the round after a closing began.
    fn began(&self, closing: Option<ClosingId>) -> Option<Timestamp> {
        let mut closings = self.closings.iter();
        let known = closings.find(|(known, _)| *known == closing);
        known.map(|(_, began)| *began)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A quick member that takes 20 s, and one that takes twice as long.
    const QUICK: u8 = 1;
    const SLOW: u8 = 2;

    fn node(number: u8) -> NodeId {
        NodeId::from_bytes([number; 32])
    }

    fn closing(number: u8) -> Option<ClosingId> {
        Some(ClosingId::from_bytes([number; 32]))
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp(seconds * 1000)
    }

    /// Both have spoken in the first round, which began at 0 and was closed at 40.
    fn after_the_first_round() -> Stragglers {
        let mut stragglers = Stragglers::default();
        stragglers.begin(None, at(0));
        stragglers.on_update(at(20), node(QUICK), None);
        stragglers.on_update(at(40), node(SLOW), None);
        close(&mut stragglers, 1, 40);
        stragglers
    }

    fn close(stragglers: &mut Stragglers, number: u8, seconds: u64) {
        let members = [QUICK, SLOW].map(node);
        stragglers.note_silent(members.into_iter());
        stragglers.begin(closing(number), at(seconds));
    }

    /// Until when the slow one is waited for, in seconds, where the quick one is done.
    fn until(stragglers: &Stragglers, number: u8, quorum: u64) -> Option<u64> {
        let until = stragglers.until(closing(number), at(quorum), [node(SLOW)].into_iter());
        until.map(|until| until.0 / 1000)
    }

    #[test]
    fn before_anything_is_known_all_have_twice_as_long_as_the_quorum_took() {
        let mut stragglers = Stragglers::default();
        stragglers.begin(None, at(100));
        let until = stragglers.until(None, at(120), [node(SLOW)].into_iter());
        assert_eq!(until, Some(at(160)));
    }

    #[test]
    fn a_member_has_twice_its_own_time_and_no_more_than_three_times_that_of_the_quorum() {
        let stragglers = after_the_first_round();
        assert_eq!(until(&stragglers, 1, 60), Some(100), "three times 20 s");
        assert_eq!(until(&stragglers, 1, 80), Some(120), "twice 40 s");
        assert_eq!(until(&stragglers, 1, 50), None, "40 s are more than 30");
    }

    #[test]
    fn who_said_nothing_in_a_round_is_waited_for_once_it_speaks() {
        let mut stragglers = after_the_first_round();
        stragglers.on_update(at(60), node(QUICK), closing(1));
        close(&mut stragglers, 2, 63);
        assert_eq!(until(&stragglers, 2, 83), None);
        // It is done with the round before, and begins this one.
        stragglers.on_update(at(80), node(SLOW), closing(1));
        assert_eq!(until(&stragglers, 2, 83), Some(123));
        stragglers.on_update(at(120), node(SLOW), closing(2));
        assert_eq!(until(&stragglers, 2, 83), None, "it has spoken");
        let spoken = stragglers.members[&node(SLOW)];
        assert_eq!(spoken.took, Some(Duration::from_secs(40)));
    }

    #[test]
    fn who_is_a_round_ahead_has_not_been_silent() {
        let mut stragglers = after_the_first_round();
        stragglers.on_update(at(60), node(SLOW), closing(9));
        close(&mut stragglers, 2, 63);
        assert_eq!(until(&stragglers, 2, 83), Some(123));
    }

    #[test]
    fn newcomers_hold_nobody_up() {
        let stragglers = after_the_first_round();
        let newcomer = [node(7)].into_iter();
        assert_eq!(stragglers.until(closing(1), at(60), newcomer), None);
    }

    #[test]
    fn strangers_take_no_more_memory_than_members_of_two_rounds() {
        let mut stragglers = after_the_first_round();
        for number in 0..3 * MAX_SPOKEN as u64 {
            let mut name = [9; 32];
            name[..8].copy_from_slice(&number.to_be_bytes());
            stragglers.on_update(at(50 + number), NodeId::from_bytes(name), closing(1));
        }
        assert_eq!(stragglers.members.len(), MAX_SPOKEN);
    }
}
