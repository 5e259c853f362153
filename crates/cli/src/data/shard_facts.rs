//! What is known of a shard when its samples have gone to their node.

use std::sync::Arc;

use fednode_data::{ClassCounts, Shard, Split};
use fednode_runtime::TrainerCard;

/// A shard without its samples.
#[derive(Debug, Clone)]
pub struct ShardFacts {
    pub(super) partition_hash: String,
    classes_present: Vec<u16>,
    counts: ClassCounts,
}

impl ShardFacts {
    /// Takes the samples out of a shard. They go to the node as they are: there is one copy of them.
    pub fn split_from(shard: Shard) -> (Arc<Split>, Self) {
        let about = Self {
            partition_hash: shard.partition_hash,
            classes_present: shard.classes_present,
            counts: shard.counts,
        };
        (Arc::new(shard.split), about)
    }

    /// Describes a node with this shard: data, model and device.
    pub fn card(&self, device: &str, model: String, n_parameters: u64) -> TrainerCard {
        let count =
            |classes: &[usize]| u32::try_from(classes.iter().sum::<usize>()).unwrap_or(u32::MAX);
        TrainerCard {
            device: device.to_owned(),
            model,
            n_parameters,
            train_samples: count(&self.counts.train),
            validation_samples: count(&self.counts.validation),
            test_samples: count(&self.counts.test),
            classes: self
                .classes_present
                .iter()
                .copied()
                .map(u32::from)
                .collect(),
            partition_hash: self.partition_hash.clone(),
        }
    }

    /// Returns how many samples of each class the node has that it does not test on.
    pub fn own(&self) -> Vec<usize> {
        let ClassCounts {
            train, validation, ..
        } = &self.counts;
        train
            .iter()
            .zip(validation)
            .map(|(train, kept)| train + kept)
            .collect()
    }
}
