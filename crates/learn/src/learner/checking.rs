//! Updates are looked at before they leave the node. One that has left all bounds is refused here, and the node is as it was.

use fednode_core::Round;
use fednode_core::work::Update;

use super::Learner;
use crate::error::LearnError;
use crate::explosion;

impl Learner {
    /// Refuses an update that has left all bounds: its author alone can do something about it.
    pub(super) fn checked(&self, round: Round, update: Update) -> Result<Update, LearnError> {
        match explosion::fault_of(&update) {
            None => Ok(update),
            Some(what) => Err(LearnError::Exploded {
                round,
                what,
                advice: self.advice(explosion::lower_the_step(&self.training.spec)),
            }),
        }
    }

    /// Adds up the statistics; if they are refused, the model is what this node shares, as before.
    pub(super) fn checked_statistics(&mut self, round: Round) -> Result<Update, LearnError> {
        let statistics = self.parts.statistics.as_ref();
        let before = statistics.map(|(_, statistics)| statistics.gathered());
        let update = self.gather_statistics();
        let update = self.checked(round, update);
        if update.is_err()
            && let Some((_, statistics)) = &mut self.parts.statistics
            && let Some(before) = before
        {
            statistics.put_back(before);
        }
        update
    }

    /// Says what to do, if training diverged.
    pub(super) fn advised(&self, error: LearnError) -> LearnError {
        match error {
            LearnError::Diverged {
                round,
                epoch,
                batch,
                loss,
                advice,
            } => LearnError::Diverged {
                round,
                epoch,
                batch,
                loss,
                advice: self.advice(advice),
            },
            other => other,
        }
    }

    /// Returns what to do where training diverged: columns that are not scaled are the usual cause.
    fn advice(&self, otherwise: String) -> String {
        if let Some(advice) = self.places.advice(&self.data.train) {
            return advice;
        }
        let columns = explosion::scale_the_columns(&self.data.train, &self.fingerprints);
        columns.unwrap_or(otherwise)
    }
}
