//! Expected calibration error: how far confidence is from accuracy (Guo et al., ICML 2017, Eq. 3).
//!
//! Rows fall by their confidence, the highest probability, into 15 bins of equal width: bin m of M is ((m − 1)/M, m/M].
//! The error is Σ |B_m|/n · |accuracy(B_m) − confidence(B_m)|, with the means over the rows of a bin.
//!
//! On small tests it is biased upwards, because the differences within bins never cancel out.

use super::{Better, Measure, Prepare, Row, Weighed, total};
use crate::Classified;

/// The number of bins, as in the paper's experiments.
const BINS: usize = 15;

pub(super) const ROW: Row = Row {
    measure: Measure::CalibrationError,
    name: "calibration-error",
    label: "calibration error",
    about: "mean distance of confidence from accuracy, in 15 bins of confidence",
    better: Better::Lower,
    is_share: true,
    prepare: Prepare::Classes(prepare),
};

fn prepare(classified: &Classified) -> Weighed<'_> {
    let rows = classified.probabilities().zip(classified.predicted());
    // Of each row its bin, and how far it moves the bin: 1 if it is right, less its confidence.
    let moves: Vec<(usize, f64)> = rows
        .zip(classified.labels())
        .map(|((probabilities, predicted), &label)| {
            let confidence = probabilities[predicted];
            let right = f64::from(u8::from(predicted == usize::from(label)));
            (bin(confidence), right - confidence)
        })
        .collect();
    Box::new(move |counts| {
        let mut bins = [0.0; BINS];
        for (&(bin, gap), &count) in moves.iter().zip(counts) {
            bins[bin] += gap * f64::from(count);
        }
        let total = total(counts);
        let sum: f64 = bins.iter().map(|gap| gap.abs()).sum();
        (total > 0).then(|| sum / total as f64)
    })
}

/// Returns the number of the bin, from 0: the first whose upper bound is not below the confidence.
fn bin(confidence: f64) -> usize {
    let upper = |bin: usize| (bin + 1) as f64 / BINS as f64;
    let first = (0..BINS).find(|&bin| confidence <= upper(bin));
    first.unwrap_or(BINS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upper_bound_belongs_to_its_bin() {
        assert_eq!(bin(1.0 / 15.0), 0);
        assert_eq!(bin(0.2), 2);
        assert_eq!(bin(0.2 + 1e-9), 3);
        assert_eq!(bin(0.6), 8);
        assert_eq!((bin(1.0), bin(1.005)), (14, 14));
    }
}
