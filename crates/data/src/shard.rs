//! One node's shard: the only call a daemon needs.

use std::collections::BTreeSet;

use crate::error::DataError;
use crate::partition::{NodeIndices, Partition, Request, Rule, stratified};
use crate::samples::Split;
use crate::source::{DataSource, Facts, Pool, Source};

/// What all nodes of a federation agree on about the division.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ShardParams {
    /// Nodes to divide among.
    pub nodes: usize,
    /// Seed of the division and of the validation split.
    pub seed: u64,
    /// Samples per node, training and test together; 0 divides everything.
    pub samples_per_node: usize,
    /// Share of a node's training samples that it keeps for validation (0 to 0.5).
    pub validation_share: f64,
}

/// Samples of each class of a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassCounts {
    /// In the training samples.
    pub train: Vec<usize>,
    /// In the validation samples.
    pub validation: Vec<usize>,
    /// In the test samples.
    pub test: Vec<usize>,
}

/// One node's share of a data set, in memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Shard {
    /// Its samples.
    pub split: Split,
    /// Hash of the whole partition; where each node brings its own data, of its own lists.
    pub partition_hash: String,
    /// The classes that occur in it, ascending.
    pub classes_present: Vec<u16>,
    /// How often.
    pub counts: ClassCounts,
}

/// Divides a source and reads one shard of it; nothing else of the source stays in memory.
///
/// With the partition `own` the whole source is the shard, whatever the index.
///
/// # Errors
/// One line that names the file, the text or the shard that is wrong, and the cause.
pub fn load_shard(
    source: &DataSource,
    partition: &str,
    params: &ShardParams,
    shard: usize,
) -> Result<Shard, DataError> {
    let rule: Rule = partition.parse()?;
    let source = source.open()?;
    check_vocabulary(&rule, source.as_ref())?;
    let pool = source.pool()?;
    let partition = divide(&rule, &pool, params)?;
    let shard = if rule.is_own() { 0 } else { shard };
    let nodes = partition.nodes().len();
    let indices = partition
        .nodes()
        .get(shard)
        .ok_or(DataError::NoSuchShard { shard, nodes })?;
    let (train, validation) = hold_out(indices, &pool.labels, params, shard)?;

    let wanted = [train.as_slice(), &validation, &indices.test].concat();
    let mut train_samples = source.read(&pool, &wanted)?;
    let mut validation_samples = train_samples.split_off(train.len());
    let test = validation_samples.split_off(validation.len());
    let split = Split {
        train: train_samples,
        validation: validation_samples,
        test,
    };
    Ok(describe(split, partition.hash()))
}

/// Reads the shards of all nodes in one go, for a simulation: the same as [`load_shard`] for each, but the source is read
/// once.
///
/// # Errors
/// As [`load_shard`].
pub fn load_shards(
    source: &DataSource,
    partition: &str,
    params: &ShardParams,
) -> Result<Vec<Shard>, DataError> {
    let rule: Rule = partition.parse()?;
    let source = source.open()?;
    check_vocabulary(&rule, source.as_ref())?;
    let pool = source.pool()?;
    let partition = divide(&rule, &pool, params)?;
    let mut wanted = Vec::new();
    let mut ends = Vec::new();
    for (shard, indices) in partition.nodes().iter().enumerate() {
        let (train, validation) = hold_out(indices, &pool.labels, params, shard)?;
        for part in [&train, &validation, &indices.test] {
            ends.push(wanted.len());
            wanted.extend_from_slice(part);
        }
    }
    let mut samples = source.read(&pool, &wanted)?;
    let hash = partition.hash();
    let mut shards = Vec::with_capacity(partition.nodes().len());
    // From the last to the first: each is cut off the end.
    while let (Some(test), Some(validation), Some(train)) = (ends.pop(), ends.pop(), ends.pop()) {
        let test = samples.split_off(test);
        let validation = samples.split_off(validation);
        let train = samples.split_off(train);
        shards.push(describe(
            Split {
                train,
                validation,
                test,
            },
            hash.clone(),
        ));
    }
    shards.reverse();
    Ok(shards)
}

/// Divides a pool as [`load_shard`] does, without reading any sample: for who needs only the hash or the counts.
///
/// # Errors
/// As [`Rule::divide`].
pub fn divide(rule: &Rule, pool: &Pool, params: &ShardParams) -> Result<Partition, DataError> {
    let request = Request {
        labels: &pool.labels,
        classes: pool.class_names.len(),
        nodes: params.nodes,
        samples_per_node: params.samples_per_node,
    };
    rule.divide(&request, params.seed)
}

/// Refuses texts of one's own with a vocabulary of their own: the same number would mean another word on every node.
///
/// # Errors
/// Says that a vocabulary file is needed.
pub fn check_vocabulary(rule: &Rule, source: &dyn Source) -> Result<(), DataError> {
    if !rule.is_own() {
        return Ok(());
    }
    match source.describe()? {
        Facts::Text {
            is_counted: true, ..
        } => Err(DataError::OwnVocabulary),
        _ => Ok(()),
    }
}

/// Returns how many of a node's samples are set aside for validation: at least one if any share is wanted and there are
/// two to choose from.
pub fn n_validation(samples: usize, share: f64) -> usize {
    let share = share.clamp(0.0, 0.5);
    let fewest = usize::from(share > 0.0 && samples > 1);
    ((samples as f64 * share).round() as usize).max(fewest)
}

/// Sets validation samples aside, by class.
fn hold_out(
    indices: &NodeIndices,
    labels: &[u16],
    params: &ShardParams,
    shard: usize,
) -> Result<(Vec<u32>, Vec<u32>), DataError> {
    for (part, list) in [("training", &indices.train), ("test", &indices.test)] {
        if list.is_empty() {
            return Err(DataError::EmptyShard { shard, part });
        }
    }
    let count = n_validation(indices.train.len(), params.validation_share);
    Ok(stratified(
        &indices.train,
        labels,
        count,
        params.seed,
        shard as u64,
    ))
}

fn describe(split: Split, partition_hash: String) -> Shard {
    let counts = ClassCounts {
        train: split.train.class_counts(),
        validation: split.validation.class_counts(),
        test: split.test.class_counts(),
    };
    let parts = [&split.train, &split.validation, &split.test];
    let present: BTreeSet<u16> = parts
        .iter()
        .flat_map(|part| &part.labels)
        .copied()
        .collect();
    Shard {
        split,
        partition_hash,
        classes_present: present.into_iter().collect(),
        counts,
    }
}
