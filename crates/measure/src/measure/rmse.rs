//! RMSE: the root of the mean squared error, in the unit of the target.

use super::mean::mean;
use super::{Better, Measure, Prepare, Row, Weighed};
use crate::Estimated;

pub(super) const ROW: Row = Row {
    measure: Measure::Rmse,
    name: "rmse",
    label: "RMSE",
    about: "root of the mean squared error, in the unit of the target",
    better: Better::Lower,
    is_share: false,
    prepare: Prepare::Numbers(prepare),
};

fn prepare(estimated: &Estimated) -> Weighed<'_> {
    let squares: Vec<f64> = estimated.errors().map(|error| error * error).collect();
    Box::new(move |counts| mean(&squares, counts).map(f64::sqrt))
}
