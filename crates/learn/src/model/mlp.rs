//! `mlp`: the "2NN" of McMahan et al. 2017, two hidden layers of 200 units; 199,210 parameters on 28×28 with ten
//! classes. Its first layer is what FedMoE-DA would share.

use fednode_core::ConfigError;
use fednode_core::spec::Architecture;

use super::layer::{Activation, Linear};
use super::net::{Block, leaf};
use super::{Reads, Row};

pub(super) const ROW: Row = Row {
    name: "mlp",
    summary: "two hidden layers of 200 units: FedAvg's 2NN",
    reads: Reads::Numbers,
    layers,
};

/// Units of a hidden layer.
const HIDDEN: usize = 200;

fn layers(spec: &Architecture) -> Result<Vec<Block>, ConfigError> {
    let Architecture { input, classes, .. } = *spec;
    let inputs = input.iter().product();
    let (relu, identity) = (Activation::Relu, Activation::Identity);
    Ok(vec![
        leaf(Linear {
            name: "fc1",
            inputs,
            outputs: HIDDEN,
            activation: relu,
            bias: true,
        }),
        leaf(Linear {
            name: "fc2",
            inputs: HIDDEN,
            outputs: HIDDEN,
            activation: relu,
            bias: true,
        }),
        leaf(Linear {
            name: "fc",
            inputs: HIDDEN,
            outputs: classes,
            activation: identity,
            bias: true,
        }),
    ])
}
