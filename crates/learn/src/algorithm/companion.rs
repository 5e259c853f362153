//! A second network beside the node's own, which is what the nodes share: the small extractor of `pfedmoe`, the small
//! model of `fml`, `fedkd` and `fedapen`.
//!
//! The node's own model may be any; only the companion must be the same on all nodes.

use fednode_core::ConfigError;
use fednode_core::spec::Architecture;

use super::Setup;
use super::hyper::{Hyper, Kind};
use super::part::{Part, Role};
use crate::model::{self, Cut};

/// What the companion is called before the names of its parameters.
pub(super) const PREFIX: &str = "small.";

/// Which model the companion is.
pub(super) const SMALL_MODEL: Hyper = Hyper {
    name: "small_model",
    kind: Kind::Choice(&[
        "same",
        "cnn",
        "lenet5",
        "mlp",
        "linear",
        "vgg16",
        "resnet-8",
        "cnn-1",
        "cnn-2",
        "cnn-3",
        "cnn-4",
        "cnn-5",
        "fasttext",
        "fasttext-pfllib",
        "declared",
    ]),
    default: "same",
    doc: "the model that is shared, beside the node's own; `same` as `model.name`, all nodes being of one model then",
};

/// Makes base and head of the companion, both shared.
pub(super) fn halves(setup: &Setup<'_>) -> Result<[Part; 2], ConfigError> {
    let name = match setup.hyper.text(SMALL_MODEL.name) {
        "same" => setup.model.name.clone(),
        name => name.to_owned(),
    };
    let spec = Architecture {
        name,
        ..setup.model.clone()
    };
    let (base, head) = model::build(&spec)?.split(Cut::Head);
    Ok([base, head].map(|net| {
        Part::new(
            Role::Shared,
            net.prefixed(PREFIX),
            setup.seed,
            0,
            setup.device,
        )
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_model_can_be_shared() {
        let Kind::Choice(words) = SMALL_MODEL.kind else {
            panic!("a choice")
        };
        let names: Vec<&str> = model::TABLE.iter().map(|row| row.name).collect();
        assert_eq!(words[1..], names);
    }
}
