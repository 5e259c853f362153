//! Layers and the network they make: shapes and the forward pass, without any numbers.
//!
//! A [`Net`] is architecture only; the numbers are a [`Weights`] that is passed in. So K experts of one architecture
//! are one net and K sets of weights, a frozen part is plain weights where a trained part is recorded ones, and
//! inference is the same code as training. Between layers everything is flat, `[batch, features]`: a gate reads it as
//! it is, a convolution knows its own shape. On the CPU a layer is one operation with kernels of our own (`cpu`); on
//! GPUs, and for other numbers than 32-bit floats, it is composed of the tensor library's operations.

use burn::tensor::activation::{leaky_relu, log_softmax, relu};
use burn::tensor::module::{conv2d, linear, max_pool2d};
use burn::tensor::ops::{ConvOptions, MaxPoolOptions};
use burn::tensor::{Device, Tensor};
use fednode_core::Layout;

use super::cpu;
use super::embedding::Embedding;
use super::multiply_adds;
use crate::weights::Weights;

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

/// What follows a fully connected layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `max(x, 0)`.
    Relu,
    /// `x` above zero, `x / 100` below.
    LeakyRelu,
    /// The logarithm of the softmax over all features.
    LogSoftmax,
    /// Nothing.
    Identity,
}

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

/// Layer normalisation with a learned scale and shift: every sample's features get mean 0 and variance 1 first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Norm {
    /// Its name in parameter files.
    pub name: &'static str,
    /// Features it takes and makes.
    pub width: usize,
    /// What follows.
    pub activation: Activation,
}

/// One layer of a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layer {
    /// Convolution, pooling, ReLU.
    Conv(Conv),
    /// Fully connected.
    Linear(Linear),
    /// Layer normalisation.
    Norm(Norm),
    /// The mean of a text's word embeddings.
    Embedding(Embedding),
}

/// What a parameter starts as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Initial {
    /// U(±1/sqrt(n)) for n inputs of one of its layer's units: PyTorch's default for weights and biases.
    FanIn(usize),
    /// Zeros.
    Zeros,
    /// Ones.
    Ones,
    /// U(0, 1).
    UnitInterval,
    /// U(±sqrt(3)): mean and variance of N(0, 1), but drawn without functions that differ from machine to machine.
    UnitVariance,
    /// The same after so many zeros: rows of a table, the first of which stand for nothing.
    Rows {
        /// How many numbers are zero.
        zeros: usize,
    },
}

/// One named array of a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// Its name as PyTorch has it.
    pub name: String,
    /// Its shape as PyTorch has it.
    pub shape: Vec<usize>,
    /// What it starts as.
    pub initial: Initial,
    /// Whether it is held transposed in memory: `[in, out]` for a fully connected layer, which is the faster order.
    pub transposed: bool,
}

impl Parameter {
    /// Returns how many numbers it has.
    pub fn n_values(&self) -> usize {
        self.shape.iter().product()
    }
}

/// Where a network is cut in two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// After the first layer: embedding and rest (FedMoE-DA).
    Embedding,
    /// Before the first fully connected layer: convolutions and classifier (PFL-MoE).
    Classifier,
    /// Before the last layer: base and head (FedPer, FedRep, …).
    Head,
}

/// A chain of layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Net {
    layers: Vec<Layer>,
    parameters: Vec<Parameter>,
}

impl Net {
    /// Chains layers; each must take what the one before it makes.
    pub fn new(layers: Vec<Layer>) -> Self {
        let fits = layers
            .windows(2)
            .all(|pair| pair[0].n_outputs() == pair[1].n_inputs());
        debug_assert!(fits, "every layer takes what the one before it makes");
        let parameters = layers.iter().flat_map(Layer::parameters).collect();
        Self { layers, parameters }
    }

    /// Makes a net without layers: arrays that an algorithm uses in its own way. Run on a batch, it changes nothing.
    pub fn arrays(arrays: &[(&str, &[usize], Initial)]) -> Self {
        let parameter = |(name, shape, initial): &(&str, &[usize], Initial)| Parameter {
            name: (*name).to_owned(),
            shape: shape.to_vec(),
            initial: *initial,
            transposed: false,
        };
        Self {
            layers: Vec::new(),
            parameters: arrays.iter().map(parameter).collect(),
        }
    }

    /// Returns the same net whose last layer, a fully connected one, has another name in parameter files.
    #[must_use]
    pub fn renamed(&self, name: &'static str) -> Self {
        let mut layers = self.layers.clone();
        if let Some(Layer::Linear(linear)) = layers.last_mut() {
            linear.name = name;
        }
        Self::new(layers)
    }

    /// Returns the same net with other names in parameter files, for a second one beside the first. Cutting it in two
    /// gives the names back, so cut first.
    #[must_use]
    pub fn prefixed(mut self, prefix: &str) -> Self {
        for parameter in &mut self.parameters {
            parameter.name.insert_str(0, prefix);
        }
        self
    }

    /// Makes a net without layers that has an array of zeros for every parameter of the given nets, in their order.
    pub fn zeros_like(prefix: &str, nets: &[&Self]) -> Self {
        let zeros = |parameter: &Parameter| Parameter {
            initial: Initial::Zeros,
            ..parameter.clone()
        };
        let parameters = nets
            .iter()
            .flat_map(|net| net.parameters.iter().map(zeros))
            .collect();
        Self {
            layers: Vec::new(),
            parameters,
        }
        .prefixed(prefix)
    }

    /// Returns the parameters in the order of [`Weights`].
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// Returns names and shapes of the parameters.
    pub fn layout(&self) -> Layout {
        self.parameters
            .iter()
            .map(|parameter| (parameter.name.clone(), parameter.shape.clone()))
            .collect()
    }

    /// Returns the multiply-adds of its convolutions and fully connected layers for one sample, forward.
    pub fn multiply_adds(&self) -> u64 {
        let of = |layer: &Layer| match layer {
            Layer::Conv(conv) => conv.multiply_adds(),
            Layer::Linear(linear) => linear.multiply_adds(),
            Layer::Norm(_) | Layer::Embedding(_) => 0,
        };
        self.layers.iter().map(of).sum()
    }

    /// Returns the features it takes.
    pub fn n_inputs(&self) -> usize {
        self.layers.first().map_or(0, Layer::n_inputs)
    }

    /// Returns the features it makes.
    pub fn n_outputs(&self) -> usize {
        self.layers.last().map_or(0, Layer::n_outputs)
    }

    /// Returns channels, height and width of the maps that it makes, if it ends with a convolution.
    pub(crate) fn maps(&self) -> Option<[usize; 3]> {
        match self.layers.last() {
            Some(Layer::Conv(conv)) => Some(conv.output()),
            _ => None,
        }
    }

    /// Cuts it in two.
    pub fn split(&self, cut: Cut) -> (Self, Self) {
        let is_linear = |layer: &Layer| matches!(layer, Layer::Linear(_));
        let at = match cut {
            Cut::Embedding => 1,
            Cut::Classifier => self
                .layers
                .iter()
                .position(is_linear)
                .unwrap_or(self.layers.len()),
            Cut::Head => self.layers.len().saturating_sub(1),
        };
        let (front, back) = self.layers.split_at(at.min(self.layers.len()));
        (Self::new(front.to_vec()), Self::new(back.to_vec()))
    }

    /// Runs a batch, `[batch, inputs]` to `[batch, outputs]`.
    pub fn forward(&self, weights: &Weights, input: Tensor<2>) -> Tensor<2> {
        self.forward_through(weights, input, |features| features)
    }

    /// Tells whether it takes texts.
    pub(crate) fn takes_texts(&self) -> bool {
        matches!(self.layers.first(), Some(Layer::Embedding(_)))
    }

    /// Returns what a gate can judge raw inputs by: the inputs as they are or, of texts, whose numbers are names, the
    /// output of the embedding (`pm-moe` §2.5, "mean of own token embeddings").
    pub(crate) fn legible(&self, weights: &Weights, input: Tensor<2>) -> Tensor<2> {
        match self.layers.first() {
            Some(Layer::Embedding(embedding)) => {
                embedding.forward(input, next(&mut weights.tensors()))
            }
            _ => input,
        }
    }

    /// Runs a batch with something done to the features between any two layers, dropout for example.
    pub(crate) fn forward_through(
        &self,
        weights: &Weights,
        input: Tensor<2>,
        mut between: impl FnMut(Tensor<2>) -> Tensor<2>,
    ) -> Tensor<2> {
        let mut tensors = weights.tensors();
        self.layers
            .iter()
            .enumerate()
            .fold(input, |features, (at, layer)| {
                let features = if at == 0 { features } else { between(features) };
                match layer {
                    Layer::Conv(conv) => conv.forward(&mut tensors, features),
                    Layer::Linear(linear) => linear.forward(&mut tensors, features),
                    Layer::Norm(norm) => norm.forward(&mut tensors, features),
                    Layer::Embedding(embedding) => embedding.forward(features, next(&mut tensors)),
                }
            })
    }
}

impl Layer {
    fn parameters(&self) -> Vec<Parameter> {
        match self {
            Self::Conv(conv) => conv.parameters(),
            Self::Linear(linear) => linear.parameters(),
            Self::Norm(norm) => norm.parameters(),
            Self::Embedding(embedding) => embedding.parameters(),
        }
    }

    fn n_inputs(&self) -> usize {
        match self {
            Self::Conv(conv) => conv.input.iter().product(),
            Self::Linear(linear) => linear.inputs,
            Self::Norm(norm) => norm.width,
            Self::Embedding(embedding) => embedding.length,
        }
    }

    fn n_outputs(&self) -> usize {
        match self {
            Self::Conv(conv) => conv.output().iter().product(),
            Self::Linear(linear) => linear.outputs,
            Self::Norm(norm) => norm.width,
            Self::Embedding(embedding) => embedding.width,
        }
    }
}

/// Takes the next parameter of a layer.
fn next<'a>(tensors: &mut impl Iterator<Item = &'a Tensor<1>>) -> Tensor<1> {
    tensors
        .next()
        .expect("weights are loaded for the net's own parameters")
        .clone()
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

    fn multiply_adds(&self) -> u64 {
        let [height, width] = self.convolved();
        (self.filters * height * width * self.input[0] * self.kernel * self.kernel) as u64
    }

    fn parameters(&self) -> Vec<Parameter> {
        let initial = Initial::FanIn(self.input[0] * self.kernel * self.kernel);
        let shape = vec![self.filters, self.input[0], self.kernel, self.kernel];
        let weight = Parameter {
            name: format!("{}.weight", self.name),
            shape,
            initial,
            transposed: false,
        };
        let shape = vec![self.filters];
        vec![
            weight,
            Parameter {
                name: format!("{}.bias", self.name),
                shape,
                initial,
                transposed: false,
            },
        ]
    }

    fn forward<'a>(
        &self,
        tensors: &mut impl Iterator<Item = &'a Tensor<1>>,
        input: Tensor<2>,
    ) -> Tensor<2> {
        let (weight, bias) = (next(tensors), next(tensors));
        multiply_adds::count(self.multiply_adds(), &input, &weight);
        cpu::conv(self, &input, &weight, &bias).unwrap_or_else(|| self.compose(input, weight, bias))
    }

    /// Composes the layer of the tensor library's operations; what GPUs run.
    pub(super) fn compose(
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
        let pooled = max_pool2d(convolved, MaxPoolOptions::new([self.pool, self.pool]));
        // ReLU after pooling gives the same numbers as before it and touches a quarter of them.
        relu(pooled).reshape([n_samples, self.output().iter().product()])
    }
}

impl Linear {
    fn parameters(&self) -> Vec<Parameter> {
        let shape = vec![self.outputs, self.inputs];
        let initial = Initial::FanIn(self.inputs);
        let weight = Parameter {
            name: format!("{}.weight", self.name),
            shape,
            initial,
            transposed: true,
        };
        let shape = vec![self.outputs];
        let bias = Parameter {
            name: format!("{}.bias", self.name),
            shape,
            initial,
            transposed: false,
        };
        if self.bias {
            vec![weight, bias]
        } else {
            vec![weight]
        }
    }

    fn forward<'a>(
        &self,
        tensors: &mut impl Iterator<Item = &'a Tensor<1>>,
        input: Tensor<2>,
    ) -> Tensor<2> {
        let weight = next(tensors);
        multiply_adds::count(self.multiply_adds(), &input, &weight);
        let bias = self.bias.then(|| next(tensors));
        cpu::linear(self, &input, &weight, bias.as_ref())
            .unwrap_or_else(|| self.compose(input, weight, bias))
    }

    const fn multiply_adds(&self) -> u64 {
        (self.inputs * self.outputs) as u64
    }

    /// Composes the layer of the tensor library's operations.
    pub(super) fn compose(
        &self,
        input: Tensor<2>,
        weight: Tensor<1>,
        bias: Option<Tensor<1>>,
    ) -> Tensor<2> {
        let weight = weight.reshape([self.inputs, self.outputs]);
        self.activation.apply(affine(input, weight, bias))
    }
}

impl Activation {
    /// Applies it to every feature.
    pub(crate) fn apply(self, features: Tensor<2>) -> Tensor<2> {
        match self {
            Self::Relu => relu(features),
            Self::LeakyRelu => leaky_relu(features, LEAK),
            Self::LogSoftmax => log_softmax(features, 1),
            Self::Identity => features,
        }
    }
}

/// Slope of the leaky ReLU below zero, as in PyTorch.
const LEAK: f64 = 0.01;
/// Added to a variance before it divides, as in PyTorch.
const NORM_EPSILON: f64 = 1e-5;

impl Norm {
    fn parameters(&self) -> Vec<Parameter> {
        let parameter = |name: &str, initial| Parameter {
            name: format!("{}.{name}", self.name),
            shape: vec![self.width],
            initial,
            transposed: false,
        };
        vec![
            parameter("weight", Initial::Ones),
            parameter("bias", Initial::Zeros),
        ]
    }

    fn forward<'a>(
        &self,
        tensors: &mut impl Iterator<Item = &'a Tensor<1>>,
        input: Tensor<2>,
    ) -> Tensor<2> {
        let scale = next(tensors).reshape([1, self.width]);
        let shift = next(tensors).reshape([1, self.width]);
        let centred = input.clone() - input.mean_dim(1);
        let variance = (centred.clone() * centred.clone()).mean_dim(1);
        let normed = centred / variance.add_scalar(NORM_EPSILON).sqrt();
        self.activation.apply(normed * scale + shift)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_where_algorithms_need_it() {
        let spec = fednode_core::spec::ModelSpec::default();
        let net = crate::model::build(&spec).unwrap();
        let sizes = |cut| {
            let (front, back) = net.split(cut);
            let count = |net: &Net| {
                net.parameters()
                    .iter()
                    .map(Parameter::n_values)
                    .sum::<usize>()
            };
            assert_eq!(front.n_outputs(), back.n_inputs());
            (count(&front), count(&back))
        };
        // moe-systems §1.5, pm-moe §5.3.
        assert_eq!(sizes(Cut::Embedding), (832, 581_194));
        assert_eq!(sizes(Cut::Head), (576_896, 5_130));
        assert_eq!(sizes(Cut::Classifier), (52_096, 529_930));
        assert_eq!(net.split(Cut::Embedding).0.n_outputs(), 4608);
    }

    #[test]
    fn normalises_every_sample() {
        let norm = Layer::Norm(Norm {
            name: "norm",
            width: 4,
            activation: Activation::Relu,
        });
        let (net, device) = (Net::new(vec![norm]), Device::flex());
        let mut params = crate::weights::initial(&net, 1, 0);
        params
            .iter_mut()
            .last()
            .unwrap()
            .1
            .values_mut()
            .copy_from_slice(&[2.0; 4]);
        params
            .iter_mut()
            .next()
            .unwrap()
            .1
            .values_mut()
            .copy_from_slice(&[0.0, 0.0, 0.5, 0.0]);
        let weights = Weights::load(&net, &params, &device).unwrap();
        let input = Tensor::<2>::from_floats([[1.0, 2.0, 3.0, 6.0], [5.0, 5.0, 5.0, 5.0]], &device);
        let got = crate::weights::values(&net.forward(&weights, input));
        // Mean 3, variance 14/4: deviations over sqrt(3.50001) are -1.069043, -0.534521, 0, 1.603565; the scale (names
        // are ordered, the bias is first) is 2, the shift 0.5 for the third feature.
        let expected = [0.0, 0.0, 0.5, 3.207_13, 0.0, 0.0, 0.5, 0.0];
        assert!(
            got.iter()
                .zip(expected)
                .all(|(got, expected)| (got - expected).abs() < 1e-5),
            "{got:?}"
        );
    }
}
