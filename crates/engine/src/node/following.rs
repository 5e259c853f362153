//! Large federations: whose proxies to fetch, and whom to follow.
//!
//! ```text
//! sketches of all that are heard ──► shortlist ──► their exact proxies ──► plan and ranking
//!        ▲                                                                     │ the nearest
//!        └── updates of those followed ◄── follow ◄── friends of friends ◄─────┘
//! ```
//!
//! Beyond `scale.full_proxies` nodes a node fetches the proxies of a shortlist only (`fednode-mix`, `sketch`). Beyond
//! `scale.speakers` it hears a changing sample of the others, and looks for its kind as in nearest-neighbour descent
//! (Dong, Charikar and Li 2011; T-Man, Jelasity et al. 2009): whoever is like me knows others who are like me. Every
//! update recommends its author's nearest; those that were not heard of are followed until the next refresh, and stay
//! if their experts prove nearer than what was known.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fednode_core::draw::draw;
use fednode_core::{Local, MAX_PEERS, NodeId, ProxySet, Round};
use fednode_mix::sketch;

use super::Node;
use crate::event::Output;

/// Whom this node follows, and whom it recommends.
#[derive(Debug, Default)]
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

impl Node {
    /// Fetches the proxies of those whose sketches are like the own ones, once all that are heard have spoken.
    pub(super) fn fetch_shortlist(&mut self) {
        let (round, lineage, me) = (self.state.round, self.state.lineage, self.me);
        let refreshes = self.spec.refreshes_in(round) && self.cohort.contains(self.me);
        let is_due = self.spec.uses_sketches() && refreshes;
        if !is_due
            || !self
                .exchange
                .as_mut()
                .is_some_and(super::Exchange::is_first_shortlist)
        {
            return;
        }
        let experts = self.spec.exchange.experts.as_ref();
        let own = self
            .state
            .report
            .as_ref()
            .and_then(|report| report.sketches.as_ref());
        let (Some(experts), Some(own)) = (experts, own) else {
            return;
        };
        let per_row = sketch::shortlisted(experts.peers_per_expert.limit());
        let comparable = self
            .view
            .locals(round)
            .filter(|(node, local)| *node != me && local.lineage == lineage);
        let others = comparable.filter_map(|(node, local)| Some((node, local.sketches.as_ref()?)));
        let listed = sketch::shortlist(own, others, per_row);
        let wanted: Vec<(NodeId, Local)> = listed
            .into_iter()
            .filter_map(|node| Some((node, self.view.local(node, round)?.clone())))
            .collect();
        for (node, local) in wanted {
            self.want_proxies(node, round, &local);
        }
    }

    /// Follows the owners of planned experts, the next nearest, and those whom they recommend.
    pub(super) fn follow_the_nearest(
        &mut self,
        refresh: Round,
        known: &BTreeMap<NodeId, Arc<ProxySet>>,
    ) {
        if !self.audience.is_partial() {
            return;
        }
        let most = self.spec.scale.follows as usize;
        let mut nearest = self.planned_owners();
        for (node, _) in fednode_mix::plan::ranking(self.me, known) {
            if nearest.len() < MAX_PEERS.min(most / 2) && !nearest.contains(&node) {
                nearest.push(node);
            }
        }
        let mut all: BTreeSet<NodeId> = nearest.iter().copied().collect();
        all.extend(
            self.prospects(refresh, &all)
                .into_iter()
                .take(most.saturating_sub(all.len())),
        );
        nearest.truncate(MAX_PEERS);
        self.outputs
            .push(Output::Follow(all.iter().copied().collect()));
        self.following = Following { nearest, all };
    }

    /// Forgets whom this node neither follows nor is connected with, once they have been silent for a round.
    pub(super) fn forget_strangers(&mut self) {
        if self.audience.is_partial() {
            let since = Round(self.state.round.0.saturating_sub(1));
            self.view.forget_strangers(since, &self.following.all);
        }
    }

    /// After a restart the plan says whom to follow.
    pub(super) fn follow_the_planned(&mut self) {
        if self.audience.is_partial() && self.following.all.is_empty() && self.state.plan.is_some()
        {
            let nearest = self.planned_owners();
            self.outputs.push(Output::Follow(nearest.clone()));
            self.following = Following {
                all: nearest.iter().copied().collect(),
                nearest,
            };
        }
    }

    fn planned_owners(&self) -> Vec<NodeId> {
        let mut owners = Vec::new();
        for expert in self
            .state
            .plan
            .iter()
            .flat_map(|plan| plan.foreign_experts(self.me))
        {
            if !owners.contains(&expert.owner) {
                owners.push(expert.owner);
            }
        }
        owners
    }

    /// Returns the nodes that the nearest recommend and that were not heard of, those named most often first.
    fn prospects(&self, refresh: Round, nearest: &BTreeSet<NodeId>) -> Vec<NodeId> {
        let mut named: BTreeMap<NodeId, u32> = BTreeMap::new();
        for (_, local) in nearest
            .iter()
            .filter_map(|node| self.view.newest_local(*node))
        {
            for node in local
                .peers
                .iter()
                .filter(|node| **node != self.me && !nearest.contains(node))
            {
                *named.entry(*node).or_default() += 1;
            }
        }
        let mut prospects: Vec<(NodeId, u32)> = named
            .into_iter()
            .filter(|(node, _)| self.view.local(*node, refresh).is_none())
            .collect();
        // Equals in an order of this node's own, so that not everybody follows the same ones.
        let purpose = [b"fednode prospects 1 ", self.me.as_bytes().as_slice()].concat();
        prospects.sort_by_cached_key(|(node, times)| {
            (Reverse(*times), draw(&purpose, self.draws, refresh, *node))
        });
        prospects.into_iter().map(|(node, _)| node).collect()
    }
}
