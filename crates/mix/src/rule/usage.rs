//! Experts that all nodes have in common, each averaged over those that used it: `fedmix` and `fedjets`
//! (arXiv 2107.06724 and 2306.08586).
//!
//! ```text
//! member m sends     experts.0.* … experts.(K-1).*, usage u_m (one share of use per expert), whatever else is shared
//! expert k           sum_m n_m u_mk w_mk / sum_m n_m u_mk          n_m: the member's weight
//! all the rest       sum_m n_m x_m / sum_m n_m
//! ```
//!
//! An expert that nobody used is the plain mean of what came back, so it stays as it was. A share counts as at least 0
//! and at most 1, whatever a member claims.

use fednode_core::ParamSet;

use super::mean::mean;
use super::{Accumulator, AverageError, Part, RuleRow, Takes, together};
use crate::names::{EXPERTS, USAGE};

pub(super) const ROW: RuleRow = RuleRow {
    name: "usage",
    summary: "the weighted mean, each expert over the members that used it, by how much they did",
    reference: "FedMix (Reisser et al., arXiv 2107.06724), FedJETs (Dun et al., arXiv 2306.08586)",
    takes: Takes::PartsOfItsAlgorithm,
    streams: false,
    uses_weights: true,
    params: &[],
    combine: |_, parts| by_usage(&together(parts)?),
};

/// What members must be.
const UNSUITED: AverageError = AverageError::Unsuited("experts with their usage");

/// Averages members, each expert by its use.
///
/// # Errors
/// Refuses an empty list, members of different layouts, unusable weights, and parts without a share of use for every
/// expert.
fn by_usage(members: &[Part]) -> Result<ParamSet, AverageError> {
    let first = members.first().ok_or(AverageError::NoMembers)?;
    let usage = first.params.get(USAGE);
    let n_experts = usage.map_or(0, |usage| usage.values().len());
    let mut averaged = mean(&mut members.iter().cloned())?;
    for expert in 0..n_experts.max(1) {
        let prefix = format!("{EXPERTS}{expert}.");
        let used = expert_mean(members, expert, &prefix)?;
        for (name, tensor) in averaged.iter_mut() {
            let own = name
                .strip_prefix(&prefix)
                .and_then(|name| used.as_ref()?.get(name));
            if let Some(own) = own {
                tensor.values_mut().copy_from_slice(own.values());
            }
        }
    }
    Ok(averaged)
}

/// Returns the mean of an expert over the members that used it, under its names without the prefix; nothing if nobody
/// did. That all members have one layout was checked.
fn expert_mean(
    members: &[Part],
    expert: usize,
    prefix: &str,
) -> Result<Option<ParamSet>, AverageError> {
    let mut sum: Option<Accumulator> = None;
    for Part { weight, params } in members {
        let share = params
            .get(USAGE)
            .and_then(|usage| usage.values().get(expert))
            .ok_or(UNSUITED)?;
        let own = params.strip_prefix(prefix);
        if own.is_empty() {
            return Err(UNSUITED);
        }
        let share = f64::from(*share).clamp(0.0, 1.0);
        sum.get_or_insert_with(|| Accumulator::new(own.layout()))
            .add(weight * share, &own)?;
    }
    sum.filter(|sum| sum.total_weight() > 0.0)
        .map(Accumulator::finish)
        .transpose()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn member(weight: f64, experts: [f32; 2], usage: [f32; 2], gate: f32) -> Part {
        let mut params = ParamSet::new();
        for (expert, value) in experts.into_iter().enumerate() {
            params
                .insert(format!("experts.{expert}.fc.weight"), &[1], vec![value])
                .unwrap();
        }
        params.insert(USAGE, &[2], usage.to_vec()).unwrap();
        params.insert("gate.weight", &[1], vec![gate]).unwrap();
        part(weight, params)
    }

    fn part(weight: f64, params: ParamSet) -> Part {
        Part {
            weight,
            params: Arc::new(params),
        }
    }

    fn value(params: &ParamSet, name: &str) -> f32 {
        params.get(name).unwrap().values()[0]
    }

    /// Weights 1 and 3. Expert 0 is used by 1/2 and 1/2: (1·2 + 3·6) / 4 = 5. Expert 1 by 1/2 and 1/4:
    /// (1/2·8 + 3/4·3) / (5/4) = 5. The gate is the plain mean: (1·0 + 3·8) / 4 = 6.
    #[test]
    fn agrees_with_a_worked_example() {
        let members = [
            member(1.0, [2.0, 8.0], [0.5, 0.5], 0.0),
            member(3.0, [6.0, 3.0], [0.5, 0.25], 8.0),
        ];
        let averaged = by_usage(&members).unwrap();
        assert_eq!(value(&averaged, "experts.0.fc.weight"), 5.0);
        assert_eq!(value(&averaged, "experts.1.fc.weight"), 5.0);
        assert_eq!(value(&averaged, "gate.weight"), 6.0);
        assert_eq!(averaged.get(USAGE).unwrap().values(), [0.5, 0.3125]);
        let boast = [
            member(1.0, [0.0; 2], [9.0, 0.0], 0.0),
            member(1.0, [4.0; 2], [1.0, 0.0], 0.0),
        ];
        assert_eq!(
            value(&by_usage(&boast).unwrap(), "experts.0.fc.weight"),
            2.0,
            "a boast counts as 1"
        );
    }

    #[test]
    fn unused_expert_is_moved_by_its_users_alone() {
        let members = [
            member(1.0, [1.0, 7.0], [1.0, 0.0], 0.0),
            member(9.0, [50.0, 7.0], [0.0, 0.0], 0.0),
        ];
        let averaged = by_usage(&members).unwrap();
        assert_eq!(value(&averaged, "experts.0.fc.weight"), 1.0);
        assert_eq!(value(&averaged, "experts.1.fc.weight"), 7.0);
    }

    #[test]
    fn refuses_what_has_no_usage() {
        assert_eq!(by_usage(&[]), Err(AverageError::NoMembers));
        let mut plain = ParamSet::new();
        plain
            .insert("experts.0.fc.weight", &[1], vec![1.0])
            .unwrap();
        assert_eq!(by_usage(&[part(1.0, plain.clone())]), Err(UNSUITED));
        plain.insert(USAGE, &[2], vec![1.0, 0.0]).unwrap();
        assert_eq!(
            by_usage(&[part(1.0, plain)]),
            Err(UNSUITED),
            "there is no expert 1"
        );
    }
}
