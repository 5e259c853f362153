//! How well a foreign module fits a node: the free energy of its outputs beside the own module's (PM-MoE Eq. 10 to 12,
//! arXiv 2502.00354), and who is dropped for it.
//!
//! ```text
//! v = (h_l * h_j) / (|h_l| |h_j| + eps)          elementwise; h_j: the own module's output for a sample, h_l: the other's
//! H = T · (m + log sum_d exp(v_d / T - m)),  m = max_d v_d / T
//! score of l = mean of H over samples            floor(gamma · (M - 1)) lowest of the foreign ones are dropped
//! ```
//!
//! The elements of v add up to the cosine of the two outputs, and from T = 0.1 on the ranking is nearly the cosine's.
//! The energy is `H = T log D + cos / D + |v|² / 2TD + …`, so that in many dimensions all scores lie within some
//! thousandths of `T log D`. That is why everything here is in double precision, and why the cosine itself is offered
//! beside it.

/// Added to the product of norms, so that a zero vector resembles nothing instead of being no number.
const EPSILON: f64 = 1e-12;
/// Added before rounding a number of members down, so that 0.29 of 100 are 29.
const ROUNDING: f64 = 1e-9;

/// What two outputs are compared by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Measure {
    /// The free energy H at this temperature, which must be above 0.
    Energy(f64),
    /// The cosine.
    Cosine,
}

impl Measure {
    /// Compares the outputs for one sample, `[D]` each; more is more alike. Finite for finite outputs, zeros too.
    ///
    /// # Panics
    /// Panics if the outputs are not of one length.
    pub fn of_sample(self, own: &[f32], other: &[f32]) -> f64 {
        assert_eq!(own.len(), other.len(), "outputs of one length");
        let norms = norm(own) * norm(other) + EPSILON;
        let product = own
            .iter()
            .zip(other)
            .map(|(a, b)| f64::from(*a) * f64::from(*b) / norms);
        match self {
            Self::Energy(temperature) => free_energy(&product.collect::<Vec<_>>(), temperature),
            Self::Cosine => product.sum(),
        }
    }

    /// Returns the mean over samples, both outputs `[samples, D]`; 0 without samples.
    ///
    /// # Panics
    /// Panics if D is 0 or the outputs are not of one length.
    pub fn mean(self, own: &[f32], other: &[f32], width: usize) -> f64 {
        assert_eq!(own.len(), other.len(), "outputs for the same samples");
        let samples = own.chunks_exact(width).zip(other.chunks_exact(width));
        let sum: f64 = samples.map(|(own, other)| self.of_sample(own, other)).sum();
        sum / (own.len() / width).max(1) as f64
    }
}

/// Returns `T log sum_d exp(v_d / T)`, without overflow at any temperature above 0.
fn free_energy(product: &[f64], temperature: f64) -> f64 {
    let largest = product.iter().copied().fold(f64::NEG_INFINITY, f64::max) / temperature;
    let sum: f64 = product
        .iter()
        .map(|value| (value / temperature - largest).exp())
        .sum();
    temperature * (largest + sum.ln())
}

fn norm(values: &[f32]) -> f64 {
    values
        .iter()
        .map(|value| f64::from(*value).powi(2))
        .sum::<f64>()
        .sqrt()
}

/// Returns the foreign members from the best to the worst; of equal scores the earlier member is the better one, and a
/// score that is no number is the worst.
pub fn ranking(scores: &[f64], own: usize) -> Vec<usize> {
    let value = |member: usize| {
        if scores[member].is_nan() {
            f64::NEG_INFINITY
        } else {
            scores[member]
        }
    };
    let mut members: Vec<usize> = (0..scores.len()).filter(|member| *member != own).collect();
    members.sort_by(|a, b| value(*b).total_cmp(&value(*a)).then(a.cmp(b)));
    members
}

/// Tells of each member whether it stays when `floor(drop_share · (M - 1))` foreign ones go, the worst first. The own one
/// always stays.
pub fn kept(scores: &[f64], own: usize, drop_share: f64) -> Vec<bool> {
    let ranking = ranking(scores, own);
    let dropped = (drop_share.clamp(0.0, 1.0) * ranking.len() as f64 + ROUNDING).floor() as usize;
    let mut kept = vec![true; scores.len()];
    for member in &ranking[ranking.len() - dropped.min(ranking.len())..] {
        kept[*member] = false;
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn agrees_with_a_worked_example() {
        // (3, 4) and (4, 3): v = (12, 12) / 25 = (0.48, 0.48), so H = T log 2 + 0.48 at every T, and the cosine is 0.96.
        let (own, other) = ([3.0, 4.0], [4.0, 3.0]);
        for temperature in [1e-3, 0.1, 1.0, 10.0] {
            let expected = temperature * 2f64.ln() + 0.48;
            assert!(
                (Measure::Energy(temperature).of_sample(&own, &other) - expected).abs() < 1e-9,
                "{temperature}"
            );
        }
        assert!((Measure::Cosine.of_sample(&own, &other) - 0.96).abs() < 1e-9);
        // A second sample with a zero vector has H = T log 2 and cosine 0.
        let (own, other) = ([3.0, 4.0, 0.0, 0.0], [4.0, 3.0, 1.0, 1.0]);
        assert!((Measure::Energy(1.0).mean(&own, &other, 2) - (2f64.ln() + 0.24)).abs() < 1e-9);
        assert!((Measure::Cosine.mean(&own, &other, 2) - 0.48).abs() < 1e-9);
    }

    #[test]
    fn of_equal_scores_the_later_member_goes_first() {
        assert_eq!(ranking(&[1.0, 0.5, 1.0, 0.5, f64::NAN], 0), [2, 1, 3, 4]);
        assert_eq!(
            kept(&[1.0, 0.5, 1.0, 0.5], 0, 0.4),
            [true, true, true, false]
        );
        assert_eq!(
            kept(&[0.0; 101], 0, 0.29)
                .iter()
                .filter(|kept| !**kept)
                .count(),
            29
        );
        assert_eq!(kept(&[0.0], 0, 1.0), [true]);
    }

    proptest! {
        #[test]
        fn finite_for_zeros_and_for_the_coldest_temperatures(
            own in prop::collection::vec(-1e20f32..1e20, 8), other in prop::collection::vec(-1e-20f32..1e-20, 8),
        ) {
            for measure in [Measure::Energy(1e-3), Measure::Energy(1e3), Measure::Cosine] {
                for pair in [(&own, &other), (&own, &vec![0.0; 8]), (&vec![0.0; 8], &vec![0.0; 8])] {
                    prop_assert!(measure.of_sample(pair.0, pair.1).is_finite());
                }
            }
        }

        /// With |v|² fixed the energy orders as the cosine does, down to a temperature of 1: the products here are two
        /// numbers of a fixed sum of squares, whose sum is the cosine.
        #[test]
        fn grows_with_the_cosine_at_a_fixed_norm(a in 0f64..0.78, b in 0f64..0.78, temperature in 1f64..10.0) {
            prop_assume!((a - b).abs() > 1e-3);
            let product = |angle: f64| [0.7 * angle.cos(), 0.7 * angle.sin()];
            let cosine = |angle: f64| product(angle).iter().sum::<f64>();
            let energy = |angle: f64| free_energy(&product(angle), temperature);
            prop_assert_eq!(cosine(a) < cosine(b), energy(a) < energy(b));
        }

        #[test]
        fn the_own_member_survives_any_share(
            scores in prop::collection::vec(-1f64..1.0, 1..30), own in 0usize..30, share in 0f64..=1.0,
        ) {
            let own = own % scores.len();
            let kept = kept(&scores, own, share);
            prop_assert!(kept[own]);
            let dropped = kept.iter().filter(|kept| !**kept).count();
            prop_assert!(dropped < scores.len() && dropped as f64 <= share * (scores.len() - 1) as f64 + 1e-6);
            let worst = |is_kept: bool| (0..scores.len()).filter(move |member| *member != own && kept[*member] == is_kept);
            for (stays, goes) in worst.clone()(true).flat_map(|stays| worst.clone()(false).map(move |goes| (stays, goes))) {
                prop_assert!(scores[stays] >= scores[goes]);
            }
        }
    }
}
