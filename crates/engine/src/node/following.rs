//! Large federations: whose proxies to fetch, and whom to follow.
//!
//! ```text
//! sketches of all that are heard ──► shortlist ──► their exact proxies ──► plan and ranking
//!        ▲                                                                     │ the nearest
//!        └── updates of those followed ◄── follow ◄── friends of friends ◄─────┘
//! ```
//!
//! Beyond 200 nodes (`limits::FULL_PROXIES`) a node fetches the proxies of a shortlist only (`fednode-mix`, `sketch`). Beyond
//! `round.broadcast_set` it receives a changing sample of the others. It looks for its kind as in nearest-neighbour descent
//! (Dong, Charikar and Li 2011; T-Man, Jelasity et al. 2009). Whoever is like me knows others who are like me. Every
//! update recommends its author's nearest; those that were not heard of are followed until the next refresh, and stay
//! if their experts prove nearer than what was known.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fednode_core::draw::draw;
use fednode_core::{Local, MAX_PEERS, NodeId, ProxySet, Round};
use fednode_mix::sketch;
use serde::{Deserialize, Serialize};

use super::exchange::Exchange;
use super::shared::Shared;
use crate::event::Output;

/// Whom this node follows, and whom it recommends.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Following {
    /// The nodes whose experts are most like its own, nearest first.
    nearest: Vec<NodeId>,
    all: BTreeSet<NodeId>,
}

impl Following {
    /// Returns the nodes to recommend.
    pub(super) fn nearest(&self) -> &[NodeId] {
        &self.nearest
    }
}

/// Fetches the proxies of those whose sketches are like the own ones, once all that are heard have spoken.
pub(super) fn fetch_shortlist(shared: &mut Shared, exchange: &mut Exchange) {
    let (round, lineage, me) = (shared.memory.round, shared.memory.lineage, shared.me);
    let refreshes = shared.schedule.refreshes_in(round) && shared.trains();
    let is_due = shared.spec.uses_sketches() && refreshes;
    if !is_due || !exchange.is_first_shortlist() {
        return;
    }
    let experts = shared.spec.exchange.experts.as_ref();
    let own = shared.memory.report.as_ref();
    let own = own.and_then(|report| report.sketches.as_ref());
    let (Some(experts), Some(own)) = (experts, own) else {
        return;
    };
    let per_row = sketch::shortlisted(experts.peers_per_expert.limit());
    let locals = shared.view.nodes().locals(round);
    // Sketches of another lineage are of other features: they tell nothing.
    let comparable = locals.filter(|(node, local)| *node != me && local.lineage == lineage);
    let others = comparable.filter_map(|(node, local)| Some((node, local.sketches.as_ref()?)));
    let listed = sketch::shortlist(own, others, per_row);
    let wanted: Vec<(NodeId, Local)> = listed
        .into_iter()
        .filter_map(|node| Some((node, shared.view.nodes().local(node, round)?.clone())))
        .collect();
    for (node, local) in wanted {
        shared.want_proxies(node, round, &local);
    }
}

/// Follows the owners of planned experts, the next nearest, and those whom they recommend.
pub(super) fn follow_nearest(
    shared: &mut Shared,
    refresh: Round,
    known: &BTreeMap<NodeId, Arc<ProxySet>>,
) {
    if !shared.broadcast_set.is_partial() {
        return;
    }
    let most = shared.spec.most_followed();
    let mut nearest = planned_owners(shared);
    for (node, _) in fednode_mix::plan::ranking(shared.me, known) {
        if nearest.len() < MAX_PEERS.min(most / 2) && !nearest.contains(&node) {
            nearest.push(node);
        }
    }
    let mut all: BTreeSet<NodeId> = nearest.iter().copied().collect();
    // About half of the places are left to prospects: without them the search would end where it began.
    let places = most.saturating_sub(all.len());
    all.extend(prospects(shared, refresh, &all).into_iter().take(places));
    nearest.truncate(MAX_PEERS);
    let follow = Output::Follow(all.iter().copied().collect());
    shared.outbox.push(follow);
    shared.following = Following { nearest, all };
}

/// Forgets whom this node neither follows nor is connected with, once they have been silent for a round.
pub(super) fn forget_unfollowed(shared: &mut Shared) {
    if shared.broadcast_set.is_partial() {
        let since = Round(shared.memory.round.0.saturating_sub(1));
        shared.view.forget_unfollowed(since, &shared.following.all);
    }
}

/// Follows those whom the plan names: after a restart nothing else says whom to follow.
pub(super) fn follow_planned(shared: &mut Shared) {
    let is_restarted = shared.following.all.is_empty() && shared.memory.plan.is_some();
    if shared.broadcast_set.is_partial() && is_restarted {
        let nearest = planned_owners(shared);
        shared.outbox.push(Output::Follow(nearest.clone()));
        let all = nearest.iter().copied().collect();
        shared.following = Following { nearest, all };
    }
}

/// Returns the owners of the foreign experts of the plan, in its order.
fn planned_owners(shared: &Shared) -> Vec<NodeId> {
    let mut owners = Vec::new();
    let plan = shared.memory.plan.iter();
    for expert in plan.flat_map(|plan| plan.foreign_experts(shared.me)) {
        if !owners.contains(&expert.owner) {
            owners.push(expert.owner);
        }
    }
    owners
}

/// Returns the nodes that the nearest recommend and that were not heard of, those named most often first.
fn prospects(shared: &Shared, refresh: Round, nearest: &BTreeSet<NodeId>) -> Vec<NodeId> {
    let is_new = |node: &&NodeId| **node != shared.me && !nearest.contains(node);
    let mut named: BTreeMap<NodeId, u32> = BTreeMap::new();
    for node in nearest {
        let local = shared
            .view
            .nodes()
            .newest_local(*node)
            .map(|(_, local)| local);
        let peers = local.into_iter().flat_map(|local| &local.peers);
        for peer in peers.filter(is_new) {
            *named.entry(*peer).or_default() += 1;
        }
    }
    // Whoever was heard in the refresh was compared already.
    let mut prospects: Vec<(NodeId, u32)> = named
        .into_iter()
        .filter(|(node, _)| shared.view.nodes().local(*node, refresh).is_none())
        .collect();
    // Equals in an order of this node's own, so that not everybody follows the same ones.
    let purpose = [b"fednode prospects 1 ", shared.me.as_bytes().as_slice()].concat();
    prospects.sort_by_cached_key(|(node, times)| {
        let place = draw(&purpose, shared.draws, refresh, *node);
        (Reverse(*times), place)
    });
    prospects.into_iter().map(|(node, _)| node).collect()
}
