//! AUROC: the area under the receiver operating characteristic.
//!
//! It is the share of pairs, of one row of the class and one of another, that are ordered rightly by the probability of the
//! class. A tie counts as half (Hanley and McNeil, Radiology 1982). With two classes the class is class 1. With more it is
//! the unweighted mean over the classes, each against the rest, as scikit-learn's `roc_auc_score` with
//! `multi_class="ovr", average="macro"`.
//!
//! It has no value if a class has no row: then there is no pair.

use super::ranking::{Ranking, macro_mean};
use super::{Better, Measure, Prepare, Row, Weighed};
use crate::Classified;

pub(super) const ROW: Row = Row {
    measure: Measure::Auroc,
    name: "auroc",
    label: "AUROC",
    about: "share of pairs of rows of different classes that are in the right order",
    better: Better::Higher,
    is_share: true,
    prepare: Prepare::Classes(prepare),
};

fn prepare(classified: &Classified) -> Weighed<'_> {
    let rankings = Ranking::all(classified);
    Box::new(move |counts| macro_mean(rankings.iter().map(|ranking| area(ranking, counts))))
}

/// Returns the AUROC of each class against the rest; `None` for a class that no row has, or that all have.
pub fn of_each_class(classified: &Classified) -> Vec<Option<f64>> {
    let ones = vec![1; classified.rows()];
    let classes = 0..classified.classes();
    classes
        .map(|class| area(&Ranking::of(classified, class), &ones))
        .collect()
}

fn area(ranking: &Ranking, counts: &[u32]) -> Option<f64> {
    let (mut positives, mut negatives) = (0u64, 0u64);
    let mut twice_ordered = 0u128;
    ranking.visit(counts, |tied| {
        let above = 2 * positives + tied.positives;
        twice_ordered += u128::from(above) * u128::from(tied.negatives);
        positives += tied.positives;
        negatives += tied.negatives;
    });
    let pairs = positives as f64 * negatives as f64;
    (pairs > 0.0).then(|| twice_ordered as f64 / 2.0 / pairs)
}
