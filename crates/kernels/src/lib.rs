//! The CPU's inner loops: convolution blocks and fully connected layers, forward and backward, on plain numbers.
//!
//! A tensor library computes a layer as a chain of general operations. Each has its own pass over memory and its own
//! result, and a training step of a small network spends most of its time there. The functions of this crate compute a
//! whole layer at once, in as few passes as its data need:
//!
//! ```text
//! conv::Block    convolution + bias ─► max-pooling ─► ReLU      [batch, C·H·W] ─► [batch, F·H'·W']
//! linear::Layer  product + bias (─► ReLU)                       [batch, inputs] ─► [batch, outputs]
//! ```
//!
//! Every result is a sum of products, held in vector registers until it is complete (`tile`). There are two kinds: rows
//! times a panel, and outer products. No matrix of image patches is made. With the channels innermost, the patch under a
//! row of the kernel is contiguous in the image itself, and neighbouring patches overlap.
//!
//! Instruction sets are chosen at run time: AVX-512, AVX2 with FMA, NEON, or plain code. The order of a sum depends on the
//! shapes and the instruction set, never on the number of threads.
//!
//! This crate knows no tensors, no autodiff and no names of parameters. `fednode-learn` brings those together, and a test
//! there holds the results against those of its tensor library.
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

/// Which gradients are wanted. A network's first layer needs no gradient of its input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wants {
    /// The gradients of the parameters and of the input.
    InputGradient,
    /// The gradients of the parameters only.
    ParametersOnly,
}
