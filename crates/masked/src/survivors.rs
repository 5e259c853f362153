//! Whose vectors are added up, and that enough members say so.

use std::collections::BTreeSet;

use fednode_core::NodeId;
use fednode_core::masked::Bytes32;

use crate::roster::Roster;

/// Fewest survivors of a sum. Of two, each would see the other's vector.
pub const FEWEST: usize = 3;

/// Members of a roster whose masked vectors are added up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Survivors {
    roster: Bytes32,
    nodes: BTreeSet<NodeId>,
}

/// Survivors that more than two thirds of the roster have confirmed.
///
/// Two such sets share a member that confirmed both, unless they are the same. Members confirm once. So as long as fewer
/// than a third lie, there is one set at most, and nobody takes masks off for another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Confirmed(Survivors);

/// Tells why survivors are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SurvivorsFault {
    /// One is no member of the roster.
    #[error("survivors that were not on the roster")]
    Strangers,
    /// They are too few: their sum would tell of each.
    #[error(
        "{survivors} survivors of {members}: masks come off for at least three, and for more than half"
    )]
    TooFew {
        /// How many survive.
        survivors: usize,
        /// How many there were.
        members: usize,
    },
    /// So few of a group survive that their sum would tell of each.
    #[error("survivors of a group that is too small to be added up")]
    SmallGroup,
    /// They are of another roster than those who confirm them.
    #[error("survivors of another roster")]
    OtherRoster,
    /// Too few have confirmed them.
    #[error("survivors that {0} members confirm, which is not more than two thirds")]
    Unconfirmed(usize),
}

impl Survivors {
    /// Names the survivors of a roster.
    ///
    /// # Errors
    /// Fails for strangers, for fewer than three, for half of the roster or fewer, and for too few of a group.
    pub fn new(roster: &Roster, nodes: BTreeSet<NodeId>) -> Result<Self, SurvivorsFault> {
        if nodes.iter().any(|node| !roster.contains(*node)) {
            return Err(SurvivorsFault::Strangers);
        }
        let (survivors, members) = (nodes.len(), roster.len());
        if survivors < FEWEST || 2 * survivors <= members {
            return Err(SurvivorsFault::TooFew { survivors, members });
        }
        if roster.countable(nodes.clone()) != nodes {
            return Err(SurvivorsFault::SmallGroup);
        }
        let roster = roster.id();
        Ok(Self { roster, nodes })
    }

    /// Takes the confirmations of members: each has signed [`Survivors::id`].
    ///
    /// # Errors
    /// Fails for another roster than theirs, and if not more than two thirds of it have confirmed.
    pub fn confirmed(
        self,
        roster: &Roster,
        by: &BTreeSet<NodeId>,
    ) -> Result<Confirmed, SurvivorsFault> {
        if roster.id() != self.roster {
            return Err(SurvivorsFault::OtherRoster);
        }
        let confirmations = by.iter().filter(|node| roster.contains(**node)).count();
        if 3 * confirmations <= 2 * roster.len() {
            return Err(SurvivorsFault::Unconfirmed(confirmations));
        }
        Ok(Confirmed(self))
    }

    /// Returns the name of the survivors, and of the roster that they are of.
    pub fn id(&self) -> Bytes32 {
        let mut hasher = blake3::Hasher::new_derive_key("fednode masked survivors 1");
        hasher.update(self.roster.as_slice());
        for node in &self.nodes {
            hasher.update(node.as_bytes());
        }
        Bytes32::new(*hasher.finalize().as_bytes())
    }

    /// Visits the survivors in node order.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.nodes.iter().copied()
    }

    /// Tells whether a member survives.
    pub fn contains(&self, node: NodeId) -> bool {
        self.nodes.contains(&node)
    }

    /// Returns the name of the roster that they are of.
    pub(crate) fn roster(&self) -> Bytes32 {
        self.roster
    }
}

impl Confirmed {
    /// Returns the survivors.
    pub fn survivors(&self) -> &Survivors {
        &self.0
    }
}
