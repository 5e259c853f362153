//! Dotted keys: reading and writing one value of the federation's spec by name, for `--set key=value`.
//!
//! A key is a path in `federation.toml` (`training.learning_rate`), or the bare name of one of the algorithm's
//! hyper-parameters (`profile`), which then means `hyper.profile`. Everything else is an error that names the nearest.

use std::collections::BTreeMap;
use std::str::FromStr;

use fednode_core::config::{ConfigError, explain, unknown_name};
use fednode_core::spec::Fingerprints;
use fednode_core::{FederationSpec, HyperValue};

/// Where the algorithm's own hyper-parameters are.
const HYPER: &str = "hyper.";
/// The short name of the key that turns the pool on.
const POOL: [&str; 2] = ["pool", "pool.preset"];
/// The word that takes the value of a key away, where a key may have none.
const NONE: &str = "none";
/// What `fednode init` writes itself; nobody sets it by hand.
const MACHINE_WRITTEN: [&str; 3] = ["version", "fingerprints", "exchange"];
/// The fingerprints that a simulation without data may be given all the same.
const FACTS: [&str; 3] = ["input", "classes", "vocabulary_size"];

/// One `key=value` as typed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    /// The dotted key.
    pub key: String,
    /// The value as text.
    pub value: String,
}

/// A text is no assignment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not of the form key=value")]
pub struct NoAssignment(String);

impl FromStr for Assignment {
    type Err = NoAssignment;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('=') {
            Some((key, value)) if !key.trim().is_empty() => Ok(Self {
                key: key.trim().to_owned(),
                value: value.trim().to_owned(),
            }),
            _ => Err(NoAssignment(text.to_owned())),
        }
    }
}

impl Assignment {
    /// Returns it with the whole key, where it was typed by its short name.
    fn in_full(&self) -> Self {
        let [short, full] = POOL;
        let key = if self.key == short { full } else { &self.key };
        Self::new(key, &self.value)
    }

    /// Tells whether it is of the same key as another.
    pub fn is_of(&self, other: &Self) -> bool {
        bare(&self.in_full().key) == bare(&other.in_full().key)
    }

    /// Makes an assignment.
    pub fn new(key: &str, value: impl ToString) -> Self {
        Self {
            key: key.to_owned(),
            value: value.to_string(),
        }
    }
}

/// Returns a key without `hyper.`: a hyper-parameter may be called by its bare name.
pub fn bare(key: &str) -> &str {
    key.strip_prefix(HYPER).unwrap_or(key)
}

/// Tells whether two texts are the same value: numbers may be written in several ways.
fn are_equal(one: &str, other: &str) -> bool {
    let number = |text: &str| text.parse::<f64>().ok();
    one == other || number(one).is_some_and(|one| number(other) == Some(one))
}

/// Returns the first two assignments of one key that differ.
pub fn contradiction(assignments: &[Assignment]) -> Option<[&Assignment; 2]> {
    let mut pairs = assignments.iter().enumerate().flat_map(|(at, later)| {
        assignments[..at]
            .iter()
            .map(move |earlier| [earlier, later])
    });
    pairs.find(|[earlier, later]| earlier.is_of(later) && !are_equal(&earlier.value, &later.value))
}

/// Returns the spec with the values assigned in order; later ones win. `hyper_names` are the algorithm's own keys.
///
/// # Errors
/// Names the first unknown key, with the nearest valid one, or the first value of the wrong type.
pub fn assign(
    spec: &FederationSpec,
    assignments: &[Assignment],
    hyper_names: &[&str],
) -> Result<FederationSpec, ConfigError> {
    let mut root = toml::Table::try_from(spec).map_err(|error| ConfigError(error.to_string()))?;
    let mut hyper: BTreeMap<String, HyperValue> = spec.hyper.clone();
    root.remove("hyper");
    let written = MACHINE_WRITTEN.map(|key| root.remove(key));
    if let [_, Some(toml::Value::Table(mut known)), _] = written {
        known.retain(|key, _| FACTS.contains(&key));
        root.insert("fingerprints".to_owned(), known.into());
    }
    for assignment in assignments {
        let assignment = &assignment.in_full();
        match hyper_name(&assignment.key, &root) {
            Some(name) if hyper_names.contains(&name) => {
                let Ok(value) = assignment.value.parse();
                hyper.insert(name.to_owned(), value);
            }
            Some(_) => return Err(unknown_key(&assignment.key, &root, hyper_names)),
            None => {
                put(&mut root, assignment, hyper_names)?;
                // Read back at once: only now is it known which assignment has the wrong type.
                read_back(&root).map_err(|cause| {
                    ConfigError(format!(
                        "`{}={}`: {cause}",
                        assignment.key, assignment.value
                    ))
                })?;
            }
        }
    }
    let mut assigned = read_back(&root).map_err(ConfigError)?;
    assigned.hyper = hyper;
    assigned.exchange = spec.exchange.clone();
    assigned.fingerprints = Fingerprints {
        input: assigned.fingerprints.input,
        classes: assigned.fingerprints.classes,
        vocabulary_size: assigned.fingerprints.vocabulary_size,
        ..spec.fingerprints.clone()
    };
    Ok(assigned)
}

fn read_back(root: &toml::Table) -> Result<FederationSpec, String> {
    root.clone()
        .try_into()
        .map_err(|error: toml::de::Error| explain(error.message()))
}

/// Returns the hyper-parameter that a key means, if it means one.
fn hyper_name<'a>(key: &'a str, root: &toml::Table) -> Option<&'a str> {
    let is_known = || root.contains_key(key) || optional().iter().any(|known| known == key);
    key.strip_prefix(HYPER)
        .or_else(|| (!key.contains('.') && !is_known()).then_some(key))
}

fn put(
    root: &mut toml::Table,
    assignment: &Assignment,
    hyper_names: &[&str],
) -> Result<(), ConfigError> {
    let unknown = unknown_key(&assignment.key, root, hyper_names);
    let mut path: Vec<&str> = assignment.key.split('.').collect();
    let last = path.pop().unwrap_or_default();
    let mut table = root;
    for segment in path {
        let Some(inner) = table.get_mut(segment).and_then(toml::Value::as_table_mut) else {
            return Err(unknown);
        };
        table = inner;
    }
    let is_optional = optional().contains(&assignment.key);
    if is_optional && assignment.value == NONE {
        table.remove(last);
        return Ok(());
    }
    match table.get_mut(last) {
        Some(toml::Value::Table(_)) => Err(unknown),
        Some(value) => {
            *value = read(&assignment.value, value);
            Ok(())
        }
        None if is_optional => {
            let value = read(&assignment.value, &toml::Value::Boolean(false));
            table.insert(last.to_owned(), value);
            Ok(())
        }
        None => Err(unknown),
    }
}

/// Reads a value; where a text stands now, everything but a list is a text.
fn read(text: &str, current: &toml::Value) -> toml::Value {
    let as_text = toml::Value::String(text.to_owned());
    if current.is_str() && !text.starts_with('[') {
        return as_text;
    }
    let parsed = format!("value = {text}")
        .parse::<toml::Table>()
        .ok()
        .and_then(|mut table| table.remove("value"));
    parsed.unwrap_or(as_text)
}

fn unknown_key(key: &str, root: &toml::Table, hyper_names: &[&str]) -> ConfigError {
    let (mut valid, mut prefix) = (Vec::new(), "");
    if key.starts_with(HYPER) {
        prefix = HYPER;
    } else {
        flatten("", root, &mut valid);
        valid.extend(optional());
        valid.sort_unstable();
        valid.dedup();
    }
    valid.extend(hyper_names.iter().map(|name| format!("{prefix}{name}")));
    let mut names: Vec<&str> = valid.iter().map(String::as_str).collect();
    names.sort_unstable();
    ConfigError(unknown_name("key", key, &names))
}

/// Returns the keys that have no value unless somebody sets one.
fn optional() -> Vec<String> {
    let default = toml::Table::try_from(FederationSpec::default()).unwrap_or_default();
    let mut present = Vec::new();
    flatten("", &default, &mut present);
    let doc = FederationSpec::doc();
    let documented = doc.entries().into_iter().map(|entry| entry.dotted());
    let is_written = |key: &String| MACHINE_WRITTEN.iter().any(|table| key.starts_with(table));
    documented
        .filter(|key| !present.contains(key) && !is_written(key))
        .collect()
}

fn flatten(path: &str, table: &toml::Table, keys: &mut Vec<String>) {
    for (key, value) in table {
        let path = if path.is_empty() {
            key.clone()
        } else {
            format!("{path}.{key}")
        };
        match value {
            toml::Value::Table(inner) => flatten(&path, inner, keys),
            _ => keys.push(path),
        }
    }
}

#[cfg(test)]
mod tests {
    use fednode_core::spec::Preset;

    use super::*;

    fn set(texts: &[&str]) -> Result<FederationSpec, String> {
        let assignments: Vec<Assignment> = texts.iter().map(|text| text.parse().unwrap()).collect();
        assign(&FederationSpec::default(), &assignments, &["profile", "mu"])
            .map_err(|error| error.0)
    }

    #[test]
    fn sets_dotted_keys_of_every_type() {
        let spec = set(&[
            "training.learning_rate=0.5",
            "training.batch_size = 7",
            "round.quorum=1",
            "fingerprints.input=[3, 32, 32]",
            "name=5",
            "metric=auroc",
        ]);
        let spec = spec.unwrap();
        assert_eq!(
            (spec.training.learning_rate, spec.training.batch_size),
            (0.5, 7)
        );
        assert_eq!(
            (
                spec.round.quorum,
                spec.fingerprints.input,
                spec.name.as_str()
            ),
            (1.0, [3, 32, 32], "5")
        );
        assert_eq!(spec.metric.as_deref(), Some("auroc"));
        assert_eq!(set(&["metric=auroc", "metric=none"]).unwrap().metric, None);
    }

    #[test]
    fn sets_hyper_parameters_by_their_bare_name_too() {
        let spec = set(&["profile=robust", "hyper.mu=0.1"]).unwrap();
        assert_eq!(spec.hyper["profile"], HyperValue::Text("robust".into()));
        assert_eq!(spec.hyper["mu"], HyperValue::Real(0.1));
    }

    #[test]
    fn later_assignments_win() {
        assert_eq!(set(&["rounds=2", "rounds=3"]).unwrap().rounds, 3);
    }

    #[test]
    fn keys_without_a_value_are_set_and_taken_away() {
        let spec = set(&["pool=code", "pool.epochs=3"]).unwrap();
        assert_eq!(
            (spec.pool.preset, spec.pool.epochs),
            (Some(Preset::Code), Some(3))
        );
        assert!(!set(&["pool=code", "pool=none"]).unwrap().pool.is_enabled());
        assert_eq!(
            set(&["pool=fixd"]).unwrap_err(),
            "`pool.preset=fixd`: unknown value `fixd`: did you mean `fixed`? Allowed are `fixed`, `paper`, `code`, `best`"
        );
        let written = set(&["fingerprints.partition=x"]).unwrap_err();
        assert!(
            written.starts_with("unknown key `fingerprints.partition`"),
            "{written}"
        );
    }

    #[test]
    fn unknown_keys_offer_the_nearest() {
        let nearest = |text: &str| set(&[text]).unwrap_err();
        assert_eq!(
            nearest("training.learningrate=1"),
            "unknown key `training.learningrate`: did you mean `training.learning_rate`?"
        );
        assert_eq!(
            nearest("profil=1"),
            "unknown key `profil`: did you mean `profile`?"
        );
        assert_eq!(
            nearest("hyper.profil=1"),
            "unknown key `hyper.profil`: did you mean `hyper.profile`?"
        );
        assert!(nearest("training=1").starts_with("unknown key `training`"));
    }

    #[test]
    fn wrong_types_are_refused_in_one_line() {
        let error = set(&["rounds=2", "training.batch_size=many", "seed=3"]).unwrap_err();
        assert!(
            error.starts_with("`training.batch_size=many`: invalid type"),
            "{error}"
        );
        assert!(!error.contains('\n'), "{error}");
        assert!("rounds".parse::<Assignment>().is_err());
        assert!("=3".parse::<Assignment>().is_err());
    }

    #[test]
    fn key_owned_by_the_algorithm_cannot_be_set() {
        let assignment = Assignment::new("exchange.experts.temperature", 2);
        let error =
            assign(&FederationSpec::default(), &[assignment], &["temperature"]).unwrap_err();
        assert!(
            error
                .0
                .starts_with("unknown key `exchange.experts.temperature`"),
            "{error}"
        );
    }
}
