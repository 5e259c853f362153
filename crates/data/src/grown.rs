//! A node's own data that have grown: rows were appended since it began.
//!
//! ```text
//! rows 1 … N (began with) ──► divided as at first: training, validation, test
//! rows N+1 … M (appended) ──► training, unless their group is held out: then where the group is
//! ```
//!
//! What the node is judged by stays what it was, so scores before and after compare, and no test sample is ever trained on.
//! Rows are known by their order. Where those at the front are others now, nothing tells which were held out, so that is an error.

use blake3::Hasher;
use serde::{Deserialize, Serialize};

use crate::source::Pool;

/// Separates this hash from every other.
const DOMAIN: &[u8] = b"fednode rows 1\n";

/// The rows that a node began with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Beginning {
    /// How many they were.
    pub rows: usize,
    /// Hash of their labels, or of the numbers that are predicted.
    pub hash: String,
}

impl Beginning {
    /// Remembers the rows of a pool.
    pub fn of(pool: &Pool) -> Self {
        let mut hasher = Hasher::new();
        hasher.update(DOMAIN);
        for label in &pool.labels {
            // Names and not numbers: another class may have come in between.
            hasher.update(pool.class_names[usize::from(*label)].as_bytes());
            hasher.update(b"\n");
        }
        for target in pool.targets.iter().flatten() {
            hasher.update(&target.to_bits().to_le_bytes());
        }
        Self {
            rows: pool.labels.len(),
            hash: hasher.finalize().to_hex()[..32].to_owned(),
        }
    }
}

impl Pool {
    /// Returns the first rows alone.
    pub(crate) fn first(&self, rows: usize) -> Self {
        fn cut<T: Clone>(all: &[T], rows: usize) -> Vec<T> {
            all[..rows].to_vec()
        }
        Self {
            shape: self.shape,
            labels: cut(&self.labels, rows),
            class_names: self.class_names.clone(),
            targets: self.targets.as_deref().map(|all| cut(all, rows)),
            tests: self.tests.as_deref().map(|all| cut(all, rows)),
            groups: self.groups.as_deref().map(|all| cut(all, rows)),
        }
    }
}
