//! How a shared part is divided, so that several members average it.
//!
//! ```text
//! part of a member   │ slice 0 │ slice 1 │ slice 2 │      the header of the file is in slice 0
//!                        │         │         └─ averaged by the third member of a line that all draw alike
//!                        │         └─────────── by the second
//!                        └───────────────────── by the first
//! ```
//!
//! Slices are whole segments of a blob, so a slice of a part can be fetched and verified without the rest. Which part of it a
//! slice is follows from the size of the parts and the number of members.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::{BlobRef, FederationSpec, Round, SEGMENT_BYTES, Schedule};

/// Most slices of a shared part.
pub const MAX_SLICES: u32 = 256;
/// Bytes of a closing for members and for the words that name slices: an advert, without what else is in it.
const ROOM: u32 = 64_000;
/// Bytes of a member in a closing, at most.
const MEMBER_BYTES: u32 = 116;
/// Bytes of the two words that name a slice.
const WORDS_BYTES: u32 = 2 * 72;

/// How the shared parts of one closed round are divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slicing {
    slices: u32,
    size: u64,
}

impl Slicing {
    /// Returns how parts of `size` bytes of so many members are divided in a round; `None` if whoever closes it averages them.
    pub fn of(
        spec: &FederationSpec,
        schedule: &Schedule,
        round: Round,
        (size, members): (u64, usize),
    ) -> Option<Self> {
        if !may_be_in(spec, schedule, round) {
            return None;
        }
        let members = u32::try_from(members).unwrap_or(u32::MAX);
        let room = ROOM.saturating_sub(members.saturating_mul(MEMBER_BYTES));
        let most = members.min(n_segments(size)).min(room / WORDS_BYTES);
        let slices = spec.round.slices.min(most);
        (slices > 1).then_some(Self { slices, size })
    }

    /// Returns how many slices there are.
    pub fn n_slices(self) -> u32 {
        self.slices
    }

    /// Returns the size of a part.
    pub fn size(self) -> u64 {
        self.size
    }

    /// Returns the segments of one slice, from 0 on.
    pub fn segments(self, slice: u32) -> Range<u32> {
        let all = u64::from(n_segments(self.size));
        let start = |slice: u32| (u64::from(slice) * all / u64::from(self.slices)) as u32;
        start(slice)..start(slice + 1)
    }

    /// Returns the bytes of one slice.
    pub fn bytes(self, slice: u32) -> Range<u64> {
        let Range { start, end } = self.segments(slice);
        let at = |segment: u32| (u64::from(segment) * SEGMENT_BYTES).min(self.size);
        at(start)..at(end)
    }

    /// Returns how many bytes one slice has.
    pub fn len(self, slice: u32) -> u64 {
        let Range { start, end } = self.bytes(slice);
        end - start
    }
}

/// Tells whether parts of this round may be divided, if they are large enough and of enough members.
pub fn may_be_in(spec: &FederationSpec, schedule: &Schedule, round: Round) -> bool {
    // Statistics have a rule that looks at each as a whole, and masked vectors are no parameters.
    let is_whole = schedule.gathers_statistics_in(round) || schedule.prepares_in(round);
    spec.round.slices > 1 && !schedule.masks() && !is_whole
}

fn n_segments(size: u64) -> u32 {
    BlobRef {
        id: crate::BlobId::from_bytes([0; 32]),
        size,
    }
    .n_segments()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MAX_MEMBERS;

    #[test]
    fn slices_are_whole_segments_and_cover_the_part() {
        let mut spec = FederationSpec::default();
        spec.round.slices = 5;
        let schedule = Schedule::of(&spec);
        let of = |size, members| Slicing::of(&spec, &schedule, Round(1), (size, members));
        assert_eq!(of(SEGMENT_BYTES, 9), None, "one segment");
        assert_eq!(of(9 * SEGMENT_BYTES, 1), None, "one member");
        for (size, members, expected) in [
            (2 * SEGMENT_BYTES, 9, 2),
            (9 * SEGMENT_BYTES + 7, 3, 3),
            (9 * SEGMENT_BYTES + 7, 9, 5),
        ] {
            let slicing = of(size, members).unwrap();
            assert_eq!(slicing.n_slices(), expected);
            let mut end = 0;
            for slice in 0..expected {
                let bytes = slicing.bytes(slice);
                assert_eq!(bytes.start, end);
                assert_eq!(bytes.start % SEGMENT_BYTES, 0);
                assert!(slicing.len(slice) > 0);
                end = bytes.end;
            }
            assert_eq!(end, size);
        }
        spec.round.slices = MAX_SLICES;
        let large = 400 * SEGMENT_BYTES;
        let n_slices = |members| {
            let slicing = Slicing::of(&spec, &schedule, Round(1), (large, members));
            slicing.map(Slicing::n_slices)
        };
        assert_eq!(n_slices(200), Some(200));
        // More would not fit into an advert.
        assert!(n_slices(MAX_MEMBERS).is_some_and(|n| (20..60).contains(&n)));
        spec.round.slices = 1;
        assert_eq!(Slicing::of(&spec, &schedule, Round(1), (large, 9)), None);
    }
}
