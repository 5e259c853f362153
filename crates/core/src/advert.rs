//! Say: the advert, the one kind of message that a federation gossips.
//!
//! An advert is small (at most 64 KiB), names blobs instead of carrying them, and is signed by its author over the
//! bytes as sent. [`Advert::check`] is gate two for adverts: everything that can be judged from the advert and the
//! spec alone. Signature and freshness are judged where the bytes and the memory are (`fednode-net`).

mod body;

use serde::{Deserialize, Serialize};

pub use self::body::{
    Body, ExpertOffer, Fault, Global, Local, MAX_INLINE_PROXY_BYTES, MAX_MEMBERS, MAX_PEERS,
    MAX_REMOVALS, MAX_WITHDRAWN, Member, PoolOffer, ProxyOffer, Removal, Removed, SliceMean,
    Slices, Withdraw,
};
use crate::limits::CLOCK_SKEW;
use crate::{AdvertId, FederationId, FederationSpec, NodeId, Round, Timestamp};

/// Largest encoded advert. Gossip costs every byte once per mesh link, so what is larger travels as a blob.
pub const MAX_ADVERT_BYTES: usize = 64 << 10;
/// How long an advert is valid; a round that takes longer is re-announced by sync.
pub const ADVERT_LIFE: std::time::Duration = std::time::Duration::from_secs(24 * 3600);

/// Orders one author's adverts: the incarnation grows at every start of the node, the counter with every advert.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Sequence {
    /// Starts of the node so far, kept on disk.
    pub incarnation: u64,
    /// Adverts said in this incarnation.
    pub counter: u64,
}

/// What a node says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Advert {
    /// The federation it belongs to.
    pub federation: FederationId,
    /// Who says it; the signature is this node's.
    pub author: NodeId,
    /// Its place among the author's adverts.
    pub sequence: Sequence,
    /// The round it is about.
    pub round: Round,
    /// When it was said, by the author's clock.
    pub issued_at: Timestamp,
    /// A day after it was said. From then on it is accepted only where a closed round names it.
    pub expires_at: Timestamp,
    /// What it says.
    pub body: Body,
}

/// An advert as it travels: the encoded bytes and the author's signature over them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignedAdvert {
    /// The encoded [`Advert`].
    #[serde(with = "serde_bytes")]
    pub payload: Vec<u8>,
    /// ed25519 over the domain-separated payload.
    #[serde(with = "serde_bytes")]
    pub signature: Vec<u8>,
}

impl SignedAdvert {
    /// Returns the name by which others refer to the advert.
    pub fn id(&self) -> AdvertId {
        AdvertId::of(&self.payload)
    }
}

/// An advert that was accepted, and the name by which others refer to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Accepted {
    /// The hash of its bytes as they were signed.
    pub id: AdvertId,
    /// What it says.
    pub advert: Advert,
}

impl std::ops::Deref for Accepted {
    type Target = Advert;

    fn deref(&self) -> &Advert {
        &self.advert
    }
}

/// Tells why an advert was refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum AdvertError {
    /// It belongs to another federation.
    #[error("advert of another federation ({0})")]
    Federation(FederationId),
    /// Its day is over. Everything else in it is sound.
    #[error("advert expired")]
    Expired,
    /// Its clock differs too much from ours.
    #[error("advert issued {0:?} away from our clock")]
    ClockSkew(std::time::Duration),
    /// It is of a round after the last that is known here. The organiser may have added rounds meanwhile.
    #[error("advert of round {0}, after the last")]
    Beyond(Round),
    /// A count, size or number is out of bounds.
    #[error("advert with {0}")]
    Bounds(&'static str),
}

impl AdvertError {
    /// Tells whether an honest node might have sent it, so that it must not cost the sender its standing.
    pub const fn is_innocent(&self) -> bool {
        matches!(self, Self::Expired | Self::ClockSkew(_) | Self::Beyond(_))
    }
}

impl Advert {
    /// Checks everything that can be judged without memory: federation, time, bounds.
    ///
    /// # Errors
    /// Names the first rule that is broken.
    pub fn check(
        &self,
        spec: &FederationSpec,
        id: FederationId,
        now: Timestamp,
    ) -> Result<(), AdvertError> {
        if self.federation != id {
            return Err(AdvertError::Federation(self.federation));
        }
        // With a life of its own choice, an author could have one member count an advert that others find expired.
        if self.issued_at + ADVERT_LIFE != self.expires_at {
            return Err(AdvertError::Bounds("another life than a day"));
        }
        if self.issued_at > now + CLOCK_SKEW {
            return Err(AdvertError::ClockSkew(self.issued_at.since(now)));
        }
        if self.round.0 > spec.rounds {
            let furthest = spec.furthest_round();
            return Err(if furthest.is_some_and(|furthest| self.round <= furthest) {
                AdvertError::Beyond(self.round)
            } else {
                AdvertError::Bounds("a round beyond the last")
            });
        }
        self.body.check()?;
        // Last: an expired advert may still be wanted, and is sound then.
        if self.expires_at < now {
            return Err(AdvertError::Expired);
        }
        Ok(())
    }
}
