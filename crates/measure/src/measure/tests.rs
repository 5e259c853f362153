//! What every row of the table keeps to.

use super::*;
use crate::split_mix::SplitMix;

/// Rows of three classes with ties, and numbers, drawn from a seed.
fn drawn(seed: u64, rows: usize) -> (Vec<[f64; 3]>, Vec<u16>, Vec<f64>, Vec<f64>) {
    let mut draws = SplitMix::seeded(seed);
    let mut row = || {
        let first = draws.below(6);
        let second = draws.below(6 - first);
        [first, second, 5 - first - second].map(|part| part as f64 / 5.0)
    };
    let probabilities = (0..rows).map(|_| row()).collect();
    let labels = (0..rows).map(|_| draws.below(3) as u16).collect();
    let mut numbers = || (0..rows).map(|_| draws.below(1000) as f64 / 8.0).collect();
    (probabilities, labels, numbers(), numbers())
}

fn repeated<T: Copy>(values: &[T], counts: &[u32]) -> Vec<T> {
    let pairs = values.iter().zip(counts);
    pairs
        .flat_map(|(&value, &count)| std::iter::repeat_n(value, count as usize))
        .collect()
}

/// A resample is a weighing: counts give what the repeated rows give.
#[test]
fn a_count_stands_for_a_repeated_row() {
    for seed in 0..50 {
        let (probabilities, labels, predicted, truth) = drawn(seed, 25);
        let mut draws = SplitMix::seeded(seed + 1000);
        let counts: Vec<u32> = (0..25).map(|_| draws.below(4) as u32).collect();
        let once = [
            Predictions::of_classes(3, &probabilities.concat(), &labels).unwrap(),
            Predictions::of_numbers(&predicted, &truth).unwrap(),
        ];
        let often = [
            Predictions::of_classes(
                3,
                &repeated(&probabilities, &counts).concat(),
                &repeated(&labels, &counts),
            )
            .unwrap(),
            Predictions::of_numbers(&repeated(&predicted, &counts), &repeated(&truth, &counts))
                .unwrap(),
        ];
        for (once, often) in once.iter().zip(&often) {
            for measure in Measure::all_of(once.task()) {
                let weighed = measure.prepare(once).unwrap()(&counts).unwrap();
                let expected = measure.of(often).unwrap();
                assert!(
                    (weighed - expected).abs() <= 1e-12 * expected.abs().max(1.0),
                    "{measure}, seed {seed}: {weighed}, expected {expected}"
                );
            }
        }
    }
}

#[test]
fn every_measure_stands_in_its_row() {
    for (position, row) in TABLE.iter().enumerate() {
        assert_eq!(row.measure as usize, position, "{}", row.name);
    }
    assert_eq!(Measure::R2 as usize + 1, TABLE.len());
}

#[test]
fn names_are_kebab_case_and_read_back() {
    for measure in Measure::all() {
        let name = measure.name();
        let plain = |letter: char| letter.is_ascii_lowercase() || "-0123456789".contains(letter);
        assert!(name.chars().all(plain), "{name}");
        assert_eq!(name.parse(), Ok(measure));
        assert_eq!(measure.to_string(), name);
        let json = serde_json::to_string(&measure).unwrap();
        assert_eq!(json, format!("\"{name}\""));
        assert_eq!(serde_json::from_str::<Measure>(&json).unwrap(), measure);
        assert!(!measure.about().contains('\n') && !measure.about().ends_with('.'));
    }
}

#[test]
fn an_unknown_name_is_answered_with_all_names() {
    let error = "auc".parse::<Measure>().unwrap_err().to_string();
    assert_eq!(
        error,
        "there is no measure `auc`: choose one of accuracy, balanced-accuracy, macro-f1, auroc, auprc, log-loss, brier, \
         calibration-error, mae, rmse, r2"
    );
    assert!(serde_json::from_str::<Measure>("\"AUROC\"").is_err());
}

#[test]
fn a_measure_of_the_other_task_has_no_value() {
    let classes = Predictions::of_classes(2, &[0.5f32, 0.5], &[0]).unwrap();
    let numbers = Predictions::of_numbers(&[1.0], &[1.0]).unwrap();
    for measure in Measure::all() {
        let other = match measure.task() {
            Task::Classes => &numbers,
            Task::Numbers => &classes,
        };
        assert_eq!(measure.of(other), None, "{measure}");
    }
}

#[test]
fn squares_of_huge_numbers_have_no_mean() {
    let huge = Predictions::of_numbers(&[1e200, -1e200], &[-1e200, 1e200]).unwrap();
    assert_eq!(Measure::Rmse.of(&huge), None);
    assert_eq!(Measure::R2.of(&huge), None);
    assert_eq!(Measure::Mae.of(&huge), Some(2e200));
}

#[test]
fn zero_and_minus_zero_are_tied() {
    let tied = Predictions::of_classes(2, &[1.0, 0.0, 1.0, -0.0], &[0, 1]).unwrap();
    assert_eq!(Measure::Auroc.of(&tied), Some(0.5));
}
