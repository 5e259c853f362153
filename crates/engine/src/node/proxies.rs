//! Proxies on their way: whose they are, and of which round.

use std::collections::{BTreeMap, BTreeSet};

use fednode_core::{BlobId, BlobRef, LocalReport, NodeId, ProxyOffer, Round};
use serde::{Deserialize, Serialize};

use crate::chain::SLACK;

/// Most bytes of proxies that are fetched while the own ones are not known.
const MOST_UNKNOWN: u64 = 16 << 20;

/// The proxies that are being fetched. Nodes with equal proxies have one blob.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Proxies(BTreeMap<BlobRef, Vec<(NodeId, Round)>>);

impl Proxies {
    /// Waits for a node's proxies; tells whether their blob is new and must be fetched.
    pub(super) fn want(&mut self, blob: BlobRef, node: NodeId, round: Round) -> bool {
        let waiting = self.0.entry(blob).or_default();
        waiting.push((node, round));
        waiting.len() == 1
    }

    /// Takes out whose proxies a blob holds.
    pub(super) fn take(&mut self, blob: BlobId) -> Vec<(NodeId, Round)> {
        // Somebody may have announced it with another size, too.
        let sizes = self.0.extract_if(.., |wanted, _| wanted.id == blob);
        sizes.flat_map(|(_, waiting)| waiting).collect()
    }

    /// These cannot be had.
    pub(super) fn fail(&mut self, blob: &BlobRef) {
        self.0.remove(blob);
    }

    /// Stops waiting for the proxies of a node.
    pub(super) fn give_up_on(&mut self, node: NodeId) {
        for waiting in self.0.values_mut() {
            waiting.retain(|(wanted, _)| *wanted != node);
        }
        self.0.retain(|_, waiting| !waiting.is_empty());
    }

    /// Stops waiting for blobs of which no owner can be counted on.
    pub(super) fn keep_those_of(&mut self, comes: impl Fn(NodeId) -> bool) {
        self.0
            .retain(|_, waiting| waiting.iter().any(|(node, _)| comes(*node)));
    }

    /// Stops waiting for anybody's.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the nodes whose proxies are waited for.
    pub(super) fn owners(&self) -> BTreeSet<NodeId> {
        self.0.values().flatten().map(|(node, _)| *node).collect()
    }
}

/// Returns how many bytes anybody's proxies can have: four times the own ones, and [`SLACK`]. Before those are known it is as many as
/// any proxies have that are worth an exchange.
pub(super) fn most_bytes(own: Option<&LocalReport>) -> u64 {
    let own = own.and_then(|report| report.proxies.as_ref());
    let own = own.map(|proxies| match proxies {
        ProxyOffer::Inline(inline) => inline.bytes().len() as u64,
        ProxyOffer::Blob(blob) => blob.size,
    });
    own.map_or(MOST_UNKNOWN, |own| {
        own.saturating_mul(4).saturating_add(SLACK)
    })
}
