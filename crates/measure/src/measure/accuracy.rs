//! Accuracy: the share of rows whose class is predicted.

use super::tally::Decisions;
use super::{Better, Measure, Prepare, Row, Weighed, share, total};
use crate::Classified;

pub(super) const ROW: Row = Row {
    measure: Measure::Accuracy,
    name: "accuracy",
    label: "accuracy",
    about: "share of rows whose class is predicted",
    better: Better::Higher,
    is_share: true,
    prepare: Prepare::Classes(prepare),
};

fn prepare(classified: &Classified) -> Weighed<'_> {
    let decisions = Decisions::of(classified);
    Box::new(move |counts| {
        let tallies = decisions.tallies(counts);
        let right = tallies.iter().map(|class| class.both).sum();
        share(right, total(counts))
    })
}
