//! The division of a data set among the nodes: how it is written, made and checked.

use std::path::Path;

use fednode_core::FederationSpec;
use fednode_data::partition::{self, Rule};
use fednode_data::{DataSource, Divided, NodeIndices, ShardParams, n_validation, transform};
use fednode_learn::last_stage;
use fednode_runtime::exit::ExitCode;

use super::is_own;
use crate::failure::{OrFail, fail};

/// The partition that a file of index lists describes; each node says for itself where that file is.
const FILE: &str = "file";

/// Returns how data can be divided; index lists are named by a flag of their own.
pub fn partition_help() -> String {
    let forms = partition::KINDS
        .iter()
        .filter(|kind| kind.name != "file")
        .map(|kind| kind.form);
    let transforms = transform::KINDS
        .iter()
        .map(|kind| format!("`+{}`", kind.form));
    format!(
        "How the data is divided among the nodes: {} (where each brings its own). All but the last may be followed by changes: {}",
        forms.collect::<Vec<_>>().join(", "),
        transforms.collect::<Vec<_>>().join(", ")
    )
}

/// Returns the partition as the data crate reads it: a file's path is a node's own business, not the spec's.
pub fn partition_text(partition: &str, file: Option<&Path>) -> anyhow::Result<String> {
    match (transforms_of_lists(partition), file) {
        (Some(transforms), Some(path)) => Ok(format!("{FILE}:{}{transforms}", path.display())),
        (Some(_), None) => {
            let message =
                "the federation is divided by a file of index lists: name it with --partition-file";
            Err(fail(ExitCode::Configuration, message))
        }
        (None, _) => Ok(partition.to_owned()),
    }
}

/// Tells whether a partition is one of index lists, with transforms or without.
pub fn is_of_lists(partition: &str) -> bool {
    transforms_of_lists(partition).is_some()
}

/// Returns what stands behind the word for index lists; nothing for another partition.
fn transforms_of_lists(partition: &str) -> Option<&str> {
    let rest = partition.strip_prefix(FILE)?;
    (rest.is_empty() || rest.starts_with('+')).then_some(rest)
}

/// Divides a data set among the nodes as the spec says.
///
/// # Errors
/// Fails if the data cannot be read, are too few, or are not for a transform of the partition.
pub fn divided(
    source: &DataSource,
    spec: &FederationSpec,
    file: Option<&Path>,
) -> anyhow::Result<Divided> {
    let rule: Rule = partition_text(&spec.data.partition, file)?
        .parse()
        .or_fail(ExitCode::Configuration)?;
    Divided::new(source, rule, shard_params(spec)).or_fail(ExitCode::Data)
}

/// Returns what of the spec decides a shard.
pub fn shard_params(spec: &FederationSpec) -> ShardParams {
    ShardParams {
        nodes: spec.nodes as usize,
        seed: spec.seed,
        samples_per_node: spec.data.samples_per_node,
        validation_share: spec.data.validation_share,
    }
}

/// How the data is divided among all nodes; known without reading a single image.
#[derive(Debug, Clone, PartialEq)]
pub struct Division {
    /// The partition's hash; empty where each node brings its own data.
    pub hash: String,
    /// What is known of each node's tests.
    pub yardsticks: Vec<Yardstick>,
    /// Samples of all nodes.
    pub samples: usize,
}

/// What is known of a node's tests before anything is learned.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Yardstick {
    /// The accuracy of always saying its commonest training class; 0 where a number is predicted.
    pub floor: f64,
    /// How much the numbers that are predicted vary: the sum of their squares around their mean. Nothing where classes are
    /// predicted.
    pub variation: Option<f64>,
}

impl Division {
    /// Divides.
    ///
    /// # Errors
    /// Fails if the data are too few, or a node would get none.
    pub fn make(
        source: &DataSource,
        spec: &FederationSpec,
        file: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let divided = divided(source, spec, file)?;
        let partition = divided.partition();
        let fewest = last_stage::fewest_samples(spec).or_fail(ExitCode::Configuration)?;
        for (shard, indices) in (1..).zip(partition.nodes()) {
            if let Some(missing) = missing(indices)
                && !(missing == TEST && divided.keeps_no_test())
            {
                let text = nothing_left(missing, shard, divided.is_own().then_some(source));
                return Err(fail(ExitCode::Data, text));
            }
            let kept =
                indices.train.len() - n_validation(indices.train.len(), spec.data.validation_share);
            refuse_too_few(&format!("shard {shard}"), kept, fewest, spec)?;
        }
        let yardstick = |node| {
            let [train, test] = divided.class_counts(node);
            let variation = divided
                .test_numbers(node)
                .map(|numbers| variation(&numbers));
            Yardstick {
                floor: match variation {
                    Some(_) => 0.0,
                    None => majority_class_accuracy(&train, &test),
                },
                variation,
            }
        };
        let hash = if divided.is_own() {
            String::new()
        } else {
            partition.hash()
        };
        let samples = partition
            .nodes()
            .iter()
            .map(|node| node.train.len() + node.test.len())
            .sum();
        Ok(Self {
            hash,
            yardsticks: (0..partition.nodes().len()).map(yardstick).collect(),
            samples,
        })
    }
}

impl Division {
    /// Puts together the divisions of nodes that each have their own data.
    pub(super) fn of_own(each: Vec<Self>) -> Self {
        Self {
            hash: String::new(),
            samples: each.iter().map(|division| division.samples).sum(),
            yardsticks: each
                .into_iter()
                .flat_map(|division| division.yardsticks)
                .collect(),
        }
    }
}

/// Refuses what is too little for a stage after the last round: it would have nothing to learn from.
pub(super) fn refuse_too_few(
    whose: &str,
    samples: usize,
    fewest: usize,
    spec: &FederationSpec,
) -> anyhow::Result<()> {
    if samples >= fewest {
        return Ok(());
    }
    let algorithm = &spec.algorithm;
    let text = format!(
        "{whose} has {samples} training samples, and algorithm `{algorithm}` needs {fewest}: what it trains after the last \
         round learns from a part of them"
    );
    Err(fail(ExitCode::Data, text))
}

/// What samples for tests are called.
const TEST: &str = "test";

/// Returns which samples a node would lack.
fn missing(indices: &NodeIndices) -> Option<&'static str> {
    match (indices.train.is_empty(), indices.test.is_empty()) {
        (false, false) => None,
        (true, _) => Some("training"),
        (false, true) => Some(TEST),
    }
}

/// Says what to do about it: of a node's own data, or of a shard.
fn nothing_left(missing: &str, shard: u32, own: Option<&DataSource>) -> String {
    match own {
        Some(source) => format!(
            "`{source}` has no {missing} samples: bring more rows or groups, or let `test=FILE` or `split=COLUMN` say which rows \
             are for tests"
        ),
        None => format!(
            "this partition leaves shard {shard} without {missing} samples: use fewer nodes, another seed or a milder partition"
        ),
    }
}

/// Refuses data of another division: its training samples may be others' test samples.
pub fn check_hash(spec: &FederationSpec, hash: &str) -> anyhow::Result<()> {
    let expected = spec.partition_hash();
    if is_own(&spec.data.partition) || expected.is_empty() || expected == hash {
        return Ok(());
    }
    let advice = "use the same data (and --partition-file) as whoever made federation.toml; if the seed, `nodes` or `data` \
                  was changed there by hand, leave out its `fingerprints.partition`";
    Err(fail(
        ExitCode::Data,
        format!("this data divides to partition {hash}, the federation's is {expected}: {advice}"),
    ))
}

/// Returns the sum of squares of numbers around their mean.
fn variation(numbers: &[f32]) -> f64 {
    let each = || numbers.iter().copied().map(f64::from);
    let mean = each().sum::<f64>() / numbers.len().max(1) as f64;
    each().map(|number| (number - mean).powi(2)).sum()
}

/// Returns the accuracy of always saying the commonest training class, given both splits' samples per class.
fn majority_class_accuracy(train: &[usize], test: &[usize]) -> f64 {
    let total: usize = test.iter().sum();
    // Of equally common classes the first one counts, as an argmax would have it.
    let commonest = train
        .iter()
        .enumerate()
        .max_by_key(|(class, count)| (**count, usize::MAX - class));
    let right = commonest
        .and_then(|(class, _)| test.get(class))
        .copied()
        .unwrap_or(0);
    if total == 0 {
        0.0
    } else {
        right as f64 / total as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_file_is_named_by_each_node() {
        let error = partition_text("file", None).unwrap_err().to_string();
        assert!(error.contains("--partition-file"), "{error}");
        assert_eq!(
            partition_text("file", Some(Path::new("/p.json"))).unwrap(),
            "file:/p.json"
        );
        assert_eq!(
            partition_text("file+rotated:4", Some(Path::new("/p.json"))).unwrap(),
            "file:/p.json+rotated:4"
        );
        assert!(partition_text("file+rotated:4", None).is_err());
        assert_eq!(
            partition_text("iid", Some(Path::new("/p.json"))).unwrap(),
            "iid"
        );
    }

    #[test]
    fn empty_shard_is_refused() {
        let full = NodeIndices {
            train: vec![1],
            test: vec![2],
        };
        assert_eq!(missing(&full), None);
        let no_test = NodeIndices {
            train: vec![1],
            test: vec![],
        };
        let error = nothing_left(missing(&no_test).unwrap(), 4, None);
        assert!(error.contains("shard 4 without test samples"), "{error}");
        let source = DataSource::default();
        let error = nothing_left(missing(&no_test).unwrap(), 1, Some(&source));
        assert!(error.starts_with("`digits` has no test samples"), "{error}");
    }

    #[test]
    fn variation_by_hand() {
        assert_eq!(variation(&[1.0, 2.0, 3.0, 6.0]), 14.0);
        assert_eq!([variation(&[5.0, 5.0]), variation(&[])], [0.0, 0.0]);
    }

    #[test]
    fn majority_class_by_hand() {
        for (train, test, accuracy) in [
            (&[1, 5, 2][..], &[4, 3, 3][..], 0.3),
            (&[2, 2], &[1, 3], 0.25),
            (&[], &[], 0.0),
        ] {
            let found = majority_class_accuracy(train, test);
            assert!((found - accuracy).abs() < 1e-12, "{found}, not {accuracy}");
        }
    }
}
