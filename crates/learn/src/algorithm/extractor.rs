//! What makes the features that all nodes share: a net with its weights, and for the first layer of an image the means over
//! squares of places ([`crate::maps`]).

use std::borrow::Cow;

use burn::tensor::Tensor;
use fednode_onnx::{Graph, Value};

use super::part::Part;
use crate::maps::{condensed, emit_condensed};
use crate::model::Net;
use crate::weights::Weights;

/// A net that all nodes have, with the weights that all nodes have.
#[derive(Debug)]
pub struct Extractor<'a> {
    net: Cow<'a, Net>,
    weights: Cow<'a, Weights>,
    condenses: bool,
}

impl<'a> Extractor<'a> {
    /// Takes a whole part.
    pub(super) const fn of(part: &'a Part) -> Self {
        Self {
            net: Cow::Borrowed(&part.net),
            weights: Cow::Borrowed(&part.weights),
            condenses: false,
        }
    }

    /// Takes a part whose maps are too many numbers: their means over squares of places are the features.
    pub(super) fn condensed(part: &'a Part) -> Self {
        Self {
            condenses: true,
            ..Self::of(part)
        }
    }

    /// Takes the front of a model, whose weights come first among the model's.
    pub(super) fn front(net: Net, model: &Weights) -> Self {
        let tensors = model.tensors().take(net.parameters().len());
        Self {
            weights: Cow::Owned(Weights::new(tensors.cloned().collect())),
            net: Cow::Owned(net),
            condenses: false,
        }
    }

    /// Returns the features of a batch, `[batch, D]`.
    pub(crate) fn forward(&self, inputs: Tensor<2>) -> Tensor<2> {
        let features = self.net.forward(&self.weights, inputs);
        if self.condenses {
            condensed(&self.net, features)
        } else {
            features
        }
    }

    /// Writes into a graph what [`Self::forward`] computes.
    pub(crate) fn emit(&self, graph: &mut Graph, inputs: Value) -> Value {
        let features = self.net.emit(&self.weights, graph, inputs);
        if self.condenses {
            emit_condensed(&self.net, graph, features)
        } else {
            features
        }
    }
}
