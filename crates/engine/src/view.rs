//! What a machine knows of the others: who is there, what they said lately, whose proxies are held.
//!
//! Filled from accepted adverts and connection events only. Bounded: a fixed number of members, the adverts of the
//! last few rounds each. Every advert that is heard passes through here, in a large federation many thousands a round.
//! So the members lie densely in the order in which they were first heard of. They are visited in that order.

mod member;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fednode_core::{
    Advert, BlobId, BlobRef, Body, Global, Lineage, Local, Member, NodeId, PoolOffer, ProxySet,
    Role, Round, Weighting,
};
use serde::{Deserialize, Serialize};

use self::member::{NodeView, local_of};
use crate::encoding::{in_order, shared_list};
use crate::names::OrderedNames;

/// Most nodes remembered; the oldest-silent are forgotten first. Ten thousand is the largest federation simulated.
const MAX_NODES: usize = 16_384;
/// Most `Global` adverts remembered: a few rounds from a few authors.
const MAX_GLOBALS: usize = 64;
/// Most of one author.
const MAX_GLOBALS_OF_ONE: usize = 8;

/// What is known of the others, and of what this node itself said.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct View {
    #[serde(with = "in_order")]
    nodes: OrderedNames<NodeId, NodeView>,
    /// Connected training nodes and connected aggregators that have neither left nor been banned.
    neighbours: BTreeSet<NodeId>,
    aggregators: BTreeSet<NodeId>,
    changes_of_company: u64,
    #[serde(with = "shared_list")]
    globals: Vec<Arc<Advert>>,
    /// Who signed two different updates of one round: what they say proves nothing of anybody else.
    contradictory: BTreeSet<NodeId>,
    /// How many rounds of adverts are kept per node: an older expert may stand in for up to I rounds.
    keep_rounds: u32,
}

impl View {
    /// Makes an empty view that keeps the adverts of `keep_rounds` rounds per node.
    pub(crate) fn new(keep_rounds: u32) -> Self {
        Self {
            nodes: OrderedNames::default(),
            neighbours: BTreeSet::new(),
            aggregators: BTreeSet::new(),
            changes_of_company: 0,
            globals: Vec::new(),
            contradictory: BTreeSet::new(),
            keep_rounds: keep_rounds.max(2),
        }
    }

    /// Records an accepted advert; one of a banned author is not recorded, and false returned.
    pub(crate) fn record(&mut self, advert: &Arc<Advert>) -> bool {
        match &advert.body {
            Body::Local(_) => return self.record_local(advert),
            _ if self.is_banned(advert.author) => return false,
            Body::Global(_) => self.record_global(advert),
            Body::Leave => {
                self.node(advert.author).left = true;
                self.neighbours.remove(&advert.author);
                self.changes_of_company += 1;
            }
            Body::Pool(_) => {
                self.node(advert.author).more.get_or_insert_default().offer =
                    Some(Arc::clone(advert));
            }
            Body::Withdraw(withdraw) => {
                let is_withdrawn = |offer: &PoolOffer| {
                    offer
                        .blob
                        .is_some_and(|blob| withdraw.blobs.contains(&blob.id))
                };
                let node = self.node(advert.author);
                if node.offer().is_some_and(is_withdrawn)
                    && let Some(more) = &mut node.more
                {
                    more.offer = None;
                }
            }
            Body::Fault(_) => {}
        }
        true
    }

    fn record_local(&mut self, advert: &Arc<Advert>) -> bool {
        let keep = self.keep_rounds;
        let node = self.node(advert.author);
        // Adverts of a banned node still travel by gossip, since others may not have banned it.
        if node.banned {
            return false;
        }
        // Whoever speaks after its farewell is back; a connection alone does not say so.
        let is_back = std::mem::take(&mut node.left) && node.connected == Some(Role::Node);
        node.lost = false;
        node.newest = node.newest.max(advert.round);
        let oldest = Round(node.newest.0.saturating_sub(keep));
        // An update that is too old to be kept is too old to contradict anybody.
        let contradicts = advert.round >= oldest && node.keep_local(advert);
        node.forget_before(oldest);
        // The set is bounded like the nodes: a flood of liars must not fill the memory.
        if contradicts && self.contradictory.len() < MAX_NODES {
            self.contradictory.insert(advert.author);
        }
        if is_back {
            // Who is counted on changes, so whatever waits for neighbours must look again.
            self.neighbours.insert(advert.author);
            self.changes_of_company += 1;
        }
        true
    }

    fn record_global(&mut self, advert: &Arc<Advert>) {
        let is_its = |global: &&Arc<Advert>| global.author == advert.author;
        let is_talkative = self.globals.iter().filter(is_its).count() >= MAX_GLOBALS_OF_ONE;
        if is_talkative || self.globals.len() >= MAX_GLOBALS {
            // Nobody's talk drives out what others say.
            let places = self.globals.iter().enumerate();
            let dispensable = places.filter(|(_, global)| !is_talkative || is_its(global));
            // Found by its place, not by its address in memory, which a restored machine does not have.
            let oldest = dispensable.min_by_key(|(_, global)| global.round);
            if let Some(place) = oldest.map(|(place, _)| place) {
                self.globals.remove(place);
            }
        }
        self.globals.push(Arc::clone(advert));
    }

    fn node(&mut self, node: NodeId) -> &mut NodeView {
        if self.nodes.len() >= MAX_NODES && !self.nodes.contains_key(&node) {
            let silent = self
                .nodes
                .iter()
                .filter(|(_, view)| view.connected.is_none());
            // Connected nodes stay whatever they say: forgetting them would make them strangers at their next word.
            if let Some(oldest) = silent
                .min_by_key(|(node, view)| (view.newest, **node))
                .map(|(node, _)| *node)
            {
                self.nodes.swap_remove(&oldest);
            }
        }
        self.nodes.entry(node).or_default()
    }

    /// Records a connection.
    pub(crate) fn connect(&mut self, node: NodeId, role: Role) {
        self.changes_of_company += 1;
        let view = self.node(node);
        view.connected = Some(role);
        view.lost = false;
        if view.banned || view.left {
            return;
        }
        match role {
            Role::Node => self.neighbours.insert(node),
            Role::Aggregator => self.aggregators.insert(node),
        };
    }

    /// Records the loss of a connection.
    pub(crate) fn disconnect(&mut self, node: NodeId) {
        self.changes_of_company += 1;
        let view = self.node(node);
        view.connected = None;
        view.lost = true;
        self.neighbours.remove(&node);
        self.aggregators.remove(&node);
    }

    /// Stops listening to a node for good.
    pub(crate) fn ban(&mut self, node: NodeId) {
        self.changes_of_company += 1;
        self.node(node).banned = true;
        self.neighbours.remove(&node);
        self.aggregators.remove(&node);
        // What it announced is forgotten too, so that no later look finds it again.
        self.globals.retain(|global| global.author != node);
    }

    /// Tells whether a node is banned.
    pub(crate) fn is_banned(&self, node: NodeId) -> bool {
        self.nodes.get(&node).is_some_and(|view| view.banned)
    }

    /// Tells whether a node said that it leaves.
    pub(crate) fn has_left(&self, node: NodeId) -> bool {
        self.nodes
            .get(&node)
            .is_some_and(|view| view.left || view.banned)
    }

    /// Tells whether a node's last connection was lost and nothing was heard of it since.
    pub(crate) fn is_lost(&self, node: NodeId) -> bool {
        self.nodes.get(&node).is_some_and(|view| view.lost)
    }

    /// Visits the training nodes that are connected and have not left.
    pub(crate) fn neighbours(&self) -> impl ExactSizeIterator<Item = NodeId> + '_ {
        self.neighbours.iter().copied()
    }

    /// Visits the training nodes that were met or heard of and are not known to be gone.
    pub(crate) fn known(&self) -> impl Iterator<Item = NodeId> + '_ {
        let is_node = |view: &NodeView| match view.connected {
            Some(role) => role == Role::Node,
            None => view.newest > Round::ZERO,
        };
        let present = self
            .nodes
            .iter()
            .filter(move |(_, view)| view.is_present() && !view.lost && is_node(view));
        present.map(|(node, _)| *node)
    }

    /// Counts the times that a neighbour came, went, left, came back or was banned.
    pub(crate) fn changes_of_company(&self) -> u64 {
        self.changes_of_company
    }

    /// Tells whether an aggregator is connected.
    pub(crate) fn has_aggregator(&self) -> bool {
        !self.aggregators.is_empty()
    }

    /// Tells whether a node closes rounds by its role: it says that it is an aggregator, or it has never trained.
    pub(crate) fn is_aggregator(&self, node: NodeId) -> bool {
        self.nodes
            .get(&node)
            .is_none_or(|view| match view.connected {
                Some(role) => role == Role::Aggregator,
                None => view.newest == Round::ZERO,
            })
    }

    /// Returns a node's update of a round.
    pub(crate) fn local(&self, node: NodeId, round: Round) -> Option<&Local> {
        self.nodes.get(&node)?.local(round)
    }

    /// Visits everybody's update of a round; banned and departed nodes are left out.
    pub(crate) fn locals(&self, round: Round) -> impl Iterator<Item = (NodeId, &Local)> {
        let present = self.nodes.iter().filter(|(_, view)| view.is_present());
        present.filter_map(move |(node, view)| Some((*node, view.local(round)?)))
    }

    /// Visits everybody's newest update; banned and departed nodes are left out.
    pub(crate) fn newest_locals(&self) -> impl Iterator<Item = (NodeId, Round, &Local)> {
        let present = self.nodes.iter().filter(|(_, view)| view.is_present());
        present.filter_map(|(node, view)| {
            view.update
                .as_ref()
                .map(|advert| (*node, advert.round, local_of(advert)))
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

    /// Forgets whoever is neither connected nor followed and has said nothing since a round. In a federation in which
    /// others speak in every round the view would otherwise hold them all.
    pub(crate) fn forget_unfollowed(&mut self, since: Round, followed: &BTreeSet<NodeId>) {
        // A ban is kept even for strangers: forgotten, it would be lifted by the next advert.
        self.nodes.retain(|node, view| {
            view.connected.is_some()
                || view.banned
                || view.newest >= since
                || followed.contains(node)
        });
    }

    /// Returns a node's offer of its private module, or its word that it keeps it.
    pub(crate) fn offer(&self, node: NodeId) -> Option<&PoolOffer> {
        self.nodes.get(&node)?.offer()
    }

    /// Visits the private modules on offer, and the shared parts that they fit; those of banned nodes are left out.
    pub(crate) fn modules(&self) -> impl Iterator<Item = (NodeId, Lineage, BlobRef)> {
        // A liar whose module was used would decide what this node predicts.
        let trusted = self.nodes.iter().filter(|(_, view)| !view.banned);
        trusted.filter_map(|(node, view)| {
            let offer = view.offer()?;
            Some((*node, offer.lineage, offer.blob?))
        })
    }

    /// Leaves those of `blobs` that nobody but `author` is known to need: no part of anybody else's updates, offers or
    /// closed rounds.
    pub(crate) fn nobody_elses(&self, author: NodeId, blobs: &[BlobId]) -> Vec<BlobId> {
        let others = self.nodes.iter().filter(|(node, _)| **node != author);
        let said = others.flat_map(|(_, view)| view.blobs());
        let closed = self.globals().flat_map(|(_, _, global)| {
            global
                .members
                .iter()
                .map(|member| member.shared.id)
                .chain([global.mean.id, global.parent])
        });
        let needed: BTreeSet<BlobId> = said
            .chain(closed)
            .filter(|blob| blobs.contains(blob))
            .collect();
        blobs
            .iter()
            .copied()
            .filter(|blob| !needed.contains(blob))
            .collect()
    }

    /// Keeps a node's proxies of a round.
    pub(crate) fn keep_proxies(&mut self, node: NodeId, round: Round, proxies: Arc<ProxySet>) {
        let known = &mut self.node(node).more.get_or_insert_default().proxies;
        known.retain(|(known, _)| *known != round);
        known.push((round, proxies));
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
        let present = self.nodes.iter().filter(|(_, view)| view.is_present());
        let comparable = present.filter(|(_, view)| {
            view.local(round)
                .is_some_and(|local| local.lineage == lineage)
        });
        comparable
            .filter_map(|(node, view)| Some((*node, Arc::clone(view.proxies(round)?))))
            .collect()
    }

    /// Visits the closed rounds that were announced and whose author is not banned.
    pub(crate) fn globals(&self) -> impl Iterator<Item = (NodeId, Round, &Global)> {
        self.globals.iter().filter_map(|advert| match &advert.body {
            Body::Global(global) => Some((advert.author, advert.round, global)),
            _ => None,
        })
    }

    /// Returns the first member that a closed round counts otherwise than the member itself signed.
    ///
    /// Members whose update of that round is not known here prove nothing, nor do those that signed two of one round: who
    /// closed it may have heard the other one.
    pub(crate) fn contradiction(
        &self,
        round: Round,
        global: &Global,
        weighting: Weighting,
    ) -> Option<NodeId> {
        let contradicts = |member: &&Member| {
            // Uniform weights need no word of the member: anything else is false by itself.
            if weighting == Weighting::Uniform && member.weight != 1.0 {
                return true;
            }
            let speaks = |view: &&NodeView| {
                view.local(round).is_some() && !self.contradictory.contains(&member.node)
            };
            // Silence convicts nobody: the update may be under way.
            let Some(view) = self.nodes.get(&member.node).filter(speaks) else {
                return false;
            };
            let counted_so = |local: &Local| match weighting {
                Weighting::Uniform => true,
                Weighting::Samples => member.weight == f64::from(local.n_samples),
            };
            let said = |advert: &Arc<Advert>| {
                let local = local_of(advert);
                local.shared == Some(member.shared) && counted_so(local)
            };
            !view.locals().any(said)
        };
        global
            .members
            .iter()
            .find(contradicts)
            .map(|member| member.node)
    }

    /// Returns how many members of a closed round have signed that they trained for it, or for a later one, what it counts
    /// them with, from what it follows. Of an honest closing, whose round is its members' median, it is most of them.
    pub(crate) fn confirmed(&self, round: Round, global: &Global) -> usize {
        let confirms = |member: &&Member| {
            let said = |advert: &Arc<Advert>| {
                let local = local_of(advert);
                // A later update from the same mean confirms as well: its author had not followed any other round meanwhile.
                advert.round >= round
                    && local.shared == Some(member.shared)
                    && local.parent == global.parent
            };
            self.nodes
                .get(&member.node)
                .is_some_and(|view| view.locals().any(said))
        };
        global.members.iter().filter(confirms).count()
    }
}

#[cfg(test)]
mod tests {
    use fednode_core::{FederationId, Sequence, Timestamp};

    use super::*;

    const AUTHOR: NodeId = NodeId::from_bytes([1; 32]);

    /// An update of a round, with a number to tell two of one round apart.
    fn update(round: u32, n_samples: u32) -> Arc<Advert> {
        let (lineage, none) = (BlobId::of(b"initial"), Timestamp(0));
        let local = Local {
            lineage,
            parent: lineage,
            shared: None,
            experts: Vec::new(),
            proxies: None,
            sketches: None,
            peers: Vec::new(),
            statistics: None,
            n_samples,
        };
        Arc::new(Advert {
            federation: FederationId::from_bytes([0; 32]),
            author: AUTHOR,
            sequence: Sequence {
                incarnation: 1,
                counter: 0,
            },
            round: Round(round),
            issued_at: none,
            expires_at: none,
            body: Body::Local(local),
        })
    }

    /// What a view that keeps three rounds knows of rounds 1 to 6 after hearing updates in an order.
    fn known(heard: &[(u32, u32)]) -> Vec<(u32, u32)> {
        let mut view = View::new(3);
        for (round, n_samples) in heard {
            assert!(view.record(&update(*round, *n_samples)));
        }
        let newest = view.newest_local(AUTHOR).map(|(round, _)| round.0);
        assert_eq!(newest, heard.iter().map(|(round, _)| *round).max());
        (1..=6)
            .filter_map(|round| Some((round, view.local(AUTHOR, Round(round))?.n_samples)))
            .collect()
    }

    #[test]
    fn one_update_a_round_is_kept_in_whatever_order_they_come() {
        assert_eq!(
            known(&[(1, 10), (2, 20), (3, 30)]),
            [(1, 10), (2, 20), (3, 30)]
        );
        assert_eq!(
            known(&[(3, 30), (1, 10), (2, 20)]),
            [(1, 10), (2, 20), (3, 30)]
        );
        assert_eq!(
            known(&[(2, 20), (3, 30), (1, 10), (4, 40)]),
            [(1, 10), (2, 20), (3, 30), (4, 40)]
        );
    }

    #[test]
    fn the_later_of_two_updates_of_a_round_counts() {
        assert_eq!(known(&[(1, 10), (1, 11)]), [(1, 11)], "the newest round");
        assert_eq!(
            known(&[(1, 10), (2, 20), (3, 30), (2, 21), (1, 11)]),
            [(1, 11), (2, 21), (3, 30)],
            "earlier rounds"
        );
    }

    #[test]
    fn two_signed_updates_of_a_round_prove_no_lie_of_others() {
        let mut view = View::new(3);
        let member = |weight| Member {
            node: AUTHOR,
            shared: BlobRef::of(b"part"),
            weight,
        };
        let closing = |weight| Global {
            members: vec![member(weight)],
            mean: BlobRef::of(b"mean"),
            parent: BlobId::of(b"initial"),
            history: 1,
        };
        let contradiction = |view: &View, weight| {
            view.contradiction(Round(2), &closing(weight), Weighting::Samples)
        };
        view.record(&update(1, 9));
        view.record(&update(2, 10));
        assert_eq!(
            contradiction(&view, 10.0),
            Some(AUTHOR),
            "it signed no such part"
        );
        view.record(&update(2, 10));
        assert_eq!(
            contradiction(&view, 10.0),
            Some(AUTHOR),
            "the same once more"
        );
        view.record(&update(2, 11));
        assert_eq!(
            contradiction(&view, 10.0),
            None,
            "the first may have been another"
        );
    }

    #[test]
    fn rounds_that_are_too_old_are_forgotten_and_not_taken_in() {
        assert_eq!(known(&[(1, 10), (2, 20), (5, 50)]), [(2, 20), (5, 50)]);
        assert_eq!(
            known(&[(6, 60), (1, 10), (2, 20), (3, 30)]),
            [(3, 30), (6, 60)]
        );
    }
}
