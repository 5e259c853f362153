//! Worked examples, and noise as Google's dp-accounting plans it.

use std::ops::ControlFlow;

use burn::tensor::{Device, Tensor};
use fednode_core::Augmentation;
use fednode_core::spec::TrainingSpec;
use fednode_data::Pixels;
use rand_chacha::ChaCha20Rng;

use super::*;
use crate::algorithm::RoundContext;
use crate::algorithm::testing::assert_close;
use crate::feature_cache::CacheBudget;
use crate::model::{Initial, Net};
use crate::train::{Epochs, Schedule, train};
use crate::weights::values;

fn part(role: Role, numbers: usize) -> Part {
    let net = Net::arrays(&[("numbers", &[numbers], Initial::Ones)]);
    Part::new(role, net, 1, 0, &Device::flex())
}

fn tensor(values: &[f32]) -> Option<Tensor<1>> {
    Some(Tensor::from_floats(values, &Device::flex()))
}

fn plan(noise: f64) -> Plan {
    Plan {
        rate: Rate::new(0.1).unwrap(),
        noise: Noise::new(noise).unwrap(),
        clip: 1.0,
        steps: 10,
        expected: 2.0,
        epochs: 1,
        rounds: 1,
    }
}

fn draws(noise: f64) -> Draws {
    Draws {
        plan: plan(noise),
        seed: [5; 32],
    }
}

/// Returns the mean gradients of a lot of samples with two trained numbers each.
fn mean(samples: &[[f32; 2]], noise: f64) -> Vec<f32> {
    let parts = [part(Role::Shared, 2)];
    let mut lot = Lot::new(1.0, true);
    for sample in samples {
        lot.add(&parts, &vec![vec![tensor(sample)]], &[true]);
    }
    let noised = lot.noised(&parts, &draws(noise), 1, 1);
    values(noised[0][0].as_ref().unwrap())
}

/// (3, 4) becomes (0.6, 0.8), (0.3, 0) stays; a lot has two samples on average.
#[test]
fn each_gradient_is_shortened_by_itself() {
    let found = mean(&[[3.0, 4.0], [0.3, 0.0]], 1e-6);
    assert_close(&found, &[0.45, 0.4], 1e-5);
}

#[test]
fn a_gradient_that_is_no_number_adds_nothing() {
    let found = mean(&[[f32::NAN, 4.0], [0.3, f32::INFINITY], [0.2, 0.0]], 1e-6);
    assert_close(&found, &[0.1, 0.0], 1e-5);
}

/// The promise is for summands of length 1: floats of any size must not make one longer.
#[test]
fn no_summand_is_longer_than_it_may_be() {
    let mut random = ChaCha20Rng::from_seed([1; 32]);
    for case in 0..200 {
        let size = 10f64.powi(case % 40 - 20);
        let mut number = || (super::unit(&mut random) - 0.5) * size;
        let gradient: Vec<f32> = (0..500).map(|_| number() as f32).collect();
        let parts = [part(Role::Shared, 500)];
        let mut lot = Lot::new(1.0, true);
        lot.add(&parts, &vec![vec![tensor(&gradient)]], &[true]);
        let square = lot.square();
        let most = 1_u128 << 48;
        assert!(square <= most, "{case}: {square}");
        // A long one is not made much shorter either.
        let length = gradient
            .iter()
            .map(|one| f64::from(*one).powi(2))
            .sum::<f64>()
            .sqrt();
        assert!(
            length < 1.0 || square as f64 > 0.9999 * most as f64,
            "{case}: {square}"
        );
    }
}

/// Whether any sample moved a number is a secret; what is not trained stays as it is.
#[test]
fn every_trained_number_has_noise_and_no_other_has() {
    let parts = [Role::Gate, Role::Private, Role::Shared].map(|role| part(role, 3000));
    for counts in [true, false] {
        let mut lot = Lot::new(2.0, counts);
        let gradients = vec![vec![None], vec![None], vec![tensor(&[0.0; 3000])]];
        lot.add(&parts, &gradients, &[true, false, true]);
        let noised = lot.noised(&parts, &draws(3.0), 1, 1);
        assert!(noised[1][0].is_none());
        for at in [0, 2] {
            let found = values(noised[at][0].as_ref().unwrap());
            let square = found.iter().map(|one| f64::from(*one).powi(2)).sum::<f64>() / 3000.0;
            // sigma · C / (q n) = 3 · 2 / 2, within six standard errors.
            assert!(
                (square / 9.0 - 1.0).abs() < 6.0 * (2.0 / 3000.0_f64).sqrt(),
                "{square}"
            );
        }
    }
}

#[test]
fn the_same_sum_has_the_same_noise_and_another_sum_another() {
    let first = mean(&[[0.1, 0.2]], 1.0);
    assert_eq!(first, mean(&[[0.1, 0.2]], 1.0));
    let other = mean(&[[0.1, 0.3]], 1.0);
    // The first number is the same in both sums, and its noise is not.
    assert_ne!(first[0], other[0]);
}

#[test]
fn each_sample_takes_part_with_the_same_probability() {
    let (draws, n_samples) = (draws(1.0), 5000);
    let lots = draws.lots(1, n_samples);
    assert_eq!(lots.len(), 10);
    let mut times = vec![0_u32; n_samples];
    for lot in &lots {
        let share = lot.len() as f64 / n_samples as f64;
        // Five standard errors of a probability of 0.1.
        assert!(
            (share - 0.1).abs() < 5.0 * (0.09 / n_samples as f64).sqrt(),
            "{share}"
        );
        lot.iter().for_each(|at| times[*at as usize] += 1);
    }
    // Binomial of ten: 34.9 % take part in none, 26.4 % in two or more.
    let share = |holds: fn(u32) -> bool| {
        times.iter().filter(|one| holds(**one)).count() as f64 / n_samples as f64
    };
    assert!((share(|one| one == 0) - 0.349).abs() < 0.035);
    assert!((share(|one| one >= 2) - 0.264).abs() < 0.032);
    assert_eq!(lots, draws.lots(1, n_samples));
    assert_ne!(lots, draws.lots(2, n_samples));
}

fn samples(label: u16) -> Samples {
    let names = ["a", "b"].map(str::to_owned);
    let pixels = Pixels::Floats(vec![0.5, 1.0]);
    Samples::new(
        [1, 1, 1],
        pixels,
        vec![0, label],
        std::sync::Arc::new(names),
    )
    .unwrap()
}

#[test]
fn a_round_that_begins_with_anything_else_has_draws_of_its_own() {
    let promise = |key: &[u8]| Promise {
        terms: Terms::of(&promised(8.0)).unwrap(),
        plan: plan(1.0),
        others: BTreeMap::new(),
        key: NoiseKey::of_secret(key),
        federation: FederationSpec::default().id(),
        seeds: [1, 2],
    };
    let parts = [part(Role::Shared, 2)];
    let mut moved = parts.clone();
    moved[0].weights.change(0, |values| values.mul_scalar(2.0));
    let in_round = |round, promise: &Promise, parts: &[Part], label| {
        promise.begin(Round(round), parts, &samples(label)).seed
    };
    let seed = |promise: &Promise, parts: &[Part], label| in_round(1, promise, parts, label);
    let usual = seed(&promise(b"node"), &parts, 0);
    assert_eq!(usual, seed(&promise(b"node"), &parts, 0));
    let others = [
        seed(&promise(b"another"), &parts, 0),
        seed(&promise(b"node"), &moved, 0),
        in_round(2, &promise(b"node"), &parts, 0),
        seed(&promise(b"node"), &parts, 1),
    ];
    assert!(others.iter().all(|other| *other != usual));
}

/// Returns the parameters after an epoch in which all samples take part in each of ten steps, almost without noise.
fn trained(augmentation: Augmentation, seed: [u8; 32]) -> Vec<f32> {
    let mut algorithm = algorithm::testing::build("fedavg", &[]);
    let value = |at: usize| (at * 7 % 5) as f32 / 5.0;
    let pixels = Pixels::Floats((0..40).map(value).collect());
    let names = ["a", "b"].map(str::to_owned);
    let labels = (0..10).map(|at| at % 2).collect();
    let samples = Samples::new([1, 2, 2], pixels, labels, std::sync::Arc::new(names)).unwrap();
    let training = TrainingSpec {
        learning_rate: 0.5,
        local_epochs: 1,
        augmentation,
        ..TrainingSpec::default()
    };
    let everybody = Plan {
        rate: Rate::new(1.0).unwrap(),
        expected: 10.0,
        ..plan(1e-6)
    };
    let draws = Draws {
        plan: everybody,
        seed,
    };
    let schedule = Schedule {
        ctx: RoundContext {
            round: Round(1),
            rounds: 1,
            training: &training,
            class_counts: &[5, 5],
            seed: 1,
            node_seed: 2,
        },
        epochs: Epochs::All,
        budget: &CacheBudget::default(),
        resident: None,
        draws: Some(&draws),
    };
    let (device, mut watch) = (Device::flex(), |_| ControlFlow::Continue(()));
    train(algorithm.as_mut(), &samples, schedule, &device, &mut watch).unwrap();
    algorithm::testing::numbers(algorithm.as_ref(), "")
}

/// Who knew how images are changed could tell how many samples were drawn before each.
#[test]
fn how_images_are_changed_is_a_secret() {
    let apart = |augmentation| {
        let [first, other] = [[1; 32], [2; 32]].map(|seed| trained(augmentation, seed));
        let apart = first.iter().zip(&other).map(|(a, b)| (a - b).abs());
        apart.fold(0.0, f32::max)
    };
    // Nothing but noise differs where images stay as they are.
    let unchanged = apart(Augmentation::None);
    assert!(unchanged < 1e-4, "{unchanged}");
    let changed = apart(Augmentation::Flip);
    assert!(changed > 1e-2, "{changed}");
}

fn promised(epsilon: f64) -> FederationSpec {
    let mut spec = FederationSpec::default();
    spec.privacy.epsilon = Some(epsilon);
    spec
}

/// A simulation has one learner for many nodes.
#[test]
fn a_learner_that_becomes_another_node_trains_by_that_nodes_plan() {
    let spec = promised(8.0);
    let mut promise = Promise::of(&spec, 1, 100).unwrap().unwrap();
    let first = promise.steps_of_a_round();
    promise.become_node(2, 900).unwrap();
    let other = Promise::of(&spec, 2, 900).unwrap().unwrap();
    assert_eq!(promise.steps_of_a_round(), other.steps_of_a_round());
    assert_eq!(promise.seeds, other.seeds);
    assert!(other.steps_of_a_round().noise < first.noise);
    promise.become_node(1, 100).unwrap();
    assert_eq!(promise.steps_of_a_round(), first);
}

/// dp-accounting's `calibrate_dp_mechanism` with its `RdpAccountant`, δ = 1e-5.
#[test]
fn noise_is_that_of_dp_accounting() {
    for (n_samples, batch, rounds, epochs, epsilon, expected) in [
        (405, 10, 15, 2, 8.0, 0.876_447),
        (405, 405, 30, 1, 4.0, 6.340_266),
        (3000, 64, 20, 1, 2.0, 1.625_493),
    ] {
        let mut spec = FederationSpec {
            rounds,
            ..FederationSpec::default()
        };
        spec.privacy.epsilon = Some(epsilon);
        (spec.training.batch_size, spec.training.local_epochs) = (batch, epochs);
        let plan = Terms::of(&spec).unwrap().plan(n_samples).unwrap();
        let ratio = plan.noise.get() / expected;
        // Ours leaves out no order, so it may be a little lower.
        assert!((ratio - 1.0).abs() < 1e-3, "{n_samples}: {ratio}");
        assert_eq!(plan.steps as usize, n_samples.div_ceil(batch));
        assert!((plan.expected - batch as f64).abs() < 1e-9);
    }
}

/// More samples of a batch than there are: every sample takes part in every step.
#[test]
fn a_node_of_few_samples_takes_all_of_them_in_every_step() {
    let mut spec = FederationSpec::default();
    spec.privacy.epsilon = Some(8.0);
    spec.training.batch_size = 64;
    let plan = Terms::of(&spec).unwrap().plan(9).unwrap();
    assert_eq!((plan.rate.get(), plan.steps, plan.expected), (1.0, 1, 9.0));
    let draws = Draws {
        plan,
        seed: [1; 32],
    };
    assert_eq!(draws.lots(1, 9), [(0..9).collect::<Vec<u32>>()]);
}
