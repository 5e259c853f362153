//! One node's shard: the only call a daemon needs.
//!
//! ```text
//! DataSource ─► Divided ── shard ──► Shard      one node
//!    Rule   ─►         ├── shards ─► Shards     all nodes, for a simulation
//!                      └── tests ──► Samples    everyone's test samples
//! ```
//!
//! Whoever reads samples of a division reads them here, so that transforms change them in one place.

use std::collections::BTreeSet;
use std::sync::Arc;

use fednode_core::random::Dice;

use crate::error::DataError;
use crate::extractor::Extractor;
use crate::grown::Beginning;
use crate::partition::{Known, NodeIndices, Partition, Request, Rule, by_group, stratified};
use crate::samples::{Samples, Split};
use crate::source::{DataSource, Facts, Pool, Source};
use crate::transform::{Dealt, Part};

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
    /// Of a node's own data, which rows it began with.
    pub began_with: Option<Beginning>,
    /// Whether rows may be appended while it is in use: they change nothing that the node is judged by.
    pub may_grow: bool,
}

/// A data set and its division among the nodes, before any sample is read.
#[derive(Debug)]
pub struct Divided {
    source: Box<dyn Source>,
    extractor: Option<Arc<dyn Extractor>>,
    pool: Pool,
    rule: Rule,
    params: ShardParams,
    partition: Partition,
    /// The rows that are divided, if others were appended since; else all are.
    first: Option<Pool>,
}

impl Divided {
    /// Opens a source and divides it.
    ///
    /// # Errors
    /// One line that names the file or the text that is wrong, or the transform that cannot change these data.
    pub fn new(source: &DataSource, rule: Rule, params: ShardParams) -> Result<Self, DataError> {
        let extractor = source.extractor().cloned();
        let source = source.open()?;
        check_vocabulary(&rule, source.as_ref())?;
        let pool = source.pool()?;
        if !rule.transforms().is_empty() {
            let (facts, n_classes) = (source.describe()?, pool.class_names.len());
            rule.transforms().check(facts, pool.shape, n_classes)?;
        }
        let partition = divide(&rule, &pool, &params)?;
        Ok(Self {
            source,
            extractor,
            pool,
            rule,
            params,
            partition,
            first: None,
        })
    }

    /// As [`Self::new`], for data of a node's own that have grown since it began with some rows. Rows that the data themselves
    /// divide are divided anew.
    ///
    /// # Errors
    /// As [`Self::new`], and if the first rows are others now.
    pub fn grown(
        source: &DataSource,
        rule: Rule,
        params: ShardParams,
        began_with: &Beginning,
    ) -> Result<Self, DataError> {
        let divided = Self::new(source, rule, params)?;
        let (rows, now) = (began_with.rows, divided.pool.labels.len());
        if !divided.is_own() || divided.pool.tests.is_some() {
            return Ok(divided);
        }
        if now < rows {
            return Err(DataError::Fewer { now, rows });
        }
        let first = divided.pool.first(rows);
        if Beginning::of(&first) != *began_with {
            return Err(DataError::Moved(rows));
        }
        if now == rows {
            return Ok(divided);
        }
        Ok(Self {
            partition: divide(&divided.rule, &first, &params)?,
            first: Some(first),
            ..divided
        })
    }

    /// Leaves out the rows that were appended.
    fn without_appended(mut self) -> Self {
        if let Some(first) = self.first.take() {
            self.pool = first;
        }
        self
    }

    /// Returns the rows that are divided.
    fn divided_rows(&self) -> &Pool {
        self.first.as_ref().unwrap_or(&self.pool)
    }

    /// Adds the rows that were appended: those of a group that is held out go to where it is, all others to training.
    fn append(&self, [train, validation, test]: &mut [Vec<u32>; 3]) {
        let held_out = |list: &[u32]| -> BTreeSet<u32> {
            let groups = self.pool.groups.iter();
            let of_list = groups.flat_map(|groups| list.iter().map(|at| groups[*at as usize]));
            of_list.collect()
        };
        let (validated, tested) = (held_out(validation), held_out(test));
        for row in self.divided_rows().labels.len()..self.pool.labels.len() {
            let group = self.pool.groups.as_ref().map(|groups| groups[row]);
            let is_in = |groups: &BTreeSet<u32>| group.is_some_and(|group| groups.contains(&group));
            let list = if is_in(&tested) {
                &mut *test
            } else if is_in(&validated) {
                &mut *validation
            } else {
                &mut *train
            };
            list.push(row as u32);
        }
    }

    /// Returns which samples each node has.
    pub fn partition(&self) -> &Partition {
        &self.partition
    }

    /// Tells whether no samples for tests are what was asked for.
    pub fn keeps_no_test(&self) -> bool {
        self.rule.keeps_no_test()
    }

    /// Tells whether this is one node's own data, which nobody else divides.
    pub fn is_own(&self) -> bool {
        self.rule.is_own()
    }

    /// Counts the classes of a node's training (and validation) samples and of its test samples, as the node calls them.
    ///
    /// # Panics
    /// Panics if there is no such node.
    pub fn class_counts(&self, node: usize) -> [Vec<usize>; 2] {
        let n_classes = self.pool.class_names.len();
        [Part::Train, Part::Test].map(|part| {
            let mut counts = vec![0; n_classes];
            let labels = self.dealt(node, part).labels(&self.pool.labels, n_classes);
            labels
                .into_iter()
                .for_each(|label| counts[usize::from(label)] += 1);
            counts
        })
    }

    /// Returns the numbers of a node's test samples; nothing where classes are predicted.
    ///
    /// # Panics
    /// Panics if there is no such node.
    pub fn test_numbers(&self, node: usize) -> Option<Vec<f32>> {
        let targets = self.pool.targets.as_ref()?;
        let test = self.partition.nodes()[node].test.iter();
        Some(test.map(|index| targets[*index as usize]).collect())
    }

    /// Reads the shard of a node, counted from 0.
    ///
    /// # Errors
    /// As [`load_shard`].
    pub fn shard(&self, shard: usize) -> Result<Shard, DataError> {
        let nodes = self.partition.nodes().len();
        let indices = self
            .partition
            .nodes()
            .get(shard)
            .ok_or(DataError::NoSuchShard { shard, nodes })?;
        let (train, validation) = self.hold_out(indices, shard)?;
        let mut lists = [train, validation, indices.test.clone()];
        self.append(&mut lists);
        let samples = self.source.read(&self.pool, &lists.concat())?;
        self.finish(shard, samples, lists.each_ref().map(Vec::as_slice))
    }

    /// Reads the shards of all nodes in one go.
    ///
    /// # Errors
    /// As [`load_shards`].
    pub fn shards(&self) -> Result<Vec<Shard>, DataError> {
        let nodes = self.partition.nodes();
        let held_out = nodes
            .iter()
            .enumerate()
            .map(|(shard, indices)| self.hold_out(indices, shard))
            .collect::<Result<Vec<_>, _>>()?;
        let lists: Vec<[&[u32]; 3]> = held_out
            .iter()
            .zip(nodes)
            .map(|((train, validation), indices)| {
                [train.as_slice(), validation, indices.test.as_slice()]
            })
            .collect();
        let wanted: Vec<u32> = lists.iter().flat_map(|lists| lists.concat()).collect();
        let mut samples = self.source.read(&self.pool, &wanted)?;
        let mut shards = Vec::with_capacity(nodes.len());
        // From the last to the first: each is cut off the end.
        for (shard, lists) in lists.into_iter().enumerate().rev() {
            let n_samples: usize = lists.iter().map(|list| list.len()).sum();
            let own = samples.split_off(samples.len() - n_samples);
            shards.push(self.finish(shard, own, lists)?);
        }
        shards.reverse();
        Ok(shards)
    }

    /// Reads the test samples of all nodes, node by node, each as its node has it.
    ///
    /// # Errors
    /// As [`load_shard`].
    pub fn tests(&self) -> Result<Samples, DataError> {
        let nodes = self.partition.nodes();
        let wanted: Vec<u32> = nodes.iter().flat_map(|node| node.test.clone()).collect();
        let mut samples = self.source.read(&self.pool, &wanted)?;
        let mut from = 0;
        for (number, node) in nodes.iter().enumerate() {
            self.dealt(number, Part::Test)
                .change(&node.test, &mut samples, from);
            from += node.test.len();
        }
        self.features(samples)
    }

    /// Changes the samples of a node as the transforms say, and takes them apart: training, validation, test.
    fn finish(
        &self,
        shard: usize,
        samples: Samples,
        lists: [&[u32]; 3],
    ) -> Result<Shard, DataError> {
        let [train, validation, test] = lists;
        let learned = self.dealt(shard, Part::Train);
        let mut train_samples = samples;
        let mut validation_samples = train_samples.split_off(train.len());
        let mut test_samples = validation_samples.split_off(validation.len());
        learned.change_training(train, &mut train_samples);
        learned.change(validation, &mut validation_samples, 0);
        self.dealt(shard, Part::Test)
            .change(test, &mut test_samples, 0);
        let split = Split {
            train: self.features(train_samples)?,
            validation: self.features(validation_samples)?,
            test: self.features(test_samples)?,
        };
        let began_with = self.is_own().then(|| Beginning::of(self.divided_rows()));
        let shard = describe(split, self.partition.hash(), began_with);
        Ok(Shard {
            may_grow: self.is_own() && self.pool.tests.is_none() && self.source.grows_at_the_end(),
            ..shard
        })
    }

    /// Returns what models see of samples.
    fn features(&self, samples: Samples) -> Result<Samples, DataError> {
        match &self.extractor {
            Some(extractor) => samples.extracted(extractor.as_ref()),
            None => Ok(samples),
        }
    }

    /// Sets validation samples aside: by class, or by group where there are groups.
    fn hold_out(
        &self,
        indices: &NodeIndices,
        shard: usize,
    ) -> Result<(Vec<u32>, Vec<u32>), DataError> {
        let (train, params) = (&indices.train, &self.params);
        for (part, is_empty) in [
            ("training", train.is_empty()),
            ("test", indices.test.is_empty() && !self.keeps_no_test()),
        ] {
            if is_empty {
                return Err(DataError::EmptyShard { shard, part });
            }
        }
        let (count, number) = (
            n_validation(train.len(), params.validation_share),
            shard as u64,
        );
        let rows = self.divided_rows();
        if let Some(groups) = &rows.groups {
            let mut dice = Dice::new("validation groups", params.seed, number);
            let divided = by_group(train, groups, count, &mut dice);
            return Ok((divided.train, divided.test));
        }
        let (strata, _) = rows.strata();
        Ok(stratified(train, &strata, count, params.seed, number))
    }

    /// Deals domains to one list of a node.
    fn dealt(&self, node: usize, part: Part) -> Dealt<'_> {
        let indices = &self.partition.nodes()[node];
        let list = match part {
            Part::Train => &indices.train,
            Part::Test => &indices.test,
        };
        self.rule
            .transforms()
            .deal(self.params.seed, node, part, list)
    }
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
    let divided = Divided::new(source, partition.parse()?, *params)?;
    divided.shard(if divided.is_own() { 0 } else { shard })
}

/// As [`load_shard`], for a node that began with some rows of its own data: see [`Divided::grown`].
///
/// # Errors
/// As [`load_shard`], and if the first rows are others now.
pub fn load_grown_shard(
    source: &DataSource,
    partition: &str,
    params: &ShardParams,
    shard: usize,
    began_with: &Beginning,
) -> Result<Shard, DataError> {
    let divided = Divided::grown(source, partition.parse()?, *params, began_with)?;
    divided.shard(if divided.is_own() { 0 } else { shard })
}

/// As [`load_grown_shard`], but rows that were appended are left out.
///
/// # Errors
/// As [`load_grown_shard`].
pub fn load_first_shard(
    source: &DataSource,
    partition: &str,
    params: &ShardParams,
    shard: usize,
    began_with: &Beginning,
) -> Result<Shard, DataError> {
    let divided = Divided::grown(source, partition.parse()?, *params, began_with)?;
    let divided = divided.without_appended();
    divided.shard(if divided.is_own() { 0 } else { shard })
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
    Divided::new(source, partition.parse()?, *params)?.shards()
}

/// Divides a pool as [`load_shard`] does, without reading any sample: for who needs only the hash or the counts.
///
/// # Errors
/// As [`Rule::divide`].
pub fn divide(rule: &Rule, pool: &Pool, params: &ShardParams) -> Result<Partition, DataError> {
    let (strata, kinds) = pool.strata();
    let request = Request {
        labels: &strata,
        classes: kinds,
        nodes: params.nodes,
        samples_per_node: params.samples_per_node,
        known: Known {
            tests: pool.tests.as_deref(),
            groups: pool.groups.as_deref(),
        },
    };
    rule.divide(&request, params.seed)
}

/// Returns how many of a node's samples are set aside for validation: at least one if any share is wanted and there are
/// two to choose from.
pub fn n_validation(samples: usize, share: f64) -> usize {
    let share = share.clamp(0.0, 0.5);
    let fewest = usize::from(share > 0.0 && samples > 1);
    ((samples as f64 * share).round() as usize).max(fewest)
}

/// Refuses texts of one's own with a vocabulary of their own: the same number would mean another word on every node.
fn check_vocabulary(rule: &Rule, source: &dyn Source) -> Result<(), DataError> {
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

fn describe(split: Split, partition_hash: String, began_with: Option<Beginning>) -> Shard {
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
        began_with,
        may_grow: false,
    }
}
