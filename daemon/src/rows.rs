//! Rows that come while a node runs: before a round begins it looks whether its files have changed, and reads them anew.
//!
//! What cannot be read changes nothing: the node says so in one line, goes on with the rows that it had, and looks again when the
//! files have changed once more. It also says so where files change all the time, since those are never read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail};
use fednode_core::guarded::guarded;
use fednode_core::work::{WorkError, Worker};
use fednode_core::{FederationSpec, ParamSet};
use fednode_data::{Beginning, Stamp};
use fednode_learn::ComputeDevice;
use fednode_learn::growing::{Renew, Renewed};
use fednode_runtime::TrainerCard;
use tokio::sync::watch;

use crate::trainer::Recipe;
use fednode_cli::config::Config;
use fednode_cli::data::Mine;

/// After so long a node says that its files do not come to rest.
const RESTLESS: Duration = Duration::from_secs(60);

/// Where a node's rows are, and what was read of them.
pub(crate) struct Rows {
    pub(crate) config: Config,
    /// What the federation agreed on.
    pub(crate) agreed: Arc<FederationSpec>,
    /// The same with this node's own model.
    pub(crate) own: FederationSpec,
    pub(crate) device: ComputeDevice,
    /// Whether that device has failed, so that the CPU is in its place.
    pub(crate) has_failed: Arc<AtomicBool>,
    /// The files as they were when they were read.
    pub(crate) stamp: Stamp,
    pub(crate) began_with: Option<Beginning>,
    /// A hash of the training samples that were read.
    pub(crate) read: u64,
    /// Since when the files have been changing; said once.
    pub(crate) restless: Restless,
    /// Describes the samples that are trained on.
    pub(crate) card: Arc<watch::Sender<TrainerCard>>,
}

/// Since when files have changed at every look.
#[derive(Debug, Default)]
pub(crate) struct Restless {
    since: Option<Instant>,
    is_told: bool,
}

impl Restless {
    /// Takes note of a look at `now`. Tells whether it is time to say something.
    fn look(&mut self, now: Instant) -> bool {
        let since = *self.since.get_or_insert(now);
        let is_new = !self.is_told && now.duration_since(since) >= RESTLESS;
        self.is_told |= is_new;
        is_new
    }
}

impl Rows {
    /// Returns what looks for more rows.
    pub(crate) fn watched(mut self) -> Renew {
        Box::new(move || self.look())
    }

    fn look(&mut self) -> Option<Renewed> {
        let stamp = Stamp::of(&self.config.data);
        let has_changed = stamp != self.stamp;
        if has_changed && !stamp.is_settled() {
            if self.restless.look(Instant::now()) {
                tracing::warn!(
                    "the data have been changing for a minute, and new rows are read once nothing has changed for two seconds: write them at once"
                );
            }
            return None;
        }
        self.restless = Restless::default();
        if !has_changed {
            return None;
        }
        self.stamp = stamp;
        let read = guarded(|| self.read()).unwrap_or_else(|panic| Err(anyhow!(panic)));
        read.unwrap_or_else(|error| {
            tracing::warn!(
                "the data have changed, but not in a way that this node can go on with: {error:#}; it trains on the samples that it had"
            );
            None
        })
    }

    /// Reads all rows; nothing if they are those of before.
    fn read(&mut self) -> anyhow::Result<Option<Renewed>> {
        let mine = Mine::load_since(&self.config, &self.agreed, self.began_with.clone())?;
        let before = self.card.borrow().clone();
        let card = mine.card(&self.own, &before.device, before.n_parameters);
        let are_fewer = n_samples(&card) < n_samples(&before);
        if card.partition_hash != before.partition_hash || are_fewer {
            bail!("rows that were there are gone; append new ones at the end and put those back");
        }
        if (mine.node_seed, n_samples(&card)) == (self.read, n_samples(&before)) {
            return Ok(None);
        }
        let device = if self.has_failed.load(Ordering::Relaxed) {
            ComputeDevice::cpu(self.config.threads)?
        } else {
            self.device.clone()
        };
        let recipe = Recipe::of(&self.config, &self.own, &mine)?;
        let mut learner = recipe.learner(&device)?;
        self.read = mine.node_seed;
        let (threads, has_failed) = (self.config.threads, Arc::clone(&self.has_failed));
        let go_on = move |state: &ParamSet| -> Result<Box<dyn Worker>, WorkError> {
            Worker::restore(&mut learner, state)?;
            Ok(recipe.protected(learner, &device, threads, &has_failed))
        };
        let told = Arc::clone(&self.card);
        Ok(Some(Renewed {
            go_on: Box::new(go_on),
            announce: Box::new(move || drop(told.send_replace(card))),
        }))
    }
}

fn n_samples(card: &TrainerCard) -> u32 {
    let held_out = card.validation_samples.saturating_add(card.test_samples);
    card.train_samples.saturating_add(held_out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_change_for_a_minute_are_told_once() {
        let begin = Instant::now();
        let mut restless = Restless::default();
        let told: Vec<u64> = (0..200)
            .step_by(10)
            .filter(|second| restless.look(begin + Duration::from_secs(*second)))
            .collect();
        assert_eq!(told, [60]);
    }
}
