//! The nodes that were met or heard of, and what each of them said lately.
//!
//! They lie densely, in the order in which they were first heard of until one is forgotten. Their number is bounded.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fednode_core::{
    Accepted, AdvertId, BlobRef, Body, Lineage, Local, NodeId, PoolOffer, ProxySet, Role, Round,
};
use serde::{Deserialize, Serialize};

use super::member::{NodeView, local_of};
use crate::encoding::in_order;
use crate::names::OrderedNames;

/// Most nodes remembered; the oldest-silent are forgotten first. Ten thousand is the largest federation simulated.
pub(super) const MAX_NODES: usize = 16_384;

/// A node's update of a round, as it was said.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Update<'a> {
    pub(crate) node: NodeId,
    pub(crate) round: Round,
    /// The advert that says it.
    pub(crate) id: AdvertId,
    pub(crate) local: &'a Local,
}

impl<'a> Update<'a> {
    /// Returns the update that an advert is, if it is one.
    pub(crate) fn of(advert: &'a Accepted) -> Option<Self> {
        let Body::Local(local) = &advert.body else {
            return None;
        };
        Some(Self {
            node: advert.author,
            round: advert.round,
            id: advert.id,
            local,
        })
    }
}

/// What is known of each node.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Nodes {
    #[serde(with = "in_order")]
    nodes: OrderedNames<NodeId, NodeView>,
}

impl Nodes {
    /// Returns what is known of a node, if anything is.
    pub(super) fn get(&self, node: NodeId) -> Option<&NodeView> {
        self.nodes.get(&node)
    }

    /// Visits all nodes.
    pub(super) fn iter(&self) -> impl Iterator<Item = (NodeId, &NodeView)> {
        self.nodes.iter().map(|(node, view)| (*node, view))
    }

    /// Visits those that are neither banned nor gone.
    fn present(&self) -> impl Iterator<Item = (NodeId, &NodeView)> {
        self.iter().filter(|(_, view)| view.is_present())
    }

    /// Returns what is known of a node, to be changed. The one that was silent for longest is forgotten if there is no room.
    pub(super) fn node(&mut self, node: NodeId) -> &mut NodeView {
        if self.nodes.len() >= MAX_NODES && !self.nodes.contains_key(&node) {
            let silent = self
                .nodes
                .iter()
                .filter(|(_, view)| view.connected.is_none());
            // A forgotten ban is lifted. So bans stay, until they are half of all: they must not drive out everybody else.
            let banned = self.nodes.iter().filter(|(_, view)| view.banned).count();
            let keeps_bans = banned <= MAX_NODES / 2;
            // Connected nodes stay whatever they say: forgetting them would make them strangers at their next word.
            if let Some(oldest) = silent
                .min_by_key(|(node, view)| (view.banned == keeps_bans, view.newest, **node))
                .map(|(node, _)| *node)
            {
                self.nodes.swap_remove(&oldest);
            }
        }
        self.nodes.entry(node).or_default()
    }

    /// Forgets whoever is neither connected nor followed and has said nothing since a round. In a federation in which
    /// others speak in every round the view would otherwise hold them all.
    pub(super) fn forget_unfollowed(&mut self, since: Round, followed: &BTreeSet<NodeId>) {
        // A ban is kept even for strangers: forgotten, it would be lifted by the next advert.
        self.nodes.retain(|node, view| {
            view.connected.is_some()
                || view.banned
                || view.newest >= since
                || followed.contains(node)
        });
    }

    /// Counts the training nodes that said that they leave, or are banned. Of whom nothing else is known counts as none.
    pub(crate) fn n_gone(&self) -> usize {
        self.gone().count()
    }

    /// Visits them.
    pub(crate) fn gone(&self) -> impl Iterator<Item = NodeId> + '_ {
        let gone = |(_, view): &(NodeId, &NodeView)| !view.is_present() && view.is_node();
        self.iter().filter(gone).map(|(node, _)| node)
    }

    /// Visits the training nodes that were met or heard of and are not known to be gone.
    pub(crate) fn known(&self) -> impl Iterator<Item = NodeId> + '_ {
        let is_node = |view: &NodeView| match view.connected {
            Some(role) => role == Role::Node,
            // Not everybody is connected with everybody. Whoever speaks of rounds trains.
            None => view.newest > Round::ZERO,
        };
        let here = self.present();
        let here = here.filter(move |(_, view)| !view.lost && is_node(view));
        here.map(|(node, _)| node)
    }

    /// Returns a node's update of a round.
    pub(crate) fn local(&self, node: NodeId, round: Round) -> Option<&Local> {
        self.nodes.get(&node)?.local(round)
    }

    /// Visits everybody's update of a round; banned and departed nodes are left out.
    pub(crate) fn locals(&self, round: Round) -> impl Iterator<Item = (NodeId, &Local)> {
        let present = self.present();
        present.filter_map(move |(node, view)| Some((node, view.local(round)?)))
    }

    /// Returns everybody's newest update, to be held while the view changes; banned and departed nodes are left out.
    pub(crate) fn newest_adverts(&self) -> Vec<Arc<Accepted>> {
        let present = self.present();
        present
            .filter_map(|(_, view)| view.update.clone())
            .collect()
    }

    /// Visits everybody's newest update; banned and departed nodes are left out.
    pub(crate) fn newest_updates(&self) -> impl Iterator<Item = Update<'_>> {
        let present = self.present();
        present.filter_map(|(_, view)| Update::of(view.update.as_ref()?))
    }

    /// Visits the newest updates of those who can be counted on: they are neither banned nor gone, nor was their connection lost.
    pub(crate) fn votes(&self) -> impl Iterator<Item = Update<'_>> {
        let here = self.present().filter(|(_, view)| !view.lost);
        here.filter_map(|(_, view)| Update::of(view.update.as_ref()?))
    }

    /// Visits everybody's newest update that fits: whoever is ahead of it has signed it all the same.
    pub(crate) fn newest_that<'a>(
        &'a self,
        fits: impl Fn(&Update<'_>) -> bool + 'a,
    ) -> impl Iterator<Item = Update<'a>> {
        self.present().filter_map(move |(_, view)| {
            let mut updates = view.locals().filter_map(|advert| Update::of(advert));
            updates.find(&fits)
        })
    }

    /// Returns a node's newest update, and its round.
    pub(crate) fn newest_local(&self, node: NodeId) -> Option<(Round, &Local)> {
        self.nodes
            .get(&node)?
            .update
            .as_ref()
            .map(|advert| (advert.round, local_of(advert)))
    }

    /// Returns a node's offer of its private module, or its word that it keeps it.
    pub(crate) fn offer(&self, node: NodeId) -> Option<&PoolOffer> {
        self.nodes.get(&node)?.offer()
    }

    /// Visits the private modules on offer, and the shared parts that they fit; those of banned nodes are left out.
    pub(crate) fn modules(&self) -> impl Iterator<Item = (NodeId, Lineage, BlobRef)> {
        // A liar whose module was used would decide what this node predicts.
        let trusted = self.iter().filter(|(_, view)| !view.banned);
        trusted.filter_map(|(node, view)| {
            let offer = view.offer()?;
            Some((node, offer.lineage, offer.blob?))
        })
    }

    /// Tells whether a node's proxies of a round are held.
    pub(crate) fn has_proxies(&self, node: NodeId, round: Round) -> bool {
        self.nodes
            .get(&node)
            .is_some_and(|view| view.proxies(round).is_some())
    }

    /// Returns the held proxies of a round that compare in `lineage`.
    pub(crate) fn proxies(
        &self,
        round: Round,
        lineage: Lineage,
    ) -> BTreeMap<NodeId, Arc<ProxySet>> {
        // In another lineage features mean something else, so a cosine would be noise.
        let compares = |view: &NodeView| {
            let local = view.local(round);
            local.is_some_and(|local| local.lineage == lineage)
        };
        let comparable = self.present().filter(|(_, view)| compares(view));
        comparable
            .filter_map(|(node, view)| Some((node, Arc::clone(view.proxies(round)?))))
            .collect()
    }
}
