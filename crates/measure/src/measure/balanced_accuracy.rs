//! Balanced accuracy: the mean of the classes' recalls (Brodersen et al., ICPR 2010).
//!
//! The recall of a class is the share of its rows that are predicted to be of it. Classes that have no row are left out, as
//! in scikit-learn's `balanced_accuracy_score`.

use super::tally::Decisions;
use super::{Better, Measure, Prepare, Row, Weighed, share};
use crate::Classified;

pub(super) const ROW: Row = Row {
    measure: Measure::BalancedAccuracy,
    name: "balanced-accuracy",
    label: "balanced accuracy",
    about: "mean over the classes of the share of a class's rows that are recognised",
    better: Better::Higher,
    is_share: true,
    prepare: Prepare::Classes(prepare),
};

fn prepare(classified: &Classified) -> Weighed<'_> {
    let decisions = Decisions::of(classified);
    Box::new(move |counts| {
        let tallies = decisions.tallies(counts);
        let recalls = tallies
            .iter()
            .filter_map(|class| share(class.both, class.truth));
        let (sum, classes) = recalls.fold((0.0, 0u32), |(sum, n), recall| (sum + recall, n + 1));
        (classes > 0).then(|| sum / f64::from(classes))
    })
}
