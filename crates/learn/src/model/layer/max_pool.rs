//! The largest of every window of a map.

use burn::tensor::Tensor;
use burn::tensor::module::max_pool2d;
use burn::tensor::ops::MaxPoolOptions;
use fednode_onnx::{Graph, Value, Window};

use super::{Layer, Run};

/// Max-pooling, by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaxPool {
    /// Channels, height and width of its input.
    pub input: [usize; 3],
    /// The windows; what fills no window at the right and at the bottom is left out.
    pub window: Window,
}

impl MaxPool {
    /// Returns channels, height and width of the output.
    pub fn output(&self) -> [usize; 3] {
        let [channels, height, width] = self.input;
        [
            channels,
            self.window.places(height),
            self.window.places(width),
        ]
    }
}

impl Layer for MaxPool {
    fn n_inputs(&self) -> usize {
        self.input.iter().product()
    }

    fn maps(&self) -> Option<[usize; 3]> {
        Some(self.output())
    }

    fn forward(&self, _run: &mut Run<'_>, input: Tensor<2>) -> Tensor<2> {
        let ([channels, height, width], n_samples) = (self.input, input.dims()[0]);
        let Window {
            side,
            stride,
            padding,
        } = self.window;
        let options = MaxPoolOptions::new([side; 2])
            .with_stride([stride; 2])
            .with_padding([padding; 2]);
        max_pool2d(input.reshape([n_samples, channels, height, width]), options)
            .reshape([n_samples, self.n_outputs()])
    }

    fn emit(&self, _run: &mut Run<'_>, graph: &mut Graph, input: Value) -> Value {
        let maps = graph.reshape(input, &self.input);
        let pooled = graph.max_pool_by(maps, self.window);
        graph.flat(pooled)
    }
}
