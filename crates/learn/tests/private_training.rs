//! Training under a promise of differential privacy (`privacy.epsilon`).

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeSet;

use common::federation::{self as fed, combine, data, learner, update};
use fednode_core::work::Worker;
use fednode_core::{Augmentation, FederationSpec, HyperValue};
use fednode_learn::{Learner, NoiseKey, Subset, algorithm};

fn promised(algorithm: &str, hyper: &[(&str, HyperValue)], epsilon: f64) -> FederationSpec {
    let mut spec = fed::spec(algorithm, hyper);
    spec.rounds = 4;
    spec.privacy.epsilon = Some(epsilon);
    algorithm::fill_exchange(&mut spec).unwrap();
    spec
}

fn node(spec: &FederationSpec, index: usize, secret: &[u8]) -> Learner {
    let mut learner = learner(spec, index);
    learner.draw_noise_from(NoiseKey::of_secret(secret));
    learner
}

#[test]
fn a_round_that_is_repeated_is_the_same_and_one_of_another_secret_is_not() {
    let spec = promised("fedper", &[], 8.0);
    let mut first = node(&spec, 0, b"ours");
    let trained = update(&mut first, 1);
    assert_eq!(
        trained,
        update(&mut node(&spec, 0, b"ours"), 1),
        "after a restart"
    );
    let state = first.state();
    let next = update(&mut first, 2);
    assert_ne!(next.shared, trained.shared);
    let mut restored = node(&spec, 0, b"ours");
    restored.restore(&state).unwrap();
    assert_eq!(update(&mut restored, 2), next, "from a checkpoint");
    let other = update(&mut node(&spec, 0, b"theirs"), 1);
    assert_ne!(other.shared, trained.shared);
}

/// Counts would tell how many samples a node has, and of what kind.
#[test]
fn a_node_says_nothing_of_its_samples_but_what_training_says() {
    let paper = [("profile", HyperValue::Text("paper".into()))];
    let spec = promised("fedmoe-da", &paper, 8.0);
    let mut node = node(&spec, 0, b"ours");
    let n_experts = spec.model.experts;
    let update = update(&mut node, 1);
    let routed: BTreeSet<u32> = update.experts.iter().map(|(_, routed)| *routed).collect();
    assert_eq!(routed, BTreeSet::from([1]));
    assert_eq!(update.n_samples as usize, n_experts);
    assert_eq!(update.expert_share, vec![1.0 / n_experts as f64; n_experts]);
    assert!(update.proxies.is_some() && update.shared.is_some());
}

#[test]
fn the_cost_of_a_round_is_known_before_it_is_trained() {
    let spec = promised("fedavg", &[], 8.0);
    let steps = node(&spec, 0, b"ours").noisy_steps().unwrap();
    let n_samples = data(0).train.len();
    assert_eq!(steps.steps as usize, n_samples.div_ceil(10));
    assert!((steps.rate - 10.0 / n_samples as f64).abs() < 1e-12);
    assert!(steps.noise > 0.5, "{steps:?}");
    let open = fed::spec("fedavg", &[]);
    assert_eq!(learner(&open, 0).noisy_steps(), None);
}

/// Members could send parameters by which the loss of one sample alone is large. Whether it took part must not show.
#[test]
fn no_loss_ends_a_node() {
    let mut spec = promised("fedavg", &[], 8.0);
    spec.training.augmentation = Augmentation::Crop;
    let mut ours = node(&spec, 0, b"ours");
    let trained = update(&mut ours, 1);
    assert_eq!(trained, update(&mut node(&spec, 0, b"ours"), 1));
    // Parameters of which most samples have losses without bounds, as members could send.
    let mut sent = (*trained.shared.unwrap()).clone();
    for (_, tensor) in sent.iter_mut() {
        tensor
            .values_mut()
            .iter_mut()
            .for_each(|value| *value *= 1e6);
    }
    ours.adopt(Some(&sent), Vec::new()).unwrap();
    let mut watch = |_| std::ops::ControlFlow::Continue(());
    let refused = ours.local_update(fednode_core::Round(2), &mut watch);
    // The update is refused for its size, which everybody knows, and not for a loss.
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("have grown to"), "{refused}");
}

/// An embedding that nobody trains is the same on all nodes, or experts would not fit.
#[test]
fn what_is_not_trained_has_no_noise() {
    let hyper = [("profile", "paper"), ("embedding", "frozen")];
    let hyper = hyper.map(|(name, value)| (name, HyperValue::Text(value.into())));
    let spec = promised("fedmoe-da", &hyper, 8.0);
    let mut node = node(&spec, 0, b"ours");
    let before = node.state();
    update(&mut node, 1);
    let after = node.state();
    let embedding = |state: &fednode_core::ParamSet| state.get("fc1.weight").unwrap().clone();
    assert_eq!(embedding(&before), embedding(&after));
    let gate = |state: &fednode_core::ParamSet| state.get("gate.weight").unwrap().clone();
    assert_ne!(gate(&before), gate(&after));
}

/// With little noise two nodes learn the digits together, as they do without a promise.
#[test]
fn nodes_learn_under_a_promise() {
    let mut spec = promised("fedavg", &[], 100.0);
    (spec.training.batch_size, spec.training.learning_rate) = (60, 0.5);
    spec.rounds = 12;
    let mut nodes = [0, 1].map(|index| node(&spec, index, &[index as u8]));
    let mut losses = Vec::new();
    for round in 1..=12 {
        let updates = nodes.each_mut().map(|node| update(node, round));
        losses.push(updates[0].train_loss);
        let mean = combine(&spec, &updates).unwrap();
        for node in &mut nodes {
            node.adopt(Some(&mean), Vec::new()).unwrap();
        }
    }
    let accuracy = nodes[0].evaluate(Subset::Test).score.accuracy;
    assert!(accuracy > 0.6, "{accuracy}");
    assert!(losses[11] < losses[0], "{losses:?}");
}
