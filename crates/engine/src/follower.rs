//! The chain of closed rounds that a machine follows: its head, and the next one to follow.
//!
//! A small machine that nodes and aggregators share. What they differ in is an argument: which announced rounds are
//! considered, and which of two good ones is better. [`crate::chain`] judges a single round.

use fednode_core::{Global, Lineage, Member, NodeId, Round};
use serde::{Deserialize, Serialize};

use crate::chain::{self, Verdict};
use crate::state::Head;

/// A closed round as somebody announced it.
pub(crate) type Announced<'a> = (NodeId, Round, &'a Global);

/// A closed round that a machine looks into.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Closed {
    pub(crate) author: NodeId,
    pub(crate) round: Round,
    pub(crate) global: Global,
}

impl Closed {
    /// Tells whether an author means this closing.
    pub(crate) fn is(&self, author: NodeId, global: &Global) -> bool {
        self.author == author && self.global == *global
    }
}

impl From<Announced<'_>> for Closed {
    fn from((author, round, global): Announced<'_>) -> Self {
        Self {
            author,
            round,
            global: global.clone(),
        }
    }
}

/// What a look at all announced rounds yields.
#[derive(Debug)]
pub(crate) struct Found {
    /// The round to follow.
    pub(crate) best: Option<Closed>,
    /// Authors of rounds that are false by what others signed, and why.
    pub(crate) false_ones: Vec<(NodeId, String)>,
}

/// The chain that a machine follows.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Follower {
    head: Head,
    /// Whether a closed round waits for its members' confirmation.
    is_unconfirmed: bool,
}

impl Follower {
    pub(crate) fn new(head: Head) -> Self {
        Self {
            head,
            is_unconfirmed: false,
        }
    }

    /// Returns the newest closed round that is followed.
    pub(crate) fn head(&self) -> Head {
        self.head
    }

    /// Returns the lineage of the head: its mean, or what everybody started from.
    pub(crate) fn lineage(&self, initial: Lineage) -> Lineage {
        chain::lineage_of(&self.head, initial)
    }

    /// Tells whether the last look found a round that may be good once more of its members have confirmed it.
    pub(crate) fn is_unconfirmed(&self) -> bool {
        self.is_unconfirmed
    }

    /// Looks for the best round to follow among those that were announced.
    pub(crate) fn look<'v>(
        &mut self,
        announced: impl Iterator<Item = Announced<'v>>,
        judge: impl Fn(&Head, Announced<'v>) -> Verdict,
        is_better: impl Fn(Announced<'v>, Announced<'v>) -> bool,
    ) -> Found {
        let mut best: Option<Announced<'v>> = None;
        let mut false_ones = Vec::new();
        // Each look starts anew: what was unconfirmed may have been confirmed, or forgotten.
        self.is_unconfirmed = false;
        for closed in announced {
            match judge(&self.head, closed) {
                Verdict::Next | Verdict::Switch => {
                    // The first of two equals stays, so that a node does not change its mind for nothing.
                    if best.is_none_or(|known| is_better(closed, known)) {
                        best = Some(closed);
                    }
                }
                Verdict::False(reason) => false_ones.push((closed.0, reason)),
                Verdict::Unconfirmed => self.is_unconfirmed = true,
                Verdict::Old => {}
            }
        }
        let best = best.map(Closed::from);
        Found { best, false_ones }
    }

    /// Takes a closed round for the head.
    pub(crate) fn follow(&mut self, round: Round, global: &Global) {
        self.head = Head {
            round,
            mean: Some(global.mean),
            parent: Some(global.parent),
            history: global.history,
        };
    }

    /// Returns the announcement of a round that follows the head.
    pub(crate) fn close(
        &self,
        parent: Lineage,
        mean: fednode_core::BlobRef,
        members: Vec<Member>,
    ) -> Global {
        let history = self.head.history + members.len() as u64;
        Global {
            members,
            mean,
            parent,
            history,
        }
    }
}
