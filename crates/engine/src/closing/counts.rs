//! How many parts are on their way and held, and for which rounds they were trained.
//!
//! All of this is asked for at every input. So it is counted when a part comes or goes, and never looked for.

use std::collections::BTreeMap;

use fednode_core::{Lineage, Round};

use super::{Base, Closer, Offer, Part};

/// The parts on offer, counted.
#[derive(Debug, Clone, Default)]
pub(super) struct Counts {
    wanted: usize,
    /// What was trained from another closing cannot be in the same mean, so each base has a count of its own.
    held: BTreeMap<Base, usize>,
    rounds: BTreeMap<Round, usize>,
}

impl Counts {
    /// Counts parts.
    pub(super) fn of<'a>(offers: impl Iterator<Item = &'a Offer>) -> Self {
        let mut counts = Self::default();
        offers.for_each(|offer| counts.add(offer));
        counts
    }

    /// Counts a part that is offered now.
    pub(super) fn add(&mut self, offer: &Offer) {
        self.wanted += usize::from(offer.part == Part::Wanted);
        if offer.part.counts() {
            *self.held.entry(offer.base).or_default() += 1;
        }
        *self.rounds.entry(offer.round).or_default() += 1;
    }

    /// Takes a part out that [`Self::add`] has counted. Whatever is changed of an offer is changed between the two.
    pub(super) fn take_out(&mut self, offer: &Offer) {
        self.wanted -= usize::from(offer.part == Part::Wanted);
        if offer.part.counts() {
            take_one(&mut self.held, &offer.base);
        }
        take_one(&mut self.rounds, &offer.round);
    }

    /// Returns how many parts are on their way.
    pub(super) fn wanted(&self) -> usize {
        self.wanted
    }

    /// Returns how many parts are held, whatever they were trained from.
    pub(super) fn held(&self) -> usize {
        self.held.values().sum()
    }

    /// Returns how many parts of a base are held.
    pub(super) fn held_of(&self, base: Base) -> usize {
        self.held.get(&base).copied().unwrap_or_default()
    }

    /// Returns the parent that most of the held parts have.
    pub(super) fn common_parent(&self) -> Option<Lineage> {
        let mut votes: BTreeMap<Lineage, usize> = BTreeMap::new();
        for (base, parts) in &self.held {
            *votes.entry(base.parent).or_default() += parts;
        }
        votes
            .into_iter()
            // Equal votes are decided by the smaller name, so that every aggregator decides alike.
            .max_by_key(|(parent, votes)| (*votes, std::cmp::Reverse(*parent)))
            .map(|(parent, _)| parent)
    }

    /// Returns the median of the rounds.
    pub(super) fn median_round(&self) -> Option<Round> {
        let parts: usize = self.rounds.values().sum();
        // The counts by round are in order, so the median is found by walking to the middle.
        let mut left = parts.checked_sub(1)? / 2;
        self.rounds.iter().find_map(|(round, parts)| {
            let found = left < *parts;
            left = left.saturating_sub(*parts);
            found.then_some(*round)
        })
    }
}

impl Closer {
    /// Returns the round that the parts on offer were trained for: their median, so that no minority can move it.
    pub(crate) fn round(&self) -> Option<Round> {
        self.counts.median_round()
    }

    /// Returns the number of parts held that are of the round, whatever they were trained from.
    pub(crate) fn n_held(&self) -> usize {
        if self.is_of_one_round() {
            self.count(|_| true)
        } else {
            self.counts.held()
        }
    }

    /// Returns the number of parts held that a mean of this base counts.
    pub(crate) fn n_held_of(&self, base: Base) -> usize {
        if self.is_of_one_round() {
            self.count(|offer| offer.base == base)
        } else {
            self.counts.held_of(base)
        }
    }

    fn count(&self, is_meant: impl Fn(&Offer) -> bool) -> usize {
        let round = self.round();
        let held = self.offers.values().filter(|offer| offer.part.counts());
        held.filter(|offer| Some(offer.round) == round && is_meant(offer))
            .count()
    }

    /// Returns the parent that most of the held parts have.
    pub(crate) fn common_parent(&self) -> Option<Lineage> {
        self.counts.common_parent()
    }
}

/// Counts one less, and forgets what there is none of: keys are words of others, so they must not add up.
fn take_one<K: Ord>(counts: &mut BTreeMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}
