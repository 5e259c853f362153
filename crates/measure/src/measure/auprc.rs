//! AUPRC: the area under the precision-recall curve, as average precision.
//!
//! Σ (R_t − R_{t−1}) · P_t over the thresholds t from the highest probability to the lowest, without interpolation. It is
//! scikit-learn's `average_precision_score`. With two classes it is that of class 1, with more the unweighted mean over the
//! classes, each against the rest.
//!
//! It has no value if a class that counts has no row: then there is no recall. scikit-learn gives such a class 0.
//! Where every row is of class 1 it is 1, as there.

use super::ranking::{Ranking, macro_mean};
use super::{Better, Measure, Prepare, Row, Weighed};
use crate::Classified;

pub(super) const ROW: Row = Row {
    measure: Measure::Auprc,
    name: "auprc",
    label: "AUPRC",
    about: "average precision over all thresholds: AUROC's sibling for rare classes",
    better: Better::Higher,
    is_share: true,
    prepare: Prepare::Classes(prepare),
};

fn prepare(classified: &Classified) -> Weighed<'_> {
    let rankings = Ranking::all(classified);
    Box::new(move |counts| macro_mean(rankings.iter().map(|ranking| area(ranking, counts))))
}

/// Returns the average precision of each class against the rest; `None` for a class that no row has.
pub fn of_each_class(classified: &Classified) -> Vec<Option<f64>> {
    let ones = vec![1; classified.rows()];
    let classes = 0..classified.classes();
    classes
        .map(|class| area(&Ranking::of(classified, class), &ones))
        .collect()
}

fn area(ranking: &Ranking, counts: &[u32]) -> Option<f64> {
    let (mut positives, mut rows) = (0u64, 0u64);
    let mut sum = 0.0;
    ranking.visit(counts, |tied| {
        positives += tied.positives;
        rows += tied.positives + tied.negatives;
        if tied.positives > 0 {
            let precision = positives as f64 / rows as f64;
            sum += tied.positives as f64 * precision;
        }
    });
    (positives > 0).then(|| sum / positives as f64)
}
