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
    if !moved.is_empty() {
        root.insert("fingerprints".to_owned(), Value::Table(moved));
    }
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
    let is_tuned = pool.get("fine_tune") == Some(&Value::Boolean(true));
    let name = match preset.name {
        "fixed" if is_tuned => "best",
        name => name,
    };
    if name == "best" || !is_tuned {
        pool.remove("fine_tune");
    }
    // Version 1 had defaults of its own where the preset has them now.
    keep_unless(&mut pool, "epochs", 50, preset.epochs);
    keep_unless(&mut pool, "guard", true, preset.guard);
    pool.insert("preset".to_owned(), name.into());
    Ok(pool)
}

/// Takes the numbers out of a pool, and returns the preset that owns them.
///
/// # Errors
/// Names the first number that no preset has.
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
    found.ok_or_else(|| {
        let key = fixed.keys().find(|key| fixed[*key] != numbers[*key]);
        ConfigError(format!(
            "`pool.{}` is of version 1 and belongs to the preset now: write `version = 2` and \
             `pool.preset = \"fixed\"`, `\"paper\"` or `\"code\"` instead",
            key.map_or("", String::as_str)
        ))
    })
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
