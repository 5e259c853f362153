//! Graphs in the format of ONNX: built operator by operator, shapes checked, written as one file.
//!
//! ```text
//! inputs, constants ─► operators, each of which checks its shapes ─► finish: what the output needs ─► bytes of a file
//! ```
//!
//! A [`Graph`] hands out a [`Value`] for everything that it holds. The first size of whatever depends on an input is the
//! number of samples, which the file leaves open. All other sizes are known while the graph is built.
//!
//! A call with values that do not go together spoils the graph: [`Graph::finish`] names the first one. So code that
//! builds a graph reads like the computation, without a question mark behind every operator.
//!
//! The file is of [`IR_VERSION`] and [`OPSET`], which any runtime since 2022 reads. It has the operators of that set, and
//! no functions, no graphs within nodes and no other files. What the output does not need is left out.
//!
//! This crate computes nothing and reads nothing. Its bytes are the same whenever the calls are.
//!
//! ```
//! use fednode_onnx::{Element, Graph};
//!
//! let mut graph = Graph::default();
//! let input = graph.input("rows", Element::Float, &[2]);
//! let weight = graph.floats("weight", vec![1.0, -1.0, 0.5, 2.0, 0.0, 1.0], &[2, 3]);
//! let logits = graph.affine(input, weight, None);
//! let probabilities = graph.softmax(logits);
//! let file = graph.finish("a layer", ("probabilities", probabilities), &[("classes", "3".into())])?;
//! assert!(file.len() > 100);
//! # Ok::<(), fednode_onnx::GraphError>(())
//! ```
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod error;
mod file;
mod graph;
mod operators;
mod shape;
mod wire;

pub use error::GraphError;
pub use graph::{Graph, Value};
pub use operators::{Reduction, Window};
pub use shape::Element;

/// The version of the format; 8 came with operator set 15.
pub const IR_VERSION: i64 = 8;
/// The version of the operator set.
pub const OPSET: i64 = 17;
