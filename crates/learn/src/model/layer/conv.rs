//! A convolution with bias, followed by max-pooling and ReLU: one fused operation on the CPU.

use burn::tensor::Tensor;
use burn::tensor::activation::relu;
use burn::tensor::module::{conv2d, max_pool2d};
use burn::tensor::ops::{ConvOptions, MaxPoolOptions};
use fednode_onnx::{Graph, Value};

use super::{Initial, Layer, Parameter, Run};
use crate::model::gpu::{self, Geometry};
use crate::model::{cpu, multiply_adds};

/// A convolution with bias, followed by max-pooling and ReLU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conv {
    /// Its name in parameter files.
    pub name: &'static str,
    /// Channels, height and width of its input.
    pub input: [usize; 3],
    /// Maps it makes.
    pub filters: usize,
    /// Side of its square kernel.
    pub kernel: usize,
    /// Zeros added at top and bottom, left and right.
    pub padding: [usize; 2],
    /// Side and stride of the pooling window.
    pub pool: usize,
}

impl Conv {
    /// Returns channels, height and width of the output.
    pub fn output(&self) -> [usize; 3] {
        let [height, width] = self.convolved();
        [self.filters, height / self.pool, width / self.pool]
    }

    /// Returns height and width before the pooling.
    fn convolved(&self) -> [usize; 2] {
        let [_, height, width] = self.input;
        let convolved =
            |side: usize, padding: usize| (side + 2 * padding + 1).saturating_sub(self.kernel);
        [
            convolved(height, self.padding[0]),
            convolved(width, self.padding[1]),
        ]
    }

    /// Composes the layer of the tensor library's operations.
    pub(in crate::model) fn compose(
        &self,
        input: Tensor<2>,
        weight: Tensor<1>,
        bias: Tensor<1>,
    ) -> Tensor<2> {
        let [channels, height, width] = self.input;
        let n_samples = input.dims()[0];
        let weight = weight.reshape([self.filters, channels, self.kernel, self.kernel]);
        let maps = input.reshape([n_samples, channels, height, width]);
        let convolved = conv2d(
            maps,
            weight,
            Some(bias),
            ConvOptions::new([1, 1], self.padding, [1, 1], 1),
        );
        self.pooled(convolved)
    }

    /// Returns the convolution without what follows.
    pub(in crate::model) fn geometry(&self) -> Geometry {
        let [height, width] = self.convolved();
        Geometry {
            input: self.input,
            output: [self.filters, height, width],
            kernel: self.kernel,
            stride: 1,
            padding: self.padding,
        }
    }

    /// Pools maps, and flattens them.
    pub(in crate::model) fn pooled(&self, maps: Tensor<4>) -> Tensor<2> {
        let n_samples = maps.dims()[0];
        let pooled = max_pool2d(maps, MaxPoolOptions::new([self.pool, self.pool]));
        // ReLU after pooling gives the same numbers as before it and touches a quarter of them.
        relu(pooled).reshape([n_samples, self.output().iter().product()])
    }
}

impl Layer for Conv {
    fn parameters(&self) -> Vec<Parameter> {
        let initial = Initial::FanIn(self.input[0] * self.kernel * self.kernel);
        let shape = [self.filters, self.input[0], self.kernel, self.kernel];
        vec![
            Parameter::new(format!("{}.weight", self.name), &shape, initial),
            Parameter::new(format!("{}.bias", self.name), &[self.filters], initial),
        ]
    }

    fn n_inputs(&self) -> usize {
        self.input.iter().product()
    }

    fn maps(&self) -> Option<[usize; 3]> {
        Some(self.output())
    }

    fn multiply_adds(&self) -> u64 {
        let [height, width] = self.convolved();
        (self.filters * height * width * self.input[0] * self.kernel * self.kernel) as u64
    }

    fn forward(&self, run: &mut Run<'_>, input: Tensor<2>) -> Tensor<2> {
        let (weight, bias) = (run.next(), run.next());
        multiply_adds::count(self.multiply_adds(), &input, &weight);
        if let Some(output) = cpu::conv(self, &input, &weight, &bias) {
            return output;
        }
        match gpu::conv(self.geometry(), &input, &weight, Some(&bias)) {
            Some(maps) => self.pooled(maps),
            None => self.compose(input, weight, bias),
        }
    }

    fn emit(&self, run: &mut Run<'_>, graph: &mut Graph, input: Value) -> Value {
        let shape = [self.filters, self.input[0], self.kernel, self.kernel];
        let kernels = run.constant(graph, &format!("{}.weight", self.name), &shape);
        let bias = run.constant(graph, &format!("{}.bias", self.name), &shape[..1]);
        let maps = graph.reshape(input, &self.input);
        let convolved = graph.conv(maps, (kernels, Some(bias)), 1, self.padding);
        let pooled = graph.max_pool(convolved, self.pool);
        let maps = graph.relu(pooled);
        graph.flat(maps)
    }
}
