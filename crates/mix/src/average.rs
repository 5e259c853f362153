//! Many members' parameters become one: one table of rules.
//!
//! | rule | per coordinate | survives liars |
//! |---|---|---|
//! | mean | `sum w_m x_m / sum w_m` (FedAvg; FedMoE-DA Eq. 5 with equal weights) | none |
//! | median | the middle value, or the mean of the two middle ones | fewer than half |
//! | trimmed mean | the mean without the largest and the smallest tenth (rounded up from three members on) | up to a tenth at each end |
//! | prototypes | no mean: a head is learned from the members' class prototypes, see [`crate::prototypes`] | none |
//! | usage | the mean, each expert over those that used it, see [`crate::usage`] | none |
//! | generator | the mean, but a generator is learned from the members' heads, see [`crate::generator`] | none |
//!
//! Members are combined in the order given, in `f64`, so that every node that has the same list gets the same bits.
//! Averaging equal members returns them unchanged under each rule that learns nothing. The robust rules ignore weights:
//! a liar would lie about its weight too. Callers screen members first; here a value that is not finite simply stays
//! what it is.

use std::sync::Arc;

use fednode_core::{Layout, LayoutMismatch, ParamSet, Rule, Tensor};

use crate::generator::learn_generator;
use crate::prototypes::learn_head;
use crate::usage::by_usage;

/// One in this many members is cut off at each end by the trimmed mean.
const TRIM_ONE_IN: usize = 10;

/// Tells why members could not be averaged.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum AverageError {
    /// There is nobody to average, or all weights are zero.
    #[error("there is nothing to average: no member has a weight above zero")]
    NoMembers,
    /// A weight is negative or not finite.
    #[error("a weight of {0} is not a finite number of at least zero")]
    Weight(f64),
    /// The rule needs parts of a kind, and these are others.
    #[error("the shared part is not {0}")]
    Unsuited(&'static str),
    /// A member belongs to another model.
    #[error("a member does not fit the others: {0}")]
    Layout(#[from] LayoutMismatch),
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
        if !(weight.is_finite() && weight >= 0.0) {
            return Err(AverageError::Weight(weight));
        }
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

/// How the values of all members at one coordinate become one; they arrive sorted.
type Combine = fn(&[f32]) -> f32;

/// Combines members, each with its weight, in the order given.
///
/// # Errors
/// Refuses an empty list, members of different layouts and unusable weights.
pub fn average(rule: Rule, members: &[(f64, Arc<ParamSet>)]) -> Result<ParamSet, AverageError> {
    let Some((_, first)) = members.first() else {
        return Err(AverageError::NoMembers);
    };
    match rule {
        Rule::Mean => mean(first.layout(), members),
        Rule::Median => coordinate_wise(median, first, members),
        Rule::TrimmedMean => coordinate_wise(trimmed_mean, first, members),
        Rule::Prototypes(learning) => learn_head(learning, members),
        Rule::Usage => by_usage(members),
        Rule::Generator(learning) => learn_generator(learning, members),
    }
}

pub(crate) fn mean(
    layout: Layout,
    members: &[(f64, Arc<ParamSet>)],
) -> Result<ParamSet, AverageError> {
    let mut accumulator = Accumulator::new(layout);
    for (weight, params) in members {
        accumulator.add(*weight, params)?;
    }
    accumulator.finish()
}

fn coordinate_wise(
    combine: Combine,
    first: &ParamSet,
    members: &[(f64, Arc<ParamSet>)],
) -> Result<ParamSet, AverageError> {
    let layout = first.layout();
    for (_, params) in members {
        params.check_layout(&layout)?;
    }
    let mut combined = ParamSet::new();
    for (name, shape) in layout {
        let tensors: Vec<&Tensor> = members
            .iter()
            .filter_map(|(_, params)| params.get(&name))
            .collect();
        let mut column = vec![0.0; tensors.len()];
        let n_values = tensors[0].values().len();
        let mut values = Vec::with_capacity(n_values);
        for at in 0..n_values {
            column
                .iter_mut()
                .zip(&tensors)
                .for_each(|(cell, tensor)| *cell = tensor.values()[at]);
            column.sort_unstable_by(f32::total_cmp); // not-a-numbers go to the ends, where the robust rules do not look
            values.push(combine(&column));
        }
        combined
            .insert(name, &shape, values)
            .expect("every member has this layout");
    }
    Ok(combined)
}

fn median(sorted: &[f32]) -> f32 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        sorted[middle]
    } else {
        plain_mean(&sorted[middle - 1..=middle])
    }
}

fn trimmed_mean(sorted: &[f32]) -> f32 {
    // Rounded up: with the usual rounding down, the nine members of a small federation would get the plain mean.
    let cut = if sorted.len() < 3 {
        0
    } else {
        sorted.len().div_ceil(TRIM_ONE_IN)
    };
    plain_mean(&sorted[cut..sorted.len() - cut])
}

fn plain_mean(values: &[f32]) -> f32 {
    let sum = values
        .iter()
        .fold(-0.0, |sum, value| sum + f64::from(*value));
    (sum / values.len() as f64) as f32
}

/// Returns the Euclidean norm of all values.
pub fn norm(params: &ParamSet) -> f64 {
    params
        .values()
        .fold(0.0, |sum, value| sum + f64::from(value).powi(2))
        .sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: [Rule; 3] = [Rule::Mean, Rule::Median, Rule::TrimmedMean];

    fn params(values: &[f32]) -> Arc<ParamSet> {
        let mut params = ParamSet::new();
        params
            .insert("w", &[values.len()], values.to_vec())
            .unwrap();
        Arc::new(params)
    }

    fn members(values: &[f32]) -> Vec<(f64, Arc<ParamSet>)> {
        values
            .iter()
            .map(|value| (1.0, params(&[*value])))
            .collect()
    }

    fn one(rule: Rule, values: &[f32]) -> f32 {
        average(rule, &members(values))
            .unwrap()
            .get("w")
            .unwrap()
            .values()[0]
    }

    #[test]
    fn weighs_members_as_fedavg_does() {
        let members = [(1.0, params(&[1.0, 10.0])), (3.0, params(&[5.0, -10.0]))];
        assert_eq!(
            average(Rule::Mean, &members).unwrap(),
            *params(&[4.0, -5.0])
        );
    }

    #[test]
    fn every_rule_returns_equal_members_bit_for_bit() {
        let values = [
            0.1,
            -0.0,
            0.0,
            f32::MAX,
            f32::MIN_POSITIVE / 2.0,
            -1.0 / 3.0,
        ];
        let bits = |params: &ParamSet| params.values().map(f32::to_bits).collect::<Vec<_>>();
        for rule in RULES {
            for n in 1..=12 {
                let members: Vec<_> = (1..=n)
                    .map(|i| (0.1 * f64::from(i), params(&values)))
                    .collect();
                assert_eq!(
                    bits(&average(rule, &members).unwrap()),
                    bits(&params(&values)),
                    "{rule:?} of {n}"
                );
            }
        }
    }

    #[test]
    fn robust_rules_agree_with_hand_computed_values() {
        assert_eq!(one(Rule::Median, &[5.0, 1.0, 9.0]), 5.0);
        assert_eq!(one(Rule::Median, &[5.0, 1.0, 9.0, 2.0]), 3.5);
        assert_eq!(
            one(
                Rule::TrimmedMean,
                &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 1000.0]
            ),
            5.5
        );
        assert_eq!(one(Rule::TrimmedMean, &[1.0, 3.0]), 2.0);
        assert_eq!(one(Rule::TrimmedMean, &[0.0, 1.0, 1000.0]), 1.0);
    }

    #[test]
    fn one_liar_moves_the_mean_and_not_the_robust_rules() {
        for lie in [1e30, -1e30, f32::INFINITY, f32::NAN, -f32::NAN] {
            let values = [1.0, 1.1, 0.9, lie, 1.0];
            assert!(
                (one(Rule::Mean, &values) - 1.0).abs().partial_cmp(&0.2)
                    != Some(std::cmp::Ordering::Less)
            );
            assert!((one(Rule::Median, &values) - 1.0).abs() < 0.2, "{lie}");
            assert!((one(Rule::TrimmedMean, &values) - 1.0).abs() < 0.2, "{lie}");
        }
    }

    #[test]
    fn refuses_nobody_other_layouts_and_unusable_weights() {
        for rule in RULES {
            assert_eq!(average(rule, &[]), Err(AverageError::NoMembers));
            let mixed = [(1.0, params(&[1.0])), (1.0, params(&[1.0, 2.0]))];
            assert!(matches!(
                average(rule, &mixed),
                Err(AverageError::Layout(_))
            ));
        }
        for weight in [-1.0, f64::NAN, f64::INFINITY] {
            assert!(matches!(
                average(Rule::Mean, &[(weight, params(&[1.0]))]),
                Err(AverageError::Weight(_))
            ));
        }
        assert_eq!(
            average(Rule::Mean, &[(0.0, params(&[1.0]))]),
            Err(AverageError::NoMembers)
        );
    }

    #[test]
    fn a_member_without_weight_does_not_count() {
        let members = [(0.0, params(&[f32::NAN])), (2.0, params(&[3.0]))];
        assert_eq!(average(Rule::Mean, &members).unwrap(), *params(&[3.0]));
    }
}
