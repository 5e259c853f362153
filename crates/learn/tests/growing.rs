//! Samples that come while a node trains: from the next round on it is as if it had been started again with all of them.
#![allow(clippy::unwrap_used)]

mod common;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use fednode_core::work::{Order, Update, Worker};
use fednode_core::{HyperValue, Round};
use fednode_learn::growing::{Growing, Renew, Renewed};
use fednode_learn::{ComputeDevice, Learner};

fn learner(n_train: u32, model: &str) -> Learner {
    let samples = common::small_fashion();
    let mut spec = common::spec("fedavg", model, &samples);
    (spec.training.local_epochs, spec.training.ahead_epochs) = (2, 1);
    let device = ComputeDevice::cpu(1).unwrap();
    Learner::new(&spec, 0, common::split(&samples, n_train), &device).unwrap()
}

fn train(worker: &mut dyn Worker, round: u32) -> Update {
    let watch = &mut |_| ControlFlow::Continue(());
    let outcome = worker.perform(Order::Train(Round(round)), watch);
    outcome.unwrap().into_update().unwrap()
}

fn train_ahead(worker: &mut dyn Worker, round: u32) {
    let watch = &mut |_| ControlFlow::Continue(());
    let ahead = Order::TrainAhead(Round(round));
    worker.perform(ahead, watch).unwrap();
}

/// A node with 100 samples, to which a worker of this model with 200 is offered once a flag is set; and how often one was taken.
fn growing(model: &'static str) -> (Growing, Arc<AtomicBool>, Arc<AtomicU32>) {
    let (has_come, n_taken) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU32::new(0)),
    );
    let (flag, counter) = (Arc::clone(&has_come), Arc::clone(&n_taken));
    let renew: Renew = Box::new(move || {
        flag.swap(false, Ordering::Relaxed).then(|| {
            let counter = Arc::clone(&counter);
            Renewed {
                go_on: Box::new(move |state| {
                    let mut learner = learner(200, model);
                    Worker::restore(&mut learner, state)?;
                    Ok(Box::new(learner))
                }),
                announce: Box::new(move || {
                    counter.fetch_add(1, Ordering::Relaxed);
                }),
            }
        })
    });
    let worker = Box::new(learner(100, "mlp"));
    (Growing::new(worker, renew), has_come, n_taken)
}

#[test]
fn from_the_next_round_on_a_node_is_as_if_it_had_been_started_again_with_all_samples() {
    let (mut node, has_come, n_taken) = growing("mlp");
    let mut alike = learner(100, "mlp");
    assert_eq!(train(&mut node, 1), train(&mut alike, 1));
    has_come.store(true, Ordering::Relaxed);
    let mut again = learner(200, "mlp");
    Worker::restore(&mut again, &alike.state()).unwrap();
    let update = train(&mut node, 2);
    assert_eq!(update.n_samples, 200);
    assert_eq!(update, train(&mut again, 2));
    assert_eq!(node.state(), again.state());
    assert_eq!(n_taken.load(Ordering::Relaxed), 1);
}

#[test]
fn a_round_that_was_begun_ahead_ends_with_the_samples_that_it_began_with() {
    let (mut node, has_come, n_taken) = growing("mlp");
    train(&mut node, 1);
    train_ahead(&mut node, 2);
    has_come.store(true, Ordering::Relaxed);
    assert_eq!(train(&mut node, 2).n_samples, 100);
    train_ahead(&mut node, 3);
    assert_eq!(n_taken.load(Ordering::Relaxed), 1);
    assert_eq!(train(&mut node, 3).n_samples, 200);
}

#[test]
fn a_node_keeps_its_samples_if_it_cannot_go_on_with_others() {
    let (mut node, has_come, n_taken) = growing("linear");
    train(&mut node, 1);
    has_come.store(true, Ordering::Relaxed);
    assert_eq!(train(&mut node, 2).n_samples, 100);
    assert_eq!(n_taken.load(Ordering::Relaxed), 0);
}

/// The difference of two sums is the sum of the samples between, and of few samples it would give them away.
#[test]
fn published_statistics_hold_new_samples_once_they_are_more_than_their_numbers() {
    let samples = common::small_fashion();
    let mut spec = common::spec("fedmoe-da", "mlp", &samples);
    let profile = HyperValue::Text("agreement".into());
    spec.hyper.insert("profile".into(), profile);
    fednode_learn::algorithm::fill_exchange(&mut spec).unwrap();
    let device = ComputeDevice::cpu(1).unwrap();
    let learner =
        |n_train: u32| Learner::new(&spec, 0, common::split(&samples, n_train), &device).unwrap();
    let width = learner(200).published_width().unwrap() as u32;
    let mut before = learner(100);
    let published = train(&mut before, 1).experts;
    let state = before.state();
    let of_more = train(&mut learner(101 + width), 1).experts;
    assert_ne!(published, of_more);
    let published_in = |round: u32, n_train: u32| {
        let mut after = learner(n_train);
        Worker::restore(&mut after, &state).unwrap();
        let update = train(&mut after, round);
        assert_eq!(update.n_samples, n_train, "the model is trained on all");
        update.experts
    };
    assert_eq!(published_in(6, 100 + width), published, "too few");
    assert_eq!(published_in(6, 101 + width), of_more);
    assert_eq!(
        published_in(2, 101 + width),
        published,
        "no proxies are published"
    );
    // The second moment has a number for each pair of them.
    let width = width as usize;
    let mut tensors = of_more[0].0.iter().map(|(_, tensor)| tensor.values().len());
    assert!(tensors.any(|length| length == width * (width + 1) / 2));
}
