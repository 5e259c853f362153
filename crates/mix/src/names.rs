//! Names of tensors that a rule recognises: what an algorithm calls a part decides what a rule does with it.
//!
//! An algorithm that uses such a rule names its tensors after these constants. A layer's tensors are its name, a full
//! stop, and [`WEIGHT`] or [`BIAS`].

/// What the name of a layer's matrix ends with.
pub const WEIGHT: &str = "weight";
/// What the name of a layer's offset ends with.
pub const BIAS: &str = "bias";
/// The layer of a model that reads features: its classifier.
pub const HEAD: &str = "head";

/// The tensor of a member's class prototypes, `[classes, features]`.
pub const PROTOTYPES: &str = "prototypes";
/// The tensor that has a 1 for every class that the member has samples of, `[classes]`.
pub const PRESENT: &str = "prototypes_present";

/// The tensor of a member's shares of use, `[experts]`.
pub const USAGE: &str = "usage";
/// What the names of an expert's tensors begin with, before its number and a full stop.
pub const EXPERTS: &str = "experts.";

/// The generator's first layer, from noise and class to hidden values.
pub const HIDDEN: &str = "generator.hidden";
/// The generator's second layer, from hidden values to features.
pub const FEATURES: &str = "generator.features";
/// The tensor of the shares of the classes in a member's samples, `[classes]`.
pub const SHARES: &str = "class_shares";

/// The tensor of the statistics expert's shares of classes, `[classes]`.
pub const COUNTS: &str = "statistics.counts";
/// The tensor of its sums of features, `[classes, D]`.
pub const SUMS: &str = "statistics.sums";
/// The tensor of its products of features, `[D (D + 1) / 2]`.
pub const SCATTER: &str = "statistics.scatter";

/// Returns the name of a layer's matrix or offset.
pub fn of(layer: &str, tensor: &str) -> String {
    format!("{layer}.{tensor}")
}
