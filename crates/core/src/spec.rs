//! The federation spec: what every member must share, hashed into the [`FederationId`].
//!
//! `federation.toml` is this struct. Two nodes whose specs differ in any key have different federation ids and refuse
//! each other at hello, naming the first key.
//!
//! What is hashed is the JSON of the dotted keys in alphabetical order, without those that have their defaults, after a
//! line that separates it from every other use of BLAKE3. A new key with a default moves no federation's id, therefore a
//! default never changes: another behaviour is another word, or another version. Files of version 1 are read too, see
//! [`FederationSpec::read`].

mod architecture;
mod backbone;
mod columns;
mod layers;
mod pool;
mod privacy;
mod rules;
mod schedule;
mod statistics;
mod target;
mod version1;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use self::architecture::{Architecture, ModelNames};
pub use self::backbone::BackboneSpec;
pub use self::columns::{ColumnKind, Filling, MOST_COLUMNS, Scaling, TableColumn, width_of};
pub use self::layers::{ConvSpec, DECLARED, LayerSpec, Layers, LayersError, MOST_LAYERS};
pub use self::pool::{PoolSpec, Preset};
pub use self::privacy::{NoMode, PrivacyMode, PrivacySpec};
pub use self::schedule::Schedule;
pub use self::statistics::{StatisticsFeatures, StatisticsGate, StatisticsSpec};
pub use self::target::Target;
use crate::config::{self, ConfigError};
use crate::draw::DrawSeed;
use crate::limits::{FEWEST_MEMBERS, FULL_PROXIES};
use crate::{Augmentation, BlobId, Exchange, FederationId, NodeId, Precision};

/// Separates the hash of a spec from every other hash.
const DOMAIN: &[u8] = b"fednode federation spec 2\n";
/// The version of specs that is written, and of their canonical form.
pub const VERSION: u32 = 2;
/// Longest text of one value in a hello.
const MAX_ENTRY_BYTES: usize = 256;

/// What makes steps of gradients in the local update.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OptimizerKind {
    /// Stochastic gradient descent, with momentum if `training.momentum` says so.
    #[default]
    Sgd,
    /// Adam; weight decay is part of the gradient.
    Adam,
    /// Adam; weight decay is apart from the gradient.
    Adamw,
}

/// A value of an algorithm's own hyper-parameter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum HyperValue {
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Integer(i64),
    /// A real number.
    Real(f64),
    /// A word.
    Text(String),
}

impl std::str::FromStr for HyperValue {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = || {
            text.parse()
                .map(Self::Integer)
                .or_else(|_| text.parse().map(Self::Real))
        };
        Ok(text
            .parse()
            .map(Self::Bool)
            .or_else(|_| number())
            .unwrap_or_else(|_| Self::Text(text.to_owned())))
    }
}

crate::config! {
    /// The spec of a federation: what every member must share. Any difference makes another federation.
    pub struct FederationSpec {
        /// The version of this file's form (2).
        version: u32 = VERSION,
        /// A name for people (1 to 100 characters).
        name: String = "federation".into(),
        /// The federated algorithm; `fednode algorithms` lists them.
        algorithm: String = "fedmoe-da".into(),
        /// Rounds of training (1 to 100000).
        rounds: u32 = 10,
        /// How many nodes the data is divided among; also whom the first round waits for (see `round.quorum`).
        nodes: u32 = 5,
        /// Who admits members: the node id of the organiser's key. `fednode init` makes the key. Absent in an open federation,
        /// which takes everybody who has this file.
        organiser: Option<NodeId> = None,
        /// Seed of everything that all nodes must draw alike: initial parameters, partition, cohorts, broadcast sets.
        seed: u64 = 1,
        /// The model.
        @table model: ModelSpec = ModelSpec::default(),
        /// The data, as far as all must agree on it.
        @table data: DataSpec = DataSpec::default(),
        /// The local update.
        @table training: TrainingSpec = TrainingSpec::default(),
        /// How a round closes.
        @table round: RoundSpec = RoundSpec::default(),
        /// How parameters travel.
        @table transfer: TransferSpec = TransferSpec::default(),
        /// The statistics expert, made in the last round.
        @table statistics: StatisticsSpec = StatisticsSpec::default(),
        /// The stage after the last round (PM-MoE): a mixture of everybody's private modules.
        @table pool: PoolSpec = PoolSpec::default(),
        /// What members may learn of a node's samples.
        @table privacy: PrivacySpec = PrivacySpec::default(),
        /// The algorithm's own hyper-parameters; absent ones have the algorithm's defaults.
        hyper: BTreeMap<String, HyperValue> = BTreeMap::new(),
        /// What a federation's data and models are recognised by; `fednode init` writes it.
        @table fingerprints: Fingerprints = Fingerprints::default(),
        /// What the algorithm shares; `fednode init` derives it from algorithm and hyper-parameters, and every start checks it.
        @table exchange: Exchange = Exchange::default(),
        /// From which sizes on a federation sends less. Only tests change it.
        #[serde(skip)]
        @hidden scale: Scale = Scale::default(),
    }
}

crate::config! {
    /// The model.
    pub struct ModelSpec {
        /// Its architecture: `cnn`, `lenet5`, `mlp` and more, `fasttext` for texts; docs/algorithms.md lists them. A list of
        /// names falls to the nodes in turn, by the number of their shard, where the algorithm shares nothing of them. A
        /// node may also choose its own in node.toml.
        name: ModelNames = "cnn".into(),
        /// The layers of the model `declared`, for example `conv 16, batch-norm, relu, max-pool 2, linear 64, relu`. The last layer,
        /// to the classes, is added. docs/how-to/own-model.md lists them all. Empty unless that model is named.
        layers: Layers = Layers::default(),
        /// K: experts per node, for algorithms that have any (1 to 64).
        experts: usize = 4,
        /// The frozen network that turns images into features before anything is learned, as `--backbone FILE` describes it:
        /// the file's hash, its output, and how images are prepared. Every node needs the file. Absent, models see images.
        backbone: Option<BackboneSpec> = None,
    }
}

crate::config! {
    /// What a federation's data and models are recognised by. `fednode init` writes it; nothing here is for people.
    pub struct Fingerprints {
        /// Channels, height and width of one sample (1 to 4096 each).
        input: [usize; 3] = [1, 28, 28],
        /// Number of classes (2 to 100000; 1 where `data.target` is a number).
        classes: usize = 10,
        /// Entries of the vocabulary of models of texts, 0 for other models (0 to 1000000).
        vocabulary_size: usize = 0,
        /// Tells this run from others of the same settings, whose adverts must not be heard here (1 to 64 letters and digits). `fednode
        /// init` draws it, and `fednode init --again` draws another; absent in files that were written without one.
        run: Option<String> = None,
        /// The partition; absent while each node brings its own data. A node whose shard comes from another division is refused.
        partition: Option<String> = None,
        /// The parameters that all nodes start from (BLAKE3 of their canonical bytes), those of the same name and shape;
        /// absent where they are drawn from the seed. `--initial FILE` enters it, and every node needs the file.
        initial: Option<BlobId> = None,
        /// The vocabulary of models of texts; a node whose texts are numbered by another is refused.
        vocabulary: Option<String> = None,
        /// What the classes are called, in the order of their numbers; a node whose data call them otherwise is refused. Empty
        /// takes any names.
        class_names: Vec<String> = Vec::new(),
        /// What the columns of a table are called, in the order of the model's inputs: a node's own table is read by these names,
        /// whatever the order of its columns. Empty takes all columns as they come.
        columns: Vec<String> = Vec::new(),
    }
}

crate::config! {
    /// The data, as far as all must agree on it.
    pub struct DataSpec {
        /// What the data is called; nodes that bring other data must not use the same name.
        name: String = "fashion-mnist".into(),
        /// How one data set is divided among nodes: `iid`, `dirichlet:ALPHA`, `pathological:CLASSES`, `own` (each node
        /// brings its own) and more. `+rotated:4:2` and other changes may follow; see `fednode init --help`.
        partition: String = "dirichlet:0.1".into(),
        /// Samples per node, training and test together; 0 divides everything.
        samples_per_node: usize = 0,
        /// Share of a node's training samples that it keeps for validation (0 to 0.5).
        validation_share: f64 = 0.1,
        /// The columns of a raw table: what each is called and holds, as `fednode data` proposes it. In the first round nodes
        /// agree on means, deviations and shares, and then all make the same features. With `privacy.epsilon` ranges and levels
        /// make them. Empty takes numbers as they are.
        columns: Vec<TableColumn> = Vec::new(),
        /// The number that is predicted, instead of a class: the name of its column and about its smallest and largest value, as
        /// `,target=COLUMN` of a table proposes it. Absent, models predict classes.
        target: Option<Target> = None,
    }
}

crate::config! {
    /// The local update.
    pub struct TrainingSpec {
        /// E: passes over the node's training samples per round (1 to 1000).
        local_epochs: u32 = 2,
        /// How many of the next round's epochs a node trains while it waits for the exchange (0 to `local_epochs`, 0 as in the
        /// papers). They start from its own model as it was published. What they change is added to what the exchange
        /// brings. For algorithms whose epochs are all alike; see `fednode algorithms NAME`.
        ahead_epochs: u32 = 0,
        /// Samples per step (1 to 65536).
        batch_size: usize = 20,
        /// Step size (above 0).
        learning_rate: f64 = 0.01,
        /// What makes steps of gradients: `sgd` (the default), `adam` or `adamw`. Its memory begins anew in every local
        /// update. Some algorithms prescribe plain steps; see `fednode algorithms NAME`.
        optimizer: OptimizerKind = OptimizerKind::Sgd,
        /// What share of the last step a step of `sgd` keeps (0 to below 1, 0 for plain SGD).
        momentum: f64 = 0.0,
        /// How the learning rate changes from round to round: `constant` (the default), `step:EVERY:FACTOR` (times FACTOR, above
        /// 0 to 1, after every so many rounds) or `cosine` (down to nearly 0 in the last round). `step` alone is
        /// `step:1:0.99`.
        schedule: Schedule = Schedule::Constant,
        /// Rounds before the schedule begins, in which the learning rate rises in equal steps (0 to below `rounds`, 0 by
        /// default).
        warmup_rounds: u32 = 0,
        /// What share of itself a trained parameter loses in a step, times the step size (0 or above).
        weight_decay: f64 = 0.0,
        /// Length to which the gradient of a step is cut down if it is longer (0 for never). With `privacy.epsilon` it is that
        /// of each sample's gradient, and 0 stands for 1.
        clip_norm: f64 = 0.0,
        /// What is done to training images, anew in every epoch: `none`, `crop` (shifted by up to 4 pixels), `flip` (half of
        /// them mirrored) or `crop-flip`.
        augmentation: Augmentation = Augmentation::None,
    }
}

crate::config! {
    /// How a round closes.
    pub struct RoundSpec {
        /// C: share of the nodes that train in a round, at least two of them (above 0 to 1). A draw that everybody
        /// repeats names them: that many of up to 64 nodes; of more, each with this probability. The others rest, and fetch
        /// the mean only before a round of theirs and in the end.
        participation: f64 = 1.0,
        /// Share of the expected nodes whose updates must be there before the grace time starts (above 0 to 1); the
        /// first round starts when this share of `nodes` has met.
        quorum: f64 = 0.8,
        /// Seconds a node waits for a round to close, and for the experts it wants, before it goes on without.
        deadline_seconds: f64 = 600.0,
        /// Seconds that a round stays open for stragglers once the quorum is there; also how long each acting
        /// aggregator has when the aggregator is gone.
        grace_seconds: f64 = 3.0,
        /// Most that a member weighs in a mean that is weighted by samples: so many medians of the members' samples (0 or at
        /// least 1; 0 sets no bound). Samples are a member's own word.
        max_weight: f64 = 3.0,
        /// Probability that a node recomputes the mean of a round it did not close itself (0 to 1).
        audit: f64 = 0.05,
        /// About how many nodes' updates everybody receives in a round (64 to 512). In a larger federation a draw names them;
        /// they alone are averaged. The updates of the others reach those who follow them, and a node follows a quarter as
        /// many at most.
        broadcast_set: u32 = 256,
    }
}

/// From which sizes on a federation sends less than everything to everybody: not a part of its agreement, since everybody
/// has the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scale {
    /// Most nodes among which everybody fetches everybody's gating proxies; beyond, adverts carry sketches.
    pub full_proxies: u32,
    /// Most nodes that a node follows; nothing for a quarter of `round.broadcast_set`.
    pub follows: Option<u32>,
}

impl Default for Scale {
    fn default() -> Self {
        Self {
            full_proxies: FULL_PROXIES,
            follows: None,
        }
    }
}

crate::config! {
    /// How parameters travel.
    pub struct TransferSpec {
        /// How experts and modules of the pool are sent: `f32` as they are, `f16` or `bf16` in half the bytes. A node mixes
        /// its own ones as they are. The averaged part is always sent as it is, for its mean is recomputed bit for bit.
        precision: Precision = Precision::F32,
    }
}

/// A spec that was read from a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Reading {
    /// The spec.
    pub spec: FederationSpec,
    /// What its reader should be told, in one line.
    pub notice: Option<&'static str>,
}

/// One key of the spec with its value as text; sent at hello.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// The dotted key, for example `training.learning_rate`.
    pub key: String,
    /// Its value as JSON.
    pub value: String,
}

/// Most nodes of a federation in which everybody meets everybody.
const ALL_ACQUAINTED: u32 = 64;

impl FederationSpec {
    /// Reads and validates `federation.toml`, of this version or of version 1.
    ///
    /// # Errors
    /// One line that names the key and what is wrong with it.
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        Self::read(text).map(|reading| reading.spec)
    }

    /// As [`Self::from_toml`], and tells what there is to say about the file.
    ///
    /// # Errors
    /// As [`Self::from_toml`].
    pub fn read(text: &str) -> Result<Reading, ConfigError> {
        let (spec, notice) = match version1::convert(text)? {
            Some(converted) => (converted, Some(version1::NOTICE)),
            None => (config::parse(text)?, None),
        };
        let spec: Self = spec;
        spec.validate()?;
        Ok(Reading { spec, notice })
    }

    /// Reads the JSON of a spec, as the card of a model has it, of this version or of version 1.
    ///
    /// # Errors
    /// One line that names the key and what is wrong with it.
    pub fn from_json(json: Value) -> Result<Self, ConfigError> {
        let refuse = |error: &dyn std::fmt::Display| ConfigError(error.to_string());
        // A spec of version 1 has no key without a value, which TOML could not express.
        let table = toml::Table::try_from(&json).ok();
        let converted = table.map(version1::convert_table).transpose()?.flatten();
        let spec = match converted {
            Some(spec) => spec,
            None => serde_json::from_value(json).map_err(|error| refuse(&error))?,
        };
        spec.validate()?;
        Ok(spec)
    }

    /// Writes the commented `federation.toml`.
    pub fn to_toml(&self) -> String {
        config::sample(self, &Self::doc())
    }

    /// Returns the model of a node: that which its spec names first, with what the data makes of it.
    pub fn architecture(&self) -> Architecture {
        let known = &self.fingerprints;
        Architecture {
            name: self.model.name.first().to_owned(),
            layers: self.model.layers.clone(),
            input: known.input,
            classes: known.classes,
            experts: self.model.experts,
            vocabulary: known.vocabulary_size,
        }
    }

    /// Returns how many members a round needs to be closed: no more than there are nodes. A part of the federation that
    /// cannot reach it trains on locally.
    pub fn fewest_members(&self) -> u32 {
        FEWEST_MEMBERS.min(self.nodes)
    }

    /// Returns how many nodes a node follows at most, where a broadcast set is drawn.
    pub fn most_followed(&self) -> usize {
        let follows = self.scale.follows;
        follows.unwrap_or(self.round.broadcast_set / 4) as usize
    }

    /// Returns how many of so many nodes train in a round.
    pub fn cohort_of(&self, nodes: usize) -> usize {
        let drawn = (self.round.participation * nodes as f64).round() as usize;
        drawn.max(self.fewest_members() as usize).min(nodes)
    }

    /// Tells whether chance decides for every node by itself whether it trains in a round, because not everybody knows all
    /// nodes.
    pub fn is_cohort_by_chance(&self) -> bool {
        self.nodes > ALL_ACQUAINTED
    }

    /// Returns how many nodes train in a round whatever chance decides, but for one round of a thousand.
    pub fn surely_trained(&self) -> usize {
        let heard = self.nodes.min(self.round.broadcast_set) as usize;
        if !self.is_cohort_by_chance() || self.round.participation >= 1.0 {
            return self.cohort_of(heard);
        }
        let mean = self.round.participation * heard as f64;
        ((mean - 3.0 * mean.sqrt()) as usize).max(self.fewest_members() as usize)
    }

    /// Returns which share of the nodes trains in a round.
    pub fn trained_share(&self) -> f64 {
        if self.is_cohort_by_chance() || self.round.participation >= 1.0 {
            self.round.participation
        } else {
            self.cohort_of(self.nodes as usize) as f64 / f64::from(self.nodes)
        }
    }

    /// Tells whether adverts carry sketches, because fetching everybody's proxies would cost too much.
    pub fn uses_sketches(&self) -> bool {
        self.exchange.experts.is_some() && self.nodes > self.scale.full_proxies
    }

    /// Returns the fingerprint of the partition; empty while each node brings its own data.
    pub fn partition_hash(&self) -> &str {
        self.fingerprints.partition.as_deref().unwrap_or_default()
    }

    /// Returns what all draws of the federation start from.
    pub fn draw_seed(&self) -> DrawSeed {
        DrawSeed::of(self.seed)
    }

    /// Returns the bytes that are hashed.
    pub fn canonical_bytes(&self) -> Vec<u8> {
        let defaults = Self::default().dotted();
        let mut keys = self.dotted();
        keys.retain(|key, value| defaults.get(key) != Some(value));
        let json = serde_json::to_vec(&keys).expect("text keys and JSON values");
        [DOMAIN, &json].concat()
    }

    /// Returns the federation's name.
    pub fn id(&self) -> FederationId {
        FederationId::from_bytes(*blake3::hash(&self.canonical_bytes()).as_bytes())
    }

    /// Returns all keys with their values, in alphabetical order, long values cut.
    pub fn entries(&self) -> Vec<Entry> {
        let entry = |(key, value): (String, Value)| Entry {
            key,
            value: value.to_string().chars().take(MAX_ENTRY_BYTES).collect(),
        };
        self.dotted().into_iter().map(entry).collect()
    }

    /// Returns all keys that have a value, with it.
    fn dotted(&self) -> BTreeMap<String, Value> {
        let json = serde_json::to_value(self).expect("text keys and finite numbers");
        let mut keys = BTreeMap::new();
        flatten(String::new(), json, &mut keys);
        keys
    }
}

fn flatten(path: String, value: Value, keys: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let path = if path.is_empty() {
                    key
                } else {
                    format!("{path}.{key}")
                };
                flatten(path, value, keys);
            }
        }
        Value::Null => {}
        value => {
            keys.insert(path, value);
        }
    }
}

impl RoundSpec {
    /// Returns the deadline of a round.
    pub fn deadline(&self) -> Duration {
        Duration::from_secs_f64(self.deadline_seconds)
    }

    /// Returns the grace time.
    pub fn grace(&self) -> Duration {
        Duration::from_secs_f64(self.grace_seconds)
    }

    /// Returns how many of `expected` nodes are a quorum, at least one.
    pub fn quorum_of(&self, expected: usize) -> usize {
        ((expected as f64 * self.quorum).ceil() as usize).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Hello, Refusal, Role, Timestamp};

    #[test]
    fn sample_file_is_the_default_spec() {
        let text = FederationSpec::default().to_toml();
        assert_eq!(
            FederationSpec::from_toml(&text),
            Ok(FederationSpec::default()),
            "{text}"
        );
    }

    #[test]
    fn exchange_survives_the_file() {
        let mut spec = FederationSpec::default();
        spec.exchange.averaging = Some(crate::Averaging {
            weighting: crate::Weighting::Uniform,
            rule: crate::Rule::default(),
        });
        spec.exchange.experts = Some(crate::ExpertExchange {
            peers_per_expert: crate::PeersPerExpert::ALL,
            refresh_every: 5,
            temperature: 1.0,
            weighting: crate::Weighting::Uniform,
            slots_per_node: None,
            max_distance: None,
            matching: crate::Matching::default(),
            noise: None,
        });
        spec.hyper
            .insert("profile".into(), HyperValue::Text("robust".into()));
        assert_eq!(FederationSpec::from_toml(&spec.to_toml()), Ok(spec));
    }

    #[test]
    fn any_difference_is_another_federation_and_is_named() {
        let ours = FederationSpec::default();
        let mut theirs = ours.clone();
        theirs.training.learning_rate = 0.05;
        // Of two runs with other settings the settings are named.
        theirs.fingerprints.run = Some("b".into());
        assert_ne!(ours.id(), theirs.id());
        let hello = |spec: &FederationSpec| Hello {
            protocol: 1,
            software: String::new(),
            role: Role::Node,
            federation: spec.id(),
            spec: spec.entries(),
            clock: Timestamp(0),
            certificate: None,
        };
        let refusal = hello(&ours)
            .check(&hello(&theirs), Duration::from_secs(1), Timestamp(0))
            .unwrap_err();
        let expected = Refusal::Spec {
            key: "training.learning_rate".into(),
            ours: "0.01".into(),
            theirs: "0.05".into(),
        };
        assert_eq!(refusal, expected);
        theirs.training.learning_rate = ours.training.learning_rate;
        let refusal = hello(&ours).check(&hello(&theirs), Duration::ZERO, Timestamp(0));
        assert!(
            refusal
                .unwrap_err()
                .to_string()
                .contains("`fingerprints.run`")
        );
        assert_eq!(
            hello(&ours).check(&hello(&ours), Duration::from_secs(1), Timestamp(5000)),
            Err(Refusal::Clock(5))
        );
    }

    #[test]
    fn optimisers_and_schedules_move_no_id_at_their_defaults() {
        let default = FederationSpec::default();
        let written = String::from_utf8(default.canonical_bytes()).unwrap();
        for key in ["optimizer", "schedule", "warmup"] {
            assert!(!written.contains(key), "{key} is in {written}");
        }
        let text =
            "[training]\noptimizer = \"adamw\"\nschedule = \"step:3:0.5\"\nwarmup_rounds = 2";
        let spec = FederationSpec::from_toml(text).unwrap();
        assert_ne!(spec.id(), default.id());
        assert_eq!(FederationSpec::from_toml(&spec.to_toml()), Ok(spec));
        let error = |text: &str| FederationSpec::from_toml(text).unwrap_err().0;
        assert_eq!(
            error("[training]\noptimizer = \"adamm\""),
            "line 2: unknown value `adamm`: did you mean `adam`? Allowed are `sgd`, `adam`, `adamw`"
        );
        assert!(error("[training]\noptimizer = \"adam\"\nmomentum = 0.5").contains("`sgd`"));
        assert!(error("[training]\nwarmup_rounds = 10").contains("below `rounds`"));
    }

    #[test]
    fn another_precision_is_another_federation() {
        let text = "[transfer]\nprecision = \"bf16\"";
        let spec = FederationSpec::from_toml(text).unwrap();
        assert_eq!(spec.transfer.precision, Precision::Bf16);
        assert_ne!(spec.id(), FederationSpec::default().id());
        let error = FederationSpec::from_toml("[transfer]\nprecision = \"bf17\"").unwrap_err();
        assert_eq!(
            error.0,
            "line 2: unknown value `bf17`: did you mean `bf16`? Allowed are `f32`, `f16`, `bf16`"
        );
    }
}
