//! The messages of the protocols that two connected nodes speak, with the limit of each.
//!
//! | protocol | request | reply | limit |
//! |---|---|---|---|
//! | `/fednode/greeting/1` | [`Greeting`] | [`Greeting`] | 1 KiB |
//! | `/fednode/hello/1` | [`Hello`] | [`HelloReply`](fednode_core::HelloReply) | 64 KiB |
//! | `/fednode/sync/1` | [`SyncRequest`] | [`SyncReply`] | 160 KiB, 1.25 MiB |
//! | `/fednode/peers/1` | [`PeersRequest`] | [`PeersReply`] | 64 KiB, 256 KiB |
//! | `/fednode/join/1` | in `join` | in `join` | 256 B, 8 MiB |
//! | `/fednode/blob/1` | [`BlobAsk`] | [`BlobAnswer`], then the bytes it announces | 1 KiB |
//!
//! This file has names and bounds only. `task` and `blob` say who sends which message when.

use fednode_core::{
    AdvertId, BlobId, FederationId, Greeting, Hello, NodeId, Sequence, SignedAdvert,
    SignedStatement, Timestamp,
};
use serde::{Deserialize, Serialize};

use crate::blob::Width;
use crate::bounded::Bounded;

/// Name of the protocol of the first messages on a connection.
pub(crate) const GREETING_PROTOCOL: &str = "/fednode/greeting/1";
/// Name of the protocol of the messages after that.
pub(crate) const HELLO_PROTOCOL: &str = "/fednode/hello/1";
/// Name of the anti-entropy protocol.
pub(crate) const SYNC_PROTOCOL: &str = "/fednode/sync/1";
/// Name of the peer exchange.
pub(crate) const PEERS_PROTOCOL: &str = "/fednode/peers/1";
/// Name of the blob transfer.
pub(crate) const BLOB_PROTOCOL: &str = "/fednode/blob/1";

/// Authors in one digest: 64 KiB of request. With more authors a session goes through ranges.
pub(crate) const MAX_DIGEST: usize = 1024;
/// Held blobs that one sync message names. Older ones are found by asking.
pub(crate) const MAX_HOLDS: usize = 256;
/// Adverts in one sync reply, so that tiny ones do not make a long list.
pub(crate) const MAX_SYNC_ADVERTS: usize = 4096;
/// Largest number of nodes that one node follows, at least a quarter of the largest `round.broadcast_set`.
pub const MAX_FOLLOWED: usize = 256;
/// Adverts that one sync request asks for by name: all that a closing names.
pub(crate) const MAX_WANTED: usize = 512;
/// Statements of the organiser in one sync reply. Each is checked where it arrives, in the swarm task.
pub(crate) const MAX_STATEMENTS_AT_ONCE: usize = 64;
/// Bytes of adverts in one sync reply. If there are more, another request follows.
pub(crate) const SYNC_REPLY_BUDGET: usize = 1 << 20;
/// Address records in one reply: enough to find a mesh, too few to be worth an amplification.
pub(crate) const MAX_RECORDS: usize = 64;
/// Addresses of one node, over all its interfaces.
pub(crate) const MAX_ADDRESSES: usize = 16;
/// Bytes of one encoded address record: sixteen addresses of 128 bytes and some names.
pub(crate) const MAX_RECORD_BYTES: usize = 3 << 10;

/// A protocol of one request and one reply.
pub(crate) trait Call: Send + 'static {
    /// Its name on the wire.
    const PROTOCOL: &'static str;
    /// Largest request in bytes.
    const MAX_REQUEST: usize;
    /// Largest reply in bytes.
    const MAX_REPLY: usize;
    /// The request.
    type Request: Serialize + for<'de> Deserialize<'de> + Send + Sync;
    /// The reply.
    type Reply: Serialize + for<'de> Deserialize<'de> + Send + Sync;
}

/// The greeting, before anything is told.
#[derive(Debug)]
pub(crate) enum GreetingCall {}

impl Call for GreetingCall {
    const PROTOCOL: &'static str = GREETING_PROTOCOL;
    const MAX_REQUEST: usize = 1 << 10;
    const MAX_REPLY: usize = 1 << 10;
    type Request = Greeting;
    type Reply = Greeting;
}

/// The hello. Each side sends its own and checks that of the other, so both know the reason of a refusal.
#[derive(Debug)]
pub(crate) enum HelloCall {}

impl Call for HelloCall {
    const PROTOCOL: &'static str = HELLO_PROTOCOL;
    const MAX_REQUEST: usize = 64 << 10;
    const MAX_REPLY: usize = 64 << 10;
    type Request = Hello;
    type Reply = fednode_core::HelloReply;
}

/// Anti-entropy.
#[derive(Debug)]
pub(crate) enum SyncCall {}

impl Call for SyncCall {
    const PROTOCOL: &'static str = SYNC_PROTOCOL;
    const MAX_REQUEST: usize = 160 << 10;
    const MAX_REPLY: usize = SYNC_REPLY_BUDGET + (256 << 10);
    type Request = SyncRequest;
    type Reply = SyncReply;
}

/// Peer exchange.
#[derive(Debug)]
pub(crate) enum PeersCall {}

impl Call for PeersCall {
    const PROTOCOL: &'static str = PEERS_PROTOCOL;
    const MAX_REQUEST: usize = 64 << 10;
    const MAX_REPLY: usize = 256 << 10;
    type Request = PeersRequest;
    type Reply = PeersReply;
}

/// What a node has received of one author: the newest advert, and which of the 63 before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(NodeId, u64, u64, u64)", into = "(NodeId, u64, u64, u64)")]
pub(crate) struct Heard {
    /// The author.
    pub(crate) author: NodeId,
    /// The newest advert.
    pub(crate) newest: Sequence,
    /// Bit `i` tells whether the advert `i` counters before the newest was received. Bit 0 is the newest itself.
    pub(crate) seen: u64,
}

impl From<(NodeId, u64, u64, u64)> for Heard {
    fn from((author, incarnation, counter, seen): (NodeId, u64, u64, u64)) -> Self {
        Self {
            author,
            newest: Sequence {
                incarnation,
                counter,
            },
            seen,
        }
    }
}

impl From<Heard> for (NodeId, u64, u64, u64) {
    fn from(heard: Heard) -> Self {
        (
            heard.author,
            heard.newest.incarnation,
            heard.newest.counter,
            heard.seen,
        )
    }
}

/// What a node has received of all authors from `first` to `last`. It received nothing of an author that is absent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Digest {
    /// The first author of the range.
    pub(crate) first: NodeId,
    /// The last one.
    pub(crate) last: NodeId,
    /// What was received of each.
    pub(crate) heard: Bounded<Heard, MAX_DIGEST>,
}

/// "I have received this; send what I lack."
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SyncRequest {
    /// What the sender has received.
    pub(crate) digest: Digest,
    /// The sender is new here and wants all adverts, also those that gossip may be bringing to others right now.
    pub(crate) everything: bool,
    /// The authors outside the broadcast set whose adverts the sender wants.
    pub(crate) follows: Bounded<NodeId, MAX_FOLLOWED>,
    /// Adverts that the sender wants whatever the digest says, with their authors.
    pub(crate) wanted: Bounded<(NodeId, AdvertId), MAX_WANTED>,
    /// Blobs that the sender completed since its last message.
    pub(crate) holds: Bounded<BlobId, MAX_HOLDS>,
    /// Up to which number the sender has all statements of the organiser.
    pub(crate) statements: u64,
}

/// "Here is what you lack."
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SyncReply {
    /// Adverts that the asking node lacks.
    pub(crate) adverts: Bounded<SignedAdvert, MAX_SYNC_ADVERTS>,
    /// The range has more adverts than fit.
    pub(crate) more: bool,
    /// Blobs that the answering node completed since its last message.
    pub(crate) holds: Bounded<BlobId, MAX_HOLDS>,
    /// The organiser's next statements.
    pub(crate) statements: Bounded<SignedStatement, MAX_STATEMENTS_AT_ONCE>,
}

/// Who may receive an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Scope {
    /// Processes of the same machine only.
    Loopback,
    /// All members of the federation.
    Network,
}

/// The addresses of a node, in its own words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    /// The federation.
    pub(crate) federation: FederationId,
    /// Whose addresses.
    pub(crate) node: NodeId,
    /// Who may receive them.
    pub(crate) scope: Scope,
    /// Binary multiaddresses without the node id.
    pub(crate) addresses: Bounded<serde_bytes::ByteBuf, MAX_ADDRESSES>,
    /// When it was said, by the node's clock.
    pub(crate) issued_at: Timestamp,
    /// For how long it counts.
    pub(crate) minutes: u16,
}

/// A record as it travels: the encoded bytes and the node's signature over them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SignedRecord {
    /// The encoded [`Record`].
    #[serde(with = "serde_bytes")]
    pub(crate) payload: Vec<u8>,
    /// The node's signature.
    #[serde(with = "serde_bytes")]
    pub(crate) signature: Vec<u8>,
}

/// "These are my addresses; which others do you know?"
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PeersRequest {
    /// The sender's own records.
    pub(crate) mine: Bounded<SignedRecord, 2>,
}

/// "These."
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PeersReply {
    /// Records of others, as they signed them.
    pub(crate) records: Bounded<SignedRecord, MAX_RECORDS>,
}

/// Largest header on a blob stream.
pub(crate) const MAX_BLOB_HEADER: usize = 1 << 10;

/// A request on a blob stream. Requests are answered in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BlobAsk {
    /// Returns in the answer.
    pub(crate) id: u32,
    /// The blob, by its hash.
    pub(crate) blob: BlobId,
    /// Which part of it.
    pub(crate) want: Want,
}

/// Which part of a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Want {
    /// The chaining values of all segments, 32 bytes each.
    List,
    /// One segment.
    Segment(u32),
    /// One segment, packed where that is worthwhile.
    Packed {
        /// Its number.
        index: u32,
        /// Bytes of one number.
        width: Width,
        /// A blob that the receiver holds, to pack against.
        base: Option<BlobId>,
    },
    /// Nothing yet: the receiver should fetch the blob, which an advert names in this size.
    Bring {
        /// Bytes of the blob.
        size: u64,
    },
}

/// The header before the bytes, or in their place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BlobAnswer {
    /// That of the request.
    pub(crate) id: u32,
    /// What follows.
    pub(crate) outcome: Answer,
}

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Answer {
    /// This many bytes follow.
    Bytes(u32),
    /// This many bytes follow. They unpack to a longer segment.
    Packed {
        /// How many.
        bytes: u32,
        /// Whether they are the difference of the segment to the named base.
        against: bool,
    },
    /// The blob is not held completely.
    NotHeld,
    /// The blob is being fetched. Ask again.
    Later,
    /// The blob is held but could not be read.
    Failed,
}

#[cfg(test)]
mod tests {
    use fednode_core::{
        Advert, BlobRef, Body, ClosingId, FederationSpec, Global, MAX_ADVERT_BYTES, MAX_BLOB_BYTES,
        MAX_MEMBERS, MAX_SLICES, Member, Proof, Round, Schedule, Slicing,
    };

    use super::*;
    use crate::codec::encode;

    fn largest_statement() -> SignedStatement {
        SignedStatement {
            payload: vec![255; 512],
            signature: vec![255; 64],
        }
    }

    #[test]
    fn the_largest_greeting_fits_its_limit() {
        let node = NodeId::from_bytes([255; 32]);
        let greeting = Greeting {
            protocol: u32::MAX,
            proof: Some(Proof::make(node, node, node)),
            certificate: Some(largest_statement()),
        };
        assert!(encode(&greeting).len() <= GreetingCall::MAX_REPLY);
    }

    /// However many members a mean has, the closing that names the words for its slices fits into an advert.
    #[test]
    fn the_largest_closing_of_a_mean_in_slices_fits_an_advert() {
        let mut spec = FederationSpec::default();
        spec.round.slices = MAX_SLICES;
        let schedule = Schedule::of(&spec);
        let (node, advert) = (
            NodeId::from_bytes([255; 32]),
            AdvertId::from_bytes([255; 32]),
        );
        let mean = BlobRef {
            id: BlobId::from_bytes([255; 32]),
            size: MAX_BLOB_BYTES,
        };
        for members in [2, 100, 250, 400, MAX_MEMBERS] {
            let parts = (MAX_BLOB_BYTES, members);
            let slicing = Slicing::of(&spec, &schedule, Round(u32::MAX), parts).unwrap();
            let member = Member {
                node,
                shared: mean,
                weight: f64::MAX,
                advert,
            };
            let global = Global {
                members: vec![member; members],
                mean,
                parent: mean.id,
                previous: Some(ClosingId::from_bytes([255; 32])),
                unmasked: Vec::new(),
                slices: vec![(node, advert); 2 * slicing.n_slices() as usize],
            };
            let advert = Advert {
                federation: FederationId::from_bytes([255; 32]),
                author: node,
                sequence: Sequence {
                    incarnation: u64::MAX,
                    counter: u64::MAX,
                },
                round: Round(u32::MAX),
                issued_at: Timestamp(u64::MAX),
                expires_at: Timestamp(u64::MAX),
                body: Body::from(global),
            };
            let bytes = encode(&advert).len();
            assert!(bytes <= MAX_ADVERT_BYTES, "{members} members: {bytes}");
        }
    }

    /// A full message of every kind must fit its own limit, or two honest nodes could not talk.
    #[test]
    fn the_largest_honest_messages_fit_their_limits() {
        let node = NodeId::from_bytes([255; 32]);
        let sequence = Sequence {
            incarnation: u64::MAX,
            counter: u64::MAX,
        };
        let heard = Heard {
            author: node,
            newest: sequence,
            seen: u64::MAX,
        };
        let digest = Digest {
            first: node,
            last: node,
            heard: Bounded::first_of(std::iter::repeat_n(heard, MAX_DIGEST)),
        };
        let holds = Bounded::first_of(std::iter::repeat_n(
            BlobId::from_bytes([255; 32]),
            MAX_HOLDS,
        ));
        let follows = Bounded::first_of(std::iter::repeat_n(node, MAX_FOLLOWED));
        let wanted = std::iter::repeat_n((node, AdvertId::from_bytes([255; 32])), MAX_WANTED);
        let request = SyncRequest {
            digest,
            everything: true,
            follows,
            wanted: Bounded::first_of(wanted),
            holds: holds.clone(),
            statements: u64::MAX,
        };
        assert!(encode(&request).len() <= SyncCall::MAX_REQUEST);
        let advert = SignedAdvert {
            payload: vec![255; 256 - 64],
            signature: vec![255; 64],
        };
        let adverts = Bounded::first_of(std::iter::repeat_n(advert, MAX_SYNC_ADVERTS));
        let statements = std::iter::repeat_n(largest_statement(), MAX_STATEMENTS_AT_ONCE);
        assert!(
            encode(&SyncReply {
                adverts,
                more: true,
                holds,
                statements: Bounded::first_of(statements),
            })
            .len()
                <= SyncCall::MAX_REPLY
        );
        let record = SignedRecord {
            payload: vec![255; MAX_RECORD_BYTES],
            signature: vec![255; 64],
        };
        let records = Bounded::first_of(std::iter::repeat_n(record, MAX_RECORDS));
        assert!(encode(&PeersReply { records }).len() <= PeersCall::MAX_REPLY);
        let address = serde_bytes::ByteBuf::from(vec![255; 128]);
        let addresses = Bounded::first_of(std::iter::repeat_n(address, MAX_ADDRESSES));
        let (federation, issued_at) = (FederationId::from_bytes([255; 32]), Timestamp(u64::MAX));
        let record = Record {
            federation,
            node,
            scope: Scope::Loopback,
            addresses,
            issued_at,
            minutes: 9999,
        };
        assert!(encode(&record).len() <= MAX_RECORD_BYTES);
        let blob = BlobId::from_bytes([255; 32]);
        let packed = Want::Packed {
            index: u32::MAX,
            width: Width::Four,
            base: Some(blob),
        };
        let bring = Want::Bring { size: u64::MAX };
        for want in [Want::List, Want::Segment(u32::MAX), packed, bring] {
            assert!(
                encode(&BlobAsk {
                    id: u32::MAX,
                    blob,
                    want
                })
                .len()
                    <= MAX_BLOB_HEADER
            );
        }
        let outcome = Answer::Packed {
            bytes: u32::MAX,
            against: true,
        };
        assert!(
            encode(&BlobAnswer {
                id: u32::MAX,
                outcome
            })
            .len()
                <= MAX_BLOB_HEADER
        );
    }
}
