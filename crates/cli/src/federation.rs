//! Making a federation's spec: from flags, from what the data is, and from what suits that data.
//!
//! ```text
//! recipe for the data  <  an experiment's settings  <  flags, --set key=value  ─►  FederationSpec  ─►  exchange, from the algorithm
//! ```
//!
//! Used by `fednode init`, which writes the result for people to edit, and by `fednode swarm`.

use std::path::Path;

use fednode_config::flags::dropped;
use fednode_core::spec::{OptimizerKind, Preset, PrivacyMode, Schedule, Sums, TableColumn, Target};
use fednode_core::{ConfigError, FederationSpec, HyperValue};
use fednode_learn::{algorithm, last_stage, own_model};
use fednode_runtime::streams::say;

use crate::backbone;
use crate::data;
use crate::dotted::{self, Assignment};
use crate::initial;

/// The key of the algorithm.
const ALGORITHM: &str = "algorithm";
/// The key of the algorithm's profile.
const PROFILE: &str = "hyper.profile";
/// The key of what a profile is mostly about.
const MATCHING: &str = "hyper.matching";
/// The profile that is taken where nobody says anything: the best over all regimes by its worst (experiments/README.md).
const BY_DEFAULT: &str = "agreement";
/// The key of a promise of privacy.
const EPSILON: &str = "privacy.epsilon";
/// The key of how what is averaged is added up.
const SUMS: &str = "privacy.sums";
/// The value of [`SUMS`] under masks.
const MASKED: &str = "masked";
/// The key of a preset of the pool.
const POOL: &str = "pool.preset";

/// The flags that shape a federation.
#[derive(Debug, Clone, Default, clap::Args)]
#[group(id = "federation")]
#[command(next_help_heading = "The federation")]
pub struct Args {
    /// Number of nodes.
    #[arg(long)]
    pub nodes: Option<u32>,
    /// Number of rounds.
    #[arg(long)]
    pub rounds: Option<u32>,
    /// The federated algorithm; `fednode algorithms` lists them. Without it, nodes learn from the peers that agree, where
    /// data and settings allow that.
    #[arg(long)]
    pub algorithm: Option<String>,
    /// The model: cnn, lenet5, mlp, …, fasttext for texts; several, separated by commas, fall to the nodes in turn.
    #[arg(long, value_delimiter = ',')]
    pub model: Vec<String>,
    /// Parameters to start from, instead of drawn ones: safetensors, as `fednode export` writes them. `,names=MAP` may follow,
    /// a file that says which names here stand for which there.
    #[arg(long, value_name = "FILE")]
    pub initial: Option<std::path::PathBuf>,
    /// A frozen network, an ONNX file, that turns images into features once; everything is learned on those. Images are
    /// brought to `,size=HxW`; `,mean=M,scale=S` of their pixels and `,output=NAME` may follow where the file does not say
    /// them itself.
    #[arg(long, value_name = "FILE")]
    pub backbone: Option<backbone::Given>,
    #[arg(long, help = data::partition_help(), value_name = "RULE")]
    #[expect(missing_docs, reason = "its help lists the table of partitions")]
    pub partition: Option<String>,
    /// A JSON file with explicit index lists, instead of --partition.
    #[arg(long, value_name = "FILE", conflicts_with = "partition")]
    pub partition_file: Option<std::path::PathBuf>,
    /// Samples per node, training and test together; 0 divides everything.
    #[arg(long)]
    pub samples_per_node: Option<usize>,
    /// Seed of everything that is drawn.
    #[arg(long)]
    pub seed: Option<u64>,
    /// Passes over a node's training samples per round (E).
    #[arg(long)]
    pub local_epochs: Option<u32>,
    #[arg(long = "participation", value_name = "C", hide = true, value_parser = dropped("--set round.participation=C"))]
    #[expect(missing_docs, reason = "nothing is ever in it")]
    pub dropped_participation: Option<String>,
    /// Samples per step.
    #[arg(long)]
    pub batch_size: Option<usize>,
    /// Step size.
    #[arg(long)]
    pub lr: Option<f64>,
    /// After the last round, every node publishes its private module, unless its share_module is false, and learns a mixture
    /// of everybody's (PM-MoE):
    /// fixed, paper, code or best.
    #[arg(long, value_name = "PRESET", num_args = 0..=1, require_equals = true, default_missing_value = "fixed")]
    pub pool: Option<String>,
    /// What members may learn of a node's samples: `open`, `masked`, with which they see sums alone, or `dp:EPSILON`, with which nodes publish statistics or training with noise.
    /// `masked+dp:EPSILON` is both: sums alone, with noise. `fednode init` takes `masked+dp:4` for data of one's own.
    #[arg(long, value_name = "MODE")]
    pub privacy: Option<PrivacyMode>,
    /// Any key of federation.toml or hyper-parameter of the algorithm; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<Assignment>,
    /// What a file says; weaker than every flag.
    #[arg(skip)]
    pub defaults: Vec<Assignment>,
}

impl Args {
    /// Returns the file of the backbone, if one is given.
    pub fn backbone_file(&self) -> Option<&Path> {
        self.backbone.as_ref().map(|given| given.file.as_path())
    }
}

/// What the data says of itself.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DataFacts {
    /// What it is called.
    pub name: String,
    /// Channels, height and width of a sample.
    pub input: [usize; 3],
    /// Number of classes.
    pub classes: usize,
    /// What they are called; nothing if there are too many for a spec.
    pub class_names: Vec<String>,
    /// The number that is predicted, if it is no class.
    pub target: Option<Target>,
    /// What the columns of a table are called; nothing if they have no names, or are too many for a spec.
    pub columns: Vec<String>,
    /// What the columns of a raw table are; nothing of other data.
    pub described: Vec<TableColumn>,
    /// Samples of the source, or of the middle one of several.
    pub samples: usize,
    /// Whether the samples are rows of a table.
    pub is_table: bool,
    /// Whether the samples are features of images, made by a backbone.
    pub is_featured: bool,
    /// Entries of the vocabulary; 0 unless the samples are texts.
    pub vocabulary: usize,
    /// Which vocabulary, if the samples are texts.
    pub vocabulary_hash: Option<String>,
}

/// Makes the spec that flags and data describe; the partition's hash is still empty.
///
/// Where nobody names an algorithm or its profile, it is FedMoE-DA by agreement, if everything else that is said can
/// be had with that: a pool and a gate's settings cannot. Then one line says why.
///
/// # Errors
/// Names the first key that is unknown or out of range.
pub fn spec(args: &Args, data: &DataFacts) -> Result<FederationSpec, ConfigError> {
    let (spec, note) = spec_and_note(args, data)?;
    if let Some(note) = note {
        say(format_args!("note: {note}"));
    }
    Ok(spec)
}

/// Tells whether the algorithm is that of federations in which nobody names one.
pub fn is_by_default(spec: &FederationSpec) -> bool {
    let profile = HyperValue::Text(BY_DEFAULT.to_owned());
    let key = PROFILE.trim_start_matches("hyper.");
    spec.algorithm == FederationSpec::default().algorithm && spec.hyper.get(key) == Some(&profile)
}

/// As [`spec`], and says nothing: returns what there is to be said.
///
/// # Errors
/// As [`spec`].
pub fn spec_and_note(
    args: &Args,
    data: &DataFacts,
) -> Result<(FederationSpec, Option<String>), ConfigError> {
    refuse_contradictions(args)?;
    if let Some(Target {
        name,
        range: [low, high],
    }) = &data.target
        && low >= high
    {
        return Err(ConfigError(format!(
            "column `{name}` has one number in all rows: there is nothing to predict, name another with `,target=COLUMN`"
        )));
    }
    if data.target.is_none() && data.classes < 2 {
        let only = data.class_names.first().map_or("one", String::as_str);
        return Err(ConfigError(format!(
            "all samples have the label `{only}`: there is nothing to tell apart; name all classes, with `,classes=A|B`"
        )));
    }
    let mut spec = match &args.backbone {
        Some(given) => {
            let (backbone, features) = given.describe(data)?;
            let mut spec = recipe(&features);
            spec.model.backbone = Some(backbone);
            spec
        }
        None => recipe(data),
    };
    let all = assignments(args);
    let of_key = |key: &str| all.iter().rfind(|set| set.is_of(&Assignment::new(key, "")));
    let is_masked = of_key(SUMS).is_some_and(|set| set.value == MASKED);
    if is_masked || of_key(EPSILON).is_some() {
        coarsen(&mut spec);
    }
    if let Some(named) = of_key(ALGORITHM) {
        spec.algorithm.clone_from(&named.value);
    } else if of_key(PROFILE).or(of_key(MATCHING)).is_none() {
        let profile = Assignment::new(PROFILE, BY_DEFAULT);
        let with_profile = [&[profile][..], &all].concat();
        let reason = match complete(args, &spec, &with_profile) {
            Ok(made) => return Ok((made, None)),
            Err(reason) => reason,
        };
        // If neither can be had, what is wrong with the default is what the user wants to know.
        let Ok(made) = complete_with_a_model(args, &spec, &all) else {
            return Err(reason);
        };
        let note = format!(
            "fedmoe-da as in its paper, and not by agreement, which is the default: {reason}"
        );
        return Ok((made, Some(note)));
    }
    complete_with_a_model(args, &spec, &all).map(|made| (made, None))
}

/// Rounds what the data at hand say of themselves, for a federation with a promise: a spec is for all to see. Ranges go out to round
/// numbers, and the penalty that follows from the number of rows to a power of two.
fn coarsen(spec: &mut FederationSpec) {
    for column in &mut spec.data.columns {
        column.range = data::coarse(column.range);
    }
    let decay = &mut spec.training.weight_decay;
    if *decay > 0.0 {
        *decay = decay.log2().round().exp2();
    }
}

/// As [`complete`]. Not every algorithm takes what the recipe says of raw tables and of features: then what [`milder`] makes
/// of it is tried, one after the other.
fn complete_with_a_model(
    args: &Args,
    spec: &FederationSpec,
    all: &[Assignment],
) -> Result<FederationSpec, ConfigError> {
    let mut made = complete(args, spec, all);
    for other in milder(spec) {
        if made.is_ok() {
            break;
        }
        made = complete(args, &other, all);
    }
    made
}

/// Returns specs for algorithms that divide a model, that prescribe plain steps, or that know no penalty.
fn milder(spec: &FederationSpec) -> Vec<FederationSpec> {
    let of_rows = !spec.data.columns.is_empty();
    if !of_rows && spec.model.backbone.is_none() {
        return Vec::new();
    }
    let mut plain = spec.clone();
    plain.training.weight_decay = 0.0;
    if !of_rows {
        plain.training.optimizer = OptimizerKind::Sgd;
        plain.training.learning_rate = 0.01;
    }
    let deeper = |spec: &FederationSpec| {
        let mut deeper = spec.clone();
        deeper.model.name = "mlp".into();
        deeper
    };
    vec![deeper(spec), plain.clone(), deeper(&plain)]
}

/// Assigns to a spec that has its algorithm, and checks the result.
fn complete(
    args: &Args,
    spec: &FederationSpec,
    all: &[Assignment],
) -> Result<FederationSpec, ConfigError> {
    let row = algorithm::find(&spec.algorithm)?;
    let hyper_names = row.hyper_names();
    let mut spec = dotted::assign(spec, all, &hyper_names)?;
    if let Some(path) = &args.initial {
        spec.fingerprints.initial = Some(initial::read(path)?.1);
    }
    algorithm::fill_exchange(&mut spec)?;
    if spec.pool.preset == Some(Preset::Best) {
        spec.statistics.enabled |= last_stage::suits_statistics(&spec).unwrap_or(false);
    }
    last_stage::check(&spec).map_err(|error| ConfigError(error.to_string()))?;
    spec.validate()?;
    if spec.data.partition.starts_with("file:") {
        let message = "`data.partition` must be just `file`: a path would differ from machine to machine, give it to \
                       each with --partition-file";
        return Err(ConfigError(message.into()));
    }
    fednode_learn::model::build(&spec.architecture())?;
    own_model::check(&spec).map_err(|error| ConfigError(error.to_string()))?;
    algorithm::check_model(&spec).map_err(|error| ConfigError(error.to_string()))?;
    Ok(spec)
}

/// Refuses the name of a preset where a file or a folder is expected: `--pool best` reads as `--pool` and then `best`.
///
/// # Errors
/// Says how it is written.
pub fn refuse_preset(args: &Args, path: &Path) -> Result<(), ConfigError> {
    let preset = path.to_str().filter(|name| {
        args.pool.as_deref() == Some(Preset::NAMES[0])
            && Preset::NAMES.contains(name)
            && !path.exists()
    });
    match preset {
        Some(name) => Err(ConfigError(format!(
            "a preset follows an equals sign: `--pool={name}`"
        ))),
        None => Ok(()),
    }
}

/// Returns the keys that flags set, those of `--set` included.
pub fn keys_of_flags(args: &Args) -> Vec<String> {
    let flags = typed(args);
    let initial = args.initial.as_ref().map(|_| "initial".to_owned());
    let backbone = args.backbone.as_ref().map(|_| "backbone".to_owned());
    flags
        .into_iter()
        .map(|assignment| assignment.key)
        .chain(initial)
        .chain(backbone)
        .collect()
}

/// Refuses a flag and a `--set` of the same key that say different things. Of two `--set` of one key the later one wins, as
/// of two flags of one name.
fn refuse_contradictions(args: &Args) -> Result<(), ConfigError> {
    let mut flags = typed(args);
    flags.truncate(flags.len() - args.set.len()); // those of --set come last
    let is_last =
        |(at, set): &(usize, &Assignment)| !args.set[at + 1..].iter().any(|later| later.is_of(set));
    let last = args
        .set
        .iter()
        .enumerate()
        .filter(is_last)
        .map(|(_, set)| set.clone());
    match dotted::contradiction(&flags.into_iter().chain(last).collect::<Vec<_>>()) {
        None => Ok(()),
        Some([Assignment { value: flag, .. }, Assignment { key, value }]) => {
            Err(ConfigError(format!(
                "`{key}` is given twice, as `{flag}` and by --set as `{value}`: drop one of them"
            )))
        }
    }
}

/// Returns what flags and `--set` say.
fn typed(args: &Args) -> Vec<Assignment> {
    assignments(&Args {
        defaults: Vec::new(),
        ..args.clone()
    })
}

/// Turns defaults and flags into assignments, weakest first.
fn assignments(args: &Args) -> Vec<Assignment> {
    let mut assignments = args.defaults.clone();
    let mut put = |key: &str, value: Option<String>| {
        assignments.extend(value.map(|value| Assignment::new(key, value)));
    };
    let text = |number: Option<usize>| number.map(|number| number.to_string());
    put(ALGORITHM, args.algorithm.clone());
    put("nodes", args.nodes.map(|nodes| nodes.to_string()));
    put("rounds", args.rounds.map(|rounds| rounds.to_string()));
    put(
        "model.name",
        (!args.model.is_empty()).then(|| args.model.join(",")),
    );
    put(
        "data.partition",
        args.partition_file
            .as_ref()
            .map(|_| lists_of(args))
            .or(args.partition.clone()),
    );
    put("data.samples_per_node", text(args.samples_per_node));
    put("seed", args.seed.map(|seed| seed.to_string()));
    put(
        "training.local_epochs",
        args.local_epochs.map(|epochs| epochs.to_string()),
    );
    put("training.batch_size", text(args.batch_size));
    put("training.learning_rate", args.lr.map(|lr| lr.to_string()));
    put(POOL, args.pool.clone());
    if let Some(mode) = args.privacy {
        put(EPSILON, mode.epsilon().map(|epsilon| epsilon.to_string()));
        let is_masked = mode.sums() == Sums::Masked;
        put(SUMS, is_masked.then(|| MASKED.to_owned()));
        let is_other = |set: &Assignment| match set.key.as_str() {
            EPSILON => mode.epsilon().is_none(),
            SUMS => !is_masked,
            _ => false,
        };
        assignments.retain(|set| !is_other(set));
    }
    assignments.extend(args.set.iter().cloned());
    assignments
}

/// Returns what the partition is called where there are index lists: `file`, with transforms if a setting has any behind it.
fn lists_of(args: &Args) -> String {
    let settings = args.defaults.iter().chain(&args.set);
    settings
        .rev()
        .find(|set| set.key == "data.partition" && data::is_of_lists(&set.value))
        .map_or_else(|| "file".to_owned(), |set| set.value.clone())
}

/// The model of raw tables, and of what a backbone makes of images.
const ONE_LAYER: &str = "linear";
/// How many rows the penalty on the weights of a raw table's model is worth, as C = 0.1 of scikit-learn.
/// It did at least as well as folds for four hospitals' tables of 80 to 200 rows (experiments/README.md).
const PENALTY_ROWS: f64 = 10.0;

/// Enters what the data say of themselves.
fn described(data: &DataFacts) -> FederationSpec {
    let mut spec = FederationSpec::default();
    spec.name.clone_from(&data.name);
    spec.data.name.clone_from(&data.name);
    spec.fingerprints.input = data.input;
    spec.fingerprints.classes = data.classes;
    spec.fingerprints.class_names.clone_from(&data.class_names);
    spec.fingerprints.columns.clone_from(&data.columns);
    spec.data.columns.clone_from(&data.described);
    spec.data.target.clone_from(&data.target);
    spec.fingerprints.vocabulary_size = data.vocabulary;
    spec.fingerprints
        .vocabulary
        .clone_from(&data.vocabulary_hash);
    spec
}

/// Settings that learn visibly within a few rounds on data like this.
fn recipe(data: &DataFacts) -> FederationSpec {
    let mut spec = described(data);
    let [channels, height, width] = data.input;
    let is_text = data.vocabulary > 0;
    let is_raw = !data.described.is_empty();
    let is_small = !is_text && channels * height * width < 256;
    // A row of a table has no neighbourhoods for a convolution to look at.
    let is_image = height >= 4 && width >= 4;
    spec.model.name = match (is_text, is_image) {
        (true, _) => "fasttext".into(),
        (false, true) => "cnn".into(),
        (false, false) if is_raw || data.is_featured => ONE_LAYER.into(),
        (false, false) => "mlp".into(),
    };
    if is_text {
        // Of a step, a word's row gets one part in as many as the text has words and the batch has texts: with the steps
        // of images a federation sits on its floor for hundreds of rounds. Twice this step diverges.
        spec.training.local_epochs = 5;
        spec.training.batch_size = 4;
        spec.training.learning_rate = 0.5;
    }
    if is_small {
        // Little data of few pixels: small steps' noise is welcome, and they cost nothing.
        spec.training.local_epochs = 2;
        spec.training.batch_size = 10;
        spec.training.learning_rate = 0.05;
        spec.data.partition = "dirichlet:0.5".into();
    }
    if data.target.is_some() {
        // Bands of a number are no sites: a node that holds one knows neither slope nor spread.
        spec.data.partition = "iid".into();
    }
    if is_raw {
        // A few hundred rows: a penalty as of ten rows, and steps that shrink until they no longer hop about.
        spec.rounds = 5;
        spec.training.local_epochs = 10;
        spec.training.batch_size = 20;
        spec.training.learning_rate = 0.1;
        spec.training.schedule = Schedule::Cosine;
        spec.training.weight_decay = (PENALTY_ROWS / data.samples.max(1) as f64).min(0.2);
    }
    if data.is_featured {
        // Features are many, and go the same way for the most part: plain steps crawl. On emojis of one vendor (1,226 images)
        // 25 epochs of AdamW reached 74.3 %, of the best plain steps 73.7 %, and 50 epochs of smaller ones 71.9 %.
        spec.rounds = 5;
        spec.training.local_epochs = 5;
        spec.training.batch_size = 20;
        spec.training.optimizer = OptimizerKind::Adamw;
        spec.training.learning_rate = 0.001;
        spec.training.schedule = Schedule::Cosine;
        spec.training.weight_decay = 1.0;
    }
    spec
}

#[cfg(test)]
mod tests {
    use super::*;
    use fednode_core::HyperValue;

    fn digits() -> DataFacts {
        DataFacts {
            name: "digits".into(),
            input: [1, 8, 8],
            classes: 10,
            ..DataFacts::default()
        }
    }

    fn set(texts: &[&str]) -> Vec<Assignment> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    /// Flags over an experiment's defaults.
    fn flags() -> Args {
        Args {
            lr: Some(0.1),
            batch_size: Some(3),
            defaults: set(&["training.batch_size=7", "rounds=9"]),
            ..Args::default()
        }
    }

    #[test]
    fn a_spec_with_a_promise_rounds_what_the_data_at_hand_say_of_themselves() {
        let mut spec = FederationSpec::default();
        let column = |range| TableColumn {
            name: "age".into(),
            range,
            ..TableColumn::default()
        };
        spec.data.columns = [[28.0, 77.0], [-0.34, 0.52], [0.0, 603.0], [0.0, 5e-324]]
            .map(column)
            .into();
        spec.training.weight_decay = 10.0 / 303.0;
        coarsen(&mut spec);
        let ranges = spec.data.columns.iter().map(|column| column.range);
        let expected = [[25.0, 80.0], [-0.4, 0.6], [0.0, 700.0], [0.0, 5e-324]];
        for (found, expected) in ranges.flatten().zip(expected.as_flattened()) {
            assert!((found - expected).abs() < 1e-9, "{found} {expected}");
        }
        assert_eq!(spec.training.weight_decay, 1.0 / 32.0);
    }

    #[test]
    fn index_lists_may_have_transforms() {
        let partition = |texts: &[&str]| {
            let args = Args {
                partition_file: Some("lists.json".into()),
                set: set(texts),
                ..Args::default()
            };
            spec(&args, &digits()).map(|spec| spec.data.partition)
        };
        assert_eq!(partition(&[]).unwrap(), "file");
        let transformed = "data.partition=file+rotated:4:2";
        assert_eq!(partition(&[transformed]).unwrap(), "file+rotated:4:2");
        let other = partition(&["data.partition=iid"]).unwrap_err();
        assert!(other.0.contains("given twice"), "{other:?}");
    }

    #[test]
    fn flags_beat_defaults() {
        let args = Args {
            set: set(&["training.learning_rate=0.1", "load_balance=0.25"]),
            ..flags()
        };
        let made = spec(&args, &digits()).unwrap();
        assert_eq!(
            (
                made.training.learning_rate,
                made.training.batch_size,
                made.rounds
            ),
            (0.1, 3, 9)
        );
        assert_eq!(made.hyper["load_balance"], HyperValue::Real(0.25));
        assert_eq!(
            (made.fingerprints.input, made.fingerprints.classes),
            ([1, 8, 8], 10)
        );
    }

    /// The profile where nobody names one, and what takes it away.
    #[test]
    fn peers_agree_unless_something_else_is_wanted() {
        let profile = |texts: &[&str], facts: &DataFacts| {
            let args = Args {
                set: set(texts),
                ..Args::default()
            };
            let made = spec(&args, facts).unwrap();
            made.hyper.get("profile").cloned()
        };
        let text = |name: &str| HyperValue::Text(name.to_owned());
        let by_default = Some(text(BY_DEFAULT));
        for harmless in ["rounds=3", "peers_per_expert=4", "hyper.base=fedper"] {
            assert_eq!(profile(&[harmless], &digits()), by_default, "{harmless}");
        }
        for other in [
            "algorithm=fedmoe-da",
            "hyper.matching=similarity",
            "load_balance=0.1",
            "pool.preset=fixed",
            "statistics.enabled=true",
            "transfer.precision=f16",
        ] {
            assert_eq!(profile(&[other], &digits()), None, "{other}");
        }
        let named = profile(&["hyper.profile=robust"], &digits());
        assert_eq!(named, Some(text("robust")));
        let texts = DataFacts {
            input: [1, 1, 200],
            vocabulary: 500,
            ..digits()
        };
        assert_eq!(profile(&[], &texts), by_default);
    }

    #[test]
    fn last_assignment_counts() {
        let args = Args {
            set: set(&["load_balance=0.25", "hyper.load_balance=0.5"]),
            ..flags()
        };
        assert_eq!(
            spec(&args, &digits()).unwrap().hyper["load_balance"],
            HyperValue::Real(0.5),
            "the later one"
        );
        let args = Args {
            set: set(&["algorithm=fedper"]),
            ..Args::default()
        };
        assert_eq!(spec(&args, &digits()).unwrap().algorithm, "fedper");
    }

    #[test]
    fn flags_and_settings_contradict_nothing() {
        let same = Args {
            set: set(&["training.learning_rate=1e-1"]),
            ..flags()
        };
        assert!(spec(&same, &digits()).is_ok(), "the same number");
        let flags = Args {
            algorithm: Some("fedmoe-da".into()),
            ..flags()
        };
        for (typed, key) in [
            ("training.learning_rate=0.5", "training.learning_rate"),
            ("training.batch_size=9", "training.batch_size"),
            ("algorithm=fedavg", "algorithm"),
        ] {
            let args = Args {
                set: set(&[typed]),
                ..flags.clone()
            };
            let refused = spec(&args, &digits()).unwrap_err().0;
            assert!(
                refused.starts_with(&format!("`{key}` is given twice, as `")),
                "{refused}"
            );
        }
    }

    #[test]
    fn a_preset_behind_a_space_is_no_folder() {
        let pooled = Args {
            pool: Some("fixed".into()),
            ..Args::default()
        };
        assert!(
            refuse_preset(&pooled, Path::new("best"))
                .unwrap_err()
                .0
                .contains("`--pool=best`")
        );
        assert_eq!(refuse_preset(&pooled, Path::new("demo")), Ok(()));
        assert_eq!(refuse_preset(&Args::default(), Path::new("best")), Ok(()));
    }

    #[test]
    fn settings_of_the_exchange_reach_the_exchange() {
        let args = Args {
            set: set(&["peers_per_expert=all", "refresh_every=3", "temperature=2"]),
            ..Args::default()
        };
        let made = spec(&args, &digits()).unwrap();
        algorithm::check_exchange(&made).unwrap();
        let experts = made.exchange.experts.unwrap();
        assert_eq!(experts.peers_per_expert, fednode_core::PeersPerExpert::ALL);
        assert_eq!((experts.refresh_every, experts.temperature), (3, 2.0));
    }

    #[test]
    fn flags_that_an_algorithm_does_not_have_are_refused() {
        let args = Args {
            algorithm: Some("local".into()),
            set: set(&["refresh_every=3"]),
            ..Args::default()
        };
        assert!(
            spec(&args, &digits())
                .unwrap_err()
                .0
                .contains("refresh_every")
        );
        let args = Args {
            algorithm: Some("fedmoeda".into()),
            ..Args::default()
        };
        assert!(
            spec(&args, &digits())
                .unwrap_err()
                .0
                .contains("did you mean `fedmoe-da`")
        );
        let args = Args {
            model: vec!["cnnn".into()],
            ..Args::default()
        };
        assert!(
            spec(&args, &digits())
                .unwrap_err()
                .0
                .contains("did you mean `cnn`")
        );
    }

    #[test]
    fn every_recipe_is_a_valid_spec() {
        for (input, vocabulary) in [
            ([1, 8, 8], 0),
            ([1, 28, 28], 0),
            ([3, 32, 32], 0),
            ([1, 1, 13], 0),
            ([1, 1, 200], 500),
        ] {
            let facts = DataFacts {
                name: "x".into(),
                input,
                classes: 3,
                vocabulary,
                ..DataFacts::default()
            };
            for row in algorithm::TABLE {
                let args = Args {
                    algorithm: Some(row.name.into()),
                    ..Args::default()
                };
                let made = match spec(&args, &facts) {
                    // A gate on the raw input has no use for tokens, and says so here.
                    Err(ConfigError(reason)) if vocabulary > 0 && reason.contains("texts") => {
                        continue;
                    }
                    made => made.unwrap(),
                };
                assert_eq!(FederationSpec::from_toml(&made.to_toml()), Ok(made));
            }
        }
    }
}
