//! The mean of one value per row, each counted as often as its row.

use super::total;

/// Returns the mean; `None` if no row counts.
pub(super) fn mean(values: &[f64], counts: &[u32]) -> Option<f64> {
    let pairs = values.iter().zip(counts);
    let sum: f64 = pairs.map(|(value, &count)| value * f64::from(count)).sum();
    let total = total(counts);
    (total > 0).then(|| sum / total as f64)
}
