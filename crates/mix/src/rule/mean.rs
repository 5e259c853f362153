//! The weighted mean: `sum w_m x_m / sum w_m` (McMahan et al., "Communication-Efficient Learning", AISTATS 2017;
//! FedMoE-DA Eq. 5 with equal weights). One liar moves it as far as it likes.

use fednode_core::{Layout, ParamSet};

use super::{AverageError, Part, RuleRow, Takes};

pub(super) const ROW: RuleRow = RuleRow {
    name: "mean",
    summary: "the weighted mean; resists no liar",
    reference: "McMahan et al., AISTATS 2017, arXiv 1602.05629",
    takes: Takes::AnyParts,
    streams: true,
    uses_weights: true,
    params: &[],
    combine: |_, parts| mean(parts),
};

/// Returns the weighted mean.
pub(super) fn mean(parts: &mut dyn Iterator<Item = Part>) -> Result<ParamSet, AverageError> {
    let first = parts.next().ok_or(AverageError::NoMembers)?;
    let mut sum = Accumulator::new(first.params.layout());
    sum.add(first.weight, &first.params)?;
    drop(first);
    for part in parts {
        sum.add(part.weight, &part.params)?;
    }
    sum.finish()
}

/// Refuses a weight that is negative or not finite.
pub(super) fn check_weight(weight: f64) -> Result<(), AverageError> {
    if weight.is_finite() && weight >= 0.0 {
        Ok(())
    } else {
        Err(AverageError::Weight(weight))
    }
}

/// A weighted mean that takes its members one by one, so that they need not be in memory together.
#[derive(Debug, Clone)]
pub struct Accumulator {
    layout: Layout,
    sums: Vec<Vec<f64>>,
    total_weight: f64,
}

impl Accumulator {
    /// Starts a mean of parameters of this layout.
    pub fn new(layout: Layout) -> Self {
        // Negative zero is the neutral element of floating-point addition; with 0.0, a lone -0.0 would become 0.0.
        let sums = layout
            .values()
            .map(|shape| vec![-0.0; shape.iter().product()])
            .collect();
        Self {
            layout,
            sums,
            total_weight: 0.0,
        }
    }

    /// Adds a member. A weight of zero adds nothing.
    ///
    /// # Errors
    /// Refuses another layout and a weight that is negative or not finite; the mean is then as before.
    pub fn add(&mut self, weight: f64, params: &ParamSet) -> Result<(), AverageError> {
        check_weight(weight)?;
        params.check_layout(&self.layout)?;
        if weight == 0.0 {
            return Ok(());
        }
        self.total_weight += weight;
        for (sums, (_, tensor)) in self.sums.iter_mut().zip(params.iter()) {
            for (sum, value) in sums.iter_mut().zip(tensor.values()) {
                *sum += weight * f64::from(*value);
            }
        }
        Ok(())
    }

    /// Returns the sum of the weights so far.
    pub fn total_weight(&self) -> f64 {
        self.total_weight
    }

    /// Returns the mean.
    ///
    /// # Errors
    /// Fails if no member with a weight above zero was added.
    pub fn finish(self) -> Result<ParamSet, AverageError> {
        let total = self.total_weight;
        if total == 0.0 {
            return Err(AverageError::NoMembers);
        }
        let mut mean = ParamSet::new();
        for ((name, shape), sums) in self.layout.into_iter().zip(self.sums) {
            let values = sums.into_iter().map(|sum| (sum / total) as f32).collect();
            mean.insert(name, &shape, values)
                .expect("every member has this layout");
        }
        Ok(mean)
    }
}
