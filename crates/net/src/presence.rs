//! Presence: members that are here although this node is not connected with them.
//!
//! Two members behind routers cannot reach each other. Both are connected with `fedboot`, so each says "I am here" in a
//! signed message that others pass on. What is counted is then who can be heard, not who can be dialed.
//!
//! ```text
//!   unknown ──"here"──► here ──nothing for as long as it said, or "gone"──► gone
//!                        ▲                                                   │
//!                        └───────────────── a newer "here" ──────────────────┘
//! ```
//!
//! Pure; the clocks are arguments. Only a newer message of a member changes anything, so old ones cannot be played again.
//!
//! Where keys are free, one peer can bring any number of members. When there is no more room, a newcomer takes the place of
//! the latest one of the peer that brought most, unless its own peer brought as many. So those who came before a flood stay.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use fednode_core::limits::CLOCK_SKEW;
use fednode_core::{FederationId, NodeId, Role, SignedStatement, Timestamp};
use serde::{Deserialize, Serialize};

use crate::codec;
use crate::identity::{self, Identity};

/// Separates signatures over presence from all others.
const DOMAIN: &[u8] = b"fednode presence 1\n";
/// Largest message. An honest one has about 300 bytes, and 600 with a certificate.
pub(crate) const MAX_PRESENCE_BYTES: usize = 1024;
/// Longest time that one message counts, however rarely members speak.
const LONGEST_LIFE: Duration = Duration::from_secs(3600);
/// Members beyond twice the planned number that are remembered. Keys cost nothing, so a flood must not fill the memory.
const SPARE: usize = 64;
/// Most members that are remembered, whatever was planned.
const MAX_KEPT: usize = 4096;

/// "I am here", in a member's own words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Presence {
    /// The federation.
    pub(crate) federation: FederationId,
    /// Who is there.
    pub(crate) node: NodeId,
    /// What it is.
    pub(crate) role: Role,
    /// When it was said, by the member's clock.
    pub(crate) issued_at: Timestamp,
    /// For how long this counts; 0 says that the member goes.
    pub(crate) seconds: u32,
    /// The member's certificate, where the federation has an organiser: who hears this may never meet the member.
    pub(crate) certificate: Option<SignedStatement>,
}

/// A presence as it travels: the encoded bytes and the member's signature over them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SignedPresence {
    /// The encoded [`Presence`].
    #[serde(with = "serde_bytes")]
    payload: Vec<u8>,
    /// The member's signature.
    #[serde(with = "serde_bytes")]
    signature: Vec<u8>,
}

impl Presence {
    /// Encodes and signs it.
    pub(crate) fn seal(&self, identity: &Identity) -> Vec<u8> {
        let payload = codec::encode(self);
        let signature = identity.sign(DOMAIN, &payload);
        codec::encode(&SignedPresence { payload, signature })
    }
}

/// Tells why a message is not taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PresenceError {
    #[error("a malformed presence")]
    Malformed,
    #[error("a presence with a wrong signature")]
    Signature,
    #[error("a presence of another federation")]
    Federation,
    #[error("an old presence, or one from the future")]
    Stale,
    #[error("a presence of a node that is not wanted")]
    Unwanted,
    #[error("one presence more than there is room for")]
    NoRoom,
    #[error("one message more than any federation has")]
    Flood,
}

impl PresenceError {
    /// Tells whether an honest node might have passed the message on. Then it must not lower that node's standing.
    pub(crate) fn is_innocent(self) -> bool {
        match self {
            Self::Malformed | Self::Signature | Self::Federation => false,
            Self::Stale | Self::Unwanted | Self::NoRoom | Self::Flood => true,
        }
    }
}

/// A message that decodes, and whose signature was not checked yet.
#[derive(Debug)]
pub(crate) struct Claim {
    presence: Presence,
    signed: SignedPresence,
}

impl Claim {
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, PresenceError> {
        let signed: SignedPresence =
            codec::decode(bytes, MAX_PRESENCE_BYTES).map_err(|_| PresenceError::Malformed)?;
        let presence = codec::decode(&signed.payload, MAX_PRESENCE_BYTES)
            .map_err(|_| PresenceError::Malformed)?;
        Ok(Self { presence, signed })
    }

    pub(crate) fn node(&self) -> NodeId {
        self.presence.node
    }

    pub(crate) fn role(&self) -> Role {
        self.presence.role
    }

    pub(crate) fn certificate(&self) -> Option<&SignedStatement> {
        self.presence.certificate.as_ref()
    }

    fn is_signed(&self) -> bool {
        let SignedPresence { payload, signature } = &self.signed;
        identity::signed_by(&self.presence.node, DOMAIN, payload, signature)
    }
}

/// What a message changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// The member was not known to be here.
    Came(NodeId, Role),
    /// The member was known to be here, and goes.
    Went(NodeId),
    /// Nothing but the time until which it counts.
    None,
}

/// What follows from a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) change: Change,
    /// Who was here and is not remembered any more, for lack of room.
    pub(crate) displaced: Option<NodeId>,
}

/// Who is here, as far as others have passed on.
#[derive(Debug)]
pub(crate) struct Company {
    federation: FederationId,
    longest_life: Duration,
    max_kept: usize,
    heard: BTreeMap<NodeId, Heard>,
}

#[derive(Debug)]
struct Heard {
    role: Role,
    issued_at: Timestamp,
    /// The peer that passed on the first message.
    source: NodeId,
    since: Instant,
    until: Instant,
    is_here: bool,
}

impl Company {
    /// Begins with nobody. No message counts longer than `longest_life`, whatever its author claims.
    pub(crate) fn new(federation: FederationId, planned: u32, longest_life: Duration) -> Self {
        Self {
            federation,
            longest_life: longest_life.min(LONGEST_LIFE),
            max_kept: (2 * planned as usize + SPARE).min(MAX_KEPT),
            heard: BTreeMap::new(),
        }
    }

    /// Takes in what a member says of itself. The source is the peer that passed it on.
    pub(crate) fn enter(
        &mut self,
        claim: &Claim,
        source: NodeId,
        now: Timestamp,
        at: Instant,
    ) -> Result<Outcome, PresenceError> {
        let presence = &claim.presence;
        if presence.federation != self.federation {
            return Err(PresenceError::Federation);
        }
        let known = self.heard.get(&presence.node);
        let is_news = known.is_none_or(|known| known.issued_at < presence.issued_at);
        if !is_news || presence.issued_at.distance(now) > CLOCK_SKEW {
            return Err(PresenceError::Stale);
        }
        // The signature last: it costs a hundred times as much as everything above.
        if !claim.is_signed() {
            return Err(PresenceError::Signature);
        }
        let (source, since) = known.map_or((source, at), |known| (known.source, known.since));
        let is_full = known.is_none() && self.heard.len() >= self.max_kept;
        let displaced = if is_full {
            let last = self.displaced_by(&source).ok_or(PresenceError::NoRoom)?;
            let gone = self.heard.remove(&last);
            gone.filter(|gone| gone.is_here).map(|_| last)
        } else {
            None
        };
        let life = Duration::from_secs(presence.seconds.into()).min(self.longest_life);
        let (role, issued_at) = (presence.role, presence.issued_at);
        let is_here = !life.is_zero();
        let heard = Heard {
            role,
            issued_at,
            source,
            since,
            // By the monotonic clock: setting the wall clock must neither end nor prolong a presence.
            until: at + life,
            is_here,
        };
        let before = self.heard.insert(presence.node, heard);
        let was_here = before.is_some_and(|before| before.is_here);
        let change = match (was_here, is_here) {
            (false, true) => Change::Came(presence.node, role),
            (true, false) => Change::Went(presence.node),
            (true, true) | (false, false) => Change::None,
        };
        Ok(Outcome { change, displaced })
    }

    /// Returns the member that makes room for one more of this source; nobody if no source has more than that would have.
    fn displaced_by(&self, source: &NodeId) -> Option<NodeId> {
        let mut brought: BTreeMap<NodeId, usize> = BTreeMap::new();
        for heard in self.heard.values() {
            *brought.entry(heard.source).or_default() += 1;
        }
        let of_source = brought.get(source).copied().unwrap_or_default();
        let (most, n) = brought.into_iter().max_by_key(|(_, n)| *n)?;
        // With one less, two sources would take the last place from each other in turn.
        if n <= of_source + 1 {
            return None;
        }
        let of_most = self.heard.iter().filter(|(_, heard)| heard.source == most);
        let last = of_most.max_by_key(|(_, heard)| heard.since);
        last.map(|(node, _)| *node)
    }

    /// Forgets that a member is here, until it says so again.
    pub(crate) fn leave(&mut self, node: &NodeId) {
        // The entry stays: without its stamp an older "here" could be played again.
        if let Some(heard) = self.heard.get_mut(node) {
            heard.is_here = false;
        }
    }

    /// Returns the members of which nothing was heard for as long as they said, and those that went.
    pub(crate) fn expire(&mut self, now: Timestamp, at: Instant) -> Vec<NodeId> {
        // Kept while an old message could be played again.
        self.heard.retain(|_, heard| {
            heard.is_here || heard.until > at || heard.issued_at + 2 * CLOCK_SKEW > now
        });
        let over = |heard: &Heard| heard.is_here && heard.until <= at;
        let over = self.heard.iter_mut().filter(|(_, heard)| over(heard));
        over.map(|(node, heard)| {
            heard.is_here = false;
            *node
        })
        .collect()
    }

    /// Visits the members that are here.
    pub(crate) fn here(&self) -> impl Iterator<Item = (NodeId, Role)> + '_ {
        let here = self.heard.iter().filter(|(_, heard)| heard.is_here);
        here.map(|(node, heard)| (*node, heard.role))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOME: FederationId = FederationId::from_bytes([7; 32]);
    const NOW: Timestamp = Timestamp(10_000_000);
    const LIFE: Duration = Duration::from_secs(40);
    const HUB: NodeId = NodeId::from_bytes([1; 32]);
    const EVE: NodeId = NodeId::from_bytes([2; 32]);

    fn said(by: &Identity, issued_at: Timestamp, seconds: u32) -> Claim {
        let presence = Presence {
            federation: HOME,
            node: by.node_id(),
            role: Role::Node,
            issued_at,
            seconds,
            certificate: None,
        };
        Claim::decode(&presence.seal(by)).unwrap()
    }

    #[test]
    fn a_member_comes_once_and_is_gone_when_it_is_silent_or_says_so() {
        let (ann, at) = (Identity::generate(), Instant::now());
        let (node, later) = (ann.node_id(), NOW + Duration::from_secs(10));
        let mut company = Company::new(HOME, 2, LIFE);
        let mut say = |issued, seconds| {
            let outcome = company.enter(&said(&ann, issued, seconds), HUB, NOW, at);
            outcome.map(|it| it.change)
        };
        assert_eq!(say(NOW, 35), Ok(Change::Came(node, Role::Node)));
        assert_eq!(
            say(NOW, 35),
            Err(PresenceError::Stale),
            "it was played again"
        );
        assert_eq!(say(later, 35), Ok(Change::None));
        assert_eq!(company.expire(later, at + Duration::from_secs(34)), []);
        assert_eq!(company.expire(later, at + Duration::from_secs(36)), [node]);
        assert_eq!(company.expire(later, at + Duration::from_secs(37)), []);
        let mut say = |issued, seconds| {
            let outcome = company.enter(&said(&ann, issued, seconds), HUB, NOW, at);
            outcome.map(|it| it.change)
        };
        let soon = later + Duration::from_secs(1);
        assert_eq!(say(soon, 35), Ok(Change::Came(node, Role::Node)));
        let soon = soon + Duration::from_secs(1);
        assert_eq!(say(soon, 0), Ok(Change::Went(node)));
        assert_eq!(say(soon, 35), Err(PresenceError::Stale));
    }

    #[test]
    fn nobody_speaks_for_another_and_a_flood_of_keys_is_bounded() {
        let (ann, at) = (Identity::generate(), Instant::now());
        let mut company = Company::new(HOME, 2, LIFE);
        let mut forged = said(&ann, NOW, 35);
        forged.signed.signature = vec![1; 64];
        let refused = company.enter(&forged, HUB, NOW, at);
        assert_eq!(refused, Err(PresenceError::Signature));
        let early = NOW + 2 * CLOCK_SKEW;
        let refused = company.enter(&said(&ann, early, 35), HUB, NOW, at);
        assert_eq!(refused, Err(PresenceError::Stale));
        let enter = |company: &mut Company| {
            company.enter(&said(&Identity::generate(), NOW, 35), HUB, NOW, at)
        };
        let came = (0..100).filter(|_| enter(&mut company).is_ok()).count();
        assert_eq!(came, 68);
        assert_eq!(enter(&mut company), Err(PresenceError::NoRoom));
        let after = NOW + 3 * CLOCK_SKEW;
        company.expire(after, at + Duration::from_secs(99));
        company.expire(after, at + Duration::from_secs(99));
        assert_eq!(company.heard.len(), 0, "room comes back");
    }

    #[test]
    fn free_keys_of_one_peer_make_room_for_members_that_others_bring() {
        let (at, second) = (Instant::now(), Duration::from_secs(1));
        let mut company = Company::new(HOME, 2, LIFE);
        let mut enter = |source, at| {
            let newcomer = Identity::generate();
            let outcome = company.enter(&said(&newcomer, NOW, 35), source, NOW, at);
            (newcomer.node_id(), outcome)
        };
        // Somebody honest came through the same peer before the flood.
        let (early, _) = enter(EVE, at);
        let mut flood: Vec<NodeId> = (0..67).map(|_| enter(EVE, at + second).0).collect();
        assert_eq!(enter(EVE, at + second).1, Err(PresenceError::NoRoom));
        for n in 1..=34 {
            let (newcomer, outcome) = enter(HUB, at + 2 * second);
            let outcome = outcome.unwrap();
            assert_eq!(outcome.change, Change::Came(newcomer, Role::Node));
            let displaced = outcome.displaced.unwrap();
            assert!(flood.contains(&displaced), "{n}");
            flood.retain(|node| *node != displaced);
        }
        let refused = [HUB, EVE].map(|source| enter(source, at + 2 * second).1);
        assert_eq!(refused, [Err(PresenceError::NoRoom); 2], "each has half");
        assert!(company.here().any(|(node, _)| node == early));
        assert_eq!(company.here().count(), 68);
    }

    #[test]
    fn nobody_is_here_longer_than_honest_members_say() {
        let (ann, at) = (Identity::generate(), Instant::now());
        let mut company = Company::new(HOME, 2, LIFE);
        let long = said(&ann, NOW, u32::MAX);
        company.enter(&long, HUB, NOW, at).unwrap();
        assert_eq!(company.expire(NOW, at + Duration::from_secs(39)), []);
        assert_eq!(company.expire(NOW, at + LIFE), [ann.node_id()]);
    }

    #[test]
    fn the_largest_message_fits() {
        let ann = Identity::generate();
        let presence = Presence {
            federation: FederationId::from_bytes([255; 32]),
            node: NodeId::from_bytes([255; 32]),
            role: Role::Aggregator,
            issued_at: Timestamp(u64::MAX),
            seconds: u32::MAX,
            certificate: Some(SignedStatement {
                payload: vec![255; 512],
                signature: vec![255; 64],
            }),
        };
        assert!(presence.seal(&ann).len() <= MAX_PRESENCE_BYTES);
    }
}
