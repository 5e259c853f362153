//! A list from a peer with at most `N` entries. It is refused at the first surplus entry, not after the last.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Largest number of entries for which memory is reserved because the sender claims them.
const RESERVED: usize = 64;

/// A list of at most `N` entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bounded<T, const N: usize>(Vec<T>);

impl<T, const N: usize> Bounded<T, N> {
    /// Keeps the first `N` entries.
    pub(crate) fn first_of(entries: impl IntoIterator<Item = T>) -> Self {
        Self(entries.into_iter().take(N).collect())
    }

    pub(crate) fn into_vec(self) -> Vec<T> {
        self.0
    }

    pub(crate) fn as_slice(&self) -> &[T] {
        &self.0
    }
}

impl<T: Serialize, const N: usize> Serialize for Bounded<T, N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de, T: Deserialize<'de>, const N: usize> Deserialize<'de> for Bounded<T, N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(Collect(PhantomData))
    }
}

struct Collect<T, const N: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const N: usize> Visitor<'de> for Collect<T, N> {
    type Value = Bounded<T, N>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {N} entries")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::with_capacity(list.size_hint().unwrap_or(0).min(N).min(RESERVED));
        while let Some(entry) = list.next_element()? {
            // Here, and not after the loop: a hostile list would fill memory before it is refused.
            if entries.len() == N {
                return Err(A::Error::custom(format_args!("more than {N} entries")));
            }
            entries.push(entry);
        }
        Ok(Bounded(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{decode, encode};

    #[test]
    fn stops_at_the_first_entry_too_many() {
        let exact = encode(&vec![1_u8; 5]);
        assert_eq!(
            decode::<Bounded<u8, 5>>(&exact, 100).unwrap().into_vec(),
            [1; 5]
        );
        let error = decode::<Bounded<u8, 4>>(&exact, 100).unwrap_err();
        assert!(error.to_string().contains("more than 4 entries"), "{error}");
    }

    #[test]
    fn a_claimed_length_reserves_nothing() {
        // An array that claims 2^32 - 1 entries and has none.
        let error = decode::<Bounded<u64, 10>>(&[0x9a, 0xff, 0xff, 0xff, 0xff], 100).unwrap_err();
        assert!(
            matches!(error, crate::codec::CodecError::Malformed(_)),
            "{error}"
        );
    }

    #[test]
    fn keeps_the_first_of_too_many() {
        assert_eq!(Bounded::<_, 2>::first_of([1, 2, 3]).as_slice(), [1, 2]);
    }
}
