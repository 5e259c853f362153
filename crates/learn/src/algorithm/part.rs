//! Parts of a model: what is averaged, what travels as an expert, what is the gate, what stays at home.

use burn::tensor::{Device, Tensor};
use fednode_core::{Layout, LayoutMismatch, ParamSet, Slot};
use fednode_onnx::{Graph, Value};

use crate::model::Net;
use crate::weights::{self, Weights};

/// What a part is to the federation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Averaged over all nodes; parts of this role together are the shared part.
    Shared,
    /// An expert that goes from peer to peer.
    Expert(Slot),
    /// What is gossiped as proxies: the gate, whose columns they are, or statistics in their place.
    Gate,
    /// Never leaves the node.
    Private,
}

impl Role {
    /// Returns what distinguishes the parameters of a part with this role in a node's complete state.
    ///
    /// Shared and private parts have no prefix, so that a model without experts is saved under the names that it has in
    /// PyTorch.
    pub fn prefix(self) -> String {
        match self {
            Self::Expert(slot) => format!("experts.{slot}."),
            Self::Shared | Self::Gate | Self::Private => String::new(),
        }
    }
}

/// One part of a node's model.
#[derive(Debug, Clone)]
pub struct Part {
    /// What it is to the federation.
    pub role: Role,
    /// Its architecture.
    pub net: Net,
    /// Its numbers.
    pub weights: Weights,
    /// What share of itself every trained parameter loses in a step, beside the gradient and times the learning rate.
    pub weight_decay: f64,
}

impl Part {
    /// Makes a part with its initial numbers; parts of one net, seed and slot start alike on all nodes.
    pub fn new(role: Role, net: Net, seed: u64, slot: u64, device: &Device) -> Self {
        let params = weights::initial(&net, seed, slot);
        let weights =
            Weights::load(&net, &params, device).expect("initial parameters fit their net");
        Self {
            role,
            net,
            weights,
            weight_decay: 0.0,
        }
    }

    /// Returns what distinguishes its parameters from those of other parts in a node's complete state.
    pub fn prefix(&self) -> String {
        self.role.prefix()
    }

    /// Returns its name for people.
    pub fn title(&self) -> String {
        match self.role {
            Role::Shared => "the shared part".to_owned(),
            Role::Expert(slot) => format!("expert {slot}"),
            Role::Gate => "the gate".to_owned(),
            Role::Private => "the private part".to_owned(),
        }
    }

    /// Returns its parameters as plain numbers.
    pub fn params(&self) -> ParamSet {
        self.weights.save(&self.net)
    }

    /// Returns names and shapes of its parameters.
    pub fn layout(&self) -> Layout {
        self.net.layout()
    }

    /// Writes into a graph what its net computes with its own weights.
    pub(crate) fn emit(&self, graph: &mut Graph, input: Value) -> Value {
        self.net.emit(&self.weights, graph, input)
    }

    /// Replaces its parameters.
    ///
    /// # Errors
    /// Names the first parameter that does not fit; nothing is changed then.
    pub fn load(&mut self, params: &ParamSet, device: &Device) -> Result<(), LayoutMismatch> {
        self.weights = Weights::load(&self.net, params, device)?;
        Ok(())
    }
}

/// Returns the weights as they are, for running the model without training it.
pub(super) fn plain(parts: &[Part]) -> Vec<Weights> {
    parts.iter().map(|part| part.weights.clone()).collect()
}

/// What a loss says about every parameter of every part; nothing where the loss does not depend on it.
pub type Gradients = Vec<Vec<Option<Tensor<1>>>>;
