//! The numbers of the pool's presets, and what a federation changes of them.

use fednode_core::spec::{PoolSpec, Preset};
use serde::{Deserialize, Serialize};

use crate::model::Activation;

/// How the stage is carried out.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolSettings {
    /// Most modules that a node takes in, its own among them.
    pub max_members: usize,
    /// How foreign modules are ranked.
    pub score: ModuleScore,
    /// Gamma: share of the foreign modules that is dropped, the lowest scores first, rounded down.
    pub drop_share: f64,
    /// How many modules a sample goes through, the likeliest first; 0 for all.
    pub top_k: usize,
    /// When the weights of the modules that a sample goes through are made to add up to 1.
    pub renormalize: Renormalize,
    /// Step sizes of the gate; the validation samples choose, without `guard` the first is taken.
    pub learning_rates: Vec<f64>,
    /// Passes over the training samples for the gate, and for fine-tuning.
    pub epochs: u32,
    /// Samples per step of the gate.
    pub batch_size: usize,
    /// Whether the samples of an epoch that do not fill a batch are left out of it, unless no batch would be left.
    pub drop_last: bool,
    /// The network that weighs the modules.
    pub gate: GateSettings,
    /// Whether the epoch is the best by validation loss, and the mixture is served only if it is no worse than the node's
    /// own module on the validation samples.
    pub guard: bool,
    /// Whether a node fine-tunes its own module before it publishes it.
    pub fine_tune: bool,
    /// Whether the comparators of a study are computed too.
    pub controls: bool,
}

/// The network that weighs the modules.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GateSettings {
    /// What it judges by. Where modules are extractors both are the same.
    pub input: GateInput,
    /// Whether samples are brought to mean 0 and variance 1 before it sees them, as the node's training samples are.
    pub standardize: bool,
    /// Share of its hidden values that is dropped in training (0 to below 1).
    pub dropout: f64,
    /// What follows its first layer.
    pub first_activation: Activation,
    /// What its biases start as.
    pub biases: BiasStart,
}

/// How foreign modules are ranked.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ModuleScore {
    /// By the energy of their outputs beside the own module's, at this temperature.
    Energy(f64),
    /// By their cosine.
    Cosine,
}

/// When weights are made to add up to 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renormalize {
    /// Never.
    Never,
    /// Where something else is added to the mixture or computed from it, so that its size matters.
    Additive,
}

/// What a gate judges by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GateInput {
    /// What the modules take in.
    Features,
    /// The samples themselves; of texts the mean of their embedded words.
    Samples,
}

/// What a gate's biases start as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BiasStart {
    /// Zeros.
    Zeros,
    /// Uniform between ±1/sqrt(inputs of their layer), as PyTorch has it.
    Uniform,
}

impl PoolSettings {
    /// Returns a preset as it is.
    pub fn preset(preset: Preset) -> Self {
        match preset {
            Preset::Fixed => Self::fixed(),
            Preset::Paper => Self::paper(),
            Preset::Code => Self::code(),
            Preset::Best => Self {
                fine_tune: true,
                ..Self::fixed()
            },
        }
    }

    /// Returns what a federation has agreed on: its preset, with the keys that it sets. Without a preset there is no such
    /// stage, and the settings are those of `fixed`.
    pub fn of(spec: &PoolSpec) -> Self {
        let preset = Self::preset(spec.preset.unwrap_or(Preset::Fixed));
        Self {
            max_members: spec.max_members,
            epochs: spec.epochs.unwrap_or(preset.epochs),
            controls: spec.controls,
            ..preset
        }
    }

    fn fixed() -> Self {
        Self {
            max_members: 20,
            score: ModuleScore::Energy(1.0),
            drop_share: 0.2,
            top_k: 0,
            renormalize: Renormalize::Additive,
            learning_rates: vec![0.05, 0.1, 0.5],
            epochs: 50,
            batch_size: 64,
            drop_last: false,
            gate: GateSettings {
                input: GateInput::Features,
                standardize: true,
                dropout: 0.0,
                first_activation: Activation::LeakyRelu,
                biases: BiasStart::Zeros,
            },
            guard: true,
            fine_tune: false,
            controls: false,
        }
    }

    /// What paper and release have in common.
    fn faithful() -> Self {
        let fixed = Self::fixed();
        Self {
            renormalize: Renormalize::Never,
            batch_size: 10,
            guard: false,
            gate: GateSettings {
                standardize: false,
                ..fixed.gate
            },
            ..fixed
        }
    }

    /// As it is written, with k = M (as it has it for S = 20; for S = 0 it takes half of them).
    fn paper() -> Self {
        let faithful = Self::faithful();
        Self {
            learning_rates: vec![0.5],
            gate: GateSettings {
                input: GateInput::Samples,
                ..faithful.gate
            },
            ..faithful
        }
    }

    /// As the authors' release has it by default. It takes step sizes from its command line with three of its nine
    /// algorithms, and 0.005 with the others.
    fn code() -> Self {
        let faithful = Self::faithful();
        Self {
            drop_share: 0.0,
            top_k: 2,
            learning_rates: vec![0.1],
            epochs: 10,
            drop_last: true,
            gate: GateSettings {
                dropout: 0.1,
                first_activation: Activation::Relu,
                biases: BiasStart::Uniform,
                ..faithful.gate
            },
            ..faithful
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_federation_changes_what_it_sets_and_nothing_else() {
        let spec = PoolSpec {
            preset: Some(Preset::Code),
            epochs: Some(3),
            ..PoolSpec::default()
        };
        let expected = PoolSettings {
            epochs: 3,
            ..PoolSettings::preset(Preset::Code)
        };
        assert_eq!(PoolSettings::of(&spec), expected);
        assert_eq!(expected.gate.first_activation, Activation::Relu);
        let best = PoolSettings::preset(Preset::Best);
        assert!(best.fine_tune && best.guard && best.epochs == 50);
        assert!(!expected.fine_tune && !expected.guard, "the preset decides");
    }
}
