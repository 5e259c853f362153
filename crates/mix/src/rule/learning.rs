//! How a rule learns: the parameters that `prototypes` and `generator` have in common.

use super::{Kind, Param, Params};

/// How whoever averages learns.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Learning {
    /// Step size.
    pub(super) learning_rate: f64,
    /// Examples of a step.
    pub(super) batch_size: usize,
    /// Passes over the prototypes, or batches that the generator makes.
    pub(super) iterations: u32,
}

/// The parameters of a rule that learns. Their bounds keep a round's work finite, whatever a spec says.
pub(super) const PARAMS: &[Param] = &[
    Param {
        name: "learning_rate",
        doc: "step size",
        kind: Kind::Real {
            min: 1e-9,
            max: 1e3,
        },
        default: "0.005",
    },
    Param {
        name: "batch_size",
        doc: "examples of a step",
        kind: Kind::Count {
            min: 1,
            max: 65_536,
        },
        default: "32",
    },
    Param {
        name: "iterations",
        doc: "passes over the prototypes, or batches that the generator makes",
        kind: Kind::Count {
            min: 0,
            max: 65_536,
        },
        default: "40",
    },
];

impl Learning {
    pub(super) fn of(params: &Params) -> Self {
        Self {
            learning_rate: params.real("learning_rate"),
            batch_size: params.count("batch_size"),
            iterations: params.count("iterations") as u32,
        }
    }
}
