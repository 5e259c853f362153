//! MAE: the mean absolute error, in the unit of the target.

use super::mean::mean;
use super::{Better, Measure, Prepare, Row, Weighed};
use crate::Estimated;

pub(super) const ROW: Row = Row {
    measure: Measure::Mae,
    name: "mae",
    label: "MAE",
    about: "mean absolute error, in the unit of the target",
    better: Better::Lower,
    is_share: false,
    prepare: Prepare::Numbers(prepare),
};

fn prepare(estimated: &Estimated) -> Weighed<'_> {
    let distances: Vec<f64> = estimated.errors().map(f64::abs).collect();
    Box::new(move |counts| mean(&distances, counts))
}
