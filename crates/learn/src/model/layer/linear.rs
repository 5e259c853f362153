//! A fully connected layer.

use burn::tensor::module::{conv2d, linear};
use burn::tensor::ops::ConvOptions;
use burn::tensor::{Device, Tensor};
use fednode_onnx::{Graph, Value};

use super::{Activation, Initial, Layer, Parameter, Run};
use crate::model::{cpu, gpu, multiply_adds};

/// A fully connected layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Linear {
    /// Its name in parameter files.
    pub name: &'static str,
    /// Features it takes.
    pub inputs: usize,
    /// Features it makes.
    pub outputs: usize,
    /// What follows.
    pub activation: Activation,
    /// Whether it has a bias.
    pub bias: bool,
}

impl Layer for Linear {
    fn parameters(&self) -> Vec<Parameter> {
        let initial = Initial::FanIn(self.inputs);
        let shape = [self.outputs, self.inputs];
        let weight = Parameter {
            transposed: true,
            ..Parameter::new(format!("{}.weight", self.name), &shape, initial)
        };
        let bias = Parameter::new(format!("{}.bias", self.name), &[self.outputs], initial);
        if self.bias {
            vec![weight, bias]
        } else {
            vec![weight]
        }
    }

    fn n_inputs(&self) -> usize {
        self.inputs
    }

    fn n_outputs(&self) -> usize {
        self.outputs
    }

    fn forward(&self, run: &mut Run<'_>, input: Tensor<2>) -> Tensor<2> {
        let weight = run.next();
        multiply_adds::count(self.multiply_adds(), &input, &weight);
        let bias = self.bias.then(|| run.next());
        if let Some(output) = cpu::linear(self, &input, &weight, bias.as_ref()) {
            return output;
        }
        match gpu::linear(self, &input, &weight, bias.as_ref()) {
            Some(output) => self.activation.apply(output),
            None => self.compose(input, weight, bias),
        }
    }

    fn emit(&self, run: &mut Run<'_>, graph: &mut Graph, input: Value) -> Value {
        let (inputs, outputs) = (self.inputs, self.outputs);
        let weight = run.constant(graph, &format!("{}.weight", self.name), &[inputs, outputs]);
        let name = format!("{}.bias", self.name);
        let bias = self.bias.then(|| run.constant(graph, &name, &[outputs]));
        let features = graph.affine(input, weight, bias);
        self.activation.emit(graph, features)
    }

    fn multiply_adds(&self) -> u64 {
        (self.inputs * self.outputs) as u64
    }

    fn is_fully_connected(&self) -> bool {
        true
    }

    fn renamed(&self, name: &'static str) -> Option<Box<dyn Layer>> {
        Some(Box::new(Self { name, ..*self }))
    }
}

impl Linear {
    /// Composes the layer of the tensor library's operations.
    pub(in crate::model) fn compose(
        &self,
        input: Tensor<2>,
        weight: Tensor<1>,
        bias: Option<Tensor<1>>,
    ) -> Tensor<2> {
        let weight = weight.reshape([self.inputs, self.outputs]);
        self.activation.apply(affine(input, weight, bias))
    }
}

/// Multiplies `[batch, n]` by `[n, m]` and adds `[m]`, the fastest way that is right on the device.
pub(crate) fn affine(input: Tensor<2>, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<2> {
    let is_cpu = input.device() == Device::flex();
    if is_cpu {
        linear(input, weight, bias)
    } else {
        convolve(input, weight, bias)
    }
}

/// Computes a product as a convolution of 1×1 images; what GPUs run.
///
/// SwiftShader, the software driver that the GPU path is tested on, miscompiles the general matrix product of the
/// tensor library's Vulkan kernels (every tile gets the same numbers) but none of its convolution kernels. With
/// this form, what the tests check is what a GPU runs; `probe` holds it against the CPU on the real device before that is used.
fn convolve(input: Tensor<2>, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<2> {
    let ([n_samples, inputs], outputs) = (input.dims(), weight.dims()[1]);
    let images = input.reshape([n_samples, inputs, 1, 1]);
    let kernels = weight.transpose().reshape([outputs, inputs, 1, 1]);
    conv2d(
        images,
        kernels,
        bias,
        ConvOptions::new([1, 1], [0, 0], [1, 1], 1),
    )
    .reshape([n_samples, outputs])
}
