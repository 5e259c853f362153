//! `cnn`: the four-layer network of FedAvg, PFLlib ("FedAvgCNN") and FedMoE-DA (McMahan et al., AISTATS 2017).
//!
//! Convolution 5×5 to 32 maps, pooling, convolution 5×5 to 64 maps, pooling, 512 hidden units, classes; ReLU between.
//! Convolutions are not padded, as in the papers. Images with a side below 16 would vanish on the way: for those the
//! kernels are 3×3 with padding 1, which keeps the map's size up to the poolings (8×8 digits end as 2×2).

use fednode_core::ConfigError;
use fednode_core::spec::Architecture;

use super::layer::{Activation, Conv, Linear};
use super::net::{Block, leaf};
use super::{Reads, Row, too_small};

pub(super) const ROW: Row = Row {
    name: "cnn",
    summary: "two 5x5 convolutions (32, 64), 512 hidden units: FedAvg's and PFLlib's CNN",
    reads: Reads::Images,
    layers,
};

/// Smallest side that two unpadded 5×5 convolutions with their poolings leave something of.
const SMALLEST_UNPADDED: usize = 16;
/// Smallest side that two poolings leave something of.
const SMALLEST: usize = 4;

fn layers(spec: &Architecture) -> Result<Vec<Block>, ConfigError> {
    let Architecture { input, classes, .. } = *spec;
    let side = input[1].min(input[2]);
    if side < SMALLEST {
        return Err(too_small("cnn", input, SMALLEST));
    }
    let (kernel, padding) = if side < SMALLEST_UNPADDED {
        (3, [1, 1])
    } else {
        (5, [0, 0])
    };
    let first = Conv {
        name: "conv1.0",
        input,
        filters: 32,
        kernel,
        padding,
        pool: 2,
    };
    let second = Conv {
        name: "conv2.0",
        input: first.output(),
        filters: 64,
        kernel,
        padding,
        pool: 2,
    };
    let inputs = second.output().iter().product();
    let hidden = Linear {
        name: "fc1.0",
        inputs,
        outputs: 512,
        activation: Activation::Relu,
        bias: true,
    };
    let head = Linear {
        name: "fc",
        inputs: 512,
        outputs: classes,
        activation: Activation::Identity,
        bias: true,
    };
    Ok(vec![leaf(first), leaf(second), leaf(hidden), leaf(head)])
}
