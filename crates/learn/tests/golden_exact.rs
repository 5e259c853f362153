//! The reference CNN in double precision against the reference run: logits, 64 losses of gradient descent, logits after.
//!
//! The same code as in production, with the tensor library's default element set to `f64`, which is one setting per
//! process: hence a test program of its own.
#![allow(clippy::unwrap_used)]

mod common;

use burn::tensor::{Device, FloatDType};
use common::golden;

#[test]
fn double_precision_agrees_with_the_reference_run() {
    Device::flex().configure(FloatDType::F64).unwrap();
    let run = golden::run();
    assert!(
        run.logits_before < 1e-6,
        "logits before differ by {}",
        run.logits_before
    );
    for (step, (got, expected)) in run.losses.iter().enumerate() {
        assert!(
            (got - expected).abs() < 1e-5 * expected,
            "step {step}: loss {got}, expected {expected}"
        );
    }
    assert_eq!(run.losses.len(), 64);
    assert!(
        run.logits_after < 1e-5,
        "logits after differ by {}",
        run.logits_after
    );
}
