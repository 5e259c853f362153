//! Stragglers: who is waited for beyond the grace time, and how long.
//!
//! A member that was counted in the round before, and is not done when the quorum is, may be at work with more samples or on a
//! slower machine. Without it the mean would never learn of its data. So it has as long again as the quorum took, twice. A
//! member that was not counted holds nobody up, and neither does one whose part does not come after its update.
//!
//! ```text
//! closing before ──────── quorum ──grace time──► closed, if nobody straggles
//!        │◄──── t ────►│◄──────── 2 t ────────►│ closed, at most a grace time after the newest straggler
//! ```

use fednode_core::NodeId;

use super::Aggregator;
use crate::event::Timer;
use crate::quorum::PATIENCE;

impl Aggregator {
    /// Tells whether a node is waited for beyond the grace time: it was counted in the round before, if there is one, and has not
    /// said its update of this one.
    pub(super) fn straggles(&self, node: NodeId) -> bool {
        let head = self.head();
        let was_counted = head.counted.is_empty() || head.counts(node);
        was_counted && !self.open.closer.knows(node)
    }

    /// Tells whether the grace time of the open round is over.
    pub(super) fn is_after_grace(&self) -> bool {
        let grace = self.spec.round.grace();
        let quorum = self.open.quorum_since;
        quorum.is_some_and(|since| self.now >= since + grace)
    }

    /// Tells whether those who are not in when the quorum is have had their time. If not, a timer looks again.
    pub(super) fn is_grace_over(&mut self, expected: &[NodeId]) -> bool {
        let Some(since) = self.open.quorum_since else {
            return false;
        };
        let grace = self.spec.round.grace();
        let took = since.since(self.open.since);
        let latest = since + (took * PATIENCE).max(grace);
        // This walk through the members is spared until the grace time is over.
        let ends = if self.is_after_grace() && expected.iter().any(|node| self.straggles(*node)) {
            latest
        } else {
            self.open.straggled.map_or(since, |at| at.min(latest)) + grace
        };
        let is_over = self.now >= ends;
        if !is_over && self.open.looks_at != Some(ends) {
            self.open.looks_at = Some(ends);
            let timer = Timer::Grace(self.head().round.next());
            self.outbox.set_timer(timer, ends);
        }
        is_over
    }

    /// A node came. Before the first round everybody waits for newcomers, so the time that the round takes begins now.
    pub(super) fn begin_first_round_anew(&mut self) {
        if self.head().closing.is_none() && self.open.opened.is_none() {
            self.open.since = self.now;
        }
    }
}
