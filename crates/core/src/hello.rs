//! Meet: what two nodes tell each other on every new connection, before anything else.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::membership::{Absence, SignedStatement};
use crate::spec::Entry;
use crate::{FederationId, NodeId, Timestamp};

/// Version of the protocol; nodes of different versions refuse each other.
pub const PROTOCOL_VERSION: u32 = 4;

/// What a process is to the federation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Trains (`fednode start`).
    Node,
    /// Averages and introduces, never trains (`fedboot start`).
    Aggregator,
}

/// The first words on a connection. They tell a stranger nothing but the version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Greeting {
    /// [`PROTOCOL_VERSION`].
    pub protocol: u32,
    /// Shows that the sender knows the federation's organiser; absent where the federation has none.
    pub proof: Option<Proof>,
    /// The sender's certificate. The side that was called sends it once the caller has shown its proof.
    pub certificate: Option<SignedStatement>,
}

/// A hash that only who knows the organiser's key can make. It is good between two nodes and in one direction only.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Proof(#[serde(with = "serde_bytes")] [u8; 32]);

/// Separates these proofs from every other use of BLAKE3.
const PROOF_CONTEXT: &str = "fednode greeting 1";

impl Proof {
    /// Makes the proof of `prover` for `verifier`.
    pub fn make(organiser: NodeId, prover: NodeId, verifier: NodeId) -> Self {
        let key = blake3::derive_key(PROOF_CONTEXT, organiser.as_bytes());
        let both = [prover.as_bytes().as_slice(), verifier.as_bytes()].concat();
        Self(*blake3::keyed_hash(&key, &both).as_bytes())
    }

    /// Tells whether two proofs are the same, in a time that tells nothing.
    pub fn is(self, other: Self) -> bool {
        blake3::Hash::from_bytes(self.0) == blake3::Hash::from_bytes(other.0)
    }
}

impl std::fmt::Debug for Proof {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Proof(…)")
    }
}

/// What the two sides tell each other once both have greeted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    /// [`PROTOCOL_VERSION`].
    pub protocol: u32,
    /// Name and version of the software, for logs only.
    pub software: String,
    /// What this process is.
    pub role: Role,
    /// The federation.
    pub federation: FederationId,
    /// The spec, key by key, so that a refusal can name the first difference.
    pub spec: Vec<Entry>,
    /// What the sender's clock shows.
    pub clock: Timestamp,
    /// The sender's certificate, where the federation has an organiser.
    pub certificate: Option<SignedStatement>,
}

/// The answer to a hello.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HelloReply {
    /// "And I am this."
    Hello(Box<Hello>),
    /// "You are no member, for this reason." A revocation is shown, because nobody else's word for it counts.
    Unwelcome(Absence, Option<SignedStatement>),
}

/// Tells why two nodes do not talk to each other.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Another version of the protocol.
    #[error(
        "the peer speaks protocol {theirs}, this node speaks {ours}: use the same release on both"
    )]
    Protocol {
        /// Our version.
        ours: u32,
        /// Their version.
        theirs: u32,
    },
    /// The specs differ.
    #[error("the specs differ first in `{key}`: ours is {ours}, the peer's is {theirs}")]
    Spec {
        /// The first differing key.
        key: String,
        /// Our value.
        ours: String,
        /// Their value.
        theirs: String,
    },
    /// The clocks differ.
    #[error("the clocks differ by {0} s: set both by NTP")]
    Clock(u64),
    /// The peer knows nothing of our federation.
    #[error(
        "the peer does not know this federation's organiser: it belongs to another federation, or to none"
    )]
    Stranger,
    /// The peer's federation has an organiser, and ours has not, or another one.
    #[error(
        "the peer's federation admits members by ticket: ask its organiser for one, then run `fednode join TICKET`"
    )]
    Closed,
    /// The peer is no member.
    #[error("the peer {0}")]
    NoMember(Absence),
    /// The peer says that we are no member.
    #[error(
        "the peer says that this node {0}: ask the organiser for a new ticket, then run `fednode join TICKET`, or \
         `fednode rotate-key TICKET` if its key was revoked"
    )]
    Unwelcome(Absence),
}

impl Hello {
    /// Checks a peer's hello against ours, heard at `now`.
    ///
    /// # Errors
    /// Names the reason why the two must not talk.
    pub fn check(
        &self,
        theirs: &Self,
        max_skew: std::time::Duration,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        if self.protocol != theirs.protocol {
            return Err(Refusal::Protocol {
                ours: self.protocol,
                theirs: theirs.protocol,
            });
        }
        if self.federation != theirs.federation {
            return Err(first_difference(&self.spec, &theirs.spec));
        }
        let skew = now.distance(theirs.clock);
        if skew > max_skew {
            Err(Refusal::Clock(skew.as_secs()))
        } else {
            Ok(())
        }
    }
}

/// The key that differs between any two runs, also where somebody chose other settings: it is named only if nothing else differs.
const RUN: &str = "fingerprints.run";

/// Names the first key in which two specs differ, in our order.
fn first_difference(ours: &[Entry], theirs: &[Entry]) -> Refusal {
    // By name: the peer says how many there are.
    let [ours_by_key, theirs_by_key] = [ours, theirs].map(|entries| {
        let named = entries.iter().rev();
        let named = named.map(|entry| (entry.key.as_str(), entry.value.as_str()));
        named.collect::<BTreeMap<_, _>>()
    });
    let value = |entries: &BTreeMap<&str, &str>, key| {
        let value = entries.get(key).copied();
        value.unwrap_or("absent").to_owned()
    };
    let keys = ours.iter().chain(theirs).map(|entry| entry.key.as_str());
    let settings = keys.filter(|key| *key != RUN);
    for key in settings.chain([RUN]) {
        let (ours, theirs) = (value(&ours_by_key, key), value(&theirs_by_key, key));
        if ours != theirs {
            return Refusal::Spec {
                key: key.to_owned(),
                ours,
                theirs,
            };
        }
    }
    // The ids differ although no key does: the peer computed its id wrongly or lies.
    Refusal::Spec {
        key: "federation id".into(),
        ours: "computed from the spec".into(),
        theirs: "not".into(),
    }
}
