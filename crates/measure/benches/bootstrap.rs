//! What an interval costs: every measure on 10,000 rows of 10 classes, in 1,000 resamples.
//!
//! ```text
//! cargo bench -p fednode-measure --bench bootstrap
//! ```
#![allow(
    missing_docs,
    reason = "criterion's macros make functions without docs"
)]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use fednode_measure::{Bootstrap, Measure, Predictions, Task};

const ROWS: usize = 10_000;
const CLASSES: usize = 10;

fn intervals(criterion: &mut Criterion) {
    let predictions = predictions();
    let mut group = criterion.benchmark_group("value");
    for measure in Measure::all_of(Task::Classes) {
        group.bench_function(measure.name(), |bencher| {
            bencher.iter(|| black_box(measure.of(&predictions)));
        });
    }
    group.finish();
    let mut group = criterion.benchmark_group("interval of 1000 resamples");
    group.sample_size(10);
    for measure in Measure::all_of(Task::Classes) {
        group.bench_function(measure.name(), |bencher| {
            bencher.iter(|| black_box(Bootstrap::seeded(1).interval(measure, &predictions)));
        });
    }
    group.finish();
}

/// Rows without ties, more often right than not: a fraction of multiples of the golden ratio, and a little for the truth.
fn predictions() -> Predictions {
    let fraction = |index: usize| (index as f64 * 0.618_033_988_749_895).fract();
    let labels: Vec<u16> = (0..ROWS)
        .map(|row| (fraction(row * 7 + 3) * CLASSES as f64) as u16)
        .collect();
    let mut probabilities = Vec::with_capacity(ROWS * CLASSES);
    for (row, &label) in labels.iter().enumerate() {
        let weight = |class: usize| {
            let bonus = if class == usize::from(label) {
                0.5
            } else {
                0.0
            };
            fraction(row * CLASSES + class + row * row % 97) + bonus
        };
        let weights: Vec<f64> = (0..CLASSES).map(weight).collect();
        let sum: f64 = weights.iter().sum();
        probabilities.extend(weights.iter().map(|weight| weight / sum));
    }
    Predictions::of_classes(CLASSES, &probabilities, &labels).expect("these are probabilities")
}

criterion_group!(benches, intervals);
criterion_main!(benches);
