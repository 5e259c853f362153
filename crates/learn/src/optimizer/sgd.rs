//! Stochastic gradient descent.
//!
//! ```text
//! g = gradient + weight_decay * w        w -= rate * g
//! ```

use burn::tensor::Tensor;

use super::{Optimizer, Rate};
use crate::model;

/// Remembers nothing.
#[derive(Debug)]
pub(super) struct Sgd;

impl Optimizer for Sgd {
    fn step(&mut self, values: Tensor<1>, mut gradient: Tensor<1>, rate: Rate) -> Tensor<1> {
        if rate.weight_decay > 0.0 {
            gradient = gradient + values.clone().mul_scalar(rate.weight_decay);
        }
        model::sgd_step(values, gradient, rate.learning)
    }
}
