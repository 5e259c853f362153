//! The queue of fetches: a bounded number at once, and none forgotten after its deadline.
//!
//! Callers that want the same blob are joined further down, in the network; here only the number is bounded.

use std::collections::VecDeque;

use fednode_core::Timestamp;
use fednode_engine::Fetch;

/// Fetches at once: as many as peers are asked at once.
const AT_ONCE: usize = 16;
/// Fetches that may wait: all experts of a large federation's plan.
const WAITING: usize = 4096;

/// Fetches that run and fetches that wait.
#[derive(Debug, Default)]
pub(crate) struct Fetches {
    running: usize,
    waiting: VecDeque<Fetch>,
}

impl Fetches {
    /// Adds a fetch; it comes back if there is no room for it.
    pub(crate) fn add(&mut self, fetch: Fetch) -> Option<Fetch> {
        if self.waiting.len() >= WAITING {
            return Some(fetch);
        }
        self.waiting.push_back(fetch);
        None
    }

    /// Takes the next one that may start now.
    pub(crate) fn start_next(&mut self) -> Option<Fetch> {
        if self.running >= AT_ONCE {
            return None;
        }
        let next = self.waiting.pop_front()?;
        self.running += 1;
        Some(next)
    }

    /// One has ended.
    pub(crate) fn ended(&mut self) {
        self.running = self.running.saturating_sub(1);
    }

    /// Takes those whose time is up before they could start.
    pub(crate) fn take_expired(&mut self, now: Timestamp) -> Vec<Fetch> {
        let (expired, waiting): (Vec<Fetch>, Vec<Fetch>) =
            std::mem::take(&mut self.waiting).into_iter().partition(|fetch| fetch.until <= now);
        self.waiting = VecDeque::from(waiting);
        expired
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fednode_core::BlobRef;
    use fednode_engine::FetchKind;

    fn fetch(n: u64) -> Fetch {
        let blob = BlobRef::of(&n.to_le_bytes());
        Fetch { blob, kind: FetchKind::Expert, from: vec![], base: None, until: Timestamp(n) }
    }

    #[test]
    fn no_more_than_a_few_run_and_the_others_wait_until_their_deadline() {
        let mut fetches = Fetches::default();
        (0..20).for_each(|n| assert_eq!(fetches.add(fetch(n)), None));
        let started: Vec<Fetch> = std::iter::from_fn(|| fetches.start_next()).collect();
        assert_eq!(started.len(), AT_ONCE);
        assert_eq!(fetches.take_expired(Timestamp(17)), [fetch(16), fetch(17)]);
        fetches.ended();
        assert_eq!(fetches.start_next(), Some(fetch(18)));
        assert_eq!(fetches.start_next(), None);
    }
}
