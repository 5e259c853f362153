//! What a segment holds, and how it becomes bytes.

use std::path::{Path, PathBuf};

use fednode_core::spec::Extension;
use fednode_core::{BlobId, FederationId, NodeId, Role, Round, Timestamp};
use fednode_engine::image::{AggregatorImage, NodeImage};
use fednode_engine::{Input, Output};
use fednode_net::codec;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// First line of every segment. The number changes with the form of a segment.
pub(super) const MAGIC: &[u8] = b"fednode recording 1\n";
/// What all versions of that line have in common.
pub(super) const MAGIC_BEGINS: &[u8] = b"fednode recording ";
/// Most bytes of one record: more than any image that fits into a recording.
pub(super) const MAX_RECORD: usize = 1 << 30;
/// Version of the software that records.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Bytes before a record's body: its length and the beginning of its hash.
const PREFIX: usize = 8;
/// How the name of a segment ends.
const ENDING: &str = "seg";

/// Why a segment begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Beginning {
    /// The member was started.
    Start,
    /// The segment before was full; it ends where this one begins.
    Full,
    /// Inputs were not written down: the disk was too slow.
    Gap,
}

/// What a segment says before the image.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Header {
    pub(super) version: String,
    pub(super) federation: FederationId,
    /// The spec as TOML: a machine needs it, and an aggregator's state folder has no other copy.
    pub(super) spec: String,
    /// The rounds that the organiser has added to it.
    #[serde(default)]
    pub(super) extensions: Vec<Extension>,
    /// The end before the rounds that were added last.
    #[serde(default)]
    pub(super) since: Round,
    pub(super) node: NodeId,
    pub(super) role: Role,
    /// Number of the first input.
    pub(super) first: u64,
    pub(super) beginning: Beginning,
}

/// The whole state of a member's machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Image {
    /// A node's.
    Node(Box<NodeImage>),
    /// An aggregator's.
    Aggregator(Box<AggregatorImage>),
}

/// One input, its time, and a hash of what the machine answered.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Moment {
    /// The machine's time.
    pub at: Timestamp,
    /// The input.
    pub input: Input,
    /// The first bytes of the hash of the outputs.
    pub answer: u64,
}

/// Returns the first bytes of the hash of outputs.
pub(super) fn answer_of(outputs: &[Output]) -> u64 {
    beginning_of(&BlobId::of(&codec::encode(&outputs)))
}

fn beginning_of(hash: &BlobId) -> u64 {
    let first = hash.as_bytes().first_chunk();
    first.map_or(0, |first| u64::from_le_bytes(*first))
}

/// Writes a record: its length, the beginning of its hash, itself.
pub(super) fn record<T: Serialize>(value: &T) -> Vec<u8> {
    let body = codec::encode(value);
    // No record is so long. If one were, its check would fail and the reader would stop before it.
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    let check = BlobId::of(&body);
    [&length.to_le_bytes(), &check.as_bytes()[..4], &body].concat()
}

/// Why a record cannot be read.
#[derive(Debug)]
pub(super) enum Torn {
    /// The bytes end within it, or are not those that were written.
    Incomplete,
    /// It is whole, and not what this version writes.
    Unknown(codec::CodecError),
}

/// Takes a record off the beginning of `bytes`; `None` at their end.
pub(super) fn take<T: DeserializeOwned>(bytes: &mut &[u8]) -> Option<Result<T, Torn>> {
    if bytes.is_empty() {
        return None;
    }
    let Some((body, rest)) = split(bytes) else {
        return Some(Err(Torn::Incomplete));
    };
    *bytes = rest;
    Some(codec::decode(body, MAX_RECORD).map_err(Torn::Unknown))
}

/// Divides bytes into the body of the first record and what follows it; `None` if it is not whole.
fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (prefix, rest) = bytes.split_at_checked(PREFIX)?;
    let (length, check) = prefix.split_first_chunk()?;
    let (body, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    // Four bytes suffice: they tell a torn write from a whole one, not a forger from an owner.
    (BlobId::of(body).as_bytes()[..4] == *check).then_some((body, rest))
}

/// Returns how many whole records follow each other from here.
pub(super) fn count(mut bytes: &[u8]) -> u64 {
    let mut n = 0;
    while let Some((_, rest)) = split(bytes) {
        (bytes, n) = (rest, n + 1);
    }
    n
}

/// Returns how many bytes so many whole records take.
pub(super) fn bytes_of(bytes: &[u8], n_records: u64) -> usize {
    let mut rest = bytes;
    for _ in 0..n_records {
        rest = split(rest).map_or(rest, |(_, rest)| rest);
    }
    bytes.len() - rest.len()
}

/// Returns the file of the segment that begins with this input.
pub(super) fn file_of(folder: &Path, first: u64) -> PathBuf {
    folder.join(format!("{first:012}.{ENDING}"))
}

/// Lists the segments of a folder by their first inputs, oldest first, with their sizes.
///
/// # Errors
/// As the disk does.
pub(super) fn segments(folder: &Path) -> std::io::Result<Vec<(u64, u64)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        let is_segment = path.extension().is_some_and(|ending| ending == ENDING);
        let stem = path.file_stem().and_then(|stem| stem.to_str());
        let first = stem.and_then(|stem| stem.parse().ok());
        // Whoever looks while the member runs may find a segment that is gone a moment later.
        if let (true, Some(first), Ok(about)) = (is_segment, first, entry.metadata()) {
            found.push((first, about.len()));
        }
    }
    // The disk lists files in any order.
    found.sort_unstable();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_is_cut_anywhere_is_incomplete_and_those_before_it_are_good() {
        let whole = [record(&1_u32), record(&"two")].concat();
        for cut in 0..whole.len() {
            let mut bytes = &whole[..cut];
            let first = take::<u32>(&mut bytes);
            let n_first = record(&1_u32).len();
            match cut {
                0 => assert!(first.is_none()),
                cut if cut < n_first => assert!(matches!(first, Some(Err(Torn::Incomplete)))),
                _ => assert!(matches!(first, Some(Ok(1)))),
            }
            assert_eq!(count(&whole[..cut]), u64::from(cut >= n_first));
        }
        assert_eq!(count(&whole), 2);
    }

    #[test]
    fn a_damaged_record_is_no_record_and_neither_is_an_absurd_length() {
        let mut bytes = record(&"some text");
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        assert!(matches!(
            take::<String>(&mut bytes.as_slice()),
            Some(Err(Torn::Incomplete))
        ));
        let absurd = [255; 40];
        assert!(matches!(
            take::<String>(&mut absurd.as_slice()),
            Some(Err(Torn::Incomplete))
        ));
        let other = record(&7_u32);
        assert!(matches!(
            take::<String>(&mut other.as_slice()),
            Some(Err(Torn::Unknown(_)))
        ));
    }
}
