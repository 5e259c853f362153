//! The bytes of a checkpoint.
//!
//! ```text
//! magic (8) │ version u32 │ header bytes u64 │ header (JSON) │ meta │ section 1 │ section 2 │ … │ BLAKE3 of all before
//! ```
//!
//! All numbers are little-endian. Every version ends with the checksum, which tells a newer version from a damaged file.
//! The header names the federation, the partition and all lengths. The lengths must add up to the size of the file exactly,
//! so that a damaged file cannot cause an allocation.

use std::io::{self, Read};

use fednode_core::FederationId;
use serde::{Deserialize, Serialize};

use super::{Checkpoint, LoadError};

const MAGIC: [u8; 8] = *b"FEDCKPT\n";
const VERSION: u32 = 1;
/// Magic, version, length of the header.
const PREAMBLE_BYTES: u64 = 8 + 4 + 8;
/// Largest header: far more than 65,536 sections need names.
const MAX_HEADER_BYTES: u64 = 8 << 20;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    federation: FederationId,
    partition_hash: String,
    meta_bytes: u64,
    sections: Vec<SectionHeader>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SectionHeader {
    name: String,
    bytes: u64,
}

/// A checkpoint that is ready to be written: the bytes before and after its own.
#[derive(Debug)]
pub(super) struct Encoded<'a> {
    head: Vec<u8>,
    checkpoint: &'a Checkpoint,
    checksum: [u8; blake3::OUT_LEN],
}

impl<'a> Encoded<'a> {
    pub(super) fn new(checkpoint: &'a Checkpoint, federation: FederationId) -> Self {
        let sections = checkpoint.sections.iter();
        let header = Header {
            federation,
            partition_hash: checkpoint.partition_hash.clone(),
            meta_bytes: checkpoint.meta.len() as u64,
            sections: sections
                .map(|(name, bytes)| SectionHeader {
                    name: name.clone(),
                    bytes: bytes.len() as u64,
                })
                .collect(),
        };
        let header = serde_json::to_vec(&header).expect("a header has only texts and numbers");
        let head = [
            &MAGIC[..],
            &VERSION.to_le_bytes(),
            &(header.len() as u64).to_le_bytes(),
            header.as_slice(),
        ]
        .concat();
        let mut encoded = Self {
            head,
            checkpoint,
            checksum: [0; blake3::OUT_LEN],
        };
        let mut hasher = blake3::Hasher::new();
        encoded.body().iter().for_each(|part| {
            hasher.update(part);
        });
        encoded.checksum = *hasher.finalize().as_bytes();
        encoded
    }

    fn body(&self) -> Vec<&[u8]> {
        let sections = self
            .checkpoint
            .sections
            .iter()
            .map(|(_, bytes)| bytes.as_slice());
        [self.head.as_slice(), self.checkpoint.meta.as_slice()]
            .into_iter()
            .chain(sections)
            .collect()
    }

    /// Returns the whole file in parts, without copying the sections.
    pub(super) fn parts(&self) -> Vec<&[u8]> {
        let mut parts = self.body();
        parts.push(&self.checksum);
        parts
    }

    pub(super) fn n_bytes(&self) -> u64 {
        self.parts().iter().map(|part| part.len() as u64).sum()
    }
}

/// Reads a checkpoint of `file_bytes` bytes and verifies it.
pub(super) fn decode(
    file: impl Read,
    file_bytes: u64,
) -> Result<(Checkpoint, FederationId), LoadError> {
    let mut reader = Hashing {
        inner: file,
        hasher: blake3::Hasher::new(),
    };
    let header = match read_header(&mut reader, file_bytes) {
        Err(error @ LoadError::Version { .. }) => {
            return Err(confirm_version(reader, file_bytes, error));
        }
        header => header?,
    };
    let meta = reader.take_bytes(header.meta_bytes)?;
    let mut sections = Vec::with_capacity(header.sections.len());
    for section in header.sections {
        sections.push((section.name, reader.take_bytes(section.bytes)?));
    }
    let expected = *reader.hasher.finalize().as_bytes();
    if reader.take_bytes(blake3::OUT_LEN as u64)? != expected {
        return Err(LoadError::Corrupt("its checksum is wrong"));
    }
    Ok((
        Checkpoint {
            partition_hash: header.partition_hash,
            meta,
            sections,
        },
        header.federation,
    ))
}

/// Tells a newer version from a flipped bit, by the checksum.
fn confirm_version(mut reader: Hashing<impl Read>, file_bytes: u64, newer: LoadError) -> LoadError {
    let checksum_bytes = blake3::OUT_LEN as u64;
    let mut rest = file_bytes.saturating_sub(PREAMBLE_BYTES + checksum_bytes);
    while rest > 0 {
        let n = rest.min(1 << 20);
        if let Err(error) = reader.take_bytes(n) {
            return error;
        }
        rest -= n;
    }
    let expected = *reader.hasher.finalize().as_bytes();
    match reader.take_bytes(checksum_bytes) {
        Ok(checksum) if checksum == expected => newer,
        Ok(_) => LoadError::Corrupt("its checksum is wrong"),
        Err(error) => error,
    }
}

fn read_header(reader: &mut Hashing<impl Read>, file_bytes: u64) -> Result<Header, LoadError> {
    let preamble = reader.take_bytes(PREAMBLE_BYTES)?;
    let (magic, rest) = preamble.split_at(8);
    let (version, length) = rest.split_at(4);
    let version = u32::from_le_bytes(version.try_into().expect("split at four bytes"));
    let header_bytes = u64::from_le_bytes(length.try_into().expect("eight bytes are left"));
    match () {
        () if magic != MAGIC => {
            return Err(LoadError::Corrupt("it does not begin like a checkpoint"));
        }
        () if version > VERSION => {
            return Err(LoadError::Version {
                found: version,
                supported: VERSION,
            });
        }
        () if header_bytes > MAX_HEADER_BYTES.min(file_bytes) => {
            return Err(LoadError::Corrupt("its header is cut"));
        }
        () => {}
    }
    let bytes = reader.take_bytes(header_bytes)?;
    let header: Header = serde_json::from_slice(&bytes)
        .map_err(|_| LoadError::Corrupt("its header cannot be read"))?;
    let sections = header.sections.iter().map(|section| section.bytes);
    let fixed = [
        PREAMBLE_BYTES,
        header_bytes,
        header.meta_bytes,
        blake3::OUT_LEN as u64,
    ];
    let total = sections.chain(fixed).try_fold(0, u64::checked_add);
    if total == Some(file_bytes) {
        Ok(header)
    } else {
        Err(LoadError::Corrupt("its length is wrong"))
    }
}

/// A reader that hashes all it reads.
struct Hashing<R> {
    inner: R,
    hasher: blake3::Hasher,
}

impl<R: Read> Hashing<R> {
    /// Reads exactly `n` bytes. The caller has compared `n` with the length of the file.
    fn take_bytes(&mut self, n: u64) -> Result<Vec<u8>, LoadError> {
        let len =
            usize::try_from(n).map_err(|_| LoadError::Corrupt("it does not fit into memory"))?;
        let mut bytes = vec![0; len];
        self.inner
            .read_exact(&mut bytes)
            .map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => LoadError::Corrupt("it is cut off"),
                _ => LoadError::Io(error),
            })?;
        self.hasher.update(&bytes);
        Ok(bytes)
    }
}
