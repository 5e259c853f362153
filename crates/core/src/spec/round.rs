//! How a round closes, as all members agree on it.

use std::time::Duration;

crate::config! {
    /// How a round closes.
    pub struct RoundSpec {
        /// C: share of the nodes that train in a round, at least two of them (above 0 to 1). A draw that everybody
        /// repeats names them: that many of up to 64 nodes; of more, each with this probability. The others rest, and fetch
        /// the mean only before a round of theirs and in the end.
        participation: f64 = 1.0,
        /// Share of the expected nodes whose updates must be there before the grace time starts (above 0 to 1); the
        /// first round starts when this share of `nodes` has met. Of four nodes three are enough, unless it is 1.
        quorum: f64 = 0.8,
        /// Seconds a node waits for a round to close, and for the experts it wants, before it goes on without.
        deadline_seconds: f64 = 600.0,
        /// Seconds that a round stays open for stragglers once the quorum is there. Who is known to take longer has up to
        /// three times as long as the quorum took. Also how long each acting aggregator has when the aggregator is gone.
        grace_seconds: f64 = 3.0,
        /// Most that a member weighs in a mean that is weighted by samples: so many medians of the members' samples (0 or at
        /// least 1; 0 sets no bound). Samples are a member's own word.
        max_weight: f64 = 3.0,
        /// Probability that a node recomputes the mean of a round it did not close itself (0 to 1).
        audit: f64 = 0.05,
        /// About how many nodes' updates everybody receives in a round (64 to 512). In a larger federation a draw names them;
        /// they alone are averaged. The updates of the others reach those who follow them, and a node follows a quarter as
        /// many at most.
        broadcast_set: u32 = 256,
        /// Most slices into which a shared part of more than 1 MiB is divided, each averaged by another member, so that
        /// nobody fetches all parts of all (1 to 256). With 1, whoever closes a round averages all. Robust rules look at
        /// each slice by itself. Masked sums and statistics are not divided.
        slices: u32 = 1,
    }
}

impl RoundSpec {
    /// Returns the deadline of a round.
    pub fn deadline(&self) -> Duration {
        Duration::from_secs_f64(self.deadline_seconds)
    }

    /// Returns the grace time.
    pub fn grace(&self) -> Duration {
        Duration::from_secs_f64(self.grace_seconds)
    }

    /// Returns how many of `expected` nodes are a quorum, at least one.
    ///
    /// Of four, three are enough for every share below 1. One in four may be missing or lie, as in any protocol that
    /// withstands a third. For more nodes 3/4 would be too few: of a thousand federations of eight with two liars, one
    /// fell apart.
    pub fn quorum_of(&self, expected: usize) -> usize {
        let share = (expected as f64 * self.quorum).ceil() as usize;
        let most = if expected == 4 && self.quorum < 1.0 {
            3
        } else {
            expected
        };
        share.min(most).max(1)
    }
}
