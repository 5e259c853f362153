//! Drift: a model that gets worse on the node's own validation samples, round after round.
//!
//! A node's samples change where rows are appended to its data, and others' models change with theirs. Validation samples stay what they
//! were in the beginning, unless a group that is held out grows. So a loss on them that was once smaller, and stays larger for some
//! rounds, is worth a line.

use fednode_core::Round;
use fednode_engine::book::RoundRecord;

/// How much larger the loss must be than the least one.
const RISE: f64 = 1.25;
/// A smaller loss than this counts as this: there is next to nothing to lose.
const LEAST: f64 = 0.01;
/// For how many rounds in a row, so that one bad round is no news.
const ROUNDS: u32 = 5;

/// The least loss on the validation samples so far, and how long the loss has been larger.
#[derive(Debug, Default)]
pub(crate) struct Drift {
    least: Option<(Round, f64)>,
    /// Rounds in a row in which it was much larger.
    larger: u32,
}

impl Drift {
    /// Takes note of a round. Returns what there is to say, once until the loss has come down again.
    pub(crate) fn heed(&mut self, record: &RoundRecord) -> Option<String> {
        let loss = record.validation.map(|score| score.loss);
        // A loss that is no number would take the place of the least one.
        let loss = loss.filter(|loss| loss.is_finite())?;
        let Some((least_in, least)) = self.least.filter(|(_, least)| *least < loss) else {
            (self.least, self.larger) = (Some((record.round, loss)), 0);
            return None;
        };
        if loss < RISE * least.max(LEAST) {
            self.larger = 0;
            return None;
        }
        self.larger = self.larger.saturating_add(1);
        (self.larger == ROUNDS).then(|| {
            format!(
                "the loss on the validation samples was {least:.3} in round {least_in}, and for {ROUNDS} rounds it has been a quarter larger \
                 ({loss:.3} now): the data may have changed, or the model over-fits"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use fednode_core::{NodeId, Score, Timestamp};

    use super::*;

    /// Returns in which rounds something is said of these losses.
    fn told(losses: &[f64]) -> Vec<u32> {
        let mut drift = Drift::default();
        let rounds = (1..).zip(losses);
        let said = rounds.filter_map(|(round, loss)| {
            let node = NodeId::from_bytes([1; 32]);
            let mut record = RoundRecord::new(Round(round), node, Timestamp(0));
            record.validation = Some(Score {
                accuracy: 0.5,
                loss: *loss,
                n_samples: 40,
            });
            drift.heed(&record).map(|_| round)
        });
        said.collect()
    }

    #[test]
    fn a_loss_that_stays_a_quarter_larger_for_five_rounds_is_told_once() {
        assert_eq!(told(&[0.9, 0.4, 0.6, 0.6, 0.6, 0.6, 0.6, 0.7, 0.8]), [7]);
        let twice = [0.4, 0.6, 0.6, 0.6, 0.6, 0.6, 0.45, 0.6, 0.6, 0.6, 0.6, 0.6];
        assert_eq!(told(&twice), [6, 12], "it had come down between");
    }

    #[test]
    fn one_bad_round_and_a_slow_rise_are_no_news() {
        assert_eq!(told(&[0.4, 0.6, 0.4, 0.6, 0.6, 0.6, 0.41, 0.6]), [0; 0]);
        assert_eq!(told(&[0.4, 0.45, 0.46, 0.47, 0.48, 0.49, 0.49]), [0; 0]);
    }

    #[test]
    fn rounds_without_validation_samples_say_nothing() {
        let record = RoundRecord::new(Round(1), NodeId::from_bytes([1; 32]), Timestamp(0));
        assert_eq!(Drift::default().heed(&record), None);
    }
}
