//! The stage after the last round, and the names under which it is known.

use serde::{Deserialize, Serialize};

use crate::config::{self, ConfigError};

/// How foreign modules are ranked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModuleScore {
    /// By the energy of their outputs beside the own module's.
    Energy,
    /// By the cosine of their outputs with the own module's.
    Cosine,
}

/// When the weights of the modules that a sample goes through are made to add up to 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Renormalize {
    /// They are left as they are.
    Never,
    /// With every algorithm.
    Always,
    /// Where something else is added to the mixture or computed from it, so that its size matters.
    Additive,
}

/// What a pool's gate judges by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GateInput {
    /// What the modules take in.
    Features,
    /// The samples as they are.
    Samples,
}

/// What follows the first layer of a pool's gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FirstActivation {
    /// As after the other layers.
    LeakyRelu,
    /// What the authors' code has.
    Relu,
}

/// What the biases of a pool's gate start as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BiasStart {
    /// Zeros.
    Zeros,
    /// Between ±1/sqrt(inputs of their layer), as PyTorch draws them.
    Uniform,
}

crate::config! {
    /// The stage after the last round (PM-MoE, arXiv 2502.00354). Every node publishes its private module, unless it keeps
    /// it. It drops those modules of others that fit it least, and trains a gate over the rest on its own data. It serves
    /// the mixture if its validation samples do not speak against it. Publishing a module reveals something of the data that it was
    /// trained on, the frequency of the classes at least.
    pub struct PoolSpec {
        /// Whether there is such a stage; then every node publishes its private module, unless its `share_module` is false.
        enabled: bool = false,
        /// Most modules that a node takes in, its own among them (1 to 1000). If more are offered, it takes those of the nodes
        /// with the most similar proxies. Without proxies it draws twice as many, and keeps those with the best `score` on
        /// some of its samples.
        max_members: usize = 20,
        /// How foreign modules are ranked: `energy` of their outputs beside the own module's, or their `cosine`.
        score: ModuleScore = ModuleScore::Energy,
        /// Temperature of the energy (above 0); from 0.1 on the ranking is nearly that of the cosine.
        energy_temperature: f64 = 1.0,
        /// Gamma: share of the foreign modules that is dropped, the lowest scores first, rounded down (0 to 1).
        drop_share: f64 = 0.2,
        /// How many modules a sample goes through, the likeliest first; 0 for all.
        top_k: usize = 0,
        /// When the weights of the modules that a sample goes through are made to add up to 1: `never`, `always`, or
        /// `additive`. The last is for mixtures that something is added to or computed from, so that their size matters.
        renormalize: Renormalize = Renormalize::Additive,
        /// Step sizes of the gate (each above 0). With more than one, the validation samples choose. Without `guard` the first
        /// is taken.
        learning_rates: Vec<f64> = vec![0.05, 0.1, 0.5],
        /// Passes over the training samples for the gate, and for fine-tuning (1 to 10000).
        epochs: u32 = 50,
        /// Samples per step of the gate (1 to 65536).
        batch_size: usize = 64,
        /// Whether the samples of an epoch that do not fill a batch are left out of it, unless no batch would be left.
        drop_last: bool = false,
        /// Share of the gate's hidden values that is dropped in training (0 to below 1).
        dropout: f64 = 0.0,
        /// What the gate judges by: `features`, which are what the modules take in, or `samples` as they are (of texts the mean
        /// of their embedded words). Where modules are extractors these are the same.
        gate_input: GateInput = GateInput::Features,
        /// Whether samples are brought to mean 0 and variance 1 before the gate sees them, as the node's training samples are.
        standardize: bool = true,
        /// What follows the gate's first layer: `leaky_relu`, as the others, or `relu`.
        first_activation: FirstActivation = FirstActivation::LeakyRelu,
        /// What the gate's biases start as: `zeros`, or `uniform` between ±1/sqrt(inputs of their layer).
        biases: BiasStart = BiasStart::Zeros,
        /// Whether the epoch is the best by validation loss, and the mixture is served only if it is no worse than the
        /// node's own module on the validation samples.
        guard: bool = true,
        /// Whether a node fine-tunes its own module on its own samples before it publishes it.
        fine_tune: bool = false,
        /// Whether the comparators of a study are computed and reported too: own module fine-tuned, uniform average of
        /// all modules, mixture of all of them.
        controls: bool = false,
    }
}

impl PoolSpec {
    /// The names that [`Self::preset`] knows.
    pub const PRESETS: [&str; 4] = ["fixed", "paper", "code", "best"];

    /// Returns the stage as it is under a name: `fixed`, `paper`, `code` or `best`. The name `fixed` stands for the
    /// default values. The stage of `paper` is as the paper writes it, with k = M, as it has it for S = 20. For S = 0
    /// the paper takes half of them (`pool.top_k`). The stage of `code` is as the authors' release has it by default.
    /// The release takes step sizes from its command line with three of its nine algorithms, and 0.005 with the others.
    /// The stage of `best` is `fixed`, and every module is fine-tuned before it is published. It belongs with
    /// `statistics.enabled` where nodes have an extractor in common.
    ///
    /// # Errors
    /// Offers the nearest name.
    pub fn preset(name: &str) -> Result<Self, ConfigError> {
        let fixed = Self {
            enabled: true,
            ..Self::default()
        };
        let renormalize = Renormalize::Never;
        let faithful = Self {
            renormalize,
            batch_size: 10,
            guard: false,
            standardize: false,
            ..fixed.clone()
        };
        match name {
            "fixed" => Ok(fixed),
            "paper" => Ok(Self {
                learning_rates: vec![0.5],
                gate_input: GateInput::Samples,
                ..faithful
            }),
            "code" => Ok(Self {
                drop_share: 0.0,
                top_k: 2,
                learning_rates: vec![0.1],
                epochs: 10,
                drop_last: true,
                dropout: 0.1,
                first_activation: FirstActivation::Relu,
                biases: BiasStart::Uniform,
                ..faithful
            }),
            "best" => Ok(Self {
                fine_tune: true,
                ..fixed
            }),
            _ => Err(ConfigError(config::unknown_name(
                "preset of the pool",
                name,
                &Self::PRESETS,
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FederationSpec;

    #[test]
    fn every_preset_of_the_pool_is_valid_and_turns_it_on() {
        for name in PoolSpec::PRESETS {
            let pool = PoolSpec::preset(name).unwrap();
            assert!(pool.enabled, "{name}");
            FederationSpec {
                pool,
                ..FederationSpec::default()
            }
            .validate()
            .unwrap();
        }
        assert_eq!(
            PoolSpec::preset("fixd").unwrap_err().0,
            "unknown preset of the pool `fixd`: did you mean `fixed`?"
        );
    }
}
