//! Macro-F1: the mean of the classes' F1.
//!
//! F1 of a class is 2·both / (truth + predicted): rows of the class and rows that were predicted to be of it, and both.
//! The mean is over the classes that some row has **or** that were predicted for some row, as in scikit-learn's `f1_score`
//! with `average="macro"`. A class that was predicted and does not occur counts with an F1 of 0. A class that was neither
//! is left out.

use super::tally::Decisions;
use super::{Better, Measure, Prepare, Row, Weighed, share};
use crate::Classified;

pub(super) const ROW: Row = Row {
    measure: Measure::MacroF1,
    name: "macro-f1",
    label: "macro-F1",
    about: "mean over the classes of the harmonic mean of precision and recall",
    better: Better::Higher,
    is_share: true,
    prepare: Prepare::Classes(prepare),
};

fn prepare(classified: &Classified) -> Weighed<'_> {
    let decisions = Decisions::of(classified);
    Box::new(move |counts| {
        let tallies = decisions.tallies(counts);
        let all = tallies
            .iter()
            .filter_map(|class| share(2 * class.both, class.truth + class.predicted));
        let (sum, classes) = all.fold((0.0, 0u32), |(sum, n), f1| (sum + f1, n + 1));
        (classes > 0).then(|| sum / f64::from(classes))
    })
}
