//! The stage after the last round, and the names under which it is known.

use serde::{Deserialize, Serialize};

/// A named way of the stage; its numbers are where it is carried out (`fednode_learn`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    /// What is recommended.
    Fixed,
    /// As the paper has it, with k = M (as it has it for S = 20; for S = 0 it takes half of them).
    Paper,
    /// As the authors' release has it by default.
    Code,
    /// As `fixed`, and every module is fine-tuned before it is published. It belongs with `statistics.enabled` where
    /// nodes have an extractor in common.
    Best,
}

impl Preset {
    /// The names of all presets.
    pub const NAMES: [&str; 4] = ["fixed", "paper", "code", "best"];
}

crate::config! {
    /// The stage after the last round (PM-MoE, arXiv 2502.00354). Every node publishes its private module, unless it keeps
    /// it. It drops those modules of others that fit it least, and trains a gate over the rest on its own data. It serves
    /// the mixture if its validation samples do not speak against it. Publishing a module reveals something of the data that it was
    /// trained on, the frequency of the classes at least.
    pub struct PoolSpec {
        /// Which stage there is: `fixed` (what is recommended), `paper` (as it is written), `code` (as the authors' release has
        /// it) or `best` (`fixed`, and every module is fine-tuned before it is published). Absent for none. With one, every
        /// node publishes its private module, unless its `share_module` is false.
        preset: Option<Preset> = None,
        /// Passes over the training samples for the gate, and for fine-tuning (1 to 10000); absent as the preset has it.
        epochs: Option<u32> = None,
        /// Most modules that a node takes in, its own among them (1 to 1000). If more are offered, it takes those of the nodes
        /// with the most similar proxies. Without proxies it draws twice as many, and keeps those that fit best.
        max_members: usize = 20,
        /// Whether the comparators of a study are computed and reported too: own module fine-tuned, uniform average of all
        /// modules, mixture of all of them.
        controls: bool = false,
    }
}

impl PoolSpec {
    /// Tells whether there is such a stage.
    pub const fn is_enabled(&self) -> bool {
        self.preset.is_some()
    }
}
