//! Training ahead: the first epochs of the next local update, while the exchange still runs.
//!
//! ```text
//! published w ──► epochs ahead ──► a            the model stays w: what is saved, evaluated and merged is what was published
//!        exchange ──────► merged m              local update: m + (a − w), then the epochs that are left
//! ```
//!
//! FedMoE-DA lets transfers overlap with training (§IV-B: the plan is stale, so it is known before a round begins); here
//! training overlaps with transfers, and with waiting for slower nodes, too. Private parts, which no exchange touches, go on
//! from where the epochs ahead left them.

use fednode_core::Round;
use fednode_core::work::Watch;

use super::Learner;
use super::training::Stretch;
use crate::algorithm::Role;
use crate::error::LearnError;
use crate::train::{self, Epochs, Outcome};
use crate::weights::Weights;

/// Epochs that were trained ahead.
pub(super) struct Ahead {
    round: Round,
    epochs: u32,
    /// All parts as they were published.
    before: Vec<Weights>,
    /// All parts after these epochs.
    after: Vec<Weights>,
    outcome: Outcome,
}

impl Ahead {
    pub(super) fn is_of(&self, round: Round) -> bool {
        self.round == round
    }
}

impl Learner {
    /// Trains the first `training.ahead_epochs` of the local update of `round`, which has not begun yet, and keeps what
    /// changes for it; the model stays as it is. Does nothing if the spec wants none, or no training in that round.
    ///
    /// # Errors
    /// As [`Self::local_update`].
    pub fn train_ahead(&mut self, round: Round, watch: &mut Watch<'_>) -> Result<(), LearnError> {
        self.ahead = None;
        let epochs = self.training.spec.ahead_epochs;
        if epochs == 0 || self.gathers_statistics_in(round) || self.waits_for_moments() {
            return Ok(());
        }
        let before = self.parts.weights();
        let stretch = Stretch {
            round,
            epochs: Epochs::First(epochs),
            run: train::train,
        };
        let outcome = self.run(stretch, watch)?;
        let after = self.parts.weights();
        self.parts.put_back(before.clone());
        self.ahead = Some(Ahead {
            round,
            epochs,
            before,
            after,
            outcome,
        });
        Ok(())
    }

    /// Adds to the model what was trained ahead; returns what that was, and which epochs are left.
    pub(super) fn catch_up(&mut self, ahead: Ahead) -> (Outcome, Epochs) {
        let Ahead {
            epochs,
            before,
            after,
            outcome,
            ..
        } = ahead;
        let parts = self.parts.algorithm.parts_mut();
        self.parts.device.run(|| {
            for ((part, before), after) in parts.iter_mut().zip(before).zip(after) {
                match part.role {
                    Role::Shared | Role::Expert(_) => part.weights.shift(&before, &after),
                    Role::Gate | Role::Private => part.weights = after,
                }
            }
        });
        (outcome, Epochs::After(epochs))
    }
}
