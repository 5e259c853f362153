//! A device that fails: the node goes on on the other one, and learns what it would have learned there from the start.
#![allow(clippy::unwrap_used)]

mod common;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use fednode_core::work::{Order, Outcome, Splits, Watch, WorkError, Worker};
use fednode_core::{ParamSet, Round};
use fednode_learn::fallback::{Fallback, MakeSpare};
use fednode_learn::{ComputeDevice, Learner};

/// What the device does in one of its orders.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    /// It is lost, and the tensor library panics, then and always after.
    Lost,
    /// It computes numbers that are none.
    Wrong,
}

/// A learner on a device that fails from this order on, counting from 1.
struct Faulty {
    learner: Learner,
    fault: Fault,
    from: u32,
    n_orders: u32,
}

impl Faulty {
    fn touch(&self) {
        let is_lost = self.fault == Fault::Lost && self.n_orders >= self.from;
        assert!(!is_lost, "device lost");
    }
}

impl Worker for Faulty {
    fn perform(&mut self, order: Order, watch: &mut Watch<'_>) -> Result<Outcome, WorkError> {
        self.n_orders += 1;
        self.touch();
        if self.n_orders >= self.from && matches!(order, Order::Train(_)) {
            return Err(WorkError::Training("loss NaN".into()));
        }
        self.learner.perform(order, watch)
    }
    fn initial_shared(&self) -> Option<ParamSet> {
        self.learner.initial_shared()
    }
    fn shared(&self) -> Option<ParamSet> {
        self.touch();
        self.learner.shared()
    }
    fn state(&self) -> ParamSet {
        self.touch();
        self.learner.state()
    }
    fn restore(&mut self, state: &ParamSet) -> Result<(), WorkError> {
        self.n_orders += 1;
        self.touch();
        Worker::restore(&mut self.learner, state)
    }
    fn take_secret(&mut self, secret: &[u8; 32]) {
        self.learner.take_secret(secret);
    }
}

fn learner(learning_rate: f64) -> Learner {
    let samples = common::small_fashion();
    let mut spec = common::spec("fedper", "mlp", &samples);
    spec.training.learning_rate = learning_rate;
    let device = ComputeDevice::cpu(1).unwrap();
    Learner::new(&spec, 0, common::split(&samples, 100), &device).unwrap()
}

/// Returns the worker, and how often its replacement was made.
fn fallback(learning_rate: f64, fault: Fault, from: u32) -> (Fallback, Arc<AtomicU32>) {
    let made = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&made);
    let spare: MakeSpare = Box::new(move || {
        counter.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(learner(learning_rate)))
    });
    let faulty = Faulty {
        learner: learner(learning_rate),
        fault,
        from,
        n_orders: 0,
    };
    (Fallback::new(Box::new(faulty), spare), made)
}

/// Trains three rounds, with evaluations between them; returns the losses.
fn play(worker: &mut dyn Worker) -> Result<Vec<f64>, WorkError> {
    let watch = &mut |_| ControlFlow::Continue(());
    let mut losses = Vec::new();
    for round in 1..=3 {
        let update = worker.perform(Order::Train(Round(round)), watch)?;
        losses.push(update.into_update()?.train_loss);
        let scores = worker.perform(Order::Evaluate(Splits::Test), watch)?;
        losses.push(scores.into_evaluations()?.test.unwrap().loss);
    }
    Ok(losses)
}

#[test]
fn a_device_that_fails_in_any_order_costs_the_node_nothing() {
    let mut whole = learner(0.05);
    let expected = play(&mut whole).unwrap();
    for fault in [Fault::Lost, Fault::Wrong] {
        for from in 1..=6 {
            let (mut worker, made) = fallback(0.05, fault, from);
            assert_eq!(play(&mut worker).unwrap(), expected, "{fault:?} {from}");
            assert_eq!(worker.state(), whole.state(), "{fault:?} {from}");
            assert_eq!(worker.shared(), whole.shared(), "{fault:?} {from}");
            // Nothing is trained in the last order, so a wrong device is not found out by it.
            let is_found = fault == Fault::Lost || from < 6;
            assert_eq!(made.load(Ordering::Relaxed), u32::from(is_found));
        }
    }
}

#[test]
fn training_that_fails_on_both_devices_is_no_fault_of_the_first() {
    let (mut worker, made) = fallback(1e30, Fault::Wrong, 1);
    let before = worker.state();
    for tries in 1..=2 {
        let error = play(&mut worker).unwrap_err();
        assert!(error.to_string().contains("diverged"), "{error}");
        assert_eq!(worker.state(), before);
        assert_eq!(
            made.load(Ordering::Relaxed),
            tries,
            "the first device stays"
        );
    }
}

#[test]
fn a_device_that_is_lost_between_orders_is_replaced_as_a_state_comes_in() {
    let (mut worker, made) = fallback(0.05, Fault::Lost, 1);
    let state = learner(0.05).state();
    worker.restore(&state).unwrap();
    assert_eq!(made.load(Ordering::Relaxed), 1);
    assert_eq!(
        play(&mut worker).unwrap(),
        play(&mut learner(0.05)).unwrap()
    );
}
