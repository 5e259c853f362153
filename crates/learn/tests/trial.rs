//! A device is tried at a node's own model: what learns the same passes, what learns something else does not.
#![allow(clippy::unwrap_used)]

mod common;

use fednode_core::FederationSpec;
use fednode_learn::ComputeDevice;
use fednode_learn::trial::{self, TrialError};

fn spec(learning_rate: f64) -> FederationSpec {
    let mut spec = common::spec("fedmoe-da", "mlp", &common::small_fashion());
    (spec.training.learning_rate, spec.rounds) = (learning_rate, 1);
    spec
}

#[test]
fn two_devices_that_learn_the_same_are_told_apart_by_their_speed_alone() {
    let (spec, split) = (spec(0.05), common::split(&common::small_fashion(), 100));
    let devices = [1, 1].map(|threads| ComputeDevice::cpu(threads).unwrap());
    trial::check(&spec, &split, &devices[0], &devices[1]).unwrap();
    let rates = trial::race(&spec, &split, &devices[0], &devices[1]).unwrap();
    // One and the same device, so that neither can be ten times as fast.
    assert!(rates.gpu > 0.1 * rates.cpu && rates.cpu > 0.1 * rates.gpu);
    assert_eq!(rates.prefers_gpu(), rates.gpu > rates.cpu);
}

#[test]
fn a_model_that_no_device_can_train_is_no_fault_of_the_gpu() {
    let (spec, split) = (spec(1e30), common::split(&common::small_fashion(), 100));
    let device = ComputeDevice::cpu(1).unwrap();
    let error = trial::check(&spec, &split, &device, &device).unwrap_err();
    assert!(matches!(error, TrialError::Learn(_)), "{error}");
}
