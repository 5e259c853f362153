//! What commands need of data: the facts that shape a spec, the division of all, one node's shard.
//!
//! Readers and divisions are `fednode-data`; here the spec's words become its types and its errors get exit codes.

use std::path::Path;
use std::sync::Arc;

use fednode_core::{BlobId, FederationSpec};
use fednode_data::partition::{self, Partition, Request, Rule};
use fednode_data::{
    ClassCounts, DataSource, NodeIndices, Pool, Samples, ShardParams, Source, Split,
    check_vocabulary, load_shard, n_validation, source,
};
use fednode_learn::last_stage;
use fednode_runtime::TrainerCard;
use fednode_runtime::exit::ExitCode;

use crate::config::Config;
use crate::failure::{OrFail, fail};
use crate::federation::DataFacts;
use crate::shard::Shard;
use crate::swarm::summary::majority_class_accuracy;

/// The partition with which each node brings its own data.
pub(crate) const OWN: &str = "own";
/// The partition that a file of index lists describes; each node says for itself where that file is.
const FILE: &str = "file";

/// Most classes, and most columns, whose names a spec holds, which people read.
const MOST_NAMES: usize = 1000;

/// Returns the help of a flag that names a data source.
pub(crate) fn help() -> String {
    let forms: Vec<&str> = source::KINDS.iter().map(|kind| kind.form).collect();
    format!("Where the data comes from: {}", forms.join(", "))
}

/// Returns how data can be divided; index lists are named by a flag of their own.
pub(crate) fn partition_help() -> String {
    let forms = partition::KINDS
        .iter()
        .filter(|kind| kind.name != "file")
        .map(|kind| kind.form);
    format!(
        "How the data is divided among the nodes: {} (where each brings its own)",
        forms.collect::<Vec<_>>().join(", ")
    )
}

/// Reads the name of a source.
///
/// # Errors
/// Says what is possible.
pub(crate) fn source(text: &str) -> anyhow::Result<DataSource> {
    text.parse().or_fail(ExitCode::Data)
}

/// Returns what a source says of itself.
///
/// # Errors
/// Names the file that is missing or damaged.
pub(crate) fn facts(source: &DataSource) -> anyhow::Result<DataFacts> {
    let opened = source.open().or_fail(ExitCode::Data)?;
    let pool = opened.pool().or_fail(ExitCode::Data)?;
    let vocabulary = opened.vocabulary().or_fail(ExitCode::Data)?;
    let columns = opened
        .columns()
        .or_fail(ExitCode::Data)?
        .filter(|columns| columns.len() <= MOST_NAMES);
    let entries = vocabulary.as_ref().map_or(0, |words| words.len());
    Ok(DataFacts {
        name: source.kind().name.to_owned(),
        input: pool.shape,
        classes: pool.class_names.len(),
        class_names: if pool.class_names.len() <= MOST_NAMES {
            pool.class_names.to_vec()
        } else {
            Vec::new()
        },
        columns: columns.unwrap_or_default(),
        vocabulary: entries,
        vocabulary_hash: vocabulary.map(|words| words.hash().to_owned()),
    })
}

/// Images that are looked at before anything is trained.
const SOME: usize = 100;

/// Returns what a source says of itself once some of its samples were read: of a table (these columns) or of texts all, of
/// images the first.
///
/// # Errors
/// As [`facts`].
pub(crate) fn look_at(source: DataSource, columns: &[String]) -> anyhow::Result<DataFacts> {
    let source = &source.with_columns(columns);
    let facts = facts(source)?;
    let opened = source.open().or_fail(ExitCode::Data)?;
    let pool = opened.pool().or_fail(ExitCode::Data)?;
    let is_table = pool.shape[..2] == [1, 1];
    let count = if is_table {
        pool.labels.len()
    } else {
        pool.labels.len().min(SOME)
    };
    opened
        .read(&pool, &(0..count as u32).collect::<Vec<_>>())
        .or_fail(ExitCode::Data)?;
    Ok(facts)
}

/// Rows of a table that are looked at for their scale.
const ROWS: u32 = 1000;
/// Largest amount of a value that can be learned from as it is.
const LARGEST: f32 = 50.0;

/// Says aloud if the columns of a table are so large that training would blow up, since values are taken as they are, or if
/// nothing tells that they are those of the federation.
///
/// # Errors
/// As [`facts`].
pub(crate) fn warn_of_table(source: &DataSource, columns: &[String]) -> anyhow::Result<()> {
    if source.kind().name != "csv" {
        return Ok(());
    }
    let opened = source
        .clone()
        .with_columns(columns)
        .open()
        .or_fail(ExitCode::Data)?;
    if let Some([first, ..]) = opened
        .columns()
        .or_fail(ExitCode::Data)?
        .is_none()
        .then_some(columns)
    {
        eprintln!(
            "warning: the table has no header, so its columns are taken in their order: it must be that of `fingerprints.columns` in \
             federation.toml, which begins with `{first}`"
        );
    }
    let pool = opened.pool().or_fail(ExitCode::Data)?;
    let some: Vec<u32> = (0..ROWS.min(pool.labels.len() as u32)).collect();
    let mut values = Vec::new();
    opened
        .read(&pool, &some)
        .or_fail(ExitCode::Data)?
        .write_batch(&some, &mut values);
    let largest = values
        .iter()
        .fold(0_f32, |largest, value| largest.max(value.abs()));
    if largest > LARGEST {
        eprintln!(
            "warning: the table has values up to {largest}, and they are taken as they are: scale each column beforehand, all \
             members alike (mean 0, deviation 1 is best), or training may blow up"
        );
    }
    Ok(())
}

/// Reads all samples of a source, of a table these columns.
///
/// # Errors
/// As [`facts`].
pub(crate) fn everything(text: &str, columns: &[String]) -> anyhow::Result<Samples> {
    let opened = source(text)?
        .with_columns(columns)
        .open()
        .or_fail(ExitCode::Data)?;
    let pool = opened.pool().or_fail(ExitCode::Data)?;
    let all: Vec<u32> = (0..pool.labels.len() as u32).collect();
    opened.read(&pool, &all).or_fail(ExitCode::Data)
}

/// Returns the partition as the data crate reads it: a file's path is a node's own business, not the spec's.
pub(crate) fn partition_text(partition: &str, file: Option<&Path>) -> anyhow::Result<String> {
    match file {
        Some(path) if partition == FILE => Ok(format!("{FILE}:{}", path.display())),
        None if partition == FILE => {
            let message =
                "the federation is divided by a file of index lists: name it with --partition-file";
            Err(fail(ExitCode::Configuration, message))
        }
        _ => Ok(partition.to_owned()),
    }
}

/// Refuses a federation whose nodes bring their own data where there is one data set for all.
///
/// # Errors
/// Says so.
pub(crate) fn refuse_own(spec: &FederationSpec, what: &str) -> anyhow::Result<()> {
    match spec.data.partition == OWN {
        true => {
            let text = format!(
                "{what} has one data set: partition `{OWN}` is for nodes that bring their own"
            );
            Err(fail(ExitCode::Configuration, text))
        }
        false => Ok(()),
    }
}

/// A data set and its division among the nodes, without any sample.
pub(crate) struct Divided {
    /// The data set.
    pub(crate) opened: Box<dyn Source>,
    /// Its labels and shapes.
    pub(crate) pool: Pool,
    /// Which samples each node has.
    pub(crate) partition: Partition,
    rule: Rule,
}

impl Divided {
    /// Divides as the spec says.
    ///
    /// # Errors
    /// Fails if the data cannot be read or are too few.
    pub(crate) fn new(
        source: &DataSource,
        spec: &FederationSpec,
        file: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let rule: Rule = partition_text(&spec.data.partition, file)?
            .parse()
            .or_fail(ExitCode::Configuration)?;
        let opened = source.open().or_fail(ExitCode::Data)?;
        check_vocabulary(&rule, opened.as_ref()).or_fail(ExitCode::Data)?;
        let pool = opened.pool().or_fail(ExitCode::Data)?;
        let (classes, nodes) = (pool.class_names.len(), spec.nodes as usize);
        let request = Request {
            labels: &pool.labels,
            classes,
            nodes,
            samples_per_node: spec.data.samples_per_node,
        };
        let partition = rule.divide(&request, spec.seed).or_fail(ExitCode::Data)?;
        Ok(Self {
            opened,
            pool,
            partition,
            rule,
        })
    }

    /// Counts the classes of some samples.
    pub(crate) fn count(&self, indices: &[u32]) -> Vec<usize> {
        let mut counts = vec![0; self.pool.class_names.len()];
        indices
            .iter()
            .for_each(|index| counts[usize::from(self.pool.labels[*index as usize])] += 1);
        counts
    }
}

/// How the data is divided among all nodes; known without reading a single image.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Division {
    /// The partition's hash; empty where each node brings its own data.
    pub(crate) hash: String,
    /// For each node the accuracy of always saying its commonest training class.
    pub(crate) floors: Vec<f64>,
    /// Samples of all nodes.
    pub(crate) samples: usize,
}

impl Division {
    /// Divides.
    ///
    /// # Errors
    /// Fails if the data are too few, or a node would get none.
    pub(crate) fn make(
        source: &DataSource,
        spec: &FederationSpec,
        file: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let divided = Divided::new(source, spec, file)?;
        let Divided {
            partition, rule, ..
        } = &divided;
        let fewest = last_stage::fewest_samples(spec).or_fail(ExitCode::Configuration)?;
        for (shard, indices) in (1..).zip(partition.nodes()) {
            refuse_empty(shard, indices)?;
            let kept =
                indices.train.len() - n_validation(indices.train.len(), spec.data.validation_share);
            refuse_too_few(&format!("shard {shard}"), kept, fewest, spec)?;
        }
        let floor = |node: &NodeIndices| {
            majority_class_accuracy(&divided.count(&node.train), &divided.count(&node.test))
        };
        let hash = if rule.is_own() {
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
            floors: partition.nodes().iter().map(floor).collect(),
            samples,
        })
    }
}

/// Refuses what is too little for a stage after the last round: it would have nothing to learn from.
fn refuse_too_few(
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

fn refuse_empty(shard: u32, indices: &NodeIndices) -> anyhow::Result<()> {
    let missing = match (indices.train.is_empty(), indices.test.is_empty()) {
        (false, false) => return Ok(()),
        (true, _) => "training",
        (false, true) => "test",
    };
    let advice = "use fewer nodes, another seed or a milder partition";
    Err(fail(
        ExitCode::Data,
        format!("this partition leaves shard {shard} without {missing} samples: {advice}"),
    ))
}

/// The samples of one node.
#[derive(Debug, Clone)]
pub(crate) struct Mine {
    /// The samples.
    pub(crate) split: Arc<Split>,
    /// Tells this node's draws from those of others; the same at every start.
    pub(crate) node_seed: u64,
    /// Which shard it has, counting from 0.
    pub(crate) position: usize,
    partition_hash: String,
    classes_present: Vec<u16>,
}

impl Mine {
    /// Loads what a node's settings and its federation's spec say.
    ///
    /// # Errors
    /// Fails if the data cannot be read, do not fit the spec, or come from another division than the spec's.
    pub(crate) fn load(config: &Config, spec: &FederationSpec) -> anyhow::Result<Self> {
        let source = source(&config.data)?.with_columns(&spec.fingerprints.columns);
        let file = (!config.partition_file.is_empty()).then(|| Path::new(&config.partition_file));
        let partition = partition_text(&spec.data.partition, file)?;
        let position = position(&config.shard, spec)?;
        let params = ShardParams {
            nodes: spec.nodes as usize,
            seed: spec.seed,
            samples_per_node: spec.data.samples_per_node,
            validation_share: spec.data.validation_share,
        };
        let loaded = load_shard(&source, &partition, &params, position).or_fail(ExitCode::Data)?;
        check_hash(spec, &loaded.partition_hash)?;
        let fewest = last_stage::fewest_samples(spec).or_fail(ExitCode::Configuration)?;
        refuse_too_few("this node", loaded.split.train.len(), fewest, spec)?;
        let ClassCounts { train, .. } = &loaded.counts;
        tracing::info!(shard = %config.shard, classes = ?train, "data loaded");
        Ok(Self {
            // With `own` all shards are the first: what tells nodes apart is then their data.
            node_seed: if spec.data.partition == OWN {
                seed_of(&loaded.split.train)
            } else {
                position as u64
            },
            position,
            split: Arc::new(loaded.split),
            partition_hash: loaded.partition_hash,
            classes_present: loaded.classes_present,
        })
    }

    /// Describes data, model and device.
    pub(crate) fn card(
        &self,
        spec: &FederationSpec,
        device: &str,
        n_parameters: u64,
    ) -> TrainerCard {
        let count = |samples: &Samples| u32::try_from(samples.len()).unwrap_or(u32::MAX);
        TrainerCard {
            device: device.to_owned(),
            model: spec.model.name.clone(),
            n_parameters,
            train_samples: count(&self.split.train),
            validation_samples: count(&self.split.validation),
            test_samples: count(&self.split.test),
            classes: self
                .classes_present
                .iter()
                .copied()
                .map(u32::from)
                .collect(),
            partition_hash: self.partition_hash.clone(),
        }
    }
}

/// Makes a seed of samples.
fn seed_of(samples: &Samples) -> u64 {
    let mut values = Vec::new();
    samples.write_batch(&(0..samples.len() as u32).collect::<Vec<_>>(), &mut values);
    let labels = samples.labels.iter().flat_map(|label| label.to_le_bytes());
    let bytes: Vec<u8> = values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .chain(labels)
        .collect();
    let [a, b, c, d, e, f, g, h, ..] = *BlobId::of(&bytes).as_bytes();
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

/// Returns which shard is meant, counting from 0.
fn position(shard: &str, spec: &FederationSpec) -> anyhow::Result<usize> {
    let wrong = |message: String| fail(ExitCode::Configuration, message);
    if spec.data.partition == OWN {
        return Ok(0);
    }
    if shard.is_empty() {
        let nodes = spec.nodes;
        return Err(wrong(format!(
            "which part of the data is mine? Say so with --shard, from 1/{nodes} to {nodes}/{nodes}"
        )));
    }
    let shard: Shard = shard.parse().map_err(wrong)?;
    if shard.of != spec.nodes {
        let advice = "the second number of --shard must be `nodes` of federation.toml";
        return Err(wrong(format!(
            "shard {shard} of data that is divided among {} nodes: {advice}",
            spec.nodes
        )));
    }
    Ok(shard.position())
}

/// Refuses data of another division: its training samples may be others' test samples.
pub(crate) fn check_hash(spec: &FederationSpec, hash: &str) -> anyhow::Result<()> {
    let expected = spec.partition_hash();
    if spec.data.partition == OWN || expected.is_empty() || expected == hash {
        return Ok(());
    }
    let advice = "use the same data (and --partition-file) as whoever made federation.toml; if the seed, `nodes` or `data` \
                  was changed there by hand, leave out its `fingerprints.partition`";
    Err(fail(
        ExitCode::Data,
        format!("this data divides to partition {hash}, the federation's is {expected}: {advice}"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> FederationSpec {
        let mut spec = FederationSpec {
            nodes: 3,
            ..FederationSpec::default()
        };
        spec.data.partition = "dirichlet:0.5".into();
        spec
    }

    fn config(shard: &str) -> Config {
        Config {
            data: "digits".into(),
            shard: shard.into(),
            ..Config::default()
        }
    }

    #[test]
    fn a_shard_belongs_to_the_division_that_the_spec_names() {
        let mut spec = spec();
        let division = Division::make(&source("digits").unwrap(), &spec, None).unwrap();
        assert_eq!(division.floors.len(), 3);
        assert!(
            division
                .floors
                .iter()
                .all(|floor| (0.05..=1.0).contains(floor)),
            "{:?}",
            division.floors
        );
        spec.fingerprints.partition = Some(division.hash.clone());
        let mine = Mine::load(&config("2/3"), &spec).unwrap();
        assert_eq!(
            (mine.node_seed, mine.partition_hash.as_str()),
            (1, division.hash.as_str())
        );
        let card = mine.card(&spec, "cpu", 7);
        assert_eq!(card.train_samples as usize, mine.split.train.len());
        spec.seed += 1;
        let error = Mine::load(&config("2/3"), &spec).unwrap_err().to_string();
        assert!(error.contains("the federation's is"), "{error}");
    }

    #[test]
    fn shards_must_fit_the_spec() {
        let error = |shard: &str| Mine::load(&config(shard), &spec()).unwrap_err().to_string();
        assert!(error("").contains("from 1/3 to 3/3"));
        assert!(error("2/5").contains("divided among 3 nodes"));
        assert!(error("two").contains("not of the form I/N"));
    }

    #[test]
    fn a_partition_file_is_named_by_each_node() {
        let error = partition_text("file", None).unwrap_err().to_string();
        assert!(error.contains("--partition-file"), "{error}");
        assert_eq!(
            partition_text("file", Some(Path::new("/p.json"))).unwrap(),
            "file:/p.json"
        );
        assert_eq!(
            partition_text("iid", Some(Path::new("/p.json"))).unwrap(),
            "iid"
        );
    }

    #[test]
    fn texts_bring_their_vocabulary_into_the_spec() {
        let folder = tempfile::tempdir().unwrap();
        let rows: String = (0..40)
            .map(|at| format!("{},about {},word\n", at % 4 + 1, at % 4))
            .collect();
        std::fs::write(folder.path().join("train.csv"), &rows).unwrap();
        std::fs::write(folder.path().join("test.csv"), &rows).unwrap();
        let text = format!("ag-news:{},length=4", folder.path().display());
        let facts = facts(&source(&text).unwrap()).unwrap();
        assert_eq!(
            (
                facts.input,
                facts.classes,
                facts.vocabulary,
                facts.vocabulary_hash.as_deref().map_or(0, str::len)
            ),
            ([1, 1, 4], 4, 8, 32)
        );
        let args = crate::federation::Args {
            nodes: Some(2),
            ..crate::federation::Args::default()
        };
        let mut spec = crate::federation::spec(&args, &facts).unwrap();
        assert_eq!(
            (spec.model.name.as_str(), spec.model.vocabulary),
            ("fasttext", 8)
        );
        assert_eq!(spec.fingerprints.vocabulary, facts.vocabulary_hash);
        let config = Config {
            data: text.clone(),
            ..config("1/2")
        };
        let mine = Mine::load(&config, &spec).unwrap();
        let device = fednode_learn::ComputeDevice::cpu(1).unwrap();
        let learner = |spec: &FederationSpec| {
            fednode_learn::Learner::new(spec, 0, Arc::clone(&mine.split), &device)
        };
        learner(&spec).unwrap();
        spec.fingerprints.vocabulary = Some("0".repeat(32));
        let error = learner(&spec).unwrap_err().to_string();
        assert!(
            error.contains("8 entries (00000000)") && error.contains("the same `vocabulary_file`"),
            "{error}"
        );
        spec.data.partition = OWN.into();
        let error = Division::make(&source(&text).unwrap(), &spec, None)
            .unwrap_err()
            .to_string();
        assert!(error.contains("vocabularies would differ"), "{error}");
    }

    #[test]
    fn tables_are_read_by_the_columns_of_the_spec() {
        let folder = tempfile::tempdir().unwrap();
        let table = |name: &str, header: &str, row: &str| {
            let row = |at: u32| {
                row.replace('#', &at.to_string())
                    .replace('C', &(at % 2).to_string())
            };
            let path = folder.path().join(name);
            std::fs::write(
                &path,
                format!("{header}\n{}", (0..40).map(row).collect::<String>()),
            )
            .unwrap();
            format!("csv:{}", path.display())
        };
        let hers = table("a.csv", "age,bmi,label", "#,1#.5,C\n");
        let his = table("b.csv", "bmi,label,ward,age", "1#.5,C,7,#\n");
        let facts = look_at(source(&hers).unwrap(), &[]).unwrap();
        assert_eq!(facts.columns, ["age", "bmi"]);
        let args = crate::federation::Args {
            nodes: Some(2),
            partition: Some(OWN.into()),
            ..Default::default()
        };
        let spec = crate::federation::spec(&args, &facts).unwrap();
        let first = |data: &str| {
            let config = Config {
                data: data.into(),
                ..config("")
            };
            let (mut values, mine) = (Vec::new(), Mine::load(&config, &spec).unwrap());
            mine.split.train.write_batch(&[0], &mut values);
            (mine.split.train.shape, values)
        };
        assert_eq!(first(&hers), first(&his));
    }

    #[test]
    fn nobody_gets_an_empty_shard() {
        let full = NodeIndices {
            train: vec![1],
            test: vec![2],
        };
        assert!(refuse_empty(1, &full).is_ok());
        let error = refuse_empty(
            4,
            &NodeIndices {
                train: vec![1],
                test: vec![],
            },
        )
        .unwrap_err()
        .to_string();
        assert!(error.contains("shard 4 without test samples"), "{error}");
    }
}
