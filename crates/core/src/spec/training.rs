//! The local update as all members agree on it.

use serde::{Deserialize, Serialize};

use super::Schedule;
use crate::Augmentation;

/// What makes steps of gradients in the local update.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OptimizerKind {
    /// Stochastic gradient descent, with momentum if `training.momentum` says so.
    #[default]
    Sgd,
    /// Adam; weight decay is part of the gradient.
    Adam,
    /// Adam; weight decay is apart from the gradient.
    Adamw,
}

crate::config! {
    /// The local update.
    pub struct TrainingSpec {
        /// E: passes over the node's training samples per round (1 to 1000).
        local_epochs: u32 = 2,
        /// How many of the next round's epochs a node trains while it waits for the exchange (0 to `local_epochs`, 0 as in the
        /// papers). They start from its own model as it was published. What they change is added to what the exchange
        /// brings. For algorithms whose epochs are all alike; see `fednode algorithms NAME`.
        ahead_epochs: u32 = 0,
        /// Samples per step (1 to 65536).
        batch_size: usize = 20,
        /// Step size (above 0).
        learning_rate: f64 = 0.01,
        /// What makes steps of gradients: `sgd` (the default), `adam` or `adamw`. Its memory begins anew in every local
        /// update. Some algorithms prescribe plain steps; see `fednode algorithms NAME`.
        optimizer: OptimizerKind = OptimizerKind::Sgd,
        /// What share of the last step a step of `sgd` keeps (0 to below 1, 0 for plain SGD).
        momentum: f64 = 0.0,
        /// How the learning rate changes from round to round: `constant` (the default), `step:EVERY:FACTOR` (times FACTOR, above
        /// 0 to 1, after every so many rounds) or `cosine` (down to nearly 0 in the last round). `step` alone is
        /// `step:1:0.99`.
        schedule: Schedule = Schedule::Constant,
        /// Rounds before the schedule begins, in which the learning rate rises in equal steps (0 to below `rounds`, 0 by
        /// default).
        warmup_rounds: u32 = 0,
        /// What share of itself a trained parameter loses in a step, times the step size (0 or above).
        weight_decay: f64 = 0.0,
        /// Length to which the gradient of a step is cut down if it is longer (0 for never). With `privacy.epsilon` it is that
        /// of each sample's gradient, and 0 stands for 1.
        clip_norm: f64 = 0.0,
        /// What is done to training images, anew in every epoch: `none`, `crop` (shifted by up to 4 pixels), `flip` (half of
        /// them mirrored) or `crop-flip`.
        augmentation: Augmentation = Augmentation::None,
    }
}
