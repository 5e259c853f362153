//! A node's model on disk: where it is, what its card says, and how it becomes something that predicts.
//!
//! ```text
//! state folder   final/model.safetensors + final/card.json    (after the last round)   with federation.toml,
//!                checkpoints/…                                (before)                 model.txt, classes.txt, vocabulary.txt;
//!                                                             where its samples are: data.toml
//! exported file  NAME.safetensors + NAME.json                 (the card holds all of that)
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use fednode_core::{FederationSpec, ParamSet, Round};
use fednode_data::{DataSource, Extractor, Samples, Split, Vocabulary};
use fednode_learn::{ComputeDevice, Learner};
use fednode_net::Identity;
use fednode_runtime::exit::ExitCode;
use fednode_runtime::final_model::{self, ModelCard};
use fednode_runtime::streams::say;
use fednode_runtime::{StoredModel, TrainerCard, records};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use crate::backbone;
use crate::config::Config;
use crate::data;
use crate::device::Choice;
use crate::failure::{OrFail, fail, no_learner};
use crate::origin;
use crate::shard::Shard;
use crate::state::{StateArgs, refuse_unused};

/// The copy of the spec in a state folder.
pub const SPEC_FILE: &str = "federation.toml";
/// The name of the node's own model in a state folder.
pub const MODEL_FILE: &str = "model.txt";
/// The vocabulary of a model of texts in a state folder, one token a line.
pub const VOCABULARY_FILE: &str = "vocabulary.txt";
/// The classes' names in a state folder, one a line.
pub const CLASSES_FILE: &str = "classes.txt";

/// How a model is named on the command line.
#[derive(Debug, Clone, clap::Args)]
pub struct ModelArgs {
    /// The node whose model it is.
    #[command(flatten)]
    pub state: StateArgs,
    /// An exported model, with its card beside it, instead of the node's own.
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// What to compute on: auto, vulkan, vulkan:I, cpu.
    #[arg(long, default_value = "cpu")]
    pub device: String,
    /// The ONNX file through which its federation looks at images; without it, the one that the node uses.
    #[arg(long, value_name = "FILE")]
    pub backbone: Option<PathBuf>,
}

/// What was typed of the samples that are meant.
#[derive(Debug, Clone, Copy)]
pub struct Typed<'a> {
    /// The source.
    pub data: Option<&'a str>,
    /// The part of it, `I/N`.
    pub shard: Option<Shard>,
    /// The index lists that divide it.
    pub partition_file: Option<&'a Path>,
}

/// What lies beside an exported model: everything needed to use it, and where it comes from.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Card {
    /// Who trained it, on what, and how good it was.
    #[serde(flatten)]
    pub model: ModelCard,
    /// The classes' names.
    pub class_names: Vec<String>,
    /// The tokens of a model of texts, the most frequent first; empty for others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vocabulary: Vec<String>,
    /// The spec of its federation, with the node's own model.
    #[serde(deserialize_with = "of_any_version")]
    pub spec: FederationSpec,
}

fn of_any_version<'de, D: Deserializer<'de>>(card: D) -> Result<FederationSpec, D::Error> {
    let spec = serde_json::Value::deserialize(card)?;
    FederationSpec::from_json(spec).map_err(D::Error::custom)
}

/// A model in memory.
#[derive(Debug)]
pub struct Model {
    /// All its parameters.
    pub params: ParamSet,
    /// The shared part that all nodes had last, where it may be another one than among the parameters.
    pub common: Option<ParamSet>,
    /// Whether it is a checkpoint's, from before the last round.
    pub is_under_way: bool,
    /// What it is.
    pub card: Card,
    /// Where it was found.
    pub path: PathBuf,
}

/// Which model a state folder holds: another one after a round, and at the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamp(Option<(bool, SystemTime)>);

impl ModelArgs {
    /// Names the model of a node, and the file of its backbone where the settings name one.
    pub fn of(state: PathBuf, backbone: Option<PathBuf>) -> Self {
        Self {
            state: StateArgs::of(state),
            model: None,
            device: "cpu".into(),
            backbone,
        }
    }

    /// Tells whether another model may take this one's place: that of a later round or end. An exported one stays.
    pub fn may_change(&self) -> bool {
        self.model.is_none()
    }

    /// Tells one model of a state folder from another without reading it. An exported model never changes.
    ///
    /// # Errors
    /// Fails on a wrong configuration.
    pub fn stamp(&self) -> anyhow::Result<Stamp> {
        if self.model.is_some() {
            return Ok(Stamp(None));
        }
        let state = self.state.folder()?;
        let written = |path: &Path| path.metadata().and_then(|file| file.modified()).ok();
        if let Some(at) = written(&state.join(final_model::FOLDER).join("card.json")) {
            return Ok(Stamp(Some((true, at))));
        }
        let checkpoints = fs::read_dir(state.join("checkpoints"))
            .into_iter()
            .flatten();
        let newest = checkpoints
            .flatten()
            .filter_map(|file| written(&file.path()))
            .max();
        Ok(Stamp(newest.map(|at| (false, at))))
    }

    /// Reads the model.
    ///
    /// # Errors
    /// Fails if there is none, or if it or its card cannot be read.
    pub fn load(&self) -> anyhow::Result<Model> {
        match &self.model {
            Some(path) => Model::exported(path),
            None => Model::of_state(&self.state.folder()?),
        }
    }

    /// Returns where a file about the model goes: in the state folder, or beside an exported model, whose name it then has
    /// before its own.
    ///
    /// # Errors
    /// Fails on a wrong configuration.
    pub fn beside(&self, name: &str) -> anyhow::Result<PathBuf> {
        match &self.model {
            Some(path) => Ok(path.with_extension(name)),
            None => Ok(self.state.folder()?.join(name)),
        }
    }

    /// Returns settings that say whose samples are meant: what is typed, else what the node of the state folder trains
    /// on, else what `node.toml` says.
    ///
    /// # Errors
    /// Fails on a wrong configuration, or if what the state folder says cannot be read.
    pub fn samples_of(&self, typed: Typed<'_>) -> anyhow::Result<Config> {
        let mut config = self.state.config()?;
        if self.model.is_none() {
            let mut known = config.clone();
            origin::recall(&mut known)?;
            config.backbone.clone_from(&known.backbone);
            if typed.data.is_none() {
                config = known;
            }
        }
        if let Some(text) = typed.data {
            config.data = data::source(text)?;
        }
        config.shard = typed.shard.or(config.shard);
        config.partition_file = typed
            .partition_file
            .map(Path::to_owned)
            .or(config.partition_file);
        config.backbone = self.backbone.clone().or(config.backbone);
        Ok(config)
    }

    /// Returns a source behind what a model's federation has in front of its models.
    ///
    /// # Errors
    /// As [`backbone::of`], or if what the state folder says cannot be read.
    pub fn behind(&self, source: DataSource, spec: &FederationSpec) -> anyhow::Result<DataSource> {
        self.extractor(spec)
            .map(|extractor| source.with_extractor(extractor))
    }

    /// Returns what turns images into features for a model; nothing if nothing does.
    ///
    /// # Errors
    /// As [`Self::behind`].
    pub fn extractor(&self, spec: &FederationSpec) -> anyhow::Result<Option<Arc<dyn Extractor>>> {
        if spec.model.backbone.is_none() && self.backbone.is_none() {
            return Ok(None);
        }
        let mut config = self.state.config()?;
        if self.model.is_none() {
            origin::recall(&mut config)?;
        }
        let file = self.backbone.clone().or(config.backbone);
        backbone::of(spec, file.as_deref(), 0)
    }
}

impl Model {
    /// Returns the spec of its federation.
    pub fn spec(&self) -> &FederationSpec {
        &self.card.spec
    }

    /// Reads an exported model; its card lies beside it.
    fn exported(path: &Path) -> anyhow::Result<Self> {
        // First the model: a name that is wrong is wrong for both files.
        let params = read_params(path)?;
        let beside = path.with_extension("json");
        if !beside.exists() {
            let (model, card) = (path.display(), beside.display());
            let advice = "`fednode export` writes both files, so keep them together";
            let text = format!("`{model}` has no card `{card}` beside it: {advice}");
            return Err(fail(ExitCode::State, text));
        }
        let card = read_json(&beside)?;
        Ok(Self {
            params,
            common: None,
            is_under_way: false,
            path: path.to_owned(),
            card,
        })
    }

    /// Reads the final model of a state folder, or before the last round the newest checkpoint's.
    pub fn of_state(state: &Path) -> anyhow::Result<Self> {
        let about = About::read(state)?;
        let path = final_path(state);
        if !path.exists() {
            return Self::under_way(state, about);
        }
        let model: ModelCard = read_json(&state.join(final_model::FOLDER).join("card.json"))?;
        if model.round == Round::ZERO {
            let state = state.display();
            say(format_args!(
                "note: the node of `{state}` took part in no round, so its model has learned nothing of its rows"
            ));
        }
        Ok(Self {
            card: about.card(model),
            params: read_params(&path)?,
            common: None,
            is_under_way: false,
            path,
        })
    }

    /// Reads the newest checkpoint of a state folder.
    fn under_way(state: &Path, about: About) -> anyhow::Result<Self> {
        let stored = fednode_runtime::stored_model(state, &about.spec).or_fail(ExitCode::State)?;
        let Some(StoredModel { params, common }) = stored else {
            let text = format!(
                "`{}` holds no model yet: let it finish a round",
                state.display()
            );
            return Err(fail(ExitCode::State, text));
        };
        let node_id = Identity::load(&state.join("key"))
            .or_fail(ExitCode::State)?
            .node_id();
        let last = records::read(&records::path_in(state))
            .or_fail(ExitCode::State)?
            .pop();
        let model = ModelCard::new(&about.spec, node_id, TrainerCard::default(), last);
        Ok(Self {
            card: about.card(model),
            params,
            common,
            is_under_way: true,
            path: state.join("checkpoints"),
        })
    }

    /// Makes a learner of it, which can evaluate and predict samples like these.
    ///
    /// # Errors
    /// Fails if samples or parameters do not fit the spec.
    pub fn learner(&self, like: &Samples, device: &str) -> anyhow::Result<Learner> {
        self.learner_on(like, &Choice::find(device)?.open(0)?)
    }

    /// Makes a learner on an open device, as [`Self::learner`] does.
    ///
    /// # Errors
    /// Fails if samples or parameters do not fit the spec.
    pub fn learner_on(&self, like: &Samples, device: &ComputeDevice) -> anyhow::Result<Learner> {
        let empty = like.subset(&[]);
        // A learner wants something to train on; it is never asked to.
        let split = Split {
            train: like.clone(),
            validation: empty.clone(),
            test: empty,
        };
        let mut learner =
            Learner::new(self.spec(), 0, Arc::new(split), device).map_err(no_learner)?;
        learner.restore(&self.params).or_fail(ExitCode::State)?;
        Ok(learner)
    }

    /// Returns the vocabulary, if it is a model of texts.
    ///
    /// # Errors
    /// Fails if its card does not hold the vocabulary that the spec names.
    pub fn vocabulary(&self) -> anyhow::Result<Option<Arc<Vocabulary>>> {
        if self.spec().fingerprints.vocabulary_size == 0 {
            return Ok(None);
        }
        let tokens: Vec<&str> = self.card.vocabulary.iter().map(String::as_str).collect();
        let vocabulary = Vocabulary::new(&tokens)
            .ok()
            .filter(|found| Some(found.hash()) == self.spec().fingerprints.vocabulary.as_deref());
        let missing = || {
            fail(
                ExitCode::State,
                format!(
                    "`{}` has not the vocabulary of its spec",
                    self.path.display()
                ),
            )
        };
        vocabulary
            .map(|vocabulary| Some(Arc::new(vocabulary)))
            .ok_or_else(missing)
    }

    /// Returns a class's name, or its number if it has none.
    pub fn class_name(&self, class: u16) -> String {
        let known = [
            &self.spec().fingerprints.class_names,
            &self.card.class_names,
        ];
        let name = known
            .into_iter()
            .find_map(|names| names.get(usize::from(class)));
        name.cloned().unwrap_or_else(|| class.to_string())
    }
}

/// What a state folder says of its model beside the parameters.
struct About {
    /// The federation's spec, as it is for all nodes.
    spec: FederationSpec,
    /// The name of the node's own model; empty if it has that of the spec.
    own_model: String,
    class_names: Vec<String>,
    vocabulary: Vec<String>,
}

/// Reads the spec, with the rounds that the organiser has added after the end of the final model.
fn in_force(text: &str, state: &Path) -> anyhow::Result<FederationSpec> {
    let agreed = FederationSpec::from_toml(text).or_fail(ExitCode::State)?;
    let extended = fednode_runtime::extended(agreed, (state, None), Round::ZERO);
    extended.or_fail(ExitCode::State)
}

impl About {
    fn read(state: &Path) -> anyhow::Result<Self> {
        let spec_path = state.join(SPEC_FILE);
        refuse_unused(state)?;
        if !spec_path.exists() {
            let shown = state.display();
            let advice = "name one with --state, or an exported model with --model";
            let text = format!("`{shown}` is no state folder of a node: {advice}");
            return Err(fail(ExitCode::State, text));
        }
        let text =
            fs::read_to_string(&spec_path).map_err(|error| unreadable(&spec_path, &error))?;
        let names = fs::read_to_string(state.join(CLASSES_FILE)).unwrap_or_default();
        let own_model = fs::read_to_string(state.join(MODEL_FILE)).unwrap_or_default();
        Ok(Self {
            spec: in_force(&text, state)?,
            own_model: own_model.trim().to_owned(),
            class_names: names.lines().map(str::to_owned).collect(),
            vocabulary: tokens(&state.join(VOCABULARY_FILE))?,
        })
    }

    /// Makes the card that an exported model would have beside it: its spec has the node's own model.
    fn card(self, model: ModelCard) -> Card {
        let mut spec = self.spec;
        if !self.own_model.is_empty() {
            spec.model.name = self.own_model.as_str().into();
        }
        Card {
            model,
            class_names: self.class_names,
            vocabulary: self.vocabulary,
            spec,
        }
    }
}

/// Reads the tokens of a state folder; only models of texts have any.
fn tokens(path: &Path) -> anyhow::Result<Vec<String>> {
    if !path.exists() {
        return Ok(Vec::new());
    }
    let vocabulary = Vocabulary::read(path).or_fail(ExitCode::State)?;
    Ok(vocabulary.tokens().into_iter().map(str::to_owned).collect())
}

/// Returns where a state folder keeps the final model.
fn final_path(state: &Path) -> PathBuf {
    state.join(final_model::FOLDER).join("model.safetensors")
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> anyhow::Result<T> {
    let text = fs::read_to_string(path).map_err(|error| unreadable(path, &error))?;
    serde_json::from_str(&text).map_err(|error| unreadable(path, &error))
}

fn unreadable(path: &Path, error: &dyn std::fmt::Display) -> anyhow::Error {
    fail(
        ExitCode::State,
        format!("cannot read `{}`: {error}", path.display()),
    )
}

fn read_params(path: &Path) -> anyhow::Result<ParamSet> {
    let bytes = fs::read(path).map_err(|error| unreadable(path, &error))?;
    ParamSet::import(&bytes).map_err(|error| unreadable(path, &error))
}
