//! The wall clock: the one place of this crate that reads it.
//!
//! Adverts, hellos and address records carry wall-clock times. All other modules take `now` as an argument. Timers use
//! the monotonic clock of the runtime, which cannot be set back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fednode_core::Timestamp;

/// A step of the wall clock that is worth a word. Less is what time servers correct every day.
pub(crate) const STEP: Duration = Duration::from_secs(60);

/// Returns the time of day. A clock set before 1970 reads as 1970 and fails the skew check at hello.
pub fn now() -> Timestamp {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Timestamp(u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX))
}

/// The wall clock that a node stamps its adverts by: that of the machine. A test sets it ahead, as somebody sets a clock.
#[derive(Debug, Clone, Default)]
pub struct WallClock {
    ahead: Arc<AtomicU64>,
}

impl WallClock {
    /// Returns the time of day.
    pub fn now(&self) -> Timestamp {
        now() + Duration::from_millis(self.ahead.load(Ordering::Relaxed))
    }

    /// Sets it so far ahead of the machine's clock; zero sets it right.
    pub fn set_ahead(&self, by: Duration) {
        let millis = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
        self.ahead.store(millis, Ordering::Relaxed);
    }
}

/// Notices when somebody sets the wall clock, by the clock that nobody can set.
#[derive(Debug)]
pub(crate) struct StepWatch {
    wall: Timestamp,
    steady: Instant,
}

impl StepWatch {
    pub(crate) const fn new(wall: Timestamp, steady: Instant) -> Self {
        Self { wall, steady }
    }

    /// Returns by how many seconds the wall clock was set since the last look, if by more than [`STEP`]; negative if back.
    pub(crate) fn look(&mut self, wall: Timestamp, steady: Instant) -> Option<i64> {
        let due = self.wall + steady.saturating_duration_since(self.steady);
        (self.wall, self.steady) = (wall, steady);
        let step = wall.distance(due);
        let seconds = i64::try_from(step.as_secs()).unwrap_or(i64::MAX);
        (step > STEP).then_some(if wall < due { -seconds } else { seconds })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_told_from_time_that_passes() {
        let (wall, steady) = (Timestamp(1_000_000), Instant::now());
        let mut watch = StepWatch::new(wall, steady);
        let mut look =
            |wall: u64, seconds| watch.look(Timestamp(wall), steady + Duration::from_secs(seconds));
        assert_eq!(
            look(1_000_000 + 30_000, 10),
            None,
            "twenty seconds are corrected"
        );
        assert_eq!(look(1_000_000 + 3_640_000, 20), Some(3600));
        assert_eq!(look(1_000_000 + 3_650_000, 30), None, "a step is told once");
        assert_eq!(look(1_000_000 + 60_000, 40), Some(-3600));
    }
}
