//! Maps by name that are looked into for every advert.
//!
//! Every byte of a name is as good as drawn, so hashing its first eight is enough, with a seed of this process. That is for
//! names that somebody had to prove: keys that signed, blobs whose bytes were made here. Of names that are merely claimed
//! anybody makes as many as he likes that begin alike, and all of them would fall into one bucket; they belong into other maps.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hasher};

use foldhash::fast::{FoldHasher, RandomState};
use indexmap::IndexMap;

/// A map by proven names that is visited in the order in which they came.
pub type OrderedNames<K, V> = IndexMap<K, V, Beginnings>;
/// A map by proven names.
pub type NameMap<K, V> = HashMap<K, V, Beginnings>;
/// A set of proven names.
pub type NameSet<K> = HashSet<K, Beginnings>;

/// Makes hashers that read the first eight bytes of a name.
#[derive(Debug, Clone, Default)]
pub struct Beginnings(RandomState);

impl BuildHasher for Beginnings {
    type Hasher = Beginning<FoldHasher<'static>>;

    fn build_hasher(&self) -> Self::Hasher {
        Beginning(self.0.build_hasher())
    }
}

/// A hasher that reads the first eight bytes of whatever is written at once.
#[derive(Debug)]
pub struct Beginning<H>(H);

impl<H: Hasher> Hasher for Beginning<H> {
    fn write(&mut self, bytes: &[u8]) {
        // A name is written at once; whatever is shorter than eight bytes is no name and goes in whole.
        match bytes.first_chunk() {
            Some(first) => self.0.write_u64(u64::from_le_bytes(*first)),
            None => self.0.write(bytes),
        }
    }

    /// A length, which all names have in common.
    fn write_usize(&mut self, _length: usize) {}

    fn finish(&self) -> u64 {
        self.0.finish()
    }
}

#[cfg(test)]
mod tests {
    use fednode_core::{BlobId, NodeId};

    use super::*;

    #[test]
    fn short_names_grow_until_they_differ() {
        let hashes = Beginnings::default();
        let name = |first: u8, last: u8| {
            let mut bytes = [7; 32];
            (bytes[0], bytes[31]) = (first, last);
            NodeId::from_bytes(bytes)
        };
        assert_ne!(hashes.hash_one(name(1, 1)), hashes.hash_one(name(2, 1)));
        assert_eq!(hashes.hash_one(name(1, 1)), hashes.hash_one(name(1, 2)));
        let set: NameSet<NodeId> = [name(1, 1), name(1, 2), name(1, 1)].into_iter().collect();
        assert_eq!(set.len(), 2);
        let blob = BlobId::of(b"x");
        assert_ne!(
            hashes.hash_one(blob),
            Beginnings::default().hash_one(blob),
            "the seed is drawn"
        );
    }
}
