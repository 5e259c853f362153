//! The driver's clock: the time of day at start, advanced by a clock that cannot be set.
//!
//! A machine's timers must not fire early or never because somebody corrected the time of day.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use fednode_core::Timestamp;

/// Tells the time to a machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    started_at: Timestamp,
    started: Instant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        // The time of day is read once: a clock that is set anew must not move timers and deadlines.
        let since_epoch = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let millis = u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX);
        Self {
            started_at: Timestamp(millis),
            started: Instant::now(),
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.started_at + self.started.elapsed()
    }

    /// Returns the moment at which a timestamp is reached, now if it is past.
    pub(crate) fn instant_of(&self, at: Timestamp) -> tokio::time::Instant {
        tokio::time::Instant::from_std(self.started + at.since(self.started_at))
    }
}
