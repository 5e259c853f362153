//! `resnet-8`: the smallest ResNet for CIFAR (He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, §4.2
//! with n = 1), 78,042 parameters for three channels and ten classes.
//!
//! ```text
//! 3×3 convolution to 16 maps ─► BN, ReLU ─► block 16 ─► block 32, half the side ─► block 64, half the side ─► mean ─► classes
//! block    relu( BN(3×3(relu(BN(3×3(x))))) + shortcut(x) )
//! ```
//!
//! Where a block changes the size, its shortcut is a 1×1 convolution with BN (option B of the paper; the paper's own CIFAR
//! models pad with zeros). Names are those of torchvision. The first block, which FedMoE-DA shares, is the convolution
//! with its BN; the head is the last layer. How the running statistics of BN are shared is the affair of the algorithm.

use fednode_core::ConfigError;
use fednode_core::spec::Architecture;

use super::layer::{Activation, AveragePool, BatchNorm, Convolution, Linear};
use super::net::{Block, leaf};
use super::{Reads, Row, too_small};

pub(super) const ROW: Row = Row {
    name: "resnet-8",
    summary: "three residual blocks of two 3x3 convolutions (16, 32, 64) with batch normalisation: the smallest CIFAR ResNet",
    reads: Reads::Images,
    layers,
};

/// Smallest side that two halvings leave more than one place of.
const SMALLEST: usize = 4;

/// Names of a block's layers, maps, and places between two applications of its first kernel.
type Stage = ([&'static str; 6], usize, usize);

const STAGES: [Stage; 3] = [
    (
        [
            "layer1.0.conv1",
            "layer1.0.bn1",
            "layer1.0.conv2",
            "layer1.0.bn2",
            "layer1.0.downsample.0",
            "layer1.0.downsample.1",
        ],
        16,
        1,
    ),
    (
        [
            "layer2.0.conv1",
            "layer2.0.bn1",
            "layer2.0.conv2",
            "layer2.0.bn2",
            "layer2.0.downsample.0",
            "layer2.0.downsample.1",
        ],
        32,
        2,
    ),
    (
        [
            "layer3.0.conv1",
            "layer3.0.bn1",
            "layer3.0.conv2",
            "layer3.0.bn2",
            "layer3.0.downsample.0",
            "layer3.0.downsample.1",
        ],
        64,
        2,
    ),
];

fn layers(spec: &Architecture) -> Result<Vec<Block>, ConfigError> {
    let Architecture { input, classes, .. } = *spec;
    if input[1].min(input[2]) < SMALLEST {
        return Err(too_small(ROW.name, input, SMALLEST));
    }
    let stem = Convolution {
        name: "conv1",
        input,
        filters: 16,
        kernel: 3,
        stride: 1,
        padding: 1,
        bias: false,
    };
    let mut maps = stem.output();
    let mut blocks = vec![Block::Chain(normalised(stem, "bn1", Activation::Relu))];
    for (names, filters, stride) in STAGES {
        blocks.push(residual(names, maps, filters, stride));
        maps = [filters, maps[1].div_ceil(stride), maps[2].div_ceil(stride)];
    }
    blocks.push(leaf(AveragePool { maps }));
    blocks.push(leaf(Linear {
        name: "fc",
        inputs: maps[0],
        outputs: classes,
        activation: Activation::Identity,
        bias: true,
    }));
    Ok(blocks)
}

/// Makes a block of two convolutions and what bypasses them.
fn residual(names: [&'static str; 6], maps: [usize; 3], filters: usize, stride: usize) -> Block {
    let [conv1, bn1, conv2, bn2, conv3, bn3] = names;
    let convolution = |name, input, kernel, stride| Convolution {
        name,
        input,
        filters,
        kernel,
        stride,
        padding: kernel / 2,
        bias: false,
    };
    let first = convolution(conv1, maps, 3, stride);
    let second = convolution(conv2, first.output(), 3, 1);
    let keeps_size = first.output() == maps;
    let shortcut = convolution(conv3, maps, 1, stride);
    Block::Residual {
        body: [
            normalised(first, bn1, Activation::Relu),
            normalised(second, bn2, Activation::Identity),
        ]
        .concat(),
        shortcut: if keeps_size {
            Vec::new()
        } else {
            normalised(shortcut, bn3, Activation::Identity)
        },
        activation: Activation::Relu,
    }
}

/// Follows a convolution by a batch normalisation.
fn normalised(convolution: Convolution, name: &'static str, activation: Activation) -> Vec<Block> {
    let norm = BatchNorm {
        name,
        maps: convolution.output(),
        activation,
    };
    vec![leaf(convolution), leaf(norm)]
}

#[cfg(test)]
mod tests;
