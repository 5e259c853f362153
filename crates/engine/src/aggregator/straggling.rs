//! How long the open round waits for those who are not in when the quorum is.

use fednode_core::NodeId;

use super::Aggregator;
use crate::event::Timer;
use crate::view::Update;

impl Aggregator {
    /// Tells whether those who are not in when the quorum is have had their time. If not, a timer looks again.
    ///
    /// All have the grace time, and stragglers longer. What a straggler says is fetched for a grace time.
    pub(super) fn is_grace_over(&mut self, expected: &[NodeId]) -> bool {
        let (Some(quorum), Some(opened)) = (self.open.quorum_since, self.open.opened) else {
            return false;
        };
        let (grace, deadline) = (self.spec.round.grace(), self.spec.round.deadline());
        let closing = self.head().closing;
        let latest = self.stragglers.latest(closing, quorum);
        // Whoever speaks after `latest` prolongs the round no more.
        let since = self.open.straggled.map_or(quorum, |at| at.min(latest));
        let mut ends = since + grace;
        // The walk through the members is spared until then.
        if self.now >= ends {
            let until = self
                .stragglers
                .until(closing, quorum, expected.iter().copied());
            // Close to the deadline nodes would close the round themselves.
            let latest = opened + deadline.saturating_sub(grace * 6);
            ends = until.map_or(ends, |until| until.min(latest).max(ends));
        }
        let is_over = self.now >= ends;
        if !is_over && self.open.looks_at != Some(ends) {
            self.open.looks_at = Some(ends);
            let timer = Timer::Grace(self.head().round.next());
            self.outbox.set_timer(timer, ends);
        }
        is_over
    }

    /// An update was heard. Where the quorum was there before it, its part has a grace time to come.
    pub(super) fn note_pace(&mut self, update: Update<'_>) {
        if self.broadcast_set.is_partial() {
            // Others speak in every round.
            return;
        }
        let (node, follows) = (update.node, update.local.follows);
        let is_new = self.stragglers.on_update(self.now, node, follows);
        if is_new && follows == self.head().closing && self.open.quorum_since.is_some() {
            self.open.straggled = Some(self.now);
        }
    }

    /// The open round is about to be left for the next one: who has said nothing in it is not waited for.
    pub(super) fn note_silent(&mut self) {
        let expected = self.open.expected.take();
        let expected = expected.into_iter().flat_map(|expected| expected.nodes);
        self.stragglers.note_silent(expected);
    }

    /// A node came. Before the first round all wait for newcomers, so the time that the round takes begins now.
    pub(super) fn begin_first_round_anew(&mut self) {
        if self.head().closing.is_none() && self.open.opened.is_none() {
            self.stragglers.begin(None, self.now);
        }
    }
}
