//! Everybody's words together: the masks that are still on the sum of the survivors, or who lied.
//!
//! Masks of one group are on no other group's sum. So shares that are not of a member's secret cost its group the sum, and no other.

use std::collections::BTreeMap;

use fednode_core::NodeId;
use fednode_core::masked::{Bytes32, MaskOffer, Unmask};
use x25519_dalek::StaticSecret;

use crate::member::sign_of;
use crate::roster::{Roster, number_of};
use crate::secrets::{pair_seed, public};
use crate::shares::combine;
use crate::stream::{self, Sign};
use crate::survivors::Survivors;
use crate::{KEY_SHARE, OWN_MASK, OWN_SHARE};

/// Masks that are on a sum.
type Masks = Vec<([u8; 32], Sign)>;

/// The masks that are on the sum of the survivors' vectors.
#[derive(Debug)]
pub struct Opening {
    /// By group. Those of a group stay on if a member of it gave away shares that are not of its secret: it is named in their place.
    masks: Vec<Result<Masks, NodeId>>,
}

/// What everybody said, found to be true, until there is enough of it.
#[derive(Debug)]
pub struct Unmasking<'a> {
    roster: &'a Roster,
    survivors: &'a Survivors,
    own_masks: BTreeMap<NodeId, [u8; 32]>,
    /// True shares by whose they are, with their numbers.
    shares: BTreeMap<NodeId, BTreeMap<u8, Bytes32>>,
}

/// Tells what is wrong with a member's word. It is signed, so it is a proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnmaskFault {
    /// It is about other survivors.
    #[error("takes masks off for other survivors")]
    OtherSurvivors,
    /// Its author was not on the roster.
    #[error("takes masks off without having been on the roster")]
    Stranger,
    /// Its seed is not what the offer says, or is missing, or comes from a member that was lost.
    #[error("reveals another seed than it offered")]
    OwnMask,
    /// A share is not what the offer says.
    #[error("reveals a false share")]
    Share(NodeId),
}

/// Tells why masks stay on the sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StillMasked {
    /// Nobody has told a secret of this member, nor enough shares of it: more words may come.
    #[error("the masks of {} stay on: too few members have told what they hold", .0.letters())]
    Missing(NodeId),
    /// Enough shares are there, and they make another secret than this member offered. Its offer proves that it lied.
    #[error("the masks of {} stay on: the shares that it gave away are not of its secret", .0.letters())]
    FalseShares(NodeId),
}

impl<'a> Unmasking<'a> {
    /// Starts with nothing said.
    pub fn new(roster: &'a Roster, survivors: &'a Survivors) -> Self {
        Self {
            roster,
            survivors,
            own_masks: BTreeMap::new(),
            shares: BTreeMap::new(),
        }
    }

    /// Takes one member's word, all of it or nothing. The same may come twice.
    ///
    /// # Errors
    /// Names what is false in it.
    pub fn hear(&mut self, author: NodeId, said: &Unmask) -> Result<(), UnmaskFault> {
        let is_of_roster = self.survivors.roster() == self.roster.id();
        if !is_of_roster || said.survivors != self.survivors.id() {
            return Err(UnmaskFault::OtherSurvivors);
        }
        let offer = self.roster.offer(author).ok_or(UnmaskFault::Stranger)?;
        let context = self.roster.context();
        let is_true = |seed: &Bytes32| context.hash(OWN_MASK, seed) == offer.own_mask;
        let has_told = said.own_mask.as_ref().is_some_and(is_true);
        if has_told != self.survivors.contains(author) || said.own_mask.is_some() != has_told {
            return Err(UnmaskFault::OwnMask);
        }
        let checked = said.shares.iter().map(|(of, share)| {
            let number = self.judge(author, *of, share);
            number
                .map(|number| (*of, number, *share))
                .ok_or(UnmaskFault::Share(*of))
        });
        let checked = checked.collect::<Result<Vec<_>, _>>()?;
        for (of, number, share) in checked {
            self.shares.entry(of).or_default().insert(number, share);
        }
        if let Some(seed) = said.own_mask {
            self.own_masks.insert(author, *seed);
        }
        Ok(())
    }

    /// Returns the number of a share if it is what its offer says.
    fn judge(&self, holder: NodeId, of: NodeId, share: &Bytes32) -> Option<u8> {
        let offer = self.roster.offer(of)?;
        let number = number_of(offer, holder)?;
        let said = &offer.holders[usize::from(number) - 1];
        let context = self.roster.context();
        let is_true = if self.survivors.contains(of) {
            context.hash(OWN_SHARE, share) == said.own_mask
        } else {
            context.hash(KEY_SHARE, share) == said.mask_key
        };
        is_true.then_some(number)
    }

    /// Returns the masks of the sum, or of the sums of groups.
    ///
    /// # Errors
    /// Names a member whose masks would stay on: one of whom more may be said, or a liar, if no group has a sum.
    pub fn open(&self) -> Result<Opening, StillMasked> {
        let mut masks = vec![Ok(Vec::new()); self.roster.n_groups()];
        for (node, offer) in self.roster.offers() {
            let Some(masks) = self.roster.group_of(node).and_then(|at| masks.get_mut(at)) else {
                continue;
            };
            match (self.masks_of(node, offer), &mut *masks) {
                (Ok(more), Ok(masks)) => masks.extend(more),
                (Err(StillMasked::FalseShares(liar)), Ok(_)) => *masks = Err(liar),
                (Err(missing @ StillMasked::Missing(_)), _) => return Err(missing),
                (_, Err(_)) => {}
            }
        }
        let opening = Opening { masks };
        match opening.liar() {
            Some(liar) if opening.masks() == 0 => Err(StillMasked::FalseShares(liar)),
            _ => Ok(opening),
        }
    }

    /// Returns the masks on a sum that are there because of a member.
    fn masks_of(&self, node: NodeId, offer: &MaskOffer) -> Result<Masks, StillMasked> {
        if self.survivors.contains(node) {
            return Ok(vec![(self.own_mask_of(node, offer)?, Sign::Add)]);
        }
        self.masks_with_lost(node, offer)
    }

    fn own_mask_of(&self, node: NodeId, offer: &MaskOffer) -> Result<[u8; 32], StillMasked> {
        if let Some(seed) = self.own_masks.get(&node) {
            return Ok(*seed);
        }
        let seed = self.combined(node, offer)?;
        let is_true = self.roster.context().hash(OWN_MASK, &seed) == offer.own_mask;
        is_true
            .then_some(seed)
            .ok_or(StillMasked::FalseShares(node))
    }

    /// Returns the masks that survivors share with a member that was lost.
    fn masks_with_lost(&self, lost: NodeId, offer: &MaskOffer) -> Result<Masks, StillMasked> {
        let partners = self.roster.partners(lost);
        let mut survivors = partners
            .filter(|(node, _)| self.survivors.contains(*node))
            .peekable();
        if survivors.peek().is_none() {
            return Ok(Vec::new());
        }
        let key = StaticSecret::from(self.combined(lost, offer)?);
        if public(&key) != offer.mask_key {
            return Err(StillMasked::FalseShares(lost));
        }
        let masks = survivors.map(|survivor| {
            let seed = pair_seed((lost, &key), survivor, self.roster.context());
            (seed, sign_of(survivor.0, lost))
        });
        Ok(masks.collect())
    }

    /// Returns a member that gave away shares which are not of its secret, if enough of them were told. Its offer proves it, also if it
    /// has told its secret itself, and whoever else has not told enough.
    pub fn liar(&self) -> Option<NodeId> {
        let mut members = self.roster.offers();
        members.find_map(|(node, offer)| {
            let secret = self.combined(node, offer).ok()?;
            let is_true = if self.survivors.contains(node) {
                self.roster.context().hash(OWN_MASK, &secret) == offer.own_mask
            } else {
                public(&StaticSecret::from(secret)) == offer.mask_key
            };
            (!is_true).then_some(node)
        })
    }

    fn combined(&self, node: NodeId, offer: &MaskOffer) -> Result<[u8; 32], StillMasked> {
        let shares = self.shares.get(&node).into_iter().flatten();
        let shares: Vec<(u8, Bytes32)> = shares.map(|(number, share)| (*number, *share)).collect();
        combine(&shares, offer.threshold).ok_or(StillMasked::Missing(node))
    }
}

impl Opening {
    /// Takes the masks off a part of a group's sum of the survivors' masked vectors, which begins at `offset`. Where there are no
    /// groups, all are in group 0. Of a group whose masks stay on nothing changes.
    ///
    /// Parts are independent, so that callers with several cores can share a long sum among them.
    pub fn clear(&self, group: usize, part: &mut [u64], offset: usize) {
        let masks = self.masks.get(group).and_then(|masks| masks.as_ref().ok());
        for (seed, sign) in masks.into_iter().flatten() {
            let off = match sign {
                Sign::Add => Sign::Subtract,
                Sign::Subtract => Sign::Add,
            };
            stream::apply(part, offset, seed, off);
        }
    }

    /// Returns how many masks come off: that many times the length of the vector is drawn.
    pub fn masks(&self) -> usize {
        self.masks.iter().flatten().map(Vec::len).sum()
    }

    /// Tells whether the masks of a group come off.
    pub fn opens(&self, group: usize) -> bool {
        self.masks.get(group).is_some_and(Result::is_ok)
    }

    /// Returns a member that gave away shares which are not of its secret, so that the masks of its group stay on.
    pub fn liar(&self) -> Option<NodeId> {
        self.masks
            .iter()
            .find_map(|masks| masks.as_ref().err())
            .copied()
    }
}
