//! A member's secrets of one sum, and the offer that goes out of them.

use chacha20::ChaCha20Rng;
use chacha20::rand_core::SeedableRng;
use fednode_core::NodeId;
use fednode_core::masked::{Bytes32, MAX_HOLDERS, MaskOffer, ShareHolder};
use serde_bytes::ByteArray;
use vsss_rs::Gf256;
use x25519_dalek::{PublicKey, StaticSecret};
use zeroize::ZeroizeOnDrop;

use crate::{Context, KEY_SHARE, OWN_MASK, OWN_SHARE};

/// Fewest holders of shares: with fewer, a single one could do without the member.
pub const FEWEST_HOLDERS: usize = 2;

/// What a member keeps to itself during one sum. It is wiped from memory in the end.
#[derive(ZeroizeOnDrop)]
pub struct Secrets {
    mask: StaticSecret,
    seal: StaticSecret,
    own_mask: [u8; 32],
    coefficients: [u8; 32],
}

/// Secrets are shown nowhere.
impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Secrets").finish_non_exhaustive()
    }
}

/// Tells why no offer can be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OfferFault {
    /// Too few or too many hold shares.
    #[error("{0} holders of shares: a masked sum takes 2 to 255, so at least three members")]
    Holders(usize),
    /// The holders are not in order, or one is named twice, or the author is among them.
    #[error("holders of shares that are not each named once, in order, without the author")]
    Order,
    /// A public key is one with which everybody makes the same secret.
    #[error("a key that makes no secret")]
    WeakKey,
    /// The threshold is not the one of so many holders.
    #[error("a threshold that is not more than half of the holders, as little as that can be")]
    Threshold,
}

/// Returns how many shares make a secret: more than half of them.
pub fn threshold(holders: usize) -> usize {
    holders / 2 + 1
}

/// Checks what can be judged from an offer alone.
///
/// # Errors
/// Names the first rule that is broken.
pub fn check(offer: &MaskOffer, author: NodeId) -> Result<(), OfferFault> {
    let nodes: Vec<NodeId> = offer.holders.iter().map(|holder| holder.node).collect();
    check_holders(&nodes, author)?;
    if usize::from(offer.threshold) != threshold(nodes.len()) {
        return Err(OfferFault::Threshold);
    }
    // Points of low order make the same secret with every key (RFC 7748, section 6.1).
    let probe = StaticSecret::from([1; 32]);
    let is_weak = |key: &Bytes32| {
        let secret = probe.diffie_hellman(&PublicKey::from(**key));
        !secret.was_contributory()
    };
    if is_weak(&offer.mask_key) || is_weak(&offer.seal_key) {
        return Err(OfferFault::WeakKey);
    }
    Ok(())
}

fn check_holders(holders: &[NodeId], author: NodeId) -> Result<(), OfferFault> {
    if !(FEWEST_HOLDERS..=MAX_HOLDERS).contains(&holders.len()) {
        return Err(OfferFault::Holders(holders.len()));
    }
    if !holders.is_sorted_by(|a, b| a < b) || holders.contains(&author) {
        return Err(OfferFault::Order);
    }
    Ok(())
}

impl Secrets {
    /// Makes the secrets of one sum from 32 bytes of the operating system's randomness.
    pub fn of(entropy: &[u8; 32], context: &Context) -> Self {
        let derive = |purpose| context.derive(purpose, &[entropy]);
        Self {
            mask: derive("fednode masked mask key 1").into(),
            seal: derive("fednode masked seal key 1").into(),
            own_mask: derive("fednode masked own mask 1"),
            coefficients: derive("fednode masked coefficients 1"),
        }
    }

    /// Returns the offer: public keys, and sealed shares of both secrets for these holders, with their long-lived keys.
    ///
    /// # Errors
    /// Fails if the holders are too few or too many, not in node order, or if the author is one of them.
    pub fn offer(
        &self,
        me: NodeId,
        context: &Context,
        holders: &[(NodeId, PublicKey)],
    ) -> Result<MaskOffer, OfferFault> {
        let nodes: Vec<NodeId> = holders.iter().map(|(node, _)| *node).collect();
        check_holders(&nodes, me)?;
        let (count, threshold) = (holders.len(), threshold(holders.len()));
        let mut random = ChaCha20Rng::from_seed(self.coefficients);
        let mut split = |secret: &[u8; 32]| {
            let shares = Gf256::split_bytes(threshold, count, secret, &mut random);
            shares.map_err(|_| OfferFault::Holders(count))
        };
        let (own, key) = (split(&self.own_mask)?, split(self.mask.as_bytes())?);
        let sealed = holders.iter().zip(own.iter().zip(&key));
        let holders = sealed.map(|((node, public), (own, key))| {
            let pad = pad(&self.seal, public, me, *node, context);
            seal(*node, &pad, share(own), share(key), context)
        });
        Ok(MaskOffer {
            mask_key: public(&self.mask),
            seal_key: public(&self.seal),
            own_mask: context.hash(OWN_MASK, &self.own_mask),
            threshold: threshold as u8,
            holders: holders.collect(),
        })
    }

    /// Returns the seed of the mask that this member shares with another.
    pub(crate) fn pair(
        &self,
        me: NodeId,
        other: (NodeId, &MaskOffer),
        context: &Context,
    ) -> [u8; 32] {
        pair_seed((me, &self.mask), other, context)
    }

    pub(crate) fn own_mask(&self) -> &[u8; 32] {
        &self.own_mask
    }

    pub(crate) fn mask_key(&self) -> Bytes32 {
        public(&self.mask)
    }
}

/// Returns the public key of a secret one.
pub(crate) fn public(secret: &StaticSecret) -> Bytes32 {
    Bytes32::new(PublicKey::from(secret).to_bytes())
}

/// Returns the seed of the mask of a pair: both work out the same.
///
/// It depends on who they are, not only on their keys: whoever copies another's key shares no seed with it.
pub(crate) fn pair_seed(
    (node, secret): (NodeId, &StaticSecret),
    (other, offer): (NodeId, &MaskOffer),
    context: &Context,
) -> [u8; 32] {
    let shared = secret.diffie_hellman(&PublicKey::from(*offer.mask_key));
    let (low, high) = (node.min(other), node.max(other));
    let parts = [
        shared.as_bytes().as_slice(),
        low.as_bytes(),
        high.as_bytes(),
    ];
    context.derive("fednode masked pair 1", &parts)
}

/// The key stream that seals two shares, of one key for each sum, author and holder: it is used once.
pub(crate) fn pad(
    secret: &StaticSecret,
    public: &PublicKey,
    author: NodeId,
    holder: NodeId,
    context: &Context,
) -> [u8; 64] {
    let shared = secret.diffie_hellman(public);
    let half = |purpose| {
        let parts = [
            shared.as_bytes().as_slice(),
            author.as_bytes(),
            holder.as_bytes(),
        ];
        context.derive(purpose, &parts)
    };
    let mut pad = [0; 64];
    pad[..32].copy_from_slice(&half("fednode masked seal own 1"));
    pad[32..].copy_from_slice(&half("fednode masked seal key share 1"));
    pad
}

fn seal(
    node: NodeId,
    pad: &[u8; 64],
    own: [u8; 32],
    key: [u8; 32],
    context: &Context,
) -> ShareHolder {
    let mut shares = [0; 64];
    shares[..32].copy_from_slice(&own);
    shares[32..].copy_from_slice(&key);
    ShareHolder {
        node,
        sealed: ByteArray::new(xor(&shares, pad)),
        own_mask: context.hash(OWN_SHARE, &own),
        mask_key: context.hash(KEY_SHARE, &key),
    }
}

/// Seals what is open, and opens what is sealed.
pub(crate) fn xor(bytes: &[u8; 64], pad: &[u8; 64]) -> [u8; 64] {
    std::array::from_fn(|place| bytes[place] ^ pad[place])
}

/// Returns a share without its number, which its place says.
fn share(numbered: &[u8]) -> [u8; 32] {
    numbered.last_chunk().copied().unwrap_or_default()
}
