//! The loss of a batch, which need not be read at once.
//!
//! On the CPU a loss is a number as soon as the step is made. A GPU works behind the host: to read a number of it waits
//! until everything before is done. There a loss stays on the device until it is asked for, and many are read at once.

use burn::tensor::Tensor;

use crate::device;
use crate::weights;

/// The loss of one batch.
#[derive(Debug, Clone)]
pub enum Loss {
    /// A number.
    Known(f64),
    /// One number on a device, off every tape.
    OnDevice(Box<Tensor<1>>),
}

impl Loss {
    /// Takes a loss off its tape.
    pub fn of(loss: &Tensor<1>) -> Self {
        if device::is_cpu(&loss.device()) {
            return Self::Known(f64::from(weights::values(loss)[0]));
        }
        Self::OnDevice(Box::new(loss.clone().without_autodiff()))
    }

    /// Returns the number; waits for the device if need be.
    pub fn value(&self) -> f64 {
        Self::values(std::slice::from_ref(self))[0]
    }

    /// Returns the numbers of several; waits for the device once at most.
    pub fn values(losses: &[Self]) -> Vec<f64> {
        let on_device = |loss: &Self| match loss {
            Self::Known(_) => None,
            Self::OnDevice(tensor) => Some(Tensor::clone(tensor)),
        };
        let tensors: Vec<_> = losses.iter().filter_map(on_device).collect();
        let mut read = weights::all_values(&tensors).into_iter().flatten();
        let value = |loss: &Self| match loss {
            Self::Known(value) => *value,
            Self::OnDevice(_) => f64::from(read.next().expect("every tensor was read")),
        };
        losses.iter().map(value).collect()
    }
}

impl From<f64> for Loss {
    fn from(value: f64) -> Self {
        Self::Known(value)
    }
}
