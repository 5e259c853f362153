//! A convolution by itself. Before a normalisation it has no bias, because the normalisation would remove it.

use burn::tensor::Tensor;
use burn::tensor::module::conv2d;
use burn::tensor::ops::ConvOptions;
use fednode_onnx::{Graph, Value};

use super::{Initial, Layer, Parameter, Run};
use crate::model::gpu::{self, Geometry};
use crate::model::multiply_adds;

/// A convolution without anything after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Convolution {
    /// Its name in parameter files.
    pub name: &'static str,
    /// Channels, height and width of its input.
    pub input: [usize; 3],
    /// Maps it makes.
    pub filters: usize,
    /// Side of its square kernel.
    pub kernel: usize,
    /// Places between two applications of the kernel.
    pub stride: usize,
    /// Zeros added on every side.
    pub padding: usize,
    /// Whether it has a bias.
    pub bias: bool,
}

impl Convolution {
    /// Returns channels, height and width of the output.
    pub fn output(&self) -> [usize; 3] {
        let [_, height, width] = self.input;
        let side = |side: usize| (side + 2 * self.padding - self.kernel) / self.stride + 1;
        [self.filters, side(height), side(width)]
    }

    /// Returns what kind of convolution it is.
    pub(in crate::model) fn geometry(&self) -> Geometry {
        Geometry {
            input: self.input,
            output: self.output(),
            kernel: self.kernel,
            stride: self.stride,
            padding: [self.padding; 2],
        }
    }

    /// Runs it by the tensor library's own operation.
    pub(in crate::model) fn compose(
        &self,
        input: Tensor<2>,
        weight: Tensor<1>,
        bias: Option<Tensor<1>>,
    ) -> Tensor<4> {
        let ([channels, height, width], n_samples) = (self.input, input.dims()[0]);
        let maps = input.reshape([n_samples, channels, height, width]);
        let kernels = weight.reshape([self.filters, channels, self.kernel, self.kernel]);
        let (stride, padding) = ([self.stride; 2], [self.padding; 2]);
        conv2d(
            maps,
            kernels,
            bias,
            ConvOptions::new(stride, padding, [1, 1], 1),
        )
    }
}

impl Layer for Convolution {
    fn parameters(&self) -> Vec<Parameter> {
        let initial = Initial::FanIn(self.input[0] * self.kernel * self.kernel);
        let shape = [self.filters, self.input[0], self.kernel, self.kernel];
        let weight = Parameter::new(format!("{}.weight", self.name), &shape, initial);
        let bias = Parameter::new(format!("{}.bias", self.name), &shape[..1], initial);
        if self.bias {
            vec![weight, bias]
        } else {
            vec![weight]
        }
    }

    fn n_inputs(&self) -> usize {
        self.input.iter().product()
    }

    fn maps(&self) -> Option<[usize; 3]> {
        Some(self.output())
    }

    fn multiply_adds(&self) -> u64 {
        (self.n_outputs() * self.input[0] * self.kernel * self.kernel) as u64
    }

    fn forward(&self, run: &mut Run<'_>, input: Tensor<2>) -> Tensor<2> {
        let n_samples = input.dims()[0];
        let weight = run.next();
        multiply_adds::count(self.multiply_adds(), &input, &weight);
        let bias = self.bias.then(|| run.next());
        let maps = gpu::conv(self.geometry(), &input, &weight, bias.as_ref());
        maps.unwrap_or_else(|| self.compose(input, weight, bias))
            .reshape([n_samples, self.n_outputs()])
    }

    fn emit(&self, run: &mut Run<'_>, graph: &mut Graph, input: Value) -> Value {
        let shape = [self.filters, self.input[0], self.kernel, self.kernel];
        let kernels = run.constant(graph, &format!("{}.weight", self.name), &shape);
        let name = format!("{}.bias", self.name);
        let bias = self.bias.then(|| run.constant(graph, &name, &shape[..1]));
        let maps = graph.reshape(input, &self.input);
        let maps = graph.conv(maps, (kernels, bias), self.stride, [self.padding; 2]);
        graph.flat(maps)
    }
}
