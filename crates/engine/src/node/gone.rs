//! Who has left for good: nobody waits for them when rounds begin after an end.

use std::collections::BTreeSet;

use fednode_core::NodeId;

use super::shared::Shared;

/// Most nodes of which it is remembered that they have left.
const MOST: usize = 1024;

impl Shared {
    /// Returns who has left for good or counts for nothing any more, as far as this node knows, now or before it was started.
    pub(super) fn gone(&self) -> BTreeSet<NodeId> {
        let before = self.memory.gone.iter().copied();
        let is_back = |node: &NodeId| self.view.company().has_neighbour(*node);
        let mut gone: BTreeSet<NodeId> = before.filter(|node| !is_back(node)).collect();
        gone.extend(self.view.nodes().gone());
        gone
    }

    /// Remembers who is gone: a view forgets who says nothing more.
    pub(super) fn remember_gone(&mut self) {
        let gone = self.gone();
        // Beyond that the earlier ones stay: many names that leave must not push them out.
        if gone.len() <= MOST {
            self.memory.gone = gone;
        }
    }

    /// Returns how many nodes are expected to begin the first round, or the first that was added: not those that have left.
    pub(super) fn n_expected(&self) -> usize {
        let (counted, gone) = (&self.chain.head().counted, self.gone());
        let (all, here) = if counted.is_empty() {
            let all = self.spec.nodes as usize;
            (all, all.saturating_sub(gone.len()))
        } else {
            let here = counted.iter().filter(|node| !gone.contains(node));
            (counted.len(), here.count())
        };
        // Where everybody may come, anybody may leave under many names.
        let least = match self.spec.organiser {
            Some(_) => 1,
            None => all.div_ceil(2),
        };
        here.max(least)
    }
}
