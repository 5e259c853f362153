//! Rows sorted by the probability of one class: what AUROC and AUPRC are made of.
//!
//! Rows of equal probability are tied, and a threshold takes all of them or none.

use crate::Classified;

/// Rows in descending order of the probability of a class.
#[derive(Debug)]
pub(super) struct Ranking(Vec<Ranked>);

#[derive(Debug, Clone, Copy)]
struct Ranked {
    row: u32,
    /// Whether the row is of the class.
    is_positive: bool,
    /// Whether it is the last of those with its probability.
    ends_tie: bool,
}

/// How many rows have one and the same probability.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Tied {
    /// Rows of the class.
    pub(super) positives: u64,
    /// Rows of other classes.
    pub(super) negatives: u64,
}

impl Ranking {
    /// Sorts the rows for one class.
    pub(super) fn of(classified: &Classified, class: usize) -> Self {
        let rows = (0u32..).zip(classified.probabilities().zip(classified.labels()));
        let mut sorted: Vec<(f64, u32, bool)> = rows
            .map(|(row, (probabilities, &label))| {
                (probabilities[class], row, usize::from(label) == class)
            })
            .collect();
        sorted.sort_unstable_by(|one, two| two.0.total_cmp(&one.0).then(one.1.cmp(&two.1)));
        let mut ranked: Vec<Ranked> = sorted
            .iter()
            .map(|&(_, row, is_positive)| Ranked {
                row,
                is_positive,
                ends_tie: true,
            })
            .collect();
        for (entry, pair) in ranked.iter_mut().zip(sorted.windows(2)) {
            entry.ends_tie = pair[0].0 > pair[1].0;
        }
        Self(ranked)
    }

    /// Sorts the rows for the class whose order counts with two classes, or for each class with more.
    pub(super) fn all(classified: &Classified) -> Vec<Self> {
        let first = if classified.classes() == 2 { 1 } else { 0 };
        let classes = first..classified.classes();
        classes.map(|class| Self::of(classified, class)).collect()
    }

    /// Visits the probabilities from the highest to the lowest, with the rows that have them.
    pub(super) fn visit(&self, counts: &[u32], mut each: impl FnMut(Tied)) {
        let mut tied = Tied::default();
        for entry in &self.0 {
            let count = u64::from(counts[entry.row as usize]);
            if entry.is_positive {
                tied.positives += count;
            } else {
                tied.negatives += count;
            }
            if entry.ends_tie {
                each(tied);
                tied = Tied::default();
            }
        }
    }
}

/// Returns the mean over classes; `None` if one of them has no value.
pub(super) fn macro_mean(values: impl ExactSizeIterator<Item = Option<f64>>) -> Option<f64> {
    let classes = values.len();
    let sum = values.sum::<Option<f64>>()?;
    Some(sum / classes as f64)
}
