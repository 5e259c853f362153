//! `mlp`: the "2NN" of McMahan et al. 2017, two hidden layers of 200 units; 199,210 parameters on 28×28 with ten
//! classes. Its first layer is what FedMoE-DA would share.

use fednode_core::ConfigError;

use super::Row;
use super::net::{Activation, Layer, Linear};

pub(super) const ROW: Row = Row {
    name: "mlp",
    summary: "two hidden layers of 200 units: FedAvg's 2NN",
    layers,
};

/// Units of a hidden layer.
const HIDDEN: usize = 200;

fn layers(input: [usize; 3], classes: usize) -> Result<Vec<Layer>, ConfigError> {
    let inputs = input.iter().product();
    let (relu, identity) = (Activation::Relu, Activation::Identity);
    Ok(vec![
        Layer::Linear(Linear {
            name: "fc1",
            inputs,
            outputs: HIDDEN,
            activation: relu,
            bias: true,
        }),
        Layer::Linear(Linear {
            name: "fc2",
            inputs: HIDDEN,
            outputs: HIDDEN,
            activation: relu,
            bias: true,
        }),
        Layer::Linear(Linear {
            name: "fc",
            inputs: HIDDEN,
            outputs: classes,
            activation: identity,
            bias: true,
        }),
    ])
}
