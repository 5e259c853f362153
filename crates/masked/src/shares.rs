//! What one member holds of another's secrets, and what enough of them are together.

use fednode_core::NodeId;
use fednode_core::masked::{Bytes32, MaskOffer};
use vsss_rs::Gf256;
use x25519_dalek::{PublicKey, StaticSecret};
use zeroize::ZeroizeOnDrop;

use crate::secrets::{self, OfferFault, pad, xor};
use crate::{Context, KEY_SHARE, OWN_SHARE};

/// A holder's shares of another member's secrets, of which it reveals one at most.
#[derive(Clone, ZeroizeOnDrop)]
pub struct HeldShares {
    pub(crate) own_mask: [u8; 32],
    pub(crate) mask_key: [u8; 32],
}

/// Shares are shown nowhere.
impl std::fmt::Debug for HeldShares {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HeldShares").finish_non_exhaustive()
    }
}

/// Tells why shares are not held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HoldFault {
    /// The offer is not well formed.
    #[error(transparent)]
    Offer(#[from] OfferFault),
    /// There are none for this member.
    #[error("an offer without shares for this node")]
    NotForMe,
    /// What is sealed is not what the offer says.
    #[error("shares that are not what their hashes say")]
    False,
}

/// Opens the shares that an offer has for this member, with its long-lived key.
///
/// # Errors
/// Fails if the offer has none for it, or if they are not what the offer's hashes say.
pub fn hold(
    offer: &MaskOffer,
    author: NodeId,
    me: (NodeId, &StaticSecret),
    context: &Context,
) -> Result<HeldShares, HoldFault> {
    secrets::check(offer, author)?;
    let (me, secret) = me;
    let mine = offer.holders.iter().find(|holder| holder.node == me);
    let mine = mine.ok_or(HoldFault::NotForMe)?;
    let pad = pad(
        secret,
        &PublicKey::from(*offer.seal_key),
        author,
        me,
        context,
    );
    let opened = xor(&mine.sealed, &pad);
    let own_mask = opened.first_chunk().copied().unwrap_or_default();
    let mask_key = opened.last_chunk().copied().unwrap_or_default();
    let is_true = context.hash(OWN_SHARE, &own_mask) == mine.own_mask
        && context.hash(KEY_SHARE, &mask_key) == mine.mask_key;
    is_true
        .then_some(HeldShares { own_mask, mask_key })
        .ok_or(HoldFault::False)
}

/// Puts a secret together from shares by their numbers, which count from 1. Nothing comes of too few.
pub(crate) fn combine(shares: &[(u8, Bytes32)], threshold: u8) -> Option<[u8; 32]> {
    let enough = shares.get(..usize::from(threshold))?;
    let numbered: Vec<Vec<u8>> = enough
        .iter()
        .map(|(number, share)| [&[*number], share.as_slice()].concat())
        .collect();
    Gf256::combine_bytes(numbered).ok()?.try_into().ok()
}
