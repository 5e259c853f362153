//! Epochs that are trained ahead of the round that they belong to.
#![allow(clippy::unwrap_used)]

mod common;

use std::ops::ControlFlow;
use std::sync::Arc;

use common::federation::{learner, spec, update};
use fednode_core::{FederationSpec, ParamSet, Round};
use fednode_learn::{LearnError, Learner};

fn two_epochs(algorithm: &str, ahead_epochs: u32) -> FederationSpec {
    let mut spec = spec(algorithm, &[]);
    (spec.training.local_epochs, spec.training.ahead_epochs) = (2, ahead_epochs);
    spec
}

fn train_ahead(learner: &mut Learner, round: u32) {
    learner
        .train_ahead(Round(round), &mut |_| ControlFlow::Continue(()))
        .unwrap();
}

/// Returns the parameters with 0.25 added to each.
fn moved(params: &ParamSet) -> ParamSet {
    let mut moved = ParamSet::new();
    for (name, tensor) in params.iter() {
        moved
            .insert(
                name,
                tensor.shape(),
                tensor.values().iter().map(|value| value + 0.25).collect(),
            )
            .unwrap();
    }
    moved
}

fn largest_difference(a: &ParamSet, b: &ParamSet) -> f32 {
    a.values()
        .zip(b.values())
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max)
}

#[test]
fn without_an_exchange_it_makes_no_difference() {
    for algorithm in [
        "fedmoe-da",
        "fedavg",
        "local",
        "fedper",
        "lg-fedavg",
        "fedrod",
    ] {
        let mut plain = learner(&two_epochs(algorithm, 0), 0);
        let mut ahead = learner(&two_epochs(algorithm, 1), 0);
        update(&mut plain, 1);
        update(&mut ahead, 1);
        let published = ahead.state();
        train_ahead(&mut ahead, 2);
        assert_eq!(
            ahead.state(),
            published,
            "{algorithm}: the model stays what was published"
        );
        let (plain, plain_state) = (update(&mut plain, 2), plain.state());
        let (ahead, ahead_state) = (update(&mut ahead, 2), ahead.state());
        assert_ne!(plain_state, published);
        let difference = largest_difference(&plain_state, &ahead_state);
        assert!(difference < 1e-4, "{algorithm}: {difference}");
        assert_eq!(
            (plain.steps, plain.expert_share.len()),
            (ahead.steps, ahead.expert_share.len())
        );
        assert!(
            (plain.train_loss - ahead.train_loss).abs() < 1e-3,
            "{algorithm}"
        );
        let routed = |experts: &[(Arc<ParamSet>, u32)]| {
            experts.iter().map(|(_, routed)| routed).sum::<u32>()
        };
        assert_eq!(routed(&plain.experts), routed(&ahead.experts));
    }
}

/// With all epochs ahead the outcome is what the exchange brought plus what the node learned: m + (a − w).
#[test]
fn epochs_ahead_are_added_to_the_exchanged_model() {
    let mut node = learner(&two_epochs("fedper", 2), 0);
    let mut alone = learner(&two_epochs("fedper", 0), 0);
    let published = Arc::unwrap_or_clone(update(&mut node, 1).shared.unwrap());
    update(&mut alone, 1);
    let alone = update(&mut alone, 2);
    train_ahead(&mut node, 2);
    let mean = moved(&published);
    node.adopt(Some(mean.clone()), Vec::new()).unwrap();
    assert_eq!(
        node.shared().unwrap(),
        mean,
        "evaluated and saved as merged"
    );
    let update = update(&mut node, 2);
    let learned = alone.shared.unwrap();
    let expected = mean
        .values()
        .zip(learned.values())
        .zip(published.values())
        .map(|((m, a), w)| m + (a - w));
    let shared = update.shared.unwrap();
    let difference = shared
        .values()
        .zip(expected)
        .map(|(got, want)| (got - want).abs())
        .fold(0.0, f32::max);
    assert!(difference < 1e-5, "{difference}");
    assert_eq!(
        (update.steps, update.train_loss),
        (alone.steps, alone.train_loss)
    );
}

#[test]
fn epochs_ahead_of_another_round_or_state_are_dropped() {
    let mut plain = learner(&two_epochs("fedavg", 0), 0);
    update(&mut plain, 3);
    let mut other_round = learner(&two_epochs("fedavg", 1), 0);
    train_ahead(&mut other_round, 2);
    update(&mut other_round, 3);
    assert_eq!(other_round.state(), plain.state());
    let mut restored = learner(&two_epochs("fedavg", 1), 0);
    let state = restored.state();
    train_ahead(&mut restored, 3);
    restored.restore(&state).unwrap();
    update(&mut restored, 3);
    assert_eq!(restored.state(), plain.state());
}

#[test]
fn an_abandoned_rest_leaves_what_was_received() {
    let mut node = learner(&two_epochs("fedavg", 1), 0);
    train_ahead(&mut node, 1);
    let before = node.state();
    let abandoned = node.local_update(Round(1), &mut |_| ControlFlow::Break(()));
    assert!(matches!(abandoned, Err(LearnError::Abandoned)));
    assert_eq!(node.state(), before);
    let mut node = learner(&two_epochs("fedavg", 1), 0);
    let abandoned = node.train_ahead(Round(1), &mut |_| ControlFlow::Break(()));
    assert!(matches!(abandoned, Err(LearnError::Abandoned)));
    assert_eq!(node.state(), before);
}
