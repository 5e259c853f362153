//! Rows that come while a node runs: before a round begins it looks whether its files have changed, and reads them anew.
//!
//! What cannot be read changes nothing: the node says so in one line, goes on with the rows that it had, and looks again when the
//! files have changed once more.

use std::sync::Arc;

use anyhow::bail;
use fednode_core::FederationSpec;
use fednode_core::guarded::guarded;
use fednode_data::{Beginning, Stamp};
use fednode_learn::ComputeDevice;
use fednode_learn::growing::{Renew, Renewed};
use fednode_runtime::TrainerCard;
use tokio::sync::watch;

use crate::trainer::Recipe;
use fednode_cli::config::Config;
use fednode_cli::data::Mine;

/// Where a node's rows are, and what was read of them.
pub(crate) struct Rows {
    pub(crate) config: Config,
    /// What the federation agreed on.
    pub(crate) agreed: Arc<FederationSpec>,
    /// The same with this node's own model.
    pub(crate) own: FederationSpec,
    pub(crate) device: ComputeDevice,
    /// The files as they were when they were read.
    pub(crate) stamp: Stamp,
    pub(crate) began_with: Option<Beginning>,
    /// Describes the samples that are trained on.
    pub(crate) card: Arc<watch::Sender<TrainerCard>>,
}

impl Rows {
    /// Returns what looks for more rows.
    pub(crate) fn watched(mut self) -> Renew {
        Box::new(move || self.look())
    }

    fn look(&mut self) -> Option<Renewed> {
        let stamp = Stamp::of(&self.config.data);
        if stamp == self.stamp || !stamp.is_settled() {
            return None;
        }
        self.stamp = stamp;
        let read = guarded(|| self.read()).unwrap_or_else(|panic| Err(anyhow::anyhow!(panic)));
        read.unwrap_or_else(|error| {
            tracing::warn!(
                "the data have changed, but not in a way that this node can go on with: {error:#}; it trains on the samples that it had"
            );
            None
        })
    }

    /// Reads all rows; nothing if they are as many as before.
    fn read(&self) -> anyhow::Result<Option<Renewed>> {
        let mine = Mine::load_since(&self.config, &self.agreed, self.began_with.clone())?;
        let before = self.card.borrow().clone();
        let card = mine.card(&self.own, &before.device, before.n_parameters);
        if card.partition_hash != before.partition_hash {
            bail!("rows that were there are gone; append new ones at the end and put those back");
        }
        if n_samples(&card) == n_samples(&before) {
            return Ok(None);
        }
        let recipe = Recipe::of(&self.config, &self.own, &mine)?;
        let worker = recipe.worker(&self.device, self.config.threads)?;
        let told = Arc::clone(&self.card);
        Ok(Some(Renewed {
            worker,
            announce: Box::new(move || drop(told.send_replace(card))),
        }))
    }
}

fn n_samples(card: &TrainerCard) -> u32 {
    let held_out = card.validation_samples.saturating_add(card.test_samples);
    card.train_samples.saturating_add(held_out)
}
