//! The mean of each map over all places.

use burn::tensor::Tensor;
use fednode_onnx::{Graph, Reduction, Value};

use super::{Layer, Run};

/// Averages every map to one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AveragePool {
    /// Channels, height and width of what it takes.
    pub maps: [usize; 3],
}

impl Layer for AveragePool {
    fn n_inputs(&self) -> usize {
        self.maps.iter().product()
    }

    fn n_outputs(&self) -> usize {
        self.maps[0]
    }

    fn forward(&self, _run: &mut Run<'_>, input: Tensor<2>) -> Tensor<2> {
        let ([channels, height, width], n_samples) = (self.maps, input.dims()[0]);
        let maps: Tensor<3> = input.reshape([n_samples, channels, height * width]);
        maps.mean_dim(2).reshape([n_samples, channels])
    }

    fn emit(&self, _run: &mut Run<'_>, graph: &mut Graph, input: Value) -> Value {
        let [channels, height, width] = self.maps;
        let maps = graph.reshape(input, &[channels, height * width]);
        let means = graph.reduce(Reduction::Mean, maps, 2);
        graph.flat(means)
    }
}
