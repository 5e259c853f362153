//! Layers: the leaves of a network's tree. A layer is one file that implements [`Layer`].
//!
//! Between layers everything is flat, `[batch, features]`: a gate reads features as they are, a convolution knows its own
//! shape. A layer is architecture only. Its numbers come with the [`Run`], in the order of [`Layer::parameters`].

mod average_pool;
mod batch_norm;
mod conv;
mod convolution;
mod dropout;
mod group_norm;
mod layer_norm;
mod linear;
mod max_pool;
mod pointwise;

use std::fmt::Debug;

use burn::tensor::Tensor;
use burn::tensor::activation::{leaky_relu, log_softmax, relu};
use fednode_onnx::{Graph, Reduction, Value};
use serde::{Deserialize, Serialize};

pub use average_pool::AveragePool;
pub use batch_norm::BatchNorm;
pub use conv::Conv;
pub use convolution::Convolution;
pub use dropout::Dropout;
pub use group_norm::GroupNorm;
pub use layer_norm::LayerNorm;
pub use linear::Linear;
pub(crate) use linear::affine;
pub use max_pool::MaxPool;
pub use pointwise::Pointwise;

use crate::weights::{self, Mode, Weights};

/// Added to a variance before it divides, as in PyTorch.
const NORM_EPSILON: f64 = 1e-5;
/// Slope of the leaky ReLU below zero, as in PyTorch.
const LEAK: f64 = 0.01;

/// One operation of a network.
pub trait Layer: Debug + Send + Sync {
    /// Returns its parameters, none for most operations.
    fn parameters(&self) -> Vec<Parameter> {
        Vec::new()
    }

    /// Returns the features it takes.
    fn n_inputs(&self) -> usize;

    /// Returns the features it makes: its maps, if it makes any.
    fn n_outputs(&self) -> usize {
        self.maps().map_or(0, |maps| maps.iter().product())
    }

    /// Runs a batch, `[batch, inputs]` to `[batch, outputs]`.
    fn forward(&self, run: &mut Run<'_>, input: Tensor<2>) -> Tensor<2>;

    /// Writes into a graph what [`Self::forward`] computes with plain weights.
    fn emit(&self, run: &mut Run<'_>, graph: &mut Graph, input: Value) -> Value;

    /// Returns channels, height and width of the maps that it makes, if it makes maps.
    fn maps(&self) -> Option<[usize; 3]> {
        None
    }

    /// Returns its multiply-adds for one sample, forward, if it is counted.
    fn multiply_adds(&self) -> u64 {
        0
    }

    /// Tells whether it is fully connected, where classifiers begin.
    fn is_fully_connected(&self) -> bool {
        false
    }

    /// Tells whether it reads numbers of words.
    fn reads_words(&self) -> bool {
        false
    }

    /// Returns the same layer under another name in parameter files, if that is possible.
    fn renamed(&self, _name: &'static str) -> Option<Box<dyn Layer>> {
        None
    }
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

/// What a parameter is to its layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParameterKind {
    /// Learned.
    Weight,
    /// Learned scale or shift of a normalisation.
    Normalization,
    /// A running statistic of a normalisation: never learned, neither by gradient nor by decay.
    Statistic,
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
    /// What it is to its layer.
    pub kind: ParameterKind,
    /// Whether it is held transposed in memory: `[in, out]` for a fully connected layer, which is the faster order.
    pub transposed: bool,
}

impl Parameter {
    /// Makes a learned parameter that is held as PyTorch has it.
    pub fn new(name: impl Into<String>, shape: &[usize], initial: Initial) -> Self {
        Self {
            name: name.into(),
            shape: shape.to_vec(),
            initial,
            kind: ParameterKind::Weight,
            transposed: false,
        }
    }

    /// Makes scale and shift of a normalisation.
    fn scale_and_shift(layer: &str, width: usize) -> Vec<Self> {
        let one = |name: &str, initial| Self {
            kind: ParameterKind::Normalization,
            ..Self::new(format!("{layer}.{name}"), &[width], initial)
        };
        vec![one("weight", Initial::Ones), one("bias", Initial::Zeros)]
    }

    /// Returns how many numbers it has.
    pub fn n_values(&self) -> usize {
        self.shape.iter().product()
    }

    /// Tells whether steps change it.
    pub fn is_learned(&self) -> bool {
        self.kind != ParameterKind::Statistic
    }
}

/// What follows a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
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

    /// Writes it into a graph.
    pub(crate) fn emit(self, graph: &mut Graph, features: Value) -> Value {
        match self {
            Self::Relu => graph.relu(features),
            Self::LeakyRelu => graph.leaky_relu(features, LEAK),
            Self::LogSoftmax => graph.log_softmax(features),
            Self::Identity => features,
        }
    }
}

/// A batch on its way through a network: hands every layer its numbers.
#[derive(Debug)]
pub struct Run<'a> {
    weights: &'a Weights,
    next: usize,
}

impl<'a> Run<'a> {
    /// Begins at the first parameter of a network.
    pub(super) const fn new(weights: &'a Weights) -> Self {
        Self { weights, next: 0 }
    }

    /// Takes the next parameter of a layer.
    pub(super) fn next(&mut self) -> Tensor<1> {
        self.next += 1;
        self.weights.tensor(self.next - 1)
    }

    /// Writes the next parameter of a layer into a graph, in the shape that it has in memory.
    pub(super) fn constant(&mut self, graph: &mut Graph, name: &str, shape: &[usize]) -> Value {
        graph.floats(name, weights::values(&self.next()), shape)
    }

    /// Takes the next running statistic of a layer, off every tape, and its place.
    fn next_statistic(&mut self) -> (usize, Tensor<1>) {
        self.next += 1;
        (self.next - 1, self.weights.statistic(self.next - 1))
    }

    /// Replaces the running statistic at a place, once the step is made.
    fn renew(&self, at: usize, statistic: Tensor<1>) {
        self.weights.renew(at, statistic);
    }

    /// Tells whether the batch trains the layer.
    fn mode(&self) -> Mode {
        self.weights.mode()
    }

    /// Draws factors of dropout for so many features; nothing if no draws were handed over.
    fn dropout(&self, share: f64, count: usize) -> Option<Vec<f32>> {
        self.weights.dropout(share, count)
    }
}

/// Writes into a graph what gives the numbers along a dimension mean 0 and variance 1.
fn emit_normed(graph: &mut Graph, value: Value, axis: usize) -> Value {
    let mean = graph.reduce(Reduction::Mean, value, axis);
    let centred = graph.sub(value, mean);
    let squares = graph.mul(centred, centred);
    let variance = graph.reduce(Reduction::Mean, squares, axis);
    let variance = graph.add_number(variance, NORM_EPSILON);
    let deviation = graph.sqrt(variance);
    graph.div(centred, deviation)
}
