//! Matchings: by what a node chooses and weights the experts that it mixes. One file and one row of [`TABLE`] each.
//!
//! Core and engine see a matching as a name ([`fednode_core::Matching`]). What proxies mean, and how rows of a plan come
//! from them, is here alone.

mod similarity;
mod statistics;

use std::collections::BTreeMap;
use std::sync::Arc;

use fednode_core::{ExpertExchange, ExpertId, NodeId, PlanRow, ProxySet};

/// All matchings.
pub const TABLE: &[MatchingRow] = &[similarity::ROW, statistics::ROW];

/// One matching.
#[derive(Debug, Clone, Copy)]
pub struct MatchingRow {
    /// Its name in files and on the wire.
    pub name: &'static str,
    /// What it does, in one line.
    pub summary: &'static str,
    /// Where it is from.
    pub reference: &'static str,
    /// Makes the rows of one node's own experts, which are all in `known`.
    pub rows: Rows,
}

/// Makes a row for each own expert from the proxies that are known.
pub type Rows = fn(&[ExpertId], &BTreeMap<NodeId, Arc<ProxySet>>, &ExpertExchange) -> Vec<PlanRow>;

/// Returns the row of a name.
pub fn find(name: &str) -> Option<&'static MatchingRow> {
    TABLE.iter().find(|row| row.name == name)
}
