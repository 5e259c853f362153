//! How a head has moved since the common start: the proxy by which a node tells whose heads are like its own.
//!
//! ```text
//! v = theta_head - theta_head^0         theta^0: the start, the same on all nodes
//! ```

use burn::tensor::Tensor;

use super::Setup;
use super::part::{Part, Role};
use crate::model::{Initial, Net};
use crate::weights::Weights;

/// The start of a head.
#[derive(Debug)]
pub(super) struct Movement {
    start: Vec<Tensor<1>>,
}

impl Movement {
    /// Takes the numbers of a head at the start; returns the part that is gossiped, too.
    pub(super) fn from(start: Vec<Tensor<1>>, setup: &Setup<'_>) -> (Self, Part) {
        let numbers = start.iter().map(|tensor| tensor.dims()[0]).sum();
        let net = Net::arrays(&[("head_movement", &[1, numbers], Initial::Zeros)]);
        let part = Part::new(Role::Gate, net, setup.seed, 0, setup.device);
        (Self { start }, part)
    }

    /// Returns how far the head has come, for the part.
    pub(super) fn to(&self, now: Vec<Tensor<1>>) -> Weights {
        let moved = now.into_iter().zip(&self.start);
        let moved = moved.map(|(now, start)| now - start.clone()).collect();
        Weights::new(vec![Tensor::cat(moved, 0)])
    }
}
