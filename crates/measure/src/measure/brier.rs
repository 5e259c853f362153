//! Brier score: the mean squared error of the probabilities (Brier, Monthly Weather Review 1950).
//!
//! A row's error is Σ (p_c − y_c)² over the classes c, with y_c 1 for the row's class and 0 otherwise: from 0 to 2. With
//! two classes it is halved, which makes it (p − y)² of class 1. Both are so in scikit-learn's `brier_score_loss` with
//! `scale_by_half="auto"`.

use super::mean::mean;
use super::{Better, Measure, Prepare, Row, Weighed};
use crate::Classified;

pub(super) const ROW: Row = Row {
    measure: Measure::Brier,
    name: "brier",
    label: "Brier score",
    about: "mean squared error of the probabilities: 0 to 1 with two classes, 0 to 2 with more",
    better: Better::Lower,
    is_share: false,
    prepare: Prepare::Classes(prepare),
};

fn prepare(classified: &Classified) -> Weighed<'_> {
    let scale = if classified.classes() == 2 { 0.5 } else { 1.0 };
    let rows = classified.probabilities().zip(classified.labels());
    let errors: Vec<f64> = rows
        .map(|(probabilities, &label)| scale * squared_error(probabilities, label.into()))
        .collect();
    Box::new(move |counts| mean(&errors, counts))
}

fn squared_error(probabilities: &[f64], truth: usize) -> f64 {
    let classes = probabilities.iter().enumerate();
    classes
        .map(|(class, p)| (p - f64::from(u8::from(class == truth))).powi(2))
        .sum()
}
