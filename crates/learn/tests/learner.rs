//! What a node's learner promises, on real images.
#![allow(clippy::unwrap_used)]

mod common;

use std::ops::ControlFlow;
use std::sync::Arc;

use fednode_core::work::{Progress, Update};
use fednode_core::{FederationSpec, HyperValue, ParamSet, Round, Slot};
use fednode_data::{DataSource, Pixels, Samples, ShardParams, Split, load_shard};
use fednode_learn::{ComputeDevice, LearnError, Learner, Subset};

fn device() -> ComputeDevice {
    ComputeDevice::cpu(1).unwrap()
}

fn learner(spec: &FederationSpec, samples: &Samples) -> Learner {
    Learner::new(spec, 3, common::split(samples, 200), &device()).unwrap()
}

fn update(learner: &mut Learner, round: u32) -> Update {
    learner
        .local_update(Round(round), &mut |_| ControlFlow::Continue(()))
        .unwrap()
}

#[test]
fn every_algorithm_and_model_learns_small_images() {
    let samples = common::small_fashion();
    for algorithm in ["fedmoe-da", "fedavg", "local"] {
        for (model, rate, goal) in [
            ("cnn", 0.1, 0.45),
            ("lenet5", 0.3, 0.25),
            ("mlp", 0.1, 0.45),
        ] {
            let mut spec = common::spec(algorithm, model, &samples);
            // A gate of K experts divides all gradients by about K at the start.
            spec.training.learning_rate = if algorithm == "fedmoe-da" {
                2.0 * rate
            } else {
                rate
            };
            spec.training.local_epochs = 6;
            let mut learner =
                Learner::new(&spec, 0, common::split(&samples, 500), &device()).unwrap();
            let before = learner.evaluate(Subset::Test);
            update(&mut learner, 1);
            let after = learner.evaluate(Subset::Test);
            assert!(
                after.score.accuracy > goal,
                "{algorithm} {model}: {}",
                after.score.accuracy
            );
            assert!(after.score.loss < before.score.loss, "{algorithm} {model}");
            assert_eq!((after.score.n_samples, after.classes.len()), (70, 10));
            let correct: u32 = after.classes.iter().map(|class| class.correct).sum();
            assert_eq!(after.score.accuracy, f64::from(correct) / 70.0);
        }
    }
}

#[test]
fn fedmoe_da_learns_the_digits_in_a_second() {
    let digits: DataSource = "digits".parse().unwrap();
    let params = ShardParams {
        nodes: 3,
        seed: 1,
        samples_per_node: 0,
        validation_share: 0.1,
    };
    let split = load_shard(&digits, "iid", &params, 0).unwrap().split;
    let mut spec = common::spec("fedmoe-da", "mlp", &split.train);
    (
        spec.training.local_epochs,
        spec.training.batch_size,
        spec.training.learning_rate,
    ) = (4, 10, 0.3);
    let mut learner = Learner::new(&spec, 0, Arc::new(split), &device()).unwrap();
    update(&mut learner, 1);
    let accuracy = learner.evaluate(Subset::Test).score.accuracy;
    assert!(accuracy > 0.8, "{accuracy}");
}

#[test]
fn a_local_update_reports_what_it_shares() {
    let samples = common::small_fashion();
    let spec = common::spec("fedmoe-da", "mlp", &samples);
    let mut learner = learner(&spec, &samples);
    let before: Vec<ParamSet> = learner.experts();
    let initial = learner.initial_shared().unwrap();
    let report = update(&mut learner, 1);

    assert_eq!(
        (report.n_samples, report.steps, report.experts.len()),
        (200, 20, 4)
    );
    let routed: u32 = report.experts.iter().map(|(_, routed)| routed).sum();
    assert_eq!(
        routed, 400,
        "every sample of both epochs went to one expert"
    );
    assert!((report.expert_share.iter().sum::<f64>() - 1.0).abs() < 1e-9);
    let proxies = report.proxies.clone().unwrap();
    assert_eq!((proxies.len(), proxies.dimension()), (4, 200));
    let state = learner.state();
    let gate = state.get("gate.weight").unwrap();
    assert_eq!(gate.shape(), [4, 200]);
    assert_eq!(proxies.iter().next().unwrap(), &gate.values()[..200]);

    let shared = ParamSet::clone(report.shared.as_ref().unwrap());
    assert_eq!(shared.layout(), learner.shared_layout().unwrap());
    assert_ne!(shared, initial);
    assert_eq!(initial, learner.initial_shared().unwrap());
    for ((expert, routed), before) in report.experts.iter().zip(&before) {
        assert_eq!(expert.layout(), before.layout());
        assert_eq!(
            *routed == 0,
            **expert == *before,
            "an expert changes exactly if samples were routed to it"
        );
    }
    assert!(
        before.windows(2).all(|pair| pair[0] == pair[1]),
        "all experts start alike"
    );
    assert!(update(&mut learner, 2).train_loss < report.train_loss);
    let share = learner.evaluate(Subset::Train).expert_share;
    assert!((share.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{share:?}");
}

/// The 2NN has 784·200, 200·200 and 200·10 multiply-adds for an image of 28x28; its first layer's input has no gradient.
#[test]
fn a_local_update_counts_its_multiply_adds() {
    let samples = common::fashion();
    let counted = |algorithm: &str| {
        let mut spec = common::spec(algorithm, "mlp", &samples);
        spec.training.local_epochs = 2;
        update(&mut learner(&spec, &samples), 1).multiply_adds
    };
    let of_an_image = 2 * 784 * 200 + 3 * (200 * 200 + 200 * 10);
    assert_eq!(
        counted("fedavg"),
        2 * 200 * of_an_image,
        "200 images, two epochs"
    );
    // The epoch of the head runs the frozen base, whose outputs are not kept for a single epoch.
    let of_head = 784 * 200 + 200 * 200 + 2 * 200 * 10;
    let of_base = 2 * 784 * 200 + 3 * 200 * 200 + 2 * 200 * 10;
    assert_eq!(
        counted("fedrep"),
        200 * (of_head + 2 * of_base),
        "one epoch of the head, two of the base"
    );
}

#[test]
fn an_expert_that_nobody_chooses_stays_as_it_is() {
    let samples = common::small_fashion();
    let mut spec = common::spec("fedmoe-da", "mlp", &samples);
    spec.model.experts = 2;
    let mut learner = learner(&spec, &samples);
    // Features are not negative, so this gate sends everything to expert 0.
    let mut state = ParamSet::new();
    for (name, tensor) in learner.state().into_tensors() {
        let values = match name.as_str() {
            "gate.weight" => [[0.01; 200], [-0.01; 200]].concat(),
            _ => tensor.values().to_vec(),
        };
        state.insert(name, tensor.shape(), values).unwrap();
    }
    learner.restore(&state).unwrap();
    let before = learner.experts();
    let report = update(&mut learner, 1);
    assert_eq!(report.expert_share, [1.0, 0.0]);
    assert_eq!(report.experts[1], (Arc::new(before[1].clone()), 0));
    assert_ne!(*report.experts[0].0, before[0]);
    let moved = learner.state();
    let proxy = |state: &ParamSet| state.get("gate.weight").unwrap().values()[200..].to_vec();
    assert_ne!(
        proxy(&moved),
        proxy(&state),
        "the gate of the unused expert still learns"
    );
}

#[test]
fn the_same_seeds_give_the_same_bits_and_other_seeds_do_not() {
    let samples = common::small_fashion();
    let spec = common::spec("fedmoe-da", "cnn", &samples);
    let data = common::split(&samples, 60);
    let run = |node_seed, threads, rounds: &[u32]| {
        let device = ComputeDevice::cpu(threads).unwrap();
        let mut learner = Learner::new(&spec, node_seed, Arc::clone(&data), &device).unwrap();
        rounds
            .iter()
            .for_each(|round| drop(update(&mut learner, *round)));
        learner.state().to_blob().0
    };
    let first = run(3, 1, &[1, 2]);
    assert_eq!(first, run(3, 1, &[1, 2]));
    assert_ne!(first, run(4, 1, &[1, 2]));
    assert_ne!(first, run(3, 1, &[1, 3]));
    assert_eq!(run(3, 1, &[]), run(4, 2, &[]), "all nodes start alike");
}

#[test]
fn an_abandoned_update_changes_nothing() {
    let samples = common::small_fashion();
    let mut learner = learner(&common::spec("fedmoe-da", "mlp", &samples), &samples);
    let before = learner.state();
    let mut seen: Vec<Progress> = Vec::new();
    let result = learner.local_update(Round(1), &mut |progress| {
        seen.push(progress);
        if seen.len() == 13 {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    assert!(matches!(result, Err(LearnError::Abandoned)));
    let last = seen.last().unwrap();
    assert_eq!(
        (last.epoch, last.epochs, last.batch, last.batches),
        (2, 2, 3, 10)
    );
    assert_eq!(learner.state(), before);
    let mut fresh = Learner::new(
        &common::spec("fedmoe-da", "mlp", &samples),
        3,
        common::split(&samples, 200),
        &device(),
    )
    .unwrap();
    assert_eq!(
        update(&mut learner, 1),
        update(&mut fresh, 1),
        "the repeated round is the round"
    );
}

#[test]
fn the_last_batch_is_used_however_small() {
    let samples = common::small_fashion();
    let spec = common::spec("local", "mlp", &samples);
    for (n_train, steps) in [(1, 2), (19, 2), (21, 4)] {
        let mut learner =
            Learner::new(&spec, 0, common::split(&samples, n_train), &device()).unwrap();
        assert_eq!(update(&mut learner, 1).steps, steps, "{n_train} samples");
    }
}

#[test]
fn a_learning_rate_that_is_too_high_is_named_and_nothing_is_kept() {
    let samples = common::small_fashion();
    let mut spec = common::spec("fedavg", "mlp", &samples);
    spec.training.learning_rate = 1e6;
    spec.training.local_epochs = 20;
    let mut learner = learner(&spec, &samples);
    let before = learner.state();
    let error = learner
        .local_update(Round(1), &mut |_| ControlFlow::Continue(()))
        .unwrap_err();
    assert!(matches!(error, LearnError::Diverged { .. }), "{error}");
    assert!(
        error
            .to_string()
            .contains("lower `training.learning_rate`, now 1000000"),
        "{error}"
    );
    assert_eq!(learner.state(), before);
}

/// A column in the unit of cents, another in years: nothing of it is published, and the user reads which column it is.
#[test]
fn an_unscaled_table_stops_its_own_node_and_names_the_column() {
    let names: Arc<[String]> = ["no", "yes"].map(String::from).into();
    let row = |sample: u32| [sample as f32 / 700.0, 1e6 * (1 + sample % 7) as f32, 0.5];
    let values = (0..700).flat_map(row).collect();
    let labels = (0..700).map(|sample| (sample % 2) as u16).collect();
    let samples = Samples::new([1, 1, 3], Pixels::Floats(values), labels, names).unwrap();
    let mut spec = common::spec("fedavg", "mlp", &samples);
    spec.fingerprints.columns = ["age", "income", "share"].map(String::from).to_vec();
    let mut learner = Learner::new(&spec, 0, common::split(&samples, 40), &device()).unwrap();
    let before = learner.state();
    let error = learner
        .local_update(Round(1), &mut |_| ControlFlow::Continue(()))
        .unwrap_err()
        .to_string();
    assert!(error.contains("`income` (up to 7.000e6)"), "{error}");
    assert!(!error.contains("`age`"), "{error}");
    assert_eq!(learner.state(), before);
}

#[test]
fn state_survives_a_file_bit_for_bit() {
    let samples = common::small_fashion();
    for algorithm in ["fedmoe-da", "fedavg"] {
        let spec = common::spec(algorithm, "cnn", &samples);
        let mut trained = learner(&spec, &samples);
        update(&mut trained, 1);
        let bytes = trained.state().to_bytes();
        let mut restored = learner(&spec, &samples);
        restored
            .restore(&ParamSet::decode(&bytes).unwrap())
            .unwrap();
        assert_eq!(restored.state().to_bytes(), bytes);
        assert_eq!(
            restored.evaluate(Subset::Test),
            trained.evaluate(Subset::Test)
        );
        assert_eq!(update(&mut restored, 2), update(&mut trained, 2));
    }
}

#[test]
fn adopts_all_or_nothing() {
    let samples = common::small_fashion();
    let spec = common::spec("fedmoe-da", "mlp", &samples);
    let (mut source, mut target) = (learner(&spec, &samples), learner(&spec, &samples));
    let report = update(&mut source, 1);
    let before = target.state();
    let expert = ParamSet::clone(&report.experts[0].0);
    let mut broken = expert.clone();
    broken.iter_mut().last().unwrap().1.values_mut()[3] = f32::NAN;

    let shared = || report.shared.as_deref().cloned();
    let error = target
        .adopt(shared(), vec![(Slot(1), expert.clone()), (Slot(2), broken)])
        .unwrap_err();
    assert!(
        matches!(&error, LearnError::NotFinite { part, tensor } if part == "expert 2" && tensor == "fc2.weight")
    );
    let error = target
        .adopt(shared(), vec![(Slot(4), expert.clone())])
        .unwrap_err();
    assert_eq!(error.to_string(), "this node has no expert 4");
    let error = target.adopt(Some(expert.clone()), Vec::new()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the shared part does not fit the model: tensor `fc1.bias` is missing"
    );
    assert_eq!(target.state(), before);

    target
        .adopt(shared(), vec![(Slot(1), expert.clone())])
        .unwrap();
    assert_eq!(target.shared(), shared());
    assert_eq!(target.experts()[1], expert);
    assert_ne!(target.experts()[0], expert);
    let mut alone = learner(&common::spec("local", "mlp", &samples), &samples);
    assert_eq!(
        (alone.shared(), alone.proxies(), alone.initial_shared()),
        (None, None, None)
    );
    assert_eq!(
        alone.adopt(shared(), Vec::new()).unwrap_err().to_string(),
        "this node has no shared part"
    );
}

#[test]
fn private_heads_stay_where_they_are_when_experts_are_mixed() {
    let samples = common::small_fashion();
    let mut spec = common::spec("fedmoe-da", "mlp", &samples);
    let whole = learner(&spec, &samples);
    spec.hyper
        .insert("head".into(), HyperValue::Text("private".into()));
    fednode_learn::algorithm::fill_exchange(&mut spec).unwrap();
    let (mut source, mut target) = (learner(&spec, &samples), learner(&spec, &samples));
    assert_eq!(
        target.state(),
        whole.state(),
        "a node starts with the same model, under the same names"
    );
    let names: Vec<String> = target.experts()[0].layout().into_keys().collect();
    assert_eq!(names, ["fc2.bias", "fc2.weight"], "what travels");

    let head = |learner: &Learner| {
        learner
            .state()
            .get("experts.1.fc.weight")
            .unwrap()
            .values()
            .to_vec()
    };
    let (untrained, mixed) = (
        head(&target),
        ParamSet::clone(&update(&mut source, 1).experts[1].0),
    );
    target.adopt(None, vec![(Slot(1), mixed.clone())]).unwrap();
    assert_eq!(target.experts()[1], mixed);
    assert_eq!(head(&target), untrained);
    update(&mut target, 1);
    assert!((0..4).any(|slot| {
        let name = format!("experts.{slot}.fc.weight");
        target.state().get(&name) != whole.state().get(&name)
    }));
}

#[test]
fn predicts_what_it_is_evaluated_on() {
    let samples = common::small_fashion();
    let data = common::split(&samples, 200);
    let mut learner = learner(&common::spec("fedmoe-da", "mlp", &samples), &samples);
    update(&mut learner, 1);
    let predictions = learner.predict(&data.test).unwrap();
    let correct = predictions
        .iter()
        .zip(&data.test.labels)
        .filter(|(p, label)| p.class == **label)
        .count();
    let evaluation = learner.evaluate(Subset::Test);
    assert_eq!(evaluation.score.accuracy, correct as f64 / 70.0);
    let likely = |p: &fednode_learn::Prediction| {
        let sum: f32 = p.probabilities.iter().sum();
        let best = p.probabilities.iter().copied().fold(0.0, f32::max);
        (sum - 1.0).abs() < 1e-5
            && p.probabilities[usize::from(p.class)] == best
            && p.expert.is_some()
    };
    assert!(predictions.iter().all(likely));
    assert!(matches!(
        learner.predict(&common::fashion()),
        Err(LearnError::SampleShape { .. })
    ));
    assert_eq!(learner.evaluate_on(&data.test).unwrap(), evaluation);
}

#[test]
fn switch_loss_spreads_the_load() {
    let samples = common::small_fashion();
    let mut largest = Vec::new();
    for weight in [0, 1] {
        let mut spec = common::spec("fedmoe-da", "mlp", &samples);
        spec.hyper
            .insert("load_balance".into(), HyperValue::Integer(weight));
        spec.training.local_epochs = 6;
        fednode_learn::algorithm::fill_exchange(&mut spec).unwrap();
        let mut learner = learner(&spec, &samples);
        update(&mut learner, 1);
        let share = learner.evaluate(Subset::Train).expert_share;
        largest.push(share.into_iter().fold(0.0, f64::max));
    }
    assert!(
        largest[1] < largest[0] && largest[1] < 0.5,
        "largest shares without and with the loss: {largest:?}"
    );
}

#[test]
fn refuses_what_cannot_work_when_it_is_built() {
    let samples = common::small_fashion();
    let data = common::split(&samples, 10);
    let spec = common::spec("fedmoe-da", "mlp", &samples);
    let error = |spec: &FederationSpec, data: &Arc<Split>| {
        Learner::new(spec, 0, Arc::clone(data), &device())
            .unwrap_err()
            .to_string()
    };
    let mut changed = spec.clone();
    changed.algorithm = "fedmo-da".into();
    assert_eq!(
        error(&changed, &data),
        "unknown algorithm `fedmo-da`: did you mean `fedmoe-da`?"
    );
    changed = spec.clone();
    changed.model.name = "lenet".into();
    assert_eq!(
        error(&changed, &data),
        "unknown model `lenet`: did you mean `lenet5`?"
    );
    changed = spec.clone();
    changed.fingerprints.classes = 9;
    assert_eq!(
        error(&changed, &data),
        "the data has 10 classes, but `fingerprints.classes` is 9"
    );
    changed = spec.clone();
    changed.exchange.averaging = None;
    assert!(error(&changed, &data).starts_with("`exchange.averaging.rule` is absent"));
    changed = spec.clone();
    changed.fingerprints.class_names = (0..10).rev().map(|class| class.to_string()).collect();
    let named = error(&changed, &data);
    assert!(
        named.starts_with("class 0 is `0` in the data and `9` in the federation: name all classes"),
        "{named}"
    );
    changed.fingerprints.class_names.reverse();
    Learner::new(&changed, 0, Arc::clone(&data), &device()).unwrap();
    let shape =
        "samples are [1, 28, 28] (channels, height, width), but `fingerprints.input` is [1, 7, 7]";
    assert_eq!(error(&spec, &common::split(&common::fashion(), 10)), shape);
    assert!(error(&spec, &common::split(&samples, 0)).starts_with("the training set is empty"));
}
