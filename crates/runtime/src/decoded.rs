//! Parameters that were decoded a moment ago and are about to be mixed or averaged.
//!
//! An expert is decoded when it arrives, to see that it is one, and mixed when all have arrived, in up to K rows. A
//! mean is decoded before it is adopted, and a member's part before it is averaged. They wait here, so that a merge
//! reads, hashes and decodes nothing again. What does not fit is read from the store. Emptied by every merge and every
//! mean: while a node trains, its memory is the trainer's.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use fednode_core::{BlobId, ParamSet, Role};

/// Most bytes that a node keeps: twenty experts of the reference model, five sources for each of four.
const OF_A_NODE: usize = 48 << 20;
/// Most bytes that an aggregator keeps, which trains nothing.
const OF_AN_AGGREGATOR: usize = 192 << 20;

/// The parameters at hand.
#[derive(Debug)]
pub(crate) struct Decoded {
    kept: Mutex<Kept>,
    max_bytes: usize,
}

#[derive(Debug, Default)]
struct Kept {
    params: VecDeque<(BlobId, Arc<ParamSet>)>,
    bytes: usize,
}

impl Decoded {
    /// Keeps as much as suits a member.
    pub(crate) fn of(role: Role) -> Self {
        Self::new(match role {
            Role::Aggregator => OF_AN_AGGREGATOR,
            Role::Node => OF_A_NODE,
        })
    }

    /// Keeps up to so many bytes.
    pub(crate) fn new(max_bytes: usize) -> Self {
        Self {
            kept: Mutex::default(),
            max_bytes,
        }
    }

    /// Returns what a blob holds, if it is at hand.
    pub(crate) fn get(&self, id: &BlobId) -> Option<Arc<ParamSet>> {
        self.with(|kept| {
            kept.params
                .iter()
                .find(|(known, _)| known == id)
                .map(|(_, params)| Arc::clone(params))
        })
    }

    /// Keeps what a blob holds, instead of the oldest ones if there is no room.
    pub(crate) fn keep(&self, id: BlobId, params: &Arc<ParamSet>) {
        self.with(|kept| {
            // The list is short, so a look through it is cheaper than a map beside it.
            if kept.params.iter().any(|(known, _)| *known == id) {
                return;
            }
            kept.bytes += n_bytes(params);
            // Oldest out first: what was decoded last is mixed soonest.
            kept.params.push_back((id, Arc::clone(params)));
            while kept.bytes > self.max_bytes
                && let Some((_, oldest)) = kept.params.pop_front()
            {
                kept.bytes -= n_bytes(&oldest);
            }
        });
    }

    /// Drops everything.
    pub(crate) fn clear(&self) {
        self.with(|kept| *kept = Kept::default());
    }

    fn with<T>(&self, change: impl FnOnce(&mut Kept) -> T) -> T {
        change(&mut self.kept.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn n_bytes(params: &ParamSet) -> usize {
    params.n_values() * size_of::<f32>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_goes_when_there_is_no_room() {
        const MAX_BYTES: usize = 800;
        let decoded = Decoded::new(MAX_BYTES);
        let n = MAX_BYTES / size_of::<f32>() / 2;
        let keep = |name: &[u8]| {
            let mut params = ParamSet::new();
            params.insert("w", &[n], vec![0.0; n]).unwrap();
            decoded.keep(BlobId::of(name), &Arc::new(params));
        };
        keep(b"a");
        keep(b"b");
        keep(b"b");
        assert!(decoded.get(&BlobId::of(b"a")).is_some());
        keep(b"c");
        assert!(decoded.get(&BlobId::of(b"a")).is_none());
        assert!(
            decoded.get(&BlobId::of(b"b")).is_some() && decoded.get(&BlobId::of(b"c")).is_some()
        );
        decoded.clear();
        assert!(decoded.get(&BlobId::of(b"c")).is_none());
    }
}
