//! The statistics expert as all members agree on it.

use serde::{Deserialize, Serialize};

/// What is added up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StatisticsFeatures {
    /// The features of the extractor that all nodes share.
    Extractor,
    /// Images seen through random filters that all nodes draw alike.
    Random,
}

/// How the expert is mixed with a node's own head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MixedBy {
    /// By one weight for all samples.
    Weight,
    /// Sample by sample.
    Sample,
}

crate::config! {
    /// The statistics expert: the last round, instead of training, adds up everybody's statistics of the shared features, of
    /// which each node makes a classifier with its own prior and mixes it with its own head as its validation samples say.
    /// The sums reveal the mean features of a node's classes to all members.
    pub struct StatisticsSpec {
        /// Whether there is one.
        enabled: bool = false,
        /// What is added up: `extractor`, the features of the extractor that all nodes share; or `random`, images seen through
        /// random filters that all nodes draw alike, for which they need no extractor in common.
        features: StatisticsFeatures = StatisticsFeatures::Extractor,
        /// To how many numbers the features are projected before they are added up, by a draw that everybody repeats (fewer than
        /// there are, 4096 at most; 0 for as they are). D numbers take D (D + 1) / 2 to share, and say the less of single samples the fewer they are.
        dimensions: usize = 0,
        /// How it is mixed with the own head: by one `weight` for all samples, or `sample` by sample, as certain as each of
        /// the two is, on nodes whose validation samples (30 or more) speak for that.
        gate: MixedBy = MixedBy::Weight,
    }
}
