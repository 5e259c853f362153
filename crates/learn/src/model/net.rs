//! The tree of layers that makes a network: how it runs, where it is cut, what its parameters are called.
//!
//! ```text
//! Net = chain of Blocks         Leaf(layer)
//!                               Chain(blocks)             a stretch that is never cut
//!                               Residual { body, shortcut, activation }      activation(body(x) + shortcut(x))
//!                               Parallel(branches)        their outputs side by side
//! ```
//!
//! A [`Net`] is architecture only; the numbers are a [`Weights`] that is passed in. So K experts of one architecture
//! are one net and K sets of weights. A frozen part is plain weights where a trained part is recorded ones. Inference
//! is the same code as training: recorded weights train, plain ones infer. On the CPU the usual layers are one
//! operation each with kernels of our own (`cpu`); on GPUs, and for other numbers than 32-bit floats, a layer is
//! composed of the tensor library's operations.

use std::sync::Arc;

use burn::tensor::Tensor;
use fednode_core::Layout;
use fednode_onnx::{Graph, Value};

use super::layer::{Activation, Initial, Layer, Parameter, Run};
use crate::weights::Weights;

/// A part of a network's tree.
#[derive(Debug, Clone)]
pub enum Block {
    /// One layer.
    Leaf(Arc<dyn Layer>),
    /// One block after the other; cuts leave it whole.
    Chain(Vec<Self>),
    /// The sum of a body and of what bypasses it.
    Residual {
        /// What is learned as a difference.
        body: Vec<Self>,
        /// What the input goes through beside the body; empty takes the input as it is.
        shortcut: Vec<Self>,
        /// What follows the sum.
        activation: Activation,
    },
    /// Branches that read the same input; their outputs side by side, channel after channel.
    Parallel(Vec<Vec<Self>>),
}

/// Makes the block of one layer.
pub fn leaf(layer: impl Layer + 'static) -> Block {
    Block::Leaf(Arc::new(layer))
}

impl Block {
    fn parameters(&self) -> Vec<Parameter> {
        match self {
            Self::Leaf(layer) => layer.parameters(),
            Self::Chain(blocks) => all_parameters(blocks),
            Self::Residual { body, shortcut, .. } => {
                [all_parameters(body), all_parameters(shortcut)].concat()
            }
            Self::Parallel(branches) => branches
                .iter()
                .flat_map(|branch| all_parameters(branch))
                .collect(),
        }
    }

    fn n_inputs(&self) -> usize {
        match self {
            Self::Leaf(layer) => layer.n_inputs(),
            Self::Chain(blocks) | Self::Residual { body: blocks, .. } => {
                blocks.first().map_or(0, Self::n_inputs)
            }
            Self::Parallel(branches) => branches
                .first()
                .and_then(|branch| branch.first())
                .map_or(0, Self::n_inputs),
        }
    }

    fn n_outputs(&self) -> usize {
        match self {
            Self::Leaf(layer) => layer.n_outputs(),
            Self::Chain(blocks) | Self::Residual { body: blocks, .. } => {
                blocks.last().map_or(0, Self::n_outputs)
            }
            Self::Parallel(branches) => branches
                .iter()
                .map(|branch| branch.last().map_or(0, Self::n_outputs))
                .sum(),
        }
    }

    /// Returns channels, height and width of the maps that it makes, if it makes maps.
    fn maps(&self) -> Option<[usize; 3]> {
        match self {
            Self::Leaf(layer) => layer.maps(),
            Self::Chain(blocks) | Self::Residual { body: blocks, .. } => blocks.last()?.maps(),
            Self::Parallel(branches) => {
                let maps = branches.iter().map(|branch| branch.last()?.maps());
                maps.reduce(|sum, maps| {
                    let ([sum, height, width], [channels, ..]) = (sum?, maps?);
                    Some([sum + channels, height, width])
                })?
            }
        }
    }

    fn multiply_adds(&self) -> u64 {
        let sum = |blocks: &[Self]| blocks.iter().map(Self::multiply_adds).sum::<u64>();
        match self {
            Self::Leaf(layer) => layer.multiply_adds(),
            Self::Chain(blocks) => sum(blocks),
            Self::Residual { body, shortcut, .. } => sum(body) + sum(shortcut),
            Self::Parallel(branches) => branches.iter().map(|branch| sum(branch)).sum(),
        }
    }

    fn forward(&self, run: &mut Run<'_>, input: Tensor<2>) -> Tensor<2> {
        match self {
            Self::Leaf(layer) => layer.forward(run, input),
            Self::Chain(blocks) => forward(blocks, run, input),
            Self::Residual {
                body,
                shortcut,
                activation,
            } => {
                // The order is that of the parameters.
                let learned = forward(body, run, input.clone());
                activation.apply(learned + forward(shortcut, run, input))
            }
            Self::Parallel(branches) => {
                let outputs = branches
                    .iter()
                    .map(|branch| forward(branch, run, input.clone()));
                Tensor::cat(outputs.collect(), 1)
            }
        }
    }

    /// Writes into a graph what [`Self::forward`] computes with plain weights.
    fn emit(&self, run: &mut Run<'_>, graph: &mut Graph, input: Value) -> Value {
        match self {
            Self::Leaf(layer) => layer.emit(run, graph, input),
            Self::Chain(blocks) => emit(blocks, run, graph, input),
            Self::Residual {
                body,
                shortcut,
                activation,
            } => {
                let learned = emit(body, run, graph, input);
                let kept = emit(shortcut, run, graph, input);
                let sum = graph.add(learned, kept);
                activation.emit(graph, sum)
            }
            Self::Parallel(branches) => {
                let outputs: Vec<Value> = branches
                    .iter()
                    .map(|branch| emit(branch, run, graph, input))
                    .collect();
                graph.concat(&outputs, 1)
            }
        }
    }

    /// Tells whether a layer property holds of a block that is one layer.
    fn is_layer(&self, holds: impl Fn(&dyn Layer) -> bool) -> bool {
        matches!(self, Self::Leaf(layer) if holds(layer.as_ref()))
    }
}

fn all_parameters(blocks: &[Block]) -> Vec<Parameter> {
    blocks.iter().flat_map(Block::parameters).collect()
}

fn forward(blocks: &[Block], run: &mut Run<'_>, input: Tensor<2>) -> Tensor<2> {
    blocks
        .iter()
        .fold(input, |features, block| block.forward(run, features))
}

fn emit(blocks: &[Block], run: &mut Run<'_>, graph: &mut Graph, input: Value) -> Value {
    blocks
        .iter()
        .fold(input, |features, block| block.emit(run, graph, features))
}

/// Where a network is cut in two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// After the first block: embedding and rest (FedMoE-DA).
    Embedding,
    /// Before the first fully connected layer: convolutions and classifier (PFL-MoE).
    Classifier,
    /// Before the last block: base and head (FedPer, FedRep, …).
    Head,
}

/// A chain of blocks.
#[derive(Debug, Clone)]
pub struct Net {
    blocks: Vec<Block>,
    parameters: Vec<Parameter>,
}

impl Net {
    /// Chains blocks; each must take what the one before it makes.
    pub fn new(blocks: Vec<Block>) -> Self {
        let fits = blocks
            .windows(2)
            .all(|pair| pair[0].n_outputs() == pair[1].n_inputs());
        debug_assert!(fits, "every block takes what the one before it makes");
        let parameters = all_parameters(&blocks);
        Self { blocks, parameters }
    }

    /// Makes a net without layers: arrays that an algorithm uses in its own way. Run on a batch, it changes nothing.
    pub fn arrays(arrays: &[(&str, &[usize], Initial)]) -> Self {
        let parameter = |(name, shape, initial): &(&str, &[usize], Initial)| {
            Parameter::new(*name, shape, *initial)
        };
        Self::of_parameters(arrays.iter().map(parameter).collect())
    }

    /// Makes a net without layers that has these parameters.
    pub(crate) const fn of_parameters(parameters: Vec<Parameter>) -> Self {
        Self {
            blocks: Vec::new(),
            parameters,
        }
    }

    /// Tells whether what it makes of a sample depends on the others of the batch, as batch normalisation does.
    pub(crate) fn mixes_samples(&self) -> bool {
        self.parameters.iter().any(|one| !one.is_learned())
    }

    /// Returns the same net whose last layer, a fully connected one, has another name in parameter files.
    #[must_use]
    pub fn renamed(&self, name: &'static str) -> Self {
        let mut blocks = self.blocks.clone();
        if let Some(Block::Leaf(layer)) = blocks.last_mut()
            && let Some(renamed) = layer.renamed(name)
        {
            *layer = Arc::from(renamed);
        }
        Self::new(blocks)
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

    /// Makes a net without layers that has an array of zeros for every learned parameter of the given nets, in their
    /// order.
    pub fn zeros_like(prefix: &str, nets: &[&Self]) -> Self {
        let zeros = |parameter: &Parameter| Parameter {
            initial: Initial::Zeros,
            ..parameter.clone()
        };
        let learned = |net: &&'_ Self| {
            let parameters = net.parameters.iter().filter(|one| one.is_learned());
            parameters.map(zeros).collect::<Vec<_>>()
        };
        Self::of_parameters(nets.iter().flat_map(learned).collect()).prefixed(prefix)
    }

    /// Returns the parameters in the order of [`Weights`].
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// Picks what belongs to the learned parameters out of what belongs to all of them, in their order.
    pub(crate) fn learned<T>(&self, all: impl Iterator<Item = T>) -> impl Iterator<Item = T> {
        let both = self.parameters.iter().zip(all);
        both.filter(|(parameter, _)| parameter.is_learned())
            .map(|(_, one)| one)
    }

    /// Returns how many numbers are learned.
    pub fn n_learned(&self) -> usize {
        let learned = self.parameters.iter().filter(|one| one.is_learned());
        learned.map(Parameter::n_values).sum()
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
        self.blocks.iter().map(Block::multiply_adds).sum()
    }

    /// Returns the features it takes.
    pub fn n_inputs(&self) -> usize {
        self.blocks.first().map_or(0, Block::n_inputs)
    }

    /// Returns the features it makes.
    pub fn n_outputs(&self) -> usize {
        self.blocks.last().map_or(0, Block::n_outputs)
    }

    /// Returns channels, height and width of the maps that it makes, if it ends with maps.
    pub(crate) fn maps(&self) -> Option<[usize; 3]> {
        self.blocks.last().and_then(Block::maps)
    }

    /// Cuts it in two.
    pub fn split(&self, cut: Cut) -> (Self, Self) {
        let classifier = |block: &Block| block.is_layer(|layer| layer.is_fully_connected());
        let at = match cut {
            Cut::Embedding => 1,
            Cut::Classifier => self
                .blocks
                .iter()
                .position(classifier)
                .unwrap_or(self.blocks.len()),
            Cut::Head => self.blocks.len().saturating_sub(1),
        };
        let (front, back) = self.blocks.split_at(at.min(self.blocks.len()));
        (Self::new(front.to_vec()), Self::new(back.to_vec()))
    }

    /// Runs a batch, `[batch, inputs]` to `[batch, outputs]`.
    pub fn forward(&self, weights: &Weights, input: Tensor<2>) -> Tensor<2> {
        forward(&self.blocks, &mut Run::new(weights), input)
    }

    /// Writes into a graph what [`Self::forward`] computes with plain weights; texts are whole numbers there.
    pub(crate) fn emit(&self, weights: &Weights, graph: &mut Graph, input: Value) -> Value {
        emit(&self.blocks, &mut Run::new(weights), graph, input)
    }

    /// Tells whether it takes texts.
    pub(crate) fn takes_texts(&self) -> bool {
        let first = self.blocks.first();
        first.is_some_and(|block| block.is_layer(|layer| layer.reads_words()))
    }

    /// Returns what a gate can judge raw inputs by: the inputs as they are or, of texts, whose numbers are names, the
    /// output of the embedding.
    pub(crate) fn gate_input(&self, weights: &Weights, input: Tensor<2>) -> Tensor<2> {
        if self.takes_texts() {
            forward(&self.blocks[..1], &mut Run::new(weights), input)
        } else {
            input
        }
    }

    /// Writes into a graph what [`Self::gate_input`] computes.
    pub(crate) fn emit_gate_input(
        &self,
        weights: &Weights,
        graph: &mut Graph,
        input: Value,
    ) -> Value {
        if self.takes_texts() {
            emit(&self.blocks[..1], &mut Run::new(weights), graph, input)
        } else {
            input
        }
    }
}

#[cfg(test)]
mod tests;
