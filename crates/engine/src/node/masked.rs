//! What a node knows of masked sums: who takes part, and what it has to do about them.

use std::collections::BTreeSet;
use std::sync::Arc;

use fednode_core::{NodeId, Round};

use super::shared::Shared;
use crate::closing::Surroundings;
use crate::follower::Closed;
use crate::masks::{MaskOrder, Sum, Sums};

impl Shared {
    /// Returns the masked sum of a round that follows the head; `None` if sums are open, or if its members are not known.
    pub(super) fn sum(&self, round: Round) -> Option<Arc<Sum>> {
        self.chain.sum(&self.view, round)
    }

    /// Returns what the trainer does about masked sums in a round, where sums are masked.
    pub(super) fn masks(&mut self, round: Round) -> Option<Box<MaskOrder>> {
        let sums = Sums::of(&self.spec, &self.schedule)?;
        let of_nobody = || Arc::new(Sum::of_nobody(sums.clone(), round));
        // Two parts under the same masks would tell what they differ in.
        let sum = self.sum(round).filter(|_| round > self.done.masked);
        let sum = sum.unwrap_or_else(of_nobody);
        self.done.masked = self.done.masked.max(round);
        let head = self.chain.head();
        let here = self
            .view
            .nodes()
            .known()
            .chain(head.counted.iter().copied());
        let holders: BTreeSet<NodeId> = here
            .filter(|node| *node != self.me && !self.view.has_left(*node))
            .collect();
        let has_next = sums.are_in(round.next());
        Some(Box::new(MaskOrder {
            sum: Sum::clone(&sum),
            parent: head.mean,
            holders: has_next.then(|| holders.into_iter().collect()),
        }))
    }

    /// Returns what the closing of a masked sum looks at.
    pub(super) fn surroundings(&self) -> Surroundings<'_> {
        Surroundings {
            chain: &self.chain,
            view: &self.view,
            now: self.now,
            me: self.me,
            patience: self.spec.round.grace() / 2,
        }
    }

    /// Tells whether all is known that it takes to recompute a closing from its members' parts.
    pub(super) fn can_recompute(&self, closed: &Closed) -> bool {
        !self.schedule.masks() || self.chain.masked(&self.view, closed).is_some()
    }
}
