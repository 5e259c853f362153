//! Rules that look at one coordinate at a time: the values of all members there become one.

use fednode_core::{ParamSet, Tensor};

use super::{AverageError, Part, together};

/// Combines members coordinate by coordinate; `combine` gets the members' values in ascending order.
pub(super) fn coordinate_wise(
    parts: &mut dyn Iterator<Item = Part>,
    combine: fn(&[f32]) -> f32,
) -> Result<ParamSet, AverageError> {
    let parts = together(parts)?;
    let mut combined = ParamSet::new();
    for (name, shape) in parts[0].params.layout() {
        let tensors: Vec<&Tensor> = parts
            .iter()
            .filter_map(|part| part.params.get(&name))
            .collect();
        let mut column = vec![0.0; tensors.len()];
        let n_values = tensors[0].values().len();
        let mut values = Vec::with_capacity(n_values);
        for at in 0..n_values {
            column
                .iter_mut()
                .zip(&tensors)
                .for_each(|(cell, tensor)| *cell = tensor.values()[at]);
            // Not-a-numbers go to the ends, where the robust rules do not look.
            column.sort_unstable_by(f32::total_cmp);
            values.push(combine(&column));
        }
        combined
            .insert(name, &shape, values)
            .expect("every member has this layout");
    }
    Ok(combined)
}

/// Returns the mean of some values.
pub(super) fn plain_mean(values: &[f32]) -> f32 {
    let sum = values
        .iter()
        .fold(-0.0, |sum, value| sum + f64::from(*value));
    (sum / values.len() as f64) as f32
}
