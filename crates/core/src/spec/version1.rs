//! Files of version 1, which have no key `version`, become specs of this version.
//!
//! Fingerprints had keys among the others, empty texts stood for none, and the numbers of a pool's preset were keys. So
//! were bounds that every member has alike now. The federation that comes out is the same, but its id and its draws are
//! those of this version.

use toml::{Table, Value};

use super::{FederationSpec, Schedule, VERSION};
use crate::config::{self, ConfigError};
use crate::limits::{CLOCK_SKEW, FEWEST_MEMBERS, FULL_PROXIES, MAX_NORM_RATIO};

/// What the reader of such a file is told.
pub(super) const NOTICE: &str = "the spec is of version 1 and is read as one of version 2, so its federation has another \
                                 id: all members need this fednode (`version = 2` and the new keys silence this line)";

/// Where fingerprints were, and what they are called now.
const MOVED: [(&str, &str, &str); 8] = [
    ("model", "input", "input"),
    ("model", "classes", "classes"),
    ("model", "vocabulary", "vocabulary_size"),
    ("model", "class_names", "class_names"),
    ("model", "columns", "columns"),
    ("model", "vocabulary_hash", "vocabulary"),
    ("model", "initial", "initial"),
    ("data", "partition_hash", "partition"),
];

/// The keys of a pool that its preset owns, as `fixed` has them, but for the epochs.
const FIXED: &str = "
score = 'energy'
energy_temperature = 1.0
drop_share = 0.2
top_k = 0
renormalize = 'additive'
learning_rates = [0.05, 0.1, 0.5]
batch_size = 64
drop_last = false
dropout = 0.0
gate_input = 'features'
standardize = true
first_activation = 'leaky_relu'
biases = 'zeros'
guard = true
fine_tune = false
";
/// What `best` has otherwise.
const BEST: &str = "fine_tune = true";
/// What `paper` has otherwise.
const PAPER: &str = "
guard = false
renormalize = 'never'
batch_size = 10
standardize = false
learning_rates = [0.5]
gate_input = 'samples'
";
/// What `code` has otherwise.
const CODE: &str = "
guard = false
renormalize = 'never'
batch_size = 10
standardize = false
drop_share = 0.0
top_k = 2
learning_rates = [0.1]
drop_last = true
dropout = 0.1
first_activation = 'relu'
biases = 'uniform'
";

/// A preset as version 1 wrote it.
struct Preset {
    name: &'static str,
    differs: &'static str,
    epochs: i64,
}

const PRESETS: [Preset; 4] = [
    Preset {
        name: "fixed",
        differs: "",
        epochs: 50,
    },
    Preset {
        name: "best",
        differs: BEST,
        epochs: 50,
    },
    Preset {
        name: "paper",
        differs: PAPER,
        epochs: 50,
    },
    Preset {
        name: "code",
        differs: CODE,
        epochs: 10,
    },
];

/// `scale.speakers` of a file that does not have it.
const BROADCAST_SET: i64 = 256;

/// Reads a file of version 1; nothing if it is of a later one.
///
/// # Errors
/// Names the key that version 2 cannot express, or is malformed.
pub(super) fn convert(text: &str) -> Result<Option<FederationSpec>, ConfigError> {
    let Ok(typed) = text.parse::<Table>() else {
        return config::parse(text).map(Some); // It fails too, and says where.
    };
    if !is_of_version_1(&typed) {
        return Ok(None);
    }
    let root = converted(typed.clone())?;
    // Where nothing had to be converted, what is wrong has a line.
    let spec = if root == typed {
        config::parse(text)
    } else {
        config::from_table(root)
    };
    spec.map(at_this_version).map(Some)
}

/// Reads the table of a spec of version 1; nothing if it is of a later one.
///
/// # Errors
/// As [`convert`].
pub(super) fn convert_table(root: Table) -> Result<Option<FederationSpec>, ConfigError> {
    if !is_of_version_1(&root) {
        return Ok(None);
    }
    let spec = config::from_table(converted(root)?);
    spec.map(at_this_version).map(Some)
}

fn is_of_version_1(root: &Table) -> bool {
    matches!(root.get("version"), None | Some(Value::Integer(1)))
}

/// Returns the keys of version 1 as version 2 has them.
fn converted(mut root: Table) -> Result<Table, ConfigError> {
    move_fingerprints(&mut root);
    join_models(&mut root);
    join_schedule(&mut root);
    drop_constants(&mut root)?;
    move_broadcast_set(&mut root)?;
    convert_pool(&mut root)?;
    Ok(root)
}

fn at_this_version(spec: FederationSpec) -> FederationSpec {
    FederationSpec {
        version: VERSION,
        ..spec
    }
}

fn move_fingerprints(root: &mut Table) {
    let mut moved = Table::new();
    for (table, old, new) in MOVED {
        let value = table_of(root, table).and_then(|table| table.remove(old));
        let is_none = match &value {
            Some(Value::String(text)) => text.is_empty(),
            Some(Value::Array(names)) => names.is_empty(),
            _ => false,
        };
        if let Some(value) = value.filter(|_| !is_none) {
            moved.insert(new.to_owned(), value);
        }
    }
    if moved.is_empty() {
        return;
    }
    let known = root
        .entry("fingerprints")
        .or_insert_with(|| Table::new().into());
    if let Value::Table(known) = known {
        known.extend(moved);
    }
}

/// Makes the models of the nodes in turn the value of `model.name`, which meant nothing beside them.
fn join_models(root: &mut Table) {
    let Some(model) = table_of(root, "model") else {
        return;
    };
    match model.remove("by_node") {
        Some(Value::Array(names)) if names.is_empty() => {}
        Some(names) => drop(model.insert("name".to_owned(), names)),
        None => {}
    }
}

/// Puts the numbers of a schedule behind its name.
fn join_schedule(root: &mut Table) {
    let Some(training) = table_of(root, "training") else {
        return;
    };
    let (every, factor) = (
        training.remove("schedule_every"),
        training.remove("schedule_factor"),
    );
    let is_step = training.get("schedule").and_then(Value::as_str) == Some("step");
    if let (
        true,
        Schedule::Step {
            every: e,
            factor: f,
        },
    ) = (is_step, Schedule::STEP)
    {
        let every = every.map_or_else(|| e.to_string(), |every| every.to_string());
        let factor = factor.map_or_else(|| f.to_string(), |factor| factor.to_string());
        let text = format!("step:{every}:{factor}");
        training.insert("schedule".to_owned(), text.into());
    }
}

/// Takes out what is no key any more, where it says what holds anyway.
///
/// # Errors
/// Names the first key with another value, and what to do.
fn drop_constants(root: &mut Table) -> Result<(), ConfigError> {
    let constants = [
        ("limits", "clock_skew_seconds", CLOCK_SKEW.as_secs_f64()),
        ("limits", "max_norm_ratio", MAX_NORM_RATIO),
        ("round", "min_members", f64::from(FEWEST_MEMBERS)),
        ("scale", "full_proxies", f64::from(FULL_PROXIES)),
    ];
    for (table, key, constant) in constants {
        let value = table_of(root, table).and_then(|table| table.remove(key));
        if value.is_some_and(|value| as_real(value) != Value::Float(constant)) {
            return Err(is_constant(table, key, &constant.to_string()));
        }
    }
    drop_if_empty(root, "limits");
    Ok(())
}

/// Moves the size of the broadcast set to its round, and takes out how many follow: a quarter of it.
///
/// # Errors
/// As [`drop_constants`].
fn move_broadcast_set(root: &mut Table) -> Result<(), ConfigError> {
    let Some(scale) = table_of(root, "scale") else {
        return Ok(());
    };
    let (speakers, follows) = (scale.remove("speakers"), scale.remove("follows"));
    let set = speakers.as_ref().and_then(Value::as_integer);
    let quarter = set.unwrap_or(BROADCAST_SET) / 4;
    if follows.is_some_and(|follows| follows != Value::Integer(quarter)) {
        let text = format!("a quarter of `round.broadcast_set`, {quarter},");
        return Err(is_constant("scale", "follows", &text));
    }
    drop_if_empty(root, "scale");
    if let Some(speakers) = speakers {
        let round = root.entry("round").or_insert_with(|| Table::new().into());
        if let Value::Table(round) = round {
            round.insert("broadcast_set".to_owned(), speakers);
        }
    }
    Ok(())
}

/// Takes a table out that says nothing any more; what remains in one is unknown, and said to be.
fn drop_if_empty(root: &mut Table, name: &str) {
    if table_of(root, name).is_some_and(|table| table.is_empty()) {
        root.remove(name);
    }
}

fn is_constant(table: &str, key: &str, constant: &str) -> ConfigError {
    ConfigError(format!(
        "`{table}.{key}` is of version 1 and always {constant} now: write `version = 2` and leave it out"
    ))
}

fn table_of<'a>(root: &'a mut Table, name: &str) -> Option<&'a mut Table> {
    root.get_mut(name).and_then(Value::as_table_mut)
}

fn convert_pool(root: &mut Table) -> Result<(), ConfigError> {
    let Some(pool) = table_of(root, "pool") else {
        return Ok(());
    };
    match pool.get("enabled") {
        Some(Value::Boolean(true)) => *pool = with_preset(std::mem::take(pool))?,
        // Without the stage its numbers said nothing.
        Some(Value::Boolean(false)) => drop(root.remove("pool")),
        _ => {}
    }
    Ok(())
}

/// Names the preset that a pool's numbers are those of, and keeps what a federation may still choose.
fn with_preset(mut pool: Table) -> Result<Table, ConfigError> {
    pool.remove("enabled");
    let preset = preset_of(&mut pool)?;
    // Version 1 had a default of its own where the preset has one now.
    keep_unless(&mut pool, "epochs", 50, preset.epochs);
    pool.insert("preset".to_owned(), preset.name.into());
    Ok(pool)
}

/// Takes the numbers out of a pool, and returns the preset that owns them.
///
/// # Errors
/// As [`no_preset`] says.
fn preset_of(pool: &mut Table) -> Result<&'static Preset, ConfigError> {
    let fixed = owned("");
    let mut numbers = Table::new();
    for (key, default) in &fixed {
        let value = pool.remove(key).map_or_else(|| default.clone(), as_real);
        numbers.insert(key.clone(), value);
    }
    let found = PRESETS
        .iter()
        .find(|preset| owned(preset.differs) == numbers);
    found.ok_or_else(|| no_preset(&numbers))
}

/// Names the first number that the nearest preset does not have, and that preset.
fn no_preset(numbers: &Table) -> ConfigError {
    let differing = |preset: &Preset| -> Vec<String> {
        let own = owned(preset.differs);
        let differs = numbers.keys().filter(|key| own[*key] != numbers[*key]);
        differs.cloned().collect()
    };
    let nearest = PRESETS
        .iter()
        .map(|preset| (differing(preset), preset.name))
        .min_by_key(|(keys, _)| keys.len());
    let (keys, name) = nearest.expect("there are presets");
    let key = keys.first().map_or("", String::as_str);
    ConfigError(format!(
        "`pool.{key}` is of version 1 and belongs to the preset now: write `version = 2` and \
         `pool.preset = \"{name}\"` instead (others are `fixed`, `best`, `paper` and `code`)"
    ))
}

/// Keeps a key only where it says something else than the preset.
fn keep_unless<T: Into<Value>>(pool: &mut Table, key: &str, default: T, of_preset: T) {
    let value = pool.remove(key).unwrap_or_else(|| default.into());
    if value != of_preset.into() {
        pool.insert(key.to_owned(), value);
    }
}

/// Returns what a preset owns.
fn owned(differs: &str) -> Table {
    let read = |text: &str| text.parse::<Table>().expect("a constant of this file");
    let values = read(FIXED).into_iter().chain(read(differs));
    values.map(|(key, value)| (key, as_real(value))).collect()
}

/// Makes whole numbers real ones: files have either.
fn as_real(value: Value) -> Value {
    match value {
        Value::Integer(whole) => Value::Float(whole as f64),
        Value::Array(values) => Value::Array(values.into_iter().map(as_real).collect()),
        value => value,
    }
}
