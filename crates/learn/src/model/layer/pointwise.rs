//! An activation by itself, where no layer before it can take it along.

use burn::tensor::Tensor;
use fednode_onnx::{Graph, Value};

use super::{Activation, Layer, Run};

/// An activation of every feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pointwise {
    /// Channels, height and width of what it takes and makes.
    pub maps: [usize; 3],
    /// What it computes.
    pub activation: Activation,
}

impl Layer for Pointwise {
    fn n_inputs(&self) -> usize {
        self.maps.iter().product()
    }

    fn maps(&self) -> Option<[usize; 3]> {
        Some(self.maps)
    }

    fn forward(&self, _run: &mut Run<'_>, input: Tensor<2>) -> Tensor<2> {
        self.activation.apply(input)
    }

    fn emit(&self, _run: &mut Run<'_>, graph: &mut Graph, input: Value) -> Value {
        self.activation.emit(graph, input)
    }
}
