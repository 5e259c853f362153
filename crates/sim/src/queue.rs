//! The event queue: earliest first, and first come first served within a millisecond.
//!
//! Time is counted in whole milliseconds. So all that is due in one is a plain list in the order in which it was
//! scheduled. Nothing is ever sorted, and a federation of ten thousand nodes has no deeper a queue than one of ten.

use std::collections::{BTreeMap, VecDeque};

use fednode_core::Timestamp;

#[derive(Debug)]
pub(super) struct Queue<E> {
    now: Timestamp,
    due: VecDeque<E>,
    later: BTreeMap<Timestamp, VecDeque<E>>,
    scheduled: u64,
}

impl<E> Default for Queue<E> {
    fn default() -> Self {
        Self {
            now: Timestamp(0),
            due: VecDeque::new(),
            later: BTreeMap::new(),
            scheduled: 0,
        }
    }
}

impl<E> Queue<E> {
    /// Returns the time of the event that was taken last.
    pub(super) fn now(&self) -> Timestamp {
        self.now
    }

    /// Returns how many events were scheduled so far.
    pub(super) fn scheduled(&self) -> u64 {
        self.scheduled
    }

    /// Schedules an event, now at the earliest.
    pub(super) fn push(&mut self, at: Timestamp, event: E) {
        self.scheduled += 1;
        if at <= self.now {
            self.due.push_back(event);
        } else {
            self.later.entry(at).or_default().push_back(event);
        }
    }

    /// Takes the next event and moves the time to it.
    pub(super) fn pop(&mut self) -> Option<E> {
        if self.due.is_empty() {
            (self.now, self.due) = self.later.pop_first()?;
        }
        self.due.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_then_in_the_order_of_scheduling() {
        let mut queue = Queue::default();
        for (at, name) in [(5, "c"), (3, "a"), (5, "d"), (3, "b")] {
            queue.push(Timestamp(at), name);
        }
        assert_eq!((queue.pop(), queue.now()), (Some("a"), Timestamp(3)));
        queue.push(Timestamp(1), "late: at once, after what was due before");
        assert_eq!(queue.pop(), Some("b"));
        assert_eq!(
            queue.pop(),
            Some("late: at once, after what was due before")
        );
        assert_eq!(
            (queue.pop(), queue.pop(), queue.pop()),
            (Some("c"), Some("d"), None)
        );
        assert_eq!((queue.now(), queue.scheduled()), (Timestamp(5), 5));
    }
}
