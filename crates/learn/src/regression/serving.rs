//! The line beside the node's own model: on the device and in an exported graph.

use burn::tensor::{Device, Tensor};
use fednode_mix::ridge::Line;
use fednode_onnx::{Graph, Value};

use crate::algorithm::Output;
use crate::class_statistics::upload;
use crate::model::affine;
use crate::weights;

/// The line on the device, times what it counts for.
pub(super) struct Served {
    /// `[D, 1]`.
    weights: Tensor<2>,
    /// `[1]`.
    offset: Tensor<1>,
    /// What the own model counts for, 0 to 1.
    rest: f64,
}

impl Served {
    /// Puts a line on the device, which counts for so much beside the own model.
    pub(super) fn new(line: &Line, weight: f64, device: &Device) -> Self {
        let weighed: Vec<f64> = line.weights.iter().map(|value| weight * value).collect();
        Self {
            weights: upload(&weighed, device).reshape([weighed.len(), 1]),
            offset: upload(&[weight * line.offset], device),
            rest: 1.0 - weight,
        }
    }

    /// Mixes what the own model says with the line at the same samples.
    pub(super) fn mixed(&self, own: Output, inputs: Tensor<2>) -> Output {
        let line = affine(inputs, self.weights.clone(), Some(self.offset.clone()));
        Output {
            logits: line + own.logits.mul_scalar(self.rest),
            ..own
        }
    }

    /// Writes into a graph what [`Self::mixed`] computes.
    pub(super) fn emit(&self, graph: &mut Graph, own: Value, inputs: Value) -> Value {
        let [width, _] = self.weights.dims();
        let matrix = graph.floats("ridge.weights", weights::values(&self.weights), &[width, 1]);
        let offset = graph.floats("ridge.offset", weights::values(&self.offset), &[1]);
        let line = graph.affine(inputs, matrix, Some(offset));
        let rest = graph.mul_number(own, self.rest);
        graph.add(line, rest)
    }
}
