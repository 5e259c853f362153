//! Masked sums: members add up vectors, and nobody sees a single one.
//!
//! Each member publishes its vector with masks on it. Masks of pairs cancel in the sum. Masks of members come off once
//! all agree whose vectors are added up. The result is the exact sum of whole numbers. Everything that is said on the way
//! is public and signed, so everybody can recompute the sum from it, as of a sum without masks.
//! The protocol is that of Bonawitz et al. (CCS 2017), "Practical secure aggregation", with its step against a lying
//! server. Here no server exists: whoever closes a round does what a server would do.
//!
//! ```text
//! offer ──► roster ──► masked vector ──► survivors, confirmed by all ──► unmask ──► the sum
//! keys, sealed shares   who holds whose     more than two thirds say       once
//!                       shares              the same set
//! ```
//!
//! | module | is |
//! |---|---|
//! | [`fixed`] | vectors of `f32` as whole numbers, and back |
//! | [`secrets`] | a member's secrets of one sum, and its offer |
//! | [`shares`] | what one member holds of another's secrets |
//! | [`roster`] | who takes part, and who shares a mask with whom |
//! | [`survivors`] | whose vectors are added up, and that enough members say so |
//! | [`member`] | one member from its vector to its one word that takes masks off |
//! | [`opening`] | everybody's words together: the masks of the sum, or who lied |
//! | [`parts`] | a model's part as such a vector, and the blob that carries it |
//! | [`turn`] | a member's whole turn: what whoever drives a node calls |
//! | [`graph`] | who holds whose shares in a large federation |
//! | [`groups`] | members whose vectors are added up apart from the others' |
//!
//! # What stays hidden, and from whom
//!
//! Of a member that is counted, only the sum is learnt. Of one that is lost, nothing is. This holds against everybody
//! who listens, and against members that work together, as long as they are
//!
//! - fewer than a third of the roster. Two sets of survivors are then never both confirmed;
//! - not more than half of a member's holders. Its secrets then stay its own.
//!
//! Where members are in groups, the same holds of each group by itself: of four, three that work together know the fourth's vector, or two if one is lost.
//!
//! Those who work together know their own vectors, and so the sum of the others. [`survivors::FEWEST`] bounds how few
//! survivors there may be. A sum of few tells much about each: that is a matter of differential privacy, not of masks.
//!
//! # What a liar can do
//!
//! A share or seed that is not what its offer says is found by its hash, and names the liar. A wrong *vector* is not
//! found: it is masked. Whoever sums must judge sums, or make [`groups`] small. A member may also give away shares that are
//! not of its secret. They are found when they are put together. That costs one sum, and the liar's offer is the proof.
//!
//! Everything here is a pure function of its arguments. Randomness comes in as 32 bytes for each sum
//! ([`secrets::Secrets::of`]). They must be new for each sum, must come from the operating system, and must be kept in memory
//! alone: a restored backup would otherwise use them a second time.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod fixed;
pub mod graph;
pub mod groups;
pub mod member;
pub mod opening;
pub mod parts;
pub mod roster;
pub mod secrets;
pub mod shares;
mod stream;
pub mod survivors;
pub mod turn;

use fednode_core::masked::Bytes32;

/// What one sum is about: federation, round and group as one hash. Nothing that is derived for one sum fits another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Context([u8; 32]);

impl Context {
    /// Hashes what the sum is about.
    pub fn of(parts: &[&[u8]]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("fednode masked sum 1");
        for part in parts {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        Self(*hasher.finalize().as_bytes())
    }

    /// Derives 32 bytes for one purpose. Each part has its length before it, so that none runs into the next.
    fn derive(&self, purpose: &'static str, parts: &[&[u8]]) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_derive_key(purpose);
        hasher.update(&self.0);
        for part in parts {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        *hasher.finalize().as_bytes()
    }

    /// Returns the name of a secret or share by which everybody recognises it once it is revealed.
    fn hash(&self, purpose: &'static str, secret: &[u8; 32]) -> Bytes32 {
        Bytes32::new(self.derive(purpose, &[secret]))
    }
}

/// Names own masks.
const OWN_MASK: &str = "fednode masked own 1";
/// Names shares of own masks.
const OWN_SHARE: &str = "fednode masked own share 1";
/// Names shares of mask keys.
const KEY_SHARE: &str = "fednode masked key share 1";
