//! Layers on a GPU: products of matrices as operations on the tensor library's tape, each with a backward step of its own.
//!
//! ```text
//! convolution   patches [B·P, C·k·k] gathered from the input       P places of the output
//!               output  = patches · weightᵀ + bias                 [B·P, F]
//!               weight  ◄ sum over B of gradientᵀ · patches        one product per sample, then one sum
//!               input   ◄ transposed convolution of the gradient
//! linear        output  = input · weight + bias
//!               weight  ◄ inputᵀ · gradient        input ◄ gradient · weightᵀ
//! bias          ◄ sums in two steps: within samples, then over them
//! ```
//!
//! The tensor library's own backward pass of a convolution, without its search for the best kernel at run time, reduces
//! long rows one number after the other. A step of `cnn` with a batch of 256 took 22 ms on an H200 with it, 14 of them for
//! the first convolution. With the search, the first epoch was not over after 100 s.
//!
//! Nothing here knows the backend, so the tests hold it against the CPU's layers on the CPU. Software drivers are left to
//! the general operations, see [`affine`](super::affine). A node holds the real device against the CPU before it uses it,
//! see [`probe`](crate::probe) and [`trial`](crate::trial).

#[cfg(any(feature = "vulkan", test))]
mod convolution;
#[cfg(any(feature = "vulkan", test))]
mod fully_connected;
#[cfg(any(feature = "vulkan", test))]
mod tape;
#[cfg(test)]
mod tests;

use burn::tensor::Tensor;

use super::layer::Linear;

/// Most bytes of the patches of a batch: what every Vulkan driver offers as one buffer.
#[cfg(feature = "vulkan")]
const MOST_BYTES: usize = 128 << 20;

/// What a convolution is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "vulkan"), allow(dead_code))]
pub(super) struct Geometry {
    /// Channels, height and width.
    pub(super) input: [usize; 3],
    /// Maps, height and width.
    pub(super) output: [usize; 3],
    pub(super) kernel: usize,
    pub(super) stride: usize,
    pub(super) padding: [usize; 2],
}

/// Runs a convolution, `[batch, C·H·W]` to `[batch, F, H', W']`; nothing where it is none of a GPU, or too large.
#[cfg(feature = "vulkan")]
pub(super) fn conv(
    geometry: Geometry,
    input: &Tensor<2>,
    weight: &Tensor<1>,
    bias: Option<&Tensor<1>>,
) -> Option<Tensor<4>> {
    let numbers = input.dims()[0] * geometry.places() * geometry.patch();
    let is_small = numbers * size_of::<f32>() <= MOST_BYTES;
    if !is_small || !crate::vulkan::is_hardware(&input.device()) {
        return None;
    }
    convolution::convolve::<burn::backend::Cube>(geometry, input, weight, bias)
}

/// Runs a fully connected layer without its activation; nothing where it is none of a GPU.
#[cfg(feature = "vulkan")]
pub(super) fn linear(
    linear: &Linear,
    input: &Tensor<2>,
    weight: &Tensor<1>,
    bias: Option<&Tensor<1>>,
) -> Option<Tensor<2>> {
    if !crate::vulkan::is_hardware(&input.device()) {
        return None;
    }
    fully_connected::multiply::<burn::backend::Cube>(linear, input, weight, bias)
}

#[cfg(not(feature = "vulkan"))]
pub(super) fn conv(
    _: Geometry,
    _: &Tensor<2>,
    _: &Tensor<1>,
    _: Option<&Tensor<1>>,
) -> Option<Tensor<4>> {
    None
}

#[cfg(not(feature = "vulkan"))]
pub(super) fn linear(
    _: &Linear,
    _: &Tensor<2>,
    _: &Tensor<1>,
    _: Option<&Tensor<1>>,
) -> Option<Tensor<2>> {
    None
}
