//! Arithmetic that gives the same bits on every machine: what a mean is learned with, so that an auditor can repeat it.
//!
//! Additions, products, quotients and square roots are exact to the last bit everywhere; the exponential of the
//! standard library is not. Here it is made of basic operations alone. The draws are those of `fednode_core::random`.

use std::f64::consts::LN_2;

/// Returns `e^x` for `x <= 0`.
pub(crate) fn exp(x: f64) -> f64 {
    if x < -700.0 {
        return 0.0;
    }
    let halvings = (x / LN_2).round();
    let rest = x - halvings * LN_2;
    // |rest| is at most 0.35, so the first term that is left out is below 1e-18.
    let series = (1..=14)
        .rev()
        .fold(1.0, |sum, term| 1.0 + rest * sum / f64::from(term));
    series * f64::from_bits(((1023 + halvings as i64) as u64) << 52)
}

/// Returns the probabilities that logits stand for.
pub(crate) fn softmax(logits: &[f64]) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let powers: Vec<f64> = logits.iter().map(|logit| exp(logit - largest)).collect();
    let total: f64 = powers.iter().sum();
    powers.into_iter().map(|power| power / total).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponential_agrees_with_the_standard_library() {
        for x in [0.0, -1e-9, -0.3, -1.0, -7.5, -50.0, -699.9] {
            assert!((exp(x) / f64::exp(x) - 1.0).abs() < 1e-12, "{x}");
        }
        assert_eq!(
            (exp(0.0), exp(-701.0), exp(f64::NEG_INFINITY)),
            (1.0, 0.0, 0.0)
        );
    }

    #[test]
    fn probabilities_add_up_and_keep_their_ratios() {
        let got = softmax(&[1000.0, 1000.0 + 3f64.ln(), -1000.0]);
        assert!(
            (got[0] - 0.25).abs() < 1e-12 && (got[1] - 0.75).abs() < 1e-12 && got[2] == 0.0,
            "{got:?}"
        );
    }
}
