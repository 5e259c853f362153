//! Experts of other nodes that an algorithm judges itself, and the samples that it judges them by.

use burn::tensor::{Device, Tensor};
use fednode_core::ExpertId;
use fednode_data::Samples;

use super::Output;
use crate::evaluate;
use crate::weights::Weights;

/// An expert of another node, as that node trained it.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Whose it is.
    pub expert: ExpertId,
    /// Its numbers, for the net of the own expert of that slot.
    pub weights: Weights,
}

/// Samples of the node that say what a model is worth.
#[derive(Debug)]
pub struct HeldOut<'a> {
    samples: &'a Samples,
    classes: usize,
    device: &'a Device,
}

impl<'a> HeldOut<'a> {
    pub(crate) const fn new(samples: &'a Samples, classes: usize, device: &'a Device) -> Self {
        Self {
            samples,
            classes,
            device,
        }
    }

    /// Returns the mean cross-entropy of a model that makes logits, `[batch, classes]`, of inputs.
    pub fn loss(&self, model: &(dyn Fn(Tensor<2>) -> Output + Sync)) -> f64 {
        evaluate::evaluate(model, self.samples, self.classes, self.device)
            .score
            .loss
    }
}
