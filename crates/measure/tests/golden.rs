//! Every measure and interval against scikit-learn (`tests/data/scikit_learn.json`, written by the script beside it).
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use fednode_measure::measure::{auprc_of_each_class, auroc_of_each_class};
use fednode_measure::{Bootstrap, Classified, Confusion, Interval, Measure, Predictions, Task};

const TOLERANCE: f64 = 1e-9;

#[derive(serde::Deserialize)]
struct Golden {
    classes: Vec<ClassCase>,
    numbers: Vec<NumberCase>,
    intervals: Vec<IntervalCase>,
    gains: Vec<GainCase>,
}

#[derive(serde::Deserialize)]
struct ClassCase {
    name: String,
    /// Whether the probabilities are given in 32 bits.
    single: bool,
    probabilities: Vec<Vec<f64>>,
    labels: Vec<u16>,
    measures: BTreeMap<Measure, Option<f64>>,
    log_loss_as_given: f64,
    confusion: Vec<Vec<u64>>,
    precision: Vec<Option<f64>>,
    recall: Vec<Option<f64>>,
    f1: Vec<Option<f64>>,
    each_auroc: Vec<Option<f64>>,
    each_auprc: Vec<Option<f64>>,
}

#[derive(serde::Deserialize)]
struct NumberCase {
    name: String,
    predicted: Vec<f64>,
    truth: Vec<f64>,
    measures: BTreeMap<Measure, Option<f64>>,
}

#[derive(serde::Deserialize)]
struct IntervalCase {
    case: String,
    measure: Measure,
    seed: u64,
    level: f64,
    interval: Option<Bounds>,
}

#[derive(serde::Deserialize)]
struct GainCase {
    measure: Measure,
    interval: Bounds,
}

#[derive(serde::Deserialize)]
struct Bounds {
    low: f64,
    high: f64,
    standard_error: f64,
    resamples: u32,
}

impl ClassCase {
    fn classified(&self) -> Classified {
        if !self.single {
            return Classified::from_rows(&self.probabilities, &self.labels).unwrap();
        }
        let narrow = |row: &Vec<f64>| row.iter().map(|&p| p as f32).collect();
        let rows: Vec<Vec<f32>> = self.probabilities.iter().map(narrow).collect();
        Classified::from_rows(&rows, &self.labels).unwrap()
    }

    fn predictions(&self) -> Predictions {
        Predictions::Classes(self.classified())
    }
}

impl NumberCase {
    fn predictions(&self) -> Predictions {
        Predictions::of_numbers(&self.predicted, &self.truth).unwrap()
    }
}

impl Golden {
    /// The predictions of a case.
    fn predictions(&self, name: &str) -> Predictions {
        let classes = self.classes.iter().find(|case| case.name == name);
        let numbers = self.numbers.iter().find(|case| case.name == name);
        classes
            .map(ClassCase::predictions)
            .or_else(|| numbers.map(NumberCase::predictions))
            .unwrap()
    }
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("data/scikit_learn.json")).unwrap()
}

/// Relative to the larger of both, and absolute below a thousandth.
fn agree(got: f64, expected: f64) -> bool {
    (got - expected).abs() <= TOLERANCE * got.abs().max(expected.abs()).max(1e-3)
}

#[track_caller]
fn assert_agree(what: &str, got: Option<f64>, expected: Option<f64>) {
    let fine = match (got, expected) {
        (Some(got), Some(expected)) => agree(got, expected),
        (got, expected) => got == expected,
    };
    assert!(fine, "{what}: {got:?}, scikit-learn has {expected:?}");
}

#[track_caller]
fn assert_all_agree(what: &str, got: &[Option<f64>], expected: &[Option<f64>]) {
    assert_eq!(got.len(), expected.len());
    for (class, (&got, &expected)) in got.iter().zip(expected).enumerate() {
        assert_agree(&format!("{what} of class {class}"), got, expected);
    }
}

#[track_caller]
fn assert_bounds(what: &str, got: &Interval, expected: &Bounds) {
    let pairs = [
        (got.low, expected.low),
        (got.high, expected.high),
        (got.standard_error, expected.standard_error),
    ];
    for (got, expected) in pairs {
        assert!(agree(got, expected), "{what}: {got}, expected {expected}");
    }
    assert_eq!(got.resamples, expected.resamples, "{what}");
}

#[test]
fn measures_of_classes_are_those_of_scikit_learn() {
    for case in golden().classes {
        let predictions = case.predictions();
        assert!(
            case.measures
                .keys()
                .copied()
                .eq(Measure::all_of(Task::Classes))
        );
        for (measure, &expected) in &case.measures {
            let what = format!("{measure} of \"{}\"", case.name);
            assert_agree(&what, measure.of(&predictions), expected);
        }
    }
}

#[test]
fn measures_of_numbers_are_those_of_scikit_learn() {
    for case in golden().numbers {
        let predictions = case.predictions();
        assert!(
            case.measures
                .keys()
                .copied()
                .eq(Measure::all_of(Task::Numbers))
        );
        for (measure, &expected) in &case.measures {
            let what = format!("{measure} of \"{}\"", case.name);
            assert_agree(&what, measure.of(&predictions), expected);
        }
    }
}

#[test]
fn log_loss_is_bounded_by_the_precision_given() {
    for case in golden().classes {
        let got = Measure::LogLoss.of(&case.predictions()).unwrap();
        let expected = case.log_loss_as_given;
        // scikit-learn computes in the precision given, so 32 bits agree to six digits.
        let tolerance = if case.single { 2e-6 } else { TOLERANCE };
        let fine = (got - expected).abs() <= tolerance * expected.max(1e-3);
        assert!(fine, "{}: {got}, scikit-learn has {expected}", case.name);
    }
}

#[test]
fn confusion_and_classes_are_those_of_scikit_learn() {
    for case in golden().classes {
        let classified = case.classified();
        let confusion = Confusion::of(&classified);
        assert!(confusion.rows().eq(case.confusion.iter()), "{}", case.name);
        let of_each = |share: fn(&Confusion, usize) -> Option<f64>| {
            let classes = 0..confusion.classes();
            classes
                .map(|class| share(&confusion, class))
                .collect::<Vec<_>>()
        };
        let name = &case.name;
        assert_all_agree(name, &of_each(Confusion::precision), &case.precision);
        assert_all_agree(name, &of_each(Confusion::recall), &case.recall);
        assert_all_agree(name, &of_each(Confusion::f1), &case.f1);
        assert_all_agree(name, &auroc_of_each_class(&classified), &case.each_auroc);
        assert_all_agree(name, &auprc_of_each_class(&classified), &case.each_auprc);
    }
}

#[test]
fn intervals_are_those_of_the_same_resamples_in_scikit_learn() {
    let golden = golden();
    for wanted in &golden.intervals {
        let predictions = golden.predictions(&wanted.case);
        let bootstrap = Bootstrap::seeded(wanted.seed).with_resamples(200).unwrap();
        let bootstrap = bootstrap.with_level(wanted.level).unwrap();
        let got = bootstrap.interval(wanted.measure, &predictions);
        let what = format!("{} of \"{}\"", wanted.measure, wanted.case);
        match (got, &wanted.interval) {
            (Some(got), Some(expected)) => {
                assert_bounds(&what, &got, expected);
                assert_eq!(Some(got.value), wanted.measure.of(&predictions));
            }
            (got, expected) => assert!(got.is_none() && expected.is_none(), "{what}: {got:?}"),
        }
    }
}

#[test]
fn paired_gains_are_those_of_the_same_resamples_in_scikit_learn() {
    let golden = golden();
    let first = golden.predictions("two classes");
    let second = golden.predictions("two classes, ties");
    let bootstrap = Bootstrap::seeded(4).with_resamples(100).unwrap();
    for wanted in &golden.gains {
        let got = bootstrap.gain(wanted.measure, &first, &second).unwrap();
        assert_bounds(wanted.measure.name(), &got.unwrap(), &wanted.interval);
    }
    assert_eq!(golden.gains.len(), Measure::all_of(Task::Classes).count());
}
