//! What a node reports of its pool of private modules (PM-MoE).

use serde::{Deserialize, Serialize};

use crate::{NodeId, Score};

/// One member of a pool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PoolMember {
    /// Whose module it is; nothing for the node's own.
    pub node: Option<NodeId>,
    /// How well its outputs fit the own module's, by the score of `pool.preset`; nothing for the own one.
    pub score: Option<f64>,
    /// Whether it was left in.
    pub kept: bool,
    /// Its mean weight over the validation samples (the training samples, if there are none), whether the mixture is
    /// served or not; without a gate 1 for the own module and 0 for all others.
    pub gate_mass: f64,
}

/// What predicts from now on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Served {
    /// The mixture.
    Mixture,
    /// The own module, as before.
    Own {
        /// Why.
        reason: String,
    },
}

/// Own module and mixture on the same samples.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    /// The model with its own module.
    pub own: Score,
    /// The model with the mixture; nothing if no gate was trained. A pool of one is its own module.
    pub mixture: Option<Score>,
}

/// The comparators of a study, on the test samples (`pool.controls`).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Controls {
    /// The own module after as many epochs as the gate; nothing if the module is an extractor.
    pub fine_tuned_head: Option<Score>,
    /// The plain average of all members' outputs.
    pub uniform: Score,
    /// The mixture of all members, none dropped; nothing if no gate was trained. It is never replaced by the own module.
    pub without_denoising: Option<Score>,
}

/// What came of the stage. All scores are those of the model alone, without the statistics expert.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PoolOutcome {
    /// The own module, then the others in the order of their nodes.
    pub members: Vec<PoolMember>,
    /// Who was not let in, and why.
    pub refused: Vec<(NodeId, String)>,
    /// What predicts from now on.
    pub served: Served,
    /// Epochs of the gate at each step size; 0 if none was trained.
    pub epochs: u32,
    /// Training samples that no gate was trained on, since the outputs of all members for them would not fit into memory.
    #[serde(default)]
    pub unseen: u32,
    /// The epoch whose gate was taken.
    pub best_epoch: Option<u32>,
    /// The step size that it was trained with.
    pub learning_rate: Option<f64>,
    /// On the validation samples.
    pub validation: Scores,
    /// On the test samples.
    pub test: Scores,
    /// The comparators, if they are wanted.
    pub controls: Option<Controls>,
}
