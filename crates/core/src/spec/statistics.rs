//! The statistics expert as all members agree on it.

use serde::{Deserialize, Serialize};

/// What is added up for the statistics expert.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StatisticsFeatures {
    /// What the extractor that all nodes share makes of a sample.
    Extractor,
    /// Images seen through random filters that all nodes draw alike.
    Random,
}

/// How the statistics expert is mixed with a node's own head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StatisticsGate {
    /// By one weight for all samples.
    Weight,
    /// Sample by sample.
    Sample,
}

crate::config! {
    /// The statistics expert. The last round trains nothing. Instead all nodes add up statistics of the shared features.
    /// Each node makes a classifier of the sums with its own prior, and mixes it with its own head as its validation
    /// samples say. The sums reveal the mean features of a node's classes to all members.
    pub struct StatisticsSpec {
        /// Whether there is one.
        enabled: bool = false,
        /// What is added up: `extractor`, the features of the extractor that all nodes share; or `random`, images seen through
        /// random filters that all nodes draw alike, for which they need no extractor in common.
        features: StatisticsFeatures = StatisticsFeatures::Extractor,
        /// To how many numbers the features are projected before they are added up (fewer than there are, 4096 at most; 0 for
        /// as they are). Every node draws the same projection. D numbers take D (D + 1) / 2 to share. Fewer numbers reveal
        /// less of single samples.
        dimensions: usize = 0,
        /// How it is mixed with the own head: by one `weight` for all samples, or `sample` by sample, as certain as each of
        /// the two is. The latter needs 30 validation samples or more that speak for it.
        gate: StatisticsGate = StatisticsGate::Weight,
        /// How many times what chance makes a node's class means may be from those of the others (0 or at least 1). Beyond,
        /// its sums are left out; 0 leaves out only sums that no samples have. Raise it where nodes' samples truly differ.
        max_distance: f64 = 3.0,
    }
}
