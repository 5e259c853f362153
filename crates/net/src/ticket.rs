//! The ticket: one line of text that lets one node join.
//!
//! ```text
//!   fednode-join-3mJr7A…     base58 of (CBOR of the ticket, first 4 bytes of its BLAKE3)
//! ```
//!
//! A ticket says where to ask, for which federation, and whose word counts there. It holds a secret that the organiser gave
//! to one invitation. The secret itself never travels: who joins sends a hash of it that is good for its own key only.

use std::fmt;
use std::str::FromStr;

use fednode_core::{FederationId, NodeId, Role, Timestamp};
use libp2p::Multiaddr;
use serde::{Deserialize, Serialize};

use crate::bounded::Bounded;
use crate::codec;
use crate::network_key::NetworkKey;
use crate::wire::MAX_ADDRESSES;

/// What every ticket begins with, so that people and programs know one when they see it.
const PREFIX: &str = "fednode-join-";
/// Bytes of the checksum, which finds what went wrong on the way through mails and hands.
const CHECKSUM_BYTES: usize = 4;
/// Longest text of a ticket that is read.
const MAX_TEXT: usize = 8 << 10;
/// Separates what is derived from secrets from every other use of BLAKE3.
const NAME_CONTEXT: &str = "fednode invitation name 1";
const PROOF_CONTEXT: &str = "fednode invitation proof 1";

/// The secret of an invitation.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct InvitationSecret(#[serde(with = "serde_bytes")] [u8; 32]);

impl InvitationSecret {
    /// Makes a new one.
    #[expect(clippy::disallowed_methods, reason = "nobody may foresee a secret")]
    pub fn generate() -> Self {
        Self(rand::random())
    }

    /// Returns the name of its invitation, which tells nothing of the secret.
    pub fn name(&self) -> [u8; 16] {
        let key = blake3::derive_key(NAME_CONTEXT, &self.0);
        *key.first_chunk().expect("16 of 32 bytes")
    }

    /// Makes what shows `responder` that `joiner` has this secret, and what nobody else can use.
    pub fn proof(&self, joiner: NodeId, responder: NodeId) -> [u8; 32] {
        let key = blake3::derive_key(PROOF_CONTEXT, &self.0);
        let both = [joiner.as_bytes().as_slice(), responder.as_bytes()].concat();
        *blake3::keyed_hash(&key, &both).as_bytes()
    }
}

/// For the organiser's own file, which nobody else can read.
impl fmt::Display for InvitationSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&bs58::encode(self.0).into_string())
    }
}

impl FromStr for InvitationSecret {
    type Err = TicketError;

    fn from_str(text: &str) -> Result<Self, TicketError> {
        let bytes = bs58::decode(text).into_vec();
        let bytes = bytes.map_err(|_| TicketError::Damaged)?;
        let secret = <[u8; 32]>::try_from(bytes).map_err(|_| TicketError::Damaged)?;
        Ok(Self(secret))
    }
}

impl fmt::Debug for InvitationSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InvitationSecret(…)")
    }
}

/// What a node needs to join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ticket {
    /// Where the organiser's process listens, each with its node id.
    pub addresses: Vec<Multiaddr>,
    /// The federation: the spec that comes is checked against this.
    pub federation: FederationId,
    /// Whose word counts.
    pub organiser: NodeId,
    /// The secret of the invitation.
    pub secret: InvitationSecret,
    /// What the invited may be: the program that uses the ticket must be of that kind.
    pub role: Role,
    /// After this the invitation does not count any more.
    pub not_after: Timestamp,
    /// The network key, where the federation has one.
    pub network_key: Option<NetworkKey>,
}

/// Tells why a text is no ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TicketError {
    /// It does not look like one.
    #[error(
        "this is no ticket: one begins with `{PREFIX}`, and the organiser makes it by `fednode invite`"
    )]
    NoTicket,
    /// Letters are missing or wrong.
    #[error("letters of this ticket are missing or wrong: copy the whole line again")]
    Damaged,
    /// It was made by another release.
    #[error("this ticket was made by another release of fednode: use the organiser's")]
    Unreadable,
}

/// Without the names of its fields, because people copy tickets: addresses, federation, organiser, secret, role, last day, network
/// key.
type Content = (
    Bounded<serde_bytes::ByteBuf, MAX_ADDRESSES>,
    FederationId,
    NodeId,
    InvitationSecret,
    Role,
    Timestamp,
    Option<serde_bytes::ByteBuf>,
);

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses = self.addresses.iter();
        let addresses = addresses.map(|address| serde_bytes::ByteBuf::from(address.to_vec()));
        let network_key = self.network_key.as_ref();
        let content: Content = (
            Bounded::first_of(addresses),
            self.federation,
            self.organiser,
            self.secret,
            self.role,
            self.not_after,
            network_key.map(|key| serde_bytes::ByteBuf::from(key.to_bytes())),
        );
        f.write_str(&with_checksum(&codec::encode(&content)))
    }
}

/// Writes the text of a ticket with this content.
pub(crate) fn with_checksum(content: &[u8]) -> String {
    let checksum = blake3::hash(content);
    let bytes = [content, &checksum.as_bytes()[..CHECKSUM_BYTES]].concat();
    format!("{PREFIX}{}", bs58::encode(bytes).into_string())
}

impl FromStr for Ticket {
    type Err = TicketError;

    fn from_str(text: &str) -> Result<Self, TicketError> {
        // Mails break long lines and put spaces around them.
        let text: String = text.split_whitespace().collect();
        let body = text.strip_prefix(PREFIX).ok_or(TicketError::NoTicket)?;
        if text.len() > MAX_TEXT {
            return Err(TicketError::NoTicket);
        }
        let bytes = bs58::decode(body).into_vec();
        let bytes = bytes.map_err(|_| TicketError::Damaged)?;
        let (content, checksum) = bytes
            .split_last_chunk::<CHECKSUM_BYTES>()
            .ok_or(TicketError::Damaged)?;
        // Checked before decoding: a mistyped ticket must not pass for one of another release.
        if blake3::hash(content).as_bytes()[..CHECKSUM_BYTES] != *checksum {
            return Err(TicketError::Damaged);
        }
        let (addresses, federation, organiser, secret, role, not_after, network_key): Content =
            codec::decode(content, MAX_TEXT).map_err(|_| TicketError::Unreadable)?;
        let address = |bytes: serde_bytes::ByteBuf| Multiaddr::try_from(bytes.into_vec());
        let addresses = addresses.into_vec().into_iter().map(address);
        let key = |bytes: serde_bytes::ByteBuf| <[u8; 32]>::try_from(bytes.as_slice());
        let network_key = network_key.map(|bytes| key(bytes).map(NetworkKey::from_bytes));
        Ok(Self {
            addresses: addresses
                .collect::<Result<_, _>>()
                .map_err(|_| TicketError::Unreadable)?,
            federation,
            organiser,
            secret,
            role,
            not_after,
            network_key: network_key
                .transpose()
                .map_err(|_| TicketError::Unreadable)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket() -> Ticket {
        Ticket {
            addresses: vec!["/ip4/192.0.2.7/tcp/4001".parse().unwrap()],
            federation: FederationId::from_bytes([3; 32]),
            organiser: NodeId::from_bytes([4; 32]),
            secret: InvitationSecret::generate(),
            role: Role::Aggregator,
            not_after: Timestamp(5),
            network_key: Some(NetworkKey::generate()),
        }
    }

    #[test]
    fn a_ticket_survives_a_mail_and_tells_when_a_letter_is_wrong() {
        let ticket = ticket();
        let text = ticket.to_string();
        assert!(text.len() < 320, "{}", text.len());
        assert_eq!(text.parse(), Ok(ticket.clone()));
        let broken = format!("  {}\n {}\n", &text[..40], &text[40..]);
        assert_eq!(broken.parse(), Ok(ticket));
        for at in PREFIX.len()..text.len() {
            let mut letters = text.clone().into_bytes();
            letters[at] = if letters[at] == b'2' { b'3' } else { b'2' };
            let wrong = String::from_utf8(letters).unwrap();
            assert_eq!(wrong.parse::<Ticket>(), Err(TicketError::Damaged), "{at}");
        }
        assert_eq!(text[..90].parse::<Ticket>(), Err(TicketError::Damaged));
        assert_eq!("hello".parse::<Ticket>(), Err(TicketError::NoTicket));
    }

    #[test]
    fn a_proof_is_good_for_one_joiner_at_one_responder() {
        let secret = InvitationSecret::generate();
        let (ann, bob) = (NodeId::from_bytes([1; 32]), NodeId::from_bytes([2; 32]));
        let proof = secret.proof(ann, bob);
        assert_eq!(secret.proof(ann, bob), proof);
        assert_ne!(secret.proof(bob, ann), proof);
        assert_ne!(secret.proof(ann, ann), proof);
        assert_ne!(InvitationSecret::generate().proof(ann, bob), proof);
        assert_eq!(format!("{secret:?}"), "InvitationSecret(…)");
    }
}
