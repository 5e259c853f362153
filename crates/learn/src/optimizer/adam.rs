//! Adam: Kingma and Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015, as in PyTorch's `Adam`.
//!
//! ```text
//! g = gradient + weight_decay * w
//! m = 0.9 m + 0.1 g        s = 0.999 s + 0.001 g^2
//! w -= rate * m / (1 - 0.9^t) / (sqrt(s / (1 - 0.999^t)) + 1e-8)        t: the step, from 1
//! ```

use burn::tensor::Tensor;

use super::{Optimizer, Rate};
use crate::model;

const FIRST_DECAY: f64 = 0.9;
const SECOND_DECAY: f64 = 0.999;
const EPSILON: f64 = 1e-8;

/// Remembers the running means of the gradient and of its square.
#[derive(Debug, Default)]
pub(super) struct Adam(Moments);

impl Optimizer for Adam {
    fn step(&mut self, values: Tensor<1>, gradient: Tensor<1>, rate: Rate) -> Tensor<1> {
        let gradient = gradient + values.clone().mul_scalar(rate.weight_decay);
        let direction = self.0.direction(gradient);
        model::sgd_step(values, direction, rate.learning)
    }
}

/// First and second moment of a parameter's gradients.
#[derive(Debug, Default)]
pub(super) struct Moments {
    steps: i32,
    first: Option<Tensor<1>>,
    second: Option<Tensor<1>>,
}

impl Moments {
    /// Takes a gradient in; returns the direction of the step.
    pub(super) fn direction(&mut self, gradient: Tensor<1>) -> Tensor<1> {
        self.steps += 1;
        let square = gradient.clone() * gradient.clone();
        let mean = decayed(&mut self.first, gradient, FIRST_DECAY)
            .div_scalar(1.0 - FIRST_DECAY.powi(self.steps));
        let variance = decayed(&mut self.second, square, SECOND_DECAY)
            .div_scalar(1.0 - SECOND_DECAY.powi(self.steps));
        mean / variance.sqrt().add_scalar(EPSILON)
    }
}

/// Takes a value into a running mean that starts at zero.
fn decayed(mean: &mut Option<Tensor<1>>, value: Tensor<1>, decay: f64) -> Tensor<1> {
    let part = value.mul_scalar(1.0 - decay);
    let renewed = match mean.take() {
        Some(mean) => mean.mul_scalar(decay) + part,
        None => part,
    };
    *mean = Some(renewed.clone());
    renewed
}
