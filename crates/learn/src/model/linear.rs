//! `linear`: one layer from inputs to classes, which is logistic regression; `(D + 1) C` parameters.

use fednode_core::ConfigError;
use fednode_core::spec::Architecture;

use super::layer::{Activation, Linear};
use super::net::{Block, leaf};
use super::{Reads, Row};

pub(super) const ROW: Row = Row {
    name: "linear",
    summary: "one layer: logistic regression, for tables of few rows",
    reads: Reads::Numbers,
    layers,
};

fn layers(spec: &Architecture) -> Result<Vec<Block>, ConfigError> {
    let Architecture { input, classes, .. } = *spec;
    Ok(vec![leaf(Linear {
        name: "fc",
        inputs: input.iter().product(),
        outputs: classes,
        activation: Activation::Identity,
        bias: true,
    })])
}
