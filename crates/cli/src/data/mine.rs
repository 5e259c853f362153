//! The samples of one node: its shard of a division, or its own data.

use std::sync::Arc;

use fednode_core::{BlobId, FederationSpec};
use fednode_data::{
    Beginning, ClassCounts, Samples, Split, load_first_shard, load_grown_shard, load_shard,
};
use fednode_learn::last_stage;
use fednode_runtime::TrainerCard;
use fednode_runtime::exit::ExitCode;

use super::division::{check_hash, partition_text, refuse_too_few, shard_params};
use super::{ShardFacts, is_own};
use crate::backbone;
use crate::config::Config;
use crate::failure::{OrFail, fail};
use crate::origin;
use crate::shard::Shard;

/// The samples of one node.
#[derive(Debug, Clone)]
pub struct Mine {
    /// The samples.
    pub split: Arc<Split>,
    /// Tells this node's draws from those of others; the same at every start.
    pub node_seed: u64,
    /// Which shard it has, counting from 0.
    pub position: usize,
    /// Of data of its own, the rows that there were at first.
    pub began_with: Option<Beginning>,
    /// Whether rows may be appended while the node runs.
    pub may_grow: bool,
    facts: ShardFacts,
}

impl Mine {
    /// Loads what a node's settings and its federation's spec say.
    ///
    /// # Errors
    /// Fails if the data cannot be read, do not fit the spec, or come from another division than the spec's.
    pub fn load(config: &Config, spec: &FederationSpec) -> anyhow::Result<Self> {
        Self::load_since(config, spec, origin::began_with(config))
    }

    /// As [`Self::load`], for a node that began with some rows of its own data.
    ///
    /// # Errors
    /// As [`Self::load`], and if the first rows are others now.
    pub fn load_since(
        config: &Config,
        spec: &FederationSpec,
        began_with: Option<Beginning>,
    ) -> anyhow::Result<Self> {
        let backbone = backbone::of(spec, config.backbone.as_deref(), config.threads)?;
        let source = config.data.clone().for_federation(spec);
        let source = source.with_extractor(backbone);
        let partition = partition_text(&spec.data.partition, config.partition_file.as_deref())?;
        let position = position(config.shard, spec)?;
        let params = shard_params(spec);
        // Noise that each node adds in full is made again with the same samples. What is added up once is not made again.
        let is_fixed = spec.privacy.epsilon.is_some() && spec.exchange.total.is_none();
        let load_again = if is_fixed {
            load_first_shard
        } else {
            load_grown_shard
        };
        let loaded = match &began_with {
            Some(known) => load_again(&source, &partition, &params, position, known),
            None => load_shard(&source, &partition, &params, position),
        };
        let loaded = loaded.or_fail(ExitCode::Data)?;
        let began_with = loaded.began_with.clone();
        let may_grow = loaded.may_grow && !is_fixed;
        check_hash(spec, &loaded.partition_hash)?;
        let fewest = last_stage::fewest_samples(spec).or_fail(ExitCode::Configuration)?;
        refuse_too_few("this node", loaded.split.train.len(), fewest, spec)?;
        let ClassCounts { train, .. } = &loaded.counts;
        let shard = config.shard.map(tracing::field::display);
        tracing::info!(shard, classes = ?train, "data loaded");
        // With `own` all shards are the first: what tells nodes apart is then their data.
        let node_seed = if is_own(&spec.data.partition) {
            seed_of(&loaded.split.train)
        } else {
            position as u64
        };
        let (split, facts) = ShardFacts::split_from(loaded);
        Ok(Self {
            split,
            node_seed,
            position,
            began_with,
            may_grow,
            facts,
        })
    }

    /// Describes data, model and device.
    pub fn card(&self, spec: &FederationSpec, device: &str, n_parameters: u64) -> TrainerCard {
        let model = spec.model.name.first().to_owned();
        self.facts.card(device, model, n_parameters)
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
fn position(shard: Option<Shard>, spec: &FederationSpec) -> anyhow::Result<usize> {
    let wrong = |message: String| fail(ExitCode::Configuration, message);
    if is_own(&spec.data.partition) {
        return Ok(0);
    }
    let Some(shard) = shard else {
        let nodes = spec.nodes;
        return Err(wrong(format!(
            "which part of the data is mine? Say so with --shard, from 1/{nodes} to {nodes}/{nodes}"
        )));
    };
    if shard.of != spec.nodes {
        let advice = "the second number of --shard must be `nodes` of federation.toml";
        return Err(wrong(format!(
            "shard {shard} of data that is divided among {} nodes: {advice}",
            spec.nodes
        )));
    }
    Ok(shard.position())
}

#[cfg(test)]
mod tests {
    use super::super::{Division, OWN, facts, look_at, source};
    use super::*;

    fn spec() -> FederationSpec {
        let mut spec = FederationSpec {
            nodes: 3,
            ..FederationSpec::default()
        };
        spec.data.partition = "dirichlet:0.5".into();
        spec
    }

    fn config(shard: Option<&str>) -> Config {
        Config {
            shard: shard.map(|shard| shard.parse().unwrap()),
            ..Config::default()
        }
    }

    #[test]
    fn a_shard_belongs_to_the_division_that_the_spec_names() {
        let mut spec = spec();
        let division = Division::make(&source("digits").unwrap(), &spec, None).unwrap();
        let yardsticks = &division.yardsticks;
        assert_eq!(yardsticks.len(), 3);
        let of_classes = yardsticks
            .iter()
            .all(|known| (0.05..=1.0).contains(&known.floor) && known.variation.is_none());
        assert!(of_classes, "{yardsticks:?}");
        spec.fingerprints.partition = Some(division.hash.clone());
        let mine = Mine::load(&config(Some("2/3")), &spec).unwrap();
        assert_eq!(
            (mine.node_seed, mine.facts.partition_hash.as_str()),
            (1, division.hash.as_str())
        );
        let card = mine.card(&spec, "cpu", 7);
        assert_eq!(card.train_samples as usize, mine.split.train.len());
        spec.seed += 1;
        let error = Mine::load(&config(Some("2/3")), &spec)
            .unwrap_err()
            .to_string();
        assert!(error.contains("the federation's is"), "{error}");
    }

    #[test]
    fn shards_must_fit_the_spec() {
        let error = |shard| Mine::load(&config(shard), &spec()).unwrap_err().to_string();
        assert!(error(None).contains("from 1/3 to 3/3"));
        assert!(error(Some("2/5")).contains("divided among 3 nodes"));
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
            (spec.model.name.first(), spec.fingerprints.vocabulary_size),
            ("fasttext", 8)
        );
        assert_eq!(spec.fingerprints.vocabulary, facts.vocabulary_hash);
        let config = Config {
            data: text.parse().unwrap(),
            ..config(Some("1/2"))
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
        let facts = look_at(source(&hers).unwrap(), None).unwrap();
        let names: Vec<&str> = facts
            .described
            .iter()
            .map(|column| column.name.as_str())
            .collect();
        assert_eq!(
            (names.as_slice(), facts.input),
            (&["age", "bmi"][..], [1, 1, 2])
        );
        let args = crate::federation::Args {
            nodes: Some(2),
            partition: Some(OWN.into()),
            ..Default::default()
        };
        let spec = crate::federation::spec(&args, &facts).unwrap();
        let first = |data: &str| {
            let config = Config {
                data: data.parse().unwrap(),
                ..config(None)
            };
            let (mut values, mine) = (Vec::new(), Mine::load(&config, &spec).unwrap());
            mine.split.train.write_batch(&[0], &mut values);
            (mine.split.train.shape, values)
        };
        assert_eq!(first(&hers), first(&his));
    }
}
