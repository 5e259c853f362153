//! Who takes part in a masked sum, and who shares a mask with whom.

use std::collections::{BTreeMap, BTreeSet};

use fednode_core::NodeId;
use fednode_core::masked::{Bytes32, MaskOffer, ShareHolder};

use crate::Context;
use crate::groups::{Grouping, Groups};
use crate::secrets;
use crate::survivors::FEWEST;

/// The members of one sum and their offers. Everybody who knows the offers makes the same one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roster {
    context: Context,
    offers: BTreeMap<NodeId, MaskOffer>,
    /// Nothing where all vectors are added up together.
    groups: Option<Groups>,
    /// Hashed once: it is asked for with every word that is heard.
    id: Bytes32,
}

/// A sum with too few members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0} members offer what a masked sum needs: it takes three")]
pub struct TooFew(pub usize);

impl Roster {
    /// Makes the largest roster of these offers. `holds` says whose shares each member has opened and found to be true.
    ///
    /// A member belongs to it if enough other members hold its shares: otherwise it could be lost and leave its masks
    /// in the sum. Offers that are not well formed are left out.
    ///
    /// # Errors
    /// Fails if fewer than three are left.
    pub fn new(
        context: Context,
        offers: BTreeMap<NodeId, MaskOffer>,
        holds: &BTreeMap<NodeId, BTreeSet<NodeId>>,
    ) -> Result<Self, TooFew> {
        let mut offers = offers;
        offers.retain(|node, offer| secrets::check(offer, *node).is_ok());
        // Whoever is left out may be a holder that others need, so the search goes on until all that are left are safe.
        loop {
            let lacking: Vec<NodeId> = offers
                .iter()
                .filter(|(node, offer)| !is_held(**node, offer, &offers, holds))
                .map(|(node, _)| *node)
                .collect();
            if lacking.is_empty() {
                break;
            }
            for node in lacking {
                offers.remove(&node);
            }
        }
        if offers.len() < FEWEST {
            return Err(TooFew(offers.len()));
        }
        let id = name_of(&context, &offers);
        Ok(Self {
            context,
            offers,
            groups: None,
            id,
        })
    }

    /// Deals the members to groups, each of which has a sum of its own.
    pub fn in_groups(mut self, grouping: Grouping) -> Self {
        self.groups = Some(Groups::deal(grouping, self.members(), &self.context));
        self
    }

    /// Returns what the sum is about.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Visits the members in node order.
    pub fn members(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.offers.keys().copied()
    }

    /// Returns how many members there are.
    pub fn len(&self) -> usize {
        self.offers.len()
    }

    /// Tells whether there are none, which cannot be.
    pub fn is_empty(&self) -> bool {
        self.offers.is_empty()
    }

    /// Tells whether a node is a member.
    pub fn contains(&self, node: NodeId) -> bool {
        self.offers.contains_key(&node)
    }

    /// Returns a member's offer.
    pub fn offer(&self, node: NodeId) -> Option<&MaskOffer> {
        self.offers.get(&node)
    }

    /// Visits the members and their offers in node order.
    pub(crate) fn offers(&self) -> impl Iterator<Item = (NodeId, &MaskOffer)> + '_ {
        self.offers.iter().map(|(node, offer)| (*node, offer))
    }

    /// Returns how many sums there are.
    pub fn n_groups(&self) -> usize {
        self.groups.as_ref().map_or(1, Groups::len)
    }

    /// Returns in which sum a member's vector is.
    pub fn group_of(&self, node: NodeId) -> Option<usize> {
        match &self.groups {
            Some(groups) => groups.of(node),
            None => self.contains(node).then_some(0),
        }
    }

    /// Returns those of these members that can be added up: groups of which too few are left have no sum.
    pub fn countable(&self, nodes: BTreeSet<NodeId>) -> BTreeSet<NodeId> {
        match &self.groups {
            Some(groups) => groups.countable(&nodes),
            None => nodes,
        }
    }

    /// Visits those who share a mask with a member: its group, or else whoever named it as a holder and is named by it.
    pub fn partners(&self, node: NodeId) -> impl Iterator<Item = (NodeId, &MaskOffer)> + '_ {
        let group = self.groups.as_ref().map(|groups| groups.beside(node));
        let group = group
            .into_iter()
            .flatten()
            .filter(move |other| *other != node);
        let grouped = group.filter_map(|other| Some((other, self.offers.get(&other)?)));
        let is_whole = self.groups.is_none();
        grouped.chain(self.holding(node).filter(move |_| is_whole))
    }

    /// Visits those who hold a member's shares and whose shares it holds.
    pub(crate) fn holding(&self, node: NodeId) -> impl Iterator<Item = (NodeId, &MaskOffer)> + '_ {
        let holders = self
            .offers
            .get(&node)
            .into_iter()
            .flat_map(|offer| &offer.holders);
        holders.filter_map(move |holder| {
            let offer = self.offers.get(&holder.node)?;
            number_of(offer, node).map(|_| (holder.node, offer))
        })
    }

    /// Returns the name of the roster, a hash of all offers: members with the same one have the same masks.
    pub fn id(&self) -> Bytes32 {
        self.id
    }
}

fn name_of(context: &Context, offers: &BTreeMap<NodeId, MaskOffer>) -> Bytes32 {
    let mut parts: Vec<&[u8]> = Vec::new();
    for (node, offer) in offers {
        // The only part of one byte: it marks where an offer begins.
        let threshold = std::slice::from_ref(&offer.threshold);
        let keys = [&offer.mask_key, &offer.seal_key, &offer.own_mask];
        parts.extend([node.as_bytes().as_slice(), threshold]);
        parts.extend(keys.map(|key| key.as_slice()));
        for holder in &offer.holders {
            parts.extend([holder.node.as_bytes().as_slice(), holder.sealed.as_slice()]);
            parts.extend([holder.own_mask.as_slice(), holder.mask_key.as_slice()]);
        }
    }
    Bytes32::new(context.derive("fednode masked roster 1", &parts))
}

/// Tells whether so many members hold a member's shares that its secrets can be put together.
fn is_held(
    node: NodeId,
    offer: &MaskOffer,
    offers: &BTreeMap<NodeId, MaskOffer>,
    holds: &BTreeMap<NodeId, BTreeSet<NodeId>>,
) -> bool {
    let is_here = |holder: &&ShareHolder| {
        let held = holds.get(&holder.node);
        offers.contains_key(&holder.node) && held.is_some_and(|held| held.contains(&node))
    };
    let held = offer.holders.iter().filter(is_here).count();
    held >= usize::from(offer.threshold)
}

/// Returns the number of a holder's shares in an offer; they count from 1.
pub(crate) fn number_of(offer: &MaskOffer, holder: NodeId) -> Option<u8> {
    let place = offer
        .holders
        .binary_search_by_key(&holder, |holder| holder.node);
    u8::try_from(place.ok()? + 1).ok()
}
