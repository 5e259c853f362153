//! `vgg16`: the VGG-16 of PFL-MoE (Guo et al., arXiv 2012.15589), Simonyan and Zisserman's configuration D for 32×32 images,
//! 15,245,130 parameters for three channels and ten classes. No batch normalisation.
//!
//! Thirteen convolutions 3×3 that keep the map's size, in groups of 64, 64 | 128, 128 | 256, 256, 256 | 512, 512, 512 |
//! 512, 512, 512 with a pooling after each, then 512, 512, classes; ReLU between. PFL-MoE's code drops out half of the
//! classifier's inputs and of its first layer's outputs in training; there is no dropout here. Nor does it start as that
//! code's (He's normal distribution for convolutions) but as every model here, which is a slow start for so many layers.

use fednode_core::ConfigError;
use fednode_core::spec::Architecture;

use super::layer::{Activation, Conv, Linear};
use super::net::{Block, leaf};
use super::{Reads, Row, too_small};

pub(super) const ROW: Row = Row {
    name: "vgg16",
    summary: "thirteen 3x3 convolutions (64 to 512), 512 and 512 hidden units: VGG-16",
    reads: Reads::Images,
    layers,
};

/// Smallest side that five poolings leave something of.
const SMALLEST: usize = 32;
const HIDDEN: usize = 512;

/// Name, filters and side of the pooling window of each convolution.
const CONVOLUTIONS: [(&str, usize, usize); 13] = [
    ("features.0", 64, 1),
    ("features.2", 64, 2),
    ("features.5", 128, 1),
    ("features.7", 128, 2),
    ("features.10", 256, 1),
    ("features.12", 256, 1),
    ("features.14", 256, 2),
    ("features.17", 512, 1),
    ("features.19", 512, 1),
    ("features.21", 512, 2),
    ("features.24", 512, 1),
    ("features.26", 512, 1),
    ("features.28", 512, 2),
];

fn layers(spec: &Architecture) -> Result<Vec<Block>, ConfigError> {
    let Architecture { input, classes, .. } = *spec;
    if input[1].min(input[2]) < SMALLEST {
        return Err(too_small("vgg16", input, SMALLEST));
    }
    let mut maps = input;
    let mut layers = Vec::new();
    for (name, filters, pool) in CONVOLUTIONS {
        let conv = Conv {
            name,
            input: maps,
            filters,
            kernel: 3,
            padding: [1, 1],
            pool,
        };
        maps = conv.output();
        layers.push(leaf(conv));
    }
    let linear = |name, inputs, outputs, activation| {
        leaf(Linear {
            name,
            inputs,
            outputs,
            activation,
            bias: true,
        })
    };
    layers.push(linear(
        "classifier.1",
        maps.iter().product(),
        HIDDEN,
        Activation::Relu,
    ));
    layers.push(linear("classifier.4", HIDDEN, HIDDEN, Activation::Relu));
    layers.push(linear(
        "classifier.6",
        HIDDEN,
        classes,
        Activation::Identity,
    ));
    Ok(layers)
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, Tensor};

    use super::*;
    use crate::model::{Cut, Net, Parameter, cpu};
    use crate::weights::{self, Weights};

    fn spec(input: [usize; 3]) -> Architecture {
        Architecture {
            input,
            ..Architecture::default()
        }
    }

    #[test]
    fn has_the_shapes_of_the_paper() {
        let net = Net::new(layers(&spec([3, 32, 32])).unwrap());
        assert_eq!(
            net.parameters()
                .iter()
                .map(Parameter::n_values)
                .sum::<usize>(),
            15_245_130
        );
        let (extractor, classifier) = net.split(Cut::Classifier);
        assert_eq!(
            (
                extractor.n_outputs(),
                classifier.n_inputs(),
                classifier.n_outputs()
            ),
            (512, 512, 10)
        );
        assert!(layers(&spec([3, 28, 32])).is_err());
    }

    /// What is new here is a convolution without pooling.
    #[test]
    fn convolutions_without_pooling_agree_with_the_tensor_library() {
        let device = Device::flex();
        let conv = Conv {
            name: "conv",
            input: [2, 6, 5],
            filters: 3,
            kernel: 3,
            padding: [1, 1],
            pool: 1,
        };
        let net = Net::new(vec![leaf(conv)]);
        let weights = Weights::load(&net, &weights::initial(&net, 1, 0), &device).unwrap();
        let mut rng = crate::random::stream(crate::random::Purpose::Initial, [1, 2, 3]);
        let values = crate::random::uniform(&mut rng, 1.0, 4 * 60);
        let input = Tensor::<1>::from_floats(values.as_slice(), &device).reshape([4, 60]);
        let run = |kernels: bool| {
            let (input, recorded) = (input.clone().autodiff().require_grad(), weights.recorded());
            let (weight, bias) = (recorded.tensor(0), recorded.tensor(1));
            let output = if kernels {
                cpu::conv(&conv, &input, &weight, &bias).unwrap()
            } else {
                conv.compose(input.clone(), weight.clone(), bias)
            };
            assert_eq!(output.dims(), [4, 3 * 6 * 5]);
            let gradients = (output.clone() * output.clone()).sum().backward();
            let gradient = |tensor: Option<Tensor<1>>| crate::weights::values(&tensor.unwrap());
            let to_input = crate::weights::values(&input.grad(&gradients).unwrap());
            [
                crate::weights::values(&output),
                to_input,
                gradient(weight.grad(&gradients)),
            ]
        };
        for (got, expected) in run(true).iter().zip(&run(false)) {
            assert!(
                got.iter()
                    .zip(expected)
                    .all(|(got, expected)| (got - expected).abs() < 1e-4)
            );
        }
    }
}
