//! Parts of a model: what is averaged, what travels as an expert, what is the gate, what stays at home.

use burn::tensor::{Device, Gradients, Tensor};
use fednode_core::{Layout, LayoutMismatch, ParamSet, Slot};

use super::descent::{self, Descent};
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
    /// How its steps are made, and what they remember.
    pub(crate) descent: Descent,
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
            descent: Descent::default(),
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

    /// Replaces its parameters.
    ///
    /// # Errors
    /// Names the first parameter that does not fit; nothing is changed then.
    pub fn load(&mut self, params: &ParamSet, device: &Device) -> Result<(), LayoutMismatch> {
        self.weights = Weights::load(&self.net, params, device)?;
        Ok(())
    }
}

/// Records the weights of all parts on a new tape.
pub(super) fn record(parts: &[Part]) -> Vec<Weights> {
    parts.iter().map(|part| part.weights.recorded()).collect()
}

/// Records the weights of some parts on a new tape; those of the others are plain, so that no step changes them.
pub(super) fn record_only(parts: &[Part], trained: &[usize]) -> Vec<Weights> {
    let one = |(at, part): (usize, &Part)| match trained.contains(&at) {
        true => part.weights.recorded(),
        false => part.weights.clone(),
    };
    parts.iter().enumerate().map(one).collect()
}

/// Returns the weights as they are, for running the model without training it.
pub(super) fn plain(parts: &[Part]) -> Vec<Weights> {
    record_only(parts, &[])
}

/// What a loss says about every parameter of every part; nothing where the loss does not depend on it.
pub(super) type Slopes = Vec<Vec<Option<Tensor<1>>>>;

/// Makes one step of gradient descent in all recorded parts that the loss depends on; returns the loss.
pub(super) fn descend(
    parts: &mut [Part],
    tape: Vec<Weights>,
    loss: Tensor<1>,
    learning_rate: f64,
) -> f64 {
    let (value, slopes) = slopes(tape, loss);
    apply(parts, slopes, learning_rate);
    value
}

/// Differentiates a loss; returns it with the gradients of all recorded parts. The tape is gone then.
pub(super) fn slopes(tape: Vec<Weights>, loss: Tensor<1>) -> (f64, Slopes) {
    let value = f64::from(weights::values(&loss)[0]);
    let mut gradients: Gradients = loss.backward();
    // All gradients are taken before the first parameter changes: with the tape gone, the step happens in place.
    let taken = tape
        .into_iter()
        .map(|weights| weights.take_gradients(&mut gradients))
        .collect();
    (value, taken)
}

/// Makes one step of gradient descent with these gradients.
pub(super) fn apply(parts: &mut [Part], slopes: Slopes, learning_rate: f64) {
    descent::step(parts, slopes, learning_rate);
}
