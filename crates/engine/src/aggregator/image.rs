//! The image of an aggregator: see [`crate::image`].

use std::collections::BTreeSet;
use std::sync::Arc;

use fednode_core::draw::DrawSeed;
use fednode_core::{
    BroadcastSet, ClosingId, FederationId, FederationSpec, NodeId, Schedule, Timestamp,
};
use serde::{Deserialize, Serialize};

use super::{Aggregator, OpenRound};
use crate::follower::Follower;
use crate::image::{self, ForeignImage};
use crate::outbox::Outbox;
use crate::stragglers::Stragglers;
use crate::trials::Trials;
use crate::view::View;

/// The whole state of an [`Aggregator`], but for its spec.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AggregatorImage {
    federation: FederationId,
    draws: DrawSeed,
    me: NodeId,
    view: View,
    chain: Follower,
    open: OpenRound,
    #[serde(default)]
    stragglers: Stragglers,
    n_members: usize,
    synced: bool,
    started: Option<Timestamp>,
    trials: Trials,
    unproven: BTreeSet<ClosingId>,
    now: Timestamp,
}

impl Aggregator {
    /// Returns the whole state of this moment.
    pub fn image(&self) -> AggregatorImage {
        // Taken apart by name, so that a field that is added cannot be forgotten here.
        let Self {
            spec,
            schedule: _,
            broadcast_set: _,
            // Empty between two inputs.
            outbox: _,
            draws,
            me,
            view,
            chain,
            open,
            stragglers,
            n_members,
            synced,
            started,
            trials,
            unproven,
            now,
        } = self;
        AggregatorImage {
            federation: spec.id(),
            draws: *draws,
            me: *me,
            view: view.clone(),
            chain: chain.clone(),
            open: open.clone(),
            stragglers: stragglers.clone(),
            n_members: *n_members,
            synced: *synced,
            started: *started,
            trials: trials.clone(),
            unproven: unproven.clone(),
            now: *now,
        }
    }

    /// Makes the aggregator that an image shows.
    ///
    /// # Errors
    /// Refuses an image of another federation.
    pub fn from_image(
        spec: Arc<FederationSpec>,
        mut image: AggregatorImage,
    ) -> Result<Self, ForeignImage> {
        image::check(image.federation, &spec)?;
        let schedule = Arc::new(Schedule::of(&spec));
        image.open.adopt_spec(&spec, &schedule);
        Ok(Self {
            broadcast_set: BroadcastSet::of(&spec),
            spec,
            schedule,
            draws: image.draws,
            me: image.me,
            view: image.view,
            chain: image.chain,
            open: image.open,
            stragglers: image.stragglers,
            n_members: image.n_members,
            synced: image.synced,
            started: image.started,
            trials: image.trials,
            unproven: image.unproven,
            now: image.now,
            outbox: Outbox::default(),
        })
    }
}
