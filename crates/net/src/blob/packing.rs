//! Packing: a segment in fewer bytes, which unpacks to the same bits.
//!
//! ```text
//!   segment ─► minus the base, number by number ─► first bytes of all numbers, then second ones, … ─► zstd ─► packed
//!                     (if both sides hold one)                       planes
//! ```
//!
//! Numbers of a model have signs and exponents that repeat, and fractions that do not. Byte by byte they are noise to a
//! compressor; plane by plane half of them are not. Between two versions of one expert most bits stay the same. So the
//! difference of the bit patterns, as whole numbers with the sign in the lowest bit, is mostly leading zeros.
//! `docs/performance.md` says how much that saves.
//!
//! Nothing here trusts the other side. Unpacked bytes have the expected length or are an error, and their hash shows whether
//! they are right. Bytes at the end of a segment that are no whole number stay as they are.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fednode_core::{BlobId, Precision};
use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, SemaphorePermit};
use zstd::bulk::{Compressor, Decompressor};

/// Level of zstd. Level 3 takes longer and saves no more on numbers like these.
const LEVEL: i32 = 1;
/// A packed segment must save at least this part of its bytes (one in 16). Otherwise plain bytes are sent.
const WORTHWHILE: usize = 16;
/// Numbers per block, so that loops over them become vector instructions.
const BLOCK: usize = 128;

/// Bytes of one number of a blob. A wrong width costs bytes and nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Width {
    /// 16 bits.
    Two,
    /// 32 bits.
    Four,
}

impl From<Precision> for Width {
    fn from(precision: Precision) -> Self {
        match precision {
            Precision::F32 => Self::Four,
            Precision::F16 | Precision::Bf16 => Self::Two,
        }
    }
}

/// How the segments of a blob may be packed on their way to this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packing {
    /// Bytes of one number.
    pub width: Width,
    /// A similar blob that this node holds, such as the version before. A provider that holds it too sends the difference.
    pub base: Option<BlobId>,
}

impl Packing {
    pub(super) fn with_base_if(self, against: bool) -> Self {
        Self {
            base: self.base.filter(|_| against),
            ..self
        }
    }
}

/// The one place where segments are packed or unpacked, one at a time.
///
/// A thread packs several Gbit/s, and a faster link needs no packing. The memory, 3 MiB, is allocated once and freed when
/// the last transfer ends.
#[derive(Debug)]
pub(super) struct Workbench {
    turn: Semaphore,
    tools: Mutex<Tools>,
}

impl Default for Workbench {
    fn default() -> Self {
        Self {
            turn: Semaphore::new(1),
            tools: Mutex::default(),
        }
    }
}

impl Workbench {
    /// Waits for a turn, which lasts as long as the returned permit.
    pub(super) async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        self.turn.acquire().await.ok()
    }

    /// Locks the tools. Wait for a turn first: otherwise the lock may block a thread.
    pub(super) fn tools(&self) -> MutexGuard<'_, Tools> {
        // Every use overwrites the buffers, so those that a panic left are as good as others.
        self.tools.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives all memory back to the system.
    pub(super) fn clear(&self) {
        *self.tools() = Tools::default();
    }
}

/// A buffer of planes and the tables of zstd.
#[derive(Default)]
pub(super) struct Tools {
    planes: Vec<u8>,
    compressor: Option<Compressor<'static>>,
    decompressor: Option<Decompressor<'static>>,
}

impl std::fmt::Debug for Tools {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tools").finish_non_exhaustive()
    }
}

impl Tools {
    fn compress(&mut self, packed: &mut [u8]) -> io::Result<usize> {
        // Taken and put back: a compressor that failed is dropped, and the next call makes a new one.
        let zstd = self
            .compressor
            .take()
            .map_or_else(|| Compressor::new(LEVEL), Ok)?;
        self.compressor
            .insert(zstd)
            .compress_to_buffer(self.planes.as_slice(), packed)
    }

    fn decompress(&mut self, packed: &[u8]) -> io::Result<usize> {
        let zstd = self
            .decompressor
            .take()
            .map_or_else(Decompressor::new, Ok)?;
        self.decompressor
            .insert(zstd)
            .decompress_to_buffer(packed, self.planes.as_mut_slice())
    }
}

/// Tells why bytes are not a packed segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Malformed {
    #[error("the packed bytes cannot be unpacked")]
    Undecodable,
    #[error("the packed bytes unpack to {got} bytes instead of {expected}")]
    Length { expected: usize, got: usize },
}

/// Packs a segment into `packed`, in place of its content. Returns false if that is not worthwhile.
///
/// A base must be as long as the segment.
pub(super) fn pack(
    segment: &[u8],
    base: Option<&[u8]>,
    width: Width,
    tools: &mut Tools,
    packed: &mut Vec<u8>,
) -> bool {
    fit(&mut tools.planes, segment.len());
    match width {
        Width::Two => spread::<2>(segment, base, &mut tools.planes),
        Width::Four => spread::<4>(segment, base, &mut tools.planes),
    }
    fit(packed, segment.len() - segment.len().div_ceil(WORTHWHILE));
    // The buffer is as long as the longest worthwhile result. If the result does not fit, the compressor fails.
    let Ok(length) = tools.compress(packed) else {
        return false;
    };
    packed.truncate(length);
    true
}

/// Unpacks the content of `bytes` into a segment of exactly `length` bytes, in its place.
///
/// A base must be as long as the segment.
///
/// # Errors
/// Refuses bytes that do not unpack to that length. The content of `bytes` is then arbitrary.
pub(super) fn unpack(
    bytes: &mut Vec<u8>,
    base: Option<&[u8]>,
    width: Width,
    length: usize,
    tools: &mut Tools,
) -> Result<(), Malformed> {
    // Memory for the expected length and no more, whatever length the bytes claim.
    fit(&mut tools.planes, length);
    let got = tools
        .decompress(bytes)
        .map_err(|_| Malformed::Undecodable)?;
    if got != length {
        return Err(Malformed::Length {
            expected: length,
            got,
        });
    }
    fit(bytes, length);
    match width {
        Width::Two => gather::<2>(&tools.planes, base, bytes),
        Width::Four => gather::<4>(&tools.planes, base, bytes),
    }
    Ok(())
}

/// Sets the length of a buffer, and reserves no more memory than that.
fn fit(buffer: &mut Vec<u8>, length: usize) {
    buffer.reserve_exact(length.saturating_sub(buffer.len()));
    buffer.resize(length, 0);
}

/// Writes the numbers of a segment, or their differences to those of the base, plane after plane.
fn spread<const WIDTH: usize>(segment: &[u8], base: Option<&[u8]>, planes: &mut [u8]) {
    // Numbers first, then the bytes of the end that are no whole number.
    let (numbers, rest) = segment.as_chunks::<WIDTH>();
    let (planes, end) = planes.split_at_mut(WIDTH * numbers.len());
    end.copy_from_slice(rest);
    let based = base.map(|base| base.as_chunks::<WIDTH>().0);
    for start in (0..numbers.len()).step_by(BLOCK) {
        let range = start..numbers.len().min(start + BLOCK);
        let mut block = [0; BLOCK];
        let block = &mut block[..range.len()];
        load(&numbers[range.clone()], block);
        if let Some(based) = based {
            // Of bit patterns, not of floats: that is exact, and equal exponents give small numbers.
            let mut old = [0; BLOCK];
            load(&based[range.clone()], &mut old);
            block
                .iter_mut()
                .zip(old)
                .for_each(|(number, old)| *number = difference::<WIDTH>(*number, old));
        }
        // One pass per plane over the block, which is still in registers or the nearest cache.
        for (rank, plane) in planes.chunks_exact_mut(numbers.len()).enumerate() {
            let bytes = plane[range.clone()].iter_mut().zip(block.iter());
            bytes.for_each(|(byte, number)| *byte = (number >> (8 * rank)) as u8);
        }
    }
}

/// Reverses [`spread`].
fn gather<const WIDTH: usize>(planes: &[u8], base: Option<&[u8]>, segment: &mut [u8]) {
    let (numbers, rest) = segment.as_chunks_mut::<WIDTH>();
    let (planes, end) = planes.split_at(WIDTH * numbers.len());
    rest.copy_from_slice(end);
    let based = base.map(|base| base.as_chunks::<WIDTH>().0);
    for start in (0..numbers.len()).step_by(BLOCK) {
        let range = start..numbers.len().min(start + BLOCK);
        let mut block = [0; BLOCK];
        let block = &mut block[..range.len()];
        for (rank, plane) in planes.chunks_exact(numbers.len()).enumerate() {
            let bytes = plane[range.clone()].iter().zip(block.iter_mut());
            bytes.for_each(|(byte, number)| *number |= u32::from(*byte) << (8 * rank));
        }
        if let Some(based) = based {
            let mut old = [0; BLOCK];
            load(&based[range.clone()], &mut old);
            block
                .iter_mut()
                .zip(old)
                .for_each(|(number, old)| *number = sum(*number, old));
        }
        for (bytes, number) in numbers[range].iter_mut().zip(block.iter()) {
            bytes.copy_from_slice(&number.to_le_bytes()[..WIDTH]);
        }
    }
}

fn load<const WIDTH: usize>(numbers: &[[u8; WIDTH]], into: &mut [u32]) {
    for (bytes, number) in numbers.iter().zip(into) {
        let mut four = [0; 4];
        four[..WIDTH].copy_from_slice(bytes);
        *number = u32::from_le_bytes(four);
    }
}

/// Returns the difference of two bit patterns, with its sign in the lowest bit. So small changes of either sign are small.
fn difference<const WIDTH: usize>(new: u32, old: u32) -> u32 {
    let unused = 32 - 8 * WIDTH as u32;
    // Shifted into the upper bits, so that the sign of the number is that of 32 bits.
    let grown = new.wrapping_sub(old) << unused;
    ((grown << 1) ^ (grown.cast_signed() >> 31).cast_unsigned()) >> unused
}

/// Returns the bit pattern at this difference from another. Bits beyond its width are arbitrary.
fn sum(difference: u32, old: u32) -> u32 {
    old.wrapping_add((difference >> 1) ^ (difference & 1).wrapping_neg())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn packed(segment: &[u8], base: Option<&[u8]>, width: Width) -> Option<Vec<u8>> {
        let (mut tools, mut packed) = (Tools::default(), vec![9; 100]);
        pack(segment, base, width, &mut tools, &mut packed).then_some(packed)
    }

    fn unpacked(
        packed: &[u8],
        base: Option<&[u8]>,
        width: Width,
        length: usize,
    ) -> Result<Vec<u8>, Malformed> {
        let mut bytes = packed.to_vec();
        unpack(&mut bytes, base, width, length, &mut Tools::default()).map(|()| bytes)
    }

    /// Weights as a model has them, from a seed.
    fn weights(n: usize, seed: u32) -> Vec<u8> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (f64::from(state) / f64::from(u32::MAX) - 0.5) as f32 / 10.0
        };
        (0..n).flat_map(|_| next().to_le_bytes()).collect()
    }

    #[test]
    fn differences_of_either_sign_are_small_numbers() {
        // Worked out by hand: 0, -1, 1, -2, 2 become 0, 1, 2, 3, 4, whatever the width.
        for (new, code) in [(100, 0), (99, 1), (101, 2), (98, 3), (102, 4)] {
            assert_eq!(
                (difference::<2>(new, 100), difference::<4>(new, 100)),
                (code, code)
            );
        }
        assert_eq!(
            (difference::<2>(0, 0xffff), difference::<4>(0, u32::MAX)),
            (2, 2),
            "wraps around"
        );
        assert_eq!(
            (difference::<2>(0x8000, 0), difference::<4>(1 << 31, 0)),
            (0xffff, u32::MAX),
            "the farthest"
        );
    }

    #[test]
    fn planes_are_the_first_bytes_then_the_second_and_the_rest_as_it_is() {
        let mut planes = [0; 11];
        spread::<4>(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], None, &mut planes);
        assert_eq!(planes, [1, 5, 2, 6, 3, 7, 4, 8, 9, 10, 11]);
        let mut planes = [0; 5];
        spread::<2>(&[1, 2, 3, 4, 5], Some(&[0, 2, 4, 4, 9]), &mut planes);
        assert_eq!(
            planes,
            [2, 1, 0, 0, 5],
            "one more, one less, nothing of what is no number"
        );
    }

    #[test]
    fn small_changes_pack_well_and_noise_does_not() {
        let base = weights(1 << 18, 1);
        let mut new = base.clone();
        // Every hundredth number moves in its last bits.
        new.chunks_exact_mut(4)
            .step_by(100)
            .for_each(|number| number[0] = number[0].wrapping_add(3));
        let against = packed(&new, Some(&base), Width::Four).unwrap();
        assert!(
            against.len() < new.len() / 50,
            "{} of {}",
            against.len(),
            new.len()
        );
        assert_eq!(
            unpacked(&against, Some(&base), Width::Four, new.len()).unwrap(),
            new
        );
        let alone = packed(&new, None, Width::Four).unwrap();
        assert!(
            alone.len() < new.len() * 15 / 16 && alone.len() > new.len() / 2,
            "{}",
            alone.len()
        );
        assert_eq!(unpacked(&alone, None, Width::Four, new.len()).unwrap(), new);
        let mut noise = vec![0; 1 << 16];
        blake3::Hasher::new().finalize_xof().fill(&mut noise);
        assert_eq!(packed(&noise, None, Width::Four), None);
        assert_eq!(
            (
                packed(&[], None, Width::Two),
                packed(&[1], Some(&[1]), Width::Two)
            ),
            (None, None)
        );
    }

    #[test]
    fn tools_serve_again_after_a_failure_and_after_they_were_cleared() {
        let bench = Workbench::default();
        let segment = weights(1 << 14, 9);
        for _ in 0..2 {
            let mut packed = Vec::new();
            assert!(!pack(
                &[1],
                None,
                Width::Four,
                &mut bench.tools(),
                &mut packed
            ));
            assert!(pack(
                &segment,
                None,
                Width::Four,
                &mut bench.tools(),
                &mut packed
            ));
            let mut garbage = b"garbage".to_vec();
            assert!(unpack(&mut garbage, None, Width::Four, 1000, &mut bench.tools()).is_err());
            unpack(
                &mut packed,
                None,
                Width::Four,
                segment.len(),
                &mut bench.tools(),
            )
            .unwrap();
            assert_eq!(packed, segment);
            bench.clear();
        }
    }

    #[test]
    fn truncated_or_wrongly_sized_packing_is_an_error() {
        let segment = weights(1000, 3);
        let whole = packed(&segment, None, Width::Four).unwrap();
        for cut in [0, 1, 5, whole.len() / 2, whole.len() - 1] {
            let refused = unpacked(&whole[..cut], None, Width::Four, segment.len());
            assert!(refused.is_err(), "cut at {cut}");
        }
        let longer = unpacked(&whole, None, Width::Four, segment.len() + 1);
        assert_eq!(
            longer,
            Err(Malformed::Length {
                expected: segment.len() + 1,
                got: segment.len()
            })
        );
        assert!(unpacked(&whole, None, Width::Four, segment.len() - 1).is_err());
        assert!(
            unpacked(
                &[whole.as_slice(), &[0]].concat(),
                None,
                Width::Four,
                segment.len()
            )
            .is_err()
        );
    }

    #[test]
    fn unpacking_beyond_the_length_allocates_nothing() {
        let bomb = zstd::bulk::compress(&vec![0; 64 << 20], 1).unwrap();
        assert!(bomb.len() < 10_000);
        let (mut bytes, mut tools) = (bomb, Tools::default());
        let refused = unpack(&mut bytes, None, Width::Four, 1000, &mut tools);
        assert_eq!(refused, Err(Malformed::Undecodable));
        assert_eq!(tools.planes.capacity(), 1000);
    }

    proptest! {
        #[test]
        fn comes_back_to_the_bit(
            numbers in prop::collection::vec((any::<u32>(), 0..4_u32), 0..700),
            end in 0..5_usize,
            against: bool,
        ) {
            // The base is nearly the same in most numbers, any numbers at all in some.
            let new: Vec<u8> = numbers.iter().flat_map(|(new, _)| new.to_le_bytes()).chain((0..end as u8).rev()).collect();
            let old = |(new, shift): &(u32, u32)| new.wrapping_add(new.rotate_left(9) >> (8 * shift)).to_le_bytes();
            let old: Vec<u8> = numbers.iter().flat_map(old).chain(0..end as u8).collect();
            let base = against.then_some(old.as_slice());
            for width in [Width::Two, Width::Four] {
                let mut planes = vec![0; new.len()];
                let mut back = vec![0; new.len()];
                match width {
                    Width::Two => { spread::<2>(&new, base, &mut planes); gather::<2>(&planes, base, &mut back); }
                    Width::Four => { spread::<4>(&new, base, &mut planes); gather::<4>(&planes, base, &mut back); }
                }
                prop_assert_eq!(&back, &new);
                if let Some(packed) = packed(&new, base, width) {
                    prop_assert!(packed.len() < new.len());
                    prop_assert_eq!(&unpacked(&packed, base, width, new.len()).unwrap(), &new);
                }
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            length in 0..5000_usize,
            at in 0..4000_usize,
            bit in 0..8_u8,
        ) {
            let _ = unpacked(&bytes, None, Width::Two, length);
            let segment = weights(1000, 5);
            let mut damaged = packed(&segment, None, Width::Four).unwrap();
            let at = at % damaged.len();
            damaged[at] ^= 1 << bit;
            if let Ok(wrong) = unpacked(&damaged, None, Width::Four, segment.len()) {
                prop_assert_eq!(wrong.len(), segment.len());
            }
        }
    }
}
