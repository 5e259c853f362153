//! What people call nodes, for texts that people read.
//!
//! Names come from the organiser's certificates. They are one table for the whole process, like the subscriber of its log,
//! because they are needed wherever a line is written. Nothing is ever decided by a name.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

use crate::{MemberName, NodeId};

static NAMES: RwLock<BTreeMap<NodeId, MemberName>> = RwLock::new(BTreeMap::new());

/// Calls a node by this name from now on.
pub fn call(node: NodeId, name: MemberName) {
    let mut names = NAMES.write().unwrap_or_else(PoisonError::into_inner);
    names.insert(node, name);
}

/// Returns what people call a node, if it has a name.
pub fn of(node: &NodeId) -> Option<String> {
    let names = NAMES.read().unwrap_or_else(PoisonError::into_inner);
    names.get(node).map(ToString::to_string)
}
