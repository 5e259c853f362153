//! Deadlines of a machine: when it wants to be called back.
//!
//! A machine sets at most a few timers per round and names them, so a map is all that is needed: a timer set again
//! moves, and one that fired is gone.

use std::collections::BTreeMap;

use fednode_core::Timestamp;
use fednode_engine::Timer;

/// The timers that are set.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    deadlines: BTreeMap<Timer, Timestamp>,
}

impl Timers {
    /// Sets a timer, or moves it.
    pub(crate) fn set(&mut self, timer: Timer, at: Timestamp) {
        self.deadlines.insert(timer, at);
    }

    /// Returns when the next one fires.
    pub(crate) fn next(&self) -> Option<Timestamp> {
        self.deadlines.values().min().copied()
    }

    /// Takes the earliest timer that is due.
    pub(crate) fn pop_due(&mut self, now: Timestamp) -> Option<Timer> {
        let due = self.deadlines.iter().filter(|(_, at)| **at <= now);
        let (timer, _) = due
            // Of equal times the lower name fires first, so that a replay has the same order.
            .min_by_key(|(timer, at)| (**at, **timer))
            .map(|(timer, at)| (*timer, *at))?;
        self.deadlines.remove(&timer);
        Some(timer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fednode_core::Round;

    #[test]
    fn a_timer_set_again_moves_and_fires_once() {
        let mut timers = Timers::default();
        timers.set(Timer::Grace(Round(1)), Timestamp(10));
        timers.set(Timer::Deadline(Round(1)), Timestamp(20));
        timers.set(Timer::Grace(Round(1)), Timestamp(30));
        assert_eq!(timers.next(), Some(Timestamp(20)));
        assert_eq!(timers.pop_due(Timestamp(19)), None);
        assert_eq!(
            timers.pop_due(Timestamp(40)),
            Some(Timer::Deadline(Round(1))),
            "the earliest first"
        );
        assert_eq!(timers.pop_due(Timestamp(40)), Some(Timer::Grace(Round(1))));
        assert_eq!(timers.pop_due(Timestamp(40)), None);
    }
}
