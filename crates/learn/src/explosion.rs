//! Updates that have left all bounds: stopped at their author, who alone can do something about it.
//!
//! The usual cause is a table whose columns are of very different scales. Others would leave such a part out, and could tell
//! its author nothing.

use fednode_core::spec::{Fingerprints, TrainingSpec};
use fednode_core::work::Update;
use fednode_core::{ParamSet, Tensor};
use fednode_data::{Pixels, Samples};

/// The largest value of a tensor, by root mean square, that any training of use has.
const MOST: f64 = 1e4;
/// From which largest value on a column is said to be unscaled.
const LARGE: f32 = 100.0;
/// How many columns are named.
const NAMED: usize = 3;

/// Returns what to do about a step that is too large.
pub(crate) fn lower_the_step(training: &TrainingSpec) -> String {
    format!(
        "lower `training.learning_rate`, now {}",
        training.learning_rate
    )
}

/// Returns what to do where columns of a table are large; nothing where they are not the cause.
pub(crate) fn scale_the_columns(samples: &Samples, known: &Fingerprints) -> Option<String> {
    let [1, 1, width] = samples.shape else {
        return None;
    };
    let Pixels::Floats(values) = &samples.pixels else {
        return None;
    };
    let largest = |column: usize| {
        let column = values.iter().skip(column).step_by(width.max(1));
        column.fold(0.0_f32, |most, value| most.max(value.abs()))
    };
    let mut columns: Vec<(usize, f32)> = (0..width)
        .map(|column| (column, largest(column)))
        .filter(|(_, largest)| *largest > LARGE)
        .collect();
    columns.sort_by(|a, b| b.1.total_cmp(&a.1));
    let name = |(column, largest): &(usize, f32)| match known.columns.get(*column) {
        Some(name) => format!("`{name}` (up to {largest:.3e})"),
        None => format!("column {} (up to {largest:.3e})", column + 1),
    };
    let names: Vec<String> = columns.iter().take(NAMED).map(name).collect();
    (!names.is_empty()).then(|| {
        format!(
            "the columns of the largest scale are {}; bring all to about -1 to 1, or describe them with `data.columns`, so that \
             nodes standardise them",
            names.join(", ")
        )
    })
}

/// Says what of an update is no longer numbers, or absurdly large.
pub(crate) fn fault_of(update: &Update) -> Option<String> {
    let experts = update.experts.iter().map(|(expert, _)| expert);
    let mut parts = update.shared.iter().chain(experts);
    if let Some(fault) = parts.find_map(|part| fault_of_part(part)) {
        return Some(fault);
    }
    let proxies = update.proxies.as_ref()?.to_params();
    fault_of_part(&proxies)
}

fn fault_of_part(part: &ParamSet) -> Option<String> {
    part.iter().find_map(|(name, tensor)| {
        let size = root_mean_square(tensor);
        if !size.is_finite() {
            return Some(format!("`{name}` has values that are not numbers"));
        }
        let sums = ["statistics.", "agreement.", "noised."];
        let is_trained = !sums.iter().any(|prefix| name.starts_with(prefix));
        (is_trained && size > MOST)
            .then(|| format!("the values of `{name}` have grown to {size:.1e}"))
    })
}

fn root_mean_square(tensor: &Tensor) -> f64 {
    let values = tensor.values();
    let squares: f64 = values.iter().map(|value| f64::from(*value).powi(2)).sum();
    (squares / values.len().max(1) as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn part(value: f32) -> Update {
        let mut part = ParamSet::new();
        part.insert("head.weight", &[4], vec![value; 4]).unwrap();
        Update {
            shared: Some(Arc::new(part)),
            experts: vec![],
            proxies: None,
            n_samples: 1,
            train_loss: 0.0,
            expert_share: vec![],
            steps: 1,
            multiply_adds: 0,
        }
    }

    #[test]
    fn what_has_left_all_bounds_is_named() {
        assert_eq!(fault_of(&part(3.0)), None);
        let grown = fault_of(&part(1e6)).unwrap();
        assert_eq!(grown, "the values of `head.weight` have grown to 1.0e6");
        let broken = fault_of(&part(f32::NAN)).unwrap();
        assert_eq!(broken, "`head.weight` has values that are not numbers");
    }

    #[test]
    fn columns_of_the_largest_scale_come_first() {
        let names: Arc<[String]> = ["a", "b"].map(String::from).into();
        let values = vec![0.5, 2e5, 300.0, -1.0, -3e6, 10.0];
        let table = Samples::new([1, 1, 3], Pixels::Floats(values), vec![0, 1], names).unwrap();
        let mut known = Fingerprints::default();
        let said = scale_the_columns(&table, &known).unwrap();
        assert!(
            said.contains("are column 2 (up to 3.000e6), column 3 (up to 3.000e2); bring"),
            "{said}"
        );
        known.columns = ["age", "income", "zip"].map(String::from).to_vec();
        let said = scale_the_columns(&table, &known).unwrap();
        assert!(
            said.contains("`income` (up to 3.000e6), `zip` (up to"),
            "{said}"
        );
    }
}
