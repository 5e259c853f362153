//! The canonical form of a spec: its dotted keys in alphabetical order.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::FederationSpec;

/// Separates the hash of a spec from every other hash.
const DOMAIN: &[u8] = b"fednode federation spec 2\n";
/// Longest text of one value in a hello.
const MAX_ENTRY_BYTES: usize = 256;

/// One key of the spec with its value as text; sent at hello.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// The dotted key, for example `training.learning_rate`.
    pub key: String,
    /// Its value as JSON.
    pub value: String,
}

/// Returns the bytes that are hashed: what differs from the defaults.
pub(super) fn bytes(spec: &FederationSpec, defaults: &FederationSpec) -> Vec<u8> {
    let defaults = dotted(defaults);
    let mut keys = dotted(spec);
    keys.retain(|key, value| defaults.get(key) != Some(value));
    let json = serde_json::to_vec(&keys).expect("text keys and JSON values");
    [DOMAIN, &json].concat()
}

/// Returns all keys with their values, long values cut.
pub(super) fn entries(spec: &FederationSpec) -> Vec<Entry> {
    let entry = |(key, value): (String, Value)| Entry {
        key,
        value: value.to_string().chars().take(MAX_ENTRY_BYTES).collect(),
    };
    dotted(spec).into_iter().map(entry).collect()
}

/// Returns all keys that have a value, with it.
fn dotted(spec: &FederationSpec) -> BTreeMap<String, Value> {
    let json = serde_json::to_value(spec).expect("text keys and finite numbers");
    let mut keys = BTreeMap::new();
    flatten(String::new(), json, &mut keys);
    keys
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
