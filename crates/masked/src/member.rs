//! One member of a masked sum, from its vector to its one word that takes masks off.
//!
//! The states are types, so what may happen once cannot happen twice: a vector is masked once, and masks come off once.

use std::collections::BTreeMap;

use fednode_core::NodeId;
use fednode_core::masked::{Bytes32, Unmask};

use crate::graph::FULL;
use crate::roster::Roster;
use crate::secrets::Secrets;
use crate::shares::HeldShares;
use crate::stream::{self, Sign};
use crate::survivors::{Confirmed, Survivors};

/// A member that is on the roster and has not masked its vector yet.
#[derive(Debug)]
pub struct Member {
    me: NodeId,
    secrets: Secrets,
    held: BTreeMap<NodeId, HeldShares>,
    roster: Roster,
}

/// A member whose masked vector is made.
#[derive(Debug)]
pub struct Masked {
    member: Member,
    confirmed: Option<Bytes32>,
}

/// Tells why a member does not take part, or does not say what is asked of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The roster has another offer of this node, or none.
    #[error("a roster without this node's offer")]
    NotOnRoster,
    /// So few hold this node's shares, or share a mask with it, that they could all work together.
    #[error(
        "a roster of {members} of which {partners} hold shares of this node: it takes more than half"
    )]
    FewPartners {
        /// How many hold its shares, and have it hold theirs.
        partners: usize,
        /// How many there are.
        members: usize,
    },
    /// The survivors are those of another roster.
    #[error("survivors of another sum")]
    OtherSum,
    /// This member has confirmed other survivors.
    #[error("a second set of survivors: one was confirmed before")]
    Second,
}

impl Member {
    /// Takes part. `held` are the shares of others that this node has opened.
    ///
    /// A node that knew of few others when it made its offer shares masks with those few alone. If they work together, they know
    /// its vector once its own mask is off. So more than half of the others must share one, or of [`FULL`] where there are more. In
    /// groups the same is asked of those who hold its shares: half of them can put its secrets together.
    ///
    /// # Errors
    /// Fails if the roster does not have this node's own offer, or too few partners for it.
    pub fn new(
        me: NodeId,
        secrets: Secrets,
        held: BTreeMap<NodeId, HeldShares>,
        roster: Roster,
    ) -> Result<Self, Refusal> {
        let offer = roster.offer(me);
        let is_mine = offer.is_some_and(|offer| offer.mask_key == secrets.mask_key());
        let (partners, members) = (roster.holding(me).count(), roster.len());
        if is_mine && 2 * partners <= (members - 1).min(FULL) {
            return Err(Refusal::FewPartners { partners, members });
        }
        let member = Self {
            me,
            secrets,
            held,
            roster,
        };
        is_mine.then_some(member).ok_or(Refusal::NotOnRoster)
    }

    /// Puts the masks on the vector.
    pub fn mask(self, vector: &mut [u64]) -> Masked {
        let context = self.roster.context();
        for partner in self.roster.partners(self.me) {
            let seed = self.secrets.pair(self.me, partner, context);
            stream::apply(vector, 0, &seed, sign_of(self.me, partner.0));
        }
        stream::apply(vector, 0, self.secrets.own_mask(), Sign::Add);
        Masked {
            member: self,
            confirmed: None,
        }
    }
}

impl Masked {
    /// Confirms survivors and returns their name, which is to be signed. The same may be confirmed again.
    ///
    /// # Errors
    /// Fails if they are of another roster, or if others were confirmed before.
    pub fn confirm(&mut self, survivors: &Survivors) -> Result<Bytes32, Refusal> {
        if survivors.roster() != self.member.roster.id() {
            return Err(Refusal::OtherSum);
        }
        let id = survivors.id();
        if *self.confirmed.get_or_insert(id) != id {
            return Err(Refusal::Second);
        }
        Ok(id)
    }

    /// Returns what takes the masks off the sum of confirmed survivors. The secrets are gone after it.
    ///
    /// A member that was lost keeps its own seed to itself, and still helps with the shares that it holds.
    ///
    /// # Errors
    /// Fails, and gives the member back, if the survivors are of another roster.
    pub fn unmask(self, confirmed: &Confirmed) -> Result<Unmask, (Box<Self>, Refusal)> {
        let survivors = confirmed.survivors();
        if survivors.roster() != self.member.roster.id() {
            return Err((Box::new(self), Refusal::OtherSum));
        }
        let member = self.member;
        let roster = &member.roster;
        let is_survivor = |(node, _): (NodeId, _)| survivors.contains(node);
        // Of a lost member whose masks are on no sum nothing need be told.
        let is_needed = |node| survivors.contains(node) || roster.partners(node).any(is_survivor);
        let others = roster
            .members()
            .filter(|node| *node != member.me && is_needed(*node));
        let shares = others.filter_map(|node| {
            let held = member.held.get(&node)?;
            // One of the two only: both would take all masks off this member's vector.
            let share = if survivors.contains(node) {
                held.own_mask
            } else {
                held.mask_key
            };
            Some((node, Bytes32::new(share)))
        });
        let shares = shares.collect();
        let own = survivors
            .contains(member.me)
            .then(|| *member.secrets.own_mask());
        Ok(Unmask {
            survivors: survivors.id(),
            own_mask: own.map(Bytes32::new),
            shares,
        })
    }
}

/// Returns which way a pair's mask goes: of two nodes the smaller adds and the larger subtracts.
pub(crate) fn sign_of(node: NodeId, partner: NodeId) -> Sign {
    if node < partner {
        Sign::Add
    } else {
        Sign::Subtract
    }
}
