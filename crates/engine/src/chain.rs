//! Which closed round to follow.
//!
//! Closed rounds form a chain: each names the mean it follows (`parent`) and how many members were counted so far
//! (`history`). A node follows the chain with the most history; of two closings of one round (the aggregator's and an
//! acting one's, or two acting ones') the lower rank wins until the node has moved on. History cannot be invented:
//! on our own chain it must be ours plus the members, and on another a majority of the members must confirm it by
//! their own signed adverts.

use fednode_core::draw::draw;
use fednode_core::{FederationId, Global, Lineage, NodeId, Round};

use crate::state::Head;
use crate::view::View;

/// What to do with an announced closed round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It follows our head.
    Next,
    /// Another chain with more history: follow it.
    Switch,
    /// Nothing new.
    Old,
    /// Perhaps good, but not enough of its members have confirmed it yet.
    Unconfirmed,
    /// It is false by what its own members signed.
    False(String),
}

/// Judges an announced closed round.
pub(crate) fn judge(
    head: &Head,
    initial: Lineage,
    round: Round,
    global: &Global,
    view: &View,
    min_members: u32,
) -> Verdict {
    let is_ours = head.mean.is_some_and(|mean| mean.id == global.mean.id);
    // Another closing of a round that this node has already followed comes too late, whoever signed it.
    let is_sibling = head.parent == Some(global.parent);
    if is_ours || is_sibling || global.history <= head.history {
        return Verdict::Old;
    }
    if (global.members.len() as u64) < u64::from(min_members) {
        return Verdict::False(format!("a round of {} members, fewer than min_members", global.members.len()));
    }
    if let Some(node) = view.contradiction(round, global) {
        return Verdict::False(format!("it counts {} otherwise than that node signed", node.short()));
    }
    let follows = global.parent == lineage_of(head, initial);
    let added = head.history + global.members.len() as u64;
    match follows {
        true if global.history != added => {
            Verdict::False(format!("a history of {} where {added} were counted", global.history))
        }
        true => Verdict::Next,
        false if 2 * view.confirmed(global) > global.members.len() => Verdict::Switch,
        false => Verdict::Unconfirmed,
    }
}

/// Returns the lineage of the head: its mean, or what everybody started from.
pub(crate) fn lineage_of(head: &Head, initial: Lineage) -> Lineage {
    head.mean.map_or(initial, |mean| mean.id)
}

/// Who closes a round first. The aggregator comes before every acting one; those are ordered by a hash that nobody
/// can choose, because the round and the federation are in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// An aggregator by role.
    Aggregator,
    /// A node in its place.
    Acting([u8; 32]),
}

impl Rank {
    /// Returns the rank of a node that acts as aggregator in a round.
    pub(crate) fn acting(federation: FederationId, round: Round, node: NodeId) -> Self {
        Self::Acting(draw(b"fednode acting aggregator 1", federation, round, node))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fednode_core::{BlobId, BlobRef, Member};

    fn blob(n: u8) -> BlobRef {
        BlobRef { id: BlobId::from_bytes([n; 32]), size: 1 }
    }

    fn global(parent: u8, members: u8, history: u64) -> Global {
        let member = |n| Member { node: NodeId::from_bytes([n; 32]), shared: blob(100 + n), weight: 1.0 };
        let members = (0..members).map(member).collect();
        Global { members, mean: blob(50), parent: blob(parent).id, history }
    }

    #[test]
    fn follows_its_own_chain_and_refuses_invented_history() {
        let head = Head { round: Round(3), mean: Some(blob(7)), parent: Some(blob(6).id), history: 30 };
        let judge = |global| judge(&head, blob(0).id, Round(4), &global, &View::new(2), 2);
        assert_eq!(judge(global(7, 5, 35)), Verdict::Next);
        assert!(matches!(judge(global(7, 5, 36)), Verdict::False(_)));
        assert!(matches!(judge(global(7, 1, 31)), Verdict::False(_)), "below min_members");
        assert_eq!(judge(global(5, 5, 30)), Verdict::Old);
        assert_eq!(judge(global(6, 6, 31)), Verdict::Old, "the round that was followed is closed a second time");
        assert_eq!(judge(global(5, 5, 1_000_000)), Verdict::Unconfirmed, "nobody confirms another chain");
    }

    #[test]
    fn the_aggregator_outranks_everybody() {
        let federation = FederationId::from_bytes([1; 32]);
        let acting = |n| Rank::acting(federation, Round(1), NodeId::from_bytes([n; 32]));
        assert!(Rank::Aggregator < acting(1).min(acting(2)));
        assert_ne!(acting(1) < acting(2), acting(2) < acting(1));
    }
}
