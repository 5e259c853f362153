//! Closed rounds that were announced, what refutes them, and the adverts that they name.
//!
//! Bounded: a few rounds from a few authors. Nobody's talk drives out what others say, nor what others follow.

use std::cmp::Reverse;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use fednode_core::{Accepted, AdvertId, Body, ClosingId, Global, NodeId, Timestamp, shared};
use serde::{Deserialize, Serialize};

use super::evidence::Evidence;
use crate::event::Lacking;
use crate::follower::Announced;

/// Most closed rounds remembered: a few rounds from a few authors.
const MAX_CLOSINGS: usize = 64;
/// Most of one author.
const MAX_OF_ONE: usize = 8;
/// Most false closed rounds that are remembered.
const MAX_REFUTED: usize = 256;

/// A closed round that somebody announced, and its name.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Said {
    id: ClosingId,
    #[serde(with = "shared")]
    advert: Arc<Accepted>,
}

impl Said {
    fn announced(&self) -> Option<Announced<'_>> {
        let Body::Global(global) = &self.advert.body else {
            return None;
        };
        Some(Announced {
            author: self.advert.author,
            round: self.advert.round,
            advert: self.advert.id,
            id: self.id,
            global,
        })
    }
}

/// The closed rounds that were announced.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Closings {
    said: Vec<Said>,
    /// Closed rounds that are false, the newest last.
    refuted: VecDeque<ClosingId>,
    evidence: Evidence,
}

impl Closings {
    /// Visits them.
    pub(super) fn iter(&self) -> impl Iterator<Item = Announced<'_>> {
        self.said.iter().filter_map(Said::announced)
    }

    /// Tells whether this one is known to be false.
    pub(super) fn is_refuted(&self, id: ClosingId) -> bool {
        self.refuted.contains(&id)
    }

    /// Tells whether another one of this author needs room that is not there.
    pub(super) fn is_full(&self, author: NodeId) -> bool {
        self.said.len() >= MAX_CLOSINGS || self.count_of(author) >= MAX_OF_ONE
    }

    /// Makes room for one of this author: the oldest of whoever said most gives way, before any that others follow.
    pub(super) fn make_room(&mut self, author: NodeId, followed: &BTreeSet<ClosingId>) {
        let is_talkative = self.count_of(author) >= MAX_OF_ONE;
        let places = self.said.iter().enumerate();
        // Whoever has its share makes room among its own, so that it costs nobody else a place.
        let open = places.filter(|(_, said)| !is_talkative || said.advert.author == author);
        let gives_way = open.min_by_key(|(_, said)| {
            let is_followed = followed.contains(&said.id);
            let talk = Reverse(self.count_of(said.advert.author));
            (is_followed, talk, said.advert.round)
        });
        if let Some(place) = gives_way.map(|(place, _)| place) {
            self.said.remove(place);
        }
    }

    fn count_of(&self, author: NodeId) -> usize {
        let is_its = |said: &&Said| said.advert.author == author;
        self.said.iter().filter(is_its).count()
    }

    /// Keeps one.
    pub(super) fn keep(&mut self, id: ClosingId, advert: &Arc<Accepted>) {
        let advert = Arc::clone(advert);
        self.said.push(Said { id, advert });
        if self.evidence.is_crowded() {
            let members = self.iter().flat_map(|said| &said.global.members);
            let words = self.iter().flat_map(|said| said.global.words());
            let named = members.map(|member| member.advert);
            let named = named.chain(words.map(|(_, advert)| advert)).collect();
            self.evidence.keep(&named);
        }
    }

    /// Forgets a closed round that is false, for good.
    pub(super) fn refute(&mut self, closing: ClosingId) {
        self.said.retain(|said| said.id != closing);
        // Remembered by name, since anybody can announce the same closing again.
        if self.refuted.len() >= MAX_REFUTED {
            self.refuted.pop_front();
        }
        self.refuted.push_back(closing);
    }

    /// Returns one by its name.
    pub(super) fn get(&self, id: ClosingId) -> Option<&Global> {
        self.iter()
            .find(|said| said.id == id)
            .map(|said| said.global.as_ref())
    }

    /// Keeps an advert that was lacking; tells whether it was.
    pub(super) fn take_evidence(&mut self, advert: &Arc<Accepted>) -> bool {
        !self.evidence.is_empty() && self.evidence.take_in(advert)
    }

    /// Returns an advert that was asked for and came.
    pub(super) fn evidence(&self, id: AdvertId) -> Option<&Accepted> {
        self.evidence.get(id)
    }

    /// Returns those of `lacking` that are to be asked for now: they are lacking since `since`, or were asked for then.
    pub(super) fn take_due(
        &mut self,
        lacking: Vec<Lacking>,
        now: Timestamp,
        since: Timestamp,
    ) -> Vec<Lacking> {
        self.evidence.take_due(lacking, now, since)
    }
}
