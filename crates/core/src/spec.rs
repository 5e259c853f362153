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
mod canonical;
mod columns;
mod data;
mod extension;
mod hyper;
mod layers;
mod pool;
mod privacy;
mod round;
mod rules;
mod schedule;
mod statistics;
mod target;
mod training;
mod version1;
mod whole;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

pub use self::architecture::{Architecture, ModelNames, ModelSpec};
pub use self::backbone::BackboneSpec;
pub use self::canonical::Entry;
pub use self::columns::{ColumnKind, Filling, MOST_COLUMNS, Scaling, TableColumn, width_of};
pub use self::data::{DataSpec, Fingerprints};
pub use self::extension::{CHANGEABLE, Extension, Followed, MOST_SETTINGS};
pub use self::hyper::HyperValue;
pub use self::layers::{ConvSpec, DECLARED, LayerSpec, Layers, LayersError, MOST_LAYERS};
pub use self::pool::{PoolSpec, Preset};
pub use self::privacy::{NoMode, PrivacyMode, PrivacySpec, Sums};
pub use self::round::RoundSpec;
pub use self::schedule::Schedule;
pub use self::statistics::{StatisticsFeatures, StatisticsGate, StatisticsSpec};
pub use self::target::Target;
pub use self::training::{OptimizerKind, TrainingSpec};
use crate::config::{self, ConfigError};
use crate::draw::DrawSeed;
use crate::limits::{FEWEST_MEMBERS, FULL_PROXIES};
use crate::{Exchange, FederationId, NodeId, Precision};

/// The version of specs that is written, and of their canonical form.
pub const VERSION: u32 = 2;
crate::config! {
    /// The spec of a federation: what every member must share. Any difference makes another federation.
    pub struct FederationSpec {
        /// The version of this file's form (2).
        version: u32 = VERSION,
        /// A name for people (1 to 100 characters).
        name: String = "federation".into(),
        /// The federated algorithm; `fednode algorithms` lists them.
        algorithm: String = "fedmoe-da".into(),
        /// Rounds of training up to the end, or to each end if `endless` is set (1 to 100000).
        rounds: u32 = 10,
        /// Whether the federation goes on after these rounds: by as many again, and so on, until its members are stopped. After each
        /// end the models are finished and can be used, and rows are read anew.
        endless: bool = false,
        /// How many nodes the data is divided among; also whom the first round waits for (see `round.quorum`).
        nodes: u32 = 5,
        /// Who admits members: the node id of the organiser's key. `fednode init` makes the key. Absent in an open federation,
        /// which takes everybody who has this file.
        organiser: Option<NodeId> = None,
        /// By which measure models are judged: `accuracy`, `balanced-accuracy`, `macro-f1`, `auroc`, `auprc`, `log-loss`, `brier` or
        /// `calibration-error`; of a number `mae`, `rmse` or `r2`. Absent: `accuracy`, or `r2` of a number.
        metric: Option<String> = None,
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
        /// The rounds that the organiser has added since, if any.
        #[serde(skip)]
        @hidden extended: Option<Arc<extension::Extended>> = None,
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
        whole::check(text)?;
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

    /// Writes the commented `federation.toml`: what was agreed at first.
    pub fn to_toml(&self) -> String {
        config::sample(self.original(), &Self::doc())
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

    /// Returns what the rounds' scores are called: the measure that `metric` names, else the accuracy, or R² of a number.
    pub fn score_name(&self) -> &str {
        match (&self.metric, &self.data.target) {
            (Some(metric), _) => metric,
            (None, None) => "accuracy",
            (None, Some(_)) => "R²",
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

    /// Returns the bytes that are hashed: of what was agreed at first.
    pub fn canonical_bytes(&self) -> Vec<u8> {
        canonical::bytes(self.original(), &Self::default())
    }

    /// Returns the federation's name.
    pub fn id(&self) -> FederationId {
        FederationId::from_bytes(*blake3::hash(&self.canonical_bytes()).as_bytes())
    }

    /// Returns all keys of what was agreed at first with their values, in alphabetical order, long values cut.
    pub fn entries(&self) -> Vec<Entry> {
        canonical::entries(self.original())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
