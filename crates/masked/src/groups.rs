//! Groups: members whose vectors are added up apart from the others', so that sums can be judged by each other.
//!
//! One roster has one set of survivors and one word of each member, whatever its groups are. Members of a group share masks with each
//! other alone, so the masks of each group cancel in its own sum. All nodes hold shares of each other's secrets as before.
//!
//! Groups are dealt by a hash of what the sum is about and of a member's name. So nobody chooses its group, unless it makes its key
//! after everybody knows what the sum is about. Who fixes the roster may leave nodes out of it, which deals the others anew.

use std::collections::{BTreeMap, BTreeSet};

use fednode_core::NodeId;

use crate::Context;
use crate::survivors::FEWEST;

/// How members are grouped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grouping {
    /// Members of a group at least. Twice as many are the first that make two groups.
    pub size: usize,
    /// Fewest survivors of a group of this size that is added up, at least [`FEWEST`]. Of a larger one three quarters must survive.
    pub fewest: usize,
}

/// Deals members to groups: as many as there are of this size, all of them as large as each other or larger by one.
pub fn deal(grouping: Grouping, members: &[NodeId], context: &Context) -> Vec<Vec<NodeId>> {
    let hash = |node: &NodeId| context.derive("fednode masked group 1", &[node.as_bytes()]);
    let mut dealt = members.to_vec();
    dealt.sort_by_cached_key(|node| (hash(node), *node));
    let count = (dealt.len() / grouping.size.max(FEWEST)).max(1);
    let mut groups = vec![Vec::new(); count];
    for (place, node) in dealt.into_iter().enumerate() {
        groups[place % count].push(node);
    }
    groups
}

/// The groups of a roster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Groups {
    fewest: usize,
    of: BTreeMap<NodeId, usize>,
    members: Vec<Vec<NodeId>>,
}

impl Groups {
    /// Deals members to groups.
    pub(crate) fn deal(
        grouping: Grouping,
        members: impl Iterator<Item = NodeId>,
        context: &Context,
    ) -> Self {
        let members: Vec<NodeId> = members.collect();
        let members = deal(grouping, &members, context);
        let numbered = members.iter().enumerate();
        let of = numbered.flat_map(|(group, nodes)| nodes.iter().map(move |node| (*node, group)));
        Self {
            fewest: grouping.fewest.max(FEWEST),
            of: of.collect(),
            members,
        }
    }

    /// Returns how many groups there are.
    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    /// Returns the group of a member.
    pub(crate) fn of(&self, node: NodeId) -> Option<usize> {
        self.of.get(&node).copied()
    }

    /// Visits the members of a node's group.
    pub(crate) fn beside(&self, node: NodeId) -> impl Iterator<Item = NodeId> + '_ {
        let group = self.of(node).map(|group| self.members[group].iter());
        group.into_iter().flatten().copied()
    }

    /// Returns those of these members whose groups have enough of them to be added up.
    pub(crate) fn countable(&self, nodes: &BTreeSet<NodeId>) -> BTreeSet<NodeId> {
        let mut left = BTreeSet::new();
        for group in &self.members {
            let here: Vec<NodeId> = group
                .iter()
                .copied()
                .filter(|node| nodes.contains(node))
                .collect();
            let most_lost = group.len() / 4;
            if here.len() >= self.fewest.max(group.len() - most_lost) {
                left.extend(here);
            }
        }
        left
    }
}
