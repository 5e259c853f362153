//! Rows by true and predicted class: what accuracy, balanced accuracy and macro-F1 are made of.

use crate::Classified;

/// The true and the predicted class of each row.
#[derive(Debug)]
pub(super) struct Decisions {
    classes: usize,
    pairs: Vec<(u16, usize)>,
}

/// How many rows a class has.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Tally {
    /// Rows of the class.
    pub(super) truth: u64,
    /// Rows that were predicted to be of the class.
    pub(super) predicted: u64,
    /// Rows of the class that were predicted to be of it.
    pub(super) both: u64,
}

impl Decisions {
    pub(super) fn of(classified: &Classified) -> Self {
        let truth = classified.labels().iter().copied();
        Self {
            classes: classified.classes(),
            pairs: truth.zip(classified.predicted()).collect(),
        }
    }

    /// Counts the rows of every class.
    pub(super) fn tallies(&self, counts: &[u32]) -> Vec<Tally> {
        let mut tallies = vec![Tally::default(); self.classes];
        for (&(truth, predicted), &count) in self.pairs.iter().zip(counts) {
            let (truth, count) = (usize::from(truth), u64::from(count));
            tallies[truth].truth += count;
            tallies[predicted].predicted += count;
            if truth == predicted {
                tallies[truth].both += count;
            }
        }
        tallies
    }
}
