//! The experts of the plan: whose update is waited for, which blobs are on their way, which are here.

use std::collections::{BTreeMap, BTreeSet};

use fednode_core::{
    AggregationPlan, BlobId, BlobRef, ExpertId, ExpertOffer, MAX_EXPERTS, NodeId, PlanRow,
};
use serde::{Deserialize, Serialize};

use crate::encoding::as_list;
use crate::event::{Arrival, FetchKind};

/// The foreign experts that a round mixes in.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(in crate::node) struct Experts {
    rows: Vec<PlanRow>,
    /// Whose experts the rows name.
    owners: BTreeSet<NodeId>,
    /// Owners whose update of this round is not known yet.
    owners_awaited: BTreeSet<NodeId>,
    awaited: BTreeMap<BlobId, (BlobRef, Vec<ExpertId>)>,
    #[serde(with = "as_list")]
    held: BTreeMap<ExpertId, BlobRef>,
}

impl Experts {
    /// Waits for the experts of a plan: for the updates of those owners that speak in this round.
    pub(super) fn of(plan: &AggregationPlan, me: NodeId, speaks: impl Fn(NodeId) -> bool) -> Self {
        let foreign = plan.foreign_experts(me);
        let owners: BTreeSet<NodeId> = foreign.into_iter().map(|expert| expert.owner).collect();
        Self {
            rows: plan.rows.clone(),
            owners_awaited: owners
                .iter()
                .copied()
                .filter(|owner| speaks(*owner))
                .collect(),
            owners,
            ..Self::default()
        }
    }

    pub(super) fn owners(&self) -> &BTreeSet<NodeId> {
        &self.owners
    }

    pub(super) fn owners_awaited(&self) -> &BTreeSet<NodeId> {
        &self.owners_awaited
    }

    /// Returns the owners of the experts that are on their way.
    pub(super) fn owners_on_their_way(&self) -> BTreeSet<NodeId> {
        let experts = self.awaited.values().flat_map(|(_, experts)| experts);
        experts.map(|expert| expert.owner).collect()
    }

    pub(super) fn is_complete(&self) -> bool {
        self.owners_awaited.is_empty() && self.awaited.is_empty()
    }

    /// Visits the blobs that are here or on their way.
    pub(super) fn blobs(&self) -> impl Iterator<Item = BlobId> + '_ {
        let held = self.held.values().map(|blob| blob.id);
        held.chain(self.awaited.keys().copied())
    }

    /// Takes note of what an owner offers. Returns the blobs to fetch, each with an expert that it is.
    pub(super) fn want(
        &mut self,
        owner: NodeId,
        offers: &[ExpertOffer],
        is_useful: impl Fn(&ExpertOffer) -> bool,
    ) -> Vec<(ExpertId, BlobRef)> {
        // Its update is here, whatever it offers: nothing more will come from it in this round.
        self.owners_awaited.remove(&owner);
        let mut wanted = Vec::new();
        for expert in self.experts_of(owner) {
            let offer = offers.get(usize::from(expert.slot.0));
            let Some(offer) = offer.filter(|offer| is_useful(offer)) else {
                continue;
            };
            // Two slots may name one blob: it is fetched once and counts as both experts.
            let (_, experts) = self.awaited.entry(offer.blob.id).or_insert_with(|| {
                wanted.push((expert, offer.blob));
                (offer.blob, Vec::with_capacity(MAX_EXPERTS.min(4)))
            });
            if !experts.contains(&expert) {
                experts.push(expert);
            }
        }
        wanted
    }

    fn experts_of(&self, owner: NodeId) -> BTreeSet<ExpertId> {
        self.planned()
            .filter(|expert| expert.owner == owner)
            .collect()
    }

    fn planned(&self) -> impl Iterator<Item = ExpertId> + '_ {
        let sources = self.rows.iter().flat_map(|row| &row.sources);
        sources.map(|source| source.expert)
    }

    /// Records that a blob is held, or cannot be had.
    pub(super) fn resolve(&mut self, arrival: Arrival) {
        let ends = |(blob, _): &(BlobRef, _)| arrival.ends_wait_for(blob, FetchKind::Expert);
        if self.awaited.get(&arrival.id()).is_some_and(ends)
            && let Some((blob, experts)) = self.awaited.remove(&arrival.id())
            && arrival.is_held()
        {
            self.held
                .extend(experts.into_iter().map(|expert| (expert, blob)));
        }
    }

    /// An owner takes experts back. Those on their way are not waited for any longer.
    pub(in crate::node) fn withdraw(&mut self, owner: NodeId, blobs: &[BlobId]) {
        self.held
            .retain(|expert, blob| expert.owner != owner || !blobs.contains(&blob.id));
        for (blob, (_, experts)) in &mut self.awaited {
            if blobs.contains(blob) {
                experts.retain(|expert| expert.owner != owner);
            }
        }
        self.awaited.retain(|_, (_, experts)| !experts.is_empty());
    }

    /// Takes the experts of a node out of the plan.
    pub(in crate::node) fn forget(&mut self, owner: NodeId) {
        for row in &mut self.rows {
            row.sources.retain(|source| source.expert.owner != owner);
        }
        self.owners.remove(&owner);
        self.owners_awaited.remove(&owner);
        self.held.retain(|expert, _| expert.owner != owner);
        for (_, experts) in self.awaited.values_mut() {
            experts.retain(|expert| expert.owner != owner);
        }
        self.awaited.retain(|_, (_, experts)| !experts.is_empty());
    }

    /// Stops waiting for the update of a node.
    pub(super) fn give_up_on(&mut self, owner: NodeId) {
        self.owners_awaited.remove(&owner);
    }

    /// Stops waiting for updates that have not come.
    pub(super) fn give_up_on_updates(&mut self) {
        self.owners_awaited.clear();
    }

    /// Stops waiting for blobs that have not come.
    pub(super) fn give_up_on_blobs(&mut self) {
        self.awaited.clear();
    }

    /// Stops waiting for blobs of so many bytes, and smaller ones.
    pub(super) fn drop_up_to(&mut self, bytes: u64) {
        self.awaited.retain(|_, (blob, _)| blob.size > bytes);
    }

    /// Returns the size of the smallest blob that is on its way.
    pub(super) fn smallest_on_its_way(&self) -> Option<u64> {
        self.awaited.values().map(|(blob, _)| blob.size).min()
    }

    /// Stops waiting for experts of which every owner is lost: another holder would have delivered them by now.
    pub(super) fn drop_those_of_lost(&mut self, is_lost: impl Fn(NodeId) -> bool) {
        self.awaited
            .retain(|_, (_, experts)| !experts.iter().all(|expert| is_lost(expert.owner)));
    }

    /// Returns the foreign experts of the plan that are not here.
    pub(in crate::node) fn missing(&self, me: NodeId) -> Vec<ExpertId> {
        let missing = self
            .planned()
            .filter(|expert| expert.owner != me && !self.held.contains_key(expert));
        missing.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Lets an older version stand in for an expert that did not come.
    pub(in crate::node) fn stand_in(&mut self, expert: ExpertId, blob: BlobRef) {
        self.held.insert(expert, blob);
    }

    /// Returns the foreign experts that are here.
    pub(in crate::node) fn held(&self) -> &BTreeMap<ExpertId, BlobRef> {
        &self.held
    }

    pub(in crate::node) fn rows_mut(&mut self) -> &mut Vec<PlanRow> {
        &mut self.rows
    }

    pub(in crate::node) fn rows(&self) -> &[PlanRow] {
        &self.rows
    }
}
