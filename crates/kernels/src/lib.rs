//! The CPU's inner loops: convolution blocks and fully connected layers, forward and backward, on plain numbers.
//!
//! A tensor library computes a layer as a chain of general operations, each with its own pass over memory and its own
//! result; a training step of a small network spends most of its time there. The functions of this crate compute a
//! whole layer at once, as few passes as its data need:
//!
//! ```text
//! conv::Block    convolution + bias ─► max-pooling ─► ReLU      [batch, C·H·W] ─► [batch, F·H'·W']
//! linear::Layer  product + bias (─► ReLU)                       [batch, inputs] ─► [batch, outputs]
//! ```
//!
//! Everything is a sum of products of two kinds, held in vector registers until it is complete (`tile`): rows times a
//! panel, and outer products. No matrix of image patches is ever made: with the channels innermost, the patch under a
//! row of the kernel is contiguous in the image itself, and neighbouring patches overlap.
//!
//! Instruction sets are chosen at run time (AVX-512, AVX2 with FMA, NEON, else plain code). Sums are formed in an order
//! that depends on the shapes and the instruction set, never on the number of threads.
//!
//! It knows no tensors, no autodiff, no parameters' names; `fednode-learn` brings those together and holds the results
//! against its tensor library's in a test.
//!
//! ```
//! use fednode_kernels::linear::{Activation, Layer};
//!
//! let layer = Layer { inputs: 2, outputs: 1, activation: Activation::Relu };
//! let (weight, bias) = ([2.0, -1.0], [0.5]);
//! assert_eq!(layer.forward(&[1.0, 1.0, 0.0, 3.0], &weight, Some(&bias)), [1.5, 0.0]);
//! ```
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod conv;
pub mod linear;

mod layout;
#[cfg(test)]
mod tests;
mod tile;

/// Whether the gradient with respect to a layer's input is wanted; a network's first layer needs none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wants {
    /// The gradients of the parameters and that of the input.
    InputGradient,
    /// Only those of the parameters.
    ParametersOnly,
}
