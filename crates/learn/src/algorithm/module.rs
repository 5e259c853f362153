//! Private modules: where a prediction is opened so that other nodes' modules can take part (PM-MoE, arXiv
//! 2502.00354).
//!
//! ```text
//! inputs ─► open ─┬─► gate input                          what a gate would judge by
//!                 ├─► module input ─► run_module (any node's) ─► outputs ─► mixed ─┐
//!                 └─► side ──────────────────────────────────────────────► close ◄┘ ─► logits
//! ```
//!
//! | algorithm | module | gate input | module input | close |
//! |---|---|---|---|---|
//! | fedper, fedrep, fedbabu, fedpac | head | r | r | the mixture |
//! | fedrod | head | r | r | s(r) + mixture |
//! | fedcp | head | r * p | r * p | mixture + s(r * q) |
//! | gpfl | head | cov(r, z_P) | the same | the mixture |
//! | lg-fedavg, fedgh | extractor | x, of texts the own mean embedding | x | s(mixture) |
//! | dbe | vector | r | none | s(r + mixture) |
//! | fedmoe-da | gate and experts | x of the embedding | the same | the mixture |
//!
//! r: features of the common base; s: the common head. FedBABU's base is the node's own if it was tuned with the head:
//! foreign heads were then made for other bases. A module of FedMoE-DA is all of a node's experts with the gate that
//! divides samples among them, since an expert alone does not say which samples it is for.
//!
//! Closing with the own module's output alone is [`Algorithm::forward`](super::Algorithm::forward), bit for bit.

use std::ops::Range;

use burn::tensor::Tensor;
use fednode_onnx::{Graph, Value};

use super::Algorithm;
use crate::weights::Weights;

/// What a private module is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModuleKind {
    /// The last layer: features to logits.
    Head,
    /// Everything before it: inputs to features.
    Extractor,
    /// A vector that is added to the features, whatever they are.
    Vector,
    /// A gate with its experts: features to logits.
    Expert,
}

impl ModuleKind {
    /// Returns its name in advertisements and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Head => "head",
            Self::Extractor => "extractor",
            Self::Vector => "vector",
            Self::Expert => "expert",
        }
    }
}

/// Which parts of an algorithm make its private module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    /// What it is.
    pub kind: ModuleKind,
    /// Where its parts are among [`Algorithm::parts`](super::Algorithm::parts).
    pub parts: Range<usize>,
    /// Whether something is added to its output, or computed from it with a bias, so that the output's size matters and
    /// not only which of its elements is the largest.
    pub is_additive: bool,
}

/// A batch on its way to the private module: tensors, or the values of a graph.
#[derive(Debug)]
pub struct Opened<T = Tensor<2>> {
    /// What a gate judges by, `[batch, G]`.
    pub gate_input: T,
    /// What every module takes, `[batch, …]`; only its number of rows counts for vectors.
    pub module_input: T,
    /// What else closing needs, `[batch, …]`.
    pub side: Option<T>,
}

impl<T: Clone> Opened<T> {
    /// Opens where gate and module see the same, and closing needs nothing else.
    pub(super) fn at(input: T) -> Self {
        Self {
            gate_input: input.clone(),
            module_input: input,
            side: None,
        }
    }
}

/// An algorithm with a private module. Nothing here is trained but what is passed in recorded.
pub trait Modular: Send + Sync {
    /// Tells which parts make the module.
    fn module(&self) -> Module;

    /// Runs the model up to the module.
    fn open(&self, inputs: Tensor<2>) -> Opened;

    /// Runs a module with the weights of its parts, in order: logits `[batch, classes]` of heads and experts, features
    /// `[batch, D]` of extractors and vectors.
    fn run_module(&self, weights: &[Weights], input: Tensor<2>) -> Tensor<2>;

    /// Completes the model after the module, or after a mixture of modules; returns logits, `[batch, classes]`.
    fn close(&self, side: Option<Tensor<2>>, mixed: Tensor<2>) -> Tensor<2>;

    /// Writes into a graph what [`Self::open`] computes.
    fn emit_open(&self, graph: &mut Graph, inputs: Value) -> Opened<Value>;

    /// Writes into a graph what [`Self::run_module`] computes; what is the same for all samples is one row.
    fn emit_module(&self, weights: &[Weights], graph: &mut Graph, input: Value) -> Value;

    /// Writes into a graph what [`Self::close`] computes.
    fn emit_close(&self, graph: &mut Graph, side: Option<Value>, mixed: Value) -> Value;
}

/// Writes into a graph what a model computes with its own module.
pub(super) fn emit_alone(
    algorithm: &(impl Algorithm + Modular),
    graph: &mut Graph,
    inputs: Value,
) -> Value {
    let opened = algorithm.emit_open(graph, inputs);
    let parts = &algorithm.parts()[algorithm.module().parts];
    let weights: Vec<Weights> = parts.iter().map(|part| part.weights.clone()).collect();
    let output = algorithm.emit_module(&weights, graph, opened.module_input);
    algorithm.emit_close(graph, opened.side, output)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Algorithm;
    use crate::algorithm::testing::{random, trained};
    use crate::weights::values;

    #[test]
    fn closing_with_the_own_module_is_the_whole_model_bit_for_bit() {
        let algorithms = trained();
        assert_eq!(algorithms.len(), 11);
        for (name, algorithm) in algorithms {
            let modular = algorithm.modular().unwrap();
            let Module { parts, .. } = modular.module();
            let weights: Vec<Weights> = algorithm.parts()[parts]
                .iter()
                .map(|part| part.weights.clone())
                .collect();
            for rows in [1, 5, 64] {
                let Opened {
                    gate_input,
                    module_input,
                    side,
                } = modular.open(random(rows, 9));
                assert_eq!(gate_input.dims()[0], rows, "{name}");
                let output = modular.run_module(&weights, module_input);
                let closed = values(&modular.close(side, output));
                assert_eq!(
                    closed,
                    values(&algorithm.forward(random(rows, 9)).logits),
                    "{name}"
                );
            }
        }
    }

    #[test]
    fn a_module_is_what_the_table_says() {
        let expected = [
            ("fedmoe-da", "expert", false),
            ("fedper", "head", false),
            ("lg-fedavg", "extractor", true),
            ("fedrep", "head", false),
            ("fedrod", "head", true),
            ("fedbabu", "head", false),
            ("gpfl", "head", false),
            ("fedcp", "head", true),
            ("dbe", "vector", true),
            ("fedgh", "extractor", true),
            ("fedpac", "head", false),
        ];
        let of = |(name, algorithm): &(&'static str, Box<dyn Algorithm>)| {
            let module = algorithm.modular().unwrap().module();
            (*name, module.kind.name(), module.is_additive)
        };
        assert_eq!(trained().iter().map(of).collect::<Vec<_>>(), expected);
    }
}
