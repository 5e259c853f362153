//! The roster: the peers whose hello was accepted.
//!
//! The swarm task writes it and the blob tasks read it. Blobs are exchanged only with peers on the roster.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use fednode_core::{BlobId, NodeId, Role};
use tokio::sync::watch;

/// Blobs remembered as held by one peer. Whether it holds older ones is found by asking.
const MAX_HOLDS_PER_PEER: usize = 1024;

/// The welcomed peers.
#[derive(Debug)]
pub(crate) struct Roster {
    peers: RwLock<BTreeMap<NodeId, Member>>,
    changes: watch::Sender<u64>,
}

#[derive(Debug)]
struct Member {
    role: Role,
    holds: HashSet<BlobId>,
    order: VecDeque<BlobId>,
}

impl Roster {
    pub(crate) fn new() -> Self {
        Self {
            peers: RwLock::default(),
            changes: watch::Sender::new(0),
        }
    }

    /// Enters a peer after its hello was accepted.
    pub(crate) fn enter(&self, node: NodeId, role: Role) {
        let member = Member {
            role,
            holds: HashSet::new(),
            order: VecDeque::new(),
        };
        // A known peer keeps its blobs: it announces each only once.
        self.write().entry(node).or_insert(member).role = role;
        self.changed();
    }

    /// Removes a peer when its last connection is gone.
    pub(crate) fn remove(&self, node: &NodeId) {
        self.write().remove(node);
        self.changed();
    }

    /// Returns a peer's role, `None` if it is not on the roster.
    pub(crate) fn role(&self, node: &NodeId) -> Option<Role> {
        self.read().get(node).map(|member| member.role)
    }

    /// Returns all peers, and whether each has announced that it holds a blob.
    pub(crate) fn candidates(&self, blob: &BlobId) -> Vec<(NodeId, bool)> {
        self.read()
            .iter()
            .map(|(node, member)| (*node, member.holds.contains(blob)))
            .collect()
    }

    /// Notes blobs that a peer announces to hold.
    pub(crate) fn note_holds(&self, node: &NodeId, blobs: &[BlobId]) {
        if blobs.is_empty() {
            return;
        }
        if let Some(member) = self.write().get_mut(node) {
            blobs.iter().for_each(|blob| member.note(*blob));
        }
        self.changed();
    }

    /// Returns how many blobs a peer is known to hold.
    pub(crate) fn n_holds(&self, node: &NodeId) -> usize {
        self.read().get(node).map_or(0, |member| member.holds.len())
    }

    /// Returns a receiver that wakes at every change.
    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn changed(&self) {
        self.changes.send_modify(|n| *n = n.wrapping_add(1));
    }

    // A panic elsewhere while the lock was held leaves a map that is still well formed.
    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<NodeId, Member>> {
        self.peers.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<NodeId, Member>> {
        self.peers.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Member {
    fn note(&mut self, blob: BlobId) {
        // Bounded, because a peer can announce any number of names that do not exist.
        if self.holds.insert(blob) {
            self.order.push_back(blob);
        }
        if self.order.len() > MAX_HOLDS_PER_PEER
            && let Some(oldest) = self.order.pop_front()
        {
            self.holds.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembers_the_latest_holdings_of_those_present() {
        let roster = Roster::new();
        let (ann, bob) = (NodeId::from_bytes([1; 32]), NodeId::from_bytes([2; 32]));
        let blob = |n: u32| BlobId::of(&n.to_le_bytes());
        roster.note_holds(&ann, &[blob(0)]);
        assert!(
            roster.candidates(&blob(0)).is_empty(),
            "strangers hold nothing"
        );
        roster.enter(ann, Role::Node);
        roster.enter(bob, Role::Aggregator);
        for n in 0..2000 {
            roster.note_holds(&ann, &[blob(n)]);
        }
        assert_eq!(roster.n_holds(&ann), MAX_HOLDS_PER_PEER);
        assert_eq!(roster.candidates(&blob(1999)), [(ann, true), (bob, false)]);
        assert_eq!(roster.candidates(&blob(0)), [(ann, false), (bob, false)]);
        roster.remove(&ann);
        assert_eq!(
            (roster.role(&ann), roster.role(&bob)),
            (None, Some(Role::Aggregator))
        );
    }
}
