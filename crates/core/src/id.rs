//! Names: of nodes, federations, blobs, experts and rounds.
//!
//! Every name is a small `Copy` value with one textual form, which is also its serialised form in logs, JSON and
//! TOML. On the wire (a binary format) names travel as raw bytes. Nothing here looks anything up.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The protobuf framing that turns a raw ed25519 key into the multihash of a libp2p peer id.
const PEER_ID_PREFIX: [u8; 6] = [0x00, 0x24, 0x08, 0x01, 0x12, 0x20];

/// Tells why a textual or binary name could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The text is not base58 or hexadecimal, whichever this name uses.
    #[error("`{0}` is not a valid {1}")]
    Malformed(String, &'static str),
    /// The bytes have another length than the name needs.
    #[error("a {name} has {expected} bytes, got {got}")]
    Length {
        /// Which name.
        name: &'static str,
        /// Bytes needed.
        expected: usize,
        /// Bytes given.
        got: usize,
    },
}

macro_rules! byte_name {
    ($(#[$meta:meta])* $name:ident, $label:literal) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name([u8; 32]);

        impl $name {
            /// Wraps raw bytes.
            pub const fn from_bytes(bytes: [u8; 32]) -> Self {
                Self(bytes)
            }

            /// Returns the raw bytes.
            pub const fn as_bytes(&self) -> &[u8; 32] {
                &self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.short())
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                if serializer.is_human_readable() {
                    serializer.collect_str(self)
                } else {
                    serde_bytes::Bytes::new(&self.0).serialize(serializer)
                }
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                use serde::de::Error;
                if deserializer.is_human_readable() {
                    String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
                } else {
                    let bytes = serde_bytes::ByteBuf::deserialize(deserializer)?;
                    let raw = <[u8; 32]>::try_from(bytes.as_slice()).map_err(|_| {
                        D::Error::custom(NameError::Length { name: $label, expected: 32, got: bytes.len() })
                    })?;
                    Ok(Self(raw))
                }
            }
        }
    };
}

byte_name!(
    /// A node: its ed25519 public key, shown as the libp2p peer id (`12D3KooW…`).
    NodeId,
    "node id"
);
byte_name!(
    /// A federation: BLAKE3 of the canonical spec, so that nodes with different specs cannot mix by accident.
    FederationId,
    "federation id"
);
byte_name!(
    /// A blob: BLAKE3 of its canonical bytes.
    BlobId,
    "blob id"
);

byte_name!(
    /// An advert: BLAKE3 of its bytes as they were signed.
    AdvertId,
    "advert id"
);
byte_name!(
    /// A closed round: BLAKE3 of what it says. Who says it is not part of it, so that two who closed a round alike agree.
    ClosingId,
    "closing id"
);

impl NodeId {
    /// Returns the binary libp2p peer id (the identity multihash of the public key).
    pub fn to_peer_id_bytes(&self) -> Vec<u8> {
        [PEER_ID_PREFIX.as_slice(), &self.0].concat()
    }

    /// Reads the binary libp2p peer id of an ed25519 key.
    ///
    /// # Errors
    /// Fails for peer ids that are not the identity multihash of an ed25519 key.
    pub fn from_peer_id_bytes(bytes: &[u8]) -> Result<Self, NameError> {
        let malformed =
            || NameError::Malformed(bs58::encode(bytes).into_string(), "ed25519 node id");
        let key = bytes
            .strip_prefix(PEER_ID_PREFIX.as_slice())
            .ok_or_else(malformed)?;
        Ok(Self(key.try_into().map_err(|_| malformed())?))
    }

    /// Returns what people call the node, else the last eight characters: all ids begin alike.
    pub fn short(&self) -> String {
        crate::names::of(self).unwrap_or_else(|| self.letters())
    }

    /// Returns the last eight characters, whatever people call the node: for texts that must be the same in a replay.
    pub fn letters(&self) -> String {
        let full = self.to_string();
        full[full.len() - 8..].to_owned()
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&bs58::encode(self.to_peer_id_bytes()).into_string())
    }
}

impl FromStr for NodeId {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let malformed = || NameError::Malformed(text.to_owned(), "node id (expected 12D3KooW…)");
        let bytes = bs58::decode(text).into_vec().map_err(|_| malformed())?;
        Self::from_peer_id_bytes(&bytes).map_err(|_| malformed())
    }
}

macro_rules! hex_name {
    ($name:ident, $label:literal) => {
        impl $name {
            /// Returns the first sixteen hexadecimal digits, for logs and topic names.
            pub fn short(&self) -> String {
                self.to_string()[..16].to_owned()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl FromStr for $name {
            type Err = NameError;

            fn from_str(text: &str) -> Result<Self, NameError> {
                let hash = blake3::Hash::from_hex(text).map_err(|_| {
                    NameError::Malformed(text.to_owned(), concat!($label, " (64 hex digits)"))
                })?;
                Ok(Self(*hash.as_bytes()))
            }
        }
    };
}

hex_name!(FederationId, "federation id");
hex_name!(BlobId, "blob id");
hex_name!(AdvertId, "advert id");
hex_name!(ClosingId, "closing id");

impl AdvertId {
    /// Names the bytes that an author signed.
    pub fn of(payload: &[u8]) -> Self {
        Self(*blake3::hash(payload).as_bytes())
    }
}

impl BlobId {
    /// Names bytes: BLAKE3 of all of them.
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }
}

/// The shared part a node trained on, named by its blob. Proxies, heads and statistics of two nodes compare only
/// within one lineage: in another feature space their cosines are noise (FedMoE-DA).
pub type Lineage = BlobId;

/// A round of the federation. Rounds count from 1; round 0 is the initial model that nobody has trained yet.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Round(pub u32);

impl Round {
    /// The initial model, before any training.
    pub const ZERO: Self = Self(0);

    /// Returns the round after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// Returns the round before this one; round 0 is its own predecessor.
    #[must_use]
    pub const fn previous(self) -> Self {
        Self(self.0.saturating_sub(1))
    }
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Which of a node's experts, counting from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Slot(pub u16);

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An expert of the federation: whose, and which one.
///
/// The order (owner, then slot) is the deterministic tie rule of the aggregation plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ExpertId {
    /// The node that trains it.
    pub owner: NodeId,
    /// Its place among that node's experts.
    pub slot: Slot,
}

impl fmt::Display for ExpertId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.owner.short(), self.slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_id_reads_what_libp2p_prints() {
        // The peer id of the all-zero public key, computed with libp2p-identity.
        let zero = NodeId::from_bytes([0; 32]);
        let text = zero.to_string();
        assert!(text.starts_with("12D3KooW"), "{text}");
        assert_eq!(text.parse::<NodeId>(), Ok(zero));
    }

    #[test]
    fn rejects_a_name_of_another_kind() {
        assert!("12D3Koo".parse::<NodeId>().is_err());
        assert!(
            "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"
                .parse::<NodeId>()
                .is_err()
        );
        assert!("abc".parse::<BlobId>().is_err());
    }

    #[test]
    fn blob_id_is_blake3() {
        let expected = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262";
        assert_eq!(BlobId::of(b"").to_string(), expected);
        assert_eq!(expected.parse(), Ok(BlobId::of(b"")));
    }
}
