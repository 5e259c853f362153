//! What members of a masked sum say: an offer before it, and what takes the masks off after it.
//!
//! A masked sum is one over vectors of which nobody sees a single one (Bonawitz et al., CCS 2017). The maths is in
//! `fednode-masked`. The messages are here, because they are said in adverts. Everything in them is public: who hears
//! all of them learns the sum and nothing else, and can recompute it.

use serde::{Deserialize, Serialize};
use serde_bytes::ByteArray;

use crate::{BlobId, BlobRef, ClosingId, Global, Lineage, Member, NodeId, Round};

/// Most nodes that hold shares of one member's secrets: shares are numbered by one byte.
pub const MAX_HOLDERS: usize = 255;

/// 32 bytes: a public key of X25519, a share, a seed or a hash, as its place says.
pub type Bytes32 = ByteArray<32>;

/// What a member says before a masked sum: the keys from which pairs make their masks, and shares of its secrets.
///
/// The shares are sealed, each to its holder. Nobody needs them if the member stays until the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MaskOffer {
    /// The public key from which each pair of members makes the mask that cancels in the sum.
    pub mask_key: Bytes32,
    /// The public key with which the shares are sealed. Its secret half is never revealed.
    pub seal_key: Bytes32,
    /// The hash of the seed of the member's own mask.
    pub own_mask: Bytes32,
    /// How many shares make a secret.
    pub threshold: u8,
    /// Who holds the shares, in node order; the place in the list is the number of the share.
    pub holders: Vec<ShareHolder>,
}

/// One holder's shares of a member's two secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShareHolder {
    /// The holder.
    pub node: NodeId,
    /// Its share of the seed of the own mask, then its share of the secret mask key; sealed to it.
    pub sealed: ByteArray<64>,
    /// The hash of the former share.
    pub own_mask: Bytes32,
    /// The hash of the latter share.
    pub mask_key: Bytes32,
}

/// Whose masked vectors are to be added up, or whose parts are to be averaged slice by slice, as whoever closes the round
/// proposes it: a closed round without its mean.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Proposal {
    /// Whom the closing will count, in node order.
    pub members: Vec<Member>,
    /// The mean that all of them trained from.
    pub parent: Lineage,
    /// The closed round that this one follows; nothing before the first.
    pub previous: Option<ClosingId>,
}

impl Proposal {
    /// Returns the name of a proposal for a round: a hash of all that it says.
    pub fn id(&self, round: Round) -> Bytes32 {
        let nothing = BlobRef {
            id: BlobId::from_bytes([0; 32]),
            size: 0,
        };
        let closing = self.clone().closed(nothing, Vec::new()).id(round);
        let mut hasher = blake3::Hasher::new_derive_key("fednode proposal 1");
        hasher.update(closing.as_bytes());
        Bytes32::new(*hasher.finalize().as_bytes())
    }

    /// Returns the closing that it may become, with this mean and these words that took the masks off.
    pub fn closed(self, mean: BlobRef, unmasked: Vec<(NodeId, crate::AdvertId)>) -> Global {
        Global {
            members: self.members,
            mean,
            parent: self.parent,
            previous: self.previous,
            unmasked,
            slices: Vec::new(),
        }
    }
}

/// A member's word that it takes masks off for these survivors and for no others. It says so once in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Agreement {
    /// The hash of the survivors: those whose masked vectors are added up.
    pub survivors: Bytes32,
}

/// What a member says after a masked sum, once: what takes the masks off the sum of the survivors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unmask {
    /// The hash of the survivors: those whose masked vectors are added up.
    pub survivors: Bytes32,
    /// The seed of the member's own mask; nothing from a member that was lost.
    pub own_mask: Option<Bytes32>,
    /// The shares that it holds: of a survivor's own mask, or of the mask key of a member that was lost. Of nobody both.
    pub shares: Vec<(NodeId, Bytes32)>,
}
