//! Worked examples, and runs of PyTorch.

use burn::tensor::Device;
use fednode_core::spec::Schedule;

use super::*;
use crate::algorithm::Role;
use crate::algorithm::testing::assert_close;
use crate::model::{Initial, Net};
use crate::weights::values;

fn tensor(values: &[f32]) -> Tensor<1> {
    Tensor::from_floats(values, &Device::flex())
}

/// Two parts of one number each, both 1.
fn parts() -> [Part; 2] {
    let net = Net::arrays(&[("one", &[1], Initial::Ones)]);
    [0, 1].map(|slot| Part::new(Role::Private, net.clone(), 1, slot, &Device::flex()))
}

/// Returns both numbers after each of some steps with the same gradients.
fn steps(training: &TrainingSpec, gradients: [f32; 2], count: usize) -> Vec<f32> {
    let (mut parts, mut stepper) = (parts(), Stepper::new(training, 1.0));
    let mut numbers = Vec::new();
    for _ in 0..count {
        stepper.step(
            &mut parts,
            gradients.map(|one| vec![Some(tensor(&[one]))]).into(),
        );
        numbers.extend(
            parts
                .iter()
                .flat_map(|part| values(&part.weights.tensor(0))),
        );
    }
    numbers
}

fn training() -> TrainingSpec {
    TrainingSpec {
        learning_rate: 0.1,
        ..TrainingSpec::default()
    }
}

#[test]
fn plain_steps_remember_nothing() {
    assert_close(
        &steps(&training(), [1.0, 2.0], 2),
        &[0.9, 0.8, 0.8, 0.6],
        1e-6,
    );
}

/// v = 1, then 0.5 * 1 + 1.
#[test]
fn momentum_keeps_a_share_of_the_last_step() {
    let training = TrainingSpec {
        momentum: 0.5,
        ..training()
    };
    assert_close(
        &steps(&training, [1.0, 2.0], 2),
        &[0.9, 0.8, 0.75, 0.5],
        1e-6,
    );
}

/// g = 1 + 0.1 * 1, then v = 0.5 * 1.1 + 1 + 0.1 * 0.89.
#[test]
fn decay_is_part_of_the_gradient() {
    let with = |momentum| TrainingSpec {
        momentum,
        weight_decay: 0.1,
        ..training()
    };
    assert_close(
        &steps(&with(0.5), [1.0, 1.0], 2)[..3],
        &[0.89, 0.89, 0.7261],
        1e-6,
    );
    assert_close(
        &steps(&with(0.0), [1.0, 1.0], 2)[..3],
        &[0.89, 0.89, 0.7811],
        1e-6,
    );
}

/// The gradients 3 and 4 are 5 long.
#[test]
fn gradients_of_all_parts_are_clipped_together() {
    let training = |clip_norm| TrainingSpec {
        clip_norm,
        ..training()
    };
    assert_close(&steps(&training(1.0), [3.0, 4.0], 1), &[0.94, 0.92], 1e-6);
    assert_close(&steps(&training(6.0), [3.0, 4.0], 1), &[0.7, 0.6], 1e-6);
}

#[test]
fn a_new_stretch_begins_without_a_memory() {
    let training = TrainingSpec {
        momentum: 0.5,
        ..training()
    };
    let mut parts = parts();
    for _ in 0..2 {
        let gradients = vec![vec![Some(tensor(&[1.0]))], vec![None]];
        Stepper::new(&training, 1.0).step(&mut parts, gradients);
    }
    assert_close(&values(&parts[0].weights.tensor(0)), &[0.8], 1e-6);
    assert_eq!(
        values(&parts[1].weights.tensor(0)),
        [1.0],
        "no gradient, no step, no decay"
    );
}

#[test]
fn a_stage_may_have_its_own_rate_or_its_own_optimiser() {
    let (mut parts, mut stepper) = (parts(), Stepper::new(&training(), 0.5));
    let mut step = |rule| {
        let before = values(&parts[0].weights.tensor(0))[0];
        stepper.begin_stage(rule);
        stepper.step(&mut parts, vec![vec![Some(tensor(&[1.0]))], vec![None]]);
        before - values(&parts[0].weights.tensor(0))[0]
    };
    let rate = Rate {
        learning: 0.3,
        weight_decay: 0.0,
    };
    let moved = [
        step(StepRule::Federation),
        step(StepRule::At(0.2)),
        step(StepRule::Prescribed(Method::Adam, rate)),
    ];
    // The schedule halves the federation's rates and leaves a prescribed one alone; Adam's first step is its rate.
    assert_close(&moved, &[0.05, 0.1, 0.3], 1e-6);
}

/// One parameter under a method, from 1, with these gradients in turn.
fn run(method: Method, weight_decay: f64, gradients: &[f32]) -> Vec<f32> {
    let mut optimizer = method.start();
    let (mut value, rate) = (
        tensor(&[1.0]),
        Rate {
            learning: 0.1,
            weight_decay,
        },
    );
    let mut step = |gradient: &f32| {
        value = optimizer.step(value.clone(), tensor(&[*gradient]), rate);
        values(&value)[0]
    };
    gradients.iter().map(&mut step).collect()
}

/// Momentum 1/2, decay 1/5, gradients 1 and 2 from w = 1: v = 1.2, w = 0.88; v = 0.6 + 2.176 = 2.776, w = 0.6024.
#[test]
fn momentum_agrees_with_a_worked_example() {
    assert_close(
        &run(Method::Momentum(0.5), 0.2, &[1.0, 2.0]),
        &[0.88, 0.6024],
        1e-6,
    );
}

/// Gradients 1 and -2. Step 1: m / 0.1 = 1, s / 0.001 = 1: w = 0.9. Step 2: m = 0.09 - 0.2 = -0.11, over 0.19
/// -0.578 947; s = 0.000 999 + 0.004 = 0.004 999, over 0.001 999 2.500 750, root 1.581 376: w = 0.9 + 0.036 610.
#[test]
fn adam_agrees_with_a_worked_example() {
    assert_close(
        &run(Method::Adam, 0.0, &[1.0, -2.0]),
        &[0.9, 0.936_610],
        1e-5,
    );
}

/// What `tests/golden/optimizers.py` wrote.
#[derive(serde::Deserialize)]
struct Golden {
    start: Vec<f32>,
    gradients: Vec<Vec<f32>>,
    rate: f64,
    steps: Vec<Steps>,
    rounds: u32,
    schedules: Vec<Factors>,
}

#[derive(serde::Deserialize)]
struct Steps {
    optimizer: String,
    weight_decay: f64,
    values: Vec<Vec<f32>>,
}

#[derive(serde::Deserialize)]
struct Factors {
    schedule: Schedule,
    warmup: u32,
    factors: Vec<f64>,
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("../../tests/golden/optimizers.json")).unwrap()
}

#[test]
fn optimisers_agree_with_pytorch() {
    let golden = golden();
    for expected in &golden.steps {
        let method = match expected.optimizer.as_str() {
            "sgd" => Method::Sgd,
            "momentum" => Method::Momentum(0.9),
            "adam" => Method::Adam,
            "adamw" => Method::AdamW,
            other => panic!("no optimiser {other}"),
        };
        let rate = Rate {
            learning: golden.rate,
            weight_decay: expected.weight_decay,
        };
        let (mut optimizer, mut now) = (method.start(), tensor(&golden.start));
        for (gradient, expected) in golden.gradients.iter().zip(&expected.values) {
            now = optimizer.step(now, tensor(gradient), rate);
            assert_close(&values(&now), expected, 1e-6);
        }
    }
}

#[test]
fn schedules_agree_with_pytorch() {
    let golden = golden();
    for expected in &golden.schedules {
        let training = TrainingSpec {
            schedule: match expected.schedule {
                Schedule::Step { .. } => Schedule::Step {
                    every: 2,
                    factor: 0.5,
                },
                other => other,
            },
            warmup_rounds: expected.warmup,
            ..TrainingSpec::default()
        };
        for (round, expected) in (1..=golden.rounds).zip(&expected.factors) {
            let got = factor(&training, round, golden.rounds);
            assert!(
                (got - expected).abs() < 1e-12,
                "round {round}: {got}, not {expected}"
            );
        }
    }
}
