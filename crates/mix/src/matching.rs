//! Matchings: by what a node chooses and weights the experts that it mixes. One file and one row of [`TABLE`] each.
//!
//! Core and engine see a matching as a name ([`fednode_core::Matching`]). What proxies mean, and how rows of a plan come
//! from them, is here alone.

mod agreement;
mod each;
mod noised;
mod ridge;
mod similarity;
mod statistics;

use std::collections::BTreeMap;
use std::sync::Arc;

use fednode_core::{ExpertExchange, ExpertId, NodeId, ParamSet, PlanRow, ProxySet, Source};

pub use agreement::ClassMeans;
pub use agreement::renaming::Renaming;
pub use noised::means_of_noised;
pub use ridge::{Slope, judge_rows};

use crate::similarity::Proxies;

/// All matchings.
pub const TABLE: &[MatchingRow] = &[
    similarity::ROW,
    statistics::ROW,
    statistics::BOUNDED_ROW,
    agreement::ROW,
    agreement::ROW_OF_SITES,
    noised::ROW,
    ridge::ROW,
    each::ROW,
];

/// One matching.
#[derive(Debug, Clone, Copy)]
pub struct MatchingRow {
    /// Its name in files and on the wire.
    pub name: &'static str,
    /// What it does, in one line.
    pub summary: &'static str,
    /// Where it is from.
    pub reference: &'static str,
    /// What the node gets of the sources.
    pub gives: Gives,
    /// Makes the rows of one node's own experts, which are all in `known`.
    pub rows: Rows,
    /// How many times the own expert's norm a fetched one's may be.
    pub most_norm_ratio: f64,
    /// Judges what was fetched against the own expert of that slot, where proxies can be copied.
    pub admits: Option<Admits>,
    /// Finds peers that have the node's classes under other names, where proxies tell of classes.
    pub renamings: Option<Renamings>,
}

/// What a node gets of the sources of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gives {
    /// One expert, mixed by the weights of the row.
    Mixture,
    /// All of them as they are; the algorithm judges them itself.
    Each,
}

/// Makes a row for each own expert from the proxies that are known.
pub type Rows = fn(&[ExpertId], &BTreeMap<NodeId, Arc<ProxySet>>, &ExpertExchange) -> Vec<PlanRow>;

/// Judges an expert that was fetched, given the own one, it and the exchange; says in one line why it is refused.
pub type Admits = fn(&ParamSet, &ParamSet, &ExpertExchange) -> Result<(), String>;

/// Finds the peers that have the classes of a node under other names, from the proxies that are known.
pub type Renamings = fn(NodeId, &BTreeMap<NodeId, Arc<ProxySet>>, &ExpertExchange) -> Vec<Renaming>;

/// Makes a row for each own expert, given the proxies that are of the own ones' dimension.
fn by_cosine(
    own: &[ExpertId],
    known: &BTreeMap<NodeId, Arc<ProxySet>>,
    row: impl Fn(&Proxies<'_>, ExpertId) -> PlanRow,
) -> Vec<PlanRow> {
    let own_set = own.first().and_then(|expert| known.get(&expert.owner));
    let dimension = own_set.map_or(0, |set| set.dimension());
    let proxies = Proxies::collect(known, dimension);
    own.iter().map(|own| row(&proxies, *own)).collect()
}

/// Makes the row of a node that adds up sums: the own ones first, then those of the given peers that weigh anything, in their
/// order, as many as the limit lets in. Weights then add up to 1.
fn own_first(own: ExpertId, own_weight: f64, peers: Vec<Source>, limit: usize) -> PlanRow {
    let own_source = Source {
        expert: own,
        similarity: 1.0,
        weight: own_weight,
    };
    let peers = peers.into_iter().filter(|source| source.weight > 0.0);
    let mut sources: Vec<Source> = std::iter::once(own_source)
        .chain(peers.take(limit))
        .collect();
    let total: f64 = sources.iter().map(|source| source.weight).sum();
    if total > 0.0 {
        sources.iter_mut().for_each(|source| source.weight /= total);
    }
    PlanRow {
        slot: own.slot,
        sources,
    }
}

/// Returns the row of a name.
pub fn find(name: &str) -> Option<&'static MatchingRow> {
    TABLE.iter().find(|row| row.name == name)
}

/// Tells what a node gets in an exchange: a mixture, unless the exchange's matching says otherwise.
pub fn gives(exchange: &ExpertExchange) -> Gives {
    find(exchange.matching.name()).map_or(Gives::Mixture, |row| row.gives)
}
