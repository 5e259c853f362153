//! Stochastic gradient descent with momentum, as in PyTorch's `SGD`.
//!
//! ```text
//! g = gradient + weight_decay * w
//! v = momentum * v + g        w -= rate * v        v starts as the first g
//! ```

use burn::tensor::Tensor;

use super::{Optimizer, Rate};
use crate::model;

/// Remembers the velocity.
#[derive(Debug)]
pub(super) struct Momentum {
    momentum: f64,
    velocity: Option<Tensor<1>>,
}

impl Momentum {
    pub(super) const fn new(momentum: f64) -> Self {
        Self {
            momentum,
            velocity: None,
        }
    }
}

impl Optimizer for Momentum {
    fn step(&mut self, values: Tensor<1>, gradient: Tensor<1>, rate: Rate) -> Tensor<1> {
        let gradient = gradient + values.clone().mul_scalar(rate.weight_decay);
        let velocity = match self.velocity.take() {
            Some(velocity) => velocity.mul_scalar(self.momentum) + gradient,
            None => gradient,
        };
        self.velocity = Some(velocity.clone());
        model::sgd_step(values, velocity, rate.learning)
    }
}
