//! A member's turn in one sum: what it does with 32 random bytes, its long-lived key and what others offer.
//!
//! Whoever drives a node calls these three, each once a round, and keeps nothing but the random bytes in between.

use std::collections::{BTreeMap, BTreeSet};

use fednode_core::NodeId;
use fednode_core::masked::{MaskOffer, Unmask};
use x25519_dalek::{PublicKey, StaticSecret};

use crate::Context;
use crate::graph;
use crate::groups::Grouping;
use crate::member::{Member, Refusal};
use crate::roster::{Roster, TooFew};
use crate::secrets::{OfferFault, Secrets};
use crate::shares;
use crate::survivors::{Survivors, SurvivorsFault};

/// A member, and its long-lived key.
#[derive(Clone, Copy)]
pub struct Me<'a> {
    /// Its name.
    pub node: NodeId,
    /// The secret key to which others seal shares.
    pub key: &'a StaticSecret,
}

/// The key is shown nowhere.
impl std::fmt::Debug for Me<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Me").field(&self.node).finish()
    }
}

/// Tells why a member cannot do its part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TurnFault {
    /// No offer can be made.
    #[error(transparent)]
    Offer(#[from] OfferFault),
    /// The roster is too small.
    #[error(transparent)]
    Roster(#[from] TooFew),
    /// The roster has another offer of this node, or none.
    #[error(transparent)]
    Member(#[from] Refusal),
    /// The survivors are none, or not confirmed.
    #[error(transparent)]
    Survivors(#[from] SurvivorsFault),
}

/// Makes the roster of these offers, in groups where there are some. All holders count as such: what is sealed shows itself false when it is opened.
///
/// # Errors
/// Fails if fewer than three are left.
pub fn roster(
    context: Context,
    offers: BTreeMap<NodeId, MaskOffer>,
    grouping: Option<Grouping>,
) -> Result<Roster, TooFew> {
    let all: BTreeSet<NodeId> = offers.keys().copied().collect();
    let holds = offers.keys().map(|node| (*node, all.clone())).collect();
    let roster = Roster::new(context, offers, &holds)?;
    Ok(match grouping {
        Some(grouping) => roster.in_groups(grouping),
        None => roster,
    })
}

/// Makes this node's offer for a sum that these nodes will take part in, as far as is known. `public` returns a node's
/// long-lived key; a node without one holds nothing.
///
/// # Errors
/// Fails if there are fewer than two others.
pub fn offer(
    me: NodeId,
    entropy: &[u8; 32],
    context: &Context,
    nodes: &[NodeId],
    public: impl Fn(NodeId) -> Option<PublicKey>,
) -> Result<MaskOffer, TurnFault> {
    let holders = graph::holders(nodes, me, context).into_iter();
    let holders: Vec<(NodeId, PublicKey)> = holders
        .filter_map(|holder| Some((holder, public(holder)?)))
        .collect();
    Ok(Secrets::of(entropy, context).offer(me, context, &holders)?)
}

/// Puts this node's masks on its vector.
///
/// # Errors
/// Fails if the node is not on the roster with the offer that it made of these random bytes.
pub fn mask(
    me: Me<'_>,
    entropy: &[u8; 32],
    roster: &Roster,
    vector: &mut [u64],
) -> Result<(), TurnFault> {
    member(me, entropy, roster)?.mask(vector);
    Ok(())
}

/// Returns the word that takes masks off the sum of these survivors, which these members have confirmed. It consumes the
/// random bytes: a second word would tell too much.
///
/// # Errors
/// Fails if the survivors are too few, or are confirmed by too few, or if the node is not on the roster.
pub fn unmask(
    me: Me<'_>,
    entropy: [u8; 32],
    roster: &Roster,
    survivors: BTreeSet<NodeId>,
    confirmed_by: &BTreeSet<NodeId>,
) -> Result<Unmask, TurnFault> {
    let confirmed = Survivors::new(roster, survivors)?.confirmed(roster, confirmed_by)?;
    let masked = member(me, &entropy, roster)?.mask(&mut []);
    masked
        .unmask(&confirmed)
        .map_err(|(_, refusal)| refusal.into())
}

/// Opens the shares that others have for this node. Those that are none stay away.
fn member(me: Me<'_>, entropy: &[u8; 32], roster: &Roster) -> Result<Member, Refusal> {
    let context = roster.context();
    let others = roster.members().filter(|node| *node != me.node);
    let held = others.filter_map(|author| {
        let offer = roster.offer(author)?;
        let shares = shares::hold(offer, author, (me.node, me.key), context);
        Some((author, shares.ok()?))
    });
    let secrets = Secrets::of(entropy, context);
    Member::new(me.node, secrets, held.collect(), roster.clone())
}
