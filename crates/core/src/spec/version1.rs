//! Files of version 1, which have no key `version`, become specs of this version.
//!
//! Fingerprints had keys among the others, empty texts stood for none, and the numbers of a pool's preset were keys. The
//! federation that comes out is the same, but its id and its draws are those of this version.

use toml::{Table, Value};

use super::{FederationSpec, VERSION};
use crate::config::{self, ConfigError};

/// What the reader of such a file is told.
pub(super) const NOTICE: &str = "the spec is of version 1 and is read as one of version 2, so its federation has another \
                                 id: all members need this fednode (`version = 2` and the new keys silence this line)";

/// Where fingerprints were, and what they are called now.
const MOVED: [(&str, &str, &str); 5] = [
    ("model", "class_names", "class_names"),
    ("model", "columns", "columns"),
    ("model", "vocabulary_hash", "vocabulary"),
    ("model", "initial", "initial"),
    ("data", "partition_hash", "partition"),
];

/// The keys of a pool that its preset owns, as `fixed` has them.
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
";
/// What `paper` has otherwise.
const PAPER: &str = "
renormalize = 'never'
batch_size = 10
standardize = false
learning_rates = [0.5]
gate_input = 'samples'
";
/// What `code` has otherwise.
const CODE: &str = "
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
    guard: bool,
}

const PRESETS: [Preset; 3] = [
    Preset {
        name: "fixed",
        differs: "",
        epochs: 50,
        guard: true,
    },
    Preset {
        name: "paper",
        differs: PAPER,
        epochs: 50,
        guard: false,
    },
    Preset {
        name: "code",
        differs: CODE,
        epochs: 10,
        guard: false,
    },
];

/// Reads a file of version 1; nothing if it is of a later one.
///
/// # Errors
/// Names the key that version 2 cannot express, or is malformed.
pub(super) fn convert(text: &str) -> Result<Option<FederationSpec>, ConfigError> {
    let Ok(mut root) = text.parse::<Table>() else {
        return config::parse(text).map(Some); // It fails too, and says where.
    };
    match root.get("version") {
        None => {}
        Some(Value::Integer(1)) => drop(root.remove("version")),
        Some(_) => return Ok(None),
    }
    let typed = root.clone();
    move_fingerprints(&mut root);
    convert_pool(&mut root)?;
    if root == typed {
        // Nothing had to be converted, so that what is wrong has a line.
        return config::parse(text).map(at_this_version).map(Some);
    }
    let read: Result<FederationSpec, toml::de::Error> = root.try_into();
    read.map(at_this_version)
        .map(Some)
        .map_err(|error| ConfigError(config::explain(error.message())))
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
    if !moved.is_empty() {
        root.insert("fingerprints".to_owned(), Value::Table(moved));
    }
}

fn table_of<'a>(root: &'a mut Table, name: &str) -> Option<&'a mut Table> {
    root.get_mut(name).and_then(Value::as_table_mut)
}

/// Names the preset that a pool's numbers are those of, and keeps what a federation may still choose.
fn convert_pool(root: &mut Table) -> Result<(), ConfigError> {
    let Some(old) = table_of(root, "pool") else {
        return Ok(());
    };
    let mut pool = std::mem::take(old);
    let is_enabled = pool.remove("enabled");
    if is_enabled != Some(Value::Boolean(true)) {
        if is_enabled.is_some() {
            root.remove("pool");
        } else {
            *old = pool;
        }
        return Ok(());
    }
    let fixed = owned("");
    let numbers: Table = fixed
        .iter()
        .map(|(key, default)| {
            let value = pool.remove(key).unwrap_or_else(|| default.clone());
            (key.clone(), as_real(value))
        })
        .collect();
    let found = PRESETS
        .iter()
        .find(|preset| owned(preset.differs) == numbers);
    let Some(preset) = found else {
        let key = fixed
            .keys()
            .find(|key| fixed[*key] != numbers[*key])
            .map_or("", String::as_str);
        return Err(ConfigError(format!(
            "`pool.{key}` is of version 1 and belongs to the preset now: write `version = 2` and \
             `pool.preset = \"fixed\"`, `\"paper\"` or `\"code\"` instead"
        )));
    };
    let is_tuned = pool.get("fine_tune") == Some(&Value::Boolean(true));
    let name = if preset.name == "fixed" && is_tuned {
        "best"
    } else {
        preset.name
    };
    if name == "best" || !is_tuned {
        pool.remove("fine_tune");
    }
    // Version 1 had defaults of its own where the preset has them now.
    keep_unless(
        &mut pool,
        "epochs",
        Value::Integer(50),
        Value::Integer(preset.epochs),
    );
    keep_unless(
        &mut pool,
        "guard",
        Value::Boolean(true),
        Value::Boolean(preset.guard),
    );
    pool.insert("preset".to_owned(), Value::String(name.to_owned()));
    root.insert("pool".to_owned(), Value::Table(pool));
    Ok(())
}

/// Keeps a key only where it says something else than the preset.
fn keep_unless(pool: &mut Table, key: &str, default: Value, of_preset: Value) {
    let value = pool.remove(key).unwrap_or(default);
    if value != of_preset {
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
