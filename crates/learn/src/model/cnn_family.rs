//! `cnn-1` to `cnn-5`: the five networks of pFedMoE's Table 4 (arXiv 2402.01350), for nodes of different strength.
//!
//! Convolution 5×5 to 16 maps, pooling, convolution 5×5 to 32 (`cnn-2`: 16) maps, pooling, a first hidden layer of 2000
//! (`cnn-1`, `cnn-2`), 1000, 800 or 500 units, 500 hidden units, classes; ReLU between. All end in features of one width,
//! 500, so that heads and extractors of different members of the family fit each other. The paper's size of `cnn-4`
//! does not follow from its own row; 800 units are those of the authors' other code. As in `cnn`, convolutions are not
//! padded, but for images with a side below 16 they are 3×3 with padding 1.

use fednode_core::ConfigError;
use fednode_core::spec::Architecture;

use super::layer::{Activation, Conv, Linear};
use super::net::{Block, leaf};
use super::{Reads, Row, too_small};

/// Smallest side that two unpadded 5×5 convolutions with their poolings leave something of.
const SMALLEST_UNPADDED: usize = 16;
/// Smallest side that two poolings leave something of.
const SMALLEST: usize = 4;
/// Width of the features.
const FEATURES: usize = 500;

pub(super) const ROWS: [Row; 5] = [
    Row {
        name: "cnn-1",
        summary: "two 5x5 convolutions (16, 32), 2000 and 500 hidden units: pFedMoE's largest",
        reads: Reads::Images,
        layers: |spec| layers(spec, "cnn-1", [32, 2000]),
    },
    Row {
        name: "cnn-2",
        summary: "two 5x5 convolutions (16, 16), 2000 and 500 hidden units: pFedMoE's second",
        reads: Reads::Images,
        layers: |spec| layers(spec, "cnn-2", [16, 2000]),
    },
    Row {
        name: "cnn-3",
        summary: "two 5x5 convolutions (16, 32), 1000 and 500 hidden units: pFedMoE's third",
        reads: Reads::Images,
        layers: |spec| layers(spec, "cnn-3", [32, 1000]),
    },
    Row {
        name: "cnn-4",
        summary: "two 5x5 convolutions (16, 32), 800 and 500 hidden units: pFedMoE's fourth",
        reads: Reads::Images,
        layers: |spec| layers(spec, "cnn-4", [32, 800]),
    },
    Row {
        name: "cnn-5",
        summary: "two 5x5 convolutions (16, 32), 500 and 500 hidden units: pFedMoE's smallest",
        reads: Reads::Images,
        layers: |spec| layers(spec, "cnn-5", [32, 500]),
    },
];

/// Makes a member of the family by the maps of its second convolution and the units of its first hidden layer.
fn layers(
    spec: &Architecture,
    model: &str,
    [filters, units]: [usize; 2],
) -> Result<Vec<Block>, ConfigError> {
    let Architecture { input, classes, .. } = *spec;
    let side = input[1].min(input[2]);
    if side < SMALLEST {
        return Err(too_small(model, input, SMALLEST));
    }
    let (kernel, padding) = if side < SMALLEST_UNPADDED {
        (3, [1, 1])
    } else {
        (5, [0, 0])
    };
    let first = Conv {
        name: "conv1",
        input,
        filters: 16,
        kernel,
        padding,
        pool: 2,
    };
    let second = Conv {
        name: "conv2",
        input: first.output(),
        filters,
        kernel,
        padding,
        pool: 2,
    };
    let inputs = second.output().iter().product();
    let linear = |name, inputs, outputs, activation| {
        leaf(Linear {
            name,
            inputs,
            outputs,
            activation,
            bias: true,
        })
    };
    Ok(vec![
        leaf(first),
        leaf(second),
        linear("fc1", inputs, units, Activation::Relu),
        linear("fc2", units, FEATURES, Activation::Relu),
        linear("fc3", FEATURES, classes, Activation::Identity),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Cut, Net, Parameter};

    fn spec(input: [usize; 3]) -> Architecture {
        Architecture {
            input,
            ..Architecture::default()
        }
    }

    #[test]
    fn sizes_are_those_of_table_4() {
        let table = [
            ("cnn-1", 2_621_558, 2_616_548),
            ("cnn-2", 1_815_142, 1_810_132),
            ("cnn-3", 1_320_558, 1_315_548),
            ("cnn-4", 1_060_358, 1_055_348),
            ("cnn-5", 670_058, 665_048),
        ];
        let count = |net: &Net| {
            net.parameters()
                .iter()
                .map(Parameter::n_values)
                .sum::<usize>()
        };
        for (row, (name, whole, extractor)) in ROWS.iter().zip(table) {
            let net = Net::new((row.layers)(&spec([3, 32, 32])).unwrap());
            let (base, head) = net.split(Cut::Head);
            assert_eq!(
                (row.name, count(&net), count(&base)),
                (name, whole, extractor)
            );
            assert_eq!(
                (base.n_outputs(), head.n_inputs()),
                (FEATURES, FEATURES),
                "{name}"
            );
        }
        let small = Net::new((ROWS[4].layers)(&spec([1, 28, 28])).unwrap())
            .split(Cut::Head)
            .0;
        assert_eq!(count(&small), 520_248, "pFedMoE's small extractor");
        assert!((ROWS[0].layers)(&spec([1, 8, 8])).is_ok());
        assert!(
            (ROWS[0].layers)(&spec([1, 3, 8]))
                .unwrap_err()
                .0
                .starts_with("model `cnn-1` needs")
        );
    }
}
