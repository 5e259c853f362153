//! `lenet5`: the LeNet-5 of PFL-MoE (Guo et al., arXiv 2012.15589), 61,706 parameters for one channel and ten classes.
//!
//! Convolution 5×5 to 6 maps, pooling, convolution 5×5 to 16 maps, pooling, 120, 84, classes; ReLU between. The classic
//! network sees 32×32; smaller images are surrounded by zeros up to that size (28×28 by two pixels on each side, as
//! LeCun et al. did), which changes no weight's shape. PFL-MoE's code scales them up instead.

use fednode_core::ConfigError;
use fednode_core::spec::Architecture;

use super::layer::{Activation, Conv, Linear};
use super::net::{Block, leaf};
use super::{Reads, Row};

pub(super) const ROW: Row = Row {
    name: "lenet5",
    summary: "two 5x5 convolutions (6, 16), 120 and 84 hidden units: PFL-MoE's LeNet-5",
    reads: Reads::Images,
    layers,
};

/// Side of the images that the network was made for.
const SIDE: usize = 32;

fn layers(spec: &Architecture) -> Result<Vec<Block>, ConfigError> {
    let Architecture { input, classes, .. } = *spec;
    let padding = [input[1], input[2]].map(|side| SIDE.saturating_sub(side).div_ceil(2));
    let first = Conv {
        name: "conv1",
        input,
        filters: 6,
        kernel: 5,
        padding,
        pool: 2,
    };
    let second = Conv {
        name: "conv2",
        input: first.output(),
        filters: 16,
        kernel: 5,
        padding: [0, 0],
        pool: 2,
    };
    let inputs = second.output().iter().product();
    let relu = Activation::Relu;
    Ok(vec![
        leaf(first),
        leaf(second),
        leaf(Linear {
            name: "fc1",
            inputs,
            outputs: 120,
            activation: relu,
            bias: true,
        }),
        leaf(Linear {
            name: "fc2",
            inputs: 120,
            outputs: 84,
            activation: relu,
            bias: true,
        }),
        leaf(Linear {
            name: "fc3",
            inputs: 84,
            outputs: classes,
            activation: Activation::Identity,
            bias: true,
        }),
    ])
}
