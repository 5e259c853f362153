//! AdamW: Loshchilov and Hutter, "Decoupled Weight Decay Regularization", ICLR 2019, as in PyTorch's `AdamW`.
//!
//! ```text
//! w *= 1 - rate * weight_decay        then Adam's step on the gradient alone
//! ```

use burn::tensor::Tensor;

use super::adam::Moments;
use super::{Optimizer, Rate};
use crate::model;

/// Remembers what Adam does.
#[derive(Debug, Default)]
pub(super) struct AdamW(Moments);

impl Optimizer for AdamW {
    fn step(&mut self, values: Tensor<1>, gradient: Tensor<1>, rate: Rate) -> Tensor<1> {
        let direction = self.0.direction(gradient);
        let decayed = values.mul_scalar(1.0 - rate.learning * rate.weight_decay);
        model::sgd_step(decayed, direction, rate.learning)
    }
}
