//! What a machine knows of the others: who is there, what they said lately, whose proxies are held.
//!
//! Filled from accepted adverts and connection events only. Bounded: a fixed number of members, the adverts of the
//! last few rounds each. Every advert that is heard passes through here, in a large federation many thousands a round.
//!
//! ```text
//!   adverts, connections ──► View ─┬─► Nodes      what each said, and whether it is here
//!                                  ├─► Company    who is counted on
//!                                  ├─► Closings   closed rounds, and the adverts that they name
//!                                  ├─► Doubts     whose word was of no use lately
//!                                  └─► Withdrawn  blobs that were taken back
//! ```
//!
//! What each said of masked sums is among what it said: `words` looks that up.

mod closings;
mod company;
mod doubts;
mod evidence;
mod holdups;
mod member;
mod nodes;
mod withdrawn;
mod words;

use std::collections::BTreeSet;
use std::sync::Arc;

use fednode_core::{
    Accepted, BlobId, Body, ClosingId, FederationSpec, Global, Member, NodeId, ProxySet, Role,
    Round, Sequence, Timestamp,
};
use serde::{Deserialize, Serialize};

use self::closings::Closings;
use self::company::Company;
use self::doubts::Doubts;
use self::holdups::HoldUps;
use self::member::{NodeView, local_of};
use self::nodes::Nodes;
pub(crate) use self::nodes::Update;
use self::withdrawn::Withdrawn;
use crate::event::{Arrival, AverageReport, FetchKind, Lacking};
use crate::follower::Announced;

/// What an advert is to a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Recorded {
    /// Its author is banned.
    Nothing,
    /// It only confirms what somebody else said.
    Evidence,
    News,
}

/// What is known of the others, and of what this node itself said.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct View {
    nodes: Nodes,
    company: Company,
    closings: Closings,
    doubts: Doubts,
    #[serde(default)]
    holdups: HoldUps,
    withdrawn: Withdrawn,
    /// How many rounds of adverts are kept per node: an older expert may stand in for up to I rounds.
    keep_rounds: u32,
}

impl View {
    /// Makes an empty view that keeps the adverts of `keep_rounds` rounds per node.
    pub(crate) fn new(keep_rounds: u32) -> Self {
        Self {
            nodes: Nodes::default(),
            company: Company::default(),
            closings: Closings::default(),
            doubts: Doubts::default(),
            holdups: HoldUps::default(),
            withdrawn: Withdrawn::default(),
            // Whoever is a round ahead is counted with its update before that.
            keep_rounds: keep_rounds.max(2),
        }
    }

    /// Records an accepted advert, unless its author is banned.
    pub(crate) fn record(&mut self, advert: &Arc<Accepted>) -> Recorded {
        // What was lacking is evidence of what a closing says, also if its author is banned or if it is old by now.
        let is_evidence = self.closings.take_evidence(advert);
        match self.record_news(advert) {
            true => Recorded::News,
            false if is_evidence => Recorded::Evidence,
            false => Recorded::Nothing,
        }
    }

    fn record_news(&mut self, advert: &Arc<Accepted>) -> bool {
        match &advert.body {
            Body::Local(_) => return self.record_local(advert),
            // It counts for what its members signed, whoever announces it: others may follow it already.
            Body::Global(global) => return self.record_global(advert, global),
            _ if self.is_banned(advert.author) => return false,
            Body::Leave => {
                if !self.nodes.node(advert.author).leave(advert.sequence) {
                    return false;
                }
                self.company.lose_neighbour(advert.author);
            }
            Body::Pool(_) => return self.nodes.node(advert.author).keep_offer(advert),
            Body::Withdraw(withdraw) => {
                let node = self.nodes.node(advert.author);
                node.withdraw_offer(advert.sequence, &withdraw.blobs);
            }
            Body::Propose(_) | Body::Agree(_) | Body::Unmask(_) | Body::Slices(_) => {
                self.nodes.node(advert.author).keep_word(advert);
            }
            // What others have deleted changes nothing here.
            Body::Fault(_) | Body::Removed(_) => {}
        }
        true
    }

    fn record_local(&mut self, advert: &Arc<Accepted>) -> bool {
        let keep = self.keep_rounds;
        let node = self.nodes.node(advert.author);
        // Adverts of a banned node still travel by gossip, since others may not have banned it.
        if node.banned {
            return false;
        }
        let is_back = node.come_back(advert.sequence) && node.connected == Some(Role::Node);
        node.lost = false;
        node.newest = node.newest.max(advert.round);
        let oldest = Round(node.newest.0.saturating_sub(keep));
        if advert.round >= oldest {
            node.keep_local(advert);
        }
        node.forget_before(oldest);
        self.withdrawn.published(advert);
        if is_back {
            // Who is counted on changes, so whatever waits for neighbours must look again.
            self.company.changed();
            self.company.enter(advert.author, Role::Node);
        }
        true
    }

    /// Records a closed round, unless it is known to be false.
    fn record_global(&mut self, advert: &Arc<Accepted>, global: &Global) -> bool {
        let id = global.id(advert.round);
        if self.closings.is_refuted(id) {
            return false;
        }
        if self.closings.is_full(advert.author) {
            let others = self.nodes.newest_updates();
            // Its own word does not count, or nothing that it says would ever give way.
            let others = others.filter(|update| update.node != advert.author);
            let followed = others.filter_map(|update| update.local.follows).collect();
            self.closings.make_room(advert.author, &followed);
        }
        self.closings.keep(id, advert);
        true
    }

    /// Records a connection.
    pub(crate) fn connect(&mut self, node: NodeId, role: Role) {
        self.company.changed();
        let view = self.nodes.node(node);
        view.connected = Some(role);
        view.lost = false;
        view.met = Some(role);
        // A connection changes neither: whoever left is back once it speaks.
        if view.banned || view.left {
            return;
        }
        self.company.enter(node, role);
    }

    /// Records the loss of a connection.
    pub(crate) fn disconnect(&mut self, node: NodeId) {
        self.company.lose(node);
        let view = self.nodes.node(node);
        view.connected = None;
        view.lost = true;
    }

    /// Believes nothing that a node says of itself any more. Rounds that it closed are judged by what their members signed.
    pub(crate) fn ban(&mut self, node: NodeId) {
        self.company.lose(node);
        self.nodes.node(node).banned = true;
    }

    /// Forgets a closed round that is false, for good.
    pub(crate) fn refute(&mut self, closing: ClosingId) {
        self.closings.refute(closing);
    }

    /// Tells whether a closed round is known to be false.
    pub(crate) fn is_refuted(&self, closing: ClosingId) -> bool {
        self.closings.is_refuted(closing)
    }

    /// Tells whether a node is banned.
    pub(crate) fn is_banned(&self, node: NodeId) -> bool {
        self.nodes.get(node).is_some_and(|view| view.banned)
    }

    /// Doubts a node until its part can be had, or what it closed is followed.
    pub(crate) fn doubt(&mut self, node: NodeId) {
        self.doubts.add(node);
    }

    /// Doubts those whose parts cannot be counted, until a part of theirs comes.
    pub(crate) fn doubt_refused(&mut self, report: &AverageReport) {
        let refused = report.rejected.iter().map(|(node, _)| *node);
        refused.for_each(|node| self.doubt(node));
    }

    /// A round has waited for these nodes until its deadline: of those who are here none is waited for very often.
    pub(crate) fn note_held_up(&mut self, nodes: impl IntoIterator<Item = NodeId>) {
        self.company.changed();
        for node in nodes {
            if self.company.has_neighbour(node) {
                self.holdups.note(node);
            }
        }
    }

    /// Tells whether a node is worth waiting for: it has not held rounds up too often. Where chance draws who trains, everybody is, since
    /// rounds in which too few were drawn last until their deadline without anybody's fault.
    pub(crate) fn is_waited_for(&self, node: NodeId, spec: &FederationSpec) -> bool {
        spec.round.participation < 1.0 || self.holdups.is_waited_for(node, spec.nodes)
    }

    /// The aggregators had the time of a whole round, and did nothing: they are not waited for until one closes a round.
    pub(crate) fn note_idle_aggregators(&mut self) {
        self.company.note_idle_aggregators();
    }

    /// A closed round is followed, so its author is doubted no longer. Nor is any aggregator: it sends no parts that could
    /// clear it, and a doubt is of what it closed before.
    pub(crate) fn on_followed(&mut self, author: NodeId, global: &Global) {
        self.company.on_followed(author);
        let is_member = |node| global.members.iter().any(|member| member.node == node);
        self.holdups.on_counted(is_member);
        let nodes = &self.nodes;
        let aggregates = |node| nodes.get(node).is_some_and(NodeView::is_aggregator);
        self.doubts.lift(|node| node == author || aggregates(node));
    }

    /// A blob came, or cannot be had: whoever offers it as its part is doubted, or not any more.
    pub(crate) fn on_arrival(&mut self, arrival: Arrival) {
        let offers = |view: &NodeView| {
            let update = view.update.as_deref();
            let part = update.and_then(|update| local_of(update).shared);
            part.is_some_and(|part| arrival.ends_wait_for(&part, FetchKind::Shared))
        };
        let nodes = &self.nodes;
        if arrival.is_held() {
            self.doubts.lift(|node| nodes.get(node).is_some_and(offers));
            return;
        }
        // Whoever announces a part must be able to serve it, also if others announce the same one.
        let owners = nodes.iter().filter(|(_, view)| offers(view));
        let owners: Vec<NodeId> = owners.map(|(node, _)| node).collect();
        owners.into_iter().for_each(|node| self.doubt(node));
    }

    /// Tells whether there is no reason to wait for a node, or to prefer what it closed.
    pub(crate) fn is_doubtful(&self, node: NodeId) -> bool {
        self.doubts.contains(node) || self.is_banned(node)
    }

    /// Tells whether a node said that it leaves.
    pub(crate) fn has_left(&self, node: NodeId) -> bool {
        self.nodes
            .get(node)
            .is_some_and(|view| view.left || view.banned)
    }

    /// Tells whether a node's last connection was lost and nothing was heard of it since.
    pub(crate) fn is_lost(&self, node: NodeId) -> bool {
        self.nodes.get(node).is_some_and(|view| view.lost)
    }

    /// Returns what each node said.
    pub(crate) fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    /// Returns who is here to be counted on.
    pub(crate) fn company(&self) -> &Company {
        &self.company
    }

    /// Tells whether a node closes rounds by its role: it said that it is an aggregator when it was met, and it has never
    /// trained. Of whom nothing is known, nothing is believed.
    pub(crate) fn is_aggregator(&self, node: NodeId) -> bool {
        let known = self.nodes.get(node);
        known.is_some_and(NodeView::is_aggregator)
    }

    /// Tells whether a node is connected.
    pub(crate) fn is_connected(&self, node: NodeId) -> bool {
        let known = self.nodes.get(node);
        known.is_some_and(|view| view.connected.is_some())
    }

    /// Forgets whoever is neither connected nor followed and has said nothing since a round.
    pub(crate) fn forget_unfollowed(&mut self, since: Round, followed: &BTreeSet<NodeId>) {
        self.nodes.forget_unfollowed(since, followed);
    }

    /// Leaves those of `blobs` that nobody but `author` is known to need: no part of anybody else's updates, offers or
    /// closed rounds.
    pub(crate) fn nobody_elses(&self, author: NodeId, blobs: &[BlobId]) -> Vec<BlobId> {
        let others = self.nodes.iter().filter(|(node, _)| *node != author);
        let said = others.flat_map(|(_, view)| view.blobs());
        // A closing that is known may still be audited, and that takes its parts.
        let closed = self.globals().flat_map(|Announced { global, .. }| {
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

    /// Returns what to delete of the blobs that an owner takes back: what nobody else needs, this node included. What is still on
    /// its way follows when it comes.
    pub(crate) fn withdraw(
        &mut self,
        (owner, at): (NodeId, Sequence),
        blobs: &[BlobId],
        needed: &BTreeSet<BlobId>,
    ) -> Vec<BlobId> {
        self.withdrawn.add((owner, at), blobs);
        self.free_of(owner, blobs, needed)
    }

    /// Leaves those blobs of an owner that may be deleted: nobody else needs them, this node included.
    pub(crate) fn free_of(
        &self,
        owner: NodeId,
        blobs: &[BlobId],
        needed: &BTreeSet<BlobId>,
    ) -> Vec<BlobId> {
        let mut free = self.nobody_elses(owner, blobs);
        free.retain(|blob| !needed.contains(blob));
        free
    }

    /// Returns what was taken back and is to be deleted by now: what nobody else needs any more, this node included.
    pub(crate) fn taken_back(&self, needed: &BTreeSet<BlobId>) -> Vec<BlobId> {
        let by_owner = self.withdrawn.by_owner().into_iter();
        by_owner
            .flat_map(|(owner, blobs)| self.free_of(owner, &blobs, needed))
            .collect()
    }

    /// Tells whether a blob that came is to be deleted: its owner took it back meanwhile, and nobody else needs it.
    pub(crate) fn came_too_late(&self, blob: BlobId, needed: &BTreeSet<BlobId>) -> bool {
        let mut owners = self.withdrawn.owners_of(blob);
        let is_free = |owner| !self.nobody_elses(owner, &[blob]).is_empty();
        !needed.contains(&blob) && owners.any(is_free)
    }

    /// Tells whether anybody took a blob back.
    pub(crate) fn was_withdrawn(&self, blob: BlobId) -> bool {
        self.withdrawn.owners_of(blob).next().is_some()
    }

    /// Tells whether a node took a blob back.
    pub(crate) fn was_withdrawn_by(&self, owner: NodeId, blob: BlobId) -> bool {
        self.withdrawn.owners_of(blob).any(|known| known == owner)
    }

    /// Keeps a node's proxies of a round.
    pub(crate) fn keep_proxies(&mut self, node: NodeId, round: Round, proxies: Arc<ProxySet>) {
        let known = &mut self.nodes.node(node).more.get_or_insert_default().proxies;
        known.retain(|(known, _)| *known != round);
        known.push((round, proxies));
    }

    /// Visits the closed rounds that were announced.
    pub(crate) fn globals(&self) -> impl Iterator<Item = Announced<'_>> {
        self.closings.iter()
    }

    /// Returns a closed round that was announced, by its name.
    pub(crate) fn closing(&self, id: ClosingId) -> Option<&Global> {
        self.closings.get(id)
    }

    /// Returns the advert in which a member of a closed round signed what it is counted with.
    pub(crate) fn signed(&self, member: &Member) -> Option<&Accepted> {
        let known = self.nodes.get(member.node);
        let mut updates = known.into_iter().flat_map(NodeView::locals);
        let heard = updates.find(|advert| advert.id == member.advert);
        heard
            .map(Arc::as_ref)
            .or_else(|| self.closings.evidence(member.advert))
    }

    /// Returns those of `lacking` that are to be asked for now: they are lacking since `since`, or were asked for then.
    pub(crate) fn take_due(
        &mut self,
        lacking: Vec<Lacking>,
        now: Timestamp,
        since: Timestamp,
    ) -> Vec<Lacking> {
        self.closings.take_due(lacking, now, since)
    }
}

#[cfg(test)]
mod tests;
