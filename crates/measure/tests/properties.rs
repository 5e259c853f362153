//! What holds of every measure, whatever the predictions.
#![allow(clippy::unwrap_used)]

use fednode_measure::{Better, Bootstrap, Measure, Predictions, Task};
use proptest::prelude::*;

/// Up to 30 rows of 2 to 4 classes. Probabilities are multiples of an eighth, so that many are tied.
fn classes() -> impl Strategy<Value = (usize, Vec<Vec<f64>>, Vec<u16>)> {
    (2usize..=4, 1usize..=30).prop_flat_map(|(classes, rows)| {
        let row = prop::collection::vec(0..classes, 8).prop_map(move |drawn| {
            let share = |class| drawn.iter().filter(|one| **one == class).count() as f64 / 8.0;
            (0..classes).map(share).collect::<Vec<f64>>()
        });
        let rows_of = prop::collection::vec(row, rows);
        let labels = prop::collection::vec(0..classes as u16, rows);
        (Just(classes), rows_of, labels)
    })
}

fn numbers() -> impl Strategy<Value = Vec<(f64, f64)>> {
    prop::collection::vec((-100.0..100.0, -100.0..100.0), 1..30)
}

fn of_classes(classes: usize, rows: &[Vec<f64>], labels: &[u16]) -> Predictions {
    Predictions::of_classes(classes, &rows.concat(), labels).unwrap()
}

fn of_numbers(pairs: &[(f64, f64)]) -> Predictions {
    let (predicted, truth): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
    Predictions::of_numbers(&predicted, &truth).unwrap()
}

/// The share of pairs of a row of the class and one of another that are in order, by comparing every pair.
fn ordered_pairs(rows: &[Vec<f64>], labels: &[u16], class: usize) -> Option<f64> {
    let scores = |wanted: bool| {
        let both = rows.iter().zip(labels);
        both.filter(move |(_, label)| (usize::from(**label) == class) == wanted)
            .map(move |(row, _)| row[class])
    };
    let (mut ordered, mut pairs) = (0.0, 0.0);
    for positive in scores(true) {
        for negative in scores(false) {
            pairs += 1.0;
            ordered += match positive.total_cmp(&negative) {
                std::cmp::Ordering::Greater => 1.0,
                std::cmp::Ordering::Equal => 0.5,
                std::cmp::Ordering::Less => 0.0,
            };
        }
    }
    (pairs > 0.0).then(|| ordered / pairs)
}

fn close(one: Option<f64>, two: Option<f64>) -> bool {
    match (one, two) {
        (Some(one), Some(two)) => (one - two).abs() <= 1e-9 * one.abs().max(1.0),
        (one, two) => one == two,
    }
}

proptest! {
    #[test]
    fn auroc_is_the_share_of_ordered_pairs((classes, rows, labels) in classes()) {
        let counted = if classes == 2 { 1..2 } else { 0..classes };
        let n = counted.len() as f64;
        let each = counted.map(|class| ordered_pairs(&rows, &labels, class));
        let expected = each.sum::<Option<f64>>().map(|sum| sum / n);
        let got = Measure::Auroc.of(&of_classes(classes, &rows, &labels));
        prop_assert!(close(got, expected), "{:?}, {:?}", got, expected);
    }

    #[test]
    fn the_order_of_rows_does_not_matter((classes, rows, labels) in classes(), pairs in numbers()) {
        let backwards = of_classes(
            classes,
            &rows.iter().rev().cloned().collect::<Vec<_>>(),
            &labels.iter().rev().copied().collect::<Vec<_>>(),
        );
        let forwards = of_classes(classes, &rows, &labels);
        for measure in Measure::all_of(Task::Classes) {
            prop_assert!(close(measure.of(&forwards), measure.of(&backwards)), "{}", measure);
        }
        let backwards: Vec<_> = pairs.iter().rev().copied().collect();
        for measure in Measure::all_of(Task::Numbers) {
            prop_assert!(close(measure.of(&of_numbers(&pairs)), measure.of(&of_numbers(&backwards))));
        }
    }

    #[test]
    fn shares_of_classes_lie_between_0_and_1((classes, rows, labels) in classes()) {
        let predictions = of_classes(classes, &rows, &labels);
        for measure in Measure::all_of(Task::Classes).filter(|measure| measure.is_share()) {
            let value = measure.of(&predictions).unwrap_or(0.5);
            prop_assert!((0.0..=1.0 + 1e-12).contains(&value), "{} is {}", measure, value);
        }
    }

    #[test]
    fn nothing_is_better_than_the_truth((classes, rows, labels) in classes(), pairs in numbers()) {
        let certain = |label: &u16| (0..classes).map(|class| f64::from(u8::from(class == usize::from(*label)))).collect();
        let truth = of_classes(classes, &labels.iter().map(certain).collect::<Vec<Vec<f64>>>(), &labels);
        let predicted = of_classes(classes, &rows, &labels);
        for measure in Measure::all_of(Task::Classes) {
            if let (Some(best), Some(value)) = (measure.of(&truth), measure.of(&predicted)) {
                prop_assert!(measure.gain(best, value) >= -1e-12, "{}: {} and {}", measure, best, value);
            }
        }
        let truth: Vec<_> = pairs.iter().map(|(_, truth)| (*truth, *truth)).collect();
        for measure in Measure::all_of(Task::Numbers) {
            if let (Some(best), Some(value)) = (measure.of(&of_numbers(&truth)), measure.of(&of_numbers(&pairs))) {
                prop_assert!(measure.gain(best, value) >= 0.0, "{}: {} and {}", measure, best, value);
            }
        }
    }

    #[test]
    fn an_interval_is_ordered_and_repeats((classes, rows, labels) in classes(), seed: u64) {
        let predictions = of_classes(classes, &rows, &labels);
        let bootstrap = Bootstrap::seeded(seed).with_resamples(20).unwrap();
        for measure in Measure::all() {
            let interval = bootstrap.interval(measure, &predictions);
            prop_assert_eq!(interval, bootstrap.interval(measure, &predictions));
            if let Some(interval) = interval {
                prop_assert!(interval.low <= interval.high && interval.standard_error >= 0.0);
                prop_assert!(interval.resamples >= 10);
            }
        }
    }
}

#[test]
fn a_classifier_gains_nothing_over_itself() {
    let probabilities = [0.9, 0.1, 0.4, 0.6, 0.7, 0.3, 0.2, 0.8];
    let predictions = Predictions::of_classes(2, &probabilities, &[0, 1, 1, 1]).unwrap();
    for measure in Measure::all_of(Task::Classes) {
        let gain = Bootstrap::seeded(1).gain(measure, &predictions, &predictions);
        let Some(gain) = gain.unwrap() else {
            panic!("{measure} has no interval");
        };
        assert_eq!(
            (gain.value, gain.low, gain.high, gain.standard_error),
            (0.0, 0.0, 0.0, 0.0)
        );
        assert!(!gain.excludes(0.0));
    }
}

/// Of 200 rows the first classifier gets 160 right, and the second 120 of these.
#[test]
fn a_clear_gain_excludes_zero_whichever_way_is_better() {
    let labels = [1u16; 200];
    let rows = |right: usize| -> Vec<f64> {
        let row = |row| if row < right { [0.2, 0.8] } else { [0.8, 0.2] };
        (0..200).flat_map(row).collect()
    };
    let first = Predictions::of_classes(2, &rows(160), &labels).unwrap();
    let second = Predictions::of_classes(2, &rows(120), &labels).unwrap();
    let bootstrap = Bootstrap::seeded(9);
    for measure in [Measure::Accuracy, Measure::LogLoss] {
        let gain = bootstrap.gain(measure, &first, &second).unwrap().unwrap();
        assert!(gain.low > 0.0 && gain.excludes(0.0), "{measure}: {gain:?}");
        let loss = bootstrap.gain(measure, &second, &first).unwrap().unwrap();
        assert!(loss.high < 0.0 && loss.excludes(0.0), "{measure}: {loss:?}");
    }
    assert_eq!(Measure::LogLoss.better(), Better::Lower);
}
