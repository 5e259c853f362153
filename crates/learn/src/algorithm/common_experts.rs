//! Experts that all nodes have in common, of which a node uses a few: what `fedmix`, `fedjets` and `ifca` build on.
//!
//! Every expert is a whole model and a shared part, `experts.K.*`; beside them each node shares how much it used each,
//! and the aggregator averages each over those that used it (rule `usage` of `fednode_mix::rule`). All experts travel: a part
//! is one blob, whatever is used of it.

use burn::tensor::{Device, Tensor, TensorData};
use fednode_core::{Averaging, ConfigError, Exchange, Rule, Weighting};
use fednode_mix::names::{EXPERTS, USAGE};

use super::Setup;
use super::part::{Part, Role};
use crate::error::LearnError;
use crate::model::{self, Initial, Net};
use crate::weights::Weights;

/// What is shared: experts by use, the rest by samples.
pub(super) fn exchange() -> Exchange {
    Exchange {
        averaging: Some(Averaging {
            weighting: Weighting::Samples,
            rule: Rule::named("usage"),
        }),
        experts: None,
        everybody_first: false,
        prepares: false,
        total: None,
    }
}

/// Refuses to select more experts than there are.
pub(super) fn check_selected(selected: u32, experts: usize) -> Result<(), LearnError> {
    if selected as usize <= experts {
        return Ok(());
    }
    let text = format!(
        "`selected_experts` is {selected}, and there are {experts} experts (`model.experts`)"
    );
    Err(ConfigError(text).into())
}

/// Makes so many experts, each with a start of its own that all nodes have in common, and the shares of their use.
pub(super) fn parts(setup: &Setup<'_>, n_experts: usize) -> Result<Vec<Part>, LearnError> {
    let net = model::build(setup.model)?;
    let expert = |slot: usize| {
        let part = Part::new(
            Role::Shared,
            net.clone(),
            setup.seed,
            slot as u64,
            setup.device,
        );
        Part {
            net: part.net.clone().prefixed(&format!("{EXPERTS}{slot}.")),
            ..part
        }
    };
    let usage = Net::arrays(&[(USAGE, &[n_experts], Initial::Ones)]);
    let usage = Part::new(Role::Shared, usage, setup.seed, 0, setup.device);
    Ok((0..n_experts).map(expert).chain([usage]).collect())
}

/// What each expert got of some samples.
#[derive(Debug, Clone, Default)]
pub(super) struct Tally(Vec<f64>);

impl Tally {
    pub(super) fn new(n_experts: usize) -> Self {
        Self(vec![0.0; n_experts])
    }

    /// Adds up rows of numbers, one column for each of the given experts.
    pub(super) fn add(&mut self, rows: &[f32], experts: &[usize]) {
        for row in rows.chunks_exact(experts.len()) {
            row.iter()
                .zip(experts)
                .for_each(|(value, expert)| self.0[*expert] += f64::from(*value));
        }
    }

    /// Returns so many experts that got most, in order; the first of equal ones. One of them can be given.
    pub(super) fn best(&self, count: usize, given: Option<usize>) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.0.len()).collect();
        order.sort_by(|a, b| {
            let is_given = |expert: &usize| Some(*expert) == given;
            is_given(b)
                .cmp(&is_given(a))
                .then(self.0[*b].total_cmp(&self.0[*a]))
        });
        order.truncate(count.max(1));
        order.sort_unstable();
        order
    }

    /// Returns the shares of all, which add up to 1, as the weights of the part that [`parts`] ends with.
    pub(super) fn shares(&self, device: &Device) -> Weights {
        let total = self.0.iter().sum::<f64>().max(f64::MIN_POSITIVE);
        array(
            &self
                .0
                .iter()
                .map(|sum| (sum / total) as f32)
                .collect::<Vec<_>>(),
            device,
        )
    }
}

/// Makes the weights of a part that is one array.
pub(super) fn array(values: &[f32], device: &Device) -> Weights {
    Weights::new(vec![Tensor::from_data(
        TensorData::new(values.to_vec(), [values.len()]),
        device,
    )])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::testing::assert_close;
    use crate::weights::values;

    #[test]
    fn tells_who_got_most() {
        let mut tally = Tally::new(4);
        tally.add(&[0.9, 0.1, 0.2, 0.8], &[1, 3]);
        tally.add(&[0.5, 0.5], &[0, 3]);
        assert_close(
            &values(&tally.shares(&Device::flex()).tensor(0)),
            &[0.5 / 3.0, 1.1 / 3.0, 0.0, 1.4 / 3.0],
            1e-6,
        );
        assert_eq!(tally.best(2, None), [1, 3]);
        assert_eq!(tally.best(2, Some(2)), [2, 3]);
        assert_eq!(
            (tally.best(9, None), tally.best(0, None)),
            (vec![0, 1, 2, 3], vec![3])
        );
        assert_eq!(
            Tally::new(3).best(2, None),
            [0, 1],
            "the first of equal ones"
        );
    }
}
