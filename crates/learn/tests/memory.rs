//! The memory of a node on the CPU path: 500 samples, four experts of the reference CNN, under 200 MB.
//!
//! A test program of its own, because the peak is the process's.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod common;

use std::ops::ControlFlow;

use fednode_core::Round;
use fednode_learn::{ComputeDevice, Learner, Subset};

/// Returns the largest resident size so far, in kilobytes.
fn peak_kilobytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM:"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_node_stays_small() {
    let samples = common::fashion();
    let mut spec = common::spec("fedmoe-da", "cnn", &samples);
    spec.training.local_epochs = 1;
    let device = ComputeDevice::cpu(2).unwrap();
    let mut learner = Learner::new(&spec, 0, common::split(&samples, 500), &device).unwrap();
    let report = learner
        .local_update(Round(1), &mut |_| ControlFlow::Continue(()))
        .unwrap();
    learner.adopt(report.shared.clone(), Vec::new()).unwrap();
    assert_eq!(learner.evaluate(Subset::Test).score.n_samples, 70);
    let checkpoint = learner.state().to_bytes();
    assert!(checkpoint.len() > 9_000_000, "four experts of 2.3 MB");
    let peak = peak_kilobytes() / 1024;
    assert!(
        peak < 150,
        "peak of {peak} MB leaves too little for the rest of a node"
    );
}
